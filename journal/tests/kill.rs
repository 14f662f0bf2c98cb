//! What is left after a SIGKILL.

#![allow(clippy::unwrap_used, clippy::panic, missing_docs)]

mod common;

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

use common::*;
use txfs_journal::*;

/// The journal's own limit, and what a busy machine may add before a thread runs and before sled's flush,
/// which waits for the write, returns.
const LOST_MILLIS: u128 = 100 + 1000;

fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    Timestamp { secs: since.as_secs() as i64, nanos: since.subsec_nanos() }
}

fn millis(t: Timestamp) -> u128 {
    t.secs as u128 * 1000 + u128::from(t.nanos) / 1_000_000
}

/// Starts one of the children below over a new store.
fn start(child: &str, db: &Path) -> (Child, impl Iterator<Item = String> + use<>) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", child, "--nocapture"])
        .env("TXFS_JOURNAL_CHILD", db)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let said = lines.filter_map(|l| l.split("said ").nth(1).map(str::to_owned));
    (child, said)
}

fn kill(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

fn say(what: impl std::fmt::Display) {
    println!("said {what}");
    std::io::stdout().flush().unwrap();
}

fn child() -> Option<Journal> {
    let db = std::env::var_os("TXFS_JOURNAL_CHILD")?;
    Some(Journal::open(db.as_ref()).unwrap())
}

/// A child; does nothing when run by itself.
#[test]
fn child_that_makes_durable() {
    let Some(journal) = child() else { return };
    let writer = journal.writer(journal.begin("t", 0, NOW).unwrap().id).unwrap();
    for n in 0.. {
        writer.append(NOW, &create(n)).unwrap();
        if n % 1000 == 999 {
            writer.make_durable().unwrap();
            say(n + 1);
        }
    }
}

/// A child; does nothing when run by itself. It never asks for anything to be handed over.
#[test]
fn child_that_only_appends() {
    let Some(journal) = child() else { return };
    let writer = journal.writer(journal.begin("t", 0, NOW).unwrap().id).unwrap();
    for n in 0.. {
        let time = now();
        writer.append(time, &create(n)).unwrap();
        say(format!("{n} {}", millis(time)));
    }
}

/// A child; does nothing when run by itself. One transaction after the other.
#[test]
fn child_that_commits() {
    let Some(journal) = child() else { return };
    for generation in 1.. {
        let head = journal.begin("t", 0, NOW).unwrap();
        let writer = journal.writer(head.id).unwrap();
        for n in 0..40 {
            writer.append(NOW, &create(n)).unwrap();
        }
        let sealed = journal.seal(plan(head.id, generation, 30)).unwrap();
        say(format!("sealed {generation}"));
        let done = record(sealed.plan(), 30);
        journal.publish(sealed, &done).unwrap();
        say(format!("live {generation}"));
        journal.forget(head.id).unwrap();
        let head = journal.begin("t", 0, NOW).unwrap();
        journal.begin_abort(head.id).unwrap();
        journal.finish_abort(head.id).unwrap();
        journal.forget(head.id).unwrap();
    }
}

#[test]
fn nothing_that_was_made_durable_is_lost_and_the_rest_is_a_prefix() {
    for durable_first in [1, 3, 6] {
        let dir = tempfile::tempdir().unwrap();
        let db = dir.path().join("db");
        let (child, mut said) = start("child_that_makes_durable", &db);
        let acknowledged: usize = said.nth(durable_first).unwrap().parse().unwrap();
        kill(child);
        let journal = Journal::open(&db).unwrap();
        let records = journal.records(TxnId(1)).unwrap();
        assert!(records.len() >= acknowledged, "{} of {acknowledged}", records.len());
        for (n, record) in records.iter().enumerate() {
            assert_eq!(record.entry, create(n as u64));
        }
        let writer = journal.writer(TxnId(1)).unwrap();
        let next = records.len() as u64;
        assert_eq!(writer.append(NOW, &create(next)).unwrap(), Seq(next + 1));
        assert!(journal.check().unwrap().is_empty());
    }
}

#[test]
fn records_older_than_the_delay_are_there() {
    let dir = tempfile::tempdir().unwrap();
    let db = dir.path().join("db");
    let (child, said) = start("child_that_only_appends", &db);
    let time = |line: &str| line.split(' ').nth(1).unwrap().parse::<u128>().unwrap();
    let (mut first, mut last) = (None, 0);
    for line in said {
        last = time(&line);
        // Long enough for the limit to say something.
        if last >= *first.get_or_insert(last) + 2 * LOST_MILLIS {
            break;
        }
    }
    kill(child);
    let records = Journal::open(&db).unwrap().records(TxnId(1)).unwrap();
    let kept = millis(records.last().unwrap().time);
    assert!(kept + LOST_MILLIS >= last, "{} ms are lost", last - kept);
    for (n, record) in records.iter().enumerate() {
        assert_eq!(record.entry, create(n as u64));
    }
}

#[test]
fn a_commit_happened_or_waits_for_recovery() {
    for lines in [1, 2, 5, 8, 13] {
        let dir = tempfile::tempdir().unwrap();
        let db = dir.path().join("db");
        let (child, mut said) = start("child_that_commits", &db);
        let line = said.nth(lines).unwrap();
        kill(child);
        let (what, acknowledged) = line.split_once(' ').unwrap();
        let acknowledged: u64 = acknowledged.parse().unwrap();
        let journal = Journal::open(&db).unwrap();
        assert!(journal.check().unwrap().is_empty());
        let live = journal.live().unwrap();
        let sealed = journal.sealed().unwrap();
        if let Some(sealed) = &sealed {
            assert_eq!(sealed.plan().generation, live.next());
        }
        match what {
            "live" => assert!(live.0 >= acknowledged),
            "sealed" => assert!(live.0 >= acknowledged || sealed.is_some()),
            other => panic!("{other}"),
        }
        // Recovery goes on from there.
        if let Some(sealed) = sealed {
            let done = record(sealed.plan(), 30);
            journal.publish(sealed, &done).unwrap();
        }
        for head in journal.heads().unwrap() {
            match head.state {
                TxnState::Open => journal.begin_abort(head.id).unwrap(),
                TxnState::Aborting | TxnState::Committed(_) | TxnState::Aborted => {}
                TxnState::Sealed => panic!("{head:?}"),
            }
            if matches!(head.state, TxnState::Open | TxnState::Aborting) {
                journal.finish_abort(head.id).unwrap();
            }
            journal.forget(head.id).unwrap();
        }
        let head = journal.begin("t", 0, NOW).unwrap();
        assert!(journal.sealed().unwrap().is_none());
        drop(journal.seal(plan(head.id, journal.live().unwrap().0 + 1, 3)).unwrap());
        assert!(journal.check().unwrap().is_empty());
    }
}
