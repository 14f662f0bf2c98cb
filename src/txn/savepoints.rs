//! Savepoints, and going back to them or to before a step.

use std::sync::PoisonError;

use txfs_journal::{Entry, Record, Seq};

use super::failpoint::failpoint;
use super::planner::op_failed;
use super::verbs::{drain, tell};
use super::workspace::{MAIN, Workspace, check_name_of, journal_failed};
use crate::proto::{
    Code, Failure, MarkInfo, PathBytes, RollbackReply, RollbackTo, SavepointsReply,
};
use crate::view::delta::live_before;
use crate::view::marks::{BackFailed, Mark, MarkFailed, MarkKind, append_now, live_marks};

/// Why a mark was not set, as the failure of a command.
pub(super) fn mark_failed(e: MarkFailed) -> Failure {
    match e {
        MarkFailed::Busy(path) => {
            let path = path.map_or_else(
                || "an open file".to_owned(),
                |p| format!("\"{}\"", p.as_bytes().escape_ascii()),
            );
            Failure::new(Code::Busy, format!("{path} is being written and did not hold still"))
                .hint("try again, or txfs savepoint --allow-open-writers to take it as it is")
        }
        MarkFailed::Op(e) => op_failed("keep a file that is open for writing", e),
        MarkFailed::Journal(e) => journal_failed(&e),
    }
}

fn back_failed(e: BackFailed) -> Failure {
    match e {
        BackFailed::Misfit(e) => Failure::new(Code::Corrupt, e.to_string()).hint("txfs doctor"),
        BackFailed::Op(e) => op_failed("go back", e),
        BackFailed::Journal(e) => journal_failed(&e),
    }
}

/// The marks of a transaction that hold, in words.
struct Marks {
    marks: Vec<Mark>,
    infos: Vec<MarkInfo>,
}

impl Marks {
    fn new(records: &[Record], txn: &str) -> Marks {
        let marks = live_marks(records);
        let effects: Vec<Seq> = live_before(records).iter().map(|r| r.seq).collect();
        let option = if txn == MAIN { String::new() } else { format!(" --txn {txn}") };
        let mut in_step = 0;
        let mut infos = Vec::new();
        for mark in &marks {
            let (kind, name, call) = match &mark.kind {
                MarkKind::Step(step, what) => {
                    in_step = step.0;
                    ("step", what.clone(), format!("--step {step}"))
                }
                MarkKind::Savepoint(name) => {
                    ("savepoint", name.clone(), name.escape_ascii().to_string())
                }
            };
            infos.push(MarkInfo {
                mark: kind.into(),
                name: PathBytes(name),
                step: in_step,
                seq: mark.seq.0,
                time: mark.time.secs,
                effects_since: effects.iter().filter(|seq| **seq > mark.seq).count() as u64,
                rollback: format!("txfs rollback{option} {call}"),
            });
        }
        Marks { marks, infos }
    }

    fn has_savepoint(&self, name: &[u8]) -> bool {
        self.marks.iter().any(|m| m.kind == MarkKind::Savepoint(name.to_vec()))
    }

    /// Where a rollback goes: the last record that holds, and the mark.
    fn find(&self, to: &RollbackTo) -> Option<(Seq, MarkInfo)> {
        let is_it = |kind: &MarkKind| match (to, kind) {
            (RollbackTo::Newest, MarkKind::Savepoint(_))
            | (RollbackTo::LastStep, MarkKind::Step(..)) => true,
            (RollbackTo::Savepoint(wanted), MarkKind::Savepoint(name)) => {
                wanted.as_bytes() == name.as_slice()
            }
            (RollbackTo::Step(wanted), MarkKind::Step(step, _)) => *wanted == step.0,
            (RollbackTo::Newest | RollbackTo::Savepoint(_), MarkKind::Step(..))
            | (RollbackTo::LastStep | RollbackTo::Step(_), MarkKind::Savepoint(_)) => false,
        };
        let n = self.marks.iter().rposition(|m| is_it(&m.kind))?;
        Some((self.marks[n].target(), self.infos[n].clone()))
    }
}

fn no_such(to: &RollbackTo) -> Failure {
    let what = match to {
        RollbackTo::Newest => "the transaction has no savepoint".to_owned(),
        RollbackTo::Savepoint(name) => {
            format!("there is no savepoint \"{}\"", name.escape_debug())
        }
        RollbackTo::Step(step) => format!("there is no step {step}, or it was taken back"),
        RollbackTo::LastStep => "the transaction has no step".to_owned(),
    };
    Failure::new(Code::NotFound, what).hint("txfs savepoints lists what it can go back to")
}

impl Workspace {
    fn marks(&self, name: &str, uid: u32) -> Result<Marks, Failure> {
        let txn = self.txn(name, uid)?;
        let records = self.journal.records(txn.head.id).map_err(|e| journal_failed(&e))?;
        Ok(Marks::new(&records, name))
    }

    /// Marks the state of a transaction, durably.
    ///
    /// # Errors
    /// [`Code::Usage`] for a bad name, [`Code::Busy`] for one that is taken and while an open file does not
    /// hold still.
    pub fn savepoint(
        &self,
        name: &str,
        uid: u32,
        savepoint: Option<&str>,
        allow_open_writers: bool,
    ) -> Result<MarkInfo, Failure> {
        self.check_sound()?;
        self.ensure(name, uid)?;
        let view = self.view(name, uid)?;
        drain(&view)?;
        let _gate = self.gate.lock().unwrap_or_else(PoisonError::into_inner);
        let mut cut = view.cut();
        let there = self.marks(name, uid)?;
        let savepoint = match savepoint {
            Some(savepoint) => {
                check_name_of("savepoint", savepoint)?;
                if there.has_savepoint(savepoint.as_bytes()) {
                    return Err(Failure::new(
                        Code::Busy,
                        format!("savepoint \"{savepoint}\" is set already"),
                    )
                    .hint("txfs savepoints, or give it another name"));
                }
                savepoint.to_owned()
            }
            None => {
                let free = |name: &String| !there.has_savepoint(name.as_bytes());
                (1u64..).map(|n| format!("s{n}")).find(free).unwrap_or_default()
            }
        };
        let entry = Entry::Savepoint { name: savepoint.clone().into_bytes() };
        cut.mark(allow_open_writers, |st| append_now(st, &entry)).map_err(mark_failed)?;
        failpoint("savepoint.marked");
        rustix::fs::fsync(cut.st.staging.dir()).map_err(|e| op_failed("keep the files", e))?;
        let writer = cut.st.writer.clone();
        drop(cut);
        writer.make_durable().map_err(|e| journal_failed(&e))?;
        let to = RollbackTo::Savepoint(savepoint);
        let (_, info) = self.marks(name, uid)?.find(&to).ok_or_else(|| no_such(&to))?;
        Ok(info)
    }

    /// The savepoints and steps to which a transaction can go back.
    ///
    /// # Errors
    /// If its records do not decode.
    pub fn savepoints(&self, name: &str, uid: u32) -> Result<SavepointsReply, Failure> {
        Ok(SavepointsReply { txn: name.to_owned(), marks: self.marks(name, uid)?.infos })
    }

    /// Takes a transaction back to a savepoint or to before a step, while its view stays in use.
    ///
    /// # Errors
    /// [`Code::NotFound`] if there is no such mark; nothing has happened then.
    pub fn rollback(
        &self,
        name: &str,
        uid: u32,
        to: &RollbackTo,
    ) -> Result<RollbackReply, Failure> {
        self.check_sound()?;
        let view = self.view(name, uid)?;
        drain(&view)?;
        let gate = self.gate.lock().unwrap_or_else(PoisonError::into_inner);
        let txn = self.txn(name, uid)?;
        let mut cut = view.cut();
        let records = self.journal.records(txn.head.id).map_err(|e| journal_failed(&e))?;
        let (seq, mark) = Marks::new(&records, name).find(to).ok_or_else(|| no_such(to))?;
        let went = cut
            .go_back(&records, seq, |st, entry| {
                append_now(st, entry)?;
                st.writer.make_durable()?;
                failpoint("rollback.recorded");
                Ok(())
            })
            .map_err(back_failed)?;
        let staging = std::sync::Arc::clone(&cut.st.staging);
        drop(cut);
        tell(&view, went.forget);
        failpoint("rollback.done");
        for slot in went.unused {
            if let Err(e) = staging.remove(slot) {
                // It takes room until the transaction ends, and nothing else.
                log::warn!("staged file {slot}: {e}");
            }
        }
        drop(gate);
        Ok(RollbackReply {
            txn: name.to_owned(),
            to: mark,
            effects: went.effects,
            stale: went.stale.iter().map(Into::into).collect(),
            undo: None,
            reason: "a rollback is final: what it took back never reached the base".into(),
        })
    }
}
