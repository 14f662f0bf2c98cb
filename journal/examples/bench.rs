//! Prints what the journal does in a second, in a directory of the disk to be measured:
//! `cargo run --release -p txfs-journal --example bench -- DIR`.

use std::time::{Duration, Instant, SystemTime, SystemTimeError, UNIX_EPOCH};

use txfs_journal::{
    Change, Effect, EffectEntry, Inverse, Journal, Name, NewNode, ObjId, Overrides, Preimage,
    ProcId, Slot, SlotId, Timestamp, Xattrs,
};

type Failure = Box<dyn std::error::Error>;

const RECORDS: u64 = 1_000_000;
const DURABLE: u64 = 200;

fn now() -> Result<Timestamp, SystemTimeError> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH)?;
    Ok(Timestamp { secs: since.as_secs().cast_signed(), nanos: since.subsec_nanos() })
}

fn create(n: u64) -> Result<EffectEntry, Failure> {
    let obj = ObjId(ObjId::FIRST_NEW.0 + n);
    let at = Slot { parent: ObjId::ROOT, name: Name::new(format!("file-{n:08}"))? };
    let attrs = Overrides { mode: Some(0o644), uid: Some(0), gid: Some(0), ..Overrides::default() };
    let node = NewNode::File { slot: SlotId(n) };
    Ok(EffectEntry {
        inverse: Inverse::Restore { obj, to: Preimage::Absent { at: at.clone() } },
        effect: Effect::Write {
            obj,
            change: Change::Create { at, node, attrs, xattrs: Xattrs::new() },
        },
        times: Vec::new(),
        binds: Vec::new(),
        proc: ProcId(0),
    })
}

fn per_second(n: u64, took: Duration) -> u64 {
    (n as f64 / took.as_secs_f64()) as u64
}

fn main() -> Result<(), Failure> {
    let dir = std::env::args_os().nth(1).ok_or("which directory?")?;
    let dir = tempfile::tempdir_in(dir)?;
    let journal = Journal::open(&dir.path().join("db"))?;
    let head = journal.begin("bench", 0, now()?)?;
    let writer = journal.writer(head.id)?;

    let entries = (0..RECORDS).map(create).collect::<Result<Vec<_>, _>>()?;
    let began = Instant::now();
    for entry in &entries {
        writer.append_effect(now()?, entry)?;
    }
    let appended = began.elapsed();
    writer.make_durable()?;
    let durable = began.elapsed();
    println!("append: {} records/s", per_second(RECORDS, appended));
    println!("append and make durable: {} records/s", per_second(RECORDS, durable));

    let mut each = Vec::new();
    for n in 0..DURABLE {
        writer.append_effect(now()?, &create(RECORDS + n)?)?;
        let began = Instant::now();
        writer.make_durable()?;
        each.push(began.elapsed());
    }
    each.sort_unstable();
    if let (Some(p50), Some(p95)) = (each.get(each.len() / 2), each.get(each.len() * 95 / 100)) {
        println!("one record made durable: {p50:?} (half), {p95:?} (19 of 20)");
    }

    let began = Instant::now();
    let read = journal.records(head.id)?.len() as u64;
    println!("read: {} records/s", per_second(read, began.elapsed()));
    Ok(())
}
