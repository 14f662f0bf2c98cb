//! Random operations on a view against an in-memory tree: every prefix equal, also after a rebuild
//! from the journal; then abort, or commit and undo, on the real directory. Needs neither FUSE nor
//! root. `TXFS_MODEL_CASES` sets the number of sequences.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::expect_used,
    clippy::wildcard_enum_match_arm,
    missing_docs
)]

use std::collections::BTreeMap;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use proptest::prelude::*;
use rustix::io::Errno;
use txfs::proto::HistoryChoice;
use txfs::txn::Workspace;
use txfs::txn::verbs::CommitOptions;
use txfs::view::View;
use txfs::view::api::{Caller, NodeSpec, RenameMode, SetAttr};
use txfs_journal::{Kind, Name, ObjId};

type Id = usize;

#[derive(Clone, Debug, PartialEq)]
enum Body {
    File(Vec<u8>),
    Dir(BTreeMap<Vec<u8>, Id>),
    Link(Vec<u8>),
}

#[derive(Clone, Debug)]
struct Node {
    body: Body,
    mode: u32,
    xattr: Option<Vec<u8>>,
}

/// The reference: a tree of inodes.
#[derive(Clone, Debug)]
struct Model(Vec<Node>);

/// One entry as both sides can tell it: kind and content, mode, attribute, links, first path of its inode.
#[derive(Clone, Debug, PartialEq)]
struct Seen {
    body: Body,
    mode: u32,
    xattr: Option<Vec<u8>>,
    links: u32,
    first: Vec<u8>,
}

type Tree = BTreeMap<Vec<u8>, Seen>;

#[derive(Clone, Debug)]
enum Op {
    Create(usize, u8),
    Write(usize, u16, u8, u8),
    Truncate(usize, u16),
    Mkdir(usize, u8),
    Unlink(usize, u8),
    Rmdir(usize, u8),
    Rename(usize, u8, usize, u8, u8),
    Link(usize, usize, u8),
    Symlink(usize, u8),
    Chmod(usize, u16),
    Xattr(usize, Option<u8>),
}

const NAMES: [&[u8]; 5] = [b"a", b"b", b"c\xff", b"d\n", b"e"];
const ATTRIBUTE: &[u8] = b"user.t";

fn name(n: u8) -> &'static [u8] {
    NAMES[n as usize % NAMES.len()]
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let p = || any::<prop::sample::Index>().prop_map(|i| i.index(1 << 16));
    let n = any::<u8>;
    let op = prop_oneof![
        4 => (p(), n()).prop_map(|(d, n)| Op::Create(d, n)),
        4 => (p(), 0u16..9000, n(), n()).prop_map(|(f, at, len, b)| Op::Write(f, at, len, b)),
        2 => (p(), 0u16..9000).prop_map(|(f, s)| Op::Truncate(f, s)),
        3 => (p(), n()).prop_map(|(d, n)| Op::Mkdir(d, n)),
        3 => (p(), n()).prop_map(|(d, n)| Op::Unlink(d, n)),
        2 => (p(), n()).prop_map(|(d, n)| Op::Rmdir(d, n)),
        6 => (p(), n(), p(), n(), n()).prop_map(|(a, b, c, d, m)| Op::Rename(a, b, c, d, m)),
        3 => (p(), p(), n()).prop_map(|(f, d, n)| Op::Link(f, d, n)),
        1 => (p(), n()).prop_map(|(d, n)| Op::Symlink(d, n)),
        2 => (p(), 0u16..0o1000).prop_map(|(f, m)| Op::Chmod(f, m)),
        2 => (p(), proptest::option::of(n())).prop_map(|(f, v)| Op::Xattr(f, v)),
    ];
    prop::collection::vec(op, 1..30)
}

impl Model {
    fn entries(&self, dir: Id) -> &BTreeMap<Vec<u8>, Id> {
        match &self.0[dir].body {
            Body::Dir(entries) => entries,
            Body::File(_) | Body::Link(_) => panic!("no directory"),
        }
    }

    fn entries_mut(&mut self, dir: Id) -> &mut BTreeMap<Vec<u8>, Id> {
        match &mut self.0[dir].body {
            Body::Dir(entries) => entries,
            Body::File(_) | Body::Link(_) => panic!("no directory"),
        }
    }

    fn is_dir(&self, id: Id) -> bool {
        matches!(self.0[id].body, Body::Dir(_))
    }

    /// All paths with their inodes; the root is the empty path.
    fn paths(&self) -> Vec<(Vec<u8>, Id)> {
        let mut out = vec![(Vec::new(), 0)];
        let mut at = 0;
        while at < out.len() {
            let (path, id) = out[at].clone();
            if self.is_dir(id) {
                for (name, child) in self.entries(id) {
                    let mut full = path.clone();
                    if !full.is_empty() {
                        full.push(b'/');
                    }
                    full.extend_from_slice(name);
                    out.push((full, *child));
                }
            }
            at += 1;
        }
        out.sort();
        out
    }

    fn dirs(&self) -> Vec<(Vec<u8>, Id)> {
        self.paths().into_iter().filter(|(_, id)| self.is_dir(*id)).collect()
    }

    fn tree(&self) -> Tree {
        let paths = self.paths();
        let mut first: BTreeMap<Id, (Vec<u8>, u32)> = BTreeMap::new();
        for (path, id) in &paths {
            first.entry(*id).or_insert_with(|| (path.clone(), 0)).1 += 1;
        }
        paths
            .into_iter()
            .map(|(path, id)| {
                let node = &self.0[id];
                let subdirs = match &node.body {
                    Body::Dir(entries) => {
                        2 + entries.values().filter(|c| self.is_dir(**c)).count() as u32
                    }
                    Body::File(_) | Body::Link(_) => first[&id].1,
                };
                let body = match &node.body {
                    Body::Dir(_) => Body::Dir(BTreeMap::new()),
                    other => other.clone(),
                };
                let seen = Seen {
                    body,
                    mode: node.mode,
                    xattr: node.xattr.clone(),
                    links: subdirs,
                    first: first[&id].0.clone(),
                };
                (path, seen)
            })
            .collect()
    }

    fn new_node(&mut self, body: Body, mode: u32) -> Id {
        self.0.push(Node { body, mode, xattr: None });
        self.0.len() - 1
    }

    fn within(&self, dir: Id, ancestor: Id) -> bool {
        dir == ancestor
            || (self.is_dir(ancestor)
                && self.entries(ancestor).values().any(|c| self.is_dir(*c) && self.within(dir, *c)))
    }

    fn rename(
        &mut self,
        from: (Id, &[u8]),
        to: (Id, &[u8]),
        mode: RenameMode,
    ) -> Result<(), Errno> {
        let id = *self.entries(from.0).get(from.1).ok_or(Errno::NOENT)?;
        let target = self.entries(to.0).get(to.1).copied();
        if self.is_dir(id) && self.within(to.0, id) {
            return Err(Errno::INVAL);
        }
        match (mode, target) {
            (RenameMode::NoReplace, Some(_)) => return Err(Errno::EXIST),
            (RenameMode::Exchange, None) => return Err(Errno::NOENT),
            (_, Some(t)) if t == id => return Ok(()),
            (RenameMode::Exchange, Some(t)) => {
                if self.is_dir(t) && self.within(from.0, t) {
                    return Err(Errno::INVAL);
                }
                self.entries_mut(from.0).insert(from.1.to_vec(), t);
                self.entries_mut(to.0).insert(to.1.to_vec(), id);
                return Ok(());
            }
            (RenameMode::Replace, Some(t)) => match (self.is_dir(id), self.is_dir(t)) {
                (true, false) => return Err(Errno::NOTDIR),
                (false, true) => return Err(Errno::ISDIR),
                (true, true) if !self.entries(t).is_empty() => return Err(Errno::NOTEMPTY),
                _ => {}
            },
            (RenameMode::Replace | RenameMode::NoReplace, None) => {}
        }
        self.entries_mut(from.0).remove(from.1);
        self.entries_mut(to.0).insert(to.1.to_vec(), id);
        Ok(())
    }
}

fn me() -> Caller {
    Caller {
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        pid: 0,
    }
}

fn nm(name: &[u8]) -> Name {
    Name::new(name).unwrap()
}

/// Resolves a path as the kernel does, one lookup after the other.
fn find(view: &View, path: &[u8]) -> ObjId {
    let mut at = ObjId::ROOT;
    for part in path.split(|&b| b == b'/').filter(|p| !p.is_empty()) {
        at = view.lookup(at, &nm(part)).unwrap().attr.obj;
    }
    at
}

fn read(view: &View, obj: ObjId) -> Vec<u8> {
    let opened = view.open_file_handle(&me(), obj, libc::O_RDONLY).unwrap();
    let mut buf = vec![0; 20000];
    let n = view.read(opened.fh, 0, &mut buf).unwrap();
    view.release(opened.fh);
    buf.truncate(n);
    buf
}

fn tree_of_view(view: &View) -> Tree {
    let mut out = Tree::new();
    let mut first: BTreeMap<ObjId, Vec<u8>> = BTreeMap::new();
    let mut todo = vec![(Vec::new(), ObjId::ROOT)];
    let mut found = Vec::new();
    while let Some((path, obj)) = todo.pop() {
        found.push((path.clone(), obj));
        if view.getattr(obj, None).unwrap().0.kind == Kind::Dir {
            let (fh, _) = view.opendir(obj).unwrap();
            let mut entries = Vec::new();
            view.readdir(fh, 0, &mut |_, e| {
                entries.push(e.clone());
                false
            })
            .unwrap();
            view.releasedir(fh);
            for entry in entries {
                let mut full: Vec<u8> = path.clone();
                if !full.is_empty() {
                    full.push(b'/');
                }
                full.extend_from_slice(entry.name.as_bytes());
                let looked_up = view.lookup(obj, &entry.name).unwrap().attr;
                assert_eq!(looked_up.kind, entry.kind, "listing and lookup of {:?}", entry.name);
                todo.push((full, looked_up.obj));
            }
        }
    }
    found.sort();
    for (path, obj) in found {
        let attr = view.getattr(obj, None).unwrap().0;
        let body = match attr.kind {
            Kind::Dir => Body::Dir(BTreeMap::new()),
            Kind::Symlink => Body::Link(view.readlink(obj).unwrap()),
            _ => {
                let content = read(view, obj);
                assert_eq!(content.len() as u64, attr.size);
                Body::File(content)
            }
        };
        let first = first.entry(obj).or_insert_with(|| path.clone()).clone();
        let xattr =
            if attr.kind == Kind::Symlink { None } else { view.getxattr(obj, ATTRIBUTE).ok() };
        out.insert(path, Seen { body, mode: attr.mode, xattr, links: attr.nlink, first });
    }
    out
}

fn tree_of_disk(root: &Path) -> (Tree, BTreeMap<Vec<u8>, (i64, i64)>) {
    use std::os::unix::ffi::OsStrExt;
    let (mut out, mut times, mut first) = (Tree::new(), BTreeMap::new(), BTreeMap::new());
    let mut todo = vec![Vec::new()];
    let mut found = Vec::new();
    while let Some(path) = todo.pop() {
        found.push(path.clone());
        let at = root.join(std::ffi::OsStr::from_bytes(&path));
        if std::fs::symlink_metadata(&at).unwrap().is_dir() {
            for entry in std::fs::read_dir(&at).unwrap() {
                let name = entry.unwrap().file_name();
                if path.is_empty() && name == ".txfs" {
                    continue;
                }
                let mut full = path.clone();
                if !full.is_empty() {
                    full.push(b'/');
                }
                full.extend_from_slice(name.as_bytes());
                todo.push(full);
            }
        }
    }
    found.sort();
    for path in found {
        let at = root.join(std::ffi::OsStr::from_bytes(&path));
        let meta = std::fs::symlink_metadata(&at).unwrap();
        let mut buf = [0u8; 64];
        let xattr = rustix::fs::lgetxattr(&at, c"user.t", &mut buf).ok().map(|n| buf[..n].to_vec());
        let body = if meta.is_dir() {
            Body::Dir(BTreeMap::new())
        } else if meta.is_symlink() {
            Body::Link(std::fs::read_link(&at).unwrap().as_os_str().as_bytes().to_vec())
        } else {
            // Root reads anything; an ordinary user opens a file for the look. Another state change would
            // be drift.
            let closed = meta.mode() & 0o400 == 0 && !rustix::process::geteuid().is_root();
            let set = |mode| {
                std::fs::set_permissions(&at, std::fs::Permissions::from_mode(mode)).unwrap()
            };
            if closed {
                set(meta.mode() | 0o400);
            }
            let content = std::fs::read(&at).unwrap();
            if closed {
                set(meta.mode());
            }
            Body::File(content)
        };
        let first = first.entry(meta.ino()).or_insert_with(|| path.clone()).clone();
        let mut links = meta.nlink() as u32;
        // The store is a subdirectory of the root that no view shows.
        if path.is_empty() && root.join(".txfs").exists() {
            links -= 1;
        }
        times.insert(path.clone(), (meta.mtime(), meta.mtime_nsec()));
        out.insert(path, Seen { body, mode: meta.mode() & 0o7777, xattr, links, first });
    }
    (out, times)
}

/// The tree that every sequence begins on, on disk and as model.
fn begin(root: &Path) -> Model {
    let write = |p: &str, text: &str| std::fs::write(root.join(p), text).unwrap();
    std::fs::create_dir_all(root.join("a/b")).unwrap();
    std::fs::create_dir(root.join("e")).unwrap();
    write("a/a", "in a");
    write("a/b/a", "deep");
    write("b", "a file");
    std::fs::hard_link(root.join("b"), root.join("a/e")).unwrap();
    std::os::unix::fs::symlink("b", root.join("a/b/b")).unwrap();
    let mut model = Model(Vec::new());
    let file = |text: &str| Body::File(text.as_bytes().to_vec());
    let map = |entries: &[(&[u8], Id)]| {
        Body::Dir(entries.iter().map(|(n, i)| (n.to_vec(), *i)).collect())
    };
    model.new_node(map(&[(b"a", 1), (b"e", 2), (b"b", 3)]), 0);
    model.new_node(map(&[(b"b", 4), (b"a", 5), (b"e", 3)]), 0);
    model.new_node(map(&[]), 0);
    model.new_node(file("a file"), 0);
    model.new_node(map(&[(b"a", 6), (b"b", 7)]), 0);
    model.new_node(file("in a"), 0);
    model.new_node(file("deep"), 0);
    model.new_node(Body::Link(b"b".to_vec()), 0);
    for (path, id) in model.paths() {
        use std::os::unix::ffi::OsStrExt;
        let at = root.join(std::ffi::OsStr::from_bytes(&path));
        model.0[id].mode = std::fs::symlink_metadata(at).unwrap().mode() & 0o7777;
    }
    model
}

fn perform(view: &View, model: &mut Model, op: &Op) {
    let (paths, dirs) = (model.paths(), model.dirs());
    let path = |n: usize| paths[n % paths.len()].clone();
    let dir = |n: usize| dirs[n % dirs.len()].clone();
    let free = |model: &Model, d: Id, n: &[u8]| !model.entries(d).contains_key(n);
    let file = NodeSpec { kind: Kind::File, mode: 0o640, umask: 0, rdev: 0 };
    match *op {
        Op::Create(d, n) => {
            let (path, id) = dir(d);
            let flags = libc::O_CREAT | libc::O_EXCL | libc::O_RDWR;
            let done = view.create(&me(), find(view, &path), &nm(name(n)), &file, flags);
            assert_eq!(done.is_ok(), free(model, id, name(n)), "{op:?}: {done:?}");
            match done {
                Ok((_, opened)) => {
                    view.release(opened.fh);
                    let new = model.new_node(Body::File(Vec::new()), 0o640);
                    model.entries_mut(id).insert(name(n).to_vec(), new);
                }
                Err(e) => assert_eq!(e, Errno::EXIST),
            }
        }
        Op::Write(f, at, len, byte) => {
            let (path, id) = path(f);
            let Body::File(content) = &mut model.0[id].body else { return };
            let opened = view.open_file_handle(&me(), find(view, &path), libc::O_RDWR).unwrap();
            let data = vec![byte; len as usize];
            assert_eq!(view.write(opened.fh, at.into(), &data, false).unwrap(), data.len());
            view.release(opened.fh);
            if !data.is_empty() {
                let end = at as usize + data.len();
                if content.len() < end {
                    content.resize(end, 0);
                }
                content[at as usize..end].copy_from_slice(&data);
            }
        }
        Op::Truncate(f, size) => {
            let (path, id) = path(f);
            let set = SetAttr { size: Some(size.into()), ..SetAttr::default() };
            let done = view.setattr(&me(), find(view, &path), None, &set);
            match &mut model.0[id].body {
                Body::File(content) => {
                    done.unwrap();
                    content.resize(size as usize, 0);
                }
                Body::Dir(_) | Body::Link(_) => assert_eq!(done.unwrap_err(), Errno::INVAL),
            }
        }
        Op::Mkdir(d, n) => {
            let (path, id) = dir(d);
            let done = view.mkdir(&me(), find(view, &path), &nm(name(n)), 0o750, 0);
            if free(model, id, name(n)) {
                done.unwrap();
                let new = model.new_node(Body::Dir(BTreeMap::new()), 0o750);
                model.entries_mut(id).insert(name(n).to_vec(), new);
            } else {
                assert_eq!(done.unwrap_err(), Errno::EXIST);
            }
        }
        Op::Unlink(d, n) | Op::Rmdir(d, n) => {
            let is_rmdir = matches!(op, Op::Rmdir(..));
            let (path, id) = dir(d);
            let at = find(view, &path);
            let done =
                if is_rmdir { view.rmdir(at, &nm(name(n))) } else { view.unlink(at, &nm(name(n))) };
            let expected = match model.entries(id).get(name(n)) {
                None => Err(Errno::NOENT),
                Some(t) if is_rmdir && !model.is_dir(*t) => Err(Errno::NOTDIR),
                Some(t) if is_rmdir && !model.entries(*t).is_empty() => Err(Errno::NOTEMPTY),
                Some(t) if !is_rmdir && model.is_dir(*t) => Err(Errno::ISDIR),
                Some(_) => Ok(()),
            };
            assert_eq!(done, expected, "{op:?}");
            if done.is_ok() {
                model.entries_mut(id).remove(name(n));
            }
        }
        Op::Rename(a, x, b, y, how) => {
            let ((from, from_id), (to, to_id)) = (dir(a), dir(b));
            let mode = [RenameMode::Replace, RenameMode::NoReplace, RenameMode::Exchange]
                [how as usize % 3];
            let (f, t) = (find(view, &from), find(view, &to));
            let done = view.rename((f, &nm(name(x))), (t, &nm(name(y))), mode);
            assert_eq!(done, model.rename((from_id, name(x)), (to_id, name(y)), mode), "{op:?}");
        }
        Op::Link(f, d, n) => {
            let ((path, id), (dir_path, dir_id)) = (path(f), dir(d));
            let done = view.link(find(view, &path), find(view, &dir_path), &nm(name(n)));
            if !free(model, dir_id, name(n)) {
                assert_eq!(done.unwrap_err(), Errno::EXIST);
            } else if model.is_dir(id) {
                assert_eq!(done.unwrap_err(), Errno::PERM);
            } else {
                done.unwrap();
                model.entries_mut(dir_id).insert(name(n).to_vec(), id);
            }
        }
        Op::Symlink(d, n) => {
            let (path, id) = dir(d);
            let done = view.symlink(&me(), find(view, &path), &nm(name(n)), b"../to");
            if free(model, id, name(n)) {
                done.unwrap();
                let new = model.new_node(Body::Link(b"../to".to_vec()), 0o777);
                model.entries_mut(id).insert(name(n).to_vec(), new);
            } else {
                assert_eq!(done.unwrap_err(), Errno::EXIST);
            }
        }
        Op::Chmod(f, mode) => {
            let (path, id) = path(f);
            if matches!(model.0[id].body, Body::Link(_)) {
                return;
            }
            // Directories stay open to us, so that the disk can be compared as an ordinary user too.
            let mode = if model.is_dir(id) { u32::from(mode) | 0o700 } else { mode.into() };
            let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
            view.setattr(&me(), find(view, &path), None, &set).unwrap();
            model.0[id].mode = mode;
        }
        Op::Xattr(f, value) => {
            let (path, id) = path(f);
            if matches!(model.0[id].body, Body::Link(_)) {
                return;
            }
            let obj = find(view, &path);
            match value {
                Some(v) => view.setxattr(obj, ATTRIBUTE, &[v, 1], 0).unwrap(),
                None if model.0[id].xattr.is_some() => view.removexattr(obj, ATTRIBUTE).unwrap(),
                None => assert_eq!(view.removexattr(obj, ATTRIBUTE).unwrap_err(), Errno::NODATA),
            }
            model.0[id].xattr = value.map(|v| vec![v, 1]);
        }
    }
}

/// Panics with what differs, entry by entry.
#[track_caller]
fn same<T: PartialEq + std::fmt::Debug>(
    what: &str,
    ops: &[Op],
    left: &BTreeMap<Vec<u8>, T>,
    right: &BTreeMap<Vec<u8>, T>,
) {
    let paths: std::collections::BTreeSet<_> = left.keys().chain(right.keys()).collect();
    let differs: Vec<_> = paths
        .into_iter()
        .filter(|p| left.get(*p) != right.get(*p))
        .map(|p| format!("{}:\n  {:?}\n  {:?}", p.escape_ascii(), left.get(p), right.get(p)))
        .collect();
    assert!(differs.is_empty(), "{what}, {ops:?}\n{}", differs.join("\n"));
}

fn options() -> CommitOptions {
    CommitOptions {
        message: Vec::new(),
        dry_run: false,
        rebase: false,
        wait: 0,
        allow_open_writers: false,
        history: HistoryChoice::Keep,
    }
}

fn run(ops: &[Op]) {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let root = dir.path();
    rustix::process::umask(rustix::fs::Mode::empty());
    let mut model = begin(root);
    let (before, times_before) = tree_of_disk(root);
    let disk_is = |what: &str, tree: &Tree, times: &BTreeMap<_, _>| {
        let (now, times_now) = tree_of_disk(root);
        same(what, ops, tree, &now);
        same(&format!("times, {what}"), ops, times, &times_now);
    };
    let uid = me().uid;
    {
        let ws = Workspace::open(root, None, false).unwrap();
        let view = ws.view("main", uid).unwrap();
        for (n, op) in ops.iter().enumerate() {
            perform(&view, &mut model, op);
            same("the view", &ops[..=n], &model.tree(), &tree_of_view(&view));
        }
        disk_is("the base before commit", &before, &times_before);
        drop(view);
        ws.close().unwrap();
    }
    let ws = Workspace::open(root, None, false).unwrap();
    let view = ws.view("main", uid).unwrap();
    same("the view rebuilt from the journal", ops, &model.tree(), &tree_of_view(&view));
    let shown: BTreeMap<_, _> = model
        .paths()
        .into_iter()
        .map(|(path, _)| {
            let mtime = view.getattr(find(&view, &path), None).unwrap().0.mtime;
            (path, (mtime.secs, i64::from(mtime.nanos)))
        })
        .collect();
    if ops.len().is_multiple_of(4) {
        ws.abort("main", uid).unwrap();
        disk_is("the base after abort", &before, &times_before);
        same("the view after abort", ops, &before, &tree_of_view(&view));
        return;
    }
    let reply = ws.commit("main", uid, &options()).unwrap();
    let after = model.tree();
    disk_is("the base after commit", &after, &shown);
    same("the view after commit", ops, &after, &tree_of_view(&view));
    if reply.changed {
        ws.undo("main", uid, None, None, false, false).unwrap();
        disk_is("the base after undo", &before, &times_before);
        same("the view after undo", ops, &before, &tree_of_view(&view));
        ws.undo("main", uid, Some(2), None, false, false).unwrap();
        disk_is("the base after redo", &after, &shown);
    }
}

#[test]
fn random_sequences() {
    let cases = std::env::var("TXFS_MODEL_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(150);
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        cases,
        max_shrink_iters: 300,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    runner
        .run(&ops(), |ops| {
            run(&ops);
            Ok(())
        })
        .unwrap();
}
