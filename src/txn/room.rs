//! A little room that the store keeps, so that a transaction can be dropped on a full disk: it is the way to
//! get room again.

use std::io;

use rustix::fs::{AtFlags, FallocateFlags, Mode, OFlags};

use super::store::Store;

/// Enough for a segment of the journal and a few directories.
const ROOM: u64 = 2 << 20;
/// A disk with less than this much besides gives none.
const PLENTY: u64 = 16 << 20;
const NAME: &str = "room";

impl Store {
    /// Gives the room back to a disk that is full, and takes it of one that has plenty. A failure is
    /// logged: what needs the room will say so itself.
    pub fn tend_room(&self) {
        let done = match self.free() {
            Ok(free) if free < ROOM => self.give_room(),
            Ok(free) if free > PLENTY => self.take_room(),
            Ok(_) => Ok(()),
            Err(e) => Err(e),
        };
        if let Err(e) = done {
            log::warn!("{}/{NAME}: {e}", self.path().display());
        }
    }

    /// Bytes that an ordinary user can still write.
    fn free(&self) -> io::Result<u64> {
        let stat = rustix::fs::fstatvfs(self.dir())?;
        Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
    }

    fn give_room(&self) -> io::Result<()> {
        match rustix::fs::unlinkat(self.dir(), NAME, AtFlags::empty()) {
            Ok(()) | Err(rustix::io::Errno::NOENT) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    fn take_room(&self) -> io::Result<()> {
        use rustix::io::Errno;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file = match rustix::fs::openat(self.dir(), NAME, flags, Mode::RUSR | Mode::WUSR) {
            Ok(file) => file,
            Err(Errno::EXIST) => return Ok(()),
            Err(e) => return Err(e.into()),
        };
        match rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, ROOM) {
            Ok(()) => Ok(()),
            // A file system without it has none to keep.
            Err(Errno::OPNOTSUPP | Errno::NOSPC | Errno::DQUOT) => self.give_room(),
            Err(e) => Err(e.into()),
        }
    }
}
