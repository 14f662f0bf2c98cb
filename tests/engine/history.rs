//! Random changes are committed and undone, generation after generation: the base is exactly what the
//! model says it is, times, modes, attributes and links included.

use std::path::Path;

use proptest::prelude::*;

use txfs::proto::Code;

use crate::drive::Drive;
use crate::manifest::{Manifest, assert_same, read};

/// Few names, so that operations meet.
const NAMES: [&str; 5] = ["a", "b", "d", "e", "x"];

#[derive(Clone, Debug)]
pub enum Op {
    Write(String, Vec<u8>),
    Truncate(String, u64),
    Mkdir(String),
    Remove(String),
    Move(String, String),
    Swap(String, String),
    Link(String, String),
    Symlink(String),
    Chmod(String, u32),
    Touch(String, i64),
    Xattr(String, Vec<u8>),
}

impl Op {
    fn paths(&self) -> Vec<&str> {
        match self {
            Op::Write(p, _)
            | Op::Truncate(p, _)
            | Op::Mkdir(p)
            | Op::Remove(p)
            | Op::Symlink(p)
            | Op::Chmod(p, _)
            | Op::Touch(p, _)
            | Op::Xattr(p, _) => vec![p],
            Op::Move(p, q) | Op::Swap(p, q) | Op::Link(p, q) => vec![p, q],
        }
    }
}

#[derive(Clone, Debug)]
enum Act {
    Commit(Vec<Op>),
    Abort(Vec<Op>),
    /// The newest generation.
    Undo,
    /// Any generation, by its distance from the newest.
    UndoOne(usize),
    /// Down to a generation, by its distance from the newest.
    UndoTo(usize),
    /// The workspace is closed and opened.
    Reopen,
}

/// What there is at first, mostly.
const PATHS: [&str; 12] =
    ["a", "b", "d", "d/a", "d/b", "d/e", "d/e/a", "x", "x/b", "x/d", "e", "d/x"];

pub fn path() -> impl Strategy<Value = String> {
    let any = proptest::collection::vec(proptest::sample::select(&NAMES[..]), 1..4);
    prop_oneof![
        2 => proptest::sample::select(&PATHS[..]).prop_map(str::to_owned),
        1 => any.prop_map(|p| p.join("/")),
    ]
}

pub fn op() -> impl Strategy<Value = Op> {
    let data = || proptest::collection::vec(any::<u8>(), 0..40);
    prop_oneof![
        5 => (path(), data()).prop_map(|(p, d)| Op::Write(p, d)),
        1 => (path(), 0u64..9000).prop_map(|(p, n)| Op::Truncate(p, n)),
        4 => path().prop_map(Op::Mkdir),
        3 => path().prop_map(Op::Remove),
        5 => (path(), path()).prop_map(|(p, q)| Op::Move(p, q)),
        1 => (path(), path()).prop_map(|(p, q)| Op::Swap(p, q)),
        2 => (path(), path()).prop_map(|(p, q)| Op::Link(p, q)),
        1 => path().prop_map(Op::Symlink),
        1 => (path(), prop_oneof![Just(0o600), Just(0o755)]).prop_map(|(p, m)| Op::Chmod(p, m)),
        1 => (path(), 1i64..1_000_000).prop_map(|(p, t)| Op::Touch(p, t)),
        1 => (path(), data()).prop_map(|(p, d)| Op::Xattr(p, d)),
    ]
}

fn act() -> impl Strategy<Value = Act> {
    let ops = || proptest::collection::vec(op(), 1..8);
    prop_oneof![
        8 => ops().prop_map(Act::Commit),
        1 => ops().prop_map(Act::Abort),
        2 => Just(Act::Undo),
        2 => (0usize..4).prop_map(Act::UndoOne),
        2 => (1usize..5).prop_map(Act::UndoTo),
        1 => Just(Act::Reopen),
    ]
}

/// What is impossible is left out: the view answers with an error and changes nothing.
fn perform(d: &Drive, op: &Op) -> bool {
    let done = match op {
        Op::Write(p, data) => d.try_write(p, data),
        Op::Truncate(p, n) => d.try_truncate(p, *n),
        Op::Mkdir(p) => d.try_mkdir(p),
        Op::Remove(p) => d.try_rm(p),
        Op::Move(p, q) => d.try_mv(p, q),
        Op::Swap(p, q) => d.try_swap(p, q),
        Op::Link(p, q) => d.try_link(p, q),
        Op::Symlink(p) => d.try_symlink(p, b"a/b"),
        Op::Chmod(p, m) => d.try_chmod(p, *m),
        Op::Touch(p, t) => d.try_touch(p, *t),
        Op::Xattr(p, v) => d.try_xattr(p, "user.test", v),
    };
    // Which errors are right is the matter of the view's own model.
    if let Err(e) = done {
        log::debug!("{op:?}: {e}");
    }
    done.is_ok()
}

pub fn perform_all(d: &Drive, ops: &[Op]) {
    for op in ops {
        perform(d, op);
    }
}

/// The tree of every generation, by its number.
struct Model {
    trees: Vec<Manifest>,
}

impl Model {
    fn check(&self, what: &str, root: &Path) {
        assert_same(what, self.trees.last().unwrap(), &read(root, true));
    }

    fn live(&self) -> usize {
        self.trees.len() - 1
    }
}

/// Names and contents alone, for what the view shows.
fn bare(tree: &Manifest) -> Vec<(Vec<u8>, u32, Vec<u8>)> {
    tree.iter().map(|(p, i)| (p.clone(), i.mode, i.data.clone())).collect()
}

fn shown(d: &Drive) -> Vec<(Vec<u8>, u32, Vec<u8>)> {
    d.tree().into_iter().map(|(p, s)| (p, s.mode, s.data)).collect()
}

fn base() -> tempfile::TempDir {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let root = dir.path();
    for sub in ["d/e", "x"] {
        std::fs::create_dir_all(root.join(sub)).unwrap();
    }
    for file in ["a", "d/a", "d/b", "d/e/a", "x/b"] {
        std::fs::write(root.join(file), file).unwrap();
    }
    std::fs::hard_link(root.join("d/b"), root.join("b")).unwrap();
    dir
}

fn play(acts: &[Act]) {
    let dir = base();
    let root = dir.path();
    let mut d = Drive::open(root);
    let mut model = Model { trees: vec![read(root, true)] };
    for (n, act) in acts.iter().enumerate() {
        let what = format!("{n}: {act:?}");
        match act {
            Act::Commit(ops) => {
                perform_all(&d, ops);
                let seen = shown(&d);
                let before = d.ws.live().unwrap();
                d.commit();
                let now = read(root, true);
                assert_eq!(seen, bare(&now), "{what}");
                assert_eq!(shown(&d), seen, "{what}: the view after the commit");
                if d.ws.live().unwrap() == before {
                    // Nothing to commit; what was done and taken back still holds the generation.
                    d.abort();
                    model.check(&what, root);
                } else {
                    model.trees.push(now);
                }
            }
            Act::Abort(ops) => {
                perform_all(&d, ops);
                d.abort();
                model.check(&what, root);
                assert_eq!(shown(&d), bare(model.trees.last().unwrap()), "{what}");
            }
            Act::Undo | Act::UndoOne(_) | Act::UndoTo(_) => undo(&d, &mut model, act, &what, root),
            Act::Reopen => {
                d.close();
                d = Drive::open(root);
                model.check(&what, root);
            }
        }
    }
    d.close();
}

fn undo(d: &Drive, model: &mut Model, act: &Act, what: &str, root: &Path) {
    let before = d.ws.live().unwrap();
    let live = model.live();
    let (done, expected) = match act {
        Act::Undo if live > 0 => (d.try_undo(Some(live as u64), None), Some(live - 1)),
        Act::UndoTo(n) if live >= *n => (d.try_undo(None, Some((live - n) as u64)), Some(live - n)),
        // What is left of the others is not to be told in advance.
        Act::UndoOne(n) if live > *n => (d.try_undo(Some((live - n) as u64), None), None),
        _ => return,
    };
    let is_new = d.ws.live().unwrap() != before;
    match (done, expected) {
        (Ok(()), Some(then)) => {
            assert_same(what, &model.trees[then], &read(root, true));
            if is_new {
                model.trees.push(model.trees[then].clone());
            }
        }
        (Ok(()), None) if is_new => model.trees.push(read(root, true)),
        (Ok(()), None) => model.check(what, root),
        (Err(e), Some(_)) => panic!("{what}: {e} {:?}", e.conflicts),
        // A later generation stands in the way; nothing has happened.
        (Err(_), None) => {
            assert!(!is_new, "{what}");
            model.check(what, root);
        }
    }
    assert_eq!(shown(d), bare(model.trees.last().unwrap()), "{what}");
}

/// Two callers begin on the same generation, one commits, the other is moved onto it: either both have
/// worked one after the other, or nothing has happened to the second.
fn race(first: &[Op], second: &[Op], third: &[Op], reopens: bool) -> bool {
    let (dir, serial) = (base(), base());
    let mut one = Drive::open(dir.path());
    let mut two = one.other("two");
    let alone = Drive::open(serial.path());
    for op in first {
        if perform(&one, op) {
            assert!(perform(&alone, op), "{op:?}");
        }
    }
    // What came and went in between is not moved along: each operation has paths of its own. And a rename
    // between two names of one file does nothing.
    let mut used: Vec<&str> = Vec::new();
    let mut done = Vec::new();
    for op in second {
        let paths = op.paths();
        if paths.iter().any(|p| used.iter().any(|u| p.starts_with(u) || u.starts_with(p))) {
            continue;
        }
        let before = two.view.effects();
        let renames = matches!(op, Op::Move(..) | Op::Swap(..));
        if perform(&two, op) && (!renames || two.view.effects() != before) {
            done.push(op);
            used.extend(paths);
        }
    }
    let mine = shown(&two);
    one.commit();
    assert_eq!(shown(&two), mine, "the other one's commit shows");
    if let Err(e) = two.rebase() {
        assert_eq!(e.code, Code::Conflict, "{e}");
        assert!(!e.conflicts.is_empty());
        assert_eq!(shown(&two), mine);
        two.abort();
        assert_eq!(bare(&read(dir.path(), false)), shown(&alone));
        return false;
    }
    for op in done {
        assert!(perform(&alone, op), "{op:?} went alone");
    }
    assert_eq!(shown(&two), shown(&alone));
    if reopens {
        drop(two);
        one.close();
        one = Drive::open(dir.path());
        two = one.again("two");
        assert_eq!(shown(&two), shown(&alone), "after the daemon's end");
    }
    for op in third {
        assert_eq!(perform(&two, op), perform(&alone, op), "{op:?}");
    }
    assert_eq!(shown(&two), shown(&alone));
    two.commit();
    assert_eq!(bare(&read(dir.path(), false)), shown(&alone));
    true
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: std::env::var("TXFS_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(120),
        failure_persistence: None,
        max_shrink_iters: 400,
        ..ProptestConfig::default()
    })]

    #[test]
    fn every_generation_can_be_committed_and_undone(acts in proptest::collection::vec(act(), 1..14)) {
        play(&acts);
    }

    #[test]
    fn what_was_moved_onto_another_generation_is_as_if_done_after_it(
        first in proptest::collection::vec(op(), 1..5),
        second in proptest::collection::vec(op(), 1..5),
        third in proptest::collection::vec(op(), 0..4),
        reopens: bool,
    ) {
        race(&first, &second, &third, reopens);
    }
}

#[test]
fn an_undo_of_several_is_undone_through_changed_kinds() {
    let first =
        vec![Op::Remove("a".into()), Op::Mkdir("a".into()), Op::Write("a/x".into(), vec![1])];
    let second = vec![
        Op::Move("a/x".into(), "y".into()),
        Op::Remove("a".into()),
        Op::Move("y".into(), "a".into()),
    ];
    play(&[Act::Commit(first), Act::Commit(second), Act::UndoTo(2), Act::Undo, Act::Undo]);
}

#[test]
fn one_name_of_two_and_then_the_other() {
    let commit = |p: &str| Act::Commit(vec![Op::Remove(p.into())]);
    play(&[commit("b"), commit("d"), Act::UndoTo(2), Act::UndoTo(1)]);
}

/// Paths with kind, mode, time, links and content: all that a view of an older generation must not lose.
fn whole(d: &Drive) -> Vec<(Vec<u8>, crate::drive::Seen)> {
    d.tree().into_iter().collect()
}

/// A view of the first generation shows it whole while others commit and undo.
fn watch(acts: &[Act]) {
    let dir = base();
    let mut d = Drive::open(dir.path());
    let mut other = d.other("other");
    // One that did nothing goes on with the live generation when it is opened again.
    other.write("own", "own");
    let first = whole(&other);
    for (n, act) in acts.iter().enumerate() {
        match act {
            Act::Commit(ops) => {
                perform_all(&d, ops);
                d.commit();
            }
            Act::Abort(_) => d.abort(),
            Act::Undo | Act::UndoOne(_) | Act::UndoTo(_) => {
                d.abort();
                let live = d.ws.live().unwrap().0;
                if live > 0 {
                    d.try_undo(Some(live), None).unwrap();
                }
            }
            Act::Reopen => {
                drop(other);
                d.close();
                d = Drive::open(dir.path());
                other = d.again("other");
            }
        }
        assert_eq!(whole(&other), first, "{n}: {act:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: std::env::var("TXFS_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(80),
        failure_persistence: None,
        max_shrink_iters: 400,
        ..ProptestConfig::default()
    })]

    #[test]
    fn an_older_view_stays_what_it_was(acts in proptest::collection::vec(act(), 1..6)) {
        watch(&acts);
    }
}
