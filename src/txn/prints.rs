//! The state of everything that a plan touched, read after apply: what undo compares the base with,
//! since our own renames change times of status.

use std::collections::HashSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::OFlags;
use txfs_journal::{Fingerprint, Ident, Kind, Name, Place, RelPath, Sealed, Step};

use crate::base::{self, Base, Stat};

/// Reads directories by path, the last of them kept open: neighbours mostly share it.
struct Looker<'a> {
    base: &'a Base,
    last: Option<(RelPath, Arc<OwnedFd>)>,
}

impl Looker<'_> {
    fn dir(&mut self, path: &RelPath) -> io::Result<Option<Arc<OwnedFd>>> {
        if let Some((at, dir)) = &self.last
            && at == path
        {
            return Ok(Some(Arc::clone(dir)));
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        let dir = match base::open_beneath(self.base.root(), path, flags) {
            Ok(dir) => Arc::new(dir),
            Err(e) if base::is_absent(&e) => return Ok(None),
            Err(e) => return Err(e),
        };
        self.last = Some((path.clone(), Arc::clone(&dir)));
        Ok(Some(dir))
    }

    /// What is at a path, if anything is.
    fn stat(&mut self, path: &RelPath) -> io::Result<Option<Stat>> {
        let Some((parent, name)) = path.split() else {
            return base::stat_fd(self.base.root()).map(Some);
        };
        let Some(dir) = self.dir(&parent)? else { return Ok(None) };
        match base::stat_at(dir.as_fd(), name.as_bytes()) {
            Ok(stat) => Ok(Some(stat)),
            Err(e) if base::is_absent(&e) => Ok(None),
            Err(e) => Err(e),
        }
    }
}

/// The place and inode whose state a step leaves behind.
fn left_by(step: &Step) -> Option<(&Place, &Ident)> {
    match step {
        Step::Place { to, ident, .. } | Step::Link { to, ident, .. } => Some((to, ident)),
        Step::Exchange { at, new, .. } => Some((at, new)),
        Step::Rewrite { at, ident, .. } | Step::SetMeta { at, ident, .. } => Some((at, ident)),
        // It has a name less.
        Step::Unlink { existing, ident, .. } => Some((existing, ident)),
        Step::Fetch { .. } | Step::Evacuate { .. } | Step::Barrier => None,
    }
}

/// The state of everything that a plan placed, wrote or changed. Directories that an undo brings back
/// are read with all they hold: later undos must know it.
///
/// # Errors
/// If something cannot be read. What is not where the plan left it is left out.
pub fn fingerprints(base: &Base, seal: &Sealed) -> io::Result<Vec<(Place, Fingerprint)>> {
    let mut out: Vec<(Place, Fingerprint)> = Vec::new();
    let mut seen = HashSet::new();
    // Slots from which something comes back: of older generations, or of an earlier segment. What moves
    // within a segment takes along what it holds.
    let (mut fetched, mut left) = (HashSet::new(), Vec::new());
    let mut looker = Looker { base, last: None };
    for step in &seal.plan().steps {
        match step {
            Step::Fetch { slot, .. } => drop(fetched.insert(*slot)),
            Step::Evacuate { slot, .. } => left.push(*slot),
            Step::Barrier => fetched.extend(left.drain(..)),
            Step::Place { .. }
            | Step::Exchange { .. }
            | Step::Link { .. }
            | Step::Unlink { .. }
            | Step::Rewrite { .. }
            | Step::SetMeta { .. } => {}
        }
        let Some((at, ident)) = left_by(step) else { continue };
        if seen.contains(&at.path) {
            continue;
        }
        // A later segment may have put something else there, which its own step tells of.
        let Some(stat) = looker.stat(&at.path)?.filter(|s| s.ident == *ident) else { continue };
        seen.insert(at.path.clone());
        out.push((at.clone(), stat.fingerprint(Vec::new())));
        if let Step::Place { slot, .. } = step
            && ident.kind == Kind::Dir
            && fetched.contains(slot)
            && let Some(dir) = looker.dir(&at.path)?
        {
            below(dir.as_fd(), ident.ino, &at.path, &mut seen, &mut out)?;
        }
    }
    Ok(out)
}

fn below(
    dir: BorrowedFd<'_>,
    ino: u64,
    path: &RelPath,
    seen: &mut HashSet<RelPath>,
    out: &mut Vec<(Place, Fingerprint)>,
) -> io::Result<()> {
    for (name, _, kind) in base::list(dir)? {
        let stat = match base::stat_at(dir, &name) {
            Ok(stat) => stat,
            Err(e) if base::is_absent(&e) => continue,
            Err(e) => return Err(e),
        };
        let path = path.join(&Name::new(&name).map_err(io::Error::other)?);
        if seen.insert(path.clone()) {
            out.push((Place { path: path.clone(), parent_ino: ino }, stat.fingerprint(Vec::new())));
        }
        if kind == Kind::Dir {
            let fd = base::open_child(dir, &name)?;
            below(fd.as_fd(), stat.ident.ino, &path, seen, out)?;
        }
    }
    Ok(())
}
