//! `cp`

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, Stat, Timespec, Timestamps, Uid, chownat, fchmod, fchown,
    fgetxattr, fstat, futimens, mkdirat, openat, readlinkat, symlinkat, utimensat,
};
use rustix::io::Errno;

use super::make::is_regular;
use super::remove::{DEPTH, below, names, open};
use super::scene::{Scene, Spot, join, kind, same};
use super::{Done, Split};

/// The flags.
#[derive(Clone, Copy)]
pub(super) struct How {
    /// `-p`: mode, owner and times too.
    pub(super) preserve: bool,
    /// `-r`: directories too, and links as links.
    pub(super) recursive: bool,
}

/// `cp [-p] [-r] FROM TO`
pub(super) fn cp(scene: &mut Scene<'_>, how: How, from: &[u8], to: &[u8]) -> Done {
    let to = &scene.target_of(from, to)[..];
    let looked = if how.recursive { scene.lstat(from) } else { scene.stat(from) };
    let stat = match looked {
        Ok(stat) => stat,
        Err(e) => return Ok(scene.failed("cp: cannot stat", from, e)),
    };
    match kind(&stat) {
        FileType::Directory if !how.recursive => {
            let from = scene.quote(from);
            scene.say(&[b"cp: -r not specified; omitting directory ", &from]);
            return Ok(1);
        }
        FileType::RegularFile | FileType::Directory | FileType::Symlink => {}
        FileType::Fifo
        | FileType::Socket
        | FileType::CharacterDevice
        | FileType::BlockDevice
        | FileType::Unknown => return Err(Split::SpecialSource),
    }
    let target = match scene.spot(to)? {
        Ok(spot) => spot,
        Err(Errno::NOENT) => {
            // The tool opens a file before it makes one.
            let opened = (kind(&stat) == FileType::RegularFile).then(|| open_source(scene, from));
            return Ok(match opened {
                Some(Err(e)) => not_readable(scene, from, e),
                Some(Ok(_)) | None => scene.failed(cannot_make(&stat), to, Errno::NOENT),
            });
        }
        Err(e) => return Ok(scene.failed("cp: cannot stat", to, e)),
    };
    match target.lstat() {
        Ok(old) if how.recursive && kind(&stat) != FileType::RegularFile => {
            let odd = kind(&stat) == FileType::Directory && kind(&old) != FileType::Directory;
            if !odd || kind(&old) == FileType::Symlink {
                return Err(Split::Merge);
            }
            let (from, to) = (scene.quote(from), scene.quote(to));
            scene.say(&[b"cp: cannot overwrite non-directory ", &to, b" with directory ", &from]);
            Ok(1)
        }
        Ok(old) => onto(scene, how, (from, &stat), (&target, to, &old)),
        Err(Errno::NOENT) => {
            let source = source_spot(scene, from)?;
            if kind(&stat) == FileType::Directory {
                look(&source, how, &target, DEPTH)?;
            }
            if how.preserve && kind(&stat) == FileType::RegularFile {
                let fd = match open_source(scene, from) {
                    Ok(fd) => fd,
                    Err(e) => return Ok(not_readable(scene, from, e)),
                };
                no_acl(&fd)?;
            }
            Ok(entry(scene, how, (&source, from, &stat), (&target, to)))
        }
        Err(e) => Ok(scene.failed("cp: cannot stat", to, e)),
    }
}

/// A source may be on any device.
fn source_spot(scene: &Scene<'_>, path: &[u8]) -> Result<Spot, Split> {
    let anywhere = super::Facts { within: None, ..scene.facts };
    let scene = Scene { facts: anywhere, err: &mut io::sink() };
    scene.spot(path)?.map_err(|_| Split::Raced)
}

fn open_source(scene: &Scene<'_>, path: &[u8]) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    openat(scene.facts.dir, path, flags, Mode::empty())
}

fn no_acl(fd: &OwnedFd) -> Result<(), Split> {
    let mut none: [u8; 0] = [];
    match fgetxattr(fd, "system.posix_acl_access", &mut none) {
        Ok(0) | Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(()),
        Ok(_) | Err(_) => Err(Split::Acl),
    }
}

/// Whether a directory can be copied with all below it.
fn look(source: &Spot, how: How, target: &Spot, depth: usize) -> Result<(), Split> {
    let depth = depth.checked_sub(1).ok_or(Split::TooDeep)?;
    let dir = open(source).map_err(|_| Split::Unreadable)?;
    let own = fstat(&dir).map_err(|_| Split::Raced)?;
    if same(&own, &fstat(&target.dir).map_err(|_| Split::Raced)?) {
        // It would be copied into itself.
        return Err(Split::Merge);
    }
    if how.preserve {
        no_acl(&dir)?;
    }
    for name in names(&dir).map_err(|_| Split::Unreadable)? {
        let below = below(&dir, name).map_err(|_| Split::Raced)?;
        match below.lstat().map(|stat| kind(&stat)).map_err(|_| Split::Raced)? {
            FileType::Directory => look(&below, how, target, depth)?,
            FileType::RegularFile => {
                let fd = open_entry(how, &below).map_err(|_| Split::Unreadable)?;
                if how.preserve {
                    no_acl(&fd)?;
                }
            }
            FileType::Symlink => {}
            FileType::Fifo
            | FileType::Socket
            | FileType::CharacterDevice
            | FileType::BlockDevice
            | FileType::Unknown => return Err(Split::SpecialSource),
        }
    }
    Ok(())
}

/// Opens a regular file to copy. What has been put in its place since it was looked at (a link, a
/// device without an end) is not read.
fn open_entry(how: How, spot: &Spot) -> Result<OwnedFd, Errno> {
    let mut flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    if how.recursive {
        flags |= OFlags::NOFOLLOW;
    }
    let file = openat(&spot.dir, &spot.name[..], flags, Mode::empty())?;
    if is_regular(&file)? { Ok(file) } else { Err(Errno::INVAL) }
}

fn cannot_make(source: &Stat) -> &'static str {
    match kind(source) {
        FileType::Directory => "cp: cannot create directory",
        FileType::Symlink => "cp: cannot create symbolic link",
        FileType::RegularFile
        | FileType::Fifo
        | FileType::Socket
        | FileType::CharacterDevice
        | FileType::BlockDevice
        | FileType::Unknown => "cp: cannot create regular file",
    }
}

/// Copies a regular file onto what is there: into it, so that its inode and its other names stay.
fn onto(
    scene: &mut Scene<'_>,
    how: How,
    (from, stat): (&[u8], &Stat),
    (target, to, old): (&Spot, &[u8], &Stat),
) -> Done {
    let pinned = match scene.pin(to)? {
        Ok(pinned) => pinned,
        Err(Errno::NOENT) if kind(old) == FileType::Symlink => {
            let to = scene.quote(to);
            scene.say(&[b"cp: not writing through dangling symlink ", &to]);
            return Ok(1);
        }
        Err(e) => return Ok(scene.failed("cp: cannot stat", to, e)),
    };
    let (fd, led) = pinned;
    if same(stat, &led) {
        let (from, to) = (scene.quote(from), scene.quote(to));
        scene.say(&[b"cp: ", &from, b" and ", &to, b" are the same file"]);
        return Ok(1);
    }
    match kind(&led) {
        FileType::RegularFile => {}
        FileType::Directory if kind(old) == FileType::Directory => {
            let to = scene.quote(to);
            scene.say(&[b"cp: cannot overwrite directory ", &to, b" with non-directory"]);
            return Ok(1);
        }
        FileType::Directory
        | FileType::Symlink
        | FileType::Fifo
        | FileType::Socket
        | FileType::CharacterDevice
        | FileType::BlockDevice
        | FileType::Unknown => return Err(Split::SpecialTarget),
    }
    let source = match open_source(scene, from) {
        Ok(source) => source,
        Err(e) => return Ok(not_readable(scene, from, e)),
    };
    if !is_regular(&source).map_err(|_| Split::Raced)? {
        return Err(Split::SpecialSource);
    }
    if how.preserve {
        no_acl(&source)?;
        let old = scene.reopen(&fd, OFlags::RDONLY | OFlags::NONBLOCK).map_err(|_| Split::Acl)?;
        no_acl(&old)?;
    }
    match scene.reopen(&fd, OFlags::WRONLY | OFlags::TRUNC) {
        Ok(file) => Ok(contents(scene, how, (source, from), (file, to))),
        // The name that was checked is the one that the message is about.
        Err(Errno::LOOP | Errno::NOENT) if target.lstat().is_err() => Err(Split::Raced),
        Err(e) => Ok(scene.failed("cp: cannot create regular file", to, e)),
    }
}

fn not_readable(scene: &mut Scene<'_>, from: &[u8], errno: Errno) -> u8 {
    let from = scene.quote(from);
    let words = super::say::words(errno);
    scene.say(&[b"cp: cannot open ", &from, b" for reading: ", words.as_bytes()]);
    1
}

/// Copies an entry to a name that is free; goes on after failures below and says each.
fn entry(
    scene: &mut Scene<'_>,
    how: How,
    (source, from, stat): (&Spot, &[u8], &Stat),
    (target, to): (&Spot, &[u8]),
) -> u8 {
    match kind(stat) {
        FileType::Directory => directory(scene, how, (source, from, stat), (target, to)),
        FileType::Symlink => match link(how, source, stat, target) {
            Ok(()) => 0,
            Err(e) => scene.failed(cannot_make(stat), to, e),
        },
        FileType::RegularFile
        | FileType::Fifo
        | FileType::Socket
        | FileType::CharacterDevice
        | FileType::BlockDevice
        | FileType::Unknown => {
            let file = match open_entry(how, source) {
                Ok(file) => file,
                Err(e) => return not_readable(scene, from, e),
            };
            // Of what is private under -p, nothing is open to others before its owner is right.
            let withheld = if how.preserve { 0o077 } else { 0 };
            let mode = Mode::from_raw_mode(stat.st_mode & 0o777 & !withheld);
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
            match openat(&target.dir, &target.name[..], flags, mode) {
                Ok(new) => contents(scene, how, (file, from), (new, to)),
                Err(e) => scene.failed(cannot_make(stat), to, e),
            }
        }
    }
}

fn link(how: How, source: &Spot, stat: &Stat, target: &Spot) -> Result<(), Errno> {
    let text = readlinkat(&source.dir, &source.name[..], Vec::new())?;
    symlinkat(text, &target.dir, &target.name[..])?;
    if how.preserve {
        utimensat(&target.dir, &target.name[..], &times(stat), AtFlags::SYMLINK_NOFOLLOW)?;
        let (owner, group) = (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid));
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        let owned = chownat(&target.dir, &target.name[..], Some(owner), Some(group), flags);
        unless_forbidden(owned)?;
    }
    Ok(())
}

/// Who may not give files away keeps them, and that is no failure.
fn unless_forbidden(owned: Result<(), Errno>) -> Result<bool, Errno> {
    match owned {
        Ok(()) => Ok(true),
        Err(Errno::PERM | Errno::INVAL) => Ok(false),
        Err(e) => Err(e),
    }
}

fn times(stat: &Stat) -> Timestamps {
    let at = |tv_sec, nsec| Timespec { tv_sec, tv_nsec: i64::try_from(nsec).unwrap_or(0) };
    Timestamps {
        last_access: at(stat.st_atime, stat.st_atime_nsec),
        last_modification: at(stat.st_mtime, stat.st_mtime_nsec),
    }
}

fn directory(
    scene: &mut Scene<'_>,
    how: How,
    (source, from, stat): (&Spot, &[u8], &Stat),
    (target, to): (&Spot, &[u8]),
) -> u8 {
    let withheld = if how.preserve { 0o077 } else { 0 };
    let mode = Mode::from_raw_mode(stat.st_mode & 0o1777 & !withheld);
    let opened = mkdirat(&target.dir, &target.name[..], mode)
        .map_err(|e| ("cp: cannot create directory", e))
        .and_then(|()| {
            let new = open_new(target).map_err(|e| ("cp: cannot access", e))?;
            let old = open(source).map_err(|e| ("cp: cannot access", e))?;
            Ok((old, new.0, new.1))
        });
    let (old, new, mode) = match opened {
        Ok(opened) => opened,
        Err((what, e)) => return scene.failed(what, to, e),
    };
    let mut code = match names(&old) {
        Ok(names) => names.into_iter().fold(0, |code, name| {
            let (from, to) = (join(from, &name), join(to, &name));
            let both = below(&old, name.clone())
                .and_then(|below_old| Ok((below_old.lstat()?, below_old, below(&new, name)?)));
            code | match both {
                Ok((stat, source, target)) => {
                    entry(scene, how, (&source, &from, &stat), (&target, &to))
                }
                Err(e) => scene.failed("cp: cannot stat", &from, e),
            }
        }),
        Err(e) => scene.failed("cp: cannot access", from, e),
    };
    let finished = if how.preserve {
        preserve(&new, stat)
    } else if mode.contains(Mode::RWXU) {
        Ok(())
    } else {
        fchmod(&new, mode).map_err(|e| ("cp: setting permissions for", e))
    };
    if let Err((what, e)) = finished {
        code |= scene.failed(what, to, e);
    }
    code
}

/// Opens a new directory, which its owner may use while it is filled; says the mode that it was
/// made with.
fn open_new(target: &Spot) -> Result<(OwnedFd, Mode), Errno> {
    let (pinned, stat) = super::scene::pin_dir(target)?;
    let mode = Mode::from_raw_mode(stat.st_mode & 0o7777);
    if !mode.contains(Mode::RWXU) {
        super::scene::chmod_pinned(&pinned, mode | Mode::RWXU)?;
    }
    Ok((open(target)?, mode))
}

/// Copies content, and what `-p` takes along.
fn contents(
    scene: &mut Scene<'_>,
    how: How,
    (source, from): (OwnedFd, &[u8]),
    (target, to): (OwnedFd, &[u8]),
) -> u8 {
    let (mut source, mut target) = (File::from(source), File::from(target));
    if let Err(e) = io::copy(&mut source, &mut target) {
        let errno = Errno::from_io_error(&e).unwrap_or(Errno::IO);
        let from = scene.quote(from);
        let what = [b"cp: error copying ", &from[..], b" to "].concat();
        let (to, words) = (scene.quote(to), super::say::words(errno));
        scene.say(&[&what, &to, b": ", words.as_bytes()]);
        return 1;
    }
    if !how.preserve {
        return 0;
    }
    let kept = fstat(&source)
        .map_err(|e| ("cp: failed to access", e))
        .and_then(|stat| preserve(&OwnedFd::from(target), &stat));
    match kept {
        Ok(()) => 0,
        Err((what, e)) => scene.failed(what, to, e),
    }
}

/// Times, then the owner, then the mode, which a change of owner would cut.
fn preserve(target: &OwnedFd, stat: &Stat) -> Result<(), (&'static str, Errno)> {
    futimens(target, &times(stat)).map_err(|e| ("cp: preserving times for", e))?;
    let before = fstat(target).map_err(|e| ("cp: failed to access", e))?;
    let mut mode = stat.st_mode & 0o7777;
    if (before.st_uid, before.st_gid) != (stat.st_uid, stat.st_gid) {
        let failed = |e| ("cp: failed to preserve ownership for", e);
        let group = Some(Gid::from_raw(stat.st_gid));
        let owner = Some(Uid::from_raw(stat.st_uid));
        if !unless_forbidden(fchown(target, owner, group)).map_err(failed)? {
            // The group alone may still be given; without the owner no file acts as him.
            unless_forbidden(fchown(target, None, group)).map_err(failed)?;
            mode &= 0o777;
        }
    }
    if mode & 0o7000 == 0 {
        // The tool sets an access list then, which leaves these bits as they are.
        mode |= fstat(target).map_err(|e| ("cp: failed to access", e))?.st_mode & 0o7000;
    }
    fchmod(target, Mode::from_raw_mode(mode)).map_err(|e| ("cp: preserving permissions for", e))
}
