//! What a transaction changed, in memory: pure, rebuilt from its records.
//!
//! Every name that was touched is a [`Cell`] that knows what lay below it when it was first
//! touched. A cell that shows again what lies below is dropped, so that taking everything back
//! leaves the empty delta.

use std::collections::{BTreeMap, HashMap};

use txfs_journal::{
    Bind, Change, Effect, EffectEntry, Entry, Fingerprint, Inverse, Kind, Name, NewNode, ObjId,
    Over, Overrides, Preimage, Record, Seq, Slot, SlotId, TimesBefore, Timestamp, Xattrs,
};

/// One touched name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cell {
    /// What the base shows there (at the transaction's generation).
    pub below: Option<ObjId>,
    /// What the view shows there.
    pub now: Option<ObjId>,
}

/// Where an object comes from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Origin {
    /// The base, met there.
    Base(Bind),
    /// This transaction; `None` is a directory.
    New(Option<NewNode>),
}

/// One touched object.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Object {
    /// Where it comes from.
    pub origin: Origin,
    /// Attributes in place of the inode's own.
    pub over: Overrides,
    /// The staged file that has its content, if the base's inode has not.
    pub content: Option<SlotId>,
    /// Extended attributes set (`Some`) or removed (`None`).
    pub xattrs: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
    /// Names gained minus names lost.
    pub links: i64,
    /// Of a directory: subdirectories gained minus lost.
    pub subdirs: i64,
    /// The touched names that show it.
    pub names: Vec<Slot>,
}

impl Object {
    fn new(origin: Origin) -> Object {
        Object {
            origin,
            over: Overrides::default(),
            content: None,
            xattrs: BTreeMap::new(),
            links: 0,
            subdirs: 0,
            names: Vec::new(),
        }
    }

    /// Its kind.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match &self.origin {
            Origin::Base(bind) => bind.print.ident.kind,
            Origin::New(None) => Kind::Dir,
            Origin::New(Some(node)) => match node {
                NewNode::File { .. } => Kind::File,
                NewNode::Symlink { .. } => Kind::Symlink,
                NewNode::Fifo => Kind::Fifo,
                NewNode::Socket => Kind::Socket,
                NewNode::Char { .. } => Kind::Char,
                NewNode::Block { .. } => Kind::Block,
            },
        }
    }

    /// Whether it began in this transaction.
    #[must_use]
    pub fn is_new(&self) -> bool {
        matches!(self.origin, Origin::New(_))
    }

    /// Whether it is a directory of the base that is only on the way to what changed, or in which names
    /// came and went.
    #[must_use]
    pub fn is_way(&self) -> bool {
        !self.is_new()
            && self.kind() == Kind::Dir
            && self.xattrs.is_empty()
            && self.links == 0
            && self.over.mode.is_none()
            && self.over.uid.is_none()
            && self.over.gid.is_none()
    }

    fn is_pristine(&self) -> bool {
        !self.is_new()
            && self.over == Overrides::default()
            && self.content.is_none()
            && self.xattrs.is_empty()
            && self.links == 0
            && self.subdirs == 0
            && self.names.is_empty()
    }
}

/// Records that do not fit each other: the journal or this program is wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("record {seq}: {what}")]
pub struct Misfit {
    /// Which record.
    pub seq: Seq,
    /// What does not fit.
    pub what: String,
}

/// The delta.
#[derive(Clone, Debug, Default)]
pub struct Delta {
    /// Touched names, by directory.
    pub dirs: HashMap<ObjId, BTreeMap<Name, Cell>>,
    /// Touched objects.
    pub objects: HashMap<ObjId, Object>,
}

impl Delta {
    /// Whether an object's content is a staged file.
    #[must_use]
    pub fn is_staged(&self, obj: ObjId) -> bool {
        self.objects.get(&obj).is_some_and(|o| o.content.is_some())
    }

    /// The empty delta over a base whose root is this.
    #[must_use]
    pub fn new(root: Fingerprint) -> Delta {
        // The root has no name; this one stands for it and is never looked up.
        let name = Name::new("root").unwrap_or_else(|e| unreachable!("{e}"));
        let bind = Bind { obj: ObjId::ROOT, parent: ObjId::ROOT, name, print: root };
        let mut delta = Delta::default();
        delta.objects.insert(ObjId::ROOT, Object::new(Origin::Base(bind)));
        delta
    }

    /// Whether it changes nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.dirs.is_empty() && self.objects.values().all(Object::is_pristine)
    }

    /// What it says of a name: nothing, or what is there now.
    #[must_use]
    pub fn name(&self, dir: ObjId, name: &Name) -> Option<Option<ObjId>> {
        self.dirs.get(&dir).and_then(|names| names.get(name)).map(|cell| cell.now)
    }

    /// Performs all effects of a list, honouring its rollbacks.
    ///
    /// # Errors
    /// If a record does not fit those before it.
    pub fn replay(&mut self, records: &[Record]) -> Result<(), Misfit> {
        for (n, record) in records.iter().enumerate() {
            match &record.entry {
                Entry::Effect(entry) => self.apply(record.seq, record.time, entry)?,
                Entry::RolledBack { to } => {
                    for earlier in live_before(&records[..n]).into_iter().rev() {
                        if earlier.seq > *to {
                            self.revert(earlier)?;
                        }
                    }
                }
                Entry::Step { .. } | Entry::Savepoint { .. } | Entry::Process { .. } => {}
            }
        }
        Ok(())
    }

    /// Performs one effect.
    ///
    /// # Errors
    /// If it does not fit what is there.
    pub fn apply(&mut self, seq: Seq, time: Timestamp, entry: &EffectEntry) -> Result<(), Misfit> {
        self.try_apply(time, entry).map_err(|what| Misfit { seq, what })
    }

    /// Performs the inverse of one effect.
    ///
    /// # Errors
    /// If it does not fit what is there.
    pub fn revert(&mut self, record: &Record) -> Result<(), Misfit> {
        let Entry::Effect(entry) = &record.entry else { return Ok(()) };
        self.try_revert(entry).map_err(|what| Misfit { seq: record.seq, what })
    }

    fn object(&mut self, obj: ObjId) -> Result<&mut Object, String> {
        self.objects.get_mut(&obj).ok_or_else(|| format!("object {obj} is not there"))
    }

    /// Changes what a name shows from `from` to `to`.
    fn set_name(
        &mut self,
        at: &Slot,
        from: Option<ObjId>,
        to: Option<ObjId>,
    ) -> Result<(), String> {
        let names = self.dirs.entry(at.parent).or_default();
        let cell = names.entry(at.name.clone()).or_insert(Cell { below: from, now: from });
        if cell.now != from {
            return Err(format!(
                "{:?} in {} shows {:?}, not {from:?}",
                at.name, at.parent, cell.now
            ));
        }
        cell.now = to;
        if cell.below == to {
            names.remove(&at.name);
            if names.is_empty() {
                self.dirs.remove(&at.parent);
            }
        }
        let touched = self.dirs.get(&at.parent).is_some_and(|n| n.contains_key(&at.name));
        let mut subdirs = 0;
        if let Some(obj) = from {
            let object = self.object(obj)?;
            object.links -= 1;
            object.names.retain(|slot| slot != at);
            subdirs -= i64::from(object.kind() == Kind::Dir);
        }
        if let Some(obj) = to {
            let object = self.object(obj)?;
            object.links += 1;
            if touched {
                object.names.push(at.clone());
            }
            subdirs += i64::from(object.kind() == Kind::Dir);
        }
        if subdirs != 0 {
            self.object(at.parent)?.subdirs += subdirs;
        }
        Ok(())
    }

    fn touch_dir(&mut self, dir: ObjId, time: Timestamp) -> Result<(), String> {
        let over = &mut self.object(dir)?.over;
        over.mtime = Some(time);
        over.ctime = Some(time);
        Ok(())
    }

    fn make(
        &mut self,
        obj: ObjId,
        origin: Origin,
        attrs: &Overrides,
        xattrs: &Xattrs,
        time: Timestamp,
    ) {
        let mut object = Object::new(origin);
        object.over = *attrs;
        object.over.ctime = Some(time);
        if let Origin::New(Some(NewNode::File { slot })) = &object.origin {
            object.content = Some(*slot);
        } else {
            object.over.mtime.get_or_insert(time);
            object.over.atime.get_or_insert(time);
        }
        object.xattrs = xattrs.iter().map(|(k, v)| (k.clone(), Some(v.clone()))).collect();
        self.objects.insert(obj, object);
    }

    fn try_apply(&mut self, time: Timestamp, entry: &EffectEntry) -> Result<(), String> {
        for bind in &entry.binds {
            self.objects.insert(bind.obj, Object::new(Origin::Base(bind.clone())));
        }
        match &entry.effect {
            Effect::Move { obj, from, to, over } => {
                match over {
                    Over::Nothing => {
                        self.set_name(from, Some(*obj), None)?;
                        self.set_name(to, None, Some(*obj))?;
                    }
                    Over::Replaced(other) => {
                        self.set_name(from, Some(*obj), None)?;
                        self.set_name(to, Some(*other), None)?;
                        self.set_name(to, None, Some(*obj))?;
                        self.object(*other)?.over.ctime = Some(time);
                    }
                    Over::Exchanged(other) => {
                        self.exchange(*obj, from, *other, to)?;
                        self.object(*other)?.over.ctime = Some(time);
                    }
                }
                self.object(*obj)?.over.ctime = Some(time);
                self.touch_dir(from.parent, time)?;
                self.touch_dir(to.parent, time)?;
            }
            Effect::Rm { obj, at } => {
                self.set_name(at, Some(*obj), None)?;
                self.object(*obj)?.over.ctime = Some(time);
                self.touch_dir(at.parent, time)?;
            }
            Effect::Mkdir { obj, at, attrs, xattrs } => {
                self.make(*obj, Origin::New(None), attrs, xattrs, time);
                self.set_name(at, None, Some(*obj))?;
                self.touch_dir(at.parent, time)?;
            }
            Effect::Write { obj, change } => self.apply_change(time, *obj, change)?,
        }
        Ok(())
    }

    fn exchange(&mut self, obj: ObjId, from: &Slot, other: ObjId, to: &Slot) -> Result<(), String> {
        self.set_name(from, Some(obj), None)?;
        self.set_name(to, Some(other), None)?;
        self.set_name(from, None, Some(other))?;
        self.set_name(to, None, Some(obj))
    }

    fn apply_change(&mut self, time: Timestamp, obj: ObjId, change: &Change) -> Result<(), String> {
        match change {
            Change::Create { at, node, attrs, xattrs } => {
                self.make(obj, Origin::New(Some(node.clone())), attrs, xattrs, time);
                self.set_name(at, None, Some(obj))?;
                self.touch_dir(at.parent, time)?;
            }
            Change::Link { at } => {
                self.set_name(at, None, Some(obj))?;
                self.object(obj)?.over.ctime = Some(time);
                self.touch_dir(at.parent, time)?;
            }
            Change::Content { slot } => self.object(obj)?.content = Some(*slot),
            Change::Attrs(set) => {
                let over = &mut self.object(obj)?.over;
                over.mode = set.mode.or(over.mode);
                over.uid = set.uid.or(over.uid);
                over.gid = set.gid.or(over.gid);
                over.atime = set.atime.or(over.atime);
                over.mtime = set.mtime.or(over.mtime);
                over.ctime = Some(time);
            }
            Change::Xattr { name, value } => {
                let object = self.object(obj)?;
                object.xattrs.insert(name.clone(), value.clone());
                object.over.ctime = Some(time);
            }
        }
        Ok(())
    }

    fn try_revert(&mut self, entry: &EffectEntry) -> Result<(), String> {
        match &entry.inverse {
            Inverse::Unmove { obj, from, to, over } => match over {
                Over::Nothing => {
                    self.set_name(to, Some(*obj), None)?;
                    self.set_name(from, None, Some(*obj))?;
                }
                Over::Replaced(other) => {
                    self.set_name(to, Some(*obj), None)?;
                    self.set_name(to, None, Some(*other))?;
                    self.set_name(from, None, Some(*obj))?;
                }
                Over::Exchanged(other) => self.exchange(*other, from, *obj, to)?,
            },
            Inverse::Unrm { obj, at } => self.set_name(at, None, Some(*obj))?,
            Inverse::RmdirIfEmpty { obj, at } => {
                if self.dirs.contains_key(obj) {
                    return Err(format!("directory {obj} is not empty"));
                }
                self.set_name(at, Some(*obj), None)?;
                self.objects.remove(obj);
            }
            Inverse::Restore { obj, to } => match to {
                Preimage::Absent { at } => {
                    self.set_name(at, Some(*obj), None)?;
                    if matches!(&entry.effect, Effect::Write { change: Change::Create { .. }, .. })
                    {
                        self.objects.remove(obj);
                    }
                }
                Preimage::Content { slot } => self.object(*obj)?.content = *slot,
                Preimage::Attrs(before) => self.object(*obj)?.over = *before,
                Preimage::Xattr { name, before } => {
                    let xattrs = &mut self.object(*obj)?.xattrs;
                    match before {
                        Some(value) => xattrs.insert(name.clone(), value.clone()),
                        None => xattrs.remove(name),
                    };
                }
            },
        }
        for TimesBefore { obj, mtime, ctime } in &entry.times {
            let over = &mut self.object(*obj)?.over;
            over.mtime = *mtime;
            over.ctime = *ctime;
        }
        for bind in &entry.binds {
            match self.objects.get(&bind.obj) {
                Some(object) if object.is_pristine() => {
                    self.objects.remove(&bind.obj);
                }
                Some(_) => return Err(format!("object {} is still changed", bind.obj)),
                None => return Err(format!("object {} is not there", bind.obj)),
            }
        }
        Ok(())
    }
}

/// The effects of a list that no later rollback took back.
#[must_use]
pub fn live_before(records: &[Record]) -> Vec<&Record> {
    let mut live: Vec<&Record> = Vec::new();
    for record in records {
        match &record.entry {
            Entry::Effect(_) => live.push(record),
            Entry::RolledBack { to } => live.retain(|r| r.seq <= *to),
            Entry::Step { .. } | Entry::Savepoint { .. } | Entry::Process { .. } => {}
        }
    }
    live
}
