//! A transaction's namespace: its effects over the base as it was at its base generation.
//!
//! It works without FUSE: the operations are those of a file system on object numbers, the
//! adapter in [`crate::fuse`] decodes requests and calls them.

pub mod api;

use txfs_journal::{Name, ObjId};

use api::*;

/// One transaction's view. All operations may be called from any number of threads.
pub struct View {}

#[allow(unused_variables, missing_docs, clippy::todo)]
impl View {
    pub fn attach(&self, kernel: std::sync::Arc<dyn Kernel>, passthrough: bool) {
        todo!()
    }
    pub fn detach(&self) {
        todo!()
    }
    pub fn lookup(&self, parent: ObjId, name: &Name) -> OpResult<Entry> {
        todo!()
    }
    pub fn forget(&self, obj: ObjId, count: u64) {
        todo!()
    }
    pub fn getattr(&self, obj: ObjId, fh: Option<Fh>) -> OpResult<(Attr, Trust)> {
        todo!()
    }
    pub fn setattr(
        &self,
        caller: &Caller,
        obj: ObjId,
        fh: Option<Fh>,
        set: &SetAttr,
    ) -> OpResult<(Attr, Trust)> {
        todo!()
    }
    pub fn readlink(&self, obj: ObjId) -> OpResult<Vec<u8>> {
        todo!()
    }
    pub fn mknod(
        &self,
        caller: &Caller,
        parent: ObjId,
        name: &Name,
        spec: &NodeSpec,
    ) -> OpResult<Entry> {
        todo!()
    }
    pub fn mkdir(
        &self,
        caller: &Caller,
        parent: ObjId,
        name: &Name,
        mode: u32,
        umask: u32,
    ) -> OpResult<Entry> {
        todo!()
    }
    pub fn symlink(
        &self,
        caller: &Caller,
        parent: ObjId,
        name: &Name,
        target: &[u8],
    ) -> OpResult<Entry> {
        todo!()
    }
    pub fn link(&self, caller: &Caller, obj: ObjId, parent: ObjId, name: &Name) -> OpResult<Entry> {
        todo!()
    }
    pub fn unlink(&self, caller: &Caller, parent: ObjId, name: &Name) -> OpResult<()> {
        todo!()
    }
    pub fn rmdir(&self, caller: &Caller, parent: ObjId, name: &Name) -> OpResult<()> {
        todo!()
    }
    pub fn rename(
        &self,
        caller: &Caller,
        from: (ObjId, &Name),
        to: (ObjId, &Name),
        mode: RenameMode,
    ) -> OpResult<()> {
        todo!()
    }
    /// `flags` are open(2)'s, `O_TRUNC` included (the adapter negotiates FUSE_ATOMIC_O_TRUNC).
    pub fn open(&self, caller: &Caller, obj: ObjId, flags: i32) -> OpResult<Opened> {
        todo!()
    }
    pub fn create(
        &self,
        caller: &Caller,
        parent: ObjId,
        name: &Name,
        spec: &NodeSpec,
        flags: i32,
    ) -> OpResult<(Entry, Opened)> {
        todo!()
    }
    /// The adapter could not register the passthrough file: the handle goes on cached.
    pub fn serve_cached(&self, fh: Fh) -> OpResult<()> {
        todo!()
    }
    /// Fills `buf` from `offset`; short only at the end of the file.
    pub fn read(&self, fh: Fh, offset: u64, buf: &mut [u8]) -> OpResult<usize> {
        todo!()
    }
    /// `kill_suid` is FUSE_WRITE_KILL_SUIDGID.
    pub fn write(
        &self,
        caller: &Caller,
        fh: Fh,
        offset: u64,
        data: &[u8],
        kill_suid: bool,
    ) -> OpResult<usize> {
        todo!()
    }
    pub fn flush(&self, fh: Fh) -> OpResult<()> {
        todo!()
    }
    pub fn fsync(&self, fh: Fh, datasync: bool) -> OpResult<()> {
        todo!()
    }
    pub fn release(&self, fh: Fh) {
        todo!()
    }
    pub fn fallocate(
        &self,
        caller: &Caller,
        fh: Fh,
        offset: u64,
        len: u64,
        mode: i32,
    ) -> OpResult<()> {
        todo!()
    }
    pub fn lseek(&self, fh: Fh, offset: i64, whence: i32) -> OpResult<u64> {
        todo!()
    }
    pub fn copy_file_range(
        &self,
        caller: &Caller,
        from: (Fh, u64),
        to: (Fh, u64),
        len: u64,
    ) -> OpResult<u64> {
        todo!()
    }
    pub fn opendir(&self, obj: ObjId) -> OpResult<Fh> {
        todo!()
    }
    /// The listing of an open directory from index `from`; taken at opendir and again at index 0.
    pub fn readdir(
        &self,
        fh: Fh,
        from: u64,
        each: &mut dyn FnMut(u64, &DirEntry) -> bool,
    ) -> OpResult<()> {
        todo!()
    }
    pub fn parent(&self, dir: ObjId) -> ObjId {
        todo!()
    }
    pub fn releasedir(&self, fh: Fh) {
        todo!()
    }
    pub fn fsyncdir(&self, fh: Fh) -> OpResult<()> {
        todo!()
    }
    pub fn getxattr(&self, obj: ObjId, name: &[u8]) -> OpResult<Vec<u8>> {
        todo!()
    }
    pub fn listxattr(&self, obj: ObjId) -> OpResult<Vec<Vec<u8>>> {
        todo!()
    }
    /// `flags` are setxattr(2)'s.
    pub fn setxattr(
        &self,
        caller: &Caller,
        obj: ObjId,
        name: &[u8],
        value: &[u8],
        flags: i32,
    ) -> OpResult<()> {
        todo!()
    }
    pub fn removexattr(&self, caller: &Caller, obj: ObjId, name: &[u8]) -> OpResult<()> {
        todo!()
    }
    pub fn statfs(&self) -> OpResult<rustix::fs::StatVfs> {
        todo!()
    }
}
