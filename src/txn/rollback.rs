//! Taking back what was done of a sealed plan that could not be finished.
//!
//! Newest step first. A step that was not done has nothing to take back, whatever somebody else did at
//! its place; one that was done and whose result somebody changed is not touched: that blocks, and both
//! versions stay.

use std::collections::HashMap;
use std::io;
use std::os::fd::AsFd;

use txfs_journal::{
    Fingerprint, Generation, Holds, Ident, Journal, Kind, Meta, Place, Sealed, Seen, SlotId, Step,
};

use super::apply::{
    Apply, Halt, Leaving, StepError, Stopped, io_at_root, outside, set_progress, whose,
};
use super::failpoint::failpoint;
use super::marks::Mark;
use super::store::Store;
use crate::base::mutate::{self, Spot};
use crate::base::{self, Base, Stat, Whereabouts};

/// What fills a slot before it is placed.
#[derive(Clone, Copy)]
enum Source<'a> {
    /// A place of the base.
    Base(&'a Place),
    /// A slot of an older generation.
    Older(Generation, SlotId),
}

fn sources(steps: &[Step]) -> HashMap<SlotId, Source<'_>> {
    let mut sources = HashMap::new();
    for step in steps {
        match step {
            Step::Evacuate { from, slot, .. } => {
                sources.insert(*slot, Source::Base(from));
            }
            Step::Fetch { from, from_slot, slot, .. } => {
                sources.insert(*slot, Source::Older(*from, *from_slot));
            }
            Step::Place { .. }
            | Step::Exchange { .. }
            | Step::Link { .. }
            | Step::Unlink { .. }
            | Step::Rewrite { .. }
            | Step::SetMeta { .. }
            | Step::Barrier => {}
        }
    }
    sources
}

/// Takes back what was done of a plan.
///
/// # Errors
/// At the first step that cannot be taken back.
pub(super) fn roll_back(
    base: &Base,
    store: &Store,
    journal: &Journal,
    seal: &Sealed,
    halt: &Halt,
) -> Result<(), Stopped> {
    let steps = &seal.plan().steps;
    let mut run = Apply::new(base, store, seal).map_err(io_at_root)?;
    let sources = sources(steps);
    for (n, step) in steps.iter().enumerate().take(halt.reached).rev() {
        if matches!(step, Step::Barrier) {
            // Recovery would apply the segment before it again from its start, which is all done.
            store.sync().map_err(io_at_root)?;
            let before = steps[..n].iter().rposition(|s| matches!(s, Step::Barrier));
            set_progress(journal, seal, before.map_or(0, |b| b + 1))?;
            continue;
        }
        run.take_back(step, &sources).map_err(|e| e.at(step))?;
        failpoint("rollback.step");
    }
    store.sync().map_err(io_at_root)?;
    failpoint("rollback.synced");
    Ok(())
}

impl Apply<'_> {
    fn take_back(
        &mut self,
        step: &Step,
        sources: &HashMap<SlotId, Source<'_>>,
    ) -> Result<(), StepError> {
        let _moving = self.base.moving();
        match step {
            Step::Barrier => Ok(()),
            Step::Fetch { from, from_slot, slot, ident } => {
                let held = self.slot(*slot);
                if !held.holds(ident)? {
                    return Ok(());
                }
                let home =
                    Spot { dir: self.older(*from)?, name: from_slot.to_string().into_bytes() };
                self.base.moves(ident.ino, Whereabouts::Slot(*from, *from_slot));
                Ok(mutate::rename(self.seal, &held, &home, ident.kind)?)
            }
            Step::Evacuate { from, slot, ident, .. } => {
                if self.slot(*slot).holds(ident)? {
                    self.place(*slot, from, ident)
                } else {
                    Ok(())
                }
            }
            Step::Place { slot, to, ident } => self.unplace(*slot, to, ident, sources),
            Step::Exchange { slot, at, new, old, .. } => {
                if self.slot(*slot).holds(old)? {
                    self.exchange(*slot, at, old, new, None)
                } else {
                    Ok(())
                }
            }
            Step::Unlink { from, ident, .. } => self.link_again(from, ident),
            Step::Link { to, ident, existing } => {
                let Some(target) = self.spot_if_there(&to.path)? else { return Ok(()) };
                if existing.path == to.path || !target.holds(ident)? {
                    return Ok(());
                }
                Ok(mutate::unlink(self.seal, &target)?)
            }
            Step::Rewrite { at, ident, content, preimage, was } => {
                self.write_back(at, ident, (*content, *preimage), was.as_ref())
            }
            Step::SetMeta { at, ident, before, after } => {
                self.set_meta_back(at, ident, before, after)
            }
        }
    }

    fn unplace(
        &mut self,
        slot: SlotId,
        to: &Place,
        ident: &Ident,
        sources: &HashMap<SlotId, Source<'_>>,
    ) -> Result<(), StepError> {
        if self.slot(slot).holds(ident)? {
            return Ok(());
        }
        let placed = match self.spot_if_there(&to.path)? {
            Some(target) => target.holds(ident)?,
            None => false,
        };
        if placed {
            let holds = Holds::Anything;
            return self.evacuate(&Leaving { from: to, slot, ident, was: None, holds });
        }
        // It may never have left where it comes from.
        let there = match sources.get(&slot).copied() {
            Some(Source::Base(from)) => {
                let path = from.path.clone();
                self.spot_if_there(&path)?.map(|s| s.holds(ident)).transpose()?.unwrap_or(false)
            }
            Some(Source::Older(generation, from)) => {
                let dir = self.older(generation)?;
                Spot { dir, name: from.to_string().into_bytes() }.holds(ident)?
            }
            None => false,
        };
        if there { Ok(()) } else { outside("what was placed there has been taken away") }
    }

    fn link_again(&mut self, from: &Place, ident: &Ident) -> Result<(), StepError> {
        let target = self.spot(&from.path)?;
        match target.ident()? {
            Some(there) if there == *ident => Ok(()),
            Some(there) => outside(format!("{} stands in the way", whose(Some(&there)))),
            None => match self.any_name(ident)? {
                Some(existing) => Ok(mutate::link(self.seal, &existing, &target)?),
                None => outside("the file to link is gone"),
            },
        }
    }

    /// Any name that an inode of the plan has right now.
    fn any_name(&mut self, ident: &Ident) -> io::Result<Option<Spot>> {
        let mut spots = Vec::new();
        for step in &self.seal.plan().steps {
            match step {
                Step::Evacuate { from, slot, ident: i, .. } if i == ident => {
                    spots.push(Ok(self.slot(*slot)));
                    spots.push(Err(from.path.clone()));
                }
                Step::Place { to: at, ident: i, .. }
                | Step::Link { to: at, ident: i, .. }
                | Step::Unlink { existing: at, ident: i, .. }
                | Step::SetMeta { at, ident: i, .. }
                | Step::Rewrite { at, ident: i, .. }
                    if i == ident =>
                {
                    spots.push(Err(at.path.clone()));
                }
                Step::Fetch { .. }
                | Step::Evacuate { .. }
                | Step::Place { .. }
                | Step::Exchange { .. }
                | Step::Link { .. }
                | Step::Unlink { .. }
                | Step::Rewrite { .. }
                | Step::SetMeta { .. }
                | Step::Barrier => {}
            }
        }
        for candidate in spots {
            let spot = match candidate {
                Ok(spot) => Some(spot),
                Err(path) => self.spot_if_there(&path)?,
            };
            if let Some(spot) = spot
                && spot.holds(ident)?
            {
                return Ok(Some(spot));
            }
        }
        Ok(None)
    }

    fn write_back(
        &mut self,
        at: &Place,
        ident: &Ident,
        (content, preimage): (SlotId, SlotId),
        was: Option<&Seen>,
    ) -> Result<(), StepError> {
        match self.marks.get(content)? {
            None => return Ok(()),
            Some(Mark::Begun) => {}
            Some(Mark::Done(then)) => {
                let spot = self.spot(&at.path)?;
                let now = base::stat_at(spot.dir.as_fd(), &spot.name)?;
                let ours = now.mtime == then.mtime || was.is_none_or(|was| now.mtime == was.mtime);
                if now.ident != *ident || now.size != then.size || !ours {
                    return outside("it was written outside after it had been committed");
                }
            }
        }
        self.write_over(at, ident, preimage)?;
        if let Some(was) = was {
            let spot = self.spot(&at.path)?;
            mutate::set_mtime(self.seal, &spot, ident, was.mtime)?;
        }
        failpoint("rollback.rewritten");
        Ok(self.marks.clear(content)?)
    }

    /// Metadata goes back where it is what the plan made of it. What is as it was, was never reached; what is
    /// neither is somebody else's word.
    fn set_meta_back(
        &mut self,
        at: &Place,
        ident: &Ident,
        before: &Meta,
        after: &Meta,
    ) -> Result<(), StepError> {
        let now = if at.path.depth() == 0 {
            Some(base::stat_fd(self.base.root())?)
        } else {
            match self.spot_if_there(&at.path)? {
                Some(spot) => match base::stat_at(spot.dir.as_fd(), &spot.name) {
                    Ok(stat) => Some(stat).filter(|s| s.ident == *ident),
                    Err(e) if e.kind() == io::ErrorKind::NotFound => None,
                    Err(e) => return Err(e.into()),
                },
                None => None,
            }
        };
        match now {
            Some(now) if is(&now, after) || is(&now, before) => self.set_meta(at, ident, before),
            Some(_) | None => Ok(()),
        }
    }
}

/// A directory's time moves with its entries and says nothing.
fn is(now: &Stat, meta: &Meta) -> bool {
    (now.mode, now.uid, now.gid) == (meta.mode, meta.uid, meta.gid)
        && (now.ident.kind == Kind::Dir || now.mtime == meta.mtime)
}

/// The state of what a plan that was taken back had moved or linked: its time of status is new, and
/// whoever compares it with an older look must know that this was us.
///
/// # Errors
/// If something cannot be read. What is not where it was is left out.
pub(super) fn restamped(
    base: &Base,
    seal: &Sealed,
    reached: usize,
) -> io::Result<Vec<Fingerprint>> {
    let mut out = Vec::new();
    for step in seal.plan().steps.iter().take(reached) {
        let (at, ident) = match step {
            Step::Evacuate { from, ident, .. } | Step::Unlink { from, ident, .. } => (from, ident),
            Step::Exchange { at, old, .. } => (at, old),
            Step::Link { existing, ident, .. } => (existing, ident),
            Step::SetMeta { at, ident, .. } | Step::Rewrite { at, ident, .. } => (at, ident),
            Step::Fetch { .. } | Step::Place { .. } | Step::Barrier => continue,
        };
        if at.path.depth() == 0 {
            continue;
        }
        let found = mutate::spot(base, &at.path)
            .and_then(|spot| base::stat_at(spot.dir.as_fd(), &spot.name));
        match found {
            Ok(now) if now.ident == *ident => out.push(now.fingerprint(Vec::new())),
            // Its new path is not there any more; its old one is in a step of its own.
            Ok(_) => {}
            Err(e) if base::is_absent(&e) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(out)
}
