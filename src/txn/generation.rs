//! `show`: what a generation changed, by comparing it with the one before, wherever later ones took
//! things since.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::io::Write;
use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::io::Errno;
use txfs_journal::{Generation, GenerationRecord, Ident, Kind, ObjId, RelPath, SlotId, Step};

use super::apply;
use super::net::kind_word;
use super::planner::op_failed;
use super::show::{git_mode, output, read_all};
use super::undo::relocated;
use super::workspace::{Workspace, journal_failed};
use crate::base;
use crate::proto::{ChangeKind, ChangeLine, Code, DiffForm, Failure, ShowReply};
use crate::report::name_status;
use crate::report::patch::{self, Side};
use crate::view::View;
use crate::view::api::{Attr, OpResult};
use crate::view::nodes::errno;

impl Workspace {
    /// One generation and its changes.
    ///
    /// # Errors
    /// [`Code::NotFound`], [`Code::NotPermitted`], [`Code::Pruned`] for the content of one whose history
    /// was collected, or if the output takes no more.
    pub fn show(
        &self,
        uid: u32,
        generation: u64,
        form: DiffForm,
        out: &mut dyn Write,
    ) -> Result<ShowReply, Failure> {
        let generation = Generation(generation);
        self.check_maker(generation, uid)?;
        let info = self.generation_info(generation)?;
        let record = self.journal.generation(generation).map_err(|e| journal_failed(&e))?;
        let with_content = matches!(form, DiffForm::Patch | DiffForm::Stat);
        let changes = match self.changes_of(&record) {
            Ok(changes) => {
                if with_content {
                    changes.write(form, out)?;
                }
                changes.lines().map_err(|e| op_failed("read a generation", e))?
            }
            Err(e) if e.code == Code::Pruned && !with_content => planned_lines(&record),
            Err(e) => return Err(e),
        };
        match form {
            DiffForm::Changes | DiffForm::Patch | DiffForm::Stat => {}
            DiffForm::NameStatus => name_status(out, &changes, false).map_err(|e| output(&e))?,
            DiffForm::NameStatusZ => name_status(out, &changes, true).map_err(|e| output(&e))?,
        }
        Ok(ShowReply { info, changes })
    }

    fn changes_of(&self, record: &GenerationRecord) -> Result<Changes, Failure> {
        let generation = record.plan.generation;
        let before = Past(self.snapshot(Generation(generation.0.saturating_sub(1)))?);
        let after = Past(self.snapshot(generation)?);
        Changes::between(before, after, named_by(&record.plan.steps))
            .map_err(|e| op_failed("read a generation", e))
    }
}

/// A generation, looked up by path.
struct Past(Arc<View>);

/// What is at a path.
#[derive(Clone, Debug)]
struct Thing {
    obj: ObjId,
    ident: Ident,
    attr: Attr,
}

impl Past {
    /// What is at a path, if anything is.
    fn at(&self, path: &RelPath) -> OpResult<Option<Thing>> {
        let st = self.0.read_state();
        let mut obj = ObjId::ROOT;
        for name in path.components() {
            obj = match self.0.find(&st, obj, &name) {
                Ok(found) => found.obj,
                Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
                Err(e) => return Err(e),
            };
        }
        let (attr, _) = self.0.attr(&st, obj)?;
        let ident = self.0.nodes.get(obj).ok_or(Errno::STALE)?.ident;
        Ok(Some(Thing { obj, ident, attr }))
    }

    /// The paths right below a directory.
    fn below(&self, path: &RelPath, dir: ObjId) -> OpResult<Vec<RelPath>> {
        let entries = self.0.listing(&self.0.read_state(), dir)?;
        Ok(entries.into_iter().map(|entry| path.join(&entry.name)).collect())
    }

    /// A file or a link as a patch has it; other kinds are no part of one.
    fn side(&self, path: &RelPath, thing: &Thing) -> OpResult<Option<Side>> {
        let Some(mode) = git_mode(thing.attr.kind, thing.attr.mode) else { return Ok(None) };
        let content = if thing.attr.kind == Kind::Symlink {
            let link = self.0.nodes.open(thing.obj)?;
            base::read_link(link.as_fd()).map_err(|e| errno(&e))?
        } else {
            read_all(self.0.base_file(&self.0.read_state(), thing.obj)?)?
        };
        Ok(Some(Side { path: path.as_bytes().to_vec(), mode, content }))
    }

    fn has_other_xattrs(&self, thing: &Thing, other: &Past, there: &Thing) -> OpResult<bool> {
        let mine = self.0.base_xattrs(&self.0.read_state(), thing.obj)?;
        Ok(mine != other.0.base_xattrs(&other.0.read_state(), there.obj)?)
    }
}

/// One entry before and after; at least one of the two.
struct Change {
    old: Option<(RelPath, Thing)>,
    new: Option<(RelPath, Thing)>,
}

struct Changes {
    before: Past,
    after: Past,
    /// What is gone first, then by path.
    list: Vec<Change>,
}

impl Changes {
    /// Compares what is at the named paths, and below directories that came, went or moved.
    fn between(before: Past, after: Past, paths: BTreeSet<RelPath>) -> OpResult<Changes> {
        let mut todo: Vec<RelPath> = paths.into_iter().collect();
        let (mut seen, mut same) = (HashSet::new(), Vec::new());
        let mut gone: BTreeMap<RelPath, Thing> = BTreeMap::new();
        let mut come: BTreeMap<RelPath, Thing> = BTreeMap::new();
        while let Some(path) = todo.pop() {
            if !seen.insert(path.clone()) {
                continue;
            }
            match (before.at(&path)?, after.at(&path)?) {
                (Some(old), Some(new)) if old.ident == new.ident => same.push((path, old, new)),
                (old, new) => {
                    if let Some(old) = old {
                        if old.attr.kind == Kind::Dir {
                            todo.extend(before.below(&path, old.obj)?);
                        }
                        gone.insert(path.clone(), old);
                    }
                    if let Some(new) = new {
                        if new.attr.kind == Kind::Dir {
                            todo.extend(after.below(&path, new.obj)?);
                        }
                        come.insert(path, new);
                    }
                }
            }
        }
        let mut list = pair(gone, come);
        list.extend(same.into_iter().map(|(path, old, new)| Change {
            old: Some((path.clone(), old)),
            new: Some((path, new)),
        }));
        list.sort_by(|a, b| a.order().cmp(&b.order()));
        Ok(Changes { before, after, list })
    }

    fn write(&self, form: DiffForm, out: &mut dyn Write) -> Result<(), Failure> {
        let failed = |e| op_failed("read a generation", e);
        let side = |past: &Past, at: &Option<(RelPath, Thing)>| match at {
            Some((path, thing)) => past.side(path, thing).map_err(failed),
            None => Ok(None),
        };
        for change in &self.list {
            let (old, new) = (side(&self.before, &change.old)?, side(&self.after, &change.new)?);
            let written = if form == DiffForm::Stat {
                patch::stat(out, old.as_ref(), new.as_ref())
            } else {
                patch::write(out, old.as_ref(), new.as_ref())
            };
            written.map_err(|e| output(&e))?;
        }
        Ok(())
    }

    fn lines(&self) -> OpResult<Vec<ChangeLine>> {
        // What moved with its directory is told by that.
        let moved: HashMap<&RelPath, &RelPath> =
            self.list.iter().filter_map(Change::moved).map(|(old, new)| (new, old)).collect();
        let mut lines = Vec::new();
        for change in &self.list {
            let along = change.moved().is_some_and(|(old, new)| {
                let parents = (old.split(), new.split());
                matches!(parents, (Some((from, a)), Some((to, b)))
                    if a == b && moved.get(&to) == Some(&&from))
            });
            let line = self.line(change)?;
            lines.extend(line.filter(|l| !along || !l.meta.is_empty()));
        }
        Ok(lines)
    }

    fn line(&self, change: &Change) -> OpResult<Option<ChangeLine>> {
        let (old, new) = (change.old.as_ref(), change.new.as_ref());
        let Some((path, thing)) = new.or(old) else { return Ok(None) };
        let (mut meta, mut content) = (Vec::new(), false);
        if let (Some((_, old)), Some((_, new))) = (old, new) {
            let is_dir = new.attr.kind == Kind::Dir;
            content = old.ident != new.ident || old.attr.size != new.attr.size && !is_dir;
            content |= !is_dir
                && !content
                && old.attr.mtime != new.attr.mtime
                && self.has_other_content(old, new)?;
            let owner = (old.attr.uid, old.attr.gid) != (new.attr.uid, new.attr.gid);
            let mtime = !is_dir && !content && old.attr.mtime != new.attr.mtime;
            let xattrs = self.before.has_other_xattrs(old, &self.after, new)?;
            let mode = old.attr.mode != new.attr.mode;
            let words = [("mode", mode), ("owner", owner), ("mtime", mtime), ("xattrs", xattrs)];
            meta.extend(words.iter().filter(|(_, is)| *is).map(|(word, _)| (*word).to_owned()));
        }
        let kind = match (old, new) {
            (_, None) => ChangeKind::Deleted,
            (None, _) => ChangeKind::Added,
            (Some((from, _)), Some((to, _))) if from != to => ChangeKind::Renamed,
            (Some((_, old)), Some((_, new))) if old.attr.kind != new.attr.kind => {
                ChangeKind::TypeChanged
            }
            (Some(_), Some(_)) if content => ChangeKind::Modified,
            (Some(_), Some(_)) if meta.is_empty() => return Ok(None),
            (Some(_), Some(_)) => ChangeKind::Metadata,
        };
        Ok(Some(ChangeLine {
            change: kind,
            path: path.into(),
            from: change.moved().map(|(from, _)| from.into()),
            kind: kind_word(thing.attr.kind).into(),
            old_mode: old.map(|(_, o)| o.attr.mode),
            new_mode: new.map(|(_, n)| n.attr.mode),
            old_size: old.map(|(_, o)| o.attr.size),
            new_size: new.map(|(_, n)| n.attr.size),
            meta,
        }))
    }

    /// Whether the bytes of one inode were others: it was rewritten in place.
    fn has_other_content(&self, old: &Thing, new: &Thing) -> OpResult<bool> {
        let path = RelPath::root();
        let (old, new) = (self.before.side(&path, old)?, self.after.side(&path, new)?);
        Ok(old.map(|s| s.content) != new.map(|s| s.content))
    }
}

impl Change {
    /// Where it was and where it is, if that is not the same.
    fn moved(&self) -> Option<(&RelPath, &RelPath)> {
        match (&self.old, &self.new) {
            (Some((old, _)), Some((new, _))) if old != new => Some((old, new)),
            _ => None,
        }
    }

    /// Deletions first, then by path.
    fn order(&self) -> (bool, Option<&RelPath>) {
        (self.new.is_some(), self.new.as_ref().or(self.old.as_ref()).map(|(path, _)| path))
    }
}

/// Finds the new place of what left its path, by its inode; what stays at a path and is another inode is one
/// change.
fn pair(mut gone: BTreeMap<RelPath, Thing>, come: BTreeMap<RelPath, Thing>) -> Vec<Change> {
    let mut by_ident: HashMap<Ident, Vec<RelPath>> = HashMap::new();
    for (path, thing) in gone.iter().rev() {
        by_ident.entry(thing.ident).or_default().push(path.clone());
    }
    let mut list = Vec::new();
    let mut rest = Vec::new();
    for (path, thing) in come {
        let from = by_ident.get_mut(&thing.ident).and_then(Vec::pop);
        match from.and_then(|from| gone.remove(&from).map(|old| (from, old))) {
            Some(old) => list.push(Change { old: Some(old), new: Some((path, thing)) }),
            None => rest.push((path, thing)),
        }
    }
    for (path, thing) in rest {
        let old = gone.remove(&path).map(|old| (path.clone(), old));
        list.push(Change { old, new: Some((path, thing)) });
    }
    list.extend(gone.into_iter().map(|old| Change { old: Some(old), new: None }));
    list
}

/// Every path that a plan names, as it is in the tree before and in the one after: between the segments of
/// an undo of several directories may have other names.
fn named_by(steps: &[Step]) -> BTreeSet<RelPath> {
    let segments: Vec<&[Step]> = steps.split(|s| matches!(s, Step::Barrier)).collect();
    let mut left = HashMap::new();
    let moves: Vec<Moves> = segments.iter().map(|s| Moves::of(s, &mut left)).collect();
    let mut named = BTreeSet::new();
    for (n, segment) in segments.iter().enumerate() {
        for path in segment.iter().map(apply::step_path).filter(|path| path.depth() > 0) {
            // A step calls a place as it is called before its segment, or after it.
            for before in [path.clone(), moves[n].back(&path)] {
                named.insert(moves[..n].iter().rev().fold(before, |path, m| m.back(&path)));
            }
            for after in [moves[n].there(&path), path] {
                named.insert(moves[n + 1..].iter().fold(after, |path, m| m.there(&path)));
            }
        }
    }
    named
}

/// What a segment moves, by either path.
#[derive(Default)]
struct Moves {
    there: HashMap<RelPath, RelPath>,
    back: HashMap<RelPath, RelPath>,
}

impl Moves {
    /// `left` has where slots were filled from, in this segment or an earlier one.
    fn of(segment: &[Step], left: &mut HashMap<SlotId, RelPath>) -> Moves {
        let mut moves = Moves::default();
        for step in segment {
            if let Step::Evacuate { from, slot, .. } = step {
                left.insert(*slot, from.path.clone());
            } else if let Step::Place { slot, to, .. } = step
                && let Some(from) = left.get(slot)
            {
                moves.there.insert(from.clone(), to.path.clone());
                moves.back.insert(to.path.clone(), from.clone());
            }
        }
        moves
    }

    fn there(&self, path: &RelPath) -> RelPath {
        relocated(path, |at| self.there.get(at))
    }

    fn back(&self, path: &RelPath) -> RelPath {
        relocated(path, |at| self.back.get(at))
    }
}

/// The changes of a generation as its plan tells them, where nothing else is left of it; deletions first.
fn planned_lines(record: &GenerationRecord) -> Vec<ChangeLine> {
    let mut evacuated: HashMap<SlotId, (&RelPath, Kind)> = HashMap::new();
    let mut lines = Vec::new();
    let line = |change, path: &RelPath, from: Option<&RelPath>, kind: Kind| ChangeLine {
        change,
        path: path.into(),
        from: from.map(Into::into),
        kind: kind_word(kind).into(),
        old_mode: None,
        new_mode: None,
        old_size: None,
        new_size: None,
        meta: Vec::new(),
    };
    let mut placed: Vec<u64> = Vec::new();
    for step in &record.plan.steps {
        match step {
            Step::Evacuate { from, slot, ident, .. } => {
                evacuated.insert(*slot, (&from.path, ident.kind));
            }
            Step::Place { slot, to, ident } => {
                placed.push(ident.ino);
                lines.push(match evacuated.remove(slot) {
                    Some((from, _)) => line(ChangeKind::Renamed, &to.path, Some(from), ident.kind),
                    None => line(ChangeKind::Added, &to.path, None, ident.kind),
                });
            }
            Step::Exchange { at, new, .. } => {
                placed.push(new.ino);
                lines.push(line(ChangeKind::Modified, &at.path, None, new.kind));
            }
            Step::Unlink { from, ident, .. } => {
                lines.push(line(ChangeKind::Deleted, &from.path, None, ident.kind));
            }
            Step::Link { to, ident, .. } => {
                lines.push(line(ChangeKind::Added, &to.path, None, ident.kind))
            }
            Step::Rewrite { at, ident, .. } => {
                placed.push(ident.ino);
                lines.push(line(ChangeKind::Modified, &at.path, None, ident.kind));
            }
            Step::SetMeta { at, ident, before, after } => {
                let only_time = ident.kind == Kind::Dir
                    && (before.mode, before.uid, before.gid, &before.xattrs)
                        == (after.mode, after.uid, after.gid, &after.xattrs);
                if !only_time && !placed.contains(&ident.ino) {
                    lines.push(line(ChangeKind::Metadata, &at.path, None, ident.kind));
                }
            }
            Step::Fetch { .. } | Step::Barrier => {}
        }
    }
    for (path, kind) in evacuated.into_values() {
        lines.push(line(ChangeKind::Deleted, path, None, kind));
    }
    lines.sort_by(|a, b| {
        (a.change != ChangeKind::Deleted, &a.path).cmp(&(b.change != ChangeKind::Deleted, &b.path))
    });
    lines
}
