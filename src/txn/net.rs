//! Net changes: what a view's tree differs in from its base, whatever the way there.

use std::collections::{BTreeMap, HashMap};
use std::io::Read;
use std::os::fd::AsFd;

use txfs_journal::{Kind, Name, ObjId, Overrides, RelPath, SlotId, Timestamp};

use super::share;
use crate::proto::{ChangeKind, ChangeLine, Counts};
use crate::view::View;
use crate::view::api::{Attr, OpResult};
use crate::view::delta::{Delta, Object, Origin};
use crate::view::nodes::errno;
use crate::view::state::State;

/// What of an object differs besides its names.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Differs {
    /// Bytes.
    pub content: bool,
    /// Permission bits.
    pub mode: bool,
    /// User or group.
    pub owner: bool,
    /// Modification time.
    pub mtime: bool,
    /// Extended attributes.
    pub xattrs: bool,
}

impl Differs {
    /// Whether anything does.
    #[must_use]
    pub fn any(self) -> bool {
        self != Differs::default()
    }

    /// Whether metadata do.
    #[must_use]
    pub fn meta(self) -> bool {
        self.mode || self.owner || self.mtime || self.xattrs
    }
}

/// One name that differs, or one object that does at its one name.
#[derive(Clone, Debug)]
pub struct NetChange {
    /// The object.
    pub obj: ObjId,
    /// Its kind.
    pub kind: Kind,
    /// Its path in the base, if this change begins there.
    pub old: Option<RelPath>,
    /// Its path in the view, if this change ends there.
    pub new: Option<RelPath>,
    /// What differs besides the path.
    pub differs: Differs,
}

/// The names of an object that came, went, and stayed (as far as the delta knows).
#[derive(Clone, Debug, Default)]
pub struct Names {
    /// Directory and name, in the base.
    pub lost: Vec<(ObjId, Name)>,
    /// Directory and name, in the view.
    pub gained: Vec<(ObjId, Name)>,
    /// Directory and name, in both.
    pub kept: Vec<(ObjId, Name)>,
}

/// The names of all touched objects.
#[must_use]
pub fn names(delta: &Delta) -> BTreeMap<ObjId, Names> {
    let mut all: BTreeMap<ObjId, Names> = BTreeMap::new();
    for (dir, cells) in &delta.dirs {
        for (name, cell) in cells {
            if let Some(obj) = cell.below {
                all.entry(obj).or_default().lost.push((*dir, name.clone()));
            }
            if let Some(obj) = cell.now {
                all.entry(obj).or_default().gained.push((*dir, name.clone()));
            }
        }
    }
    for (obj, object) in &delta.objects {
        if let Origin::Base(bind) = &object.origin
            && *obj != ObjId::ROOT
            && delta.name(bind.parent, &bind.name).is_none()
        {
            all.entry(*obj).or_default().kept.push((bind.parent, bind.name.clone()));
        }
    }
    for names in all.values_mut() {
        names.lost.sort();
        names.gained.sort();
    }
    all
}

/// Finds the names of touched files that have more of them than the transaction came across, by a walk
/// over the base: what has all its names inside need not be rewritten in place.
///
/// With `homeless` only those are looked for that have no name left that is known. What cannot be
/// listed holds no name that matters: the commit refuses what it cannot find.
pub fn other_names(view: &View, st: &State, names: &mut BTreeMap<ObjId, Names>, homeless: bool) {
    let mut wanted: HashMap<u64, ObjId> = HashMap::new();
    for (obj, known) in names.iter() {
        let Some(Origin::Base(bind)) = st.delta.objects.get(obj).map(|o| &o.origin) else {
            continue;
        };
        let print = &bind.print;
        if homeless && !(known.gained.is_empty() && known.kept.is_empty()) {
            continue;
        }
        if print.ident.kind != Kind::Dir
            && print.nlink as usize > known.lost.len() + known.kept.len()
        {
            wanted.insert(print.ident.ino, *obj);
        }
    }
    let mut todo = if wanted.is_empty() { Vec::new() } else { vec![ObjId::ROOT] };
    while let Some(dir) = todo.pop() {
        let Ok(fd) = view.nodes.dir(dir) else { continue };
        let Ok(entries) = crate::base::list(fd.as_fd()) else { continue };
        for (bytes, ino, kind) in entries {
            let Ok(name) = Name::new(&bytes) else { continue };
            if dir == ObjId::ROOT && bytes == crate::view::state::STORE_NAME {
                continue;
            }
            if kind == Kind::Dir {
                match crate::base::stat_at(fd.as_fd(), &bytes) {
                    Ok(stat) if stat.dev == view.nodes.base().dev() => {
                        todo.push(view.nodes.met(dir, &name, &stat, None));
                    }
                    Ok(_) | Err(_) => {}
                }
            } else if let Some(obj) = wanted.get(&ino)
                && st.delta.name(dir, &name).is_none()
                && let Some(known) = names.get_mut(obj)
                && !known.kept.contains(&(dir, name.clone()))
            {
                known.kept.push((dir, name));
            }
        }
    }
}

/// What of a base object the delta changed. A staged file that is equal to the base's in size and
/// time was taken along for its open handles and is no change.
///
/// # Errors
/// If the staged file cannot be looked at.
fn differs(view: &View, st: &State, obj: ObjId, object: &Object) -> OpResult<Differs> {
    let Origin::Base(bind) = &object.origin else { return Ok(Differs::default()) };
    let Overrides { mode, uid, gid, mtime, .. } = object.over;
    let print = &bind.print;
    let mut differs = Differs {
        content: false,
        mode: mode.is_some_and(|m| m != print.mode),
        owner: uid.is_some_and(|u| u != print.uid) || gid.is_some_and(|g| g != print.gid),
        mtime: mtime.is_some_and(|t| t != print.mtime),
        xattrs: !object.xattrs.is_empty() && view.xattrs(st, obj)? != view.base_xattrs(st, obj)?,
    };
    if let Some(slot) = object.content {
        let staged = st.staging.stat(slot).map_err(|e| errno(&e))?;
        differs.mtime = staged.mtime != print.mtime;
        differs.content =
            staged.size != print.size || (differs.mtime && !same_content(view, st, obj, slot)?);
    }
    Ok(differs)
}

/// What of every base object the delta changed.
///
/// # Errors
/// If a staged file cannot be looked at.
pub fn differences(view: &View, st: &State) -> OpResult<HashMap<ObjId, Differs>> {
    let touched: Vec<_> = st.delta.objects.iter().filter(|(_, o)| !o.is_new()).collect();
    share::each(&touched, |(obj, object)| Ok((**obj, differs(view, st, **obj, object)?)))
        .into_iter()
        .collect()
}

/// Whether a staged file holds the very bytes of the base's: opening for writing makes one, and not
/// everybody who opens a file writes into it.
fn same_content(view: &View, st: &State, obj: ObjId, slot: SlotId) -> OpResult<bool> {
    let (mut ours, mut theirs) =
        (crate::view::cut::staged_file(st, slot)?, view.base_file(st, obj)?);
    let (mut a, mut b) = (vec![0u8; 128 << 10], vec![0u8; 128 << 10]);
    loop {
        let n = ours.read(&mut a).map_err(|e| errno(&e))?;
        if n == 0 {
            return Ok(true);
        }
        match theirs.read_exact(&mut b[..n]) {
            Ok(()) if a[..n] == b[..n] => {}
            Ok(()) => return Ok(false),
            Err(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(false),
            Err(e) => return Err(errno(&e)),
        }
    }
}

/// Adds the name by which a file of several was met last, which need not be the one of its first effect.
fn name_met_last(view: &View, st: &State, obj: ObjId, names: &mut Names) {
    let Some(Origin::Base(bind)) = st.delta.objects.get(&obj).map(|o| &o.origin) else { return };
    let known = names.lost.len() + names.kept.len();
    if bind.print.ident.kind == Kind::Dir || bind.print.nlink as usize <= known {
        return;
    }
    let Some(node) = view.nodes.get(obj) else { return };
    let at = (node.parent, node.name);
    let is_there = || {
        let dir = view.nodes.dir(at.0).ok()?;
        let now = crate::base::stat_at(dir.as_fd(), at.1.as_bytes()).ok()?;
        (now.ident == bind.print.ident).then_some(())
    };
    if st.delta.name(at.0, &at.1).is_none() && !names.kept.contains(&at) && is_there().is_some() {
        names.kept.push(at);
    }
}

/// All net changes, by path.
///
/// # Errors
/// If something cannot be looked at.
pub fn changes(view: &View, st: &State) -> OpResult<Vec<NetChange>> {
    Ok(changes_with(view, st, &differences(view, st)?))
}

/// The same, where the differences are known.
#[must_use]
pub fn changes_with(
    view: &View,
    st: &State,
    differences: &HashMap<ObjId, Differs>,
) -> Vec<NetChange> {
    let differs = |obj| differences.get(&obj).copied().unwrap_or_default();
    let mut paths = Paths::new(view, st);
    let mut out = Vec::new();
    let mut all = names(&st.delta);
    other_names(view, st, &mut all, true);
    for (obj, names) in &mut all {
        name_met_last(view, st, *obj, names);
    }
    for (obj, names) in all {
        let Some(object) = st.delta.objects.get(&obj) else { continue };
        let kind = object.kind();
        let mut differs = differs(obj);
        let entry = |old, new, differs| NetChange { obj, kind, old, new, differs };
        // A directory's time moves with its entries; that alone is nothing to tell.
        if kind == Kind::Dir && st.delta.dirs.contains_key(&obj) {
            differs.mtime = false;
        }
        let lost: Vec<_> =
            names.lost.iter().filter_map(|(d, n)| Some(paths.old(*d)?.join(n))).collect();
        let gained: Vec<_> =
            names.gained.iter().filter_map(|(d, n)| Some(paths.now(*d)?.join(n))).collect();
        let (mut lost, mut gained) = (lost.into_iter(), gained.into_iter());
        let mut told = false;
        loop {
            match (lost.next(), gained.next()) {
                (None, None) => break,
                (old, new) => {
                    let ends = new.is_some();
                    out.push(entry(
                        old,
                        new,
                        if ends && !told { differs } else { Differs::default() },
                    ));
                    told |= ends;
                }
            }
        }
        // A name that came tells of the whole, not of what changed under those that stay.
        if differs.any() {
            for (dir, name) in &names.kept {
                if let (Some(old), Some(new)) = (paths.old(*dir), paths.now(*dir)) {
                    out.push(entry(Some(old.join(name)), Some(new.join(name)), differs));
                }
            }
        }
    }
    if st.delta.objects.contains_key(&ObjId::ROOT) {
        let mut differs = differs(ObjId::ROOT);
        differs.mtime &= !st.delta.dirs.contains_key(&ObjId::ROOT);
        if differs.any() {
            let at = Some(RelPath::root());
            out.push(NetChange {
                obj: ObjId::ROOT,
                kind: Kind::Dir,
                old: at.clone(),
                new: at,
                differs,
            });
        }
    }
    out.sort_by(|a, b| (a.new.as_ref().or(a.old.as_ref())).cmp(&b.new.as_ref().or(b.old.as_ref())));
    out
}

/// Paths of directories, each found once. Neighbours share them.
pub struct Paths<'a> {
    view: &'a View,
    st: &'a State,
    old: HashMap<ObjId, Option<RelPath>>,
    new: HashMap<ObjId, Option<RelPath>>,
}

impl<'a> Paths<'a> {
    /// No path is known yet.
    #[must_use]
    pub fn new(view: &'a View, st: &'a State) -> Paths<'a> {
        Paths { view, st, old: HashMap::new(), new: HashMap::new() }
    }

    /// In the base.
    pub fn old(&mut self, dir: ObjId) -> Option<RelPath> {
        let (view, st) = (self.view, self.st);
        self.old.entry(dir).or_insert_with(|| view.base_path(st, dir)).clone()
    }

    /// In the view.
    pub fn now(&mut self, dir: ObjId) -> Option<RelPath> {
        let (view, st) = (self.view, self.st);
        self.new.entry(dir).or_insert_with(|| view.view_path(st, dir)).clone()
    }
}

/// The kind as JSON says it.
#[must_use]
pub fn kind_word(kind: Kind) -> &'static str {
    match kind {
        Kind::File => "file",
        Kind::Dir => "dir",
        Kind::Symlink => "symlink",
        Kind::Fifo => "fifo",
        Kind::Socket => "socket",
        Kind::Char => "char",
        Kind::Block => "block",
    }
}

/// The lines that people and scripts see: deletions first, then by path. A name that lost one
/// object and gained another is one line.
///
/// # Errors
/// If attributes cannot be read.
pub fn lines(view: &View, st: &State, changes: &[NetChange]) -> OpResult<Vec<ChangeLine>> {
    let mut out = Vec::new();
    let mut gone: BTreeMap<RelPath, &NetChange> = BTreeMap::new();
    for change in changes {
        if let (Some(old), None) = (&change.old, &change.new) {
            gone.insert(old.clone(), change);
        }
    }
    for change in changes {
        let Some(new) = &change.new else { continue };
        let (attr, _) = view.attr(st, change.obj)?;
        let before = match &change.old {
            Some(_) => Some(old_side(view, st, change.obj)?),
            None => None,
        };
        let replaced = if change.old.as_ref() == Some(new) { None } else { gone.remove(new) };
        let mut line = line(change, new, &attr, before.as_ref());
        if let (Some(replaced), None) = (replaced, &change.old) {
            let was = old_side(view, st, replaced.obj)?;
            line.change =
                if was.kind == attr.kind { ChangeKind::Modified } else { ChangeKind::TypeChanged };
            line.old_mode = Some(was.mode);
            line.old_size = Some(was.size);
        } else if let Some(replaced) = replaced {
            // Something was renamed over it: it is deleted all the same.
            gone.insert(new.clone(), replaced);
        }
        out.push(line);
    }
    for (path, change) in gone {
        let was = old_side(view, st, change.obj)?;
        out.push(ChangeLine {
            change: ChangeKind::Deleted,
            path: (&path).into(),
            from: None,
            kind: kind_word(change.kind).into(),
            old_mode: Some(was.mode),
            new_mode: None,
            old_size: Some(was.size),
            new_size: None,
            meta: Vec::new(),
        });
    }
    out.sort_by(|a, b| {
        (a.change != ChangeKind::Deleted, &a.path).cmp(&(b.change != ChangeKind::Deleted, &b.path))
    });
    Ok(out)
}

/// What a base object was.
#[derive(Clone, Copy, Debug)]
pub struct OldSide {
    /// Its kind.
    pub kind: Kind,
    /// `& 0o7777`
    pub mode: u32,
    /// Bytes.
    pub size: u64,
    /// Last modification.
    pub mtime: Timestamp,
}

/// What a base object was when the transaction first touched it.
///
/// # Errors
/// If it was not touched and cannot be read.
pub fn old_side(view: &View, st: &State, obj: ObjId) -> OpResult<OldSide> {
    if let Some(Origin::Base(bind)) = st.delta.objects.get(&obj).map(|o| &o.origin) {
        let p = &bind.print;
        return Ok(OldSide { kind: p.ident.kind, mode: p.mode, size: p.size, mtime: p.mtime });
    }
    let stat = view.base_stat(st, obj)?;
    Ok(OldSide { kind: stat.ident.kind, mode: stat.mode, size: stat.size, mtime: stat.mtime })
}

fn line(change: &NetChange, new: &RelPath, attr: &Attr, before: Option<&OldSide>) -> ChangeLine {
    let Differs { content, mode, owner, mtime, xattrs } = change.differs;
    let moved = change.old.as_ref().is_some_and(|old| old != new);
    let kind = match &change.old {
        None => ChangeKind::Added,
        Some(_) if moved => ChangeKind::Renamed,
        Some(_) if content => ChangeKind::Modified,
        Some(_) => ChangeKind::Metadata,
    };
    let words =
        [("mode", mode), ("owner", owner), ("mtime", mtime && !content), ("xattrs", xattrs)];
    ChangeLine {
        change: kind,
        path: new.into(),
        from: if moved { change.old.as_ref().map(Into::into) } else { None },
        kind: kind_word(change.kind).into(),
        old_mode: before.map(|b| b.mode),
        new_mode: Some(attr.mode),
        old_size: before.map(|b| b.size),
        new_size: Some(attr.size),
        meta: words.iter().filter(|(_, is)| *is).map(|(w, _)| (*w).to_owned()).collect(),
    }
}

/// The counts of [`lines`], without looking at a single file.
#[must_use]
pub fn tally(changes: &[NetChange]) -> Counts {
    let mut gone: HashMap<&RelPath, Kind> = HashMap::new();
    for change in changes {
        if let (Some(old), None) = (&change.old, &change.new) {
            gone.insert(old, change.kind);
        }
    }
    let mut counts = Counts::default();
    for change in changes {
        let Some(new) = &change.new else { continue };
        match &change.old {
            None => match gone.remove(new) {
                None => counts.added += 1,
                Some(kind) if kind == change.kind => counts.modified += 1,
                Some(_) => counts.type_changed += 1,
            },
            Some(old) if old != new => counts.renamed += 1,
            Some(_) if change.differs.content => counts.modified += 1,
            Some(_) => counts.metadata += 1,
        }
    }
    counts.deleted = gone.len() as u64;
    counts
}

/// All of them.
#[must_use]
pub fn total(counts: &Counts) -> u64 {
    let Counts { deleted, renamed, type_changed, modified, metadata, added } = counts;
    deleted + renamed + type_changed + modified + metadata + added
}

/// Changes by kind.
#[must_use]
pub fn counts(lines: &[ChangeLine]) -> Counts {
    let mut counts = Counts::default();
    for line in lines {
        let count = match line.change {
            ChangeKind::Deleted => &mut counts.deleted,
            ChangeKind::Renamed => &mut counts.renamed,
            ChangeKind::TypeChanged => &mut counts.type_changed,
            ChangeKind::Modified => &mut counts.modified,
            ChangeKind::Metadata => &mut counts.metadata,
            ChangeKind::Added => &mut counts.added,
        };
        *count += 1;
    }
    counts
}
