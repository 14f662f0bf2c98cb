//! `mv`

use rustix::fs::{FileType, RenameFlags, Stat, renameat, renameat_with};
use rustix::io::Errno;

use super::scene::{Scene, Spot, kind, same};
use super::{Done, Split, say};
use crate::classify::Clobber;

/// `mv [-f|-n] FROM TO`: a rename, and nothing but a rename.
pub(super) fn mv(scene: &mut Scene<'_>, clobber: Clobber, from: &[u8], to: &[u8]) -> Done {
    let source = match scene.spot(from)? {
        Ok(spot) => spot.lstat().map(|stat| (spot, stat)),
        Err(e) => Err(e),
    };
    let (source, moved) = match source {
        Ok(found) => found,
        Err(e) => return Ok(scene.failed("mv: cannot stat", from, e)),
    };
    let target_path = scene.target_of(from, to);
    let target = match scene.spot(&target_path)? {
        Ok(spot) => spot,
        Err(Errno::NOENT) => return Ok(cannot(scene, from, &target_path, Errno::NOENT)),
        Err(e) => return Ok(scene.failed("mv: cannot stat", &target_path, e)),
    };
    match target.lstat() {
        Err(Errno::NOENT) => {}
        Err(e) => return Ok(scene.failed("mv: cannot stat", &target_path, e)),
        Ok(old) => {
            if clobber == Clobber::Never {
                return Ok(0);
            }
            if let Some(code) = refused(scene, (&source, &moved, from), (&old, &target_path))? {
                return Ok(code);
            }
            let asks = clobber == Clobber::Default && scene.facts.asks;
            if asks && kind(&old) != FileType::Symlink && !target.is_writable() {
                return Err(Split::Unwritable);
            }
            let renamed = renameat(&source.dir, &source.name[..], &target.dir, &target.name[..]);
            return finish(scene, renamed, from, &target_path, &moved);
        }
    }
    let flags = RenameFlags::NOREPLACE;
    let renamed =
        renameat_with(&source.dir, &source.name[..], &target.dir, &target.name[..], flags);
    match renamed {
        Err(Errno::EXIST) => Err(Split::Raced),
        other => finish(scene, other, from, &target_path, &moved),
    }
}

/// What the tool refuses before it tries.
fn refused(
    scene: &mut Scene<'_>,
    (source, moved, from): (&Spot, &Stat, &[u8]),
    (old, to): (&Stat, &[u8]),
) -> Result<Option<u8>, Split> {
    let (from_kind, to_kind) = (kind(moved), kind(old));
    let one = same(moved, old);
    // A link onto what it leads to would leave a link to itself.
    let onto_own = from_kind == FileType::Symlink
        && to_kind != FileType::Symlink
        && source.stat().is_ok_and(|led| same(&led, old));
    let two_links = one && from_kind == FileType::Symlink && from != to;
    if two_links || (onto_own && old.st_nlink > 1) {
        return Err(Split::ManyNames);
    }
    if one || onto_own {
        let (from, to) = (scene.quote(from), scene.quote(to));
        scene.say(&[b"mv: ", &from, b" and ", &to, b" are the same file"]);
        return Ok(Some(1));
    }
    match (from_kind == FileType::Directory, to_kind == FileType::Directory) {
        (false, true) => {
            let to = scene.quote(to);
            scene.say(&[b"mv: cannot overwrite directory ", &to, b" with non-directory"]);
            Ok(Some(1))
        }
        (true, false) => {
            let (from, to) = (scene.quote(from), scene.quote(to));
            scene.say(&[b"mv: cannot overwrite non-directory ", &to, b" with directory ", &from]);
            Ok(Some(1))
        }
        (true, true) | (false, false) => Ok(None),
    }
}

fn cannot(scene: &mut Scene<'_>, from: &[u8], to: &[u8], errno: Errno) -> u8 {
    let from = scene.quote(from);
    let what = [b"mv: cannot move ", &from[..], b" to"].concat();
    let to = scene.quote(to);
    scene.say(&[&what, b" ", &to, b": ", say::words(errno).as_bytes()]);
    1
}

fn finish(
    scene: &mut Scene<'_>,
    renamed: Result<(), Errno>,
    from: &[u8],
    to: &[u8],
    moved: &Stat,
) -> Done {
    match renamed {
        Ok(()) => Ok(0),
        Err(Errno::XDEV) => Err(Split::CrossDevice),
        Err(Errno::INVAL) if kind(moved) == FileType::Directory => {
            let (from, to) = (scene.quote(from), scene.quote(to));
            scene.say(&[b"mv: cannot move ", &from, b" to a subdirectory of itself, ", &to]);
            Ok(1)
        }
        Err(e) => Ok(cannot(scene, from, to, e)),
    }
}
