//! Inodes made ready in the staging directory: what a plan places exists, whole and with its metadata,
//! before the plan is sealed. Apply only renames it.

use std::collections::{BTreeMap, HashMap};
use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{FileType, Mode};
use txfs_journal::{Ident, Meta, NewNode, ObjId, RelPath, SlotId};

use super::net::{Differs, Names};
use super::planner::{io_at, lost_way};
use super::share;
use crate::base::mutate::put_meta;
use crate::base::{self, open_child};
use crate::proto::{Code, Failure};
use crate::sys;
use crate::view::View;
use crate::view::delta::{Object, Origin};
use crate::view::staging::copy_content;
use crate::view::state::State;

/// An inode that a plan can place.
#[derive(Clone, Debug)]
pub(super) struct Ready {
    /// Where it is.
    pub slot: SlotId,
    /// What it is.
    pub ident: Ident,
    /// What it carries.
    pub meta: Meta,
    /// It is a copy; the staged file is still in use.
    pub copied: bool,
    /// Somebody may be writing the file that it is a copy of.
    pub written: bool,
}

/// Makes inodes for the objects of a view.
pub(super) struct Workshop<'a> {
    pub view: &'a View,
    pub st: &'a State,
    /// Take files that do not hold still.
    pub allow_open_writers: bool,
}

impl Workshop<'_> {
    /// Makes ready everything that is new and every base file that gets a new inode: one whose content
    /// differs, unless it must be rewritten in place, which `in_place` answers.
    ///
    /// # Errors
    /// If something cannot be made or copied.
    pub(super) fn all(
        &self,
        names: &BTreeMap<ObjId, Names>,
        differs: &HashMap<ObjId, Differs>,
        in_place: impl Fn(ObjId, &Names) -> bool,
    ) -> Result<HashMap<ObjId, Ready>, Failure> {
        let wanted = |(obj, names): (&ObjId, &Names)| {
            let object = self.st.delta.objects.get(obj)?;
            let stays = !names.gained.is_empty() || !names.kept.is_empty();
            let gets_inode = object.is_new()
                || (object.content.is_some()
                    && differs.get(obj).is_some_and(|d| d.content)
                    && !in_place(*obj, names));
            (stays && gets_inode).then_some((*obj, object))
        };
        let todo: Vec<_> = names.iter().filter_map(wanted).collect();
        let made = share::each(&todo, |(obj, object)| Ok((*obj, self.one(*obj, object)?)));
        made.into_iter().collect()
    }

    fn one(&self, obj: ObjId, object: &Object) -> Result<Ready, Failure> {
        let fail = |e: io::Error| self.failed(obj, &e);
        let meta = self.wanted_meta(obj).map_err(fail)?;
        if let Some(slot) = object.content {
            return self.file(obj, slot, meta);
        }
        let slot = match &object.origin {
            Origin::New(Some(NewNode::File { slot })) => return self.file(obj, *slot, meta),
            Origin::New(node) => self.make(node.as_ref()).map_err(fail)?,
            Origin::Base(_) => return Err(lost_way(obj)),
        };
        let fd = open_child(self.st.staging.dir(), slot.to_string().as_bytes()).map_err(fail)?;
        let ident = finish(fd.as_fd(), &meta).map_err(fail)?;
        Ok(Ready { slot, ident, meta, copied: false, written: false })
    }

    /// Everything but regular files exists only from now on.
    fn make(&self, node: Option<&NewNode>) -> io::Result<SlotId> {
        let slot = self.st.staging.next_slot();
        let (dir, name) = (self.st.staging.dir(), slot.to_string());
        let special =
            |kind, rdev| rustix::fs::mknodat(dir, &name, kind, Mode::RUSR | Mode::WUSR, rdev);
        match node {
            None => rustix::fs::mkdirat(dir, &name, Mode::RWXU)?,
            Some(NewNode::Symlink { target }) => {
                let target = CString::new(target.clone()).map_err(io::Error::other)?;
                rustix::fs::symlinkat(target, dir, &name)?;
            }
            Some(NewNode::File { .. }) => return Err(io::ErrorKind::InvalidInput.into()),
            Some(NewNode::Fifo) => special(FileType::Fifo, 0)?,
            Some(NewNode::Socket) => special(FileType::Socket, 0)?,
            Some(NewNode::Char { rdev }) => special(FileType::CharacterDevice, *rdev)?,
            Some(NewNode::Block { rdev }) => special(FileType::BlockDevice, *rdev)?,
        }
        Ok(slot)
    }

    /// A staged file lands itself, or as a copy if somebody may be writing it: what a foreign writer holds
    /// must never be in the base.
    fn file(&self, obj: ObjId, slot: SlotId, meta: Meta) -> Result<Ready, Failure> {
        let staging = &self.st.staging;
        let fail = |e: io::Error| self.failed(obj, &e);
        let held = self.view.handles.open_file(obj).is_some_and(|f| f.is_passthrough());
        let file = staging.file(slot, false).map_err(fail)?;
        let written = held || sys::may_have_writer(file.as_fd()).map_err(fail)?;
        // A second slot, of a mark that was set while it was open, would count as a link.
        if !written && base::stat_fd(file.as_fd()).map_err(fail)?.nlink == 1 {
            let ident = finish(file.as_fd(), &meta).map_err(fail)?;
            return Ok(Ready { slot, ident, meta, copied: false, written });
        }
        let (slot, copy) = self.copy(obj, &file)?;
        let ident = finish(copy.as_fd(), &meta).map_err(fail)?;
        Ok(Ready { slot, ident, meta, copied: true, written })
    }

    /// A copy of a file as it was at one moment.
    fn copy(&self, obj: ObjId, file: &File) -> Result<(SlotId, File), Failure> {
        let staging = &self.st.staging;
        let fail = |e: io::Error| self.failed(obj, &e);
        for _ in 0..3 {
            file.sync_all().map_err(fail)?;
            let before = base::stat_fd(file.as_fd()).map_err(fail)?;
            let (copy, to) = staging.create().map_err(fail)?;
            copy_content(file, &to).map_err(fail)?;
            let after = base::stat_fd(file.as_fd()).map_err(fail)?;
            let still =
                (before.size, before.mtime, before.ctime) == (after.size, after.mtime, after.ctime);
            if still || self.allow_open_writers {
                return Ok((copy, to));
            }
            staging.remove(copy).map_err(fail)?;
        }
        let path = self.path(obj);
        let what = format!(
            "\"{}\" is being written and did not hold still",
            path.as_bytes().escape_ascii()
        );
        Err(Failure::new(Code::Busy, what)
            .hint("txfs commit --wait 10, or --allow-open-writers to take it as it is"))
    }

    /// Metadata that an object shall have in the base.
    ///
    /// # Errors
    /// If it cannot be looked at.
    pub(super) fn wanted_meta(&self, obj: ObjId) -> io::Result<Meta> {
        let (attr, _) = self.view.attr(self.st, obj)?;
        let xattrs = self.view.xattrs(self.st, obj)?;
        Ok(Meta {
            mode: attr.mode,
            uid: attr.uid,
            gid: attr.gid,
            atime: Some(attr.atime),
            mtime: attr.mtime,
            xattrs: Some(xattrs),
        })
    }

    fn path(&self, obj: ObjId) -> RelPath {
        self.view.view_path(self.st, obj).unwrap_or_else(RelPath::root)
    }

    fn failed(&self, obj: ObjId, e: &io::Error) -> Failure {
        io_at(&self.path(obj), e)
    }
}

/// Gives an inode its metadata; answers what it is.
fn finish(fd: BorrowedFd<'_>, meta: &Meta) -> io::Result<Ident> {
    let stat = base::stat_fd(fd)?;
    put_meta(fd, &stat, meta)?;
    Ok(stat.ident)
}
