//! One test a rule.

use super::*;
use crate::id::{ProcId, SlotId, StepId};
use crate::name::Name;
use crate::object::{Bind, Fingerprint, Ident, Kind, Overrides, Timestamp, Xattrs};
use crate::{NewNode, TimesBefore};

const T: Timestamp = Timestamp { secs: 1, nanos: 2 };
const NEW: ObjId = ObjId::FIRST_NEW;

fn slot(parent: ObjId, name: &str) -> Slot {
    Slot { parent, name: Name::new(name).unwrap() }
}

fn entry(effect: Effect, inverse: Inverse) -> EffectEntry {
    EffectEntry { effect, inverse, times: Vec::new(), binds: Vec::new(), proc: ProcId(0) }
}

fn bind(obj: u64, parent: u64) -> Bind {
    let ident = Ident { ino: obj, btime: None, kind: Kind::Dir };
    let print = Fingerprint {
        ident,
        handle: Vec::new(),
        mode: 0,
        uid: 0,
        gid: 0,
        nlink: 1,
        size: 0,
        rdev: 0,
        mtime: T,
        ctime: T,
    };
    Bind { obj: ObjId(obj), parent: ObjId(parent), name: Name::new("b").unwrap(), print }
}

fn create(obj: ObjId, parent: ObjId) -> EffectEntry {
    let at = slot(parent, "f");
    let change = Change::Create {
        at: at.clone(),
        node: NewNode::File { slot: SlotId(1) },
        attrs: Overrides::default(),
        xattrs: Xattrs::new(),
    };
    entry(Effect::Write { obj, change }, Inverse::Restore { obj, to: Preimage::Absent { at } })
}

fn rm(obj: ObjId) -> EffectEntry {
    let at = slot(ObjId::ROOT, "f");
    entry(Effect::Rm { obj, at: at.clone() }, Inverse::Unrm { obj, at })
}

fn chmod(obj: ObjId, binds: Vec<Bind>) -> EffectEntry {
    let change = Change::Attrs(Overrides { mode: Some(0o600), ..Overrides::default() });
    let to = Preimage::Attrs(Overrides::default());
    EffectEntry { binds, ..entry(Effect::Write { obj, change }, Inverse::Restore { obj, to }) }
}

/// Takes an entry at the next number.
fn take(order: &mut Order, entry: Entry) -> Result<(), String> {
    order.take(order.next_seq(), &entry)
}

fn effect(order: &mut Order, entry: EffectEntry) -> Result<(), String> {
    take(order, Entry::Effect(Box::new(entry)))
}

fn refused(order: &mut Order, entry: Entry, why: &str) {
    let next = order.next_seq();
    let said = take(order, entry).unwrap_err();
    assert!(said.contains(why), "{said}");
    assert_eq!(order.next_seq(), next, "what is refused takes no number");
}

fn refused_effect(order: &mut Order, entry: EffectEntry, why: &str) {
    refused(order, Entry::Effect(Box::new(entry)), why);
}

#[test]
fn numbers_have_no_gaps() {
    let mut order = Order::default();
    let step = Entry::Step { step: StepId(1), what: Vec::new() };
    assert!(order.take(Seq(2), &step).is_err());
    order.take(Seq(1), &step).unwrap();
    assert!(order.take(Seq(1), &step).is_err());
    assert_eq!(order.next_seq(), Seq(2));
}

#[test]
fn effects_name_what_is_known() {
    let mut order = Order::default();
    refused_effect(&mut order, rm(NEW), "not known");
    refused_effect(&mut order, create(NEW, ObjId(9)), "not known");
    refused_effect(&mut order, chmod(ObjId(9), vec![bind(9, 8)]), "below the unknown 8");
    refused_effect(&mut order, chmod(ObjId(9), vec![bind(9, 8), bind(8, 1)]), "below the unknown");
    effect(&mut order, chmod(ObjId(9), vec![bind(8, 1), bind(9, 8)])).unwrap();
    refused_effect(&mut order, chmod(ObjId(9), vec![bind(9, 8)]), "bound again");
    effect(&mut order, create(NEW, ObjId(9))).unwrap();
    refused_effect(&mut order, create(NEW, ObjId(9)), "made again");
    refused_effect(&mut order, create(ObjId(8), ObjId(1)), "made again");
    let mut times = rm(NEW);
    times.times.push(TimesBefore { obj: ObjId(99), mtime: None, ctime: None });
    refused_effect(&mut order, times, "object 99 is not known");
    effect(&mut order, rm(NEW)).unwrap();
}

#[test]
fn inverses_are_those_of_their_effects() {
    let mut order = Order::default();
    effect(&mut order, create(NEW, ObjId::ROOT)).unwrap();
    for wrong in [
        EffectEntry { inverse: create(NEW, ObjId::ROOT).inverse, ..rm(NEW) },
        EffectEntry { inverse: rm(NEW).inverse, ..chmod(NEW, Vec::new()) },
        EffectEntry { inverse: rm(ObjId::ROOT).inverse, ..rm(NEW) },
        EffectEntry {
            inverse: Inverse::Unrm { obj: NEW, at: slot(ObjId::ROOT, "other") },
            ..rm(NEW)
        },
        EffectEntry {
            inverse: Inverse::Restore { obj: NEW, to: Preimage::Content { slot: None } },
            ..chmod(NEW, Vec::new())
        },
    ] {
        refused_effect(&mut order, wrong, "the inverse is not that");
    }
}

#[test]
fn steps_and_processes_are_numbered_upwards() {
    let mut order = Order::default();
    let step = |n| Entry::Step { step: StepId(n), what: b"make".to_vec() };
    take(&mut order, step(2)).unwrap();
    refused(&mut order, step(2), "step 2 after step 2");
    let process = |n| Entry::Process {
        proc: ProcId(n),
        pid: 7,
        parent: None,
        exe: Vec::new(),
        argv: Vec::new(),
    };
    refused(&mut order, process(2), "process 2 after process 0");
    let by = |n| EffectEntry { proc: ProcId(n), ..create(ObjId(NEW.0 + 1), ObjId::ROOT) };
    refused_effect(&mut order, by(1), "process 1 is not known");
    take(&mut order, process(1)).unwrap();
    effect(&mut order, by(1)).unwrap();
    let parent = Entry::Process {
        proc: ProcId(2),
        pid: 8,
        parent: Some(ProcId(2)),
        exe: Vec::new(),
        argv: Vec::new(),
    };
    refused(&mut order, parent, "parent 2 is not known");
}

#[test]
fn savepoints_are_unique_among_the_live_ones() {
    let mut order = Order::default();
    let mark = |name: &str| Entry::Savepoint { name: name.into() };
    take(&mut order, mark("a")).unwrap();
    take(&mut order, mark("b")).unwrap();
    refused(&mut order, mark("a"), "savepoint a again");
    take(&mut order, Entry::RolledBack { to: Seq(1) }).unwrap();
    take(&mut order, mark("b")).unwrap();
    refused(&mut order, mark("a"), "again");
}

#[test]
fn rollbacks_go_back_to_records_that_hold() {
    let mut order = Order::default();
    for n in 0..6 {
        effect(&mut order, create(ObjId(NEW.0 + n), ObjId::ROOT)).unwrap();
    }
    let back = |to| Entry::RolledBack { to: Seq(to) };
    refused(&mut order, back(7), "not before");
    take(&mut order, back(3)).unwrap();
    for gone in 4..=6 {
        refused(&mut order, back(gone), "itself taken back");
    }
    // Record 7 is the rollback itself; 8 is a new effect.
    effect(&mut order, create(ObjId(NEW.0 + 9), ObjId::ROOT)).unwrap();
    take(&mut order, back(7)).unwrap();
    refused(&mut order, back(8), "itself taken back");
    refused(&mut order, back(5), "itself taken back");
    take(&mut order, back(0)).unwrap();
    refused(&mut order, back(3), "itself taken back");
    refused_effect(&mut order, rm(NEW), "not known");
}

#[test]
fn a_rollback_unbinds_and_retires() {
    let mut order = Order::default();
    effect(&mut order, chmod(ObjId(8), vec![bind(8, 1)])).unwrap();
    effect(&mut order, chmod(ObjId(9), vec![bind(9, 8)])).unwrap();
    effect(&mut order, create(NEW, ObjId(9))).unwrap();
    take(&mut order, Entry::RolledBack { to: Seq(1) }).unwrap();
    refused_effect(&mut order, chmod(ObjId(9), Vec::new()), "not known");
    refused_effect(&mut order, chmod(ObjId(8), vec![bind(8, 1)]), "bound again");
    // The base object may be touched again, as what it is now.
    effect(&mut order, chmod(ObjId(9), vec![bind(9, 8)])).unwrap();
    // A number that an object of this view had is never another one's.
    refused_effect(&mut order, create(NEW, ObjId(9)), "made again");
    refused_effect(&mut order, chmod(NEW, vec![bind(NEW.0, 1)]), "had its number before");
}
