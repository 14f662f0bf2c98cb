//! Every call that changes the base. Each asks for the seal, so a change that no durable plan
//! holds does not compile; each checks identities before it acts.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use txfs_journal::{Ident, Kind, Meta, Name, RelPath, Sealed, Timestamp};

use super::{Base, Stat, open_beneath, open_child, proc_path, reopen, stat_at, stat_fd, xattr};
use crate::view::staging;

/// A directory and a name in it.
#[derive(Clone, Debug)]
pub struct Spot {
    /// The directory, `O_PATH`.
    pub dir: Arc<OwnedFd>,
    /// The name.
    pub name: Vec<u8>,
}

impl Spot {
    /// What is there.
    ///
    /// # Errors
    /// Those of statx(2), except that nothing is `None`.
    pub fn ident(&self) -> io::Result<Option<Ident>> {
        match stat_at(self.dir.as_fd(), &self.name) {
            Ok(stat) => Ok(Some(stat.ident)),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Whether this very inode is there.
    ///
    /// # Errors
    /// As [`Spot::ident`].
    pub fn holds(&self, ident: &Ident) -> io::Result<bool> {
        Ok(self.ident()?.as_ref() == Some(ident))
    }

    /// Opens what is there as `O_PATH`, if it is this inode.
    ///
    /// # Errors
    /// `ESTALE` if it is another.
    pub fn open(&self, ident: &Ident) -> io::Result<OwnedFd> {
        let fd = open_child(self.dir.as_fd(), &self.name)?;
        if stat_fd(fd.as_fd())?.ident == *ident {
            Ok(fd)
        } else {
            Err(io::Error::from_raw_os_error(libc::ESTALE))
        }
    }
}

/// The spot of a path below the base's root.
///
/// # Errors
/// Those of openat2(2) for the directory; `EINVAL` for the root, which is nobody's entry.
pub fn spot(base: &Base, path: &RelPath) -> io::Result<Spot> {
    let (parent, name): (RelPath, Name) =
        path.split().ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))?;
    let dir = open_beneath(base.root(), &parent, OFlags::PATH | OFlags::DIRECTORY)?;
    Ok(Spot { dir: Arc::new(dir), name: name.as_bytes().to_vec() })
}

/// Renames `from` to `to`, which is free.
///
/// # Errors
/// Those of renameat2(2); `EEXIST` if `to` is not free.
pub fn rename(_seal: &Sealed, from: &Spot, to: &Spot, kind: Kind) -> io::Result<()> {
    with_write_permission(from, to, kind, || {
        rustix::fs::renameat_with(&from.dir, &from.name, &to.dir, &to.name, RenameFlags::NOREPLACE)
    })
}

/// Swaps two entries.
///
/// # Errors
/// Those of renameat2(2).
pub fn exchange(_seal: &Sealed, a: &Spot, b: &Spot, kind: Kind) -> io::Result<()> {
    with_write_permission(a, b, kind, || {
        rustix::fs::renameat_with(&a.dir, &a.name, &b.dir, &b.name, RenameFlags::EXCHANGE)
    })
}

/// Gives what is at `existing` the further name `to`.
///
/// # Errors
/// Those of linkat(2).
pub fn link(_seal: &Sealed, existing: &Spot, to: &Spot) -> io::Result<()> {
    with_write_permission(existing, to, Kind::File, || {
        rustix::fs::linkat(&existing.dir, &existing.name, &to.dir, &to.name, AtFlags::empty())
    })
}

/// Takes a name away.
///
/// # Errors
/// Those of unlinkat(2).
pub fn unlink(_seal: &Sealed, at: &Spot) -> io::Result<()> {
    with_write_permission(at, at, Kind::File, || {
        rustix::fs::unlinkat(&at.dir, &at.name, AtFlags::empty())
    })
}

/// Without CAP_DAC_OVERRIDE a directory needs its owner's write bit for its entries to change, and for
/// itself to go to another directory. The bit is set where it is missing and put back at once; for
/// directories that stay, the plan's last steps set the mode again.
fn with_write_permission(
    from: &Spot,
    to: &Spot,
    kind: Kind,
    call: impl Fn() -> rustix::io::Result<()>,
) -> io::Result<()> {
    match call() {
        Err(Errno::ACCESS) => {}
        other => return Ok(other?),
    }
    let mut opened = Vec::new();
    for dir in [&from.dir, &to.dir] {
        opened.extend(make_writable(dir.as_fd())?.map(|mode| (Arc::clone(dir), mode)));
    }
    if kind == Kind::Dir {
        let moved = Arc::new(open_child(from.dir.as_fd(), &from.name)?);
        opened.extend(make_writable(moved.as_fd())?.map(|mode| (moved, mode)));
    }
    let done = call();
    for (dir, mode) in opened {
        rustix::fs::chmod(proc_path(dir.as_fd()), mode)?;
    }
    Ok(done?)
}

/// Gives a directory its owner's write and search bits; answers the mode it had, if it lacked them.
fn make_writable(dir: BorrowedFd<'_>) -> io::Result<Option<Mode>> {
    let stat = stat_fd(dir)?;
    if stat.mode & 0o300 == 0o300 {
        return Ok(None);
    }
    rustix::fs::chmod(proc_path(dir), Mode::from_bits_retain(stat.mode | 0o300))?;
    Ok(Some(Mode::from_bits_retain(stat.mode)))
}

/// Makes the content of the inode at `at` that of `content`, in place.
///
/// # Errors
/// `ESTALE` if another inode is there; those of the copy. It may be called again after any of them.
pub fn rewrite(_seal: &Sealed, at: &Spot, ident: &Ident, content: &File) -> io::Result<()> {
    let fd = at.open(ident)?;
    let stat = stat_fd(fd.as_fd())?;
    if stat.mode & 0o200 == 0 && !rustix::process::geteuid().is_root() {
        rustix::fs::chmod(proc_path(fd.as_fd()), Mode::from_bits_retain(stat.mode | 0o200))?;
    }
    let file = File::from(reopen(fd.as_fd(), OFlags::RDWR)?);
    file.set_len(0)?;
    staging::copy_content(content, &file)?;
    file.sync_data()
}

/// Sets the modification time of the inode at `at`.
///
/// # Errors
/// `ESTALE` if another inode is there; those of utimensat(2).
pub fn set_mtime(_seal: &Sealed, at: &Spot, ident: &Ident, mtime: Timestamp) -> io::Result<()> {
    let fd = at.open(ident)?;
    let times = staging::times(None, Some(mtime));
    rustix::fs::utimensat(rustix::fs::CWD, proc_path(fd.as_fd()), &times, AtFlags::empty())?;
    Ok(())
}

/// Sets mode, owner, extended attributes and times of the inode at `at`.
///
/// # Errors
/// `ESTALE` if another inode is there; those of the calls. It may be called again after any of them.
pub fn set_meta(_seal: &Sealed, at: &Spot, ident: &Ident, meta: &Meta) -> io::Result<()> {
    let fd = open_child(at.dir.as_fd(), &at.name)?;
    let stat = stat_fd(fd.as_fd())?;
    if stat.ident != *ident {
        return Err(io::Error::from_raw_os_error(libc::ESTALE));
    }
    put_meta(fd.as_fd(), &stat, meta)
}

/// The same for the base's root, which is nobody's entry.
///
/// # Errors
/// As [`set_meta`].
pub fn set_root_meta(_seal: &Sealed, base: &Base, meta: &Meta) -> io::Result<()> {
    put_meta(base.root(), &stat_fd(base.root())?, meta)
}

/// Sets everything on the object behind an fd, which `stat` describes, in the order in which nothing undoes what came
/// before: a change of owner clears set-user-id and capabilities, and times come last.
///
/// # Errors
/// Those of the calls.
pub fn put_meta(fd: BorrowedFd<'_>, stat: &Stat, meta: &Meta) -> io::Result<()> {
    let is_owned = (stat.uid, stat.gid) == (meta.uid, meta.gid);
    if !is_owned {
        let uid = (stat.uid != meta.uid).then(|| rustix::fs::Uid::from_raw(meta.uid));
        let gid = (stat.gid != meta.gid).then(|| rustix::fs::Gid::from_raw(meta.gid));
        rustix::fs::chownat(fd, "", uid, gid, AtFlags::EMPTY_PATH)?;
    }
    let is_same = meta.xattrs.as_ref().map_or(Ok(true), |want| xattr::make(fd, want))?;
    // Setting an access list changes the mode, and so may a change of owner.
    let has_mode = is_owned && is_same && stat.mode == meta.mode;
    if stat.ident.kind != Kind::Symlink && !has_mode {
        let mode = Mode::from_bits_retain(meta.mode);
        match rustix::fs::fchmod(fd, mode) {
            Err(Errno::BADF) => rustix::fs::chmod(proc_path(fd), mode)?,
            done => done?,
        }
    }
    if meta.atime.is_none_or(|atime| atime == stat.atime) && meta.mtime == stat.mtime {
        return Ok(());
    }
    let times = staging::times(meta.atime, Some(meta.mtime));
    match rustix::fs::futimens(fd, &times) {
        // Following the magic link ends at the object itself, also if that is a symbolic link.
        Err(Errno::BADF) => {
            rustix::fs::utimensat(rustix::fs::CWD, proc_path(fd), &times, AtFlags::empty())?;
        }
        done => done?,
    }
    Ok(())
}
