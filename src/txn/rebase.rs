//! Moving an open transaction onto the live generation.
//!
//! A delta is keyed by objects and names, so it fits onto a later generation as it is if no generation
//! in between touched what it touches: then the layers that hide those generations are taken away, and
//! that is all. Two new names in one directory never conflict.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::AsFd;

use txfs_journal::{Kind, Name, ObjId, RelPath};

use super::net;
use super::planner::op_failed;
use crate::base;
use crate::proto::{Conflict, Failure};
use crate::view::View;
use crate::view::delta::{Object, Origin};
use crate::view::layer::Layer;
use crate::view::state::State;

/// Where a transaction and the generations after its own contradict each other, by path; each once, with
/// the generation that did it. The kinds: write-write, create-create, delete-write, write-delete,
/// delete-delete, directory not empty, parent gone.
///
/// # Errors
/// If the base cannot be read.
pub(super) fn conflicts(view: &View, st: &State) -> Result<Vec<Conflict>, Failure> {
    let mut check = Check { view, st, at_place: HashMap::new(), found: BTreeMap::new() };
    for layer in &st.layers {
        check.names(layer);
        check.objects(layer);
    }
    let mut bound: Vec<_> = st.delta.objects.iter().collect();
    bound.sort_by_key(|(obj, _)| **obj);
    for (obj, object) in bound {
        check.place(*obj, object)?;
    }
    Ok(check.found.into_values().collect())
}

struct Check<'a> {
    view: &'a View,
    st: &'a State,
    /// Whether a base object is where the transaction met it.
    at_place: HashMap<ObjId, bool>,
    found: BTreeMap<RelPath, Conflict>,
}

impl Check<'_> {
    fn conflict(&mut self, path: RelPath, what: &str, generation: Option<u64>) {
        let by = generation.map_or_else(String::new, |g| format!(" by generation {g}"));
        let reason = format!("{what}{by}");
        let conflict = Conflict { path: (&path).into(), reason, generation };
        self.found.entry(path).or_insert(conflict);
    }

    fn path_in(&self, dir: ObjId, name: &Name) -> Option<RelPath> {
        Some(self.view.base_path(self.st, dir)?.join(name))
    }

    /// Names that both changed.
    fn names(&mut self, layer: &Layer) {
        let nodes = &self.view.nodes;
        for (dir_ino, name, was) in layer.names() {
            let Some(dir) = nodes.by_inode(nodes.base().dev(), dir_ino) else { continue };
            let cell = self.st.delta.dirs.get(&dir).and_then(|cells| cells.get(name));
            let Some(path) = self.path_in(dir, name) else { continue };
            let what = match cell {
                Some(cell) => {
                    let is_there = self.is_there(dir, name);
                    match (cell.below.is_some(), cell.now.is_some(), was.is_some(), is_there) {
                        (false, true, _, _) => "create-create: it was created too",
                        (_, false, _, true) => "delete-write: it was changed",
                        (_, false, _, false) => "delete-delete: it was removed too",
                        (true, true, _, true) => "write-write: it was changed too",
                        (true, true, _, false) => "write-delete: it was removed",
                    }
                }
                None if was.is_none() && self.is_removed(dir) => {
                    "directory not empty: it was created in a directory that this removes"
                }
                None => continue,
            };
            self.conflict(path, what, Some(layer.generation.0));
        }
    }

    fn is_there(&self, dir: ObjId, name: &Name) -> bool {
        let Ok(fd) = self.view.nodes.dir(dir) else { return false };
        base::stat_at(fd.as_fd(), name.as_bytes()).is_ok()
    }

    /// Whether the transaction took an object's last name.
    fn is_removed(&self, obj: ObjId) -> bool {
        self.st.delta.objects.contains_key(&obj) && self.view.view_place(self.st, obj).is_none()
    }

    /// Objects that both changed in place.
    fn objects(&mut self, layer: &Layer) {
        let nodes = &self.view.nodes;
        for ino in layer.objects() {
            let Some(obj) = nodes.by_inode(nodes.base().dev(), ino) else { continue };
            let Some(object) = self.st.delta.objects.get(&obj) else { continue };
            if !layer.binds(ino) || object.is_way() {
                continue;
            }
            let Some(path) = self.view.base_path(self.st, obj) else { continue };
            let what = if self.is_removed(obj) {
                "delete-write: it was changed"
            } else {
                "write-write: it was changed too"
            };
            self.conflict(path, what, Some(layer.generation.0));
        }
    }

    /// What the transaction met in the base must still be there.
    fn place(&mut self, obj: ObjId, object: &Object) -> Result<(), Failure> {
        let Origin::Base(bind) = &object.origin else { return Ok(()) };
        if self.is_at_place(obj)? || !self.is_at_place(bind.parent)? {
            return Ok(());
        }
        let Some(path) = self.path_in(bind.parent, &bind.name) else { return Ok(()) };
        let parent = self.view.nodes.get(bind.parent);
        let by = self.st.layers.iter().find(|layer| {
            parent.as_ref().is_some_and(|p| layer.name(p.ident.ino, &bind.name).is_some())
        });
        let what = if bind.print.ident.kind == Kind::Dir {
            "parent gone: the directory was moved or removed"
        } else if self.is_there(bind.parent, &bind.name) {
            "write-write: it was replaced"
        } else {
            "write-delete: it was moved or removed"
        };
        let by = by.map(|layer| layer.generation.0);
        self.conflict(path, what, by);
        Ok(())
    }

    fn is_at_place(&mut self, obj: ObjId) -> Result<bool, Failure> {
        if obj == ObjId::ROOT {
            return Ok(true);
        }
        if let Some(known) = self.at_place.get(&obj) {
            return Ok(*known);
        }
        let Some(Origin::Base(bind)) = self.st.delta.objects.get(&obj).map(|o| &o.origin) else {
            return Ok(false);
        };
        let is = self.is_at_place(bind.parent)? && {
            match self.view.nodes.dir(bind.parent) {
                Ok(fd) => base::stat_at(fd.as_fd(), bind.name.as_bytes())
                    .is_ok_and(|now| now.ident == bind.print.ident),
                Err(rustix::io::Errno::STALE) => false,
                Err(e) => return Err(op_failed("look at the base", e)),
            }
        };
        self.at_place.insert(obj, is);
        Ok(is)
    }
}

/// Entries that a transaction changes, as `status` counts them.
pub(super) fn entries(view: &View, st: &State) -> Result<u64, Failure> {
    let changes = net::changes(view, st).map_err(|e| op_failed("read the changes", e))?;
    Ok(changes.len() as u64)
}
