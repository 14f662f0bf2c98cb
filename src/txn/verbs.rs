//! The verbs of a workspace.

use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use txfs_journal::{Generation, GenerationHead, JournalError, Plan, Step, TxnHead, TxnState};

use super::failpoint::failpoint;
use super::planner::Known;
use super::validate::{Validated, validate};
use super::workspace::{MAIN, Workspace, journal_failed};
use super::{apply, net, planner, rebase, undo, writers};
use crate::proto::{
    AbortReply, Code, CommitReply, Counts, Failure, GcReply, GenerationInfo, HistoryChoice,
    HistoryReply, ListReply, PathBytes, RebaseReply, StatusReply, StepReply, UndoReply, Writer,
};
use crate::view::api::Forget;
use crate::view::cut::Fresh;
use crate::view::state::now;
use crate::view::{Layer, View};

/// Generations that history keeps.
pub const KEEP_GENERATIONS: u64 = 64;
/// Bytes of preimages that history keeps.
pub const KEEP_BYTES: u64 = 1 << 30;
/// How long the kernel may take to hand over the dirty pages of mapped files.
const DRAIN: Duration = Duration::from_secs(10);

/// What a commit is asked to do.
#[derive(Clone, Debug)]
pub struct CommitOptions {
    /// `-m`
    pub message: Vec<u8>,
    /// Only validate.
    pub dry_run: bool,
    /// Seconds to wait for open writers.
    pub wait: u64,
    /// Move it onto the live generation first, if that is a later one.
    pub rebase: bool,
    /// Take files that are being written as they are.
    pub allow_open_writers: bool,
    /// What to do with preimages beyond the limit.
    pub history: HistoryChoice,
}

fn op(what: &'static str) -> impl Fn(rustix::io::Errno) -> Failure {
    move |e| planner::op_failed(what, e)
}

/// The undo call of a generation.
fn undo_call(generation: Generation) -> String {
    format!("txfs undo {generation}")
}

impl Workspace {
    /// Every open transaction that the caller may see.
    ///
    /// # Errors
    /// If the journal cannot be read.
    pub fn list(&self, uid: u32) -> Result<ListReply, Failure> {
        let txns = self.names(uid).iter().map(|n| self.info(n, uid)).collect::<Result<_, _>>()?;
        Ok(ListReply { txns })
    }

    /// Counts, changes, drift, writers, next step.
    ///
    /// # Errors
    /// If the view or the base cannot be read.
    pub fn status(
        &self,
        name: &str,
        uid: u32,
        paths: &[PathBytes],
    ) -> Result<StatusReply, Failure> {
        self.hand_over()?;
        let view = self.view(name, uid)?;
        let (lines, drift) = {
            let still = view.stand_still();
            let st = still.state();
            let changes = net::changes(&view, &st).map_err(op("read the changes"))?;
            let lines = net::lines(&view, &st, &changes).map_err(op("read the changes"))?;
            let drift = if st.layers.is_empty() {
                validate(&view, &st, &self.restamped()?)?.conflicts
            } else {
                Vec::new()
            };
            (lines, drift)
        };
        let txn = self.info(name, uid)?;
        let poisoned = self.journal.poison().map_err(|e| journal_failed(&e))?;
        let option = if name == MAIN { String::new() } else { format!(" --txn {name}") };
        let next_step = if poisoned.is_some() {
            "txfs doctor".to_owned()
        } else if lines.is_empty() {
            format!("txfs run{option} -- COMMAND")
        } else if !drift.is_empty() || (txn.stale && self.contradicts(&view)?) {
            format!(
                "txfs abort{option} and run again (what is yours: txfs diff{option} > mine.patch)"
            )
        } else if txn.stale {
            format!("txfs commit --rebase{option}, or txfs abort{option}")
        } else {
            format!("txfs commit{option}, or txfs abort{option}")
        };
        let open_writers = view
            .open_writers()
            .into_iter()
            .map(|(path, threads)| Writer {
                path: (&path).into(),
                pids: writers::processes(&threads),
            })
            .collect();
        Ok(StatusReply {
            counts: net::counts(&lines),
            changes: only(lines, paths),
            drift,
            open_writers,
            next_step,
            daemon_pid: std::process::id(),
            store_bytes: self.store.bytes(""),
            history_bytes: self.store.bytes("history"),
            poisoned,
            txn,
        })
    }

    /// Makes a transaction the next generation. What the kernel must forget is told to it.
    ///
    /// # Errors
    /// [`Code::Stale`], [`Code::Drift`], [`Code::Busy`], [`Code::NeedsAcknowledgement`], [`Code::Io`]; nothing has
    /// happened to the base then, and the transaction is as it was.
    pub fn commit(
        &self,
        name: &str,
        uid: u32,
        options: &CommitOptions,
    ) -> Result<CommitReply, Failure> {
        self.check_sound()?;
        let view = self.view(name, uid)?;
        if options.rebase {
            self.rebase(name, uid, options.dry_run)?;
        } else {
            self.check_fresh(&view, name, uid)?;
        }
        let may_be_stale = options.rebase && options.dry_run;
        wait_for_writers(&view, options.wait);
        drain(&view)?;
        let gate = self.gate.lock().unwrap_or_else(PoisonError::into_inner);
        let txn = self.txn(name, uid)?;
        if txn.head.base != self.live()? && !may_be_stale {
            // Another commit was faster.
            drop(gate);
            return self.commit(name, uid, options);
        }
        let still = view.stand_still();
        let st = still.state();
        // What changes outside from here on is newer than the plan.
        let time = now();
        let differs = net::differences(&view, &st).map_err(op("read the changes"))?;
        let changes = net::changes_with(&view, &st, &differs);
        let counts = net::tally(&changes);
        let Validated { conflicts, found } = validate(&view, &st, &self.restamped()?)?;
        if !conflicts.is_empty() {
            return Err(Failure::new(
                Code::Drift,
                "the base was edited where the transaction touched it",
            )
            .hint("txfs diff shows yours; keep it with txfs diff > mine.patch, then txfs abort")
            .conflicts(conflicts));
        }
        let live = self.live()?;
        if changes.is_empty() || options.dry_run {
            let reason = if changes.is_empty() { "nothing changed" } else { "dry run" };
            return Ok(reply(
                name,
                live,
                options.dry_run,
                !changes.is_empty(),
                counts,
                None,
                Some(reason),
            ));
        }
        failpoint("commit.prepare");
        let known = Known { view: &view, st: &st, found: &found, differs: &differs };
        let prepared = planner::prepare(known, options.allow_open_writers)?;
        if prepared.history_bytes > KEEP_BYTES && options.history == HistoryChoice::Ask {
            return Err(Failure::new(
                Code::NeedsAcknowledgement,
                format!(
                    "what this commit replaces takes {} bytes, beyond the limit of {KEEP_BYTES}",
                    prepared.history_bytes
                ),
            )
            .hint("txfs commit --keep, or txfs commit --no-undo"));
        }
        let plan = Plan {
            txn: txn.head.id,
            generation: live.next(),
            undo_of: Vec::new(),
            uid,
            time,
            message: options.message.clone(),
            steps: prepared.steps,
        };
        drop(st);
        let placed = apply::landings(&plan.steps).into_iter();
        still.land(placed.map(|(slot, (_, ident))| (slot, ident)).collect());
        let published = self.publish(plan, net::total(&counts), "commit.sealed");
        let mut cut = still.cut();
        let record = published?;
        let generation = record.plan.generation;
        // The generation is there. A view that cannot follow is of no more use.
        let forget = self
            .begin_next(name, &txn.head)
            .and_then(|head| self.fresh(&head))
            .and_then(|fresh| {
                cut.landed(fresh, &prepared.landed).map_err(op("go on after the commit"))
            })
            .map_err(|e| self.fenced(e))?;
        drop(cut);
        self.after_generation(&record);
        tell(&view, forget);
        failpoint("commit.cleanup");
        let pruned = self.apply_limits(KEEP_GENERATIONS, options.history)?;
        let kept = !pruned.contains(&generation.0);
        let undo = kept.then(|| undo_call(generation));
        let mut reply =
            reply(name, generation, false, true, counts, undo, (!kept).then_some("pruned"));
        reply.copied_open = prepared.copied.iter().map(Into::into).collect();
        Ok(reply)
    }

    fn check_fresh(&self, view: &View, name: &str, uid: u32) -> Result<(), Failure> {
        let (txn, live) = (self.txn(name, uid)?, self.live()?);
        if txn.head.base == live {
            return Ok(());
        }
        let mine = {
            let still = view.stand_still();
            net::changes(view, &still.state()).map_err(op("read the changes"))?
        };
        if mine.is_empty() {
            // Nothing is lost by beginning again on the live generation.
            return self.refresh(view, name, uid);
        }
        let conflicts = {
            let still = view.stand_still();
            rebase::conflicts(view, &still.state())?
        };
        let option = if name == MAIN { String::new() } else { format!(" --txn {name}") };
        let (what, hint) = if conflicts.is_empty() {
            ("nothing was changed by both", format!("txfs commit --rebase{option}"))
        } else {
            (
                "some entries were changed by both",
                format!("txfs diff{option} > mine.patch; txfs abort{option}; then apply it again"),
            )
        };
        Err(Failure::new(
            Code::Stale,
            format!("transaction \"{name}\" began on generation {}, and generation {live} is live; {what}", txn.head.base),
        )
        .hint(hint)
        .conflicts(conflicts))
    }

    /// Moves a transaction onto the live generation, under the running mount. With `dry_run` only says
    /// whether it would go.
    ///
    /// # Errors
    /// [`Code::Conflict`] with all that contradicts; the transaction is as it was then.
    pub fn rebase(&self, name: &str, uid: u32, dry_run: bool) -> Result<RebaseReply, Failure> {
        self.check_sound()?;
        let view = self.view(name, uid)?;
        let gate = self.gate.lock().unwrap_or_else(PoisonError::into_inner);
        let (txn, live) = (self.txn(name, uid)?, self.live()?);
        let mut cut = view.cut();
        let reply = RebaseReply {
            txn: name.to_owned(),
            from: txn.head.base.0,
            generation: live.0,
            entries: rebase::entries(&view, &cut.st)?,
            dry_run,
        };
        if txn.head.base == live {
            return Ok(reply);
        }
        let conflicts = rebase::conflicts(&view, &cut.st)?;
        if !conflicts.is_empty() {
            let what = format!(
                "transaction \"{name}\" contradicts what came after generation {}; it is as it was",
                txn.head.base
            );
            return Err(Failure::new(Code::Conflict, what)
                .hint("take these paths back or commit elsewhere: txfs diff shows what is yours")
                .conflicts(conflicts));
        }
        if dry_run {
            return Ok(reply);
        }
        let head = self.journal.rebase(txn.head.id).map_err(|e| journal_failed(&e))?;
        failpoint("rebase.decided");
        if let Some(txn) = self.lock().get_mut(name) {
            txn.head = head;
        }
        let forget = cut.rebased(live);
        drop(cut);
        drop(gate);
        tell(&view, forget);
        Ok(reply)
    }

    fn contradicts(&self, view: &View) -> Result<bool, Failure> {
        let still = view.stand_still();
        let conflicts = rebase::conflicts(view, &still.state())?;
        Ok(!conflicts.is_empty())
    }

    /// Sets an empty transaction on the live generation.
    fn refresh(&self, view: &View, name: &str, uid: u32) -> Result<(), Failure> {
        let txn = self.txn(name, uid)?;
        self.journal.begin_abort(txn.head.id).map_err(|e| journal_failed(&e))?;
        let forget = {
            let mut cut = view.cut();
            let head = self.begin_next(name, &txn.head)?;
            cut.dropped(self.fresh(&head)?)
        };
        tell(view, forget);
        self.finish_abort(&txn.head)
    }

    /// The next transaction of the same name.
    fn begin_next(&self, name: &str, before: &TxnHead) -> Result<TxnHead, Failure> {
        // The one before may still be aborting; its name is free all the same.
        let head = self.journal.succeed(before, now()).map_err(|e| journal_failed(&e))?;
        if let Some(txn) = self.lock().get_mut(name) {
            txn.head = head.clone();
        }
        Ok(head)
    }

    fn fresh(&self, head: &TxnHead) -> Result<Fresh, Failure> {
        let staging = self.store.staging(head.id).map_err(|e| {
            Failure::new(Code::Io, format!("cannot make the staging area: {e}")).hint("txfs doctor")
        })?;
        let writer = self.journal.writer(head.id).map_err(|e| journal_failed(&e))?;
        Ok(Fresh { writer, staging: Arc::new(staging), generation: head.base })
    }

    /// All views of older generations go on showing their own.
    fn after_generation(&self, record: &txfs_journal::GenerationRecord) {
        let layer = Arc::new(Layer::new(&record.plan));
        for view in self.views() {
            view.push_layer(Arc::clone(&layer));
        }
        if let Err(e) = self.journal.forget(record.plan.txn) {
            log::warn!("{e}");
        }
    }

    /// Drops a transaction.
    ///
    /// # Errors
    /// If the decision cannot be made durable; the transaction is as it was then.
    pub fn abort(&self, name: &str, uid: u32) -> Result<AbortReply, Failure> {
        self.check_sound()?;
        self.store.tend_room();
        let view = self.view(name, uid)?;
        let _gate = self.gate.lock().unwrap_or_else(PoisonError::into_inner);
        let txn = self.txn(name, uid)?;
        let effects = view.effects();
        let mounted = view.kernel().is_some();
        let mut cut = view.cut();
        self.journal.begin_abort(txn.head.id).map_err(|e| journal_failed(&e))?;
        failpoint("abort.decided");
        let head =
            if mounted || name == MAIN { Some(self.begin_next(name, &txn.head)?) } else { None };
        if let Some(head) = head {
            let forget = cut.dropped(self.fresh(&head)?);
            drop(cut);
            tell(&view, forget);
        } else {
            drop(cut);
            self.lock().remove(name);
        }
        self.finish_abort(&txn.head)?;
        self.empty_trash_later();
        Ok(AbortReply {
            txn: name.to_owned(),
            effects,
            undo: None,
            reason: "an abort is final: the transaction never reached the base".into(),
        })
    }

    /// Takes generations back with a new one.
    ///
    /// # Errors
    /// [`Code::NotFound`], [`Code::Pruned`], [`Code::Conflict`] with the blocking generations, [`Code::Drift`].
    pub fn undo(
        &self,
        name: &str,
        uid: u32,
        generation: Option<u64>,
        to: Option<u64>,
        with_dependents: bool,
        dry_run: bool,
    ) -> Result<UndoReply, Failure> {
        self.check_sound()?;
        let _gate = self.gate.lock().unwrap_or_else(PoisonError::into_inner);
        let chosen = self.choose(generation, to, with_dependents)?;
        for generation in &chosen {
            self.check_maker(*generation, uid)?;
        }
        let live = self.live()?;
        let Some(newest) = chosen.first() else {
            return Ok(UndoReply {
                generation: live.0,
                undone: Vec::new(),
                dry_run,
                entries: 0,
                undo: None,
            });
        };
        log::debug!("undo of {newest} and {} more", chosen.len() - 1);
        let head = self
            .journal
            .begin(&format!("{}-{}", super::workspace::UNDO, live.next()), uid, now())
            .map_err(|e| journal_failed(&e))?;
        let result = self.undo_with(&head, uid, &chosen, dry_run);
        if result.is_ok() && !dry_run {
            self.refresh_if_empty(name, uid);
        }
        let still_open = self.journal.head(head.id).is_ok_and(|h| h.state == TxnState::Open);
        if still_open {
            self.journal.begin_abort(head.id).map_err(|e| journal_failed(&e))?;
            self.finish_abort(&head)?;
        }
        result
    }

    fn undo_with(
        &self,
        head: &TxnHead,
        uid: u32,
        chosen: &[Generation],
        dry_run: bool,
    ) -> Result<UndoReply, Failure> {
        let staging = self.store.staging(head.id).map_err(|e| {
            Failure::new(Code::Io, format!("cannot make the staging area: {e}")).hint("txfs doctor")
        })?;
        // What changes outside from here on is newer than the plan.
        let time = now();
        let mut steps: Vec<Step> = Vec::new();
        let net = undo::without_pairs(chosen, |g| self.journal.generation_head(g));
        let net = net.map_err(|e| journal_failed(&e))?;
        let (mut held, known) = self.left_since(net.last().copied().unwrap_or(head.base.next()))?;
        for generation in net {
            let record = self.journal.generation(generation).map_err(|e| journal_failed(&e))?;
            let is_first = steps.is_empty();
            if !is_first {
                steps.push(Step::Barrier);
            }
            let mut inverse =
                undo::inverse(&self.base, &self.store, &staging, &record, &mut held, &known, time)?;
            undo::expect_less(&mut inverse, is_first);
            steps.append(&mut inverse);
        }
        let conflicts = undo::drift(&self.base, &steps, &known)?;
        if !conflicts.is_empty() {
            return Err(Failure::new(Code::Drift, "the base was edited where the undo would act")
                .hint("put these paths right by hand, then run the undo again")
                .conflicts(conflicts));
        }
        let live = self.live()?;
        let mut entries = 0;
        for generation in chosen {
            entries +=
                self.journal.generation_head(*generation).map_err(|e| journal_failed(&e))?.entries;
        }
        let undone = chosen.iter().map(|g| g.0).collect();
        if dry_run {
            return Ok(UndoReply { generation: live.0, undone, dry_run, entries, undo: None });
        }
        let plan = Plan {
            txn: head.id,
            generation: live.next(),
            undo_of: chosen.to_vec(),
            uid,
            time,
            message: Vec::new(),
            steps,
        };
        let record = self.publish(plan, entries, "undo.sealed")?;
        let generation = record.plan.generation;
        self.after_generation(&record);
        self.apply_limits(KEEP_GENERATIONS, HistoryChoice::Keep)?;
        Ok(UndoReply {
            generation: generation.0,
            undone,
            dry_run,
            entries,
            undo: Some(undo_call(generation)),
        })
    }

    /// The view of the transaction from which generations were taken back goes on with the live one, if
    /// it has no change of its own. Those of others stay what they are.
    fn refresh_if_empty(&self, name: &str, uid: u32) {
        let Some(view) = self.lock().get(name).and_then(|t| t.view.clone()) else { return };
        let empty = view.cut().st.delta.is_empty();
        if empty && let Err(e) = self.refresh(&view, name, uid) {
            log::warn!("transaction \"{name}\" stays on its generation: {e}");
        }
    }

    /// The generations to take back, newest first.
    fn choose(
        &self,
        generation: Option<u64>,
        to: Option<u64>,
        with_dependents: bool,
    ) -> Result<Vec<Generation>, Failure> {
        let live = self.live()?;
        if let Some(to) = to {
            if to > live.0 {
                return Err(no_generation(Generation(to), live));
            }
            let all: Vec<_> = (to + 1..=live.0).rev().map(Generation).collect();
            all.iter().try_for_each(|g| self.head_to_undo(*g, live).map(drop))?;
            return Ok(all);
        }
        let wanted = match generation {
            Some(n) => Generation(n),
            None => self.newest_not_undone(live)?,
        };
        self.head_to_undo(wanted, live)?;
        let record = self.journal.generation(wanted).map_err(|e| journal_failed(&e))?;
        let mut later = Vec::new();
        let mut at = wanted.next();
        while at <= live {
            later.push(self.journal.generation(at).map_err(|e| journal_failed(&e))?);
            at = at.next();
        }
        let mut chosen = vec![wanted];
        loop {
            // What blocks a dependent blocks the whole.
            let mut blocking = undo::blockers(&record, &later, &chosen);
            for other in later.iter().filter(|o| chosen.contains(&o.plan.generation)) {
                let after: Vec<_> = later
                    .iter()
                    .filter(|l| l.plan.generation > other.plan.generation)
                    .cloned()
                    .collect();
                blocking.extend(undo::blockers(other, &after, &chosen));
            }
            if blocking.is_empty() {
                break;
            }
            if !with_dependents {
                let numbers: Vec<_> = blocking.iter().map(|(g, _)| g.to_string()).collect();
                return Err(Failure::new(
                    Code::Conflict,
                    format!("generation {wanted} cannot be taken back alone: later ones touched the same entries ({})", numbers.join(", ")),
                )
                .hint(format!("txfs undo {wanted} --with-dependents, or txfs undo --to {}", wanted.0 - 1))
                .conflicts(
                    blocking
                        .iter()
                        .map(|(g, path)| crate::proto::Conflict {
                            path: path.into(),
                            reason: format!("generation {g} touched it"),
                            generation: Some(g.0),
                        })
                        .collect(),
                ));
            }
            chosen.extend(blocking.into_iter().map(|(g, _)| g));
            chosen.sort_unstable_by(|a, b| b.cmp(a));
            chosen.dedup();
        }
        for g in &chosen {
            self.head_to_undo(*g, live)?;
        }
        Ok(chosen)
    }

    fn newest_not_undone(&self, live: Generation) -> Result<Generation, Failure> {
        let mut undone = std::collections::HashSet::new();
        for n in (1..=live.0).rev() {
            let head = match self.journal.generation_head(Generation(n)) {
                Ok(head) => head,
                Err(JournalError::NoGeneration(_)) => break,
                Err(e) => return Err(journal_failed(&e)),
            };
            if undone.contains(&n) {
                continue;
            }
            if head.plan.undo_of.is_empty() {
                return Ok(Generation(n));
            }
            undone.extend(head.plan.undo_of.iter().map(|g| g.0));
        }
        Err(Failure::new(Code::NotFound, "there is no generation to take back")
            .hint("txfs history"))
    }

    fn head_to_undo(
        &self,
        generation: Generation,
        live: Generation,
    ) -> Result<GenerationHead, Failure> {
        let head = match self.journal.generation_head(generation) {
            Ok(head) => head,
            Err(JournalError::NoGeneration(g)) => return Err(no_generation(g, live)),
            Err(e) => return Err(journal_failed(&e)),
        };
        if head.pruned {
            return Err(Failure::new(
                Code::Pruned,
                format!("generation {generation} cannot be taken back: its history was collected"),
            )
            .hint("txfs history shows those that can"));
        }
        Ok(head)
    }

    /// A generation is looked into and taken back by who made it and by root: its files may be unreadable
    /// to others.
    pub(super) fn check_maker(&self, generation: Generation, uid: u32) -> Result<(), Failure> {
        let maker = match self.journal.generation_head(generation) {
            Ok(head) => head.plan.uid,
            Err(JournalError::NoGeneration(g)) => return Err(no_generation(g, self.live()?)),
            Err(e) => return Err(journal_failed(&e)),
        };
        // All that a user's daemon can do its user can do.
        if uid == 0 || uid == maker || uid == rustix::process::geteuid().as_raw() {
            return Ok(());
        }
        Err(Failure::new(
            Code::NotPermitted,
            format!("generation {generation} was made by uid {maker}"),
        )
        .hint("run the command as that user, or as root"))
    }

    /// What concerns everybody is for the workspace's owner and root.
    ///
    /// # Errors
    /// [`Code::NotPermitted`]
    pub fn check_owner(&self, uid: u32) -> Result<(), Failure> {
        let owner = self.base.root_stat().uid;
        if uid == 0 || uid == owner || uid == rustix::process::geteuid().as_raw() {
            return Ok(());
        }
        Err(Failure::new(Code::NotPermitted, format!("the workspace belongs to uid {owner}"))
            .hint("run the command as that user, or as root"))
    }

    /// The generations, newest first.
    ///
    /// # Errors
    /// If the journal cannot be read.
    pub fn history(&self) -> Result<HistoryReply, Failure> {
        let mut generations = Vec::new();
        for generation in
            self.journal.generations().map_err(|e| journal_failed(&e))?.into_iter().rev()
        {
            generations.push(self.generation_info(generation)?);
        }
        Ok(HistoryReply { generation: self.live()?.0, generations })
    }

    /// One generation in words.
    ///
    /// # Errors
    /// [`Code::NotFound`]
    pub fn generation_info(&self, generation: Generation) -> Result<GenerationInfo, Failure> {
        let head = match self.journal.generation_head(generation) {
            Ok(head) => head,
            Err(JournalError::NoGeneration(g)) => return Err(no_generation(g, self.live()?)),
            Err(e) => return Err(journal_failed(&e)),
        };
        Ok(GenerationInfo {
            generation: generation.0,
            txn: head.plan.txn.0,
            uid: head.plan.uid,
            time: head.plan.time.secs,
            message: PathBytes(head.plan.message),
            undo_of: head.plan.undo_of.iter().map(|g| g.0).collect(),
            entries: head.entries,
            history_bytes: head.history_bytes,
            pruned: head.pruned,
            undo: (!head.pruned).then(|| undo_call(generation)),
        })
    }

    /// Applies the limits on history.
    ///
    /// # Errors
    /// If the journal cannot be written.
    pub fn gc(&self, keep: Option<u64>) -> Result<GcReply, Failure> {
        self.check_sound()?;
        let _gate = self.gate.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.store.bytes("history");
        let pruned = self.apply_limits(keep.unwrap_or(KEEP_GENERATIONS), HistoryChoice::Ask)?;
        if let Err(e) = self.store.empty_trash() {
            log::warn!("the trash of the store: {e}");
        }
        let history_bytes = self.store.bytes("history");
        Ok(GcReply {
            pruned,
            freed_bytes: before.saturating_sub(history_bytes),
            history_bytes,
            pinned: self
                .pins()
                .into_iter()
                .map(|(g, name)| format!("generation {g} by transaction \"{name}\""))
                .collect(),
        })
    }

    /// Generations that open views on older ones need, with who needs them.
    fn pins(&self) -> Vec<(Generation, String)> {
        let Ok(live) = self.live() else { return Vec::new() };
        let mut pins = Vec::new();
        for txn in self.lock().values() {
            let mut generation = txn.head.base.next();
            while generation <= live {
                pins.push((generation, txn.head.name.clone()));
                generation = generation.next();
            }
        }
        pins
    }

    /// Collects the oldest generations beyond the limits: marks first, sweeps then. The newest stays unless
    /// `--no-undo` was said or nothing shall be kept.
    fn apply_limits(&self, keep: u64, choice: HistoryChoice) -> Result<Vec<u64>, Failure> {
        let failed = |e: JournalError| journal_failed(&e);
        let pinned: Vec<_> = self.pins().into_iter().map(|(g, _)| g).collect();
        let mut kept: Vec<(Generation, u64)> = Vec::new();
        for generation in self.journal.generations().map_err(failed)? {
            let head = self.journal.generation_head(generation).map_err(failed)?;
            if !head.pruned {
                kept.push((generation, head.history_bytes));
            }
        }
        let mut bytes: u64 = kept.iter().map(|(_, b)| b).sum();
        let mut count = kept.len() as u64;
        let newest = kept.last().map(|(g, _)| *g);
        let mut pruned = Vec::new();
        for (generation, size) in kept {
            let is_newest = Some(generation) == newest;
            let drop_newest = choice == HistoryChoice::NoUndo || keep == 0;
            let over = count > keep
                || bytes > KEEP_BYTES
                || (is_newest && choice == HistoryChoice::NoUndo);
            if !over || pinned.contains(&generation) || (is_newest && !drop_newest) {
                continue;
            }
            self.journal.set_pruned(generation).map_err(failed)?;
            failpoint("gc.marked");
            self.store.discard_history(generation).map_err(|e| {
                Failure::new(Code::Io, format!("cannot collect generation {generation}: {e}"))
                    .hint("txfs gc")
            })?;
            failpoint("gc.moved");
            count -= 1;
            bytes -= size;
            pruned.push(generation.0);
        }
        if !pruned.is_empty() {
            self.empty_trash_later();
        }
        Ok(pruned)
    }

    /// A new step begins.
    ///
    /// # Errors
    /// If the journal cannot take it.
    pub fn step(&self, name: &str, uid: u32, what: Vec<u8>) -> Result<StepReply, Failure> {
        self.ensure(name, uid)?;
        let view = self.view(name, uid)?;
        let mut what = what;
        what.truncate(4096);
        drain(&view)?;
        let step = view
            .cut()
            .mark(true, |st| st.writer.step(now(), what))
            .map_err(super::savepoints::mark_failed)?;
        Ok(StepReply { step: step.0 })
    }
}

fn reply(
    name: &str,
    generation: Generation,
    dry_run: bool,
    changed: bool,
    counts: Counts,
    undo: Option<String>,
    reason: Option<&str>,
) -> CommitReply {
    CommitReply {
        txn: name.to_owned(),
        generation: generation.0,
        dry_run,
        changed,
        counts,
        undo,
        reason: reason.map(Into::into),
        copied_open: Vec::new(),
    }
}

fn no_generation(generation: Generation, live: Generation) -> Failure {
    Failure::new(
        Code::NotFound,
        format!("there is no generation {generation}; the newest is {live}"),
    )
    .hint("txfs history")
}

/// Only lines at or below one of the paths; all if none is given.
pub fn only(
    lines: Vec<crate::proto::ChangeLine>,
    paths: &[PathBytes],
) -> Vec<crate::proto::ChangeLine> {
    if paths.is_empty() {
        return lines;
    }
    let within = |line: &PathBytes, path: &PathBytes| {
        let (line, path) = (&line.0, &path.0);
        path.is_empty()
            || line == path
            || (line.starts_with(path) && line.get(path.len()) == Some(&b'/'))
    };
    lines
        .into_iter()
        .filter(|l| {
            paths
                .iter()
                .any(|p| within(&l.path, p) || l.from.as_ref().is_some_and(|f| within(f, p)))
        })
        .collect()
}

/// Waits until nobody writes, or the time is over.
fn wait_for_writers(view: &View, seconds: u64) {
    let until = Instant::now() + Duration::from_secs(seconds);
    while !view.open_writers().is_empty() && Instant::now() < until {
        view.wait_for_release(until.saturating_duration_since(Instant::now()));
    }
}

/// Has the kernel hand over the dirty pages of mapped files, before anything is locked.
pub(super) fn drain(view: &View) -> Result<(), Failure> {
    let writers = view.cached_writers();
    match view.kernel() {
        Some(kernel) if !writers.is_empty() => kernel.drain(&writers, DRAIN).map_err(|e| {
            Failure::new(Code::Busy, format!("mapped files could not be written back: {e}"))
                .hint("txfs commit --wait 10")
        }),
        Some(_) | None => Ok(()),
    }
}

/// Has the kernel forget, and waits until it has: whoever looks after the verb's answer sees the
/// new state. To be called without any lock of the view.
pub(super) fn tell(view: &View, forget: Vec<Forget>) {
    let Some(kernel) = view.kernel() else { return };
    kernel.forget(forget);
    if let Err(e) = kernel.drain(&[], DRAIN) {
        log::warn!("the kernel may show what was before for a while: {e}");
    }
}
