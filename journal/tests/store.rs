//! The store: what is acknowledged is there, and a transaction's life goes one way only.

#![allow(clippy::unwrap_used, clippy::panic, missing_docs)]

mod common;

use common::*;
use txfs_journal::*;

#[test]
fn a_life_from_begin_to_publish() {
    let (_dir, db, journal) = fresh();
    let head = journal.begin("main", 5, NOW).unwrap();
    assert!(matches!(journal.begin("main", 5, NOW), Err(JournalError::NameTaken(_))));
    let writer = journal.writer(head.id).unwrap();
    for n in 0..2000 {
        assert_eq!(writer.append(NOW, &create(n)).unwrap(), Seq(n + 1));
    }
    writer.make_durable().unwrap();
    let sealed = journal.seal(plan(head.id, 1, 1500)).unwrap();
    let steps = sealed.plan().steps.clone();
    assert!(matches!(journal.seal(plan(head.id, 1, 1)), Err(JournalError::WrongState { .. })));
    drop((sealed, writer, journal));

    let (_dir, db) = copy(&db);
    let journal = Journal::open(&db).unwrap();
    assert_eq!(journal.records(head.id).unwrap().len(), 2000);
    let sealed = journal.sealed().unwrap().expect("it is sealed");
    assert_eq!(sealed.plan().steps, steps);
    let record = record(sealed.plan(), 1100);
    assert_eq!(journal.publish(sealed, &record).unwrap(), Generation(1));
    assert_eq!(journal.live().unwrap(), Generation(1));
    assert_eq!(journal.generation(Generation(1)).unwrap(), record);
    journal.forget(head.id).unwrap();
    assert!(journal.sealed().unwrap().is_none());
    let kept = journal.generation(Generation(1)).unwrap();
    assert_eq!(kept, record, "the plan outlives its transaction");
    assert_eq!(journal.records(head.id).unwrap(), []);
    assert!(journal.check().unwrap().is_empty());
}

#[test]
fn only_an_open_transaction_takes_records() {
    let (_dir, _db, journal) = fresh();
    let head = journal.begin("t", 0, NOW).unwrap();
    let writer = journal.writer(head.id).unwrap();
    writer.append(NOW, &create(1)).unwrap();
    let refused = |state: &str| {
        let said = writer.append(NOW, &create(2)).unwrap_err();
        assert!(matches!(&said, JournalError::WrongState { state: s, .. } if s.starts_with(state)));
    };
    let sealed = journal.seal(plan(head.id, 1, 3)).unwrap();
    refused("sealed");
    journal.unseal(sealed).unwrap();
    assert_eq!(writer.append(NOW, &create(2)).unwrap(), Seq(2));
    let sealed = journal.seal(plan(head.id, 1, 3)).unwrap();
    let done = record(sealed.plan(), 0);
    journal.publish(sealed, &done).unwrap();
    refused("committed as generation 1");
    assert!(matches!(journal.writer(head.id), Err(JournalError::WrongState { .. })));
    journal.forget(head.id).unwrap();
    refused("committed");
    assert!(matches!(journal.writer(head.id), Err(JournalError::NoTxn(_))));

    let head = journal.begin("t", 0, NOW).unwrap();
    let writer = journal.writer(head.id).unwrap();
    journal.begin_abort(head.id).unwrap();
    let said = writer.append(NOW, &create(1)).unwrap_err();
    assert!(said.to_string().contains("being aborted"), "{said}");
    journal.finish_abort(head.id).unwrap();
    journal.forget(head.id).unwrap();
    assert!(journal.heads().unwrap().is_empty());
    assert!(journal.check().unwrap().is_empty());
}

#[test]
fn plans_that_do_not_follow_the_live_generation_are_refused() {
    let (_dir, _db, journal) = fresh();
    let (one, two) = (journal.begin("a", 0, NOW).unwrap(), journal.begin("b", 0, NOW).unwrap());
    assert!(matches!(journal.seal(plan(one.id, 2, 1)), Err(JournalError::WrongState { .. })));
    assert!(matches!(journal.seal(plan(one.id, 0, 1)), Err(JournalError::WrongState { .. })));
    let writer = journal.writer(one.id).unwrap();
    writer.append(NOW, &create(1)).unwrap();
    let sealed = journal.seal(plan(one.id, 1, 1)).unwrap();
    let said = journal.seal(plan(two.id, 1, 1)).unwrap_err();
    assert!(said.to_string().contains("while transaction 1 is"), "{said}");
    let mut other = record(sealed.plan(), 0);
    other.plan.message.push(b'!');
    assert!(matches!(journal.publish(sealed, &other), Err(JournalError::WrongState { .. })));
    assert_eq!(journal.live().unwrap(), Generation(0));
    let sealed = journal.sealed().unwrap().expect("it still is");
    let done = record(sealed.plan(), 0);
    journal.publish(sealed, &done).unwrap();
    assert!(matches!(journal.seal(plan(two.id, 1, 1)), Err(JournalError::WrongState { .. })));
}

#[test]
fn a_transaction_that_is_opened_again_may_be_sealed_with_a_shorter_plan() {
    let (_dir, db, journal) = fresh();
    let head = journal.begin("t", 0, NOW).unwrap();
    let sealed = journal.seal(plan(head.id, 1, 2000)).unwrap();
    journal.unseal(sealed).unwrap();
    drop(journal.seal(plan(head.id, 1, 3)).unwrap());
    drop(journal);
    let (_dir, db) = copy(&db);
    let journal = Journal::open(&db).unwrap();
    assert_eq!(*journal.sealed().unwrap().unwrap().plan(), plan(head.id, 1, 3));
}

#[test]
fn generations_are_pruned_and_forgotten_from_the_oldest() {
    let (_dir, _db, journal) = fresh();
    for n in 1..=3 {
        let head = journal.begin("t", 0, NOW).unwrap();
        let sealed = journal.seal(plan(head.id, n, 600)).unwrap();
        let done = record(sealed.plan(), 600);
        journal.publish(sealed, &done).unwrap();
        journal.forget(head.id).unwrap();
    }
    let refused = |n| {
        let said = journal.forget_generation(Generation(n)).unwrap_err();
        assert!(matches!(said, JournalError::WrongState { .. }), "{said}");
    };
    refused(1);
    for n in 1..=3 {
        journal.set_pruned(Generation(n)).unwrap();
    }
    refused(2);
    journal.forget_generation(Generation(1)).unwrap();
    assert_eq!(journal.generations().unwrap(), [Generation(2), Generation(3)]);
    assert!(matches!(
        journal.generation_head(Generation(1)),
        Err(JournalError::NoGeneration(Generation(1)))
    ));
    journal.forget_generation(Generation(2)).unwrap();
    refused(3);
    let head = journal.generation_head(Generation(3)).unwrap();
    assert!(head.pruned && head.history_bytes == 0 && head.after == 600);
    assert!(journal.check().unwrap().is_empty());
}

#[test]
fn settings_and_poison_last() {
    let (_dir, db, journal) = fresh();
    journal.set_meta("id", b"\xff\x00").unwrap();
    journal.set_meta("gone", b"x").unwrap();
    journal.remove_meta("gone").unwrap();
    journal.set_poison(Some("somebody was here")).unwrap();
    drop(journal);
    let (_dir, db) = copy(&db);
    let journal = Journal::open(&db).unwrap();
    assert_eq!(journal.meta("id").unwrap().unwrap(), b"\xff\x00");
    assert_eq!(journal.meta("gone").unwrap(), None);
    assert_eq!(journal.poison().unwrap().unwrap(), "somebody was here");
    journal.set_poison(None).unwrap();
    assert_eq!(journal.poison().unwrap(), None);
}

#[test]
fn two_openers_at_once_are_refused() {
    let (_dir, db, _journal) = fresh();
    let said = Journal::open(&db).unwrap_err();
    assert!(matches!(said, JournalError::Store { doing: "opened", .. }), "{said}");
    assert!(said.to_string().contains("lock"), "{said}");
}

#[test]
fn writers_of_several_threads_share_passes_and_lose_nothing() {
    let (_dir, _db, journal) = fresh();
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

#[test]
fn several_threads_write_one_list() {
    let (_dir, db, journal) = fresh();
    let txn = journal.begin("t", 0, NOW).unwrap().id;
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let writer = journal.writer(txn).unwrap();
            scope.spawn(move || {
                for n in 0..2000 {
                    writer.append(NOW, &create(thread * 10_000 + n)).unwrap();
                }
                writer.make_durable().unwrap();
            });
        }
    });
    drop(journal);
    let (_dir, db) = copy(&db);
    assert_eq!(Journal::open(&db).unwrap().records(txn).unwrap().len(), 8000);
}

#[test]
fn a_record_beyond_the_limit_is_refused_and_takes_no_number() {
    let (_dir, _db, journal) = fresh();
    let writer = journal.writer(journal.begin("t", 0, NOW).unwrap().id).unwrap();
    let said = writer.step(NOW, vec![0; 17 << 20]).unwrap_err();
    assert!(matches!(said, JournalError::Order { .. }), "{said}");
    assert_eq!(writer.last_seq(), Seq(0));
    assert_eq!(writer.step(NOW, vec![b'x'; 3 << 20]).unwrap(), StepId(1));
    assert_eq!(journal.records(writer.txn()).unwrap().len(), 1);
}
