//! The binary form: everything comes back as it went, and nothing comes back that does not go the same way.

#![allow(clippy::unwrap_used, clippy::panic, missing_docs)]

mod common;
#[path = "common/values.rs"]
mod values;

use std::fmt::{Debug, Write};

use proptest::prelude::*;
use txfs_journal::codec::{Wire, decode, encode};
use txfs_journal::*;
use values::*;

/// Round trip; every cut and one mutation are an error or another value in its only encoding.
fn check<T: Wire + PartialEq + Debug>(value: &T, at: usize, xor: u8) -> Result<(), TestCaseError> {
    let good = encode(value);
    prop_assert_eq!(&decode::<T>(&good).unwrap(), value);
    for cut in 0..good.len() {
        let e = decode::<T>(&good[..cut]).unwrap_err();
        prop_assert!(e.at <= cut, "{}", e);
    }
    let mut longer = good.clone();
    longer.push(0);
    let e = decode::<T>(&longer).unwrap_err();
    prop_assert!(e.at == good.len() && e.to_string().contains("end expected"), "{}", e);
    if !good.is_empty() {
        let mut bad = good;
        let at = at % bad.len();
        bad[at] ^= xor;
        stable::<T>(&bad)?;
    }
    Ok(())
}

fn stable<T: Wire>(bytes: &[u8]) -> Result<(), TestCaseError> {
    if let Ok(value) = decode::<T>(bytes) {
        prop_assert_eq!(encode(&value), bytes);
    }
    Ok(())
}

proptest! {
    #[test]
    fn records(v in any_record(), at: usize, xor in 1u8..) { check(&v, at, xor)?; }
    #[test]
    fn heads(v in any_head(), at: usize, xor in 1u8..) { check(&v, at, xor)?; }
    #[test]
    fn plan_steps(v in any_step(), at: usize, xor in 1u8..) { check(&v, at, xor)?; }
    #[test]
    fn plan_heads(v in any_plan_head(), at: usize, xor in 1u8..) { check(&v, at, xor)?; }
    #[test]
    fn generation_heads(v in any_generation(), at: usize, xor in 1u8..) { check(&v, at, xor)?; }
    #[test]
    fn fingerprints(v in any_after(), at: usize, xor in 1u8..) { check(&v, at, xor)?; }

    #[test]
    fn any_bytes(bytes in proptest::collection::vec(prop_oneof![0u8..6, any::<u8>()], 0..200)) {
        stable::<Record>(&bytes)?;
        stable::<TxnHead>(&bytes)?;
        stable::<Step>(&bytes)?;
        stable::<PlanHead>(&bytes)?;
        stable::<GenerationHead>(&bytes)?;
        stable::<(Place, Fingerprint)>(&bytes)?;
    }
}

#[test]
fn a_length_beyond_the_end_reserves_nothing() {
    let mut bytes = encode(&Record {
        seq: Seq(1),
        time: common::NOW,
        entry: Entry::Savepoint { name: b"abc".to_vec() },
    });
    let at = bytes.len() - 7;
    bytes[at..at + 4].copy_from_slice(&u32::MAX.to_le_bytes());
    let e = decode::<Record>(&bytes).unwrap_err();
    assert_eq!(e.to_string(), format!("at byte {}: length {} is beyond the end", at + 4, u32::MAX));
}

const FIXTURE: &str = include_str!("fixtures/store-1.hex");

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|n| u8::from_str_radix(&text[n..n + 2], 16).unwrap()).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut out, b| {
        write!(out, "{b:02x}").unwrap();
        out
    })
}

/// What the fixture's store holds.
fn entries() -> Vec<Entry> {
    use common::{NOW, create, print, slot};
    let effect = |effect, inverse, binds| {
        let times = vec![TimesBefore { obj: ObjId::ROOT, mtime: Some(NOW), ctime: None }];
        Entry::Effect(Box::new(EffectEntry { effect, inverse, times, binds, proc: ProcId(1) }))
    };
    let made = ObjId(ObjId::FIRST_NEW.0 + 9);
    let attrs = Overrides { mode: Some(0o1755), atime: Some(NOW), ..Overrides::default() };
    let xattrs = Xattrs::from([(b"user.a".to_vec(), b"\xff\x00".to_vec())]);
    let found = Bind {
        obj: ObjId(77),
        parent: ObjId::ROOT,
        name: Name::new(b"a\xff\n").unwrap(),
        print: print(77),
    };
    let (from, to) = (slot("a"), slot("b"));
    let write = |change, to| {
        effect(Effect::Write { obj: made, change }, Inverse::Restore { obj: made, to }, Vec::new())
    };
    let node = |n, node| {
        let obj = ObjId(ObjId::FIRST_NEW.0 + n);
        let at = slot(&format!("n{n}"));
        let change = Change::Create { at: at.clone(), node, attrs, xattrs: Xattrs::new() };
        effect(
            Effect::Write { obj, change },
            Inverse::Restore { obj, to: Preimage::Absent { at } },
            Vec::new(),
        )
    };
    let moved = |over: Over, binds| {
        effect(
            Effect::Move { obj: ObjId(77), from: from.clone(), to: to.clone(), over: over.clone() },
            Inverse::Unmove { obj: ObjId(77), from: from.clone(), to: to.clone(), over },
            binds,
        )
    };
    vec![
        Entry::Process {
            proc: ProcId(1),
            pid: 4242,
            parent: None,
            exe: b"/bin/sh".to_vec(),
            argv: b"sh\0-c\0true\0".to_vec(),
        },
        Entry::Step { step: StepId(1), what: b"make".to_vec() },
        create(1),
        effect(
            Effect::Mkdir { obj: made, at: slot("d"), attrs, xattrs },
            Inverse::RmdirIfEmpty { obj: made, at: slot("d") },
            Vec::new(),
        ),
        moved(Over::Nothing, vec![found]),
        moved(Over::Replaced(made), Vec::new()),
        moved(Over::Exchanged(made), Vec::new()),
        Entry::Savepoint { name: b"here".to_vec() },
        effect(
            Effect::Rm { obj: made, at: slot("d") },
            Inverse::Unrm { obj: made, at: slot("d") },
            Vec::new(),
        ),
        write(Change::Link { at: slot("l") }, Preimage::Absent { at: slot("l") }),
        write(Change::Content { slot: SlotId(3) }, Preimage::Content { slot: Some(SlotId(2)) }),
        write(Change::Attrs(attrs), Preimage::Attrs(Overrides::default())),
        write(
            Change::Xattr { name: b"user.x".to_vec(), value: None },
            Preimage::Xattr { name: b"user.x".to_vec(), before: Some(None) },
        ),
        node(20, NewNode::Symlink { target: b"../t".to_vec() }),
        node(21, NewNode::Fifo),
        node(22, NewNode::Socket),
        node(23, NewNode::Char { rdev: 0x103 }),
        node(24, NewNode::Block { rdev: 0x801 }),
        Entry::RolledBack { to: Seq(8) },
    ]
}

fn steps() -> Vec<Step> {
    use common::{NOW, ident, place};
    let before = Meta { mode: 0o644, uid: 1, gid: 2, atime: None, mtime: NOW, xattrs: None };
    let after = Meta {
        atime: Some(NOW),
        xattrs: Some(Xattrs::from([(b"user.a".to_vec(), Vec::new())])),
        ..before.clone()
    };
    let (slot, ident) = (SlotId(5), ident(6));
    vec![
        Step::Fetch { from: Generation(1), from_slot: SlotId(4), slot, ident },
        Step::Barrier,
        Step::Evacuate {
            from: place(1),
            slot,
            ident,
            mtime: NOW,
            size: Some(9),
            holds: Holds::Same,
        },
        Step::Unlink { from: place(1), existing: place(2), ident },
        Step::Place { slot, to: place(1), ident },
        Step::Exchange {
            slot,
            at: place(1),
            new: ident,
            old: Ident { btime: None, ..ident },
            was: Some(Seen { size: 3, mtime: NOW }),
        },
        Step::Link { existing: place(1), to: place(2), ident },
        Step::Rewrite { at: place(1), ident, content: slot, preimage: SlotId(8), was: None },
        Step::SetMeta { at: place(1), ident, before, after },
    ]
}

fn fill(journal: &Journal) {
    let head = journal.begin("committed", 7, common::NOW).unwrap();
    let sealed = journal.seal(common::plan(head.id, 1, 2)).unwrap();
    let done = common::record(sealed.plan(), 2);
    journal.publish(sealed, &done).unwrap();
    journal.set_pruned(Generation(1)).unwrap();
    let open = journal.begin("open", 7, common::NOW).unwrap();
    let writer = journal.writer(open.id).unwrap();
    for entry in entries() {
        writer.append(common::NOW, &entry).unwrap();
    }
    writer.make_durable().unwrap();
    let ended = journal.begin("ended", 7, common::NOW).unwrap();
    journal.begin_abort(ended.id).unwrap();
    journal.finish_abort(ended.id).unwrap();
    let going = journal.begin("going", 7, common::NOW).unwrap();
    journal.begin_abort(going.id).unwrap();
    let head = journal.begin("sealed", 7, common::NOW).unwrap();
    let plan = Plan { undo_of: vec![Generation(1)], steps: steps(), ..common::plan(head.id, 2, 0) };
    drop(journal.seal(plan).unwrap());
    journal.set_poison(Some("why")).unwrap();
}

/// A store as version 1 wrote it must be readable for ever. `TXFS_WRITE_FIXTURES=1` writes it anew,
/// which only a new version may do.
#[test]
fn a_store_of_version_1_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let db = dir.path().join("db");
    if std::env::var_os("TXFS_WRITE_FIXTURES").is_some() {
        fill(&Journal::open(&db).unwrap());
        let (_dir, db) = common::copy(&db);
        let text = common::raw(&db).iter().map(|item| {
            let (key, value) = item.unwrap();
            format!("{} {}\n", hex(&key), hex(&value))
        });
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/store-1.hex");
        std::fs::write(path, text.collect::<String>()).unwrap();
        return;
    }
    let raw = common::raw(&db);
    for line in FIXTURE.lines() {
        let (key, value) = line.split_once(' ').unwrap();
        raw.insert(unhex(key), unhex(value)).unwrap();
    }
    raw.flush().unwrap();
    drop(raw);
    let (_dir, db) = common::copy(&db);
    let journal = Journal::open(&db).unwrap();
    assert_eq!(
        journal.check().unwrap().iter().map(ToString::to_string).collect::<Vec<_>>(),
        [""; 0]
    );
    assert_eq!(journal.live().unwrap(), Generation(1));
    assert_eq!(journal.poison().unwrap().as_deref(), Some("why"));
    let states: Vec<_> =
        journal.heads().unwrap().into_iter().map(|h| (h.id.0, h.name, h.state)).collect();
    let expected = [
        (1, "committed", TxnState::Committed(Generation(1))),
        (2, "open", TxnState::Open),
        (3, "ended", TxnState::Aborted),
        (4, "going", TxnState::Aborting),
        (5, "sealed", TxnState::Sealed),
    ];
    assert_eq!(states, expected.map(|(id, name, state)| (id, name.to_owned(), state)));
    let read: Vec<_> = journal.records(TxnId(2)).unwrap().into_iter().map(|r| r.entry).collect();
    assert_eq!(read, entries());
    let sealed = journal.sealed().unwrap().unwrap();
    assert_eq!(sealed.plan().steps, steps());
    assert_eq!(sealed.plan().undo_of, [Generation(1)]);
    let mut committed = common::record(&common::plan(TxnId(1), 1, 2), 2);
    (committed.pruned, committed.history_bytes) = (true, 0);
    assert_eq!(journal.generation(Generation(1)).unwrap(), committed);
    let next = journal.begin("next", 0, common::NOW).unwrap();
    assert_eq!(next.id, TxnId(6));
}

#[test]
fn this_version_writes_what_the_fixture_holds() {
    let (_dir, db, journal) = common::fresh();
    fill(&journal);
    drop(journal);
    let (_dir, db) = common::copy(&db);
    let written: Vec<_> = common::raw(&db).iter().map(|item| item.unwrap()).collect();
    let lines: Vec<_> = written.iter().map(|(k, v)| format!("{} {}", hex(k), hex(v))).collect();
    assert_eq!(lines, FIXTURE.lines().collect::<Vec<_>>());
}
