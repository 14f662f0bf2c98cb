//! What the journal's tests share.

#![allow(clippy::unwrap_used, clippy::panic, dead_code, unreachable_pub, missing_docs)]

use std::path::{Path, PathBuf};

use tempfile::TempDir;
use txfs_journal::*;

pub const NOW: Timestamp = Timestamp { secs: 1_000_000_000, nanos: 5 };

pub fn slot(name: &str) -> Slot {
    Slot { parent: ObjId::ROOT, name: Name::new(name).unwrap() }
}

/// The creation of a file that no other `n` creates.
pub fn create(n: u64) -> Entry {
    let obj = ObjId(ObjId::FIRST_NEW.0 + n);
    let at = slot(&format!("f{n}"));
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

pub fn ident(ino: u64) -> Ident {
    Ident { ino, btime: Some(NOW), kind: Kind::File }
}

pub fn place(n: u64) -> Place {
    Place { path: RelPath::new(format!("d/f{n}")).unwrap(), parent_ino: 3 }
}

pub fn print(ino: u64) -> Fingerprint {
    Fingerprint {
        ident: ident(ino),
        handle: vec![1, 0, 0, 0, 9],
        mode: 0o644,
        uid: 5,
        gid: 6,
        nlink: 1,
        size: 7,
        rdev: 0,
        mtime: NOW,
        ctime: NOW,
    }
}

pub fn plan(txn: TxnId, generation: u64, steps: u64) -> Plan {
    let steps = (0..steps)
        .map(|n| Step::Place { slot: SlotId(n), to: place(n), ident: ident(7) })
        .collect();
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

pub fn record(plan: &Plan, after: u64) -> GenerationRecord {
    GenerationRecord {
        plan: plan.clone(),
        after: (0..after).map(|n| (place(n), print(n))).collect(),
        history_bytes: 9,
        entries: 3,
        pruned: false,
    }
}

/// A journal in a directory of its own.
pub fn fresh() -> (TempDir, PathBuf, Journal) {
    let dir = tempfile::tempdir().unwrap();
    let db = dir.path().join("db");
    let journal = Journal::open(&db).unwrap();
    (dir, db, journal)
}

/// The same files at another path: sled lets go of its lock some time after it was closed, when its
/// thread pool is done with it, so what was open in this process is not opened again where it was.
pub fn copy(from: &Path) -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let to = dir.path().join("db");
    copy_dir(from, &to);
    (dir, to)
}

fn copy_dir(from: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_dir(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// sled without the journal, for the values as they are stored.
pub fn raw(db: &Path) -> sled::Db {
    sled::Config::new().path(db).flush_every_ms(None).open().unwrap()
}
