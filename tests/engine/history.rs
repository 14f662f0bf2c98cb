//! Random changes are committed and undone, generation after generation: the base is exactly what the
//! model says it is, times, modes, attributes and links included.

use std::path::Path;

use proptest::prelude::*;

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

pub fn path() -> impl Strategy<Value = String> {
    proptest::collection::vec(proptest::sample::select(&NAMES[..]), 1..4).prop_map(|p| p.join("/"))
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
pub fn perform(d: &Drive, op: &Op) {
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

fn play(acts: &[Act]) {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let root = dir.path();
    for sub in ["d/e", "x"] {
        std::fs::create_dir_all(root.join(sub)).unwrap();
    }
    for file in ["a", "d/a", "d/b", "d/e/a", "x/b"] {
        std::fs::write(root.join(file), file).unwrap();
    }
    std::fs::hard_link(root.join("d/b"), root.join("b")).unwrap();
    let mut d = Drive::open(root);
    let mut model = Model { trees: vec![read(root, true)] };
    for (n, act) in acts.iter().enumerate() {
        let what = format!("{n}: {act:?}");
        match act {
            Act::Commit(ops) => {
                ops.iter().for_each(|op| perform(&d, op));
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
                ops.iter().for_each(|op| perform(&d, op));
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
}

#[test]
fn one_name_of_two_and_then_the_other() {
    let commit = |p: &str| Act::Commit(vec![Op::Remove(p.into())]);
    play(&[commit("b"), commit("d"), Act::UndoTo(2), Act::UndoTo(1)]);
}
