//! The real tree, behind one directory fd.
//!
//! Reading is free; everything that changes the tree is in [`mutate`] and asks for a sealed plan.
//! No path is ever resolved through a symbolic link or out of the tree.

pub mod mutate;
pub mod xattr;

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, StatxAttributes, StatxFlags};
use rustix::io::Errno;
use txfs_journal::{Fingerprint, Generation, Ident, Kind, RelPath, SlotId, Timestamp};

use crate::sys;

/// What statx(2) says of one object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stat {
    /// Which inode.
    pub ident: Ident,
    /// The device that holds it, `makedev(3)`.
    pub dev: u64,
    /// `& 0o7777`
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Hard links.
    pub nlink: u32,
    /// Bytes.
    pub size: u64,
    /// 512-byte blocks.
    pub blocks: u64,
    /// Preferred I/O size.
    pub blksize: u32,
    /// Of a device node, `makedev(3)`.
    pub rdev: u64,
    /// Last access.
    pub atime: Timestamp,
    /// Last modification.
    pub mtime: Timestamp,
    /// Last status change.
    pub ctime: Timestamp,
    /// It may not be changed (`chattr +i`, `chattr +a`).
    pub immutable: bool,
    /// Something is mounted on it.
    pub mount_root: bool,
}

impl Stat {
    /// The fingerprint; `handle` from [`sys::file_handle`], empty where there is none.
    #[must_use]
    pub fn fingerprint(&self, handle: Vec<u8>) -> Fingerprint {
        Fingerprint {
            ident: self.ident,
            handle,
            mode: self.mode,
            uid: self.uid,
            gid: self.gid,
            nlink: self.nlink,
            size: self.size,
            rdev: self.rdev,
            mtime: self.mtime,
            ctime: self.ctime,
        }
    }
}

/// Where an inode is that commits moved.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Whereabouts {
    /// At a path of the base.
    Base(RelPath),
    /// In a slot of the history.
    Slot(Generation, SlotId),
}

/// The real tree.
#[derive(Debug)]
pub struct Base {
    root: OwnedFd,
    path: PathBuf,
    stat: Stat,
    /// open_by_handle_at(2) is permitted.
    handles: bool,
    moved: RwLock<HashMap<u64, Whereabouts>>,
    left: RwLock<Left>,
    /// Where later generations took what was in a slot.
    fetched: RwLock<HashMap<(Generation, SlotId), (Generation, SlotId)>>,
    /// Moves begun and ended: odd while one is under way.
    moves: AtomicU64,
}

/// A move of something in the base is under way as long as this lives.
#[derive(Debug)]
pub struct Moving<'a>(&'a Base);

impl Drop for Moving<'_> {
    fn drop(&mut self) {
        self.0.moves.fetch_add(1, Ordering::Release);
    }
}

/// Directories that left their paths, with all that was in them.
#[derive(Debug, Default)]
struct Left {
    by_path: HashMap<RelPath, Whereabouts>,
    by_slot: HashMap<(Generation, SlotId), RelPath>,
}

impl Base {
    /// Opens a directory as base.
    ///
    /// # Errors
    /// Those of open(2); `ENOTDIR`.
    pub fn open(path: &Path) -> io::Result<Base> {
        let root = rustix::fs::open(
            path,
            OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        )?;
        if rustix::fs::fstatfs(&root)?.f_type == OVERLAYFS {
            BIRTHS_CHANGE.store(true, Ordering::Relaxed);
        }
        let stat = stat_fd(root.as_fd())?;
        let handles = sys::file_handle(root.as_fd(), b"")
            .and_then(|h| sys::open_handle(root.as_fd(), &h, libc::O_PATH))
            .is_ok()
            && std::env::var_os("TXFS_NO_HANDLES").is_none();
        let path = path.canonicalize()?;
        Ok(Base {
            root,
            path,
            stat,
            handles,
            moved: RwLock::default(),
            left: RwLock::default(),
            fetched: RwLock::default(),
            moves: AtomicU64::new(0),
        })
    }

    /// The root.
    #[must_use]
    pub fn root(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }

    /// Its absolute path when it was opened, for messages.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The root's state when it was opened.
    #[must_use]
    pub fn root_stat(&self) -> &Stat {
        &self.stat
    }

    /// The device; objects of another one are behind a boundary.
    #[must_use]
    pub fn dev(&self) -> u64 {
        self.stat.dev
    }

    /// Whether the directory still is where it was opened.
    ///
    /// # Errors
    /// Those of stat(2).
    pub fn is_in_place(&self) -> io::Result<bool> {
        let now = stat_at(rustix::fs::CWD, self.path.as_os_str().as_encoded_bytes())?;
        Ok(now.ident == self.stat.ident)
    }

    /// Opens an object by its handle as `O_PATH`; `None` where that is not permitted or it is gone.
    #[must_use]
    pub fn by_handle(&self, handle: &[u8]) -> Option<OwnedFd> {
        if !self.handles || handle.is_empty() {
            return None;
        }
        sys::open_handle(self.root.as_fd(), handle, libc::O_PATH).ok()
    }

    /// The handle of an open object, where it could be opened again by it.
    #[must_use]
    pub fn handle_of(&self, fd: BorrowedFd<'_>) -> Option<Box<[u8]>> {
        if self.handles { sys::file_handle(fd, b"").ok().map(Vec::into_boxed_slice) } else { None }
    }

    /// Opens a path of several components as `O_PATH`, beneath the root, without links and mounts.
    ///
    /// # Errors
    /// `ELOOP` or `EXDEV` if the path leaves the tree.
    pub fn open_path(&self, path: &RelPath) -> io::Result<OwnedFd> {
        open_beneath(self.root.as_fd(), path, OFlags::PATH | OFlags::NOFOLLOW)
    }

    /// Where commits put an inode, if they moved it.
    #[must_use]
    pub fn whereabouts(&self, ino: u64) -> Option<Whereabouts> {
        self.moved.read().unwrap_or_else(PoisonError::into_inner).get(&ino).cloned()
    }

    /// Says that something is about to be moved. One thread at a time moves: the one that applies a plan.
    pub fn moving(&self) -> Moving<'_> {
        self.moves.fetch_add(1, Ordering::Release);
        Moving(self)
    }

    /// Looks for something until it is found, or nothing was moved while it was looked for: what a plan moves is
    /// for a moment neither where it was nor where it is said to be.
    ///
    /// # Errors
    /// Those of `look`.
    pub fn search<T, E>(
        &self,
        mut look: impl FnMut() -> Result<Option<T>, E>,
    ) -> Result<Option<T>, E> {
        loop {
            let before = self.moves.load(Ordering::Acquire);
            if let Some(found) = look()? {
                return Ok(Some(found));
            }
            std::sync::atomic::fence(Ordering::SeqCst);
            if before.is_multiple_of(2) && before == self.moves.load(Ordering::Acquire) {
                return Ok(None);
            }
            std::thread::yield_now();
        }
    }

    /// Remembers that what is in a slot goes into one of a later generation. To be called before it does.
    pub fn fetches(&self, from: (Generation, SlotId), to: (Generation, SlotId)) {
        self.fetched.write().unwrap_or_else(PoisonError::into_inner).insert(from, to);
    }

    /// Where a later generation took what was in a slot.
    #[must_use]
    pub fn fetched(&self, from: (Generation, SlotId)) -> Option<(Generation, SlotId)> {
        self.fetched.read().unwrap_or_else(PoisonError::into_inner).get(&from).copied()
    }

    /// Remembers that a directory goes from a path to a slot.
    pub fn dir_leaves(&self, path: &RelPath, slot: (Generation, SlotId)) {
        let mut left = self.left.write().unwrap_or_else(PoisonError::into_inner);
        left.by_path.insert(path.clone(), Whereabouts::Slot(slot.0, slot.1));
        left.by_slot.insert(slot, path.clone());
    }

    /// Remembers that a directory comes from a slot to a path.
    pub fn dir_comes(&self, slot: (Generation, SlotId), path: &RelPath) {
        let mut left = self.left.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(from) = left.by_slot.remove(&slot) {
            left.by_path.insert(from, Whereabouts::Base(path.clone()));
        }
    }

    /// Where the nearest directory above a path went that left, and the path below it.
    #[must_use]
    pub fn followed(&self, path: &RelPath) -> Option<(Whereabouts, Vec<u8>)> {
        let left = self.left.read().unwrap_or_else(PoisonError::into_inner);
        let mut at = path.split();
        while let Some((dir, _)) = at {
            if let Some(to) = left.by_path.get(&dir) {
                let rest = path.as_bytes().get(dir.as_bytes().len() + 1..)?;
                return Some((to.clone(), rest.to_vec()));
            }
            at = dir.split();
        }
        None
    }

    /// Remembers where an inode is going to be. To be called before it is moved there.
    pub fn moves(&self, ino: u64, to: Whereabouts) {
        self.moved.write().unwrap_or_else(PoisonError::into_inner).insert(ino, to);
    }
}

/// Whether an error of looking at a path says that nothing is there: no such name, or no directory on the
/// way (another kind of entry, or a symbolic link, which is not followed).
#[must_use]
pub fn is_absent(e: &io::Error) -> bool {
    matches!(e.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR | libc::ELOOP))
}

/// Opens a path beneath `dir` without following links or crossing mounts. Paths longer than
/// `PATH_MAX` are walked in pieces.
///
/// # Errors
/// `ELOOP` or `EXDEV` if the path leaves the tree.
pub fn open_beneath(dir: BorrowedFd<'_>, path: &RelPath, flags: OFlags) -> io::Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    let open = |dir: BorrowedFd<'_>, path: &[u8], flags: OFlags| {
        let path = if path.is_empty() { b"." } else { path };
        rustix::fs::openat2(dir, path, flags | OFlags::CLOEXEC, Mode::empty(), resolve)
    };
    const PIECE: usize = 3072;
    let bytes = path.as_bytes();
    if bytes.len() <= PIECE {
        return Ok(open(dir, bytes, flags)?);
    }
    let (mut at, mut from): (Option<OwnedFd>, usize) = (None, 0);
    loop {
        let here = at.as_ref().map_or(dir, AsFd::as_fd);
        if bytes.len() - from <= PIECE {
            return Ok(open(here, &bytes[from..], flags)?);
        }
        let cut = bytes[from..from + PIECE].iter().rposition(|&b| b == b'/').unwrap_or(PIECE);
        let next = open(here, &bytes[from..from + cut], OFlags::PATH | OFlags::DIRECTORY)?;
        at = Some(next);
        from += cut + 1;
    }
}

/// Opens one component as `O_PATH`, itself if it is a link.
///
/// # Errors
/// Those of open(2).
pub fn open_child(dir: BorrowedFd<'_>, name: &[u8]) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(dir, name, flags, Mode::empty())?)
}

/// Opens an `O_PATH` fd of a regular file or directory for use, through /proc.
///
/// # Errors
/// Those of open(2). The caller has checked the kind: opening a FIFO would block, a device would act.
pub fn reopen(fd: BorrowedFd<'_>, flags: OFlags) -> io::Result<OwnedFd> {
    Ok(rustix::fs::open(proc_path(fd), flags | OFlags::CLOEXEC, Mode::empty())?)
}

/// Opens a regular file of this identity for reading; `None` if another one is there by now, or none, or it may
/// not be read. The caller has just seen it there: something else that took its place since is opened
/// without waiting for it, and closed again.
///
/// # Errors
/// The other ones of open(2).
pub fn open_file_at(
    dir: BorrowedFd<'_>,
    name: &[u8],
    ident: &Ident,
) -> io::Result<Option<OwnedFd>> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    let open = |more| rustix::fs::openat(dir, name, flags | more | OFlags::CLOEXEC, Mode::empty());
    // Only the owner may leave the time of access alone.
    let opened = match open(OFlags::NOATIME) {
        Err(Errno::PERM) => open(OFlags::empty()),
        opened => opened,
    };
    match opened {
        Ok(fd) => Ok((stat_fd(fd.as_fd())?.ident == *ident).then_some(fd)),
        // Of a socket in its place, or a device without a driver: `ENXIO`.
        Err(Errno::ACCESS | Errno::PERM | Errno::NOENT | Errno::LOOP | Errno::NXIO) => Ok(None),
        Err(e) => Err(e.into()),
    }
}

/// The path by which calls that take no `O_PATH` fd reach what it refers to.
#[must_use]
pub fn proc_path(fd: BorrowedFd<'_>) -> String {
    use std::os::fd::AsRawFd;
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

/// statx(2) of one component, itself if it is a link.
///
/// # Errors
/// Those of statx(2).
pub fn stat_at(dir: BorrowedFd<'_>, name: &[u8]) -> io::Result<Stat> {
    stat(dir, name, AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT)
}

/// statx(2) of what an fd refers to.
///
/// # Errors
/// Those of statx(2).
pub fn stat_fd(fd: BorrowedFd<'_>) -> io::Result<Stat> {
    stat(fd, b"", AtFlags::EMPTY_PATH)
}

/// `OVERLAYFS_SUPER_MAGIC` in linux/magic.h
const OVERLAYFS: rustix::fs::FsWord = 0x794c_7630;

/// On overlayfs the first change of a lower file, a rename included, copies it up: it keeps its
/// inode number and gets the time of birth of the copy, which then identifies nothing. A process
/// has one base.
static BIRTHS_CHANGE: AtomicBool = AtomicBool::new(false);

fn stat(dir: BorrowedFd<'_>, name: &[u8], flags: AtFlags) -> io::Result<Stat> {
    let x = rustix::fs::statx(dir, name, flags, StatxFlags::BASIC_STATS | StatxFlags::BTIME)?;
    let kind = kind_of(FileType::from_raw_mode(x.stx_mode.into()))
        .ok_or_else(|| io::Error::other(format!("unknown file type in mode {:o}", x.stx_mode)))?;
    let time = |t: &rustix::fs::StatxTimestamp| Timestamp { secs: t.tv_sec, nanos: t.tv_nsec };
    let has_btime = StatxFlags::from_bits_retain(x.stx_mask).contains(StatxFlags::BTIME)
        && !BIRTHS_CHANGE.load(Ordering::Relaxed);
    Ok(Stat {
        ident: Ident { ino: x.stx_ino, btime: has_btime.then(|| time(&x.stx_btime)), kind },
        dev: rustix::fs::makedev(x.stx_dev_major, x.stx_dev_minor),
        mode: u32::from(x.stx_mode) & 0o7777,
        uid: x.stx_uid,
        gid: x.stx_gid,
        nlink: x.stx_nlink,
        size: x.stx_size,
        blocks: x.stx_blocks,
        blksize: x.stx_blksize,
        rdev: rustix::fs::makedev(x.stx_rdev_major, x.stx_rdev_minor),
        atime: time(&x.stx_atime),
        mtime: time(&x.stx_mtime),
        ctime: time(&x.stx_ctime),
        immutable: x
            .stx_attributes
            .intersects(StatxAttributes::IMMUTABLE | StatxAttributes::APPEND),
        mount_root: x.stx_attributes.contains(StatxAttributes::MOUNT_ROOT),
    })
}

/// The kind, `None` for what is no kind of file.
#[must_use]
pub fn kind_of(file_type: FileType) -> Option<Kind> {
    Some(match file_type {
        FileType::RegularFile => Kind::File,
        FileType::Directory => Kind::Dir,
        FileType::Symlink => Kind::Symlink,
        FileType::Fifo => Kind::Fifo,
        FileType::Socket => Kind::Socket,
        FileType::CharacterDevice => Kind::Char,
        FileType::BlockDevice => Kind::Block,
        FileType::Unknown => return None,
    })
}

/// The text of a symbolic link behind an `O_PATH` fd.
///
/// # Errors
/// Those of readlink(2).
pub fn read_link(fd: BorrowedFd<'_>) -> io::Result<Vec<u8>> {
    Ok(rustix::fs::readlinkat(fd, "", Vec::new())?.into_bytes())
}

/// The entries of a directory without `.` and `..`, by name and inode number. The kind is what
/// the directory says, or what statx says where it says nothing.
///
/// # Errors
/// Those of getdents(2).
pub fn list(dir: BorrowedFd<'_>) -> io::Result<Vec<(Vec<u8>, u64, Kind)>> {
    let dir = reopen(dir, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOATIME)
        .or_else(|_| reopen(dir, OFlags::RDONLY | OFlags::DIRECTORY))?;
    let mut out = Vec::new();
    for entry in rustix::fs::Dir::read_from(&dir)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name == b"." || name == b".." {
            continue;
        }
        let kind = match kind_of(entry.file_type()) {
            Some(kind) => kind,
            None => match stat_at(dir.as_fd(), name) {
                Ok(stat) => stat.ident.kind,
                Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
                Err(e) => return Err(e),
            },
        };
        out.push((name.to_vec(), entry.ino(), kind));
    }
    Ok(out)
}

/// A directory fd that several holders share.
pub type SharedFd = Arc<OwnedFd>;
