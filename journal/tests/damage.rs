//! Damage is an error that names its place and what to do, never a panic and never a default.

#![allow(clippy::unwrap_used, clippy::panic, missing_docs)]

mod common;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use common::*;
use tempfile::TempDir;
use txfs_journal::*;

/// A store that has a value of every kind: a generation, an open transaction of several chunks, a
/// sealed one.
fn full() -> (TempDir, PathBuf) {
    let (dir, db, journal) = fresh();
    let head = journal.begin("committed", 0, NOW).unwrap();
    let sealed = journal.seal(plan(head.id, 1, 600)).unwrap();
    let done = record(sealed.plan(), 600);
    journal.publish(sealed, &done).unwrap();
    let writer = journal.writer(journal.begin("open", 0, NOW).unwrap().id).unwrap();
    for n in 0..1100 {
        writer.append(NOW, &create(n)).unwrap();
    }
    writer.make_durable().unwrap();
    let head = journal.begin("sealed", 0, NOW).unwrap();
    drop(journal.seal(plan(head.id, 2, 600)).unwrap());
    journal.set_poison(Some("why")).unwrap();
    drop((writer, journal));
    (dir, db)
}

/// What a journal says of its store: at the opening, or when it is checked.
fn complaints(db: &Path) -> Vec<JournalError> {
    match Journal::open(db) {
        Ok(journal) => journal.check().unwrap_or_else(|e| vec![e]),
        Err(e) => vec![e],
    }
}

/// The store with one value changed; `None` removes it.
fn changed(db: &Path, key: &[u8], value: Option<Vec<u8>>) -> (TempDir, PathBuf) {
    let (_dir, between) = copy(db);
    let raw = raw(&between);
    match value {
        Some(value) => raw.insert(key, value).unwrap(),
        None => raw.remove(key).unwrap(),
    };
    raw.flush().unwrap();
    drop(raw);
    copy(&between)
}

fn values(db: &Path) -> Vec<(Vec<u8>, Vec<u8>)> {
    let (_dir, db) = copy(db);
    raw(&db).iter().map(|item| item.unwrap()).map(|(k, v)| (k.to_vec(), v.to_vec())).collect()
}

/// How an error names the value under a key.
fn place(key: &[u8]) -> String {
    let number = u64::from_be_bytes(key.get(1..9).unwrap_or(&[0; 8]).try_into().unwrap());
    match key[0] {
        b'm' => format!("setting {}", key[1..].escape_ascii()),
        b't' | b'r' => format!("transaction {number}"),
        b'p' => format!("the plan of transaction {number}"),
        b's' => format!("the steps of transaction {number}"),
        b'g' => format!("generation {number}"),
        b'a' => format!("the fingerprints of generation {number}"),
        other => panic!("{other}"),
    }
}

#[test]
fn every_changed_value_is_named() {
    let (_dir, db) = full();
    assert!(complaints(&db).is_empty());
    let values = values(&db);
    let kinds: std::collections::BTreeSet<_> = values.iter().map(|(key, _)| key[0]).collect();
    assert_eq!(kinds.into_iter().collect::<Vec<_>>(), b"agmprst");
    for (key, good) in &values {
        for at in [0, 3, 5.min(good.len() - 1), good.len() - 1] {
            let mut bad = good.clone();
            bad[at] ^= 0x11;
            let (_dir, db) = changed(&db, key, Some(bad));
            let said = complaints(&db);
            let names = |e: &JournalError| {
                let named = match e {
                    JournalError::Corrupt { place, remedy, .. } if !remedy.is_empty() => place,
                    JournalError::NewerFormat { place, .. } => place,
                    JournalError::Corrupt { .. }
                    | JournalError::Order { .. }
                    | JournalError::WrongState { .. }
                    | JournalError::NoTxn(_)
                    | JournalError::NoGeneration(_)
                    | JournalError::NameTaken(_)
                    | JournalError::Store { .. }
                    | JournalError::Failed(_) => panic!("{e}"),
                };
                named.starts_with(&place(key))
            };
            assert!(said.iter().any(names), "byte {at} of {key:?}: {said:?}");
        }
        let (_dir, db) = changed(&db, key, Some(good[..good.len() - 1].to_vec()));
        assert!(!complaints(&db).is_empty(), "{key:?} shortened");
    }
}

#[test]
fn a_value_is_not_taken_for_another_one() {
    let (_dir, db) = full();
    let values = values(&db);
    for (key, _) in &values {
        let other = values.iter().find(|(k, _)| k[0] == key[0] && k != key);
        let Some((_, value)) = other else { continue };
        let (_dir, db) = changed(&db, key, Some(value.clone()));
        assert!(!complaints(&db).is_empty(), "{key:?}");
    }
}

#[test]
fn missing_values_are_missed_but_for_the_tail_of_a_list() {
    let (_dir, db) = full();
    let values = values(&db);
    let last = values.iter().rfind(|(k, _)| k[0] == b'r').unwrap().0.clone();
    for (key, _) in &values {
        let (_dir, db) = changed(&db, key, None);
        let said = complaints(&db);
        // A head or an open list's last chunk may be one that was never written, the rest may not.
        let prefix = *key == last;
        let headless = key[0] == b't' && key[8] == 1;
        let unsealed = key[0] == b't' && key[8] == 3;
        let lifted = key == b"mpoison";
        // A generation has its plan's head in its own.
        let planned = key[0] == b'p' && key[8] == 1;
        let legal = planned || prefix || headless || unsealed || lifted;
        assert_eq!(said.is_empty(), legal, "without {key:?}: {said:?}");
    }
}

#[test]
fn a_newer_format_is_not_guessed_at() {
    let (_dir, db) = full();
    let mut live = values(&db).into_iter().find(|(k, _)| k == b"mlive").unwrap().1;
    live[0] = FORMAT + 1;
    let (_dir, db) = changed(&db, b"mlive", Some(live));
    let said = Journal::open(&db).unwrap_err();
    assert!(matches!(&said, JournalError::NewerFormat { found: 2, known: 1, .. }), "{said}");
}

/// The child of the next test, since sled may end its process; does nothing when run by itself.
#[test]
fn child_that_checks_a_store() {
    let Some(db) = std::env::var_os("TXFS_JOURNAL_CHECK") else { return };
    let said = complaints(Path::new(&db));
    println!("complaints {}", said.len());
    if said.is_empty() {
        let (_dir, db) = copy(Path::new(&db));
        let journal = Journal::open(&db).unwrap();
        let heads = journal.heads().unwrap();
        let records = heads.iter().map(|h| journal.records(h.id).unwrap().len());
        println!("live {} records {}", journal.live().unwrap(), records.sum::<usize>());
    }
}

/// sled's own files, damaged and cut at many places. sled takes a log that it cannot read for a shorter one, so
/// what is left must be a state that was durable once; it must not be one that never was.
#[test]
fn damaged_files_show_an_error_or_an_older_state() {
    let (_dir, db) = full();
    let chunks = values(&db).into_iter().map(|(k, _)| k).filter(|k| k[0] == b'r');
    let mut prefixes: Vec<u64> =
        chunks.map(|k| u64::from_be_bytes(k[9..].try_into().unwrap()) - 1).collect();
    prefixes.push(1100);
    let len = std::fs::metadata(db.join("db")).unwrap().len();
    let (mut refused, mut older, mut ended) = (0, 0, 0);
    for n in 0..12u64 {
        let (_dir, db) = copy(&db);
        let file = std::fs::File::options().read(true).write(true).open(db.join("db")).unwrap();
        let at = len * n / 12 + 17;
        if n % 2 == 0 {
            file.set_len(at).unwrap();
        } else {
            std::os::unix::fs::FileExt::write_all_at(&file, &[0x5a; 64], at).unwrap();
        }
        let out = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child_that_checks_a_store", "--nocapture"])
            .env("TXFS_JOURNAL_CHECK", &db)
            .stderr(Stdio::null())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&out.stdout).into_owned();
        if !out.status.success() {
            ended += 1;
        } else if let Some(live) = said.split("live ").nth(1) {
            older += 1;
            let mut words = live.split_whitespace();
            let live: u64 = words.next().unwrap().parse().unwrap();
            let records: u64 = words.nth(1).unwrap().parse().unwrap();
            assert!(live <= 1 && prefixes.contains(&records), "{said}");
        } else {
            refused += 1;
        }
    }
    println!("{refused} refused, {older} older or whole, {ended} ended by sled");
    assert_eq!(refused + older + ended, 12);
}
