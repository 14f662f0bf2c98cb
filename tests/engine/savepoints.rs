//! Random changes with savepoints, steps, rollbacks, files held open, reopening and commits: after a rollback the
//! view is what it was at the mark, names, content, metadata and links, and a commit gives a base equal to it.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use proptest::prelude::*;
use rustix::io::Errno;
use txfs::proto::RollbackTo;
use txfs::view::api::{DataPath, Fh, Forget, Kernel};
use txfs_journal::{Kind, ObjId, Timestamp};

use crate::drive::{Drive, me};
use crate::history::{Op, op, path, perform_all};
use crate::manifest::read;

/// A mount's other side that has nothing to forget.
struct NoKernel;

impl Kernel for NoKernel {
    fn forget(&self, _what: Vec<Forget>) {}
    fn drain(&self, _objs: &[ObjId], _timeout: std::time::Duration) -> std::io::Result<()> {
        Ok(())
    }
}

#[derive(Clone, Debug)]
enum Act {
    Do(Vec<Op>),
    /// Opens a file for writing and keeps it open.
    Hold(String),
    /// Writes to a file held open, by its number.
    WriteHeld(usize, Vec<u8>),
    Release(usize),
    Savepoint,
    Step,
    /// To a mark, by its distance from the newest.
    Rollback(usize),
    Commit,
    Reopen,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        8 => proptest::collection::vec(op(), 1..6).prop_map(Act::Do),
        2 => path().prop_map(Act::Hold),
        3 => (0usize..4, proptest::collection::vec(any::<u8>(), 1..20))
            .prop_map(|(n, d)| Act::WriteHeld(n, d)),
        1 => (0usize..4).prop_map(Act::Release),
        3 => Just(Act::Savepoint),
        2 => Just(Act::Step),
        4 => (0usize..4).prop_map(Act::Rollback),
        1 => Just(Act::Commit),
        1 => Just(Act::Reopen),
    ]
}

/// All that can be seen of an entry.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Full {
    kind: Kind,
    mode: u32,
    nlink: u32,
    mtime: Timestamp,
    data: Vec<u8>,
    xattr: Option<Vec<u8>>,
    /// The first path that shows the same object.
    same_as: Vec<u8>,
}

type Tree = BTreeMap<Vec<u8>, Full>;

fn tree(d: &Drive) -> Tree {
    let mut first: HashMap<ObjId, Vec<u8>> = HashMap::new();
    d.tree()
        .into_iter()
        .map(|(path, seen)| {
            let obj = d.find(&path);
            let same_as = first.entry(obj).or_insert_with(|| path.clone()).clone();
            let (mode, mtime, data) = (seen.mode, seen.mtime, seen.data);
            let nlink = d.view.getattr(obj, None).unwrap().0.nlink;
            let xattr = d.view.getxattr(obj, b"user.test").ok();
            (path, Full { kind: seen.kind, mode, nlink, mtime, data, xattr, same_as })
        })
        .collect()
}

#[track_caller]
fn assert_same(what: &str, want: &Tree, got: &Tree) {
    for (path, full) in want {
        assert_eq!(Some(full), got.get(path), "{what}: {}", path.escape_ascii());
    }
    for path in got.keys() {
        assert!(want.contains_key(path), "{what}: {} is new", path.escape_ascii());
    }
}

/// A file held open for writing.
struct Held {
    /// By which the kernel knows it.
    obj: ObjId,
    fh: Fh,
    /// What the kernel would write by itself.
    file: Option<File>,
}

/// A mark and what the view showed at it.
struct Marked {
    to: RollbackTo,
    tree: Tree,
}

struct Play {
    d: Drive,
    past: bool,
    held: Vec<Held>,
    marks: Vec<Marked>,
}

impl Play {
    fn open(root: &Path, past: bool) -> Play {
        let d = Drive::open(root);
        d.view.attach(Arc::new(NoKernel), past);
        Play { d, past, held: Vec::new(), marks: Vec::new() }
    }

    fn hold(&mut self, path: &str) {
        let Ok(obj) = self.d.try_find(path.as_bytes()) else { return };
        let Ok(opened) = self.d.view.open_file_handle(&me(), obj, libc::O_RDWR) else { return };
        let file = match opened.data {
            DataPath::Passthrough(fd) => {
                let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
                Some(File::options().read(true).write(true).open(path).unwrap())
            }
            DataPath::Cached { .. } => None,
        };
        self.held.push(Held { obj, fh: opened.fh, file });
    }

    fn write_held(&self, n: usize, data: &[u8]) -> bool {
        let Some(held) = self.held.get(n) else { return false };
        match &held.file {
            Some(file) => file.write_all_at(data, 3).is_ok(),
            None => self.d.view.write(held.fh, 3, data, false).is_ok(),
        }
    }

    fn release(&mut self, n: usize) {
        if n < self.held.len() {
            let held = self.held.remove(n);
            drop(held.file);
            self.d.view.release(held.fh);
        }
    }

    fn rollback(&mut self, back: usize, what: &str) {
        let Some(n) = self.marks.len().checked_sub(back + 1) else { return };
        let to = self.marks[n].to.clone();
        let said = self.d.ws.rollback("main", me().uid, &to).unwrap();
        assert_same(what, &self.marks[n].tree, &tree(&self.d));
        // What was open when it was taken back writes to nobody's file.
        let mut stale = 0;
        for (n, held) in self.held.iter().enumerate() {
            if self.d.view.getattr(held.obj, None) == Err(Errno::STALE) {
                stale += 1;
                assert_eq!(self.write_held(n, b"late"), held.file.is_some(), "{what}");
            }
        }
        assert!(stale >= said.stale.len(), "{what}");
        assert_same(what, &self.marks[n].tree, &tree(&self.d));
        let keeps = usize::from(!matches!(to, RollbackTo::Step(_)));
        self.marks.truncate(n + keeps);
    }

    fn perform(mut self, act: &Act, what: &str, root: &Path) -> Play {
        let uid = me().uid;
        match act {
            Act::Do(ops) => perform_all(&self.d, ops),
            Act::Hold(path) => self.hold(path),
            Act::WriteHeld(n, data) => drop(self.write_held(*n, data)),
            Act::Release(n) => self.release(*n),
            Act::Savepoint => {
                let tree = tree(&self.d);
                let info = self.d.ws.savepoint("main", uid, None, false).unwrap();
                let to = RollbackTo::Savepoint(String::from_utf8(info.name.0).unwrap());
                self.marks.push(Marked { to, tree });
            }
            Act::Step => {
                let tree = tree(&self.d);
                let step = self.d.ws.step("main", uid, b"step".to_vec()).unwrap().step;
                self.marks.push(Marked { to: RollbackTo::Step(step), tree });
            }
            Act::Rollback(back) => self.rollback(*back, what),
            Act::Commit => {
                let seen = bare(&self.d);
                let changed = self.d.commit().changed;
                let now: Vec<_> =
                    read(root, true).into_iter().map(|(p, i)| (p, i.mode, i.data)).collect();
                assert_eq!(seen, now, "{what}");
                if changed {
                    self.marks.clear();
                }
            }
            Act::Reopen => {
                let before = tree(&self.d);
                while !self.held.is_empty() {
                    self.release(0);
                }
                let Play { d, past, marks, .. } = self;
                d.close();
                self = Play { marks, ..Play::open(root, past) };
                assert_same(what, &before, &tree(&self.d));
            }
        }
        self
    }
}

fn bare(d: &Drive) -> Vec<(Vec<u8>, u32, Vec<u8>)> {
    d.tree().into_iter().map(|(p, s)| (p, s.mode, s.data)).collect()
}

fn base(root: &Path) {
    for sub in ["d/e", "x"] {
        std::fs::create_dir_all(root.join(sub)).unwrap();
    }
    for file in ["a", "d/a", "d/b", "d/e/a", "x/b"] {
        std::fs::write(root.join(file), file).unwrap();
    }
    std::fs::hard_link(root.join("d/b"), root.join("b")).unwrap();
}

fn play(past: bool, acts: &[Act]) {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let root = dir.path();
    base(root);
    let before = read(root, true);
    let mut play = Play::open(root, past);
    for (n, act) in acts.iter().enumerate() {
        play = play.perform(act, &format!("{n}: {act:?}"), root);
    }
    while !play.held.is_empty() {
        play.release(0);
    }
    if !acts.iter().any(|a| matches!(a, Act::Commit)) {
        play.d.abort();
        crate::manifest::assert_same("the base", &before, &read(root, true));
    }
    drop(play.marks);
    play.d.close();
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: std::env::var("TXFS_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(120),
        failure_persistence: None,
        max_shrink_iters: 400,
        ..ProptestConfig::default()
    })]

    #[test]
    fn a_rollback_brings_back_what_was_there(
        past in any::<bool>(),
        acts in proptest::collection::vec(act(), 1..24),
    ) {
        play(past, &acts);
    }
}

#[test]
fn a_file_that_lost_one_of_two_names_goes_on_under_the_other_while_it_is_open() {
    let remove = Act::Do(vec![Op::Remove("b".into())]);
    play(false, &[remove, Act::Hold("d/b".into()), Act::Commit, Act::Commit]);
}

#[test]
fn a_savepoint_is_one_record_and_copies_nothing() {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let d = Drive::open(dir.path());
    d.write("f", vec![1; 1 << 20]);
    let slots = || std::fs::read_dir(dir.path().join(".txfs/staged")).unwrap().flatten().next();
    let files = || std::fs::read_dir(slots().unwrap().path()).unwrap().count();
    let records = || d.view.writer().last_seq().0;
    let (before, count) = (records(), files());
    let uid = me().uid;
    for n in 0..3 {
        let info = d.ws.savepoint("main", uid, None, false).unwrap();
        assert_eq!((info.seq, info.effects_since), (before + n + 1, 0));
    }
    assert_eq!(files(), count);
    // The first write after it pays, the second does not.
    d.write("f", "one");
    d.write("f", "two");
    assert_eq!((files(), records()), (count + 1, before + 4));
    d.ws.rollback("main", uid, &RollbackTo::Newest).unwrap();
    assert_eq!(files(), count, "what nobody needs any more is removed");
    assert_eq!(d.read("f"), vec![1; 1 << 20]);
    d.close();
}

#[test]
fn names_of_savepoints_and_steps_are_checked() {
    use txfs::proto::Code;
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let d = Drive::open(dir.path());
    let uid = me().uid;
    let code = |to| d.ws.rollback("main", uid, &to).unwrap_err().code;
    assert_eq!(code(RollbackTo::Newest), Code::NotFound);
    assert_eq!(code(RollbackTo::LastStep), Code::NotFound);
    d.ws.savepoint("main", uid, Some("one"), false).unwrap();
    d.ws.savepoint("main", uid, None, false).unwrap();
    let again = d.ws.savepoint("main", uid, Some("one"), false);
    assert_eq!(again.unwrap_err().code, Code::Busy);
    assert_eq!(d.ws.savepoint("main", uid, Some("../x"), false).unwrap_err().code, Code::Usage);
    assert_eq!(d.ws.step("main", uid, b"first".to_vec()).unwrap().step, 1);
    d.write("f", "1");
    d.ws.rollback("main", uid, &RollbackTo::Savepoint("one".into())).unwrap();
    assert_eq!(code(RollbackTo::Step(1)), Code::NotFound);
    // The later savepoint went with what it marked, and its name is free; steps go on counting.
    d.ws.savepoint("main", uid, Some("s1"), false).unwrap();
    assert_eq!(d.ws.step("main", uid, b"second".to_vec()).unwrap().step, 2);
    let marks = d.ws.savepoints("main", uid).unwrap().marks;
    let names: Vec<_> = marks.iter().map(|m| m.name.0.as_slice()).collect();
    assert_eq!(names, [&b"one"[..], b"s1", b"second"]);
    d.close();
}
