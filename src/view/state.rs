//! The merged state: finding names, attributes, and recording effects.

use std::collections::{HashMap, HashSet};
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use rustix::io::Errno;
use txfs_journal::{
    Bind, Effect, EffectEntry, Entry as RecordEntry, Fingerprint, Generation, Ident, Inverse, Kind,
    Name, NewNode, ObjId, Record, SlotId, TimesBefore, Timestamp, TxnWriter, Xattrs,
};

use super::api::{Attr, Entry, Kernel, OpResult, Trust};
use super::delta::{Delta, Misfit, Object, Origin};
use super::files::{Handles, OpenFile};
use super::layer::{Before, Layer};
use super::nodes::{Nodes, errno};
use super::procs::{Processes, Recorded};
use super::staging::Staging;
use crate::base::{Base, Stat, xattr};
use crate::sys;

/// The name at the root of the workspace that no view shows.
pub const STORE_NAME: &[u8] = b".txfs";

/// The state of a view in which something is being changed.
pub(super) struct Changing<'a> {
    st: RwLockWriteGuard<'a, State>,
    _turn: Turn<'a>,
}

/// A turn at changing a view, which does not stand still before it is dropped.
pub struct Turn<'a>(
    #[allow(dead_code, reason = "held for its drop")] parking_lot::RwLockReadGuard<'a, ()>,
);

impl Deref for Changing<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        &self.st
    }
}

impl DerefMut for Changing<'_> {
    fn deref_mut(&mut self) -> &mut State {
        &mut self.st
    }
}

/// What a view needs to exist.
pub struct Parts {
    /// The real tree.
    pub base: Arc<Base>,
    /// The store's directory `history`.
    pub history: Arc<OwnedFd>,
    /// The transaction's staging directory.
    pub staging: Arc<Staging>,
    /// The transaction's list.
    pub writer: TxnWriter,
    /// What is in it already.
    pub records: Vec<Record>,
    /// The generation the view shows beneath its effects.
    pub generation: Generation,
    /// The layers of the generations after it, rising.
    pub layers: Vec<Arc<Layer>>,
}

/// One transaction's view. All operations may be called from any number of threads.
pub struct View {
    pub(crate) nodes: Nodes,
    pub(super) state: RwLock<State>,
    /// Held by every change for as long as it takes, and by whoever has the view stand still. A thread that
    /// has a turn may take further ones, which std's lock does not allow while somebody waits for it.
    pub(super) turns: parking_lot::RwLock<()>,
    pub(crate) handles: Handles,
    procs: Processes,
    pub(super) kernel: RwLock<Option<Arc<dyn Kernel>>>,
    pub(super) passthrough: AtomicBool,
    pub(super) poisoned: AtomicBool,
    /// The store is a subdirectory of the base's root that no view shows.
    hides_store: bool,
}

/// What changes with effects, commits and aborts.
pub struct State {
    /// The effects.
    pub delta: Delta,
    /// The transaction's list.
    pub writer: TxnWriter,
    /// Its staged files.
    pub staging: Arc<Staging>,
    /// The generation beneath.
    pub generation: Generation,
    /// The layers of the generations after it, rising.
    pub layers: Vec<Arc<Layer>>,
    /// Staged files that a commit is placing in the base, and what they are: their slots hold them no
    /// longer, or hold what they displace.
    pub landing: HashMap<SlotId, Ident>,
    /// Effects recorded and not taken back.
    pub effects: u64,
    /// Objects that a commit left without a name while they were open.
    pub orphans: HashSet<ObjId>,
    /// The processes that its list has.
    pub(super) procs: Recorded,
    /// Staged files below this slot are needed as they are by a savepoint or a step.
    pub fence: SlotId,
    /// Numbers by which the kernel knows objects that were open when they were taken back.
    pub(super) fresh: HashMap<ObjId, ObjId>,
    /// What such numbers stand for; the ones before stand for nothing.
    pub(super) stands: HashMap<ObjId, Option<ObjId>>,
}

/// A name that means something.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found {
    pub(crate) obj: ObjId,
    /// This transaction put it there.
    pub(crate) own: bool,
}

/// The time of an effect.
pub fn now() -> Timestamp {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    Timestamp { secs: t.tv_sec, nanos: u32::try_from(t.tv_nsec).unwrap_or(0) }
}

impl View {
    /// Builds the view of a transaction from its records.
    ///
    /// # Errors
    /// If the records do not fit each other, or the root cannot be opened.
    pub fn open(parts: Parts) -> std::io::Result<View> {
        let Parts { base, history, staging, writer, records, generation, layers } = parts;
        let root = base.root_stat().fingerprint(Vec::new());
        let mut delta = Delta::new(root);
        delta.replay(&records).map_err(|e: Misfit| std::io::Error::other(e))?;
        let hides_store = crate::base::stat_at(base.root(), STORE_NAME).is_ok();
        let nodes = Nodes::new(base, history)?;
        for record in &records {
            if let RecordEntry::Effect(entry) = &record.entry {
                reserve(&nodes, &staging, entry);
            }
        }
        let effects = super::delta::live_before(&records).len() as u64;
        // Who mapped a file may have outlived the daemon before this one.
        let handles = Handles::default();
        for (obj, object) in &delta.objects {
            if object.content.is_some() {
                handles.add_written_past(*obj);
            }
        }
        let state = State {
            delta,
            writer,
            staging,
            generation,
            layers,
            landing: HashMap::new(),
            effects,
            orphans: HashSet::new(),
            procs: Recorded::after(&records),
            fence: super::marks::fence_of(&records),
            fresh: HashMap::new(),
            stands: HashMap::new(),
        };
        Ok(View {
            nodes,
            state: RwLock::new(state),
            turns: parking_lot::RwLock::new(()),
            handles,
            procs: Processes::default(),
            kernel: RwLock::new(None),
            passthrough: AtomicBool::new(false),
            poisoned: AtomicBool::new(false),
            hides_store,
        })
    }

    /// The view is mounted: `kernel` takes what must be forgotten, `passthrough` says whether file
    /// data may bypass the daemon.
    pub fn attach(&self, kernel: Arc<dyn Kernel>, passthrough: bool) {
        *self.kernel.write().unwrap_or_else(PoisonError::into_inner) = Some(kernel);
        self.passthrough.store(passthrough, Ordering::Relaxed);
    }

    /// File data goes through the daemon from now on; what is open stays as it is.
    pub fn no_passthrough(&self) {
        self.passthrough.store(false, Ordering::Relaxed);
    }

    /// The view is no longer mounted: all handles are gone.
    pub fn detach(&self) {
        *self.kernel.write().unwrap_or_else(PoisonError::into_inner) = None;
        self.passthrough.store(false, Ordering::Relaxed);
        self.handles.clear();
    }

    /// The kernel's side, if the view is mounted.
    pub fn kernel(&self) -> Option<Arc<dyn Kernel>> {
        self.kernel.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Refuses every change from now on.
    pub fn poison(&self) {
        self.poisoned.store(true, Ordering::Relaxed);
    }

    pub(crate) fn read_state(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state for changing it, once nobody has the view stand still; `EROFS` once the workspace is
    /// poisoned.
    pub(super) fn write_state(&self) -> OpResult<Changing<'_>> {
        if self.poisoned.load(Ordering::Relaxed) {
            return Err(Errno::ROFS);
        }
        let turn = self.wait_for_turn();
        let st = self.state.write().unwrap_or_else(PoisonError::into_inner);
        Ok(Changing { st, _turn: turn })
    }

    /// A turn, if nobody has the view stand still or is about to: whoever holds it carries out changes and
    /// opens without waiting for one.
    pub fn turn(&self) -> Option<Turn<'_>> {
        self.turns.try_read().map(Turn)
    }

    /// A turn as soon as nobody has the view stand still, at once for a thread that has one.
    pub fn wait_for_turn(&self) -> Turn<'_> {
        Turn(self.turns.read_recursive())
    }

    /// statx(2) of a staged file, wherever the commit that is under way has brought it.
    fn staged_stat(&self, st: &State, slot: SlotId) -> OpResult<Stat> {
        match st.landing.get(&slot) {
            None => st.staging.stat(slot).map_err(|e| errno(&e)),
            Some(ident) => self.nodes.landing(&st.staging, slot, ident),
        }
    }

    /// What this thread does from now on it does for a thread of another process; 0 if nobody knows for whom.
    /// To be called without any lock.
    pub fn act_for(&self, thread: u32) {
        self.procs.act_for(thread);
    }

    /// The transaction's list.
    pub fn writer(&self) -> TxnWriter {
        self.read_state().writer.clone()
    }

    /// Effects recorded in this transaction.
    pub fn effects(&self) -> u64 {
        self.read_state().effects
    }

    /// Finds a name.
    pub(crate) fn find(&self, st: &State, parent: ObjId, name: &Name) -> OpResult<Found> {
        if parent == ObjId::ROOT && name.as_bytes() == STORE_NAME {
            return Err(Errno::NOENT);
        }
        match st.delta.name(parent, name) {
            Some(Some(obj)) => return Ok(Found { obj, own: true }),
            Some(None) => return Err(Errno::NOENT),
            None => {}
        }
        if st.delta.objects.get(&parent).is_some_and(Object::is_new) {
            return Err(Errno::NOENT);
        }
        let dir = self.nodes.get(parent).ok_or(Errno::STALE)?;
        if !dir.is_dir() {
            return Err(Errno::NOTDIR);
        }
        for layer in &st.layers {
            match layer.name(dir.ident.ino, name) {
                Some(Some((ident, slot))) => {
                    return self.met_in_layer(layer.generation, parent, name, ident, slot);
                }
                Some(None) => return Err(Errno::NOENT),
                None => {}
            }
        }
        let fd = self.nodes.dir(parent)?;
        let stat = crate::base::stat_at(fd.as_fd(), name.as_bytes()).map_err(|e| errno(&e))?;
        Ok(Found { obj: self.nodes.met(parent, name, &stat, None), own: false })
    }

    fn met_in_layer(
        &self,
        generation: Generation,
        parent: ObjId,
        name: &Name,
        ident: txfs_journal::Ident,
        slot: Option<SlotId>,
    ) -> OpResult<Found> {
        let dev = self.nodes.base().dev();
        if let Some(obj) = self.nodes.by_inode(dev, ident.ino)
            && self.nodes.get(obj).is_some_and(|n| n.ident == ident)
        {
            return Ok(Found { obj, own: false });
        }
        let obj = self.nodes.new_id();
        self.nodes.bind(obj, parent, name, ident, slot.map(|s| (generation, s)));
        // Only the real state tells the rest; it also proves that the object can be found.
        self.nodes.locate(obj)?;
        Ok(Found { obj, own: false })
    }

    /// The kind of an object.
    pub(crate) fn kind(&self, st: &State, obj: ObjId) -> OpResult<Kind> {
        if let Some(object) = st.delta.objects.get(&obj) {
            return Ok(object.kind());
        }
        Ok(self.nodes.get(obj).ok_or(Errno::STALE)?.ident.kind)
    }

    /// What the base's inode of an object says, as of the view's generation.
    pub(crate) fn base_stat(&self, st: &State, obj: ObjId) -> OpResult<Stat> {
        let mut stat = match self.nodes.locate(obj) {
            Ok(mut found) => {
                // Where subdirectories are counted at all.
                if obj == ObjId::ROOT && self.hides_store && found.stat.nlink > 2 {
                    found.stat.nlink -= 1;
                }
                found.stat
            }
            // It may be open though an outsider removed it.
            Err(Errno::STALE) => self.handles.stat(obj).ok_or(Errno::STALE)?,
            Err(e) => return Err(e),
        };
        let inode = (stat.dev, stat.ident.ino);
        if let Some((_, meta)) = self.before(st, inode, |b| b.meta.as_ref()) {
            stat.mode = meta.mode;
            stat.uid = meta.uid;
            stat.gid = meta.gid;
            stat.atime = meta.atime.unwrap_or(stat.atime);
        }
        let mtime = |b: &Before| b.meta.as_ref().map(|m| m.mtime).or(b.mtime);
        if let Some((_, mtime)) = self.before(st, inode, mtime) {
            stat.mtime = mtime;
        }
        if let Some((layer, slot)) = self.before(st, inode, |b| b.content) {
            let copy = self.nodes.slot_stat(layer.generation, slot)?;
            stat.size = copy.size;
            stat.blocks = copy.blocks;
        }
        if !st.layers.is_empty()
            && stat.dev == self.nodes.base().dev()
            && (stat.ident.kind != Kind::Dir || stat.nlink > 1)
        {
            let mut links = i64::from(stat.nlink);
            for before in st.layers.iter().rev().filter_map(|l| l.object(inode.1)) {
                links = before.all_links.map_or(links + before.links, i64::from);
            }
            stat.nlink = u32::try_from(links).unwrap_or(stat.nlink);
        }
        Ok(stat)
    }

    /// What the oldest later generation found that changed this of an object.
    pub(super) fn before<'a, T>(
        &self,
        st: &'a State,
        (dev, ino): (u64, u64),
        this: impl Fn(&'a Before) -> Option<T>,
    ) -> Option<(&'a Layer, T)> {
        if st.layers.is_empty() || dev != self.nodes.base().dev() {
            return None;
        }
        st.layers.iter().find_map(|layer| Some((&**layer, this(layer.object(ino)?)?)))
    }

    /// The attributes of an object, and who can change them.
    pub(crate) fn attr(&self, st: &State, obj: ObjId) -> OpResult<(Attr, Trust)> {
        let Some(object) = st.delta.objects.get(&obj) else {
            let stat = self.base_stat(st, obj)?;
            let links = if st.orphans.contains(&obj) { 0 } else { i64::from(stat.nlink) };
            return Ok((attr_of(st.kernel_id(obj), &stat, links), Trust::Base));
        };
        let (mut attr, mut trust) = match &object.origin {
            Origin::Base(_) => {
                let stat = self.base_stat(st, obj)?;
                (attr_of(obj, &stat, base_links(&stat, object)), Trust::Base)
            }
            Origin::New(node) => (new_attr(obj, node.as_ref(), object), Trust::Own),
        };
        if let Some(slot) = object.content {
            let staged = self.staged_stat(st, slot)?;
            attr.size = staged.size;
            attr.blocks = staged.blocks;
            attr.blksize = staged.blksize;
            attr.mtime = staged.mtime;
            attr.ctime = staged.ctime;
            attr.atime = staged.atime;
            // What is empty cannot be written through a mapping; the kernel knows of all else.
            let unseen = staged.size > 0 && self.handles.is_passthrough(obj);
            trust = if unseen { Trust::Writer } else { Trust::Own };
        }
        let over = &object.over;
        attr.mode = over.mode.unwrap_or(attr.mode);
        attr.uid = over.uid.unwrap_or(attr.uid);
        attr.gid = over.gid.unwrap_or(attr.gid);
        if object.content.is_none() {
            attr.mtime = over.mtime.unwrap_or(attr.mtime);
        }
        attr.atime = over.atime.unwrap_or(attr.atime);
        attr.ctime = over.ctime.map_or(attr.ctime, |t| t.max(attr.ctime));
        attr.obj = st.kernel_id(obj);
        Ok((attr, trust))
    }

    /// An entry reply for a found name; counts a lookup.
    pub(super) fn entry(&self, st: &State, found: Found) -> OpResult<Entry> {
        let (attr, attr_trust) = self.attr(st, found.obj)?;
        self.nodes.looked_up(attr.obj);
        let name_trust = if found.own { Trust::Own } else { Trust::Base };
        Ok(Entry { attr, attr_trust, name_trust })
    }

    /// Refuses to change what is on another device than the base.
    pub(super) fn check_writable(&self, st: &State, obj: ObjId) -> OpResult<()> {
        if st.delta.objects.contains_key(&obj) {
            return Ok(());
        }
        let node = self.nodes.get(obj).ok_or(Errno::STALE)?;
        if node.dev == self.nodes.base().dev() { Ok(()) } else { Err(Errno::ROFS) }
    }

    /// The binds that an effect on these objects needs: each base object that the delta does not
    /// know, after the directories on its way to the root.
    fn binds(&self, st: &State, objs: &[ObjId]) -> OpResult<Vec<Bind>> {
        let mut binds: Vec<Bind> = Vec::new();
        for &obj in objs {
            let mut way = Vec::new();
            let mut at = obj;
            while !st.delta.objects.contains_key(&at) && !binds.iter().any(|b| b.obj == at) {
                let print = self.fingerprint(st, at)?;
                let node = self.nodes.get(at).ok_or(Errno::STALE)?;
                way.push(Bind { obj: at, parent: node.parent, name: node.name.clone(), print });
                at = node.parent;
            }
            binds.extend(way.into_iter().rev());
        }
        Ok(binds)
    }

    fn fingerprint(&self, st: &State, obj: ObjId) -> OpResult<Fingerprint> {
        let found = self.nodes.locate(obj)?;
        if st.layers.is_empty()
            && let Some(path) = &found.moved_to
        {
            self.nodes.moved_to(obj, path)?;
        }
        let handle = match sys::file_handle(found.dir.as_fd(), &found.name) {
            Ok(handle) => handle,
            Err(e) if e.raw_os_error() == Some(libc::EOPNOTSUPP) => Vec::new(),
            Err(e) => return Err(errno(&e)),
        };
        let mut print = found.stat.fingerprint(handle);
        // In a view of an older generation the fingerprint is that of the older generation.
        if !st.layers.is_empty() {
            let stat = self.base_stat(st, obj)?;
            print.mode = stat.mode;
            print.uid = stat.uid;
            print.gid = stat.gid;
            print.mtime = stat.mtime;
            print.size = stat.size;
        }
        Ok(print)
    }

    /// Records an effect and performs it. `objs` are the objects that it names, `times` those whose
    /// times it changes besides.
    pub(super) fn record(
        &self,
        st: &mut State,
        effect: Effect,
        inverse: Inverse,
        objs: &[ObjId],
        times: &[ObjId],
    ) -> OpResult<()> {
        let binds = self.binds(st, objs)?;
        let mut before: Vec<TimesBefore> = Vec::with_capacity(times.len());
        for &obj in times {
            if before.iter().any(|b| b.obj == obj) {
                continue;
            }
            let over = st.delta.objects.get(&obj).map(|o| o.over).unwrap_or_default();
            before.push(TimesBefore { obj, mtime: over.mtime, ctime: over.ctime });
        }
        let State { procs, writer, .. } = &mut *st;
        let proc = procs.acting(writer).map_err(|e| self.journal_failed(&e))?;
        let entry = EffectEntry { effect, inverse, times: before, binds, proc };
        let time = now();
        let seq = st.writer.append_effect(time, &entry).map_err(|e| self.journal_failed(&e))?;
        st.delta.apply(seq, time, &entry).map_err(|e| {
            log::error!("{e}");
            self.poison();
            Errno::IO
        })?;
        st.effects += 1;
        Ok(())
    }

    /// After a failure of the journal nothing may be acknowledged: the view becomes read-only.
    pub(super) fn journal_failed(&self, e: &txfs_journal::JournalError) -> Errno {
        log::error!("{e}");
        self.poison();
        e.errno().map_or(Errno::IO, Errno::from_raw_os_error)
    }

    /// All extended attributes of a base object as the view's generation has them.
    pub(crate) fn base_xattrs(&self, st: &State, obj: ObjId) -> OpResult<Xattrs> {
        let node = self.nodes.get(obj).ok_or(Errno::STALE)?;
        match self.before(st, (node.dev, node.ident.ino), |b| b.meta.as_ref()?.xattrs.as_ref()) {
            Some((_, xattrs)) => Ok(xattrs.clone()),
            None if st.layers.is_empty() => {
                let found = self.nodes.locate(obj)?;
                xattr::all_at(found.dir.as_fd(), &found.name).map_err(|e| errno(&e))
            }
            // It may be on its way to another place at this moment.
            None => xattr::all(self.nodes.open(obj)?.as_fd()).map_err(|e| errno(&e)),
        }
    }

    /// All extended attributes of an object as the view has them.
    pub(crate) fn xattrs(&self, st: &State, obj: ObjId) -> OpResult<Xattrs> {
        let object = st.delta.objects.get(&obj);
        let mut all = if object.is_some_and(Object::is_new) {
            Xattrs::new()
        } else {
            self.base_xattrs(st, obj)?
        };
        for (name, value) in object.iter().flat_map(|o| &o.xattrs) {
            match value {
                Some(value) => all.insert(name.clone(), value.clone()),
                None => all.remove(name),
            };
        }
        Ok(all)
    }

    /// One extended attribute as the view has it.
    pub(super) fn xattr(&self, st: &State, obj: ObjId, name: &[u8]) -> OpResult<Option<Vec<u8>>> {
        if let Some(object) = st.delta.objects.get(&obj) {
            if let Some(value) = object.xattrs.get(name) {
                return Ok(value.clone());
            }
            if object.is_new() {
                return Ok(None);
            }
        }
        if !st.layers.is_empty() {
            return Ok(self.xattrs(st, obj)?.remove(name));
        }
        xattr::get(self.nodes.open(obj)?.as_fd(), name).map_err(|e| errno(&e))
    }
}

fn reserve(nodes: &Nodes, staging: &Staging, entry: &EffectEntry) {
    use txfs_journal::Change;
    for bind in &entry.binds {
        nodes.bind(bind.obj, bind.parent, &bind.name, bind.print.ident, None);
        if bind.obj >= ObjId::FIRST_NEW {
            nodes.reserve(bind.obj);
        }
    }
    match &entry.effect {
        Effect::Mkdir { obj, .. } => nodes.reserve(*obj),
        Effect::Write { obj, change } => match change {
            Change::Create { node, .. } => {
                nodes.reserve(*obj);
                if let NewNode::File { slot } = node {
                    staging.reserve(*slot);
                }
            }
            Change::Content { slot } => staging.reserve(*slot),
            Change::Link { .. } | Change::Attrs(_) | Change::Xattr { .. } => {}
        },
        Effect::Move { .. } | Effect::Rm { .. } => {}
    }
}

fn base_links(stat: &Stat, object: &Object) -> i64 {
    let links = i64::from(stat.nlink);
    if stat.ident.kind != Kind::Dir {
        links + object.links
    } else if object.links < 0 {
        0
    } else if links < 2 {
        // Some file systems do not count subdirectories.
        links
    } else {
        links + object.subdirs
    }
}

fn attr_of(obj: ObjId, stat: &Stat, links: i64) -> Attr {
    Attr {
        obj,
        kind: stat.ident.kind,
        mode: stat.mode,
        nlink: u32::try_from(links).unwrap_or(0),
        uid: stat.uid,
        gid: stat.gid,
        rdev: stat.rdev,
        size: stat.size,
        blocks: stat.blocks,
        blksize: stat.blksize,
        atime: stat.atime,
        mtime: stat.mtime,
        ctime: stat.ctime,
    }
}

fn new_attr(obj: ObjId, node: Option<&NewNode>, object: &Object) -> Attr {
    let (rdev, size) = match node {
        None => (0, 4096),
        Some(NewNode::Symlink { target }) => (0, target.len() as u64),
        Some(NewNode::Char { rdev } | NewNode::Block { rdev }) => (*rdev, 0),
        Some(NewNode::File { .. } | NewNode::Fifo | NewNode::Socket) => (0, 0),
    };
    let links = match node {
        None if object.links > 0 => 2 + object.subdirs,
        None => 0,
        Some(_) => object.links,
    };
    Attr {
        obj,
        kind: object.kind(),
        mode: 0,
        nlink: u32::try_from(links).unwrap_or(0),
        uid: 0,
        gid: 0,
        rdev,
        size,
        blocks: 0,
        blksize: 4096,
        atime: Timestamp::default(),
        mtime: Timestamp::default(),
        ctime: Timestamp::default(),
    }
}

/// Used by the table of open files.
pub(super) type FileTable = Mutex<HashMap<ObjId, Arc<OpenFile>>>;
