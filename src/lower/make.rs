//! `mkdir`, `touch`, `chmod`, `ln -s`, and what a redirection writes.

use std::os::fd::OwnedFd;

use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, Timespec, Timestamps, UTIME_NOW, fstat, mkdirat, openat,
    readlinkat, symlinkat, utimensat,
};
use rustix::io::Errno;

use super::scene::{Scene, Spot, join, kind};
use super::{Done, Split, say};

/// `mkdir [-p] PATH...`
pub(super) fn mkdir(scene: &mut Scene<'_>, parents: bool, paths: &[&[u8]]) -> Done {
    for path in paths {
        if parents {
            // The nearest directory that is there decides on which device the others come to be.
            let existing = prefixes(path).rev().map(|end| &path[..end]);
            let nearest = existing.chain([&b"."[..]]).find_map(|p| scene.stat(p).ok());
            scene.check(nearest.ok_or(Split::Raced)?.st_dev)?;
        } else {
            scene.reaches(path)?;
        }
    }
    let mut code = 0;
    for path in paths {
        let made = if parents { make_all(scene, path) } else { make_dir(scene, path) };
        if let Err((at, e)) = made {
            code = if parents && e == Errno::LOOP && at == *path {
                scene.failed("mkdir: cannot stat", at, e)
            } else {
                let quoted = say::locale(at, scene.facts.utf8);
                let words = say::words(e);
                scene.say(&[b"mkdir: cannot create directory ", &quoted, b": ", words.as_bytes()]);
                1
            };
        }
    }
    Ok(code)
}

type Made<'p> = Result<(), (&'p [u8], Errno)>;

/// A directory with all permissions that the umask leaves.
fn make_dir<'p>(scene: &Scene<'_>, path: &'p [u8]) -> Made<'p> {
    let made = match scene.spot(path) {
        Ok(Ok(spot)) => mkdirat(&spot.dir, &spot.name[..], Mode::from_raw_mode(0o777)),
        Ok(Err(e)) => Err(e),
        Err(_) => Err(Errno::XDEV),
    };
    made.map_err(|e| (path, e))
}

/// The ends of the prefixes of a path that are paths themselves, the whole last.
fn prefixes(path: &[u8]) -> impl DoubleEndedIterator<Item = usize> + '_ {
    (1..=path.len())
        .filter(|&end| path[end - 1] != b'/' && path.get(end).is_none_or(|&b| b == b'/'))
}

fn make_all<'p>(scene: &Scene<'_>, path: &'p [u8]) -> Made<'p> {
    for end in prefixes(path) {
        let (at, last) = (&path[..end], end == path.len());
        let component = super::scene::base(at);
        if component == b"." || component == b".." {
            continue;
        }
        match make_dir(scene, at) {
            Ok(()) if !last => open_to_owner(scene, at)?,
            Ok(()) => {}
            Err((_, e)) => match (scene.stat(at), e) {
                (Ok(stat), _) if kind(&stat) == FileType::Directory => {}
                (Ok(_), Errno::EXIST) if !last => return Err((at, Errno::NOTDIR)),
                (Err(Errno::LOOP), Errno::EXIST) => return Err((at, Errno::LOOP)),
                (Ok(_) | Err(_), e) => return Err((at, e)),
            },
        }
    }
    Ok(())
}

/// Parents can be written and entered by their owner whatever the umask says.
fn open_to_owner<'p>(scene: &Scene<'_>, path: &'p [u8]) -> Made<'p> {
    let spot = scene.spot(path).map_err(|_| (path, Errno::XDEV))?.map_err(|e| (path, e))?;
    super::scene::pin_dir(&spot)
        .and_then(|(dir, stat)| {
            let mode = Mode::from_raw_mode(stat.st_mode & 0o7777);
            let open = mode | Mode::WUSR | Mode::XUSR;
            if open == mode { Ok(()) } else { super::scene::chmod_pinned(&dir, open) }
        })
        .map_err(|e| (path, e))
}

/// `touch PATH...`
pub(super) fn touch(scene: &mut Scene<'_>, paths: &[&[u8]]) -> Done {
    for path in paths {
        if *path == b"-" {
            return Err(Split::Dash);
        }
        // Either it is there, or its directory is where it will be.
        if scene.pin(path)?.is_err()
            && let Ok(spot) = scene.spot(path)?
            && let Err(split) = followed(scene, spot, path)
        {
            return Err(split);
        }
    }
    let mut code = 0;
    for path in paths {
        if let Err((what, e)) = touch_one(scene, path) {
            code = scene.failed(what, path, e);
        }
    }
    Ok(code)
}

fn touch_one(scene: &Scene<'_>, path: &[u8]) -> Result<(), (&'static str, Errno)> {
    const CANNOT: &str = "touch: cannot touch";
    let lost = |_: Split| (CANNOT, Errno::XDEV);
    let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
    let times = Timestamps { last_access: now, last_modification: now };
    let exists = |fd: &OwnedFd| {
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(fd));
        utimensat(scene.facts.dir, path, &times, AtFlags::empty()).map_err(|e| {
            let what = if e == Errno::PERM { "touch: setting times of" } else { CANNOT };
            (what, e)
        })
    };
    if let Ok((fd, _)) = scene.pin(path).map_err(lost)? {
        return exists(&fd);
    }
    let spot = scene.spot(path).map_err(lost)?.map_err(|e| (CANNOT, e))?;
    let spot = followed(scene, spot, path).map_err(lost)?.map_err(|e| (CANNOT, e))?;
    match create(&spot) {
        // Made by somebody else in between: it is there.
        Err(Errno::EXIST) => match scene.pin(path).map_err(lost)? {
            Ok((fd, _)) => exists(&fd),
            Err(e) => Err((CANNOT, e)),
        },
        other => other.map(drop).map_err(|e| (CANNOT, e)),
    }
}

/// A new file with the permissions that the umask leaves.
fn create(spot: &Spot) -> Result<OwnedFd, Errno> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    openat(&spot.dir, &spot.name[..], flags, Mode::from_raw_mode(0o666))
}

/// Where a file comes to be that is made through dangling links.
fn followed(scene: &Scene<'_>, mut spot: Spot, path: &[u8]) -> Result<Result<Spot, Errno>, Split> {
    const LINKS: usize = 40;
    let mut path = path.to_vec();
    for _ in 0..LINKS {
        match spot.lstat() {
            Ok(stat) if kind(&stat) == FileType::Symlink => {}
            Ok(_) | Err(_) => return Ok(Ok(spot)),
        }
        let target = match readlinkat(&spot.dir, &spot.name[..], Vec::new()) {
            Ok(target) => target.into_bytes(),
            Err(e) => return Ok(Err(e)),
        };
        let dir = path.len() - super::scene::base(&path).len();
        path = if target.starts_with(b"/") { target } else { [&path[..dir], &target].concat() };
        if path.ends_with(b"/") || path.ends_with(b"/.") || path.ends_with(b"..") {
            return Ok(Err(Errno::NOENT));
        }
        spot = match scene.spot(&path)? {
            Ok(spot) => spot,
            Err(e) => return Ok(Err(e)),
        };
    }
    Ok(Err(Errno::LOOP))
}

/// `chmod MODE PATH...`
pub(super) fn chmod(scene: &mut Scene<'_>, digits: &[u8], paths: &[&[u8]]) -> Done {
    let mode = digits.iter().fold(0, |mode, &d| mode << 3 | u32::from(d - b'0'));
    for path in paths {
        drop(scene.pin(path)?);
    }
    let mut code = 0;
    for path in paths {
        let pinned = match scene.pin(path) {
            Ok(pinned) => pinned,
            Err(_) => Err(Errno::XDEV),
        };
        match pinned {
            Ok((fd, stat)) => {
                // A directory keeps its setuid and setgid bits, as numeric modes of four digits do.
                let is_dir = kind(&stat) == FileType::Directory;
                let kept = if is_dir { stat.st_mode & 0o6000 } else { 0 };
                let mode = Mode::from_raw_mode(mode | kept);
                if let Err(e) = super::scene::chmod_pinned(&fd, mode) {
                    code = scene.failed("chmod: changing permissions of", path, e);
                }
            }
            Err(Errno::NOENT) if scene.lstat(path).is_ok() => {
                let quoted = scene.quote(path);
                scene.say(&[b"chmod: cannot operate on dangling symlink ", &quoted]);
                code = 1;
            }
            Err(e) => code = scene.failed("chmod: cannot access", path, e),
        }
    }
    Ok(code)
}

/// `ln -s TARGET LINK`
pub(super) fn symlink(scene: &mut Scene<'_>, target: &[u8], link: &[u8]) -> Done {
    let path = match scene.stat(link) {
        Ok(stat) if kind(&stat) == FileType::Directory => join(link, super::scene::base(target)),
        Ok(_) | Err(_) => link.to_vec(),
    };
    let made = match scene.spot(&path)? {
        Ok(spot) => symlinkat(target, &spot.dir, &spot.name[..]),
        Err(e) => Err(e),
    };
    match made {
        Ok(()) => Ok(0),
        Err(e) => Ok(scene.failed("ln: failed to create symbolic link", &path, e)),
    }
}

/// `> TO`, `>> TO`: what cannot be opened is handed back, since each shell says that in its own way.
pub(super) fn write(scene: &mut Scene<'_>, append: bool, bytes: &[u8], to: &[u8]) -> Done {
    let file = match scene.pin(to)? {
        Ok((_, stat)) if kind(&stat) != FileType::RegularFile => return Err(Split::SpecialTarget),
        Ok((pinned, _)) => {
            let how = if append { OFlags::APPEND } else { OFlags::TRUNC };
            scene.reopen(&pinned, OFlags::WRONLY | how)
        }
        Err(Errno::NOENT) => match scene.spot(to)? {
            Ok(spot) => followed(scene, spot, to)?.and_then(|spot| create(&spot)),
            Err(e) => Err(e),
        },
        Err(e) => Err(e),
    };
    let file = file.map_err(|_| Split::Redirect)?;
    let mut file = std::fs::File::from(file);
    match std::io::Write::write_all(&mut file, bytes) {
        Ok(()) => Ok(0),
        Err(e) => {
            let errno = Errno::from_io_error(&e).unwrap_or(Errno::IO);
            Ok(scene.failed("txfs: cannot write", to, errno))
        }
    }
}

/// What an open descriptor is, as far as a copy needs it.
pub(super) fn is_regular(fd: &OwnedFd) -> Result<bool, Errno> {
    fstat(fd).map(|stat| kind(&stat) == FileType::RegularFile)
}
