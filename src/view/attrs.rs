//! Attributes and extended attributes.

use std::os::fd::AsFd;

use rustix::io::Errno;
use txfs_journal::{Change, Effect, Inverse, Kind, ObjId, Overrides, Preimage};

use super::acl::{self, Acl};
use super::api::{Attr, Caller, Fh, OpResult, SetAttr, SetTime, Trust};
use super::delta::Origin;
use super::nodes::errno;
use super::state::{State, View, now};
use crate::base;

const CAPABILITY: &[u8] = b"security.capability";

impl View {
    /// stat(2)
    pub fn getattr(&self, obj: ObjId, fh: Option<Fh>) -> OpResult<(Attr, Trust)> {
        if let Some(fh) = fh {
            self.handles.check(fh)?;
        }
        let st = self.read_state();
        self.attr(&st, st.meant(obj)?)
    }

    /// chmod(2), chown(2), truncate(2), utimensat(2).
    pub fn setattr(
        &self,
        caller: &Caller,
        obj: ObjId,
        fh: Option<Fh>,
        set: &SetAttr,
    ) -> OpResult<(Attr, Trust)> {
        if let Some(fh) = fh {
            self.handles.check(fh)?;
        }
        let mut st = self.write_state()?;
        let obj = st.meant(obj)?;
        self.check_writable(&st, obj)?;
        if let Some(size) = set.size {
            self.truncate(&mut st, obj, size)?;
            if caller.uid != 0 {
                self.kill_privileges(&mut st, obj)?;
            }
        }
        if set.uid.is_some() || set.gid.is_some() {
            self.chown(&mut st, obj, set.uid, set.gid)?;
        }
        if let Some(mode) = set.mode {
            self.chmod(&mut st, obj, mode & 0o7777)?;
        }
        if set.atime.is_some() || set.mtime.is_some() {
            self.utimens(&mut st, obj, set.atime, set.mtime)?;
        }
        self.attr(&st, obj)
    }

    fn record_attrs(&self, st: &mut State, obj: ObjId, set: Overrides) -> OpResult<()> {
        let before = st.delta.objects.get(&obj).map(|o| o.over).unwrap_or_default();
        let inverse = Inverse::Restore { obj, to: Preimage::Attrs(before) };
        let effect = Effect::Write { obj, change: Change::Attrs(set) };
        self.record(st, effect, inverse, &[obj], &[])
    }

    fn chmod(&self, st: &mut State, obj: ObjId, mode: u32) -> OpResult<()> {
        self.record_attrs(st, obj, Overrides { mode: Some(mode), ..Overrides::default() })?;
        let Some(list) = self.xattr(st, obj, acl::ACCESS)? else { return Ok(()) };
        match Acl::parse(&list)? {
            Some(mut acl) => {
                acl.chmod(mode);
                self.record_xattr(st, obj, acl::ACCESS, Some(acl.to_bytes()))
            }
            None => Ok(()),
        }
    }

    fn chown(
        &self,
        st: &mut State,
        obj: ObjId,
        uid: Option<u32>,
        gid: Option<u32>,
    ) -> OpResult<()> {
        if self.kind(st, obj)? == Kind::File {
            self.kill_privileges(st, obj)?;
        }
        self.record_attrs(st, obj, Overrides { uid, gid, ..Overrides::default() })
    }

    /// Takes away set-user-id, set-group-id of an executable, and file capabilities, as a write or a change
    /// of owner must (inode(7), capabilities(7)).
    pub(super) fn kill_privileges(&self, st: &mut State, obj: ObjId) -> OpResult<()> {
        if self.kind(st, obj)? != Kind::File {
            return Ok(());
        }
        let before = match st.delta.objects.get(&obj).and_then(|o| o.over.mode) {
            Some(mode) => mode,
            None => self.base_stat(st, obj)?.mode,
        };
        let group = if before & 0o010 != 0 { 0o2000 } else { 0 };
        let mode = before & !(0o4000 | group);
        if mode != before {
            self.record_attrs(st, obj, Overrides { mode: Some(mode), ..Overrides::default() })?;
        }
        if self.xattr(st, obj, CAPABILITY)?.is_some() {
            self.record_xattr(st, obj, CAPABILITY, None)?;
        }
        Ok(())
    }

    /// Whether a file must never be written past the daemon, which has to take privileges away.
    pub(super) fn is_privileged(&self, st: &State, obj: ObjId, mode: u32) -> OpResult<bool> {
        Ok(mode & 0o6000 != 0 || self.xattr(st, obj, CAPABILITY)?.is_some())
    }

    /// Takes set-user-id and its like away because the kernel asks for it.
    pub fn kill_suid(&self, obj: ObjId) -> OpResult<(Attr, Trust)> {
        let mut st = self.write_state()?;
        let obj = st.meant(obj)?;
        self.kill_privileges(&mut st, obj)?;
        self.attr(&st, obj)
    }

    fn utimens(
        &self,
        st: &mut State,
        obj: ObjId,
        atime: Option<SetTime>,
        mtime: Option<SetTime>,
    ) -> OpResult<()> {
        let now = now();
        let time = |t: SetTime| match t {
            SetTime::Now => now,
            SetTime::At(t) => t,
        };
        let (atime, mtime) = (atime.map(time), mtime.map(time));
        // The times of a staged file that a savepoint needs are needed too.
        self.thaw(st, obj)?;
        self.record_attrs(st, obj, Overrides { atime, mtime, ..Overrides::default() })?;
        // The times of a staged file are its own inode's, which a passthrough writer moves on.
        if let Some(slot) = st.delta.objects.get(&obj).and_then(|o| o.content) {
            let times = super::staging::times(atime, mtime);
            let name = slot.to_string();
            rustix::fs::utimensat(
                st.staging.dir(),
                name,
                &times,
                rustix::fs::AtFlags::SYMLINK_NOFOLLOW,
            )?;
        }
        Ok(())
    }

    /// readlink(2)
    pub fn readlink(&self, obj: ObjId) -> OpResult<Vec<u8>> {
        let st = self.read_state();
        if let Some(object) = st.delta.objects.get(&obj)
            && let Origin::New(Some(txfs_journal::NewNode::Symlink { target })) = &object.origin
        {
            return Ok(target.clone());
        }
        if self.kind(&st, obj)? != Kind::Symlink {
            return Err(Errno::INVAL);
        }
        base::read_link(self.nodes.open(obj)?.as_fd()).map_err(|e| errno(&e))
    }

    /// getxattr(2)
    pub fn getxattr(&self, obj: ObjId, name: &[u8]) -> OpResult<Vec<u8>> {
        let st = self.read_state();
        self.xattr(&st, st.meant(obj)?, name)?.ok_or(Errno::NODATA)
    }

    /// listxattr(2)
    pub fn listxattr(&self, obj: ObjId) -> OpResult<Vec<Vec<u8>>> {
        let st = self.read_state();
        let obj = st.meant(obj)?;
        let object = st.delta.objects.get(&obj);
        if object.is_some_and(|o| !o.xattrs.is_empty()) || !st.layers.is_empty() {
            return Ok(self.xattrs(&st, obj)?.into_keys().collect());
        }
        if object.is_some_and(super::delta::Object::is_new) {
            return Ok(Vec::new());
        }
        base::xattr::list(self.nodes.open(obj)?.as_fd()).map_err(|e| errno(&e))
    }

    /// setxattr(2)
    pub fn setxattr(&self, obj: ObjId, name: &[u8], value: &[u8], flags: i32) -> OpResult<()> {
        let mut st = self.write_state()?;
        let obj = st.meant(obj)?;
        self.check_writable(&st, obj)?;
        let there = self.xattr(&st, obj, name)?.is_some();
        if flags & libc::XATTR_CREATE != 0 && there {
            return Err(Errno::EXIST);
        }
        if flags & libc::XATTR_REPLACE != 0 && !there {
            return Err(Errno::NODATA);
        }
        if name == acl::ACCESS {
            return self.set_access_list(&mut st, obj, value);
        }
        if name == acl::DEFAULT && Acl::parse(value)?.is_none() {
            return self.record_xattr(&mut st, obj, name, None);
        }
        self.try_xattr(&st, obj, name, value)?;
        self.record_xattr(&mut st, obj, name, Some(value.to_vec()))
    }

    fn set_access_list(&self, st: &mut State, obj: ObjId, value: &[u8]) -> OpResult<()> {
        let list = Acl::parse(value)?;
        if let Some(acl) = &list {
            let (attr, _) = self.attr(st, obj)?;
            let mode = attr.mode & 0o7000 | acl.mode();
            if mode != attr.mode {
                self.record_attrs(st, obj, Overrides { mode: Some(mode), ..Overrides::default() })?;
            }
        }
        match list.filter(|acl| !acl.is_minimal()) {
            Some(acl) => {
                self.try_xattr(st, obj, acl::ACCESS, value)?;
                self.record_xattr(st, obj, acl::ACCESS, Some(acl.to_bytes()))
            }
            None if self.xattr(st, obj, acl::ACCESS)?.is_some() => {
                self.record_xattr(st, obj, acl::ACCESS, None)
            }
            None => Ok(()),
        }
    }

    fn try_xattr(&self, st: &State, obj: ObjId, name: &[u8], value: &[u8]) -> OpResult<()> {
        let mut all = self.xattrs(st, obj)?;
        all.insert(name.to_vec(), value.to_vec());
        let kind = self.kind(st, obj)?;
        if kind != Kind::File && kind != Kind::Dir {
            // The scratch file is a regular one; of the others only few take attributes at all, and
            // commit says so for those that do not.
            return Ok(());
        }
        st.staging.try_xattrs(kind == Kind::Dir, &all).map_err(|e| errno(&e))
    }

    /// removexattr(2)
    pub fn removexattr(&self, obj: ObjId, name: &[u8]) -> OpResult<()> {
        let mut st = self.write_state()?;
        let obj = st.meant(obj)?;
        self.check_writable(&st, obj)?;
        if self.xattr(&st, obj, name)?.is_none() {
            return Err(Errno::NODATA);
        }
        self.record_xattr(&mut st, obj, name, None)
    }

    fn record_xattr(
        &self,
        st: &mut State,
        obj: ObjId,
        name: &[u8],
        value: Option<Vec<u8>>,
    ) -> OpResult<()> {
        let before = st.delta.objects.get(&obj).and_then(|o| o.xattrs.get(name).cloned());
        let inverse = Inverse::Restore { obj, to: Preimage::Xattr { name: name.to_vec(), before } };
        let effect = Effect::Write { obj, change: Change::Xattr { name: name.to_vec(), value } };
        self.record(st, effect, inverse, &[obj], &[obj])
    }

    /// statfs(2), of the base.
    pub fn statfs(&self) -> OpResult<rustix::fs::StatVfs> {
        rustix::fs::fstatvfs(self.nodes.base().root())
    }
}
