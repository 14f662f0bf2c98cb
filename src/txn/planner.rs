//! From net changes to a plan: validation, staging made ready, steps.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::io;

use rustix::fs::AtFlags;
use txfs_journal::{Holds, Ident, Kind, Meta, Name, ObjId, Place, RelPath, Seen, SlotId, Step};

use super::net::{self, Differs, Names, Paths};
use super::ready::{Ready, Workshop};
use crate::base::{self, Stat};
use crate::proto::{Code, Failure};
use crate::view::View;
use crate::view::cut::Landed;
use crate::view::delta::{Object, Origin};
use crate::view::staging::copy_content;
use crate::view::state::State;

/// What a commit is going to do.
#[derive(Debug, Default)]
pub struct Prepared {
    /// The steps, in order.
    pub steps: Vec<Step>,
    /// What becomes of the objects.
    pub landed: HashMap<ObjId, Landed>,
    /// Files that land as a copy since they are open.
    pub copied: Vec<RelPath>,
    /// Bytes of what is displaced.
    pub history_bytes: u64,
}

pub(super) fn io_at(path: &RelPath, e: &io::Error) -> Failure {
    let failure = Failure::new(
        Code::Io,
        format!("cannot prepare \"{}\": {e}", path.as_bytes().escape_ascii()),
    );
    match e.raw_os_error() {
        Some(libc::ENOSPC | libc::EDQUOT) => {
            failure.hint("free some space, then run the command again: nothing has happened")
        }
        _ => failure.hint("txfs status"),
    }
}

/// A view's failure as one of the command.
pub fn op_failed(what: &str, e: rustix::io::Errno) -> Failure {
    Failure::new(Code::Io, format!("cannot {what}: {e}")).hint("txfs doctor")
}

pub(super) fn ident_of(st: &State, obj: ObjId) -> Option<Ident> {
    match &st.delta.objects.get(&obj)?.origin {
        Origin::Base(bind) => Some(bind.print.ident),
        Origin::New(_) => None,
    }
}

/// What a base object was when the transaction first touched it.
fn seen_of(st: &State, obj: ObjId) -> Option<Seen> {
    match &st.delta.objects.get(&obj)?.origin {
        Origin::Base(bind) => Some(Seen { size: bind.print.size, mtime: bind.print.mtime }),
        Origin::New(_) => None,
    }
}

/// What is known of a transaction when it is planned.
#[derive(Clone, Copy)]
pub struct Known<'a> {
    /// The view.
    pub view: &'a View,
    /// Its state.
    pub st: &'a State,
    /// What its base objects are, as validation found them.
    pub found: &'a HashMap<ObjId, Stat>,
    /// What of them the transaction changed.
    pub differs: &'a HashMap<ObjId, Differs>,
}

/// Builds the steps of a commit and makes everything ready in the staging directory that they place.
///
/// # Errors
/// If something cannot be made or copied; nothing has happened to the base then.
pub fn prepare(known: Known<'_>, allow_open_writers: bool) -> Result<Prepared, Failure> {
    let Known { view, st, differs, .. } = known;
    let mut names = net::names(&st.delta);
    net::other_names(view, st, &mut names, false);
    let workshop = Workshop { view, st, allow_open_writers };
    let ready = workshop.all(&names, differs, |obj, names| known.is_in_place(obj, names))?;
    let mut planner = Planner {
        known,
        view,
        st,
        names: &names,
        workshop,
        ready,
        whole: removed_whole(st, &names),
        paths: Paths::new(view, st),
        out: Prepared::default(),
        evacuate: HashMap::new(),
        place: Vec::new(),
        link: Vec::new(),
        meta: BTreeMap::new(),
        taken: HashSet::new(),
        exchanged_in: BTreeSet::new(),
    };
    for (obj, names) in &names {
        planner.object(*obj, names)?;
    }
    planner.root()?;
    planner.directories()?;
    Ok(planner.finish())
}

impl Known<'_> {
    fn found(&self, obj: ObjId) -> Result<Stat, Failure> {
        match self.found.get(&obj) {
            Some(stat) => Ok(*stat),
            None => match self.view.nodes.locate(obj) {
                Ok(found) => Ok(found.stat),
                Err(e) => Err(op_failed("find a base object", e)),
            },
        }
    }

    /// Whether an object with new content has names that are not known, outside the workspace perhaps:
    /// then its own inode is written, so that its links stay one file.
    fn is_in_place(&self, obj: ObjId, names: &Names) -> bool {
        let known = names.lost.len() + names.kept.len();
        self.found
            .get(&obj)
            .is_some_and(|stat| stat.ident.kind == Kind::File && stat.nlink as usize > known)
    }
}

/// Directories that are removed with all they held: only the topmost moves.
#[derive(Default)]
struct Whole {
    topmost: HashSet<ObjId>,
    /// What is in them.
    inside: HashSet<ObjId>,
}

fn removed_whole(st: &State, names: &BTreeMap<ObjId, Names>) -> Whole {
    fn gone(
        st: &State,
        names: &BTreeMap<ObjId, Names>,
        obj: ObjId,
        inside: &mut Vec<ObjId>,
    ) -> bool {
        let Some(object) = st.delta.objects.get(&obj) else { return false };
        let is_gone = !object.is_new()
            && names
                .get(&obj)
                .is_some_and(|n| n.gained.is_empty() && n.kept.is_empty() && n.lost.len() == 1);
        if !is_gone {
            return false;
        }
        if object.kind() != Kind::Dir {
            return true;
        }
        for cell in st.delta.dirs.get(&obj).into_iter().flat_map(|c| c.values()) {
            let Some(below) = cell.below else { continue };
            inside.push(below);
            if cell.now.is_some() || !gone(st, names, below, inside) {
                return false;
            }
        }
        true
    }
    let mut whole = Whole::default();
    for (obj, object) in &st.delta.objects {
        if object.kind() == Kind::Dir && !object.is_new() && !whole.inside.contains(obj) {
            let mut inside = Vec::new();
            if gone(st, names, *obj, &mut inside) {
                whole.topmost.insert(*obj);
                whole.inside.extend(inside);
            }
        }
    }
    whole
}

struct Planner<'a> {
    known: Known<'a>,
    view: &'a View,
    st: &'a State,
    names: &'a BTreeMap<ObjId, Names>,
    workshop: Workshop<'a>,
    ready: HashMap<ObjId, Ready>,
    whole: Whole,
    paths: Paths<'a>,
    out: Prepared,
    /// By the directory and the name that is evacuated.
    evacuate: HashMap<(ObjId, Name), Step>,
    place: Vec<Step>,
    link: Vec<Step>,
    meta: BTreeMap<RelPath, Step>,
    /// Base names that an exchange displaces, which need no evacuation.
    taken: HashSet<(ObjId, Name)>,
    /// Directories in which a name gets another inode, which moves their time though the view's stands.
    exchanged_in: BTreeSet<ObjId>,
}

impl Planner<'_> {
    fn object(&mut self, obj: ObjId, names: &Names) -> Result<(), Failure> {
        let Some(object) = self.st.delta.objects.get(&obj) else { return Ok(()) };
        if self.whole.inside.contains(&obj) {
            return Ok(());
        }
        if names.gained.is_empty() && names.kept.is_empty() {
            return self.leave(obj, names);
        }
        if object.is_new() {
            return self.arrive(obj, names);
        }
        if self.ready.contains_key(&obj) {
            return self.replace(obj, object, names);
        }
        let stat = self.known.found(obj)?;
        let differs = self.known.differs.get(&obj).copied().unwrap_or_default();
        match object.content.filter(|_| differs.content) {
            Some(slot) => self.rewrite(obj, object, names, slot, &stat),
            None => self.keep_inode(obj, object, names, &stat, differs.meta()),
        }
    }

    /// The object loses its names.
    fn leave(&mut self, obj: ObjId, names: &Names) -> Result<(), Failure> {
        let (Some(ident), Some(mut was)) = (ident_of(self.st, obj), seen_of(self.st, obj)) else {
            return Ok(());
        };
        let holds = match ident.kind {
            Kind::Dir if self.whole.topmost.contains(&obj) => {
                // Nothing leaves it, so this is also the time that it comes back with.
                was.mtime = self.known.found(obj)?.mtime;
                Holds::Same
            }
            Kind::Dir => Holds::Nothing,
            Kind::File | Kind::Symlink | Kind::Fifo | Kind::Socket | Kind::Char | Kind::Block => {
                Holds::Anything
            }
        };
        for (dir, name) in &names.lost {
            self.push_evacuation(*dir, name, (ident, was, holds))?;
        }
        Ok(())
    }

    fn push_evacuation(
        &mut self,
        dir: ObjId,
        name: &Name,
        (ident, was, holds): (Ident, Seen, Holds),
    ) -> Result<Option<SlotId>, Failure> {
        if self.taken.contains(&(dir, name.clone())) {
            return Ok(None);
        }
        let from = self.old_place(dir, name)?;
        let slot = self.st.staging.next_slot();
        let step =
            Step::Evacuate { from, slot, ident, mtime: was.mtime, size: Some(was.size), holds };
        self.evacuate.insert((dir, name.clone()), step);
        self.count_displaced(dir, name);
        Ok(Some(slot))
    }

    fn count_displaced(&mut self, dir: ObjId, name: &Name) {
        let below = self.st.delta.dirs.get(&dir).and_then(|cells| cells.get(name)?.below);
        if let Some(stat) = below.and_then(|obj| self.known.found.get(&obj)) {
            self.out.history_bytes += stat.blocks * 512;
        }
    }

    fn old_place(&mut self, dir: ObjId, name: &Name) -> Result<Place, Failure> {
        let path = self.paths.old(dir).ok_or_else(|| lost_way(dir))?.join(name);
        Ok(Place { path, parent_ino: self.ino(dir) })
    }

    fn new_place(&mut self, dir: ObjId, name: &Name) -> Result<Place, Failure> {
        let path = self.paths.now(dir).ok_or_else(|| lost_way(dir))?.join(name);
        Ok(Place { path, parent_ino: self.ino(dir) })
    }

    fn ino(&self, dir: ObjId) -> u64 {
        match self.out.landed.get(&dir) {
            Some(landed) => landed.ident.ino,
            None => self.view.nodes.get(dir).map_or(0, |n| n.ident.ino),
        }
    }

    /// A new object gets its first names.
    fn arrive(&mut self, obj: ObjId, names: &Names) -> Result<(), Failure> {
        let (at, path) = self.home(obj, names)?;
        let Ready { slot, ident, meta, .. } = self.land(obj, at, &path)?;
        self.put(&names.gained, slot, ident)?;
        if ident.kind == Kind::Dir {
            let at = Place { path: path.clone(), parent_ino: 0 };
            let before = meta.clone();
            self.meta.insert(path, Step::SetMeta { at, ident, before, after: meta });
        }
        Ok(())
    }

    /// Takes the inode that was made ready for an object.
    fn land(&mut self, obj: ObjId, at: (ObjId, Name), path: &RelPath) -> Result<Ready, Failure> {
        let ready = self.ready.remove(&obj).ok_or_else(|| lost_way(obj))?;
        if ready.written {
            self.out.copied.push(path.clone());
        }
        self.out.landed.insert(obj, Landed { ident: ready.ident, copied: ready.copied, at });
        Ok(ready)
    }

    /// A name that an object has in the end, and its path.
    fn home(&mut self, obj: ObjId, names: &Names) -> Result<((ObjId, Name), RelPath), Failure> {
        let at = names.kept.first().or(names.gained.first()).ok_or_else(|| lost_way(obj))?;
        let path = self.paths.now(at.0).ok_or_else(|| lost_way(obj))?.join(&at.1);
        Ok((at.clone(), path))
    }

    /// A base file got new content, and all its names are known: the new inode goes under all of them.
    fn replace(&mut self, obj: ObjId, object: &Object, names: &Names) -> Result<(), Failure> {
        let (at, path) = self.home(obj, names)?;
        let Ready { slot, ident, .. } = self.land(obj, at, &path)?;
        let blocks = self.known.found(obj)?.blocks;
        let Origin::Base(bind) = &object.origin else { return Err(lost_way(obj)) };
        let old = bind.print.ident;
        let was = Seen { size: bind.print.size, mtime: bind.print.mtime };
        for (dir, name) in &names.lost {
            self.push_evacuation(*dir, name, (old, was, Holds::Anything))?;
        }
        let mut slot = Some(slot);
        for (dir, name) in &names.kept {
            // Each name takes a link of the new inode.
            let held = match slot.take() {
                Some(slot) => slot,
                None => self.another_link(&path, ident)?,
            };
            let at = self.new_place(*dir, name)?;
            self.exchanged_in.insert(*dir);
            self.place.push(Step::Exchange { slot: held, at, new: ident, old, was: Some(was) });
            self.out.history_bytes += blocks * 512;
        }
        match slot {
            Some(slot) => self.put(&names.gained, slot, ident),
            None => {
                let (dir, name) = &names.kept[0];
                let existing = self.new_place(*dir, name)?;
                self.link_names(&existing, &names.gained, ident)
            }
        }
    }

    fn another_link(&self, path: &RelPath, ident: Ident) -> Result<SlotId, Failure> {
        let staging = &self.st.staging;
        let to = staging.next_slot();
        let fail = |e: io::Error| io_at(path, &e);
        for (name, ino, _) in base::list(staging.dir()).map_err(fail)? {
            if ino == ident.ino {
                rustix::fs::linkat(
                    staging.dir(),
                    name,
                    staging.dir(),
                    to.to_string(),
                    AtFlags::empty(),
                )
                .map_err(|e| fail(e.into()))?;
                return Ok(to);
            }
        }
        Err(fail(io::ErrorKind::NotFound.into()))
    }

    /// A base file got new content and has names that are not known, outside the workspace perhaps: its
    /// own inode is rewritten, from a staged file, after a complete copy of what it held.
    fn rewrite(
        &mut self,
        obj: ObjId,
        object: &Object,
        names: &Names,
        content: SlotId,
        stat: &Stat,
    ) -> Result<(), Failure> {
        let (home, path) = self.home(obj, names)?;
        let fail = |e: io::Error| io_at(&path, &e);
        let file =
            self.view.base_file(self.st, obj).map_err(|e| op_failed("open a base file", e))?;
        let staging = &self.st.staging;
        let (preimage, copy) = staging.create().map_err(fail)?;
        copy_content(&file, &copy).map_err(fail)?;
        let staged = staging.file(content, false).map_err(fail)?;
        let (held, to) = staging.create().map_err(fail)?;
        copy_content(&staged, &to).map_err(fail)?;
        self.out.history_bytes += stat.blocks * 512;
        let ident = stat.ident;
        self.move_itself(obj, names, ident)?;
        let (dir, name) =
            names.kept.first().or(names.gained.first()).ok_or_else(|| lost_way(obj))?;
        let at = self.new_place(*dir, name)?;
        let before = self.meta_now(obj, stat, true).map_err(fail)?;
        let after = self.workshop.wanted_meta(obj).map_err(fail)?;
        let was = seen_of(self.st, obj);
        self.place.push(Step::Rewrite { at: at.clone(), ident, content: held, preimage, was });
        self.meta.insert(at.path.clone(), Step::SetMeta { at, ident, before, after });
        let copied = self.view.handles.open_file(obj).is_some_and(|f| f.is_passthrough())
            || object.content.is_some_and(|s| s != content);
        self.out.landed.insert(obj, Landed { ident, copied, at: home });
        Ok(())
    }

    fn meta_now(&self, obj: ObjId, stat: &Stat, xattrs: bool) -> io::Result<Meta> {
        let xattrs = if xattrs { Some(self.view.base_xattrs(self.st, obj)?) } else { None };
        Ok(Meta {
            mode: stat.mode,
            uid: stat.uid,
            gid: stat.gid,
            atime: Some(stat.atime),
            mtime: stat.mtime,
            xattrs,
        })
    }

    /// A base object keeps its inode: it moves, gains or loses names, changes metadata.
    fn keep_inode(
        &mut self,
        obj: ObjId,
        object: &Object,
        names: &Names,
        stat: &Stat,
        meta: bool,
    ) -> Result<(), Failure> {
        self.move_itself(obj, names, stat.ident)?;
        // The name that the view knows it by may be the one that it loses.
        if !names.gained.is_empty() || !names.lost.is_empty() {
            let (at, _) = self.home(obj, names)?;
            self.out.landed.insert(obj, Landed { ident: stat.ident, copied: false, at });
        }
        if meta {
            let (dir, name) =
                names.kept.first().or(names.gained.first()).ok_or_else(|| lost_way(obj))?;
            let at = self.new_place(*dir, name)?;
            let with_xattrs = !object.xattrs.is_empty();
            let fail = |e: io::Error| io_at(&at.path, &e);
            let before = self.meta_now(obj, stat, with_xattrs).map_err(fail)?;
            let mut after = self.workshop.wanted_meta(obj).map_err(fail)?;
            if !with_xattrs {
                after.xattrs = None;
            }
            self.meta
                .insert(at.path.clone(), Step::SetMeta { at, ident: stat.ident, before, after });
        }
        Ok(())
    }

    /// An inode of the base keeps at least one name. Names that it loses besides the one it moves from are
    /// unlinked: in a slot they would still count.
    fn move_itself(&mut self, obj: ObjId, names: &Names, ident: Ident) -> Result<(), Failure> {
        let (existing, lost, gained) =
            match (names.kept.first(), &names.gained[..], &names.lost[..]) {
                (Some((dir, name)), gained, lost) => (self.new_place(*dir, name)?, lost, gained),
                (None, [(dir, name), gained @ ..], [(from_dir, from_name), lost @ ..]) => {
                    let to = self.new_place(*dir, name)?;
                    let was = seen_of(self.st, obj).ok_or_else(|| lost_way(obj))?;
                    let leaving = (ident, was, Holds::Anything);
                    if let Some(slot) = self.push_evacuation(*from_dir, from_name, leaving)? {
                        self.place.push(Step::Place { slot, to: to.clone(), ident });
                    }
                    (to, lost, gained)
                }
                (None, [], []) => return Ok(()),
                (None, ..) => return Err(lost_way(obj)),
            };
        for (dir, name) in lost {
            let from = self.old_place(*dir, name)?;
            let step = Step::Unlink { from, existing: existing.clone(), ident };
            self.evacuate.insert((*dir, name.clone()), step);
        }
        self.link_names(&existing, gained, ident)
    }

    /// Brings the inode that a slot holds under its new names.
    fn put(&mut self, gained: &[(ObjId, Name)], slot: SlotId, ident: Ident) -> Result<(), Failure> {
        let Some(((dir, name), rest)) = gained.split_first() else { return Ok(()) };
        let to = self.new_place(*dir, name)?;
        let replaced = self.st.delta.dirs.get(dir).and_then(|c| c.get(name)).and_then(|c| c.below);
        // Only what stays nowhere else may be displaced by an exchange: a slot holds one thing.
        let replaced = replaced.filter(|b| self.only_leaves(*b));
        match replaced.and_then(|b| Some((ident_of(self.st, b)?, seen_of(self.st, b)))) {
            Some((old, was)) => {
                self.taken.insert((*dir, name.clone()));
                self.count_displaced(*dir, name);
                self.evacuate.remove(&(*dir, name.clone()));
                self.place.push(Step::Exchange { slot, at: to.clone(), new: ident, old, was });
            }
            None => self.place.push(Step::Place { slot, to: to.clone(), ident }),
        }
        self.link_names(&to, rest, ident)
    }

    /// Whether an object is no directory and keeps no name.
    fn only_leaves(&self, obj: ObjId) -> bool {
        let stays = self.names.get(&obj).is_none_or(|n| !n.gained.is_empty() || !n.kept.is_empty());
        let is_dir = self.st.delta.objects.get(&obj).is_none_or(|o| o.kind() == Kind::Dir);
        !stays && !is_dir
    }

    fn link_names(
        &mut self,
        existing: &Place,
        rest: &[(ObjId, Name)],
        ident: Ident,
    ) -> Result<(), Failure> {
        for (dir, name) in rest {
            let to = self.new_place(*dir, name)?;
            self.link.push(Step::Link { existing: existing.clone(), to, ident });
        }
        Ok(())
    }

    fn root(&mut self) -> Result<(), Failure> {
        let Some(object) = self.st.delta.objects.get(&ObjId::ROOT) else { return Ok(()) };
        let differs = self.known.differs.get(&ObjId::ROOT).copied().unwrap_or_default();
        let entries = self.st.delta.dirs.contains_key(&ObjId::ROOT)
            || self.exchanged_in.contains(&ObjId::ROOT);
        if !differs.any() && !entries {
            return Ok(());
        }
        self.set_dir_meta(ObjId::ROOT, RelPath::root(), !object.xattrs.is_empty())
    }

    /// Directories of the base whose entries changed get the time that the view shows.
    fn directories(&mut self) -> Result<(), Failure> {
        let mut touched: BTreeSet<ObjId> = self.st.delta.dirs.keys().copied().collect();
        touched.extend(&self.exchanged_in);
        for dir in touched {
            let is_base = self.st.delta.objects.get(&dir).is_none_or(|o| !o.is_new());
            if dir == ObjId::ROOT || !is_base {
                continue;
            }
            let Some(path) = self.paths.now(dir) else { continue };
            if !self.meta.contains_key(&path) {
                self.set_dir_meta(dir, path, false)?;
            }
        }
        Ok(())
    }

    fn set_dir_meta(&mut self, dir: ObjId, path: RelPath, xattrs: bool) -> Result<(), Failure> {
        let stat = self.known.found(dir)?;
        let fail = |e: io::Error| io_at(&path, &e);
        let before = self.meta_now(dir, &stat, xattrs).map_err(fail)?;
        let mut after = self.workshop.wanted_meta(dir).map_err(fail)?;
        if !xattrs {
            after.xattrs = None;
        }
        let at = Place { path: path.clone(), parent_ino: 0 };
        self.meta.insert(path, Step::SetMeta { at, ident: stat.ident, before, after });
        Ok(())
    }

    fn finish(mut self) -> Prepared {
        let mut steps: Vec<Step> = self.evacuate.into_values().collect();
        order(&mut steps, &mut self.place, &mut self.link);
        steps.append(&mut self.place);
        steps.append(&mut self.link);
        steps.extend(self.meta.into_values().rev());
        self.out.steps = steps;
        self.out
    }
}

/// Brings the phases into the order in which every parent is there when it is needed.
pub fn order(evacuate: &mut [Step], place: &mut [Step], link: &mut [Step]) {
    let path = super::apply::step_path;
    evacuate.sort_by_cached_key(|s| std::cmp::Reverse(path(s)));
    place.sort_by_cached_key(path);
    link.sort_by_cached_key(path);
}

pub(super) fn lost_way(obj: ObjId) -> Failure {
    Failure::new(Code::Internal, format!("object {obj} has no path")).hint("txfs doctor")
}
