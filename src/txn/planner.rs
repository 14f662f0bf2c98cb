//! From net changes to a plan: validation, staging made ready, steps.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::io;
use std::os::fd::AsFd;

use rustix::fs::{AtFlags, FileType, Mode};
use txfs_journal::{
    Fingerprint, Holds, Ident, Kind, Meta, Name, NewNode, ObjId, Place, RelPath, Seen, SlotId, Step,
};

use super::net::{self, Names, Paths};
use super::writers;
use crate::base::mutate::put_meta;
use crate::base::{self, Stat, open_child, stat_at};
use crate::proto::{Code, Conflict, Failure};
use crate::sys;
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

fn io_at(path: &RelPath, e: &io::Error) -> Failure {
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

/// Compares the base with what the transaction knows of it. Answers every place that differs.
/// `restamped` has what a commit that was taken back moved to and fro, by inode.
///
/// # Errors
/// If the base cannot be read.
pub fn validate(
    view: &View,
    st: &State,
    restamped: &HashMap<u64, Fingerprint>,
) -> Result<Vec<Conflict>, Failure> {
    let mut found = Vec::new();
    let mut paths = Paths::new(view, st);
    let conflict =
        |path: &RelPath, reason: String| Conflict { path: path.into(), reason, generation: None };
    for (obj, object) in &st.delta.objects {
        let Origin::Base(bind) = &object.origin else { continue };
        if *obj == ObjId::ROOT {
            continue;
        }
        let Some(path) = view.base_path(st, *obj) else { continue };
        match view.nodes.locate(*obj) {
            Err(rustix::io::Errno::STALE) => {
                found.push(conflict(
                    &path,
                    "it was removed or replaced outside the transaction".into(),
                ));
            }
            Err(e) => return Err(op_failed("look at the base", e)),
            Ok(now) => {
                // Its mode and owner are not this transaction's matter, and stay as they are.
                let ancestor_only = object.is_way();
                let print = with_our_stamp(&bind.print, restamped);
                if let Some(reason) = drifted(&print, &now.stat).filter(|_| !ancestor_only) {
                    found.push(conflict(&path, reason));
                } else if is_displaced(object, &now.stat)
                    && let Some(reason) = being_written(view, st, *obj)?
                {
                    found.push(conflict(&path, reason));
                }
                if now.stat.immutable {
                    found.push(conflict(&path, "it is immutable or append-only (lsattr)".into()));
                }
            }
        }
    }
    for (dir, cells) in &st.delta.dirs {
        let Some(dir_path) = paths.old(*dir) else { continue };
        let Ok(fd) = view.nodes.dir(*dir) else { continue };
        for (name, cell) in cells {
            let path = dir_path.join(name);
            let there = match stat_at(fd.as_fd(), name.as_bytes()) {
                Ok(stat) => Some(stat),
                Err(e) if e.kind() == io::ErrorKind::NotFound => None,
                Err(e) => return Err(io_at(&path, &e)),
            };
            let expected = cell.below.and_then(|b| ident_of(st, b));
            match (expected, there) {
                (None, Some(_)) => {
                    found.push(conflict(&path, "it was created outside the transaction".into()));
                }
                (Some(ident), Some(stat)) if stat.ident != ident => {
                    found.push(conflict(&path, "it was replaced outside the transaction".into()));
                }
                (Some(_), None) => {
                    found.push(conflict(
                        &path,
                        "it was removed or renamed outside the transaction".into(),
                    ));
                }
                (Some(_), Some(stat)) if stat.mount_root || stat.dev != view.nodes.base().dev() => {
                    found.push(conflict(&path, "something is mounted on it".into()));
                }
                (Some(_), Some(_)) | (None, None) => {}
            }
        }
    }
    for (obj, object) in &st.delta.objects {
        if !object.is_new()
            && object.links < 0
            && object.kind() == Kind::Dir
            && let Some(path) = view.base_path(st, *obj)
        {
            found.extend(strangers(view, st, *obj, &path)?);
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found.dedup_by(|a, b| a.path == b.path);
    Ok(found)
}

/// Entries of a directory that is to be removed, which the transaction did not remove.
fn strangers(
    view: &View,
    st: &State,
    dir: ObjId,
    path: &RelPath,
) -> Result<Vec<Conflict>, Failure> {
    let fd = view.nodes.dir(dir).map_err(|e| op_failed("open a directory", e))?;
    let cells = st.delta.dirs.get(&dir);
    let mut found = Vec::new();
    for (bytes, ..) in base::list(fd.as_fd()).map_err(|e| io_at(path, &e))? {
        let name = Name::new(&bytes).map_err(|e| io_at(path, &io::Error::other(e)))?;
        if !cells.is_some_and(|c| c.contains_key(&name)) {
            found.push(Conflict {
                path: (&path.join(&name)).into(),
                reason: "it was created outside in a directory that the transaction removes".into(),
                generation: None,
            });
        }
    }
    Ok(found)
}

fn ident_of(st: &State, obj: ObjId) -> Option<Ident> {
    match &st.delta.objects.get(&obj)?.origin {
        Origin::Base(bind) => Some(bind.print.ident),
        Origin::New(_) => None,
    }
}

/// A fingerprint with the time of status that our own taking back of a commit gave the object.
#[must_use]
pub fn with_our_stamp(print: &Fingerprint, restamped: &HashMap<u64, Fingerprint>) -> Fingerprint {
    let mut print = print.clone();
    if let Some(ours) = restamped.get(&print.ident.ino).filter(|p| p.ident == print.ident) {
        print.ctime = print.ctime.max(ours.ctime);
    }
    print
}

/// Whether a file's inode leaves the base: it was given content, or lost its last name.
fn is_displaced(object: &Object, now: &Stat) -> bool {
    object.kind() == Kind::File
        && (object.content.is_some() || i64::from(now.nlink) + object.links <= 0)
}

/// Whether somebody has a file open for writing, whose further writes would go into history. Where the
/// system does not answer (a file of another user, a file system without leases) nothing is said.
fn being_written(view: &View, st: &State, obj: ObjId) -> Result<Option<String>, Failure> {
    let Ok(file) = view.base_file(st, obj) else { return Ok(None) };
    let asked = sys::has_writer(file.as_fd()).map_err(|e| io_at(&RelPath::root(), &e))?;
    Ok((asked == Some(true)).then(|| {
        let pids = writers::of(file.as_fd());
        let by = match &pids[..] {
            [] => String::new(),
            [pid] => format!(" by process {pid}"),
            pids => {
                let pids: Vec<_> = pids.iter().map(ToString::to_string).collect();
                format!(" by processes {}", pids.join(", "))
            }
        };
        format!("it is open for writing outside{by}")
    }))
}

/// What a base object was when the transaction first touched it.
fn seen_of(st: &State, obj: ObjId) -> Option<Seen> {
    match &st.delta.objects.get(&obj)?.origin {
        Origin::Base(bind) => Some(Seen { size: bind.print.size, mtime: bind.print.mtime }),
        Origin::New(_) => None,
    }
}

/// Why an object is no longer as it was, if it is not.
#[must_use]
pub fn drifted(then: &Fingerprint, now: &Stat) -> Option<String> {
    let mut what = Vec::new();
    if (then.mode, then.uid, then.gid) != (now.mode, now.uid, now.gid) {
        what.push("mode or owner");
    }
    if then.ident.kind != Kind::Dir {
        if then.size != now.size || then.mtime != now.mtime {
            what.push("content");
        } else if then.nlink != now.nlink {
            what.push("hard links");
        } else if then.ctime != now.ctime && what.is_empty() {
            what.push("status");
        }
    }
    if what.is_empty() {
        None
    } else {
        Some(format!("its {} changed outside the transaction", what.join(" and ")))
    }
}

/// Builds the steps of a commit and makes everything ready in the staging directory that they place.
///
/// # Errors
/// If something cannot be made or copied; nothing has happened to the base then.
pub fn prepare(view: &View, st: &State, allow_open_writers: bool) -> Result<Prepared, Failure> {
    let mut names = net::names(&st.delta);
    net::other_names(view, st, &mut names, false);
    let mut planner = Planner {
        view,
        st,
        names: &names,
        whole: removed_whole(st, &names),
        paths: Paths::new(view, st),
        out: Prepared::default(),
        evacuate: HashMap::new(),
        place: Vec::new(),
        link: Vec::new(),
        meta: BTreeMap::new(),
        taken: HashSet::new(),
        exchanged_in: BTreeSet::new(),
        allow_open_writers,
    };
    for (obj, names) in &names {
        planner.object(*obj, names)?;
    }
    planner.root()?;
    planner.directories()?;
    Ok(planner.finish())
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
    view: &'a View,
    st: &'a State,
    names: &'a BTreeMap<ObjId, Names>,
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
    allow_open_writers: bool,
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
            return self.arrive(obj, object, names);
        }
        let differs = net::differs(self.view, self.st, obj, object)
            .map_err(|e| op_failed("look at a staged file", e))?;
        let stat = self.view.nodes.locate(obj).map_err(|e| op_failed("find a base file", e))?.stat;
        let known = names.lost.len() + names.kept.len();
        match object.content.filter(|_| differs.content) {
            Some(slot) if object.kind() == Kind::File && stat.nlink as usize > known => {
                self.rewrite(obj, object, names, slot, &stat)
            }
            Some(slot) => self.replace(obj, object, names, slot, &stat),
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
                let now =
                    self.view.nodes.locate(obj).map_err(|e| op_failed("find a directory", e))?;
                was.mtime = now.stat.mtime;
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
        if let Ok(fd) = self.view.nodes.dir(dir)
            && let Ok(stat) = stat_at(fd.as_fd(), name.as_bytes())
        {
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
    fn arrive(&mut self, obj: ObjId, object: &Object, names: &Names) -> Result<(), Failure> {
        let (at, path) = self.home(obj, names)?;
        let meta = self.wanted_meta(obj).map_err(|e| io_at(&path, &e))?;
        let (slot, copied) = self.make_ready(obj, object, &path)?;
        let ident = self.finish_slot(slot, &meta).map_err(|e| io_at(&path, &e))?;
        self.out.landed.insert(obj, Landed { ident, copied, at });
        self.put(&names.gained, slot, ident)?;
        if ident.kind == Kind::Dir {
            let at = Place { path: path.clone(), parent_ino: 0 };
            let before = meta.clone();
            self.meta.insert(path, Step::SetMeta { at, ident, before, after: meta });
        }
        Ok(())
    }

    /// The inode that a new object will have, in a slot. A file that somebody may be writing lands as a
    /// copy: what a foreign writer holds must never be in the base.
    fn make_ready(
        &mut self,
        obj: ObjId,
        object: &Object,
        path: &RelPath,
    ) -> Result<(SlotId, bool), Failure> {
        let staging = &self.st.staging;
        let made = |r: rustix::io::Result<()>| r.map_err(|e| io_at(path, &e.into()));
        let special = |kind, rdev| {
            let slot = staging.next_slot();
            made(rustix::fs::mknodat(
                staging.dir(),
                slot.to_string(),
                kind,
                Mode::RUSR | Mode::WUSR,
                rdev,
            ))?;
            Ok((slot, false))
        };
        match &object.origin {
            Origin::New(None) => {
                let slot = staging.next_slot();
                made(rustix::fs::mkdirat(staging.dir(), slot.to_string(), Mode::RWXU))?;
                Ok((slot, false))
            }
            Origin::New(Some(node)) => match node {
                NewNode::File { slot } => {
                    self.landing_file(obj, object.content.unwrap_or(*slot), path)
                }
                NewNode::Symlink { target } => {
                    let slot = staging.next_slot();
                    let target = std::ffi::CString::new(target.clone())
                        .map_err(|e| io_at(path, &io::Error::other(e)))?;
                    made(rustix::fs::symlinkat(target, staging.dir(), slot.to_string()))?;
                    Ok((slot, false))
                }
                NewNode::Fifo => special(FileType::Fifo, 0),
                NewNode::Socket => special(FileType::Socket, 0),
                NewNode::Char { rdev } => special(FileType::CharacterDevice, *rdev),
                NewNode::Block { rdev } => special(FileType::BlockDevice, *rdev),
            },
            Origin::Base(_) => Err(lost_way(obj)),
        }
    }

    /// The slot whose inode lands for a staged file: its own, or that of a copy.
    fn landing_file(
        &mut self,
        obj: ObjId,
        slot: SlotId,
        path: &RelPath,
    ) -> Result<(SlotId, bool), Failure> {
        let staging = &self.st.staging;
        let fail = |e: io::Error| io_at(path, &e);
        let held = self.view.handles.open_file(obj).is_some_and(|f| f.is_passthrough());
        let file = staging.file(slot, false).map_err(fail)?;
        let written = held || sys::may_have_writer(file.as_fd()).map_err(fail)?;
        // A second slot, of a mark that was set while it was open, would count as a link.
        if !written && base::stat_fd(file.as_fd()).map_err(fail)?.nlink == 1 {
            return Ok((slot, false));
        }
        for _ in 0..3 {
            file.sync_all().map_err(fail)?;
            let before = base::stat_fd(file.as_fd()).map_err(fail)?;
            let (copy, to) = staging.create().map_err(fail)?;
            copy_content(&file, &to).map_err(fail)?;
            let after = base::stat_fd(file.as_fd()).map_err(fail)?;
            let still =
                (before.size, before.mtime, before.ctime) == (after.size, after.mtime, after.ctime);
            if still || self.allow_open_writers {
                if written {
                    self.out.copied.push(path.clone());
                }
                return Ok((copy, true));
            }
            staging.remove(copy).map_err(fail)?;
        }
        Err(Failure::new(
            Code::Busy,
            format!(
                "\"{}\" is being written and did not hold still",
                path.as_bytes().escape_ascii()
            ),
        )
        .hint("txfs commit --wait 10, or --allow-open-writers to take it as it is"))
    }

    /// A name that an object has in the end, and its path.
    fn home(&mut self, obj: ObjId, names: &Names) -> Result<((ObjId, Name), RelPath), Failure> {
        let at = names.kept.first().or(names.gained.first()).ok_or_else(|| lost_way(obj))?;
        let path = self.paths.now(at.0).ok_or_else(|| lost_way(obj))?.join(&at.1);
        Ok((at.clone(), path))
    }

    /// Metadata that an object shall have in the base.
    fn wanted_meta(&self, obj: ObjId) -> io::Result<Meta> {
        let (attr, _) = self.view.attr(self.st, obj)?;
        let xattrs = self.view.xattrs(self.st, obj)?;
        Ok(Meta {
            mode: attr.mode,
            uid: attr.uid,
            gid: attr.gid,
            atime: Some(attr.atime),
            mtime: attr.mtime,
            xattrs: Some(xattrs),
        })
    }

    fn finish_slot(&self, slot: SlotId, meta: &Meta) -> io::Result<Ident> {
        let fd = open_child(self.st.staging.dir(), slot.to_string().as_bytes())?;
        let stat = base::stat_fd(fd.as_fd())?;
        put_meta(fd.as_fd(), &stat, meta)?;
        Ok(stat.ident)
    }

    /// A base file got new content, and all its names are known: the new inode goes under all of them.
    fn replace(
        &mut self,
        obj: ObjId,
        object: &Object,
        names: &Names,
        slot: SlotId,
        stat: &Stat,
    ) -> Result<(), Failure> {
        let (at, path) = self.home(obj, names)?;
        let meta = self.wanted_meta(obj).map_err(|e| io_at(&path, &e))?;
        let (slot, copied) = self.landing_file(obj, slot, &path)?;
        let ident = self.finish_slot(slot, &meta).map_err(|e| io_at(&path, &e))?;
        self.out.landed.insert(obj, Landed { ident, copied, at });
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
            self.out.history_bytes += stat.blocks * 512;
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
        let after = self.wanted_meta(obj).map_err(fail)?;
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
            let mut after = self.wanted_meta(obj).map_err(fail)?;
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
        let differs = net::differs(self.view, self.st, ObjId::ROOT, object)
            .map_err(|e| op_failed("look at the root", e))?;
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
        let stat = self.view.nodes.locate(dir).map_err(|e| op_failed("find a directory", e))?.stat;
        let fail = |e: io::Error| io_at(&path, &e);
        let before = self.meta_now(dir, &stat, xattrs).map_err(fail)?;
        let mut after = self.wanted_meta(dir).map_err(fail)?;
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

fn lost_way(obj: ObjId) -> Failure {
    Failure::new(Code::Internal, format!("object {obj} has no path")).hint("txfs doctor")
}
