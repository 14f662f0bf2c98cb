//! The directory that a command works in, and names in it.

use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{
    Access, AtFlags, FileType, Mode, OFlags, Stat, accessat, chmodat, fstat, openat, statat,
};
use rustix::io::Errno;

use super::{Facts, Split, say};

/// What a command is performed in.
pub(super) struct Scene<'a> {
    pub(super) facts: Facts<'a>,
    pub(super) err: &'a mut dyn Write,
}

/// A place for an entry: a directory that is held, and a name in it.
pub(super) struct Spot {
    pub(super) dir: OwnedFd,
    pub(super) name: Vec<u8>,
}

/// The kind of an entry.
pub(super) fn kind(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

/// Whether two are one.
pub(super) fn same(a: &Stat, b: &Stat) -> bool {
    (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino)
}

/// Whether a directory that was opened by its path alone may be entered.
pub(super) fn may_search(dir: &OwnedFd) -> bool {
    accessat(dir, ".", Access::EXEC_OK, AtFlags::EACCESS).is_ok()
}

/// Holds the directory that an entry is, and nothing that a link leads to, whatever its mode.
pub(super) fn pin_dir(spot: &Spot) -> Result<(OwnedFd, Stat), Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let dir = openat(&spot.dir, &spot.name[..], flags, Mode::empty())?;
    let stat = fstat(&dir)?;
    Ok((dir, stat))
}

/// Changes the mode of what is held, wherever its name leads by now.
pub(super) fn chmod_pinned(pinned: &OwnedFd, mode: Mode) -> Result<(), Errno> {
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(pinned));
    chmodat(rustix::fs::CWD, path, mode, AtFlags::empty())
}

/// The last component of an operand, which is never empty.
pub(super) fn base(path: &[u8]) -> &[u8] {
    match path.iter().rposition(|&b| b == b'/') {
        Some(at) => &path[at + 1..],
        None => path,
    }
}

/// `dir/name`
pub(super) fn join(dir: &[u8], name: &[u8]) -> Vec<u8> {
    [dir, b"/", name].concat()
}

impl Spot {
    pub(super) fn lstat(&self) -> Result<Stat, Errno> {
        statat(&self.dir, &self.name[..], AtFlags::SYMLINK_NOFOLLOW)
    }

    /// What it leads to.
    pub(super) fn stat(&self) -> Result<Stat, Errno> {
        statat(&self.dir, &self.name[..], AtFlags::empty())
    }

    /// Whether the caller may write what it leads to.
    pub(super) fn is_writable(&self) -> bool {
        accessat(&self.dir, &self.name[..], Access::WRITE_OK, AtFlags::EACCESS).is_ok()
    }
}

impl<'a> Scene<'a> {
    /// Where an operand is. Its directory may be missing; that is the tool's error then.
    pub(super) fn spot(&self, path: &[u8]) -> Result<Result<Spot, Errno>, Split> {
        let name = base(path);
        let parent: &[u8] = match path.len() - name.len() {
            0 => b".",
            len => &path[..len],
        };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        match openat(self.facts.dir, parent, flags, Mode::empty()) {
            Ok(dir) => {
                self.check(fstat(&dir).map_err(|_| Split::Raced)?.st_dev)?;
                Ok(Ok(Spot { dir, name: name.to_vec() }))
            }
            Err(e) => Ok(Err(e)),
        }
    }

    /// Refuses an operand whose directory is on a device on which nothing may be changed.
    pub(super) fn reaches(&self, path: &[u8]) -> Result<(), Split> {
        match self.spot(path) {
            Ok(Ok(_) | Err(_)) => Ok(()),
            Err(split) => Err(split),
        }
    }

    /// Refuses a device on which nothing may be changed.
    pub(super) fn check(&self, device: u64) -> Result<(), Split> {
        match self.facts.within {
            Some(own) if own != device => Err(Split::Outside),
            Some(_) | None => Ok(()),
        }
    }

    /// What a path leads to.
    pub(super) fn stat(&self, path: &[u8]) -> Result<Stat, Errno> {
        statat(self.facts.dir, path, AtFlags::empty())
    }

    /// What a path is, links not followed.
    pub(super) fn lstat(&self, path: &[u8]) -> Result<Stat, Errno> {
        statat(self.facts.dir, path, AtFlags::SYMLINK_NOFOLLOW)
    }

    /// The operand itself, or the one of the same name in it if it is a directory.
    pub(super) fn target_of(&self, from: &[u8], to: &[u8]) -> Vec<u8> {
        match self.stat(to) {
            Ok(stat) if kind(&stat) == FileType::Directory => join(to, base(from)),
            Ok(_) | Err(_) => to.to_vec(),
        }
    }

    /// Pins what a path leads to, without opening it, if it is on the right device.
    pub(super) fn pin(&self, path: &[u8]) -> Result<Result<(OwnedFd, Stat), Errno>, Split> {
        let pinned = openat(self.facts.dir, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
            .and_then(|fd| fstat(&fd).map(|stat| (fd, stat)));
        if let Ok((_, stat)) = &pinned {
            self.check(stat.st_dev)?;
        }
        Ok(pinned)
    }

    /// Opens what is pinned.
    pub(super) fn reopen(&self, pinned: &OwnedFd, flags: OFlags) -> Result<OwnedFd, Errno> {
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(pinned));
        openat(self.facts.dir.as_fd(), path, flags | OFlags::CLOEXEC, Mode::empty())
    }

    /// A name in the tools' quotes.
    pub(super) fn quote(&self, name: &[u8]) -> Vec<u8> {
        say::name(name, self.facts.utf8)
    }

    /// Says something. Whoever has closed standard error wants to hear nothing.
    pub(super) fn say(&mut self, parts: &[&[u8]]) {
        let mut line = parts.concat();
        line.push(b'\n');
        if let Err(e) = self.err.write_all(&line) {
            log::debug!("{e}");
        }
    }

    /// `tool: what 'name': error`, and the exit code for it.
    pub(super) fn failed(&mut self, what: &str, path: &[u8], errno: Errno) -> u8 {
        let quoted = self.quote(path);
        let words = say::words(errno);
        self.say(&[what.as_bytes(), b" ", &quoted, b": ", words.as_bytes()]);
        1
    }
}
