//! With a disk that fails, or that takes its time.

use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};

use super::*;
use crate::id::{Generation, StepId};
use crate::object::Timestamp;
use crate::record::Entry;
use crate::store::Journal;
use crate::{GenerationRecord, Plan};

const NOW: Timestamp = Timestamp { secs: 7, nanos: 0 };

/// Says that a sync begins, and ends it as it is told to.
struct Told {
    begun: Sender<()>,
    end: Receiver<io::Result<()>>,
}

impl Durable for Told {
    fn sync(&mut self) -> io::Result<()> {
        // A test that has ended does not listen and says nothing: the disk is fine then.
        if self.begun.send(()).is_err() {
            return Ok(());
        }
        self.end.recv().unwrap_or(Ok(()))
    }
}

struct Control {
    begun: Receiver<()>,
    end: Sender<io::Result<()>>,
}

impl Control {
    /// Lets the next `n` syncs succeed.
    fn allow(&self, n: usize) {
        (0..n).for_each(|_| self.end.send(Ok(())).unwrap());
    }
}

fn told() -> (tempfile::TempDir, Box<Told>, Control) {
    let (begun, on_begun) = channel();
    let (end, on_end) = channel();
    let disk = Box::new(Told { begun, end: on_end });
    (tempfile::tempdir().unwrap(), disk, Control { begun: on_begun, end })
}

fn step(n: u32) -> Entry {
    Entry::Step { step: StepId(n), what: b"make".to_vec() }
}

fn plan(txn: TxnId) -> Plan {
    Plan {
        txn,
        generation: Generation(1),
        undo_of: Vec::new(),
        uid: 0,
        time: NOW,
        message: Vec::new(),
        steps: Vec::new(),
    }
}

#[test]
fn after_a_failed_sync_nothing_is_acknowledged() {
    let (dir, disk, control) = told();
    control.allow(2);
    let journal = Journal::open_with(&dir.path().join("db"), disk).unwrap();
    let head = journal.begin("t", 0, NOW).unwrap();
    let writer = journal.writer(head.id).unwrap();
    writer.append(NOW, &step(1)).unwrap();
    control.end.send(Err(io::Error::from_raw_os_error(5))).unwrap();
    let said = writer.make_durable().unwrap_err();
    assert_eq!(said.errno(), Some(5));
    // The disk would be fine again; the journal does not believe it.
    control.allow(99);
    let failed = |e: JournalError| {
        assert!(matches!(&e, JournalError::Failed(why) if why.contains("error 5")), "{e}")
    };
    failed(writer.append(NOW, &step(2)).unwrap_err());
    failed(writer.make_durable().unwrap_err());
    failed(journal.begin("u", 0, NOW).unwrap_err());
    failed(journal.heads().unwrap_err());
    failed(journal.head(head.id).unwrap_err());
    failed(journal.records(head.id).unwrap_err());
    failed(journal.seal(plan(head.id)).unwrap_err());
    failed(journal.sealed().unwrap_err());
    failed(journal.begin_abort(head.id).unwrap_err());
    failed(journal.set_meta("a", b"b").unwrap_err());
    failed(journal.set_poison(Some("x")).unwrap_err());
    failed(journal.hand_over().unwrap_err());
    failed(journal.make_durable().unwrap_err());
}

#[test]
fn a_generation_is_live_only_when_it_is_durable() {
    let (dir, disk, control) = told();
    // Open, begin, plan, seal, fingerprints; not the generation itself.
    control.allow(5);
    let journal = Journal::open_with(&dir.path().join("db"), disk).unwrap();
    let head = journal.begin("t", 0, NOW).unwrap();
    let sealed = journal.seal(plan(head.id)).unwrap();
    let record = GenerationRecord {
        plan: sealed.plan().clone(),
        after: Vec::new(),
        history_bytes: 0,
        entries: 0,
        pruned: false,
    };
    control.end.send(Err(io::Error::from_raw_os_error(28))).unwrap();
    control.allow(9);
    assert_eq!(journal.publish(sealed, &record).unwrap_err().errno(), Some(28));
    assert_eq!(journal.live().unwrap(), Generation(0));
    assert_eq!(journal.generations().unwrap(), []);
    assert!(matches!(
        journal.generation_head(Generation(1)),
        Err(JournalError::NoGeneration(Generation(1)))
    ));
}

#[test]
fn records_reach_the_kernel_while_the_disk_is_busy() {
    let (dir, disk, control) = told();
    control.allow(2);
    let journal = Journal::open_with(&dir.path().join("db"), disk).unwrap();
    let writer = journal.writer(journal.begin("t", 0, NOW).unwrap().id).unwrap();
    (0..2).for_each(|_| control.begun.recv().unwrap());
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| writer.make_durable());
        control.begun.recv().unwrap();
        writer.append(NOW, &step(1)).unwrap();
        journal.hand_over().unwrap();
        assert_eq!(journal.records(writer.txn()).unwrap().len(), 1);
        // Who asks while a sync is under way gets the next one, and all of them the same.
        let later: Vec<_> = (0..3).map(|_| scope.spawn(|| writer.make_durable())).collect();
        journal.hand_over().unwrap();
        control.end.send(Ok(())).unwrap();
        waiting.join().unwrap().unwrap();
        control.allow(9);
        for one in later {
            one.join().unwrap().unwrap();
        }
    });
}

#[test]
fn the_timer_hands_over_what_nobody_waits_for() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::open(&dir.path().join("db")).unwrap();
    let writer = journal.writer(journal.begin("t", 0, NOW).unwrap().id).unwrap();
    let mut stored = journal.db.watch_prefix([crate::frame::RECORDS]);
    let began = Instant::now();
    writer.append(NOW, &step(1)).unwrap();
    // Nothing else happens: only the deadline can bring this about.
    assert!(stored.next_timeout(Duration::from_secs(20)).is_ok());
    assert!(began.elapsed() >= MAX_DELAY / 2);
}
