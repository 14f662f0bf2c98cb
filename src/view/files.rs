//! Open files and directories, and the way of their data.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};

use rustix::fs::OFlags;
use rustix::io::Errno;
use txfs_journal::{Change, Effect, Inverse, Kind, ObjId, Preimage, SlotId};

use super::api::{Caller, DataPath, DirEntry, Fh, OpResult, Opened};
use super::nodes::errno;
use super::state::{FileTable, State, View};
use crate::base::{self, Stat};

/// Base files up to this size are copied when they are opened for writing; larger ones, unless their
/// blocks can be shared, at the first write.
const COPY_AT_OPEN: u64 = 64 << 20;

/// Where the content of an open object is now.
#[derive(Clone, Debug)]
enum Data {
    /// In the base, or in a slot of the history: read-only.
    Base(Arc<File>),
    /// In a staged file that the daemon reads and writes.
    Staged(Arc<File>),
    /// In a staged file that the kernel reads and writes; read-only here, since a writable
    /// descriptor of ours would look like a foreign writer at commit.
    Passthrough(Arc<OwnedFd>),
    /// The object is gone with an aborted transaction.
    Gone,
}

/// An object with open handles.
#[derive(Debug)]
pub struct OpenFile {
    obj: ObjId,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    data: Data,
    readers: u32,
    writers: u32,
    /// What it stood for was taken back; the kernel may go on with a file that nobody else sees.
    gone: bool,
}

impl OpenFile {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the kernel reads and writes its file past the daemon.
    pub fn is_passthrough(&self) -> bool {
        matches!(self.lock().data, Data::Passthrough(_))
    }

    /// Whether it is open for writing.
    pub fn has_writer(&self) -> bool {
        self.lock().writers > 0
    }

    fn is_gone(&self) -> bool {
        self.lock().gone
    }

    fn file(&self) -> OpResult<Arc<File>> {
        match &self.lock().data {
            Data::Base(file) | Data::Staged(file) => Ok(Arc::clone(file)),
            Data::Passthrough(fd) => {
                Ok(Arc::new(File::from(fd.try_clone().map_err(|e| errno(&e))?)))
            }
            Data::Gone => Err(Errno::STALE),
        }
    }

    /// Daemon-served handles of an aborted object answer `ESTALE` from now on.
    pub(super) fn set_gone(&self) {
        let mut inner = self.lock();
        inner.gone = true;
        if !matches!(inner.data, Data::Passthrough(_)) {
            inner.data = Data::Gone;
        }
    }

    /// The content is in a staged file from now on.
    pub(super) fn set_staged(&self, file: File) {
        self.lock().data = Data::Staged(Arc::new(file));
    }

    /// The content is in the base from now on.
    pub(super) fn set_base(&self, file: File) {
        self.lock().data = Data::Base(Arc::new(file));
    }
}

#[derive(Clone, Debug)]
struct Handle {
    file: Arc<OpenFile>,
    /// For writing: the thread that opened it.
    writer: Option<u32>,
}

/// An open directory with its listing.
#[derive(Debug)]
pub struct OpenDir {
    /// Which.
    pub obj: ObjId,
    /// `None` until it is first read.
    listing: Mutex<Option<Listing>>,
}

/// Entries, each with the index of the next.
type Listing = Arc<Vec<(u64, DirEntry)>>;

impl OpenDir {
    fn lock(&self) -> MutexGuard<'_, Option<Listing>> {
        self.listing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a listing must be taken before reading from an index: at the start, and where there is none.
    pub fn needs_listing(&self, from: u64) -> bool {
        from == 0 || self.lock().is_none()
    }

    /// Takes a new listing.
    pub fn refresh(&self, listing: Vec<DirEntry>) {
        *self.lock() = Some(indexed(listing));
    }

    /// The entries from an index, each with the index of the next.
    pub fn from(&self, from: u64) -> DirSlice {
        let listing = self.lock().clone().unwrap_or_default();
        DirSlice(listing, usize::try_from(from).unwrap_or(usize::MAX))
    }
}

/// The rest of a listing.
#[derive(Debug)]
pub struct DirSlice(Listing, usize);

impl DirSlice {
    /// Its entries.
    pub fn iter(&self) -> std::slice::Iter<'_, (u64, DirEntry)> {
        self.0.get(self.1..).unwrap_or_default().iter()
    }
}

fn indexed(listing: Vec<DirEntry>) -> Listing {
    Arc::new(listing.into_iter().enumerate().map(|(n, e)| (n as u64 + 1, e)).collect())
}

/// All open handles of a view.
#[derive(Debug, Default)]
pub struct Handles {
    next: AtomicU64,
    open: RwLock<HashMap<Fh, Handle>>,
    dirs: RwLock<HashMap<Fh, Arc<OpenDir>>>,
    files: FileTable,
    /// Objects whose pages in the kernel may be older than their file, since it was written past them.
    outdated: Mutex<HashSet<ObjId>>,
    /// Objects that somebody may write through a mapping though no handle is left.
    written_past: Mutex<HashSet<ObjId>>,
    released: Condvar,
}

impl Handles {
    fn next(&self) -> Fh {
        Fh(self.next.fetch_add(1, Ordering::Relaxed) + 1)
    }

    fn files(&self) -> MutexGuard<'_, HashMap<ObjId, Arc<OpenFile>>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn get(&self, fh: Fh) -> OpResult<Handle> {
        self.open
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .get(&fh)
            .cloned()
            .ok_or(Errno::BADF)
    }

    /// Fails if the handle's object is gone.
    pub(super) fn check(&self, fh: Fh) -> OpResult<()> {
        match self.get(fh) {
            Ok(handle) if handle.file.is_gone() => Err(Errno::STALE),
            Ok(_) => Ok(()),
            // Directories have handles of their own.
            Err(_) => Ok(()),
        }
    }

    /// Somebody may write the object's staged file through a mapping.
    pub(super) fn add_written_past(&self, obj: ObjId) {
        self.written_past.lock().unwrap_or_else(PoisonError::into_inner).insert(obj);
    }

    /// The objects that may be written through a mapping, to be asked one by one.
    pub(super) fn take_written_past(&self) -> HashSet<ObjId> {
        std::mem::take(&mut *self.written_past.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The open file of an object.
    pub(crate) fn open_file(&self, obj: ObjId) -> Option<Arc<OpenFile>> {
        self.files().get(&obj).cloned()
    }

    /// All objects with open handles.
    pub(crate) fn open_files(&self) -> Vec<(ObjId, Arc<OpenFile>)> {
        self.files().iter().map(|(obj, file)| (*obj, Arc::clone(file))).collect()
    }

    /// The threads that opened an object for writing, by their ids.
    pub(super) fn writers_of(&self, obj: ObjId) -> Vec<u32> {
        let open = self.open.read().unwrap_or_else(PoisonError::into_inner);
        open.values().filter(|h| h.file.obj == obj).filter_map(|h| h.writer).collect()
    }

    /// The open file of an object stands for nothing any more: the next open makes another.
    pub(super) fn retire(&self, obj: ObjId) -> Option<Arc<OpenFile>> {
        self.files().remove(&obj)
    }

    pub(super) fn is_passthrough(&self, obj: ObjId) -> bool {
        self.open_file(obj).is_some_and(|f| f.is_passthrough())
    }

    /// The state of an open object by its descriptor.
    pub(super) fn stat(&self, obj: ObjId) -> Option<Stat> {
        let file = self.open_file(obj)?.file().ok()?;
        base::stat_fd(file.as_fd()).ok()
    }

    /// A handle of an open file. The table has the file afterwards: the last other handle may have
    /// been released since it was taken from there.
    fn add(&self, file: Arc<OpenFile>, writer: Option<u32>) -> Opened {
        let fh = self.next();
        let mut files = self.files();
        let file = Arc::clone(files.entry(file.obj).or_insert(file));
        let data = {
            let mut inner = file.lock();
            if writer.is_some() {
                inner.writers += 1;
            } else {
                inner.readers += 1;
            }
            let mut outdated = self.outdated.lock().unwrap_or_else(PoisonError::into_inner);
            match &inner.data {
                Data::Passthrough(fd) => {
                    outdated.insert(file.obj);
                    DataPath::Passthrough(Arc::clone(fd))
                }
                Data::Base(_) | Data::Staged(_) | Data::Gone => {
                    DataPath::Cached { keep: !outdated.remove(&file.obj) }
                }
            }
        };
        drop(files);
        let handle = Handle { file, writer };
        self.open.write().unwrap_or_else(PoisonError::into_inner).insert(fh, handle);
        Opened { fh, data }
    }

    fn release(&self, fh: Fh) {
        let Some(handle) = self.open.write().unwrap_or_else(PoisonError::into_inner).remove(&fh)
        else {
            return;
        };
        let mut files = self.files();
        let mut inner = handle.file.lock();
        if handle.writer.is_some() {
            inner.writers -= 1;
            if matches!(inner.data, Data::Passthrough(_)) && !inner.gone {
                self.add_written_past(handle.file.obj);
            }
        } else {
            inner.readers -= 1;
        }
        let idle = inner.readers == 0 && inner.writers == 0;
        drop(inner);
        self.released.notify_all();
        if idle && files.get(&handle.file.obj).is_some_and(|f| Arc::ptr_eq(f, &handle.file)) {
            files.remove(&handle.file.obj);
        }
    }

    /// A new open directory.
    pub(super) fn open_dir(&self, obj: ObjId) -> Fh {
        let fh = self.next();
        let dir = OpenDir { obj, listing: Mutex::new(None) };
        self.dirs.write().unwrap_or_else(PoisonError::into_inner).insert(fh, Arc::new(dir));
        fh
    }

    pub(super) fn dir(&self, fh: Fh) -> OpResult<Arc<OpenDir>> {
        let dirs = self.dirs.read().unwrap_or_else(PoisonError::into_inner);
        dirs.get(&fh).cloned().ok_or(Errno::BADF)
    }

    pub(super) fn close_dir(&self, fh: Fh) {
        self.dirs.write().unwrap_or_else(PoisonError::into_inner).remove(&fh);
    }

    /// Forgets everything: the mount is gone.
    pub(super) fn clear(&self) {
        self.open.write().unwrap_or_else(PoisonError::into_inner).clear();
        self.dirs.write().unwrap_or_else(PoisonError::into_inner).clear();
        self.files().clear();
        self.outdated.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

/// Whether an open with these flags is a change.
fn changes(flags: i32) -> bool {
    flags & (libc::O_ACCMODE | libc::O_TRUNC) != libc::O_RDONLY
}

fn wants_write(flags: i32) -> bool {
    flags & libc::O_ACCMODE != libc::O_RDONLY
}

impl View {
    /// open(2) of what exists; `flags` are open(2)'s, `O_TRUNC` included.
    pub fn open_file_handle(&self, caller: &Caller, obj: ObjId, flags: i32) -> OpResult<Opened> {
        if changes(flags) {
            let mut st = self.write_state()?;
            let obj = st.meant(obj)?;
            return self.open_locked(&mut st, caller, obj, flags);
        }
        match self.open_at_once(obj, flags) {
            Some(opened) => opened,
            None => {
                let _turn = self.wait_for_turn();
                self.open_in_turn(obj)
            }
        }
    }

    /// open(2) for reading of what exists, or `None` if it has to wait: a commit lands what nobody has open
    /// itself, and takes that for settled. To be called without a turn.
    pub fn open_at_once(&self, obj: ObjId, flags: i32) -> Option<OpResult<Opened>> {
        if changes(flags) {
            return None;
        }
        if let Some(_turn) = self.turn() {
            return Some(self.open_in_turn(obj));
        }
        let st = self.read_state();
        let meant = match st.meant(obj) {
            Ok(meant) => meant,
            Err(e) => return Some(Err(e)),
        };
        if let Some(file) = self.handles.open_file(meant) {
            return Some(Ok(self.handles.add(file, None)));
        }
        if st.delta.is_staged(meant) {
            return None;
        }
        Some(self.open_for_reading(&st, meant).map(|file| self.handles.add(file, None)))
    }

    fn open_in_turn(&self, obj: ObjId) -> OpResult<Opened> {
        let st = self.read_state();
        let meant = st.meant(obj)?;
        let file = self.open_for_reading(&st, meant)?;
        Ok(self.handles.add(file, None))
    }

    fn open_for_reading(&self, st: &State, obj: ObjId) -> OpResult<Arc<OpenFile>> {
        if let Some(file) = self.handles.open_file(obj) {
            return Ok(file);
        }
        match self.kind(st, obj)? {
            Kind::File => {}
            Kind::Dir => return Err(Errno::ISDIR),
            Kind::Symlink => return Err(Errno::LOOP),
            Kind::Fifo | Kind::Socket | Kind::Char | Kind::Block => return Err(Errno::NXIO),
        }
        let data = match st.delta.objects.get(&obj).and_then(|o| o.content) {
            Some(slot) => self.staged_data(st, obj, slot)?,
            None => Data::Base(Arc::new(self.base_file(st, obj)?)),
        };
        Ok(self.keep(obj, data))
    }

    /// Puts an open file into the table; one that is there already stands.
    fn keep(&self, obj: ObjId, data: Data) -> Arc<OpenFile> {
        let inner = Mutex::new(Inner { data, readers: 0, writers: 0, gone: false });
        let mut files = self.handles.files();
        Arc::clone(files.entry(obj).or_insert_with(|| Arc::new(OpenFile { obj, inner })))
    }

    /// The way of the data of a staged file, fixed at its first open.
    fn staged_data(&self, st: &State, obj: ObjId, slot: SlotId) -> OpResult<Data> {
        let (attr, _) = self.attr(st, obj)?;
        let past =
            self.passthrough.load(Ordering::Relaxed) && !self.is_privileged(st, obj, attr.mode)?;
        let file = st.staging.file(slot, !past).map_err(|e| errno(&e))?;
        Ok(if past {
            Data::Passthrough(Arc::new(file.into()))
        } else {
            Data::Staged(Arc::new(file))
        })
    }

    /// The base's content of an object, as of the view's generation, for reading.
    pub(crate) fn base_file(&self, st: &State, obj: ObjId) -> OpResult<File> {
        let node = self.nodes.get(obj).ok_or(Errno::STALE)?;
        if let Some((layer, slot)) = self.before(st, (node.dev, node.ident.ino), |b| b.content) {
            return self.nodes.slot_file(layer.generation, slot);
        }
        let fd = self.nodes.open(obj)?;
        let opened = base::reopen(fd.as_fd(), OFlags::RDONLY | OFlags::NOATIME)
            .or_else(|_| base::reopen(fd.as_fd(), OFlags::RDONLY));
        opened.map(File::from).map_err(|e| errno(&e))
    }

    /// open(2) with the state locked for changing.
    pub(super) fn open_locked(
        &self,
        st: &mut State,
        caller: &Caller,
        obj: ObjId,
        flags: i32,
    ) -> OpResult<Opened> {
        let write = wants_write(flags);
        if write || flags & libc::O_TRUNC != 0 {
            self.check_writable(st, obj)?;
            if self.kind(st, obj)? == Kind::Dir {
                return Err(Errno::ISDIR);
            }
        }
        if flags & libc::O_TRUNC != 0 {
            self.truncate(st, obj, 0)?;
            if caller.uid != 0 {
                self.kill_privileges(st, obj)?;
            }
        } else if write && st.delta.objects.get(&obj).is_none_or(|o| o.content.is_none()) {
            self.copy_up_at_open(st, obj)?;
        } else if write {
            self.thaw_at_open(st, obj)?;
        }
        let file = self.open_for_reading(st, obj)?;
        Ok(self.handles.add(file, write.then_some(caller.pid)))
    }

    /// Whether the kernel may read and write a new file of this mode itself.
    pub(super) fn goes_past_us(&self, mode: u32) -> bool {
        self.passthrough.load(Ordering::Relaxed) && mode & 0o6000 == 0
    }

    /// The handle of a file just made; `past` says that the kernel reads and writes it itself.
    pub(super) fn open_new(
        &self,
        caller: &Caller,
        obj: ObjId,
        file: File,
        past: bool,
        flags: i32,
    ) -> Opened {
        let data = if past {
            Data::Passthrough(Arc::new(file.into()))
        } else {
            Data::Staged(Arc::new(file))
        };
        let file = self.keep(obj, data);
        self.handles.add(file, wants_write(flags).then_some(caller.pid))
    }

    fn copy_up_at_open(&self, st: &mut State, obj: ObjId) -> OpResult<()> {
        let size = self.attr(st, obj)?.0.size;
        if size > COPY_AT_OPEN {
            return Ok(());
        }
        self.copy_up(st, obj)
    }

    /// A large file that a savepoint needs is served by the daemon and copied at the first write.
    fn thaw_at_open(&self, st: &mut State, obj: ObjId) -> OpResult<()> {
        let Some(slot) = self.frozen(st, obj) else { return Ok(()) };
        let open = self.handles.open_file(obj);
        let size = st.staging.stat(slot).map_err(|e| errno(&e))?.size;
        if size <= COPY_AT_OPEN || open.as_ref().is_some_and(|f| f.is_passthrough()) {
            return self.thaw(st, obj);
        }
        if open.is_none() {
            let file = st.staging.file(slot, true).map_err(|e| errno(&e))?;
            self.keep(obj, Data::Staged(Arc::new(file)));
        }
        Ok(())
    }

    /// Gives an object a staged copy of its base content.
    fn copy_up(&self, st: &mut State, obj: ObjId) -> OpResult<()> {
        let from = self.base_file(st, obj)?;
        let mtime = self.attr(st, obj)?.0.mtime;
        let (slot, file) = st.staging.copy(&from, mtime).map_err(|e| errno(&e))?;
        self.record_content(st, obj, slot, file)
    }

    /// The content of an object is in a new staged file from here on.
    pub(super) fn record_content(
        &self,
        st: &mut State,
        obj: ObjId,
        slot: SlotId,
        file: File,
    ) -> OpResult<()> {
        let before = st.delta.objects.get(&obj).and_then(|o| o.content);
        let inverse = Inverse::Restore { obj, to: Preimage::Content { slot: before } };
        let effect = Effect::Write { obj, change: Change::Content { slot } };
        if let Err(e) = self.record(st, effect, inverse, &[obj], &[]) {
            st.staging.remove(slot).map_err(|e| errno(&e))?;
            return Err(e);
        }
        if let Some(open) = self.handles.open_file(obj) {
            let mut inner = open.lock();
            // Readers of the content before are to see what is written from now on.
            if matches!(inner.data, Data::Base(_) | Data::Staged(_)) {
                inner.data = Data::Staged(Arc::new(file));
            }
        }
        Ok(())
    }

    /// Sets the size, with a staged file.
    pub(super) fn truncate(&self, st: &mut State, obj: ObjId, size: u64) -> OpResult<()> {
        if self.kind(st, obj)? != Kind::File {
            return Err(Errno::INVAL);
        }
        let empties = size == 0 && !self.handles.is_passthrough(obj);
        if !(empties && self.frozen(st, obj).is_some()) {
            self.thaw(st, obj)?;
        }
        match st.delta.objects.get(&obj).and_then(|o| o.content) {
            Some(_) if self.frozen(st, obj).is_some() => {
                let (slot, file) = st.staging.create().map_err(|e| errno(&e))?;
                self.record_content(st, obj, slot, file)
            }
            Some(slot) => {
                let file = st.staging.file(slot, true).map_err(|e| errno(&e))?;
                file.set_len(size).map_err(|e| errno(&e))?;
                // A file of the same size keeps its times in ftruncate(2), but POSIX has them move.
                super::staging::set_times(file.as_fd(), None, Some(super::state::now()))
                    .map_err(|e| errno(&e))
            }
            None if size == 0 => {
                let (slot, file) = st.staging.create().map_err(|e| errno(&e))?;
                self.record_content(st, obj, slot, file)
            }
            None => {
                self.copy_up(st, obj)?;
                self.truncate(st, obj, size)
            }
        }
    }

    /// A passthrough file could not be registered with the kernel: the handle goes on cached.
    pub fn serve_cached(&self, fh: Fh) -> OpResult<()> {
        let handle = self.handles.get(fh)?;
        let st = self.read_state();
        let slot =
            st.delta.objects.get(&handle.file.obj).and_then(|o| o.content).ok_or(Errno::STALE)?;
        let file = st.staging.file(slot, true).map_err(|e| errno(&e))?;
        handle.file.lock().data = Data::Staged(Arc::new(file));
        Ok(())
    }

    /// Fills `buf` from `offset`; short only at the end of the file.
    pub fn read(&self, fh: Fh, offset: u64, buf: &mut [u8]) -> OpResult<usize> {
        let file = self.handles.get(fh)?.file.file()?;
        let mut done = 0;
        while done < buf.len() {
            match file.read_at(&mut buf[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(e) => return Err(errno(&e)),
            }
        }
        Ok(done)
    }

    /// Runs `with` on the staged file of an open object, made first if it has none.
    fn with_staged<T>(
        &self,
        file: &OpenFile,
        with: impl Fn(&File) -> std::io::Result<T>,
    ) -> OpResult<T> {
        // Held over the write, so that a commit cuts between two writes.
        let _turn = self.wait_for_turn();
        {
            let st = self.read_state();
            if file.is_gone() {
                return Err(Errno::STALE);
            }
            let data = file.lock().data.clone();
            match data {
                Data::Staged(_) | Data::Passthrough(_) if self.frozen(&st, file.obj).is_some() => {}
                Data::Staged(file) => return with(&file).map_err(|e| errno(&e)),
                Data::Passthrough(_) => {
                    let slot = st
                        .delta
                        .objects
                        .get(&file.obj)
                        .and_then(|o| o.content)
                        .ok_or(Errno::STALE)?;
                    let file = st.staging.file(slot, true).map_err(|e| errno(&e))?;
                    return with(&file).map_err(|e| errno(&e));
                }
                Data::Gone => return Err(Errno::STALE),
                Data::Base(_) => {}
            }
        }
        let mut st = self.write_state()?;
        if file.is_gone() {
            return Err(Errno::STALE);
        }
        let is_base = matches!(file.lock().data, Data::Base(_));
        if is_base {
            self.copy_up(&mut st, file.obj)?;
        } else {
            self.thaw(&mut st, file.obj)?;
        }
        let data = file.lock().data.clone();
        match data {
            Data::Staged(file) => with(&file).map_err(|e| errno(&e)),
            Data::Passthrough(_) => {
                let content = st.delta.objects.get(&file.obj).and_then(|o| o.content);
                let slot = content.ok_or(Errno::STALE)?;
                let file = st.staging.file(slot, true).map_err(|e| errno(&e))?;
                with(&file).map_err(|e| errno(&e))
            }
            Data::Base(_) | Data::Gone => Err(Errno::STALE),
        }
    }

    /// pwrite(2). `kill_suid` is `FUSE_WRITE_KILL_SUIDGID`.
    pub fn write(&self, fh: Fh, offset: u64, data: &[u8], kill_suid: bool) -> OpResult<usize> {
        let handle = self.handles.get(fh)?;
        if self.poisoned.load(Ordering::Relaxed) {
            return Err(Errno::ROFS);
        }
        self.with_staged(&handle.file, |file| file.write_all_at(data, offset))?;
        if kill_suid {
            let mut st = self.write_state()?;
            self.kill_privileges(&mut st, handle.file.obj)?;
        }
        Ok(data.len())
    }

    /// fallocate(2)
    pub fn fallocate(&self, fh: Fh, offset: u64, len: u64, mode: i32) -> OpResult<()> {
        let handle = self.handles.get(fh)?;
        let flags = rustix::fs::FallocateFlags::from_bits_retain(
            u32::try_from(mode).map_err(|_| Errno::INVAL)?,
        );
        self.with_staged(&handle.file, |file| Ok(rustix::fs::fallocate(file, flags, offset, len)?))
    }

    /// lseek(2) with `SEEK_DATA` and `SEEK_HOLE`.
    pub fn lseek(&self, fh: Fh, offset: i64, whence: i32) -> OpResult<u64> {
        use rustix::fs::SeekFrom;
        let file = self.handles.get(fh)?.file.file()?;
        let from = u64::try_from(offset).map_err(|_| Errno::NXIO)?;
        rustix::fs::seek(
            &*file,
            match whence {
                libc::SEEK_DATA => SeekFrom::Data(from),
                libc::SEEK_HOLE => SeekFrom::Hole(from),
                _ => return Err(Errno::INVAL),
            },
        )
    }

    /// copy_file_range(2); the caller tries again for the rest.
    pub fn copy_file_range(&self, from: (Fh, u64), to: (Fh, u64), len: u64) -> OpResult<u64> {
        let target = self.handles.get(to.0)?;
        // Made first, since both may be one object.
        self.with_staged(&target.file, |_| Ok(()))?;
        let source = self.handles.get(from.0)?.file.file()?;
        let len = usize::try_from(len).unwrap_or(usize::MAX).min(1 << 30);
        self.with_staged(&target.file, |file| {
            let (mut read, mut write) = (from.1, to.1);
            match rustix::fs::copy_file_range(
                &*source,
                Some(&mut read),
                file,
                Some(&mut write),
                len,
            ) {
                Ok(n) => Ok(n as u64),
                Err(Errno::XDEV | Errno::OPNOTSUPP | Errno::NOSYS) => {
                    copy_some(&source, file, from.1, to.1, len).map(|n| n as u64)
                }
                Err(e) => Err(e.into()),
            }
        })
    }

    /// fsync(2): the file and its place in the tree survive a power cut within the transaction.
    pub fn fsync(&self, fh: Fh, datasync: bool) -> OpResult<()> {
        let handle = self.handles.get(fh)?;
        let st = self.read_state();
        if let Some(slot) = st.delta.objects.get(&handle.file.obj).and_then(|o| o.content) {
            let file = match handle.file.file() {
                Ok(file) => file,
                Err(_) => Arc::new(st.staging.file(slot, false).map_err(|e| errno(&e))?),
            };
            let synced = if datasync { file.sync_data() } else { file.sync_all() };
            synced.map_err(|e| errno(&e))?;
            rustix::fs::fsync(st.staging.dir())?;
        }
        let writer = st.writer.clone();
        drop(st);
        writer.make_durable().map_err(|e| self.journal_failed(&e))
    }

    /// fsync(2) of a directory: its entries survive a power cut within the transaction.
    pub fn fsyncdir(&self, _fh: Fh) -> OpResult<()> {
        let st = self.read_state();
        rustix::fs::fsync(st.staging.dir())?;
        let writer = st.writer.clone();
        drop(st);
        writer.make_durable().map_err(|e| self.journal_failed(&e))
    }

    /// Returns when some handle has been released, or after `limit`.
    pub fn wait_for_release(&self, limit: std::time::Duration) {
        let files = self.handles.files();
        if files.values().any(|f| f.has_writer()) {
            drop(self.handles.released.wait_timeout(files, limit));
        }
    }

    /// The last close of a handle.
    pub fn release(&self, fh: Fh) {
        self.handles.release(fh);
    }
}

fn copy_some(from: &File, to: &File, read: u64, write: u64, len: usize) -> std::io::Result<usize> {
    let mut buf = vec![0; len.min(1 << 20)];
    let got = from.read_at(&mut buf, read)?;
    to.write_all_at(&buf[..got], write)?;
    Ok(got)
}
