//! Comparing the base with what a transaction knows of it.

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use rustix::io::Errno;
use txfs_journal::{Fingerprint, Kind, Name, ObjId, RelPath};

use super::net::Paths;
use super::planner::{ident_of, io_at, op_failed};
use super::{share, writers};
use crate::base::{self, Stat, stat_at};
use crate::proto::{Conflict, Failure};
use crate::sys;
use crate::view::View;
use crate::view::delta::{Delta, Object, Origin};
use crate::view::nodes::Located;
use crate::view::state::State;

/// What a look at everything that a transaction touches found.
#[derive(Debug, Default)]
pub struct Validated {
    /// Every place where the base is not as the transaction knows it.
    pub conflicts: Vec<Conflict>,
    /// What its objects are in the base. One that is missing is among the conflicts.
    pub found: HashMap<ObjId, Stat>,
}

/// A base object of the delta, as it was found.
struct Look {
    obj: ObjId,
    /// `None` if it is not there.
    stat: Option<Stat>,
    /// It stands where it was met, so its name there need not be looked at again.
    at_home: bool,
    conflicts: Vec<Conflict>,
}

fn conflict(path: &RelPath, reason: impl Into<String>) -> Conflict {
    Conflict { path: path.into(), reason: reason.into(), generation: None }
}

/// Compares the base with what the transaction knows of it. `restamped` has what a commit that was
/// taken back moved to and fro, by inode.
///
/// # Errors
/// If the base cannot be read.
pub fn validate(
    view: &View,
    st: &State,
    restamped: &HashMap<u64, Fingerprint>,
) -> Result<Validated, Failure> {
    let mut out = Validated::default();
    let mut paths = Paths::new(view, st);
    let looks = objects(view, st, restamped, &mut paths)?;
    let mut at_home = HashSet::new();
    for look in looks {
        out.conflicts.extend(look.conflicts);
        if let Some(stat) = look.stat {
            out.found.insert(look.obj, stat);
        }
        if look.at_home {
            at_home.insert(look.obj);
        }
    }
    for (dir, cells) in &st.delta.dirs {
        let Some(dir_path) = paths.old(*dir) else { continue };
        let Ok(fd) = view.nodes.dir(*dir) else { continue };
        for (name, cell) in cells {
            let known = cell.below.filter(|b| is_home(&st.delta, *b, *dir, name));
            let there = match known.filter(|b| at_home.contains(b)) {
                Some(below) => out.found.get(&below).copied(),
                None => look_at(fd.as_fd(), name, || dir_path.join(name))?,
            };
            let expected = cell.below.and_then(|b| ident_of(st, b));
            let reason = match (expected, there) {
                (None, Some(_)) => "it was created outside the transaction",
                (Some(ident), Some(stat)) if stat.ident != ident => {
                    "it was replaced outside the transaction"
                }
                (Some(_), None) => "it was removed or renamed outside the transaction",
                (Some(_), Some(stat)) if stat.mount_root || stat.dev != view.nodes.base().dev() => {
                    "something is mounted on it"
                }
                (Some(_), Some(_)) | (None, None) => continue,
            };
            out.conflicts.push(conflict(&dir_path.join(name), reason));
        }
    }
    for (obj, object) in &st.delta.objects {
        if !object.is_new()
            && object.links < 0
            && object.kind() == Kind::Dir
            && let Some(path) = view.base_path(st, *obj)
        {
            out.conflicts.extend(strangers(view, st, *obj, &path)?);
        }
    }
    out.conflicts.sort_by(|a, b| a.path.cmp(&b.path));
    out.conflicts.dedup_by(|a, b| a.path == b.path);
    Ok(out)
}

/// Looks at every base object of the delta.
fn objects(
    view: &View,
    st: &State,
    restamped: &HashMap<u64, Fingerprint>,
    paths: &mut Paths<'_>,
) -> Result<Vec<Look>, Failure> {
    let mut todo = Vec::with_capacity(st.delta.objects.len());
    for (obj, object) in &st.delta.objects {
        if let Origin::Base(bind) = &object.origin
            && *obj != ObjId::ROOT
            && let Some(dir) = paths.old(bind.parent)
        {
            todo.push((*obj, object, &bind.print, dir.join(&bind.name)));
        }
    }
    share::each(&todo, |(obj, object, print, path)| {
        look(view, *obj, object, &with_our_stamp(print, restamped), path)
    })
    .into_iter()
    .collect()
}

fn look(
    view: &View,
    obj: ObjId,
    object: &Object,
    print: &Fingerprint,
    path: &RelPath,
) -> Result<Look, Failure> {
    let mut look = Look { obj, stat: None, at_home: false, conflicts: Vec::new() };
    let found = match view.nodes.locate(obj) {
        Ok(found) => found,
        Err(Errno::STALE) => {
            let gone = "it was removed or replaced outside the transaction";
            look.conflicts.push(conflict(path, gone));
            return Ok(look);
        }
        Err(e) => return Err(op_failed("look at the base", e)),
    };
    // Its mode and owner are not this transaction's matter, and stay as they are.
    let ancestor_only = object.is_way();
    if let Some(reason) = drifted(print, &found.stat).filter(|_| !ancestor_only) {
        look.conflicts.push(conflict(path, reason));
    } else if is_displaced(object, &found.stat)
        && let Some(reason) = being_written(&found, path)?
    {
        look.conflicts.push(conflict(path, reason));
    }
    if found.stat.immutable {
        look.conflicts.push(conflict(path, "it is immutable or append-only (lsattr)"));
    }
    look.at_home = matches!(&object.origin, Origin::Base(bind)
        if bind.name.as_bytes() == found.name
            && view.nodes.dir(bind.parent).is_ok_and(|dir| Arc::ptr_eq(&dir, &found.dir)));
    look.stat = Some(found.stat);
    Ok(look)
}

/// Whether this is the place where the delta met an object.
fn is_home(delta: &Delta, obj: ObjId, dir: ObjId, name: &Name) -> bool {
    match delta.objects.get(&obj).map(|o| &o.origin) {
        Some(Origin::Base(bind)) => bind.parent == dir && bind.name == *name,
        Some(Origin::New(_)) | None => false,
    }
}

fn look_at(
    dir: BorrowedFd<'_>,
    name: &Name,
    path: impl FnOnce() -> RelPath,
) -> Result<Option<Stat>, Failure> {
    match stat_at(dir, name.as_bytes()) {
        Ok(stat) => Ok(Some(stat)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(io_at(&path(), &e)),
    }
}

/// Entries of a directory that is to be removed, which the transaction did not remove.
fn strangers(
    view: &View,
    st: &State,
    dir: ObjId,
    path: &RelPath,
) -> Result<Vec<Conflict>, Failure> {
    let fd = view.nodes.dir(dir).map_err(|e| op_failed("open a directory", e))?;
    let cells = st.delta.dirs.get(&dir);
    let mut found = Vec::new();
    for (bytes, ..) in base::list(fd.as_fd()).map_err(|e| io_at(path, &e))? {
        let name = Name::new(&bytes).map_err(|e| io_at(path, &io::Error::other(e)))?;
        if !cells.is_some_and(|c| c.contains_key(&name)) {
            let reason = "it was created outside in a directory that the transaction removes";
            found.push(conflict(&path.join(&name), reason));
        }
    }
    Ok(found)
}

/// A fingerprint with the time of status that our own taking back of a commit gave the object.
#[must_use]
pub fn with_our_stamp(print: &Fingerprint, restamped: &HashMap<u64, Fingerprint>) -> Fingerprint {
    let mut print = print.clone();
    if let Some(ours) = restamped.get(&print.ident.ino).filter(|p| p.ident == print.ident) {
        print.ctime = print.ctime.max(ours.ctime);
    }
    print
}

/// Whether a file's inode leaves the base: it was given content, or lost its last name.
fn is_displaced(object: &Object, now: &Stat) -> bool {
    object.kind() == Kind::File
        && (object.content.is_some() || i64::from(now.nlink) + object.links <= 0)
}

/// Whether somebody has a file open for writing, whose further writes would go into history. Where the
/// system does not answer (a file of another user, a file system without leases) nothing is said.
fn being_written(found: &Located, path: &RelPath) -> Result<Option<String>, Failure> {
    let opened = base::open_file_at(found.dir.as_fd(), &found.name, &found.stat.ident);
    let Some(file) = opened.map_err(|e| io_at(path, &e))? else { return Ok(None) };
    let asked = sys::has_writer(file.as_fd()).map_err(|e| io_at(path, &e))?;
    if asked != Some(true) {
        return Ok(None);
    }
    let pids: Vec<_> = writers::of(file.as_fd()).iter().map(ToString::to_string).collect();
    let by = match &pids[..] {
        [] => String::new(),
        [pid] => format!(" by process {pid}"),
        pids => format!(" by processes {}", pids.join(", ")),
    };
    Ok(Some(format!("it is open for writing outside{by}")))
}

/// Why an object is no longer as it was, if it is not.
#[must_use]
pub fn drifted(then: &Fingerprint, now: &Stat) -> Option<String> {
    let mut what = Vec::new();
    if (then.mode, then.uid, then.gid) != (now.mode, now.uid, now.gid) {
        what.push("mode or owner");
    }
    if then.ident.kind != Kind::Dir {
        if then.size != now.size || then.mtime != now.mtime {
            what.push("content");
        } else if then.nlink != now.nlink {
            what.push("hard links");
        } else if then.ctime != now.ctime && what.is_empty() {
            what.push("status");
        }
    }
    if what.is_empty() {
        None
    } else {
        Some(format!("its {} changed outside the transaction", what.join(" and ")))
    }
}
