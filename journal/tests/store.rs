//! The store: what is acknowledged is there, what is damaged is named, what is killed is a prefix.

#![allow(clippy::unwrap_used, clippy::panic, missing_docs)]

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use txfs_journal::codec::{decode, encode};
use txfs_journal::*;

const NOW: Timestamp = Timestamp { secs: 1_000_000_000, nanos: 5 };

fn create(n: u64) -> Entry {
    let obj = ObjId(ObjId::FIRST_NEW.0 + n);
    let at = Slot { parent: ObjId::ROOT, name: Name::new(format!("f{n}")).unwrap() };
    let attrs = Overrides { mode: Some(0o644), uid: Some(1), gid: Some(2), ..Overrides::default() };
    let node = NewNode::File { slot: SlotId(n) };
    Entry::Effect(Box::new(EffectEntry {
        inverse: Inverse::Restore { obj, to: Preimage::Absent { at: at.clone() } },
        effect: Effect::Write {
            obj,
            change: Change::Create { at, node, attrs, xattrs: Xattrs::new() },
        },
        times: vec![TimesBefore { obj: ObjId::ROOT, mtime: None, ctime: Some(NOW) }],
        binds: Vec::new(),
        proc: ProcId(0),
    }))
}

fn plan(txn: TxnId, generation: u64, steps: usize) -> Plan {
    let ident = Ident { ino: 7, btime: Some(NOW), kind: Kind::File };
    let at = |n: usize| Place { path: RelPath::new(format!("d/f{n}")).unwrap(), parent_ino: 3 };
    let steps =
        (0..steps).map(|n| Step::Place { slot: SlotId(n as u64), to: at(n), ident }).collect();
    Plan {
        txn,
        generation: Generation(generation),
        undo_of: Vec::new(),
        uid: 5,
        time: NOW,
        message: b"hello\xff".to_vec(),
        steps,
    }
}

#[test]
fn a_life_from_begin_to_publish() {
    let dir = tempfile::tempdir().unwrap();
    let db = dir.path().join("db");
    let (txn, steps) = {
        let journal = Journal::open(&db).unwrap();
        let head = journal.begin("main", 5, NOW).unwrap();
        assert!(matches!(journal.begin("main", 5, NOW), Err(JournalError::NameTaken(_))));
        let writer = journal.writer(head.id).unwrap();
        for n in 0..2000 {
            assert_eq!(writer.append(NOW, &create(n)).unwrap(), Seq(n + 1));
        }
        writer.make_durable().unwrap();
        let sealed = journal.seal(plan(head.id, 1, 1500)).unwrap();
        assert!(matches!(journal.seal(plan(head.id, 1, 1)), Err(JournalError::WrongState { .. })));
        (head.id, sealed.plan().steps.clone())
    };
    let journal = Journal::open(&db).unwrap();
    assert_eq!(journal.records(txn).unwrap().len(), 2000);
    let sealed = journal.sealed().unwrap().expect("it is sealed");
    assert_eq!(sealed.plan().steps, steps);
    let record = GenerationRecord {
        plan: sealed.plan().clone(),
        after: Vec::new(),
        history_bytes: 9,
        entries: 3,
        pruned: false,
    };
    assert_eq!(journal.publish(sealed, &record).unwrap(), Generation(1));
    assert_eq!(journal.live().unwrap(), Generation(1));
    assert_eq!(journal.generation(Generation(1)).unwrap(), record);
    journal.forget(txn).unwrap();
    assert!(journal.sealed().unwrap().is_none());
    assert_eq!(
        journal.generation(Generation(1)).unwrap(),
        record,
        "the plan outlives its transaction"
    );
    assert!(journal.check().unwrap().is_empty());
}

#[test]
fn records_that_may_not_stand_there_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::open(&dir.path().join("db")).unwrap();
    let writer = journal.writer(journal.begin("t", 0, NOW).unwrap().id).unwrap();
    writer.append(NOW, &create(1)).unwrap();
    let refused = |entry: &Entry| {
        assert!(matches!(writer.append(NOW, entry), Err(JournalError::Order { .. })), "{entry:?}")
    };
    refused(&create(1));
    let Entry::Effect(mut entry) = create(2) else { unreachable!() };
    entry.inverse = Inverse::Unrm {
        obj: ObjId(4),
        at: Slot { parent: ObjId::ROOT, name: Name::new("x").unwrap() },
    };
    refused(&Entry::Effect(entry));
    let Entry::Effect(mut entry) = create(3) else { unreachable!() };
    entry.times[0].obj = ObjId(99);
    refused(&Entry::Effect(entry));
    refused(&Entry::RolledBack { to: Seq(9) });
    refused(&Entry::Process {
        proc: ProcId(2),
        pid: 1,
        parent: None,
        exe: Vec::new(),
        argv: Vec::new(),
    });
    assert_eq!(writer.append(NOW, &create(4)).unwrap(), Seq(2), "what was refused took no number");
}

#[test]
fn every_damaged_value_is_an_error_with_its_place() {
    let dir = tempfile::tempdir().unwrap();
    let db = dir.path().join("db");
    {
        let journal = Journal::open(&db).unwrap();
        let head = journal.begin("t", 0, NOW).unwrap();
        let writer = journal.writer(head.id).unwrap();
        for n in 0..20 {
            writer.append(NOW, &create(n)).unwrap();
        }
        let sealed = journal.seal(plan(head.id, 1, 10)).unwrap();
        let record = GenerationRecord {
            plan: sealed.plan().clone(),
            after: Vec::new(),
            history_bytes: 0,
            entries: 0,
            pruned: false,
        };
        journal.publish(sealed, &record).unwrap();
    }
    let keys: Vec<_> = sled::open(&db).unwrap().iter().keys().map(|k| k.unwrap()).collect();
    assert!(keys.len() >= 6, "{keys:?}");
    for key in keys {
        for at in [0, 2, 5] {
            let raw = sled::open(&db).unwrap();
            let Some(good) = raw.get(&key).unwrap().filter(|v| v.len() > at) else { continue };
            let mut bad = good.to_vec();
            bad[at] ^= 0x40;
            raw.insert(&key, bad).unwrap();
            drop(raw);
            let found = Journal::open(&db)
                .map_or_else(|e| vec![e], |j| j.check().unwrap_or_else(|e| vec![e]));
            assert!(!found.is_empty(), "byte {at} of {key:?} went unnoticed");
            sled::open(&db).unwrap().insert(&key, good).unwrap();
        }
    }
}

#[test]
fn a_newer_format_is_not_guessed_at() {
    let dir = tempfile::tempdir().unwrap();
    let db = dir.path().join("db");
    drop(Journal::open(&db).unwrap());
    let raw = sled::open(&db).unwrap();
    let mut value = raw.get(b"mlive").unwrap().unwrap().to_vec();
    value[0] = 2;
    raw.insert(b"mlive", value).unwrap();
    drop(raw);
    assert!(matches!(Journal::open(&db), Err(JournalError::NewerFormat { found: 2, known: 1 })));
}

#[test]
fn two_openers_at_once_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let db = dir.path().join("db");
    let _first = Journal::open(&db).unwrap();
    assert!(matches!(Journal::open(&db), Err(JournalError::Store { doing: "opened", .. })));
}

/// The child of the next test; does nothing when run by itself.
#[test]
fn child_that_appends_until_it_is_killed() {
    let Some(db) = std::env::var_os("TXFS_JOURNAL_CHILD") else { return };
    let journal = Journal::open(db.as_ref()).unwrap();
    let writer = journal.writer(journal.begin("t", 0, NOW).unwrap().id).unwrap();
    for n in 0.. {
        writer.append(NOW, &create(n)).unwrap();
        if n % 1000 == 999 {
            writer.make_durable().unwrap();
            println!("durable {}", n + 1);
            std::io::stdout().flush().unwrap();
        }
    }
}

#[test]
fn after_a_kill_there_is_a_prefix_with_all_that_was_acknowledged() {
    for durable_first in [1, 3, 6] {
        let dir = tempfile::tempdir().unwrap();
        let db = dir.path().join("db");
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child_that_appends_until_it_is_killed", "--nocapture"])
            .env("TXFS_JOURNAL_CHILD", &db)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        let acknowledged = lines
            .filter_map(|l| l.split("durable ").nth(1)?.trim().parse::<usize>().ok())
            .nth(durable_first)
            .unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        let journal = Journal::open(&db).unwrap();
        let records = journal.records(TxnId(1)).unwrap();
        assert!(records.len() >= acknowledged, "{} of {acknowledged}", records.len());
        for (n, record) in records.iter().enumerate() {
            assert_eq!(record.entry, create(n as u64));
        }
        let writer = journal.writer(TxnId(1)).unwrap();
        assert_eq!(
            writer.append(NOW, &create(records.len() as u64)).unwrap(),
            Seq(records.len() as u64 + 1)
        );
    }
}

#[test]
fn writers_of_several_threads_share_passes_and_lose_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::open(&dir.path().join("db")).unwrap();
    let txns: Vec<_> =
        (0..4).map(|n| journal.begin(&format!("t{n}"), 0, NOW).unwrap().id).collect();
    std::thread::scope(|scope| {
        for txn in &txns {
            let writer = journal.writer(*txn).unwrap();
            scope.spawn(move || {
                for n in 0..3000 {
                    writer.append(NOW, &create(n)).unwrap();
                    if n % 500 == 0 {
                        writer.make_durable().unwrap();
                    }
                }
            });
        }
    });
    for txn in txns {
        assert_eq!(journal.records(txn).unwrap().len(), 3000);
    }
}

proptest::proptest! {
    #[test]
    fn whatever_bytes_decode_encode_to_themselves(bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..200)) {
        if let Ok(record) = decode::<Record>(&bytes) {
            proptest::prop_assert_eq!(encode(&record), bytes.clone());
        }
        if let Ok(step) = decode::<Step>(&bytes) {
            proptest::prop_assert_eq!(encode(&step), bytes);
        }
    }

    #[test]
    fn mutated_records_never_decode_to_something_that_encodes_otherwise(at in 0usize..120, xor in 1u8.., n in 0u64..1000) {
        let record = Record { seq: Seq(n), time: NOW, entry: create(n) };
        let mut bytes = encode(&record);
        proptest::prop_assert_eq!(decode::<Record>(&bytes).unwrap(), record);
        let at = at % bytes.len();
        bytes[at] ^= xor;
        if let Ok(other) = decode::<Record>(&bytes) {
            proptest::prop_assert_eq!(encode(&other), bytes);
        }
    }
}
