//! What commit and abort do with a view: they stop its changes, look, and set it on a fresh transaction.
//!
//! What commit does ([`Cut::landed`]) and what abort does ([`Cut::dropped`]) stand side by side here.

use std::collections::{HashMap, HashSet};
use std::os::fd::AsFd;
use std::sync::{Arc, PoisonError, RwLockReadGuard, RwLockWriteGuard};

use rustix::fs::AtFlags;
use rustix::io::Errno;
use txfs_journal::{
    Change, Effect, Generation, Ident, Inverse, Kind, Name, NewNode, ObjId, Preimage, RelPath,
    SlotId, TxnWriter,
};

use super::api::{Forget, OpResult};
use super::delta::{Delta, Object, Origin};
use super::files::OpenFile;
use super::layer::Layer;
use super::nodes::errno;
use super::procs::Recorded;
use super::staging::Staging;
use super::state::{State, View};

/// A view whose changes stand still, and which nobody else reads.
pub struct Cut<'a> {
    /// The view.
    pub view: &'a View,
    /// Its state.
    pub st: RwLockWriteGuard<'a, State>,
    _turn: parking_lot::RwLockWriteGuard<'a, ()>,
}

/// A view whose changes stand still, while everybody goes on reading.
pub struct Still<'a> {
    view: &'a View,
    turn: parking_lot::RwLockWriteGuard<'a, ()>,
}

/// What a view goes on with.
pub struct Fresh {
    /// The list of the next transaction.
    pub writer: TxnWriter,
    /// Its staging directory.
    pub staging: Arc<Staging>,
    /// Its generation.
    pub generation: Generation,
}

/// How an object landed.
#[derive(Clone, Debug)]
pub struct Landed {
    /// Its inode in the base.
    pub ident: Ident,
    /// The base got a copy; the staged file is still in use.
    pub copied: bool,
    /// A directory that holds it, and its name there.
    pub at: (ObjId, Name),
}

impl View {
    /// Stops all changes until the cut is dropped. Reads wait too.
    pub fn cut(&self) -> Cut<'_> {
        self.stand_still().cut()
    }

    /// Stops all changes, and opens of staged files, for as long as the view stands still. Everything else goes
    /// on.
    pub fn stand_still(&self) -> Still<'_> {
        Still { view: self, turn: self.turns.write() }
    }

    /// Objects that are open for writing through the daemon: their mapped pages may be dirty.
    pub fn cached_writers(&self) -> Vec<ObjId> {
        let st = self.read_state();
        let open = self.handles.open_files();
        open.into_iter()
            .filter(|(_, f)| f.has_writer() && !f.is_passthrough())
            .map(|(o, _)| st.kernel_id(o))
            .collect()
    }

    /// The paths of objects that are open for writing, each with the threads that opened it.
    pub fn open_writers(&self) -> Vec<(RelPath, Vec<u32>)> {
        let st = self.read_state();
        let open = self.handles.open_files();
        open.into_iter()
            .filter(|(_, f)| f.has_writer())
            .filter_map(|(o, _)| Some((self.view_path(&st, o)?, self.handles.writers_of(o))))
            .collect()
    }

    /// A later generation comes or has come to be: this view goes on showing its own. A layer of the same
    /// generation is replaced.
    pub fn push_layer(&self, layer: Arc<Layer>) {
        let mut st = self.state.write().unwrap_or_else(PoisonError::into_inner);
        if st.generation < layer.generation {
            st.layers.retain(|l| l.generation != layer.generation);
            st.layers.push(layer);
        }
    }

    /// A generation that was being applied does not come to be.
    pub fn drop_layer(&self, generation: Generation) {
        let mut st = self.state.write().unwrap_or_else(PoisonError::into_inner);
        st.layers.retain(|l| l.generation != generation);
    }

    /// The path of an object in the base, as of the transaction's generation; `None` for new ones.
    pub(crate) fn base_path(&self, st: &State, obj: ObjId) -> Option<RelPath> {
        if obj == ObjId::ROOT {
            return Some(RelPath::root());
        }
        let (parent, name) = match st.delta.objects.get(&obj).map(|o| &o.origin) {
            Some(Origin::Base(bind)) => (bind.parent, bind.name.clone()),
            Some(Origin::New(_)) => return None,
            None => {
                let node = self.nodes.get(obj)?;
                (node.parent, node.name)
            }
        };
        Some(self.base_path(st, parent)?.join(&name))
    }

    /// A path of an object in the view; `None` if it has no name.
    pub(crate) fn view_path(&self, st: &State, obj: ObjId) -> Option<RelPath> {
        if obj == ObjId::ROOT {
            return Some(RelPath::root());
        }
        let (parent, name) = self.view_place(st, obj)?;
        Some(self.view_path(st, parent)?.join(&name))
    }

    /// A directory that shows an object, and the name.
    pub(crate) fn view_place(&self, st: &State, obj: ObjId) -> Option<(ObjId, Name)> {
        if let Some(slot) = st.delta.objects.get(&obj).and_then(|o| o.names.first()) {
            return Some((slot.parent, slot.name.clone()));
        }
        let (parent, name) = match st.delta.objects.get(&obj).map(|o| &o.origin) {
            Some(Origin::Base(bind)) => (bind.parent, bind.name.clone()),
            Some(Origin::New(_)) => return None,
            None => {
                let node = self.nodes.get(obj)?;
                (node.parent, node.name)
            }
        };
        // Hidden there, it has no name left.
        if st.delta.name(parent, &name).is_some() { None } else { Some((parent, name)) }
    }
}

impl<'a> Still<'a> {
    /// The state.
    pub fn state(&self) -> RwLockReadGuard<'_, State> {
        self.view.read_state()
    }

    /// Staged files are going to be placed in the base: those of these slots.
    pub fn land(&self, slots: HashMap<SlotId, Ident>) {
        self.view.state.write().unwrap_or_else(PoisonError::into_inner).landing = slots;
    }

    /// Stops everything. Nothing is being placed any more.
    #[must_use]
    pub fn cut(self) -> Cut<'a> {
        let mut st = self.view.state.write().unwrap_or_else(PoisonError::into_inner);
        st.landing.clear();
        Cut { view: self.view, st, _turn: self.turn }
    }
}

impl Cut<'_> {
    /// The transaction became a generation. `landed` has every object that is in the base now and
    /// was made, moved or given content. The view goes on, empty, over the new generation; answers what the
    /// kernel must forget.
    ///
    /// # Errors
    /// If a file in use cannot be taken along into the next transaction.
    pub fn landed(
        &mut self,
        fresh: Fresh,
        landed: &HashMap<ObjId, Landed>,
    ) -> OpResult<Vec<Forget>> {
        let view = self.view;
        let forget = self.st.as_kernel_knows(self.everything_touched(&HashSet::new()));
        let open: HashMap<ObjId, Arc<OpenFile>> = view.handles.open_files().into_iter().collect();
        for (obj, how) in landed {
            let (parent, name) = &how.at;
            view.nodes.land(*obj, *parent, name, how.ident);
        }
        let old = self.go_on(fresh);
        let in_use: Vec<_> =
            old.delta.objects.iter().filter(|(obj, _)| open.contains_key(*obj)).collect();
        for (obj, object) in in_use {
            let file = &open[obj];
            // What landed has a name, though maybe none that the delta came across.
            let nameless = !landed.contains_key(obj) && old.names_lost(*obj, object);
            match object.content {
                Some(slot) if nameless || file.is_passthrough() => {
                    self.carry(&old.staging, *obj, slot, object, nameless)?;
                }
                Some(_) => file.set_base(view.base_file(&self.st, *obj)?),
                None if nameless => {
                    self.st.orphans.insert(*obj);
                }
                None => {}
            }
        }
        Ok(forget)
    }

    /// Takes a staged file that is in use along: the next transaction has it under a new slot.
    fn carry(
        &mut self,
        from: &Staging,
        obj: ObjId,
        slot: SlotId,
        object: &Object,
        nameless: bool,
    ) -> OpResult<()> {
        let to = self.st.staging.next_slot();
        rustix::fs::linkat(
            from.dir(),
            slot.to_string(),
            self.st.staging.dir(),
            to.to_string(),
            AtFlags::empty(),
        )?;
        if nameless {
            // Nobody will ever land it: it lives as long as its handles.
            let mut orphan = object.clone();
            orphan.origin = Origin::New(Some(NewNode::File { slot: to }));
            orphan.content = Some(to);
            orphan.links = 0;
            orphan.names.clear();
            self.st.delta.objects.insert(obj, orphan);
            // The list does not know it.
            self.st.orphans.insert(obj);
            return Ok(());
        }
        let inverse = Inverse::Restore { obj, to: Preimage::Content { slot: None } };
        let effect = Effect::Write { obj, change: Change::Content { slot: to } };
        self.view.record(&mut self.st, effect, inverse, &[obj], &[])
    }

    /// The transaction was aborted. The view goes on, empty; open files that it made or wrote are
    /// gone, and what they stood for gets a fresh number, so that no old page shows through. Answers what the
    /// kernel must forget.
    pub fn dropped(&mut self, fresh: Fresh) -> Vec<Forget> {
        let view = self.view;
        let mut retired = HashSet::new();
        let mut forget = Vec::new();
        for (obj, file) in view.handles.open_files() {
            let Some(object) = self.st.delta.objects.get(&obj) else { continue };
            if object.content.is_some() || object.is_new() {
                file.set_gone();
                forget.push(self.names_of(obj, object));
                view.handles.retire(obj);
                view.nodes.retire(obj);
                retired.insert(obj);
            }
        }
        forget.extend(self.everything_touched(&retired));
        forget.extend(self.everything_hidden());
        let forget = self.st.as_kernel_knows(forget);
        self.go_on(fresh);
        forget
    }

    /// The names by which the kernel may reach an object that is about to be retired: it must not,
    /// since its old node and the fresh one would not agree on the way of the data.
    pub(super) fn names_of(&self, obj: ObjId, object: &Object) -> Forget {
        let mut names: HashSet<(ObjId, Name)> =
            object.names.iter().map(|slot| (slot.parent, slot.name.clone())).collect();
        if let Origin::Base(bind) = &object.origin {
            names.insert((bind.parent, bind.name.clone()));
        }
        if let Some(node) = self.view.nodes.get(obj) {
            names.insert((node.parent, node.name));
        }
        let links = self.view.attr(&self.st, obj).map_or(u32::MAX, |(attr, _)| attr.nlink);
        if names.len() >= links as usize {
            Forget::Names(names.into_iter().collect())
        } else {
            // It has names that nobody has met.
            Forget::AllNames
        }
    }

    /// The transaction was moved onto the live generation, which contradicts it nowhere. Answers what
    /// the kernel must forget.
    pub fn rebased(&mut self, generation: Generation) -> Vec<Forget> {
        let forget = self.st.as_kernel_knows(self.everything_hidden());
        self.st.layers.clear();
        self.st.generation = generation;
        forget
    }

    fn go_on(&mut self, fresh: Fresh) -> Old {
        let root = self.view.nodes.base().root();
        let print = match crate::base::stat_fd(root) {
            Ok(stat) => stat.fingerprint(Vec::new()),
            Err(_) => self.view.nodes.base().root_stat().fingerprint(Vec::new()),
        };
        let delta = std::mem::replace(&mut self.st.delta, Delta::new(print));
        let staging = std::mem::replace(&mut self.st.staging, fresh.staging);
        self.st.writer = fresh.writer;
        self.st.generation = fresh.generation;
        self.st.layers.clear();
        self.st.effects = 0;
        self.st.fence = SlotId(0);
        self.st.procs = Recorded::default();
        self.st.orphans.clear();
        Old { delta, staging }
    }

    /// What later generations changed and this view did not show so far.
    fn everything_hidden(&self) -> Vec<Forget> {
        let nodes = &self.view.nodes;
        let dev = nodes.base().dev();
        let (mut names, mut objs) = (Vec::new(), HashSet::new());
        for layer in &self.st.layers {
            for (dir, name, was) in layer.names() {
                if let Some(dir) = nodes.by_inode(dev, dir) {
                    names.push((dir, name.clone()));
                    objs.insert(dir);
                }
                objs.extend(was.and_then(|(ident, _)| nodes.by_inode(dev, ident.ino)));
            }
            objs.extend(layer.objects().filter_map(|ino| nodes.by_inode(dev, ino)));
        }
        let names = (!names.is_empty()).then_some(Forget::Names(names));
        names.into_iter().chain(objs.into_iter().map(Forget::Data)).collect()
    }

    fn everything_touched(&self, except: &HashSet<ObjId>) -> Vec<Forget> {
        let delta = &self.st.delta;
        let names = delta
            .dirs
            .iter()
            .flat_map(|(dir, names)| names.keys().map(|n| (*dir, n.clone())))
            .collect();
        let mut forget = vec![Forget::Names(names)];
        for (obj, object) in &delta.objects {
            if except.contains(obj) {
                continue;
            }
            forget.push(match object.kind() {
                Kind::File if object.content.is_some() => Forget::Data(*obj),
                // The kernel has its listing as pages.
                Kind::Dir => Forget::Data(*obj),
                Kind::File
                | Kind::Symlink
                | Kind::Fifo
                | Kind::Socket
                | Kind::Char
                | Kind::Block => Forget::Attr(*obj),
            });
        }
        forget
    }
}

/// What the view had before it went on.
struct Old {
    delta: Delta,
    staging: Arc<Staging>,
}

impl Old {
    /// Whether an object lost its last name.
    fn names_lost(&self, obj: ObjId, object: &Object) -> bool {
        match &object.origin {
            Origin::New(_) => object.names.is_empty(),
            Origin::Base(bind) => {
                object.names.is_empty()
                    && self.delta.name(bind.parent, &bind.name).is_some_and(|now| now != Some(obj))
            }
        }
    }
}

/// Opens the staged file of a slot for reading, for whoever copies or hashes it.
///
/// # Errors
/// Those of open(2).
pub fn staged_file(st: &State, slot: SlotId) -> OpResult<std::fs::File> {
    let file = st.staging.file(slot, false).map_err(|e| errno(&e))?;
    if crate::base::stat_fd(file.as_fd()).map_err(|e| errno(&e))?.ident.kind == Kind::File {
        Ok(file)
    } else {
        Err(Errno::IO)
    }
}
