//! The flat files that hold what a transaction wrote: `staged/<txn>/<slot>`.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use txfs_journal::{SlotId, Timestamp, Xattrs};

use crate::base::{self, Stat, xattr};

/// The staging directory of one transaction.
#[derive(Debug)]
pub struct Staging {
    dir: OwnedFd,
    next: AtomicU64,
}

impl Staging {
    /// Takes over an open directory and goes on after its highest slot.
    ///
    /// # Errors
    /// If it cannot be listed.
    pub fn open(dir: OwnedFd) -> io::Result<Staging> {
        let highest = base::list(dir.as_fd())?
            .iter()
            .filter_map(|(name, ..)| std::str::from_utf8(name).ok()?.parse::<u64>().ok())
            .max();
        Ok(Staging { dir, next: AtomicU64::new(highest.map_or(1, |h| h + 1)) })
    }

    /// The directory.
    #[must_use]
    pub fn dir(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }

    /// A slot that no file has.
    pub fn next_slot(&self) -> SlotId {
        SlotId(self.next.fetch_add(1, Ordering::Relaxed))
    }

    /// Slots from here on are free.
    pub fn reserve(&self, used: SlotId) {
        self.next.fetch_max(used.0 + 1, Ordering::Relaxed);
    }

    /// Makes an empty file of mode 0600.
    ///
    /// # Errors
    /// Those of open(2).
    pub fn create(&self) -> io::Result<(SlotId, File)> {
        self.create_as(OFlags::RDWR)
    }

    /// The same, with a descriptor that only reads: for the kernel, which writes by itself.
    ///
    /// # Errors
    /// Those of open(2).
    pub fn create_for_kernel(&self) -> io::Result<(SlotId, File)> {
        self.create_as(OFlags::RDONLY)
    }

    fn create_as(&self, access: OFlags) -> io::Result<(SlotId, File)> {
        let slot = self.next_slot();
        let flags = access | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let mode = Mode::RUSR | Mode::WUSR;
        Ok((slot, rustix::fs::openat(&self.dir, slot.to_string(), flags, mode)?.into()))
    }

    /// Opens a file.
    ///
    /// # Errors
    /// Those of open(2).
    pub fn file(&self, slot: SlotId, write: bool) -> io::Result<File> {
        let access = if write { OFlags::RDWR } else { OFlags::RDONLY };
        let flags = access | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let name = slot.to_string();
        let opened = rustix::fs::openat(&self.dir, &name, flags | OFlags::NOATIME, Mode::empty())
            .or_else(|e| match e {
            Errno::PERM => rustix::fs::openat(&self.dir, &name, flags, Mode::empty()),
            e => Err(e),
        })?;
        Ok(opened.into())
    }

    /// statx(2) of a file.
    ///
    /// # Errors
    /// Those of statx(2).
    pub fn stat(&self, slot: SlotId) -> io::Result<Stat> {
        base::stat_at(self.dir.as_fd(), slot.to_string().as_bytes())
    }

    /// Removes a file that nothing refers to.
    ///
    /// # Errors
    /// Those of unlink(2).
    pub fn remove(&self, slot: SlotId) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&self.dir, slot.to_string(), rustix::fs::AtFlags::empty())?)
    }

    /// Makes a file with the content of `from`: shares its blocks where the file system can, else
    /// copies the data and keeps the holes. Its modification time becomes `mtime`.
    ///
    /// # Errors
    /// Those of the copy; nothing is left of the file then.
    pub fn copy(&self, from: &File, mtime: Timestamp) -> io::Result<(SlotId, File)> {
        let (slot, to) = self.create()?;
        match copy_content(from, &to).and_then(|()| set_times(to.as_fd(), None, Some(mtime))) {
            Ok(()) => Ok((slot, to)),
            Err(e) => {
                self.remove(slot)?;
                Err(e)
            }
        }
    }

    /// Makes another file with the content and the times of a staged one.
    ///
    /// # Errors
    /// Those of the copy; nothing is left of the file then.
    pub fn duplicate(&self, from: &File) -> io::Result<(SlotId, File)> {
        let stat = base::stat_fd(from.as_fd())?;
        let (slot, to) = self.copy(from, stat.mtime)?;
        match set_times(to.as_fd(), Some(stat.atime), Some(stat.mtime)) {
            Ok(()) => Ok((slot, to)),
            Err(e) => {
                self.remove(slot)?;
                Err(e)
            }
        }
    }

    /// Gives a file a second slot.
    ///
    /// # Errors
    /// Those of link(2).
    pub fn link(&self, slot: SlotId) -> io::Result<SlotId> {
        let to = self.next_slot();
        let (from, name) = (slot.to_string(), to.to_string());
        rustix::fs::linkat(&self.dir, from, &self.dir, name, rustix::fs::AtFlags::empty())?;
        Ok(to)
    }

    /// Tries whether the file system takes these extended attributes on one object, on a scratch
    /// file, so that its limits are met when an attribute is set and not when it is committed.
    ///
    /// # Errors
    /// Those of setxattr(2).
    pub fn try_xattrs(&self, is_dir: bool, xattrs: &Xattrs) -> io::Result<()> {
        let slot = self.next_slot();
        let name = slot.to_string();
        if is_dir {
            rustix::fs::mkdirat(&self.dir, &name, Mode::RWXU)?;
        } else {
            rustix::fs::mknodat(
                &self.dir,
                &name,
                rustix::fs::FileType::RegularFile,
                Mode::RUSR | Mode::WUSR,
                0,
            )?;
        }
        let tried = base::open_child(self.dir.as_fd(), name.as_bytes())
            .and_then(|fd| xattrs.iter().try_for_each(|(k, v)| xattr::set(fd.as_fd(), k, v)));
        let flags =
            if is_dir { rustix::fs::AtFlags::REMOVEDIR } else { rustix::fs::AtFlags::empty() };
        rustix::fs::unlinkat(&self.dir, &name, flags)?;
        tried
    }
}

/// Sets access and modification time; `None` leaves one.
///
/// # Errors
/// Those of utimensat(2).
pub fn set_times(
    fd: BorrowedFd<'_>,
    atime: Option<Timestamp>,
    mtime: Option<Timestamp>,
) -> io::Result<()> {
    Ok(rustix::fs::futimens(fd, &times(atime, mtime))?)
}

/// The two times as utimensat(2) takes them.
#[must_use]
pub fn times(atime: Option<Timestamp>, mtime: Option<Timestamp>) -> rustix::fs::Timestamps {
    let spec = |t: Option<Timestamp>| match t {
        Some(t) => rustix::fs::Timespec { tv_sec: t.secs, tv_nsec: t.nanos.into() },
        None => rustix::fs::Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT },
    };
    rustix::fs::Timestamps { last_access: spec(atime), last_modification: spec(mtime) }
}

/// Gives `to`, an empty file, the content of `from`.
///
/// # Errors
/// Those of the copy.
pub fn copy_content(from: &File, to: &File) -> io::Result<()> {
    let size = from.metadata()?.len();
    if size == 0 {
        return Ok(());
    }
    match rustix::fs::ioctl_ficlone(to, from) {
        Ok(()) => return Ok(()),
        Err(Errno::OPNOTSUPP | Errno::INVAL | Errno::XDEV | Errno::NOTTY | Errno::NOSYS) => {}
        Err(e) => return Err(e.into()),
    }
    let mut at = 0;
    while at < size {
        let start = match rustix::fs::seek(from, rustix::fs::SeekFrom::Data(at)) {
            Ok(start) => start,
            // Only a hole is left.
            Err(Errno::NXIO) => break,
            Err(Errno::INVAL) => at,
            Err(e) => return Err(e.into()),
        };
        let end = match rustix::fs::seek(from, rustix::fs::SeekFrom::Hole(start)) {
            Ok(end) => end.min(size),
            Err(Errno::INVAL | Errno::NXIO) => size,
            Err(e) => return Err(e.into()),
        };
        copy_range(from, to, start, end)?;
        at = end;
    }
    to.set_len(size)
}

fn copy_range(from: &File, to: &File, start: u64, end: u64) -> io::Result<()> {
    let (mut offset_in, mut offset_out) = (start, start);
    while offset_in < end {
        let len = usize::try_from(end - offset_in).unwrap_or(usize::MAX).min(1 << 30);
        match rustix::fs::copy_file_range(
            from,
            Some(&mut offset_in),
            to,
            Some(&mut offset_out),
            len,
        ) {
            Ok(0) => return Ok(()),
            Ok(_) => {}
            Err(Errno::OPNOTSUPP | Errno::INVAL | Errno::XDEV | Errno::NOSYS) => {
                return copy_by_hand(from, to, offset_in, end);
            }
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
}

fn copy_by_hand(from: &File, to: &File, start: u64, end: u64) -> io::Result<()> {
    let mut buf = vec![0; 1 << 20];
    let mut at = start;
    while at < end {
        let want = usize::try_from(end - at).unwrap_or(usize::MAX).min(buf.len());
        let got = from.read_at(&mut buf[..want], at)?;
        if got == 0 {
            return Ok(());
        }
        to.write_all_at(&buf[..got], at)?;
        at += got as u64;
    }
    Ok(())
}
