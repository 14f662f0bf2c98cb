//! The verbs that only look at a transaction or the store: `diff`, `log`, `doctor`.

use std::collections::{HashMap, HashSet};
use std::io::{Read, Write};
use std::os::fd::AsFd;

use txfs_journal::{
    Change, Effect, Entry, Inverse, Kind, Name, ObjId, Over, Preimage, ProcId, Record, RelPath,
    Slot,
};

use super::net::{self, NetChange};
use super::planner;
use super::verbs::only;
use super::workspace::{Workspace, journal_failed};
use crate::base;
use crate::proto::{
    ChangeLine, Code, DiffForm, DoctorReply, Failure, Finding, LogLine, LogReply, PathBytes,
    ProcessInfo,
};
use crate::report::patch::{self, Side};
use crate::report::{name_status, quote};
use crate::view::View;
use crate::view::api::OpResult;
use crate::view::delta::Origin;
use crate::view::nodes::errno;
use crate::view::state::State;

pub(super) fn output(e: &std::io::Error) -> Failure {
    Failure::new(Code::Io, format!("cannot write the output: {e}"))
        .hint("check where the output goes")
}

fn op(what: &'static str) -> impl Fn(rustix::io::Errno) -> Failure {
    move |e| planner::op_failed(what, e)
}

/// Git's mode of an object; `None` for what git does not keep.
pub(super) fn git_mode(kind: Kind, mode: u32) -> Option<u32> {
    match kind {
        Kind::File if mode & 0o111 != 0 => Some(0o100_755),
        Kind::File => Some(0o100_644),
        Kind::Symlink => Some(0o120_000),
        Kind::Dir | Kind::Fifo | Kind::Socket | Kind::Char | Kind::Block => None,
    }
}

pub(super) fn read_all(mut file: std::fs::File) -> OpResult<Vec<u8>> {
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).map_err(|e| errno(&e))?;
    Ok(bytes)
}

fn old_side(view: &View, st: &State, obj: ObjId, path: &RelPath) -> OpResult<Option<Side>> {
    let side = net::old_side(view, st, obj)?;
    let Some(mode) = git_mode(side.kind, side.mode) else { return Ok(None) };
    let content = if side.kind == Kind::Symlink {
        base::read_link(view.nodes.open(obj)?.as_fd()).map_err(|e| errno(&e))?
    } else {
        read_all(view.base_file(st, obj)?)?
    };
    Ok(Some(Side { path: path.as_bytes().to_vec(), mode, content }))
}

fn new_side(view: &View, st: &State, obj: ObjId, path: &RelPath) -> OpResult<Option<Side>> {
    let (attr, _) = view.attr(st, obj)?;
    let Some(mode) = git_mode(attr.kind, attr.mode) else { return Ok(None) };
    let object = st.delta.objects.get(&obj);
    let content = match (attr.kind, object.and_then(|o| o.content), object.map(|o| &o.origin)) {
        (Kind::Symlink, _, Some(Origin::New(Some(txfs_journal::NewNode::Symlink { target })))) => {
            target.clone()
        }
        (Kind::Symlink, ..) => {
            base::read_link(view.nodes.open(obj)?.as_fd()).map_err(|e| errno(&e))?
        }
        (_, Some(slot), _) => read_all(crate::view::cut::staged_file(st, slot)?)?,
        (_, None, _) => read_all(view.base_file(st, obj)?)?,
    };
    Ok(Some(Side { path: path.as_bytes().to_vec(), mode, content }))
}

/// Whether a change touches one of the paths; none means all.
fn wanted(change: &NetChange, paths: &[PathBytes]) -> bool {
    let within =
        |path: &RelPath| paths.iter().any(|p| RelPath::new(&p.0).is_ok_and(|p| path.is_within(&p)));
    paths.is_empty() || change.old.iter().chain(&change.new).any(within)
}

impl Workspace {
    /// Writes the difference between a transaction's view and its base.
    ///
    /// # Errors
    /// If something cannot be read, or the output takes no more.
    pub fn diff(
        &self,
        name: &str,
        uid: u32,
        form: DiffForm,
        paths: &[PathBytes],
        out: &mut dyn Write,
    ) -> Result<Vec<ChangeLine>, Failure> {
        let view = self.view(name, uid)?;
        let still = view.stand_still();
        let st = &still.state();
        let changes = net::changes(&view, st).map_err(op("read the changes"))?;
        let lines = only(net::lines(&view, st, &changes).map_err(op("read the changes"))?, paths);
        match form {
            DiffForm::Changes => {}
            DiffForm::NameStatus => name_status(out, &lines, false).map_err(|e| output(&e))?,
            DiffForm::NameStatusZ => name_status(out, &lines, true).map_err(|e| output(&e))?,
            DiffForm::Patch | DiffForm::Stat => {
                for pair in pairs(&view, st, &changes, paths).map_err(op("read the changes"))? {
                    let (old, new) = pair.read(&view, st).map_err(op("read a changed file"))?;
                    let written = if form == DiffForm::Stat {
                        patch::stat(out, old.as_ref(), new.as_ref())
                    } else {
                        patch::write(out, old.as_ref(), new.as_ref())
                    };
                    written.map_err(|e| output(&e))?;
                }
            }
        }
        Ok(lines)
    }

    /// The effects of a transaction in order.
    ///
    /// # Errors
    /// If a record does not decode.
    pub fn log(&self, name: &str, uid: u32, processes: bool) -> Result<LogReply, Failure> {
        let txn = self.txn(name, uid)?;
        let records = self.journal.records(txn.head.id).map_err(|e| journal_failed(&e))?;
        let (lines, _) = log_lines(&records);
        let records = lines.into_iter().map(|(mut line, _)| {
            if !processes {
                line.process = None;
            }
            line
        });
        Ok(LogReply { txn: name.to_owned(), records: records.collect() })
    }

    /// What happened to a path, and to what ever was there or is there now, with the steps and the processes.
    ///
    /// # Errors
    /// If a record does not decode.
    pub fn trace(&self, name: &str, uid: u32, path: &PathBytes) -> Result<LogReply, Failure> {
        let txn = self.txn(name, uid)?;
        let records = self.journal.records(txn.head.id).map_err(|e| journal_failed(&e))?;
        let (lines, tracks) = log_lines(&records);
        let is_it = |p: &PathBytes| p == path;
        let mut objs: HashSet<ObjId> =
            tracks.at.keys().copied().filter(|o| is_it(&(&tracks.path(*o)).into())).collect();
        for (line, subjects) in &lines {
            if is_it(&line.path) || line.to.as_ref().is_some_and(is_it) {
                objs.extend(subjects);
            }
        }
        let mut records = Vec::new();
        let mut step: Option<LogLine> = None;
        for (line, subjects) in lines {
            if line.effect == "step" {
                step = Some(line);
            } else if subjects.iter().any(|obj| objs.contains(obj)) {
                // The step stands above what it did.
                records.extend(step.take());
                records.push(line);
            }
        }
        Ok(LogReply { txn: name.to_owned(), records })
    }

    /// Checks the store, the journal, the transactions.
    ///
    /// # Errors
    /// Only if nothing can be checked at all.
    pub fn doctor(&self, fix: bool) -> Result<DoctorReply, Failure> {
        let mut findings = Vec::new();
        let mut say = |level: &str, what: String, remedy: Option<&str>| {
            findings.push(Finding {
                level: level.into(),
                what,
                path: None,
                remedy: remedy.map(Into::into),
            });
        };
        match self.journal.check() {
            Ok(bad) if bad.is_empty() => say("ok", "every record of the journal decodes".into(), None),
            Ok(bad) => bad.iter().for_each(|e| {
                say("error", e.to_string(), Some("the base is untouched; copy what you need from .txfs/staged, then remove .txfs"));
            }),
            Err(e) => say("error", e.to_string(), Some("copy what you need from .txfs/staged, then remove .txfs")),
        }
        match self.journal.poison().map_err(|e| journal_failed(&e))? {
            None => say("ok", "the workspace is not blocked".into(), None),
            Some(why) if fix => {
                self.journal.set_poison(None).map_err(|e| journal_failed(&e))?;
                say("warning", format!("lifted: {why}"), Some("txfs status"));
            }
            Some(why) => {
                say("error", why, Some("put the base right at that path, then: txfs doctor --fix"))
            }
        }
        for name in self.names(0) {
            match self.view(&name, 0).and_then(|view| missing_content(&view)) {
                Ok(lost) if lost.is_empty() => {
                    say("ok", format!("transaction \"{name}\" is whole"), None)
                }
                Ok(lost) => say(
                    "error",
                    format!("transaction \"{name}\" has lost the content of {}", lost.join(", ")),
                    Some("txfs diff shows what is left; txfs abort drops it"),
                ),
                Err(e) => say(
                    "error",
                    e.message,
                    Some("txfs abort drops the transaction; the base is untouched"),
                ),
            }
        }
        for generation in self.journal.generations().map_err(|e| journal_failed(&e))? {
            let head = self.journal.generation_head(generation).map_err(|e| journal_failed(&e))?;
            if !head.pruned && self.store.history_of(generation).is_err() {
                say(
                    "error",
                    format!("the history of generation {generation} is gone"),
                    Some("txfs gc --keep 0 forgets it"),
                );
            }
        }
        match self.store.is_in_place() {
            Ok(true) => {}
            Ok(false) | Err(_) => say(
                "error",
                "the store is not where it was opened".into(),
                Some("txfs __stop --force"),
            ),
        }
        let healthy = findings.iter().all(|f| f.level != "error");
        Ok(DoctorReply { healthy, findings })
    }
}

fn missing_content(view: &View) -> Result<Vec<String>, Failure> {
    let cut = view.cut();
    let mut lost = Vec::new();
    for (obj, object) in &cut.st.delta.objects {
        if let Some(slot) = object.content
            && cut.st.staging.stat(slot).is_err()
        {
            let path = view.view_path(&cut.st, *obj);
            lost.push(path.map_or_else(|| format!("object {obj}"), |p| quote::c(p.as_bytes())));
        }
    }
    Ok(lost)
}

/// A file of a patch: an object with an old path, a new one, or both.
struct Pair {
    old: Option<(ObjId, RelPath)>,
    new: Option<(ObjId, RelPath)>,
}

impl Pair {
    fn read(&self, view: &View, st: &State) -> OpResult<(Option<Side>, Option<Side>)> {
        let old = match &self.old {
            Some((obj, path)) => old_side(view, st, *obj, path)?,
            None => None,
        };
        let new = match &self.new {
            Some((obj, path)) => new_side(view, st, *obj, path)?,
            None => None,
        };
        Ok((old, new))
    }
}

/// The files that a patch has: what was replaced at a path is paired with what came, and a moved
/// directory is all the files in it.
fn pairs(
    view: &View,
    st: &State,
    changes: &[NetChange],
    paths: &[PathBytes],
) -> OpResult<Vec<Pair>> {
    let mut gone: HashMap<&RelPath, ObjId> = HashMap::new();
    for change in changes.iter().filter(|c| c.new.is_none()) {
        if let Some(old) = &change.old {
            gone.insert(old, change.obj);
        }
    }
    let (mut removed, mut rest) = (Vec::new(), Vec::new());
    for change in changes.iter().filter(|c| wanted(c, paths)) {
        let Some(new) = &change.new else { continue };
        match (&change.old, change.kind) {
            (Some(old), Kind::Dir) if old != new => {
                moved_files(view, st, change.obj, old, new, changes, &mut rest)?
            }
            (Some(old), _) => {
                if old != new
                    && let Some(victim) = gone.remove(new)
                {
                    removed.push(Pair { old: Some((victim, new.clone())), new: None });
                }
                rest.push(Pair {
                    old: Some((change.obj, old.clone())),
                    new: Some((change.obj, new.clone())),
                });
            }
            (None, _) => {
                let old = gone.remove(new).map(|victim| (victim, new.clone()));
                rest.push(Pair { old, new: Some((change.obj, new.clone())) });
            }
        }
    }
    for change in changes.iter().filter(|c| c.new.is_none() && wanted(c, paths)) {
        if let Some(old) = &change.old
            && gone.contains_key(old)
        {
            removed.push(Pair { old: Some((change.obj, old.clone())), new: None });
        }
    }
    removed.extend(rest);
    Ok(removed)
}

/// The files below a moved directory that the list of changes does not have: they moved along.
fn moved_files(
    view: &View,
    st: &State,
    dir: ObjId,
    old: &RelPath,
    new: &RelPath,
    changes: &[NetChange],
    out: &mut Vec<Pair>,
) -> OpResult<()> {
    for entry in view.listing(st, dir)? {
        let path = new.join(&entry.name);
        if changes
            .binary_search_by(|c| c.new.as_ref().or(c.old.as_ref()).cmp(&Some(&path)))
            .is_ok_and(|n| changes[n].old.is_none())
        {
            continue;
        }
        let Ok(found) = view.find(st, dir, &entry.name) else { continue };
        let before = old.join(&entry.name);
        if st.delta.objects.get(&found.obj).is_some_and(crate::view::delta::Object::is_new) {
            continue;
        }
        if entry.kind == Kind::Dir {
            moved_files(view, st, found.obj, &before, &path, changes, out)?;
        } else if changes.iter().all(|c| c.new.as_ref() != Some(&path)) {
            out.push(Pair { old: Some((found.obj, before)), new: Some((found.obj, path)) });
        }
    }
    Ok(())
}

/// Paths of objects while a list of records is read.
#[derive(Default)]
struct Tracks {
    at: HashMap<ObjId, (ObjId, Name)>,
}

impl Tracks {
    fn bind(&mut self, entry: &txfs_journal::EffectEntry) {
        for bind in &entry.binds {
            self.at.entry(bind.obj).or_insert_with(|| (bind.parent, bind.name.clone()));
        }
    }

    fn path(&self, obj: ObjId) -> RelPath {
        match self.at.get(&obj) {
            Some((parent, name)) => self.path(*parent).join(name),
            None => RelPath::root(),
        }
    }

    fn slot(&self, slot: &Slot) -> PathBytes {
        (&self.path(slot.parent).join(&slot.name)).into()
    }

    fn put(&mut self, obj: ObjId, slot: &Slot) {
        self.at.insert(obj, (slot.parent, slot.name.clone()));
    }

    fn describe(&mut self, effect: &Effect, line: &mut LogLine) {
        match effect {
            Effect::Move { obj, from, to, over } => {
                line.effect = "move".into();
                line.path = self.slot(from);
                line.to = Some(self.slot(to));
                if let Over::Exchanged(other) = over {
                    line.detail = Some("exchange".into());
                    self.put(*other, from);
                }
                self.put(*obj, to);
            }
            Effect::Rm { at, .. } => {
                line.effect = "rm".into();
                line.path = self.slot(at);
            }
            Effect::Mkdir { obj, at, .. } => {
                line.effect = "mkdir".into();
                line.path = self.slot(at);
                self.put(*obj, at);
            }
            Effect::Write { obj, change } => {
                line.effect = "write".into();
                let (detail, path) = match change {
                    Change::Create { at, .. } => {
                        self.put(*obj, at);
                        ("create", self.slot(at))
                    }
                    Change::Link { at } => ("link", self.slot(at)),
                    Change::Content { .. } => ("content", (&self.path(*obj)).into()),
                    Change::Attrs(_) => ("attrs", (&self.path(*obj)).into()),
                    Change::Xattr { .. } => ("xattr", (&self.path(*obj)).into()),
                };
                line.detail = Some(detail.into());
                line.path = path;
            }
        }
    }
}

fn inverse_word(inverse: &Inverse) -> &'static str {
    match inverse {
        Inverse::Unmove { .. } => "unmove",
        Inverse::Unrm { .. } => "unrm",
        Inverse::RmdirIfEmpty { .. } => "rmdir_if_empty",
        Inverse::Restore { to, .. } => match to {
            Preimage::Absent { .. }
            | Preimage::Content { .. }
            | Preimage::Attrs(_)
            | Preimage::Xattr { .. } => "restore",
        },
    }
}

/// The lines of a list, each with the objects that its effect is about, and where things are in the end.
fn log_lines(records: &[Record]) -> (Vec<(LogLine, Vec<ObjId>)>, Tracks) {
    let mut tracks = Tracks::default();
    let mut lines: Vec<(LogLine, Vec<ObjId>)> = Vec::new();
    let mut known: HashMap<ProcId, ProcessInfo> = HashMap::new();
    let mut step = 0;
    for (n, record) in records.iter().enumerate() {
        let mut line = empty_line(record, step);
        let mut subjects = Vec::new();
        match &record.entry {
            Entry::Effect(entry) => {
                tracks.bind(entry);
                tracks.describe(&entry.effect, &mut line);
                line.inverse = Some(inverse_word(&entry.inverse).into());
                line.process = known.get(&entry.proc).cloned();
                subjects = subjects_of(&entry.effect);
            }
            Entry::Step { step: number, what } => {
                step = number.0;
                line.step = step;
                line.effect = "step".into();
                line.path = PathBytes(what.clone());
            }
            Entry::Savepoint { name } => {
                line.effect = "savepoint".into();
                line.path = PathBytes(name.clone());
            }
            Entry::RolledBack { to } => {
                line.effect = "rolled_back".into();
                line.detail = Some(format!("to {to}"));
                for (taken, _) in lines.iter_mut().filter(|(l, _)| l.seq > to.0) {
                    taken.taken_back |= taken.inverse.is_some();
                }
                tracks = Tracks::after(&records[..=n]);
            }
            Entry::Process { proc, pid, parent, exe, argv } => {
                let argv = argv.split(|&b| b == 0).filter(|a| !a.is_empty());
                let parents = parent.and_then(|p| known.get(&p)).map_or_else(Vec::new, |p| {
                    let first = ProcessInfo { parents: Vec::new(), ..p.clone() };
                    std::iter::once(first).chain(p.parents.iter().cloned()).collect()
                });
                let info = ProcessInfo {
                    pid: *pid,
                    exe: PathBytes(exe.clone()),
                    argv: argv.map(PathBytes::from).collect(),
                    parents,
                };
                known.insert(*proc, info);
                continue;
            }
        }
        lines.push((line, subjects));
    }
    (lines, tracks)
}

fn empty_line(record: &Record, step: u32) -> LogLine {
    LogLine {
        seq: record.seq.0,
        time: record.time.secs,
        step,
        effect: String::new(),
        detail: None,
        path: PathBytes::default(),
        to: None,
        inverse: None,
        taken_back: false,
        process: None,
    }
}

fn subjects_of(effect: &Effect) -> Vec<ObjId> {
    match effect {
        Effect::Move { obj, over, .. } => match over {
            Over::Nothing => vec![*obj],
            Over::Replaced(other) | Over::Exchanged(other) => vec![*obj, *other],
        },
        Effect::Rm { obj, .. } | Effect::Mkdir { obj, .. } | Effect::Write { obj, .. } => {
            vec![*obj]
        }
    }
}

impl Tracks {
    /// Where the effects that hold left things.
    fn after(records: &[Record]) -> Tracks {
        let mut tracks = Tracks::default();
        for record in crate::view::delta::live_before(records) {
            if let Entry::Effect(entry) = &record.entry {
                tracks.bind(entry);
                tracks.describe(&entry.effect, &mut empty_line(record, 0));
            }
        }
        tracks
    }
}
