//! Operations on names.

use rustix::io::Errno;
use txfs_journal::{
    Change, Effect, Inverse, Kind, Name, NewNode, ObjId, Over, Overrides, Preimage, Slot, Xattrs,
};

use super::acl::{self, Acl};
use super::api::{Caller, Entry, NodeSpec, OpResult, Opened, RenameMode, Trust};
use super::nodes::errno;
use super::state::{Found, STORE_NAME, State, View};

/// Names one object may have; ext4's limit, the smallest of the usual file systems.
const LINK_MAX: u32 = 65000;
/// Directories on the way to the root, far beyond any real tree; a longer way is a loop.
const DEPTH_MAX: usize = 1 << 20;

impl View {
    /// Looks a name up; counts one lookup.
    pub fn lookup(&self, parent: ObjId, name: &Name) -> OpResult<Entry> {
        let st = self.read_state();
        let found = self.find(&st, parent, name)?;
        self.entry(&st, found)
    }

    /// Gives lookups back.
    pub fn forget(&self, obj: ObjId, count: u64) {
        let st = self.read_state();
        let needed = |o| st.delta.objects.contains_key(&o) || st.fresh.contains_key(&o);
        self.nodes.forget(obj, count, needed);
    }

    /// Who besides this view can make a name exist that does not. Only of names that an effect
    /// removed is it known, when the transaction ends, that the kernel must be told.
    pub fn absence(&self, parent: ObjId, name: &Name) -> Trust {
        let st = self.read_state();
        if st.delta.name(parent, name) == Some(None) { Trust::Own } else { Trust::Base }
    }

    /// The directory may take the name, which must be free.
    fn check_free(&self, st: &State, parent: ObjId, name: &Name) -> OpResult<()> {
        if parent == ObjId::ROOT && name.as_bytes() == STORE_NAME {
            return Err(Errno::PERM);
        }
        self.check_dir(st, parent)?;
        match self.find(st, parent, name) {
            Ok(_) => Err(Errno::EXIST),
            Err(Errno::NOENT) => Ok(()),
            Err(e) => Err(e),
        }
    }

    /// Entries can be made and removed in a directory: it is one, it is here, it has a name.
    fn check_dir(&self, st: &State, dir: ObjId) -> OpResult<()> {
        if self.kind(st, dir)? != Kind::Dir {
            return Err(Errno::NOTDIR);
        }
        if st.delta.objects.get(&dir).is_some_and(|o| o.links < 0 || (o.is_new() && o.links == 0)) {
            return Err(Errno::NOENT);
        }
        self.check_writable(st, dir)
    }

    /// Owner, mode and inherited lists of a new entry. `mode` is as asked for, before the umask.
    fn heritage(
        &self,
        st: &State,
        caller: &Caller,
        parent: ObjId,
        is_dir: bool,
        mode: u32,
        umask: u32,
    ) -> OpResult<(Overrides, Xattrs)> {
        let (dir, _) = self.attr(st, parent)?;
        let mut xattrs = Xattrs::new();
        let mut mode = mode & 0o7777;
        match self.xattr(st, parent, acl::DEFAULT)? {
            Some(default) => {
                if let Some(list) = Acl::parse(&default)? {
                    let (access, narrowed) = list.inherit(mode);
                    mode = narrowed;
                    if !access.is_minimal() {
                        xattrs.insert(acl::ACCESS.to_vec(), access.to_bytes());
                    }
                    if is_dir {
                        xattrs.insert(acl::DEFAULT.to_vec(), default);
                    }
                }
            }
            None => mode &= !umask,
        }
        let inherits_group = dir.mode & 0o2000 != 0;
        if inherits_group && is_dir {
            mode |= 0o2000;
        }
        let gid = if inherits_group { dir.gid } else { caller.gid };
        let attrs = Overrides {
            mode: Some(mode),
            uid: Some(caller.uid),
            gid: Some(gid),
            ..Overrides::default()
        };
        Ok((attrs, xattrs))
    }

    fn make(
        &self,
        st: &mut State,
        parent: ObjId,
        name: &Name,
        node: NewNode,
        attrs: Overrides,
        xattrs: Xattrs,
    ) -> OpResult<ObjId> {
        let obj = self.nodes.new_id();
        let at = Slot { parent, name: name.clone() };
        let inverse = Inverse::Restore { obj, to: Preimage::Absent { at: at.clone() } };
        let effect = Effect::Write { obj, change: Change::Create { at, node, attrs, xattrs } };
        self.record(st, effect, inverse, &[parent], &[parent])?;
        Ok(obj)
    }

    /// mknod(2), for everything but directories and symbolic links.
    pub fn mknod(
        &self,
        caller: &Caller,
        parent: ObjId,
        name: &Name,
        spec: &NodeSpec,
    ) -> OpResult<Entry> {
        let mut st = self.write_state()?;
        self.check_free(&st, parent, name)?;
        let (attrs, xattrs) = self.heritage(&st, caller, parent, false, spec.mode, spec.umask)?;
        let node = match spec.kind {
            Kind::File => NewNode::File { slot: st.staging.create().map_err(|e| errno(&e))?.0 },
            Kind::Fifo => NewNode::Fifo,
            Kind::Socket => NewNode::Socket,
            Kind::Char => NewNode::Char { rdev: spec.rdev },
            Kind::Block => NewNode::Block { rdev: spec.rdev },
            Kind::Dir | Kind::Symlink => return Err(Errno::INVAL),
        };
        let obj = self.make(&mut st, parent, name, node, attrs, xattrs)?;
        self.entry(&st, Found { obj, own: true })
    }

    /// open(2) with `O_CREAT` of a name that the kernel did not know; makes it or, without
    /// `O_EXCL`, opens what is there.
    pub fn create(
        &self,
        caller: &Caller,
        parent: ObjId,
        name: &Name,
        spec: &NodeSpec,
        flags: i32,
    ) -> OpResult<(Entry, Opened)> {
        let mut st = self.write_state()?;
        match self.check_free(&st, parent, name) {
            Ok(()) => {}
            Err(Errno::EXIST) if flags & libc::O_EXCL == 0 => {
                let found = self.find(&st, parent, name)?;
                let opened = self.open_locked(&mut st, caller, found.obj, flags)?;
                return Ok((self.entry(&st, found)?, opened));
            }
            Err(e) => return Err(e),
        }
        let (attrs, xattrs) = self.heritage(&st, caller, parent, false, spec.mode, spec.umask)?;
        let past = self.goes_past_us(attrs.mode.unwrap_or(0));
        let made = if past { st.staging.create_for_kernel() } else { st.staging.create() };
        let (slot, file) = made.map_err(|e| errno(&e))?;
        let obj = self.make(&mut st, parent, name, NewNode::File { slot }, attrs, xattrs)?;
        let opened = self.open_new(caller, obj, file, past, flags);
        Ok((self.entry(&st, Found { obj, own: true })?, opened))
    }

    /// mkdir(2)
    pub fn mkdir(
        &self,
        caller: &Caller,
        parent: ObjId,
        name: &Name,
        mode: u32,
        umask: u32,
    ) -> OpResult<Entry> {
        let mut st = self.write_state()?;
        self.check_free(&st, parent, name)?;
        let (attrs, xattrs) = self.heritage(&st, caller, parent, true, mode, umask)?;
        let obj = self.nodes.new_id();
        let at = Slot { parent, name: name.clone() };
        let inverse = Inverse::RmdirIfEmpty { obj, at: at.clone() };
        let effect = Effect::Mkdir { obj, at, attrs, xattrs };
        self.record(&mut st, effect, inverse, &[parent], &[parent])?;
        self.entry(&st, Found { obj, own: true })
    }

    /// symlink(2)
    pub fn symlink(
        &self,
        caller: &Caller,
        parent: ObjId,
        name: &Name,
        target: &[u8],
    ) -> OpResult<Entry> {
        let mut st = self.write_state()?;
        self.check_free(&st, parent, name)?;
        let (mut attrs, _) = self.heritage(&st, caller, parent, false, 0o777, 0)?;
        attrs.mode = Some(0o777);
        let node = NewNode::Symlink { target: target.to_vec() };
        let obj = self.make(&mut st, parent, name, node, attrs, Xattrs::new())?;
        self.entry(&st, Found { obj, own: true })
    }

    /// link(2)
    pub fn link(&self, obj: ObjId, parent: ObjId, name: &Name) -> OpResult<Entry> {
        let mut st = self.write_state()?;
        let obj = st.meant(obj)?;
        self.check_free(&st, parent, name)?;
        self.check_writable(&st, obj)?;
        let (attr, _) = self.attr(&st, obj)?;
        if attr.kind == Kind::Dir {
            return Err(Errno::PERM);
        }
        if attr.nlink == 0 {
            return Err(Errno::NOENT);
        }
        if attr.nlink >= LINK_MAX {
            return Err(Errno::MLINK);
        }
        let at = Slot { parent, name: name.clone() };
        let inverse = Inverse::Restore { obj, to: Preimage::Absent { at: at.clone() } };
        let effect = Effect::Write { obj, change: Change::Link { at } };
        self.record(&mut st, effect, inverse, &[obj, parent], &[parent, obj])?;
        self.entry(&st, Found { obj, own: true })
    }

    /// unlink(2)
    pub fn unlink(&self, parent: ObjId, name: &Name) -> OpResult<()> {
        self.remove(parent, name, false)
    }

    /// rmdir(2)
    pub fn rmdir(&self, parent: ObjId, name: &Name) -> OpResult<()> {
        self.remove(parent, name, true)
    }

    fn remove(&self, parent: ObjId, name: &Name, dir: bool) -> OpResult<()> {
        let mut st = self.write_state()?;
        let obj = self.find(&st, parent, name)?.obj;
        let is_dir = self.kind(&st, obj)? == Kind::Dir;
        match (dir, is_dir) {
            (true, false) => return Err(Errno::NOTDIR),
            (false, true) => return Err(Errno::ISDIR),
            (true, true) => {
                self.check_empty(&st, obj)?;
            }
            (false, false) => {}
        }
        self.check_writable(&st, parent)?;
        self.check_writable(&st, obj)?;
        let at = Slot { parent, name: name.clone() };
        let inverse = Inverse::Unrm { obj, at: at.clone() };
        self.record(&mut st, Effect::Rm { obj, at }, inverse, &[parent, obj], &[parent, obj])
    }

    fn check_empty(&self, st: &State, dir: ObjId) -> OpResult<()> {
        if self.listing(st, dir)?.is_empty() { Ok(()) } else { Err(Errno::NOTEMPTY) }
    }

    /// renameat2(2)
    pub fn rename(
        &self,
        from: (ObjId, &Name),
        to: (ObjId, &Name),
        mode: RenameMode,
    ) -> OpResult<()> {
        let mut st = self.write_state()?;
        let obj = self.find(&st, from.0, from.1)?.obj;
        if to.0 == ObjId::ROOT && to.1.as_bytes() == STORE_NAME {
            return Err(Errno::PERM);
        }
        self.check_dir(&st, to.0)?;
        self.check_writable(&st, from.0)?;
        self.check_writable(&st, obj)?;
        let target = match self.find(&st, to.0, to.1) {
            Ok(found) => Some(found.obj),
            Err(Errno::NOENT) => None,
            Err(e) => return Err(e),
        };
        let is_dir = self.kind(&st, obj)? == Kind::Dir;
        if is_dir && self.is_within(&st, to.0, obj)? {
            return Err(Errno::INVAL);
        }
        let over = match (mode, target) {
            (RenameMode::NoReplace, Some(_)) => return Err(Errno::EXIST),
            (RenameMode::Exchange, None) => return Err(Errno::NOENT),
            (_, Some(target)) if target == obj => return Ok(()),
            (RenameMode::Exchange, Some(target)) => {
                self.check_writable(&st, target)?;
                if self.kind(&st, target)? == Kind::Dir && self.is_within(&st, from.0, target)? {
                    return Err(Errno::INVAL);
                }
                Over::Exchanged(target)
            }
            (RenameMode::Replace, Some(target)) => {
                self.check_writable(&st, target)?;
                self.check_replaceable(&st, is_dir, target)?;
                Over::Replaced(target)
            }
            (RenameMode::Replace | RenameMode::NoReplace, None) => Over::Nothing,
        };
        let (from, to) = (slot(from), slot(to));
        let mut objs = vec![from.parent, to.parent, obj];
        let mut times = objs.clone();
        if let Over::Replaced(other) | Over::Exchanged(other) = over {
            objs.push(other);
            times.push(other);
        }
        let effect = Effect::Move { obj, from: from.clone(), to: to.clone(), over: over.clone() };
        self.record(&mut st, effect, Inverse::Unmove { obj, from, to, over }, &objs, &times)
    }

    fn check_replaceable(&self, st: &State, is_dir: bool, target: ObjId) -> OpResult<()> {
        match (is_dir, self.kind(st, target)? == Kind::Dir) {
            (true, false) => Err(Errno::NOTDIR),
            (false, true) => Err(Errno::ISDIR),
            (true, true) => self.check_empty(st, target),
            (false, false) => Ok(()),
        }
    }

    /// Whether `dir` is `ancestor` or lies below it, in the view.
    fn is_within(&self, st: &State, dir: ObjId, ancestor: ObjId) -> OpResult<bool> {
        let mut at = dir;
        for _ in 0..DEPTH_MAX {
            if at == ancestor {
                return Ok(true);
            }
            if at == ObjId::ROOT {
                return Ok(false);
            }
            at = self.parent_of(st, at)?;
        }
        Err(Errno::LOOP)
    }

    /// The directory that holds a directory in the view; for other objects, one that does.
    pub(super) fn parent_of(&self, st: &State, obj: ObjId) -> OpResult<ObjId> {
        if let Some(slot) = st.delta.objects.get(&obj).and_then(|o| o.names.first()) {
            return Ok(slot.parent);
        }
        Ok(self.nodes.get(obj).ok_or(Errno::STALE)?.parent)
    }

    /// The directory that holds a directory, for `..`; the root is its own.
    pub fn parent(&self, dir: ObjId) -> ObjId {
        self.parent_of(&self.read_state(), dir).unwrap_or(ObjId::ROOT)
    }
}

fn slot((parent, name): (ObjId, &Name)) -> Slot {
    Slot { parent, name: name.clone() }
}
