//! Marks beside the slots of a generation: how far the rewriting of an inode in place has come.
//!
//! All other steps are renames, links and metadata, of which a look at the base tells whether they
//! happened. A half-written file looks like one that somebody else wrote.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use txfs_journal::{Seen, SlotId, codec};

/// How far a rewrite is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Mark {
    /// Bytes may have been written.
    Begun,
    /// It is complete, and was this then.
    Done(Seen),
}

/// The marks of one plan.
pub(super) struct Marks {
    slots: Arc<OwnedFd>,
}

fn name(slot: SlotId) -> String {
    format!("{slot}.rewrite")
}

impl Marks {
    /// Marks in the directory of a generation's slots.
    pub(super) fn new(slots: Arc<OwnedFd>) -> Marks {
        Marks { slots }
    }

    /// The mark of the step whose content a slot holds.
    pub(super) fn get(&self, slot: SlotId) -> io::Result<Option<Mark>> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file: File = match rustix::fs::openat(&*self.slots, name(slot), flags, Mode::empty()) {
            Ok(fd) => fd.into(),
            Err(Errno::NOENT) => return Ok(None),
            Err(e) => return Err(e.into()),
        };
        let mut bytes = [0; 64];
        let len = file.read_at(&mut bytes, 0)?;
        if len == 0 {
            return Ok(Some(Mark::Begun));
        }
        match codec::decode::<Seen>(&bytes[..len]) {
            Ok(seen) => Ok(Some(Mark::Done(seen))),
            // Cut off by a crash: then the file was complete, but nothing says what it was.
            Err(_) => Ok(Some(Mark::Begun)),
        }
    }

    /// Marks a rewrite as begun, durably.
    pub(super) fn begin(&self, slot: SlotId) -> io::Result<()> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(&*self.slots, name(slot), flags, Mode::RUSR | Mode::WUSR)?;
        rustix::fs::fsync(&fd)?;
        Ok(rustix::fs::fsync(&*self.slots)?)
    }

    /// Marks a rewrite as complete, durably.
    pub(super) fn finish(&self, slot: SlotId, seen: &Seen) -> io::Result<()> {
        let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file: File = rustix::fs::openat(&*self.slots, name(slot), flags, Mode::empty())?.into();
        file.write_all_at(&codec::encode(seen), 0)?;
        file.sync_all()
    }

    /// Removes a mark: the step is as if it had never been begun.
    pub(super) fn clear(&self, slot: SlotId) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&*self.slots, name(slot), AtFlags::empty())?)
    }
}
