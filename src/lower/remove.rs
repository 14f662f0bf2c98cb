//! `rm`, `rmdir`

use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, fstat, openat, unlinkat};
use rustix::io::Errno;

use super::scene::{Scene, Spot, join, kind};
use super::{Done, Split};

/// The most levels of directories that are walked, each with a descriptor.
pub(super) const DEPTH: usize = 100;

/// `rm [-f] [-r] PATH...`
pub(super) fn rm(scene: &mut Scene<'_>, force: bool, recursive: bool, paths: &[&[u8]]) -> Done {
    for path in paths {
        // What an earlier operand takes away is looked at too: that only hands more back.
        if let Ok(spot) = scene.spot(path)? {
            look(scene, &spot, !force, recursive)?;
        }
    }
    let mut code = 0;
    for path in paths {
        let removed = match scene.spot(path) {
            Ok(Ok(spot)) => match spot.lstat() {
                Ok(stat) if kind(&stat) == FileType::Directory && !recursive => Err(Errno::ISDIR),
                Ok(stat) if kind(&stat) == FileType::Directory => {
                    code |= tree(scene, &spot, path, DEPTH);
                    continue;
                }
                Ok(_) => unlinkat(&spot.dir, &spot.name[..], AtFlags::empty()),
                Err(e) => Err(e),
            },
            Ok(Err(e)) => Err(e),
            Err(_) => Err(Errno::XDEV),
        };
        match removed {
            Ok(()) => {}
            Err(Errno::NOENT | Errno::NOTDIR) if force => {}
            Err(e) => code |= scene.failed("rm: cannot remove", path, e),
        }
    }
    Ok(code)
}

/// Whether the removal of an entry would ask, or cannot be done here.
fn look(scene: &Scene<'_>, spot: &Spot, may_ask: bool, recursive: bool) -> Result<(), Split> {
    let Ok(stat) = spot.lstat() else { return Ok(()) };
    let directory = kind(&stat) == FileType::Directory;
    if directory && !recursive {
        return Ok(());
    }
    let asks = may_ask && scene.facts.asks;
    if asks && kind(&stat) != FileType::Symlink && !spot.is_writable() {
        return Err(Split::Unwritable);
    }
    if directory { look_below(scene, spot, asks, DEPTH) } else { Ok(()) }
}

fn look_below(scene: &Scene<'_>, spot: &Spot, asks: bool, depth: usize) -> Result<(), Split> {
    let depth = depth.checked_sub(1).ok_or(Split::TooDeep)?;
    let dir = open(spot).map_err(|_| Split::Unreadable)?;
    scene.check(fstat(&dir).map_err(|_| Split::Raced)?.st_dev)?;
    for name in names(&dir).map_err(|_| Split::Unreadable)? {
        let below = below(&dir, name).map_err(|_| Split::Raced)?;
        let Ok(stat) = below.lstat() else { return Err(Split::Unreadable) };
        if asks && kind(&stat) != FileType::Symlink && !below.is_writable() {
            return Err(Split::Unwritable);
        }
        if kind(&stat) == FileType::Directory {
            look_below(scene, &below, asks, depth)?;
        }
    }
    Ok(())
}

/// Opens the directory that an entry is, and nothing that a link leads to.
pub(super) fn open(spot: &Spot) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(&spot.dir, &spot.name[..], flags, Mode::empty())
}

/// An entry of an open directory.
pub(super) fn below(dir: &OwnedFd, name: Vec<u8>) -> Result<Spot, Errno> {
    Ok(Spot { dir: rustix::io::fcntl_dupfd_cloexec(dir, 3)?, name })
}

/// The names in a directory, in no order.
pub(super) fn names(dir: &OwnedFd) -> Result<Vec<Vec<u8>>, Errno> {
    let mut out = Vec::new();
    for entry in Dir::read_from(dir)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            out.push(name.to_vec());
        }
    }
    Ok(out)
}

/// Removes a directory with all below; goes on after failures and says each.
fn tree(scene: &mut Scene<'_>, spot: &Spot, path: &[u8], depth: usize) -> u8 {
    let Some(depth) = depth.checked_sub(1) else {
        return scene.failed("rm: cannot remove", path, Errno::NAMETOOLONG);
    };
    let listed = open(spot).and_then(|dir| names(&dir).map(|names| (dir, names)));
    let (dir, names) = match listed {
        Ok(listed) => listed,
        Err(e) => return scene.failed("rm: cannot remove", path, e),
    };
    let mut code = 0;
    for name in names {
        let full = join(path, &name);
        let removed = below(&dir, name).and_then(|below| Ok((kind(&below.lstat()?), below)));
        code |= match removed {
            Ok((FileType::Directory, below)) => tree(scene, &below, &full, depth),
            Ok((_, below)) => match unlinkat(&below.dir, &below.name[..], AtFlags::empty()) {
                Ok(()) => 0,
                Err(e) => scene.failed("rm: cannot remove", &full, e),
            },
            Err(e) => scene.failed("rm: cannot remove", &full, e),
        };
    }
    if code != 0 {
        return code;
    }
    match unlinkat(&spot.dir, &spot.name[..], AtFlags::REMOVEDIR) {
        Ok(()) => 0,
        Err(e) => scene.failed("rm: cannot remove", path, e),
    }
}

/// `rmdir PATH...`
pub(super) fn rmdir(scene: &mut Scene<'_>, paths: &[&[u8]]) -> Done {
    for path in paths {
        scene.reaches(path)?;
    }
    let mut code = 0;
    for path in paths {
        let removed = match scene.spot(path) {
            Ok(Ok(spot)) => unlinkat(&spot.dir, &spot.name[..], AtFlags::REMOVEDIR),
            Ok(Err(e)) => Err(e),
            Err(_) => Err(Errno::XDEV),
        };
        if let Err(e) = removed {
            code |= scene.failed("rmdir: failed to remove", path, e);
        }
    }
    Ok(code)
}
