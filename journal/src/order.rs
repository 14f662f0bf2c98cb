//! The order in which the records of one transaction may stand: a small state machine, fed with
//! every record that is appended and every record that is read.

use std::collections::{HashMap, HashSet};

use crate::effect::{Change, Effect, Inverse, Over, Preimage, Slot};
use crate::id::{ObjId, Seq};
use crate::record::{EffectEntry, Entry};

/// Where a transaction's list stands.
#[derive(Debug, Clone)]
pub struct Order {
    next: u64,
    step: u32,
    processes: u32,
    /// What effects may name, and since when.
    known: HashMap<ObjId, Since>,
    /// Numbers of objects whose making was taken back: never given to another object.
    retired: HashSet<ObjId>,
    savepoints: Vec<(Vec<u8>, u64)>,
    /// First and last of the records that rollbacks took back, rising.
    taken_back: Vec<(u64, u64)>,
}

/// How an object became known.
#[derive(Debug, Clone, Copy)]
enum Since {
    /// By a bind of this record: a rollback unbinds it, and it may be bound again.
    Bound(u64),
    /// Made by this record's effect.
    Made(u64),
}

impl Default for Order {
    fn default() -> Order {
        Order {
            next: 1,
            step: 0,
            processes: 0,
            known: HashMap::from([(ObjId::ROOT, Since::Bound(0))]),
            retired: HashSet::new(),
            savepoints: Vec::new(),
            taken_back: Vec::new(),
        }
    }
}

impl Order {
    /// The number that the next record must have.
    #[must_use]
    pub fn next_seq(&self) -> Seq {
        Seq(self.next)
    }

    /// The number that the next step must have.
    #[must_use]
    pub fn next_step(&self) -> u32 {
        self.step + 1
    }

    /// Takes one record, or says which rule it breaks and takes nothing.
    ///
    /// # Errors
    /// The rule, in words.
    pub fn take(&mut self, seq: Seq, entry: &Entry) -> Result<(), String> {
        self.expect(seq)?;
        match entry {
            Entry::Effect(entry) => self.effect(entry)?,
            Entry::Step { step, .. } => {
                if step.0 <= self.step {
                    return Err(format!("step {step} after step {}", self.step));
                }
                self.step = step.0;
            }
            Entry::Savepoint { name } => {
                if self.savepoints.iter().any(|(other, _)| other == name) {
                    return Err(format!("savepoint {} again", name.escape_ascii()));
                }
                self.savepoints.push((name.clone(), seq.0));
            }
            Entry::RolledBack { to } => self.roll_back(to.0)?,
            Entry::Process { proc, parent, .. } => {
                if proc.0 != self.processes + 1 {
                    return Err(format!("process {proc} after process {}", self.processes));
                }
                if let Some(parent) = parent.filter(|p| p.0 > self.processes) {
                    return Err(format!("its parent {parent} is not known"));
                }
                self.processes = proc.0;
            }
        }
        self.next += 1;
        Ok(())
    }

    /// As [`Order::take`], for an effect that is no entry yet.
    pub(crate) fn take_effect(&mut self, seq: Seq, entry: &EffectEntry) -> Result<(), String> {
        self.expect(seq)?;
        self.effect(entry)?;
        self.next += 1;
        Ok(())
    }

    fn expect(&self, seq: Seq) -> Result<(), String> {
        if seq.0 == self.next {
            Ok(())
        } else {
            Err(format!("record {seq} stands where {} must", self.next))
        }
    }

    fn roll_back(&mut self, to: u64) -> Result<(), String> {
        if to >= self.next {
            return Err(format!("rolled back to {to}, which is not before"));
        }
        if self.taken_back.iter().any(|&(first, last)| (first..=last).contains(&to)) {
            return Err(format!("rolled back to {to}, which was itself taken back"));
        }
        self.savepoints.retain(|(_, at)| *at <= to);
        let retired = &mut self.retired;
        self.known.retain(|obj, since| match since {
            Since::Bound(seq) => *seq <= to,
            Since::Made(seq) => {
                let holds = *seq <= to;
                if !holds {
                    retired.insert(*obj);
                }
                holds
            }
        });
        self.taken_back.retain(|&(first, _)| first <= to);
        if to + 1 < self.next {
            self.taken_back.push((to + 1, self.next - 1));
        }
        Ok(())
    }

    fn effect(&mut self, entry: &EffectEntry) -> Result<(), String> {
        if !inverts(&entry.effect, &entry.inverse) {
            return Err("the inverse is not that of the effect".into());
        }
        if entry.proc.0 > self.processes {
            return Err(format!("process {} is not known", entry.proc));
        }
        let mut bound = Vec::new();
        for bind in &entry.binds {
            if !self.known.contains_key(&bind.parent) && !bound.contains(&bind.parent) {
                return Err(format!(
                    "object {} is bound below the unknown {}",
                    bind.obj, bind.parent
                ));
            }
            if self.known.contains_key(&bind.obj) || bound.contains(&bind.obj) {
                return Err(format!("object {} is bound again", bind.obj));
            }
            if self.retired.contains(&bind.obj) {
                return Err(format!("object {} had its number before", bind.obj));
            }
            bound.push(bind.obj);
        }
        let known = |obj: ObjId| {
            if self.known.contains_key(&obj) || bound.contains(&obj) {
                Ok(())
            } else {
                Err(format!("object {obj} is not known"))
            }
        };
        let mut made = None;
        match &entry.effect {
            Effect::Move { obj, from, to, over } => {
                known(*obj)?;
                known(from.parent)?;
                known(to.parent)?;
                match over {
                    Over::Nothing => {}
                    Over::Replaced(other) | Over::Exchanged(other) => known(*other)?,
                }
            }
            Effect::Rm { obj, at } => {
                known(*obj)?;
                known(at.parent)?;
            }
            Effect::Mkdir { obj, at, .. }
            | Effect::Write { obj, change: Change::Create { at, .. } } => {
                known(at.parent)?;
                if known(*obj).is_ok() || self.retired.contains(obj) {
                    return Err(format!("object {obj} is made again"));
                }
                made = Some(*obj);
            }
            Effect::Write { obj, change: Change::Link { at } } => {
                known(*obj)?;
                known(at.parent)?;
            }
            Effect::Write {
                obj,
                change: Change::Content { .. } | Change::Attrs(_) | Change::Xattr { .. },
            } => known(*obj)?,
        }
        for before in &entry.times {
            known(before.obj)?;
        }
        self.known.extend(bound.into_iter().map(|obj| (obj, Since::Bound(self.next))));
        self.known.extend(made.map(|obj| (obj, Since::Made(self.next))));
        Ok(())
    }
}

/// Whether `inverse` takes back `effect`: of the right kind, on the same objects and names.
#[must_use]
pub fn inverts(effect: &Effect, inverse: &Inverse) -> bool {
    match (effect, inverse) {
        (
            Effect::Move { obj, from, to, over },
            Inverse::Unmove { obj: o, from: f, to: t, over: v },
        ) => (obj, from, to, over) == (o, f, t, v),
        (Effect::Rm { obj, at }, Inverse::Unrm { obj: o, at: a }) => (obj, at) == (o, a),
        (Effect::Mkdir { obj, at, .. }, Inverse::RmdirIfEmpty { obj: o, at: a }) => {
            (obj, at) == (o, a)
        }
        (Effect::Write { obj, change }, Inverse::Restore { obj: o, to }) => {
            obj == o && restores(change, to)
        }
        (
            Effect::Move { .. } | Effect::Rm { .. } | Effect::Mkdir { .. } | Effect::Write { .. },
            Inverse::Unmove { .. }
            | Inverse::Unrm { .. }
            | Inverse::RmdirIfEmpty { .. }
            | Inverse::Restore { .. },
        ) => false,
    }
}

fn restores(change: &Change, to: &Preimage) -> bool {
    let same = |a: &Slot, b: &Slot| a == b;
    match (change, to) {
        (Change::Create { at, .. } | Change::Link { at }, Preimage::Absent { at: a }) => {
            same(at, a)
        }
        (Change::Content { .. }, Preimage::Content { .. })
        | (Change::Attrs(_), Preimage::Attrs(_)) => true,
        (Change::Xattr { name, .. }, Preimage::Xattr { name: n, .. }) => name == n,
        (
            Change::Create { .. }
            | Change::Link { .. }
            | Change::Content { .. }
            | Change::Attrs(_)
            | Change::Xattr { .. },
            Preimage::Absent { .. }
            | Preimage::Content { .. }
            | Preimage::Attrs(_)
            | Preimage::Xattr { .. },
        ) => false,
    }
}

#[cfg(test)]
#[path = "order_tests.rs"]
mod tests;
