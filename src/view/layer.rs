//! What a later generation displaced: laid between an older view's delta and the base, so that the
//! view goes on showing its own generation.

use std::collections::HashMap;
use std::os::fd::AsFd;

use txfs_journal::{
    Generation, Ident, Kind, Meta, Name, Place, Plan, RelPath, SlotId, Step, Timestamp,
};

use crate::base::{self, Base};

/// What a name meant before: an inode and, if it is in the generation's history, its slot.
pub type Was = Option<(Ident, Option<SlotId>)>;

/// What a generation changed, the way it was before.
#[derive(Debug)]
pub struct Layer {
    /// The generation.
    pub generation: Generation,
    /// By directory inode and name: what was there; its slot if it is in this generation's history.
    names: HashMap<(u64, Name), Was>,
    /// By inode: attributes before, and the slot with the content before.
    objects: HashMap<u64, Before>,
}

/// An object before the generation.
#[derive(Clone, Debug, Default)]
pub struct Before {
    /// Its attributes, if they changed.
    pub meta: Option<Meta>,
    /// Of a directory that left its place: its time before its entries left.
    pub mtime: Option<Timestamp>,
    /// Links more than after the generation.
    pub links: i64,
    /// A copy of its content, if that was rewritten in place.
    pub content: Option<SlotId>,
    /// All its links, as long as the generation is being applied and its inode has some of both.
    pub all_links: Option<u32>,
    /// More changed than a directory's time; the number of its links, for one.
    binding: bool,
}

impl Layer {
    /// The layer of a generation.
    #[must_use]
    pub fn new(plan: &Plan) -> Layer {
        let mut layer =
            Layer { generation: plan.generation, names: HashMap::new(), objects: HashMap::new() };
        for step in &plan.steps {
            layer.add(step);
        }
        layer
    }

    /// The layer of a generation of which no step was done yet, for while it is applied: it is right before,
    /// between and after the steps.
    #[must_use]
    pub fn pending(plan: &Plan, base: &Base) -> Layer {
        let mut layer = Layer::new(plan);
        for step in &plan.steps {
            let counted = match step {
                Step::Evacuate { from: at, ident, .. } | Step::Place { to: at, ident, .. } => {
                    (ident.kind == Kind::Dir).then(|| at.path.split()).flatten().map(|(up, _)| up)
                }
                // Among thousands of files that change places no directory counts another number.
                Step::Exchange { at, new, old, .. } => ((new.kind == Kind::Dir)
                    != (old.kind == Kind::Dir))
                    .then(|| at.path.split())
                    .flatten()
                    .map(|(up, _)| up),
                Step::Link { existing: at, .. } | Step::Unlink { from: at, .. } => {
                    Some(at.path.clone())
                }
                Step::Fetch { .. }
                | Step::Rewrite { .. }
                | Step::SetMeta { .. }
                | Step::Barrier => None,
            };
            // What cannot be looked at is no link that a view shows.
            let stat = |path: RelPath| {
                let fd = base.open_path(&path)?;
                base::stat_fd(fd.as_fd())
            };
            if let Some(stat) = counted.and_then(|path| stat(path).ok())
                && let Some(object) = layer.objects.get_mut(&stat.ident.ino)
                && object.links != 0
            {
                object.all_links = Some(stat.nlink);
            }
        }
        layer
    }

    fn add(&mut self, step: &Step) {
        match step {
            Step::Fetch { .. } | Step::Barrier => {}
            Step::Evacuate { from, slot, ident, mtime, .. } => {
                self.was(from, Some((*ident, Some(*slot))));
                if ident.kind == Kind::Dir {
                    self.objects.entry(ident.ino).or_default().mtime.get_or_insert(*mtime);
                    self.subdirs(from, 1);
                }
            }
            Step::Unlink { from, ident, .. } => {
                self.was(from, Some((*ident, None)));
                let object = self.objects.entry(ident.ino).or_default();
                object.binding = true;
                object.links += 1;
            }
            Step::Exchange { slot, at, old, new, .. } => {
                self.was(at, Some((*old, Some(*slot))));
                self.subdirs(
                    at,
                    i64::from(old.kind == Kind::Dir) - i64::from(new.kind == Kind::Dir),
                );
            }
            // A place that was evacuated first keeps what it held.
            Step::Place { to, ident, .. } => {
                self.was(to, None);
                if ident.kind == Kind::Dir {
                    self.subdirs(to, -1);
                }
            }
            Step::Link { to, ident, .. } => {
                self.was(to, None);
                let object = self.objects.entry(ident.ino).or_default();
                object.binding = true;
                object.links -= 1;
            }
            Step::Rewrite { ident, preimage, .. } => {
                let object = self.objects.entry(ident.ino).or_default();
                object.content = Some(*preimage);
                object.binding = true;
            }
            Step::SetMeta { ident, before, .. } => {
                let object = self.objects.entry(ident.ino).or_default();
                object.meta = Some(before.clone());
                object.binding |= !step.is_time_of_dir();
            }
        }
    }

    /// A directory counts its subdirectories as links.
    fn subdirs(&mut self, at: &Place, more: i64) {
        if more != 0 {
            self.objects.entry(at.parent_ino).or_default().links += more;
        }
    }

    fn was(&mut self, place: &Place, what: Option<(Ident, Option<SlotId>)>) {
        if let Some((_, name)) = place.path.split() {
            self.names.entry((place.parent_ino, name)).or_insert(what);
        }
    }

    /// What a name meant before: `None` if the generation did not change it.
    #[must_use]
    pub fn name(&self, dir_ino: u64, name: &Name) -> Option<Option<(Ident, Option<SlotId>)>> {
        // Cloning the name for the key would cost an allocation per lookup; layers are few and small.
        if self.names.is_empty() {
            return None;
        }
        self.names.get(&(dir_ino, name.clone())).copied()
    }

    /// All names of a directory that the generation changed.
    pub fn names_of(
        &self,
        dir_ino: u64,
    ) -> impl Iterator<Item = (&Name, Option<(Ident, Option<SlotId>)>)> {
        self.names.iter().filter(move |((dir, _), _)| *dir == dir_ino).map(|((_, n), w)| (n, *w))
    }

    /// All names that the generation changed, each by its directory's inode.
    pub fn names(&self) -> impl Iterator<Item = (u64, &Name, Was)> {
        self.names.iter().map(|((dir, name), was)| (*dir, name, *was))
    }

    /// The inodes of all objects that it changed.
    pub fn objects(&self) -> impl Iterator<Item = u64> {
        self.objects.keys().copied()
    }

    /// Whether an inode changed in more than a directory's time.
    #[must_use]
    pub fn binds(&self, ino: u64) -> bool {
        self.objects.get(&ino).is_some_and(|o| o.binding)
    }

    /// What an object was before.
    #[must_use]
    pub fn object(&self, ino: u64) -> Option<&Before> {
        self.objects.get(&ino)
    }
}
