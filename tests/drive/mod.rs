//! Drives views without FUSE: what programs do, by path.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};

use txfs::proto::{CommitReply, Failure, HistoryChoice};
use txfs::txn::Workspace;
use txfs::txn::verbs::CommitOptions;
use txfs::view::View;
use txfs::view::api::{Caller, NodeSpec, RenameMode, SetAttr, SetTime};
use txfs_journal::{Kind, Name, ObjId, Timestamp};

/// What a view shows at a path.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Seen {
    pub kind: Kind,
    pub mode: u32,
    pub mtime: Timestamp,
    pub data: Vec<u8>,
}

/// Held while a child is being forked.
pub static FORKS: Mutex<()> = Mutex::new(());

/// An open workspace and the view of its main transaction.
pub struct Drive {
    pub ws: Workspace,
    pub view: Arc<View>,
}

pub fn me() -> Caller {
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    Caller { uid: uid.as_raw(), gid: gid.as_raw(), pid: 0 }
}

fn nm(name: &[u8]) -> Name {
    Name::new(name).unwrap()
}

impl Drive {
    pub fn open(root: &Path) -> Drive {
        Drive::try_open(root).unwrap()
    }

    /// Opening finishes what a crash left; that may fail, and the next opening goes on.
    pub fn try_open(root: &Path) -> Result<Drive, Failure> {
        // A child that another test forks has our descriptors, the store's lock with them, until it executes.
        drop(FORKS.lock());
        let ws = Workspace::open(root, None, true)?;
        let view = ws.view("main", me().uid)?;
        Ok(Drive { ws, view })
    }

    pub fn find(&self, path: &[u8]) -> ObjId {
        let mut at = ObjId::ROOT;
        for part in path.split(|&b| b == b'/').filter(|p| !p.is_empty()) {
            let found = self.view.lookup(at, &nm(part));
            at = found.unwrap_or_else(|e| panic!("{}: {e}", path.escape_ascii())).attr.obj;
        }
        at
    }

    fn at(&self, path: &[u8]) -> (ObjId, Name) {
        match path.iter().rposition(|&b| b == b'/') {
            Some(n) => (self.find(&path[..n]), nm(&path[n + 1..])),
            None => (ObjId::ROOT, nm(path)),
        }
    }

    /// Creates or overwrites from the first byte on, without truncating.
    pub fn write(&self, path: impl AsRef<[u8]>, data: impl AsRef<[u8]>) {
        self.write_at(path, 0, data);
    }

    pub fn write_at(&self, path: impl AsRef<[u8]>, offset: u64, data: impl AsRef<[u8]>) {
        let (dir, name) = self.at(path.as_ref());
        let fh = match self.view.lookup(dir, &name) {
            Ok(entry) => {
                self.view.open_file_handle(&me(), entry.attr.obj, libc::O_RDWR).unwrap().fh
            }
            Err(_) => {
                let spec = NodeSpec { kind: Kind::File, mode: 0o644, umask: 0, rdev: 0 };
                let flags = libc::O_CREAT | libc::O_RDWR;
                self.view.create(&me(), dir, &name, &spec, flags).unwrap().1.fh
            }
        };
        assert_eq!(self.view.write(fh, offset, data.as_ref(), false).unwrap(), data.as_ref().len());
        self.view.release(fh);
    }

    pub fn truncate(&self, path: impl AsRef<[u8]>, size: u64) {
        self.set(path, SetAttr { size: Some(size), ..SetAttr::default() });
    }

    pub fn chmod(&self, path: impl AsRef<[u8]>, mode: u32) {
        self.set(path, SetAttr { mode: Some(mode), ..SetAttr::default() });
    }

    pub fn touch(&self, path: impl AsRef<[u8]>, secs: i64) {
        let at = SetTime::At(Timestamp { secs, nanos: 7 });
        self.set(path, SetAttr { mtime: Some(at), ..SetAttr::default() });
    }

    pub fn set(&self, path: impl AsRef<[u8]>, what: SetAttr) {
        self.view.setattr(&me(), self.find(path.as_ref()), None, &what).unwrap();
    }

    pub fn xattr(&self, path: impl AsRef<[u8]>, name: &str, value: &[u8]) {
        self.view.setxattr(self.find(path.as_ref()), name.as_bytes(), value, 0).unwrap();
    }

    pub fn mkdir(&self, path: impl AsRef<[u8]>) {
        let (dir, name) = self.at(path.as_ref());
        self.view.mkdir(&me(), dir, &name, 0o755, 0).unwrap();
    }

    pub fn symlink(&self, path: impl AsRef<[u8]>, target: &[u8]) {
        let (dir, name) = self.at(path.as_ref());
        self.view.symlink(&me(), dir, &name, target).unwrap();
    }

    pub fn fifo(&self, path: impl AsRef<[u8]>) {
        let (dir, name) = self.at(path.as_ref());
        let spec = NodeSpec { kind: Kind::Fifo, mode: 0o600, umask: 0, rdev: 0 };
        self.view.mknod(&me(), dir, &name, &spec).unwrap();
    }

    pub fn link(&self, from: impl AsRef<[u8]>, to: impl AsRef<[u8]>) {
        let (dir, name) = self.at(to.as_ref());
        self.view.link(self.find(from.as_ref()), dir, &name).unwrap();
    }

    pub fn mv(&self, from: impl AsRef<[u8]>, to: impl AsRef<[u8]>) {
        self.rename(from, to, RenameMode::Replace);
    }

    pub fn swap(&self, a: impl AsRef<[u8]>, b: impl AsRef<[u8]>) {
        self.rename(a, b, RenameMode::Exchange);
    }

    fn rename(&self, from: impl AsRef<[u8]>, to: impl AsRef<[u8]>, mode: RenameMode) {
        let ((from, x), (to, y)) = (self.at(from.as_ref()), self.at(to.as_ref()));
        self.view.rename((from, &x), (to, &y), mode).unwrap();
    }

    /// `rm -r`
    pub fn rm(&self, path: impl AsRef<[u8]>) {
        let path = path.as_ref();
        let (dir, name) = self.at(path);
        let obj = self.find(path);
        if self.view.getattr(obj, None).unwrap().0.kind != Kind::Dir {
            self.view.unlink(dir, &name).unwrap();
            return;
        }
        for child in self.names(obj) {
            self.rm([path, b"/", &child].concat());
        }
        self.view.rmdir(dir, &name).unwrap();
    }

    fn names(&self, dir: ObjId) -> Vec<Vec<u8>> {
        let (fh, _) = self.view.opendir(dir).unwrap();
        let mut names = Vec::new();
        self.view
            .readdir(fh, 0, &mut |_, e| {
                names.push(e.name.as_bytes().to_vec());
                false
            })
            .unwrap();
        self.view.releasedir(fh);
        names
    }

    pub fn read(&self, path: impl AsRef<[u8]>) -> Vec<u8> {
        let obj = self.find(path.as_ref());
        let size = self.view.getattr(obj, None).unwrap().0.size;
        let fh = self.view.open_file_handle(&me(), obj, libc::O_RDONLY).unwrap().fh;
        let mut data = vec![0; usize::try_from(size).unwrap()];
        let n = self.view.read(fh, 0, &mut data).unwrap();
        self.view.release(fh);
        data.truncate(n);
        data
    }

    /// Everything in the view.
    pub fn tree(&self) -> BTreeMap<Vec<u8>, Seen> {
        let mut out = BTreeMap::new();
        let mut todo = vec![(Vec::new(), ObjId::ROOT)];
        while let Some((path, obj)) = todo.pop() {
            let attr = self.view.getattr(obj, None).unwrap().0;
            let data = match attr.kind {
                Kind::File => self.read(&path),
                Kind::Symlink => self.view.readlink(obj).unwrap(),
                _ => Vec::new(),
            };
            if attr.kind == Kind::Dir {
                for name in self.names(obj) {
                    let child = self.view.lookup(obj, &nm(&name)).unwrap().attr.obj;
                    let mut full = path.clone();
                    if !full.is_empty() {
                        full.push(b'/');
                    }
                    full.extend_from_slice(&name);
                    todo.push((full, child));
                }
            }
            out.insert(path, Seen { kind: attr.kind, mode: attr.mode, mtime: attr.mtime, data });
        }
        out
    }

    pub fn try_commit(&self) -> Result<CommitReply, Failure> {
        let options = CommitOptions {
            message: Vec::new(),
            dry_run: false,
            wait: 0,
            allow_open_writers: false,
            history: HistoryChoice::Keep,
        };
        self.ws.commit("main", me().uid, &options)
    }

    pub fn commit(&self) -> CommitReply {
        self.try_commit().unwrap_or_else(|e| panic!("{e}: {:?}", e.conflicts))
    }

    pub fn abort(&self) {
        self.ws.abort("main", me().uid).unwrap();
    }

    pub fn undo(&self, generation: Option<u64>) {
        let done = self.ws.undo(me().uid, generation, None, false, false);
        done.unwrap_or_else(|e| panic!("{e}: {:?}", e.conflicts));
    }

    pub fn undo_to(&self, to: u64) {
        let done = self.ws.undo(me().uid, None, Some(to), false, false);
        done.unwrap_or_else(|e| panic!("{e}: {:?}", e.conflicts));
    }

    /// Everything handed to the disk, and the workspace closed.
    pub fn close(self) {
        let Drive { ws, view } = self;
        drop(view);
        ws.close().unwrap();
    }
}
