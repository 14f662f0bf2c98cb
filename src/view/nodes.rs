//! Base objects that the kernel or the delta knows, and how to find them again.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use txfs_journal::{Generation, Ident, Kind, Name, ObjId, RelPath, SlotId};

use super::api::OpResult;
use super::staging::Staging;
use crate::base::{self, Base, SharedFd, Stat, Whereabouts};

/// Directory fds kept open at most; fewer where few descriptors are allowed.
const CACHED_DIRS: usize = 2048;
/// One part in this many of the allowed descriptors may be cached directories.
const CACHED_PART: u64 = 4;

/// A base object: which inode, and where it was met.
#[derive(Clone, Debug)]
pub struct Node {
    /// Which inode.
    pub ident: Ident,
    /// On which device.
    pub dev: u64,
    /// The directory of the base in which it was met.
    pub parent: ObjId,
    /// Its name there.
    pub name: Name,
    /// A later generation displaced it to here.
    pub slot: Option<(Generation, SlotId)>,
    /// Of a directory that was opened: its handle, where handles can be opened. It leads to the
    /// directory wherever somebody outside moves it.
    handle: Option<Box<[u8]>>,
    /// Nodes whose `parent` this is, and that say so.
    children: u32,
    /// Whether `parent` counts it: not if that was met later.
    counted: bool,
    /// Lookups that the kernel has not given back.
    lookups: u64,
}

#[derive(Debug, Default)]
struct Table {
    nodes: HashMap<ObjId, Node>,
    by_inode: HashMap<(u64, u64), ObjId>,
    /// Lookups of objects that are no base objects.
    lookups: HashMap<ObjId, u64>,
    dirs: HashMap<ObjId, SharedFd>,
    /// Numbers that objects had before a commit gave them another inode: they keep them for as long as
    /// the view lives, also when the kernel forgets them in between.
    landed: HashMap<Ident, ObjId>,
    next_new: u64,
}

impl Table {
    /// Whether a directory is `top` or below it.
    fn is_within(&self, dir: ObjId, top: ObjId) -> bool {
        let mut at = dir;
        while at != top {
            match self.nodes.get(&at) {
                Some(node) if at != ObjId::ROOT => at = node.parent,
                Some(_) | None => return false,
            }
        }
        true
    }

    fn put(&mut self, obj: ObjId, parent: ObjId, name: &Name, slot: Option<(Generation, SlotId)>) {
        let counted = self.count(parent);
        let Some(node) = self.nodes.get_mut(&obj) else { return };
        let (old, was_counted) = (node.parent, node.counted);
        (node.parent, node.counted) = (parent, counted);
        node.name = name.clone();
        node.slot = slot;
        if was_counted && let Some(old) = self.nodes.get_mut(&old) {
            old.children -= 1;
        }
    }

    /// One more child, if the directory is known.
    fn count(&mut self, parent: ObjId) -> bool {
        let Some(parent) = self.nodes.get_mut(&parent) else { return false };
        parent.children += 1;
        true
    }
}

/// The table of one view.
#[derive(Debug)]
pub struct Nodes {
    base: Arc<Base>,
    history: Arc<OwnedFd>,
    root: SharedFd,
    cached_dirs: usize,
    table: Mutex<Table>,
}

/// An object found: a directory, a name in it, and what is there.
#[derive(Debug)]
pub struct Located {
    /// The directory.
    pub dir: SharedFd,
    /// The name; empty for the directory itself.
    pub name: Vec<u8>,
    /// What is there.
    pub stat: Stat,
    /// Its path in the base, if that is not where it was met.
    pub moved_to: Option<RelPath>,
}

/// The errno of an I/O error; one that has none is logged and becomes `EIO`.
pub fn errno(e: &std::io::Error) -> Errno {
    Errno::from_io_error(e).unwrap_or_else(|| {
        log::error!("{e}");
        Errno::IO
    })
}

impl Nodes {
    /// An empty table. `history` is the store's directory of that name.
    ///
    /// # Errors
    /// If the root cannot be opened.
    pub fn new(base: Arc<Base>, history: Arc<OwnedFd>) -> std::io::Result<Nodes> {
        let root = Arc::new(base.root().try_clone_to_owned()?);
        let allowed = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let part = allowed.map_or(CACHED_DIRS as u64, |n| n / CACHED_PART);
        let cached_dirs = usize::try_from(part).unwrap_or(CACHED_DIRS).clamp(8, CACHED_DIRS);
        let stat = *base.root_stat();
        let nodes = Nodes { base, history, root, cached_dirs, table: Mutex::default() };
        {
            let mut table = nodes.lock();
            table.next_new = ObjId::FIRST_NEW.0;
            let name = Name::new("root").map_err(std::io::Error::other)?;
            let node = Node {
                ident: stat.ident,
                dev: stat.dev,
                parent: ObjId::ROOT,
                name,
                slot: None,
                handle: None,
                children: 1,
                counted: false,
                lookups: 1,
            };
            table.nodes.insert(ObjId::ROOT, node);
            table.by_inode.insert((stat.dev, stat.ident.ino), ObjId::ROOT);
        }
        Ok(nodes)
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The base.
    pub fn base(&self) -> &Arc<Base> {
        &self.base
    }

    /// A number that no object of this view has had.
    pub fn new_id(&self) -> ObjId {
        let mut table = self.lock();
        table.next_new += 1;
        ObjId(table.next_new - 1)
    }

    /// Numbers from here on are free.
    pub fn reserve(&self, used: ObjId) {
        let mut table = self.lock();
        table.next_new = table.next_new.max(used.0 + 1);
    }

    /// A base object by its number.
    pub fn get(&self, obj: ObjId) -> Option<Node> {
        self.lock().nodes.get(&obj).cloned()
    }

    /// The object that has an inode, if it is known.
    pub fn by_inode(&self, dev: u64, ino: u64) -> Option<ObjId> {
        self.lock().by_inode.get(&(dev, ino)).copied()
    }

    /// The number of a base object just met; remembers it, and that it is here now: it may have been
    /// somewhere else before an undo, or before somebody moved it outside.
    pub fn met(
        &self,
        parent: ObjId,
        name: &Name,
        stat: &Stat,
        slot: Option<(Generation, SlotId)>,
    ) -> ObjId {
        let mut table = self.lock();
        let inode = (stat.dev, stat.ident.ino);
        // Where the base gave the number to another file, the old one keeps its node until forgotten.
        if let Some(&obj) = table.by_inode.get(&inode)
            && let Some(node) = table.nodes.get(&obj).filter(|n| n.ident == stat.ident)
        {
            if (node.parent != parent || node.name != *name) && !table.is_within(parent, obj) {
                table.put(obj, parent, name, slot);
            }
            return obj;
        }
        if stat.dev == self.base.dev()
            && let Some(&obj) = table.landed.get(&stat.ident)
            && !table.nodes.contains_key(&obj)
        {
            self.insert(&mut table, obj, parent, name, stat.ident, stat.dev, slot);
            return obj;
        }
        let proposed = ObjId(stat.ident.ino);
        let free = proposed != ObjId::ROOT
            && proposed.0 < ObjId::FIRST_NEW.0
            && proposed.0 != 0
            && stat.dev == self.base.dev()
            && !table.nodes.contains_key(&proposed);
        let obj = if free {
            proposed
        } else {
            table.next_new += 1;
            ObjId(table.next_new - 1)
        };
        self.insert(&mut table, obj, parent, name, stat.ident, stat.dev, slot);
        obj
    }

    /// Gives a number to a base object: one that the journal names, or one that landed.
    pub fn bind(
        &self,
        obj: ObjId,
        parent: ObjId,
        name: &Name,
        ident: Ident,
        slot: Option<(Generation, SlotId)>,
    ) {
        let mut table = self.lock();
        if table.nodes.contains_key(&obj) {
            return;
        }
        let lookups = table.lookups.remove(&obj).unwrap_or(0);
        self.insert(&mut table, obj, parent, name, ident, self.base.dev(), slot);
        if let Some(node) = table.nodes.get_mut(&obj) {
            node.lookups = lookups;
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn insert(
        &self,
        table: &mut Table,
        obj: ObjId,
        parent: ObjId,
        name: &Name,
        ident: Ident,
        dev: u64,
        slot: Option<(Generation, SlotId)>,
    ) {
        let node = Node {
            ident,
            dev,
            parent,
            name: name.clone(),
            slot,
            handle: None,
            children: 0,
            counted: table.count(parent),
            lookups: 0,
        };
        table.nodes.insert(obj, node);
        table.by_inode.insert((dev, ident.ino), obj);
    }

    /// Drops a number altogether: the object stands for another number from now on.
    pub fn retire(&self, obj: ObjId) {
        let mut table = self.lock();
        table.landed.retain(|_, landed| *landed != obj);
        if let Some(node) = table.nodes.get(&obj) {
            let inode = (node.dev, node.ident.ino);
            if table.by_inode.get(&inode) == Some(&obj) {
                table.by_inode.remove(&inode);
            }
        }
        table.dirs.remove(&obj);
    }

    /// Says which inode an object is and where it is met from now on: a commit put it there.
    pub fn land(&self, obj: ObjId, parent: ObjId, name: &Name, ident: Ident) {
        let mut table = self.lock();
        let dev = self.base.dev();
        if obj.0 != ident.ino {
            table.landed.insert(ident, obj);
        }
        let Some(node) = table.nodes.get_mut(&obj) else {
            drop(table);
            return self.bind(obj, parent, name, ident, None);
        };
        let old_inode = (node.dev, node.ident.ino);
        node.ident = ident;
        if table.by_inode.get(&old_inode) == Some(&obj) {
            table.by_inode.remove(&old_inode);
        }
        table.by_inode.insert((dev, ident.ino), obj);
        table.put(obj, parent, name, None);
        table.dirs.remove(&obj);
    }

    /// Says where an object that an undo moved is met from now on.
    ///
    /// # Errors
    /// `ESTALE` if it is not there.
    pub fn moved_to(&self, obj: ObjId, path: &RelPath) -> OpResult<()> {
        let (mut at, mut dir) = (ObjId::ROOT, Arc::clone(&self.root));
        let mut names = path.as_bytes().split(|&b| b == b'/').peekable();
        while let Some(part) = names.next() {
            let name = Name::new(part).map_err(|_| Errno::STALE)?;
            let stat = base::stat_at(dir.as_fd(), part).map_err(|e| errno(&e))?;
            let found = self.met(at, &name, &stat, None);
            if names.peek().is_none() {
                return if found == obj { Ok(()) } else { Err(Errno::STALE) };
            }
            (at, dir) = (found, self.dir(found)?);
        }
        Err(Errno::STALE)
    }

    /// One more lookup.
    pub fn looked_up(&self, obj: ObjId) {
        let mut table = self.lock();
        match table.nodes.get_mut(&obj) {
            Some(node) => node.lookups += 1,
            None => *table.lookups.entry(obj).or_default() += 1,
        }
    }

    /// Gives lookups back. A base object that nobody knows any more is dropped unless `needed`.
    pub fn forget(&self, obj: ObjId, count: u64, needed: impl Fn(ObjId) -> bool) {
        let mut table = self.lock();
        if let Some(node) = table.nodes.get_mut(&obj) {
            node.lookups = node.lookups.saturating_sub(count);
        } else if let Some(lookups) = table.lookups.get_mut(&obj) {
            *lookups = lookups.saturating_sub(count);
            if *lookups == 0 {
                table.lookups.remove(&obj);
            }
            return;
        }
        let mut at = obj;
        while let Some(node) = table.nodes.get(&at) {
            if node.lookups > 0 || node.children > 0 || at == ObjId::ROOT || needed(at) {
                return;
            }
            let (inode, parent) = ((node.dev, node.ident.ino), node.parent);
            let counted = node.counted;
            table.nodes.remove(&at);
            table.dirs.remove(&at);
            if table.by_inode.get(&inode) == Some(&at) {
                table.by_inode.remove(&inode);
            }
            if counted && let Some(parent) = table.nodes.get_mut(&parent) {
                parent.children -= 1;
            }
            at = parent;
        }
    }

    /// Base objects known, for tests and status.
    pub fn count(&self) -> usize {
        self.lock().nodes.len()
    }

    /// Whether the kernel still refers to an object.
    pub fn is_known(&self, obj: ObjId) -> bool {
        let table = self.lock();
        table.nodes.get(&obj).is_some_and(|n| n.lookups > 0) || table.lookups.contains_key(&obj)
    }

    /// The fd (`O_PATH`) of a base directory.
    ///
    /// # Errors
    /// `ESTALE` if it is not where it was met nor where a commit put it.
    pub fn dir(&self, obj: ObjId) -> OpResult<SharedFd> {
        if obj == ObjId::ROOT {
            return Ok(Arc::clone(&self.root));
        }
        if let Some(fd) = self.lock().dirs.get(&obj) {
            return Ok(Arc::clone(fd));
        }
        let known = self.get(obj).and_then(|n| Some((n.handle?, n.ident)));
        let by_handle = known.and_then(|(handle, ident)| {
            let fd = self.base.by_handle(&handle)?;
            let found = base::stat_fd(fd.as_fd()).is_ok_and(|s| s.ident == ident);
            found.then_some(fd)
        });
        let fd = match by_handle {
            Some(fd) => Arc::new(fd),
            None => Arc::new(self.open(obj)?),
        };
        let handle = self.base.handle_of(fd.as_fd());
        let mut table = self.lock();
        if let Some(node) = table.nodes.get_mut(&obj) {
            node.handle = handle;
        }
        // An fd kept open would keep another file system from being unmounted.
        if table.nodes.get(&obj).is_none_or(|n| n.dev != self.base.dev()) {
            return Ok(fd);
        }
        if table.dirs.len() >= self.cached_dirs {
            table.dirs.clear();
        }
        table.dirs.insert(obj, Arc::clone(&fd));
        Ok(fd)
    }

    /// Opens a base object as `O_PATH`.
    ///
    /// # Errors
    /// As [`Nodes::dir`].
    pub fn open(&self, obj: ObjId) -> OpResult<OwnedFd> {
        let wanted = self.get(obj).ok_or(Errno::STALE)?.ident;
        let opened = self.base.search(|| {
            let Some(at) = self.look_for(obj)? else { return Ok(None) };
            let open = || match &at.name[..] {
                [] => at.dir.try_clone(),
                name => base::open_child(at.dir.as_fd(), name),
            };
            let fd = match open() {
                Err(e) if e.raw_os_error() == Some(libc::EMFILE) => {
                    self.lock().dirs.clear();
                    open()
                }
                opened => opened,
            };
            match fd {
                // It may have been moved between the two calls.
                Ok(fd) if base::stat_fd(fd.as_fd()).map_err(|e| errno(&e))?.ident == wanted => {
                    Ok(Some(fd))
                }
                Ok(_) => Ok(None),
                Err(e) if base::is_absent(&e) => Ok(None),
                Err(e) => Err(errno(&e)),
            }
        });
        opened?.ok_or(Errno::STALE)
    }

    /// Finds a base object.
    ///
    /// # Errors
    /// `ESTALE` if it is not where it was met nor where a commit put it.
    pub fn locate(&self, obj: ObjId) -> OpResult<Located> {
        self.base.search(|| self.look_for(obj))?.ok_or(Errno::STALE)
    }

    /// One look at all places where a base object may be.
    fn look_for(&self, obj: ObjId) -> OpResult<Option<Located>> {
        if obj == ObjId::ROOT {
            let stat = base::stat_fd(self.root.as_fd()).map_err(|e| errno(&e))?;
            let dir = Arc::clone(&self.root);
            return Ok(Some(Located { dir, name: Vec::new(), stat, moved_to: None }));
        }
        let node = self.get(obj).ok_or(Errno::STALE)?;
        if let Some((generation, slot)) = node.slot
            && let Some(found) = self.in_slot(generation, slot, &node.ident)?
        {
            return Ok(Some(found));
        }
        if let Ok(dir) = self.dir(node.parent)
            && let Some(found) = here(dir, node.name.as_bytes(), &node.ident)?
        {
            return Ok(Some(found));
        }
        match self.base.whereabouts(node.ident.ino) {
            Some(Whereabouts::Slot(generation, slot)) => {
                self.in_slot(generation, slot, &node.ident)
            }
            Some(Whereabouts::Base(path)) => self.following(&path, &node.ident),
            None => Ok(None),
        }
    }

    fn in_slot(
        &self,
        generation: Generation,
        slot: SlotId,
        ident: &Ident,
    ) -> OpResult<Option<Located>> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let name = generation.to_string();
        match rustix::fs::openat(&*self.history, name, flags, Mode::empty()) {
            Ok(dir) => here(Arc::new(dir), slot.to_string().as_bytes(), ident),
            Err(Errno::NOENT) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// What a slot of the history holds.
    ///
    /// # Errors
    /// Those of statx(2).
    pub fn slot_stat(&self, generation: Generation, slot: SlotId) -> OpResult<Stat> {
        self.in_slots((generation, slot), |path| {
            base::stat_at(self.history.as_fd(), path.as_bytes()).map_err(|e| errno(&e))
        })
    }

    /// Opens a regular file in a slot of the history for reading.
    ///
    /// # Errors
    /// Those of open(2).
    pub fn slot_file(&self, generation: Generation, slot: SlotId) -> OpResult<std::fs::File> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        self.in_slots((generation, slot), |path| {
            Ok(rustix::fs::openat(&*self.history, path, flags, Mode::empty())?.into())
        })
    }

    /// Looks into a slot, or where undoes took what was in it.
    fn in_slots<T>(
        &self,
        slot: (Generation, SlotId),
        look: impl Fn(&str) -> OpResult<T>,
    ) -> OpResult<T> {
        let found = self.base.search(|| {
            let mut at = Some(slot);
            while let Some((generation, slot)) = at {
                match look(&format!("{generation}/{slot}")) {
                    // Each leads to a later generation.
                    Err(Errno::NOENT) => at = self.base.fetched((generation, slot)),
                    looked => return looked.map(Some),
                }
            }
            Ok(None)
        });
        found?.ok_or(Errno::NOENT)
    }

    /// What a staged file is that a commit is bringing from its slot to a path of the base.
    ///
    /// # Errors
    /// `ESTALE` if it is at neither.
    pub fn landing(&self, staging: &Staging, slot: SlotId, ident: &Ident) -> OpResult<Stat> {
        let found = self.base.search(|| {
            match staging.stat(slot) {
                Ok(stat) if stat.ident == *ident => return Ok(Some(stat)),
                Ok(_) => {}
                Err(e) if base::is_absent(&e) => {}
                Err(e) => return Err(errno(&e)),
            }
            match self.base.whereabouts(ident.ino) {
                Some(Whereabouts::Base(path)) => {
                    Ok(self.following(&path, ident)?.map(|found| found.stat))
                }
                Some(Whereabouts::Slot(..)) | None => Ok(None),
            }
        });
        found?.ok_or(Errno::STALE)
    }

    /// What commits brought to a path, wherever they took its directories since.
    fn following(&self, path: &RelPath, ident: &Ident) -> OpResult<Option<Located>> {
        let mut path = path.clone();
        // Each turn follows one more move.
        for _ in 0..64 {
            if let Some(mut found) = self.at_path(&path, ident)? {
                found.moved_to = Some(path);
                return Ok(Some(found));
            }
            match self.base.followed(&path) {
                Some((Whereabouts::Base(dir), rest)) => {
                    let below = [dir.as_bytes(), b"/", &rest].concat();
                    path = RelPath::new(below).map_err(|_| Errno::STALE)?;
                }
                Some((Whereabouts::Slot(generation, slot), rest)) => {
                    let whole = format!("{generation}/{slot}/").into_bytes();
                    let whole = RelPath::new([whole, rest].concat()).map_err(|_| Errno::STALE)?;
                    return self.below(self.history.as_fd(), &whole, ident);
                }
                None => return Ok(None),
            }
        }
        Ok(None)
    }

    fn at_path(&self, path: &RelPath, ident: &Ident) -> OpResult<Option<Located>> {
        self.below(self.base.root(), path, ident)
    }

    fn below(
        &self,
        top: BorrowedFd<'_>,
        path: &RelPath,
        ident: &Ident,
    ) -> OpResult<Option<Located>> {
        let Some((parent, name)) = path.split() else { return Ok(None) };
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        match base::open_beneath(top, &parent, flags) {
            Ok(dir) => here(Arc::new(dir), name.as_bytes(), ident),
            Err(e) => match errno(&e) {
                Errno::NOENT | Errno::NOTDIR | Errno::LOOP => Ok(None),
                e => Err(e),
            },
        }
    }
}

fn here(dir: SharedFd, name: &[u8], ident: &Ident) -> OpResult<Option<Located>> {
    match base::stat_at(dir.as_fd(), name) {
        Ok(stat) if stat.ident == *ident => {
            Ok(Some(Located { dir, name: name.to_vec(), stat, moved_to: None }))
        }
        Ok(_) => Ok(None),
        Err(e) => match errno(&e) {
            Errno::NOENT | Errno::NOTDIR => Ok(None),
            e => Err(e),
        },
    }
}

impl Node {
    /// Whether it is a directory.
    pub fn is_dir(&self) -> bool {
        self.ident.kind == Kind::Dir
    }
}
