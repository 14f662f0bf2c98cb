//! Drives views without FUSE: what programs do, by path.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use txfs::proto::{Code, CommitReply, Failure, HistoryChoice};
use txfs::txn::Workspace;
use txfs::txn::verbs::CommitOptions;
use txfs::view::View;
use txfs::view::api::{Caller, NodeSpec, OpResult, RenameMode, SetAttr, SetTime};
use txfs_journal::{Kind, Name, ObjId, Timestamp};

/// What a view shows at a path.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Seen {
    pub kind: Kind,
    pub mode: u32,
    pub links: u32,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    pub mtime: Timestamp,
    pub data: Vec<u8>,
}

/// Held while a child is being forked.
pub static FORKS: Mutex<()> = Mutex::new(());

/// An open workspace and the view of its main transaction.
pub struct Drive {
    pub ws: Arc<Workspace>,
    pub view: Arc<View>,
    txn: &'static str,
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
        let until = Instant::now() + Duration::from_secs(10);
        let ws = loop {
            // A child that another test forks has our descriptors, the store's lock with them, until it
            // executes; and sled closes its own some time after it was dropped, without telling.
            drop(FORKS.lock());
            match Workspace::open(root, None, true) {
                Err(e)
                    if (e.code == Code::Busy || e.message.contains("lock"))
                        && Instant::now() < until =>
                {
                    std::thread::yield_now();
                }
                opened => break opened?,
            }
        };
        let view = ws.view("main", me().uid)?;
        Ok(Drive { ws: Arc::new(ws), view, txn: "main" })
    }

    /// The view of another transaction of the same workspace.
    pub fn other(&self, txn: &'static str) -> Drive {
        self.ws.begin(txn, me().uid).unwrap();
        self.again(txn)
    }

    /// The same of one that is open.
    pub fn again(&self, txn: &'static str) -> Drive {
        let view = self.ws.view(txn, me().uid).unwrap();
        Drive { ws: Arc::clone(&self.ws), view, txn }
    }

    pub fn try_find(&self, path: &[u8]) -> OpResult<ObjId> {
        let parts = path.split(|&b| b == b'/').filter(|p| !p.is_empty());
        parts.into_iter().try_fold(ObjId::ROOT, |at, part| {
            self.view.lookup(at, &nm(part)).map(|entry| entry.attr.obj)
        })
    }

    pub fn find(&self, path: &[u8]) -> ObjId {
        self.try_find(path).unwrap_or_else(|e| panic!("{}: {e}", path.escape_ascii()))
    }

    fn try_at(&self, path: &[u8]) -> OpResult<(ObjId, Name)> {
        match path.iter().rposition(|&b| b == b'/') {
            Some(n) => Ok((self.try_find(&path[..n])?, nm(&path[n + 1..]))),
            None => Ok((ObjId::ROOT, nm(path))),
        }
    }

    /// Creates or overwrites from the first byte on, without truncating.
    pub fn try_write(&self, path: impl AsRef<[u8]>, data: impl AsRef<[u8]>) -> OpResult<()> {
        let (dir, name) = self.try_at(path.as_ref())?;
        let fh = match self.view.lookup(dir, &name) {
            Ok(entry) => self.view.open_file_handle(&me(), entry.attr.obj, libc::O_RDWR)?.fh,
            Err(_) => {
                let spec = NodeSpec { kind: Kind::File, mode: 0o644, umask: 0, rdev: 0 };
                let flags = libc::O_CREAT | libc::O_RDWR;
                self.view.create(&me(), dir, &name, &spec, flags)?.1.fh
            }
        };
        assert_eq!(self.view.write(fh, 0, data.as_ref(), false).unwrap(), data.as_ref().len());
        self.view.release(fh);
        Ok(())
    }

    pub fn try_truncate(&self, path: impl AsRef<[u8]>, size: u64) -> OpResult<()> {
        let obj = self.try_find(path.as_ref())?;
        if self.view.getattr(obj, None)?.0.kind != Kind::File {
            return Err(Errno::INVAL);
        }
        self.set(obj, SetAttr { size: Some(size), ..SetAttr::default() })
    }

    pub fn try_chmod(&self, path: impl AsRef<[u8]>, mode: u32) -> OpResult<()> {
        let obj = self.try_find(path.as_ref())?;
        if self.view.getattr(obj, None)?.0.kind == Kind::Symlink {
            return Err(Errno::OPNOTSUPP);
        }
        self.set(obj, SetAttr { mode: Some(mode), ..SetAttr::default() })
    }

    pub fn try_touch(&self, path: impl AsRef<[u8]>, secs: i64) -> OpResult<()> {
        let at = SetTime::At(Timestamp { secs, nanos: 7 });
        let obj = self.try_find(path.as_ref())?;
        self.set(obj, SetAttr { mtime: Some(at), ..SetAttr::default() })
    }

    fn set(&self, obj: ObjId, what: SetAttr) -> OpResult<()> {
        self.view.setattr(&me(), obj, None, &what).map(drop)
    }

    pub fn try_xattr(&self, path: impl AsRef<[u8]>, name: &str, value: &[u8]) -> OpResult<()> {
        let obj = self.try_find(path.as_ref())?;
        if self.view.getattr(obj, None)?.0.kind == Kind::Symlink {
            return Err(Errno::PERM);
        }
        self.view.setxattr(obj, name.as_bytes(), value, 0)
    }

    pub fn try_mkdir(&self, path: impl AsRef<[u8]>) -> OpResult<()> {
        let (dir, name) = self.try_at(path.as_ref())?;
        self.view.mkdir(&me(), dir, &name, 0o755, 0).map(drop)
    }

    pub fn try_symlink(&self, path: impl AsRef<[u8]>, target: &[u8]) -> OpResult<()> {
        let (dir, name) = self.try_at(path.as_ref())?;
        self.view.symlink(&me(), dir, &name, target).map(drop)
    }

    pub fn try_link(&self, from: impl AsRef<[u8]>, to: impl AsRef<[u8]>) -> OpResult<()> {
        let (dir, name) = self.try_at(to.as_ref())?;
        self.view.link(self.try_find(from.as_ref())?, dir, &name).map(drop)
    }

    pub fn try_mv(&self, from: impl AsRef<[u8]>, to: impl AsRef<[u8]>) -> OpResult<()> {
        self.rename(from, to, RenameMode::Replace)
    }

    pub fn try_swap(&self, a: impl AsRef<[u8]>, b: impl AsRef<[u8]>) -> OpResult<()> {
        self.rename(a, b, RenameMode::Exchange)
    }

    fn rename(
        &self,
        from: impl AsRef<[u8]>,
        to: impl AsRef<[u8]>,
        mode: RenameMode,
    ) -> OpResult<()> {
        let (from, to) = (from.as_ref(), to.as_ref());
        // The kernel answers these before it asks a file system.
        let is_within = |a: &[u8], b: &[u8]| a.starts_with(b) && a.get(b.len()) == Some(&b'/');
        if is_within(to, from) || is_within(from, to) {
            return Err(Errno::INVAL);
        }
        let ((from, x), (to, y)) = (self.try_at(from)?, self.try_at(to)?);
        self.view.rename((from, &x), (to, &y), mode).map(drop)
    }

    /// `rm -r`
    pub fn try_rm(&self, path: impl AsRef<[u8]>) -> OpResult<()> {
        let path = path.as_ref();
        let (dir, name) = self.try_at(path)?;
        let obj = self.try_find(path)?;
        if self.view.getattr(obj, None)?.0.kind != Kind::Dir {
            return self.view.unlink(dir, &name).map(drop);
        }
        for child in self.names(obj) {
            self.try_rm([path, b"/", &child].concat())?;
        }
        self.view.rmdir(dir, &name).map(drop)
    }

    pub fn write(&self, path: impl AsRef<[u8]>, data: impl AsRef<[u8]>) {
        self.try_write(path, data).unwrap();
    }

    pub fn truncate(&self, path: impl AsRef<[u8]>, size: u64) {
        self.try_truncate(path, size).unwrap();
    }

    pub fn chmod(&self, path: impl AsRef<[u8]>, mode: u32) {
        self.try_chmod(path, mode).unwrap();
    }

    pub fn mkdir(&self, path: impl AsRef<[u8]>) {
        self.try_mkdir(path).unwrap();
    }

    pub fn symlink(&self, path: impl AsRef<[u8]>, target: &[u8]) {
        self.try_symlink(path, target).unwrap();
    }

    pub fn mv(&self, from: impl AsRef<[u8]>, to: impl AsRef<[u8]>) {
        self.try_mv(from, to).unwrap();
    }

    pub fn rm(&self, path: impl AsRef<[u8]>) {
        self.try_rm(path).unwrap();
    }

    pub fn names(&self, dir: ObjId) -> Vec<Vec<u8>> {
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
            let (mode, mtime, links) = (attr.mode, attr.mtime, attr.nlink);
            let names = self.view.listxattr(obj).unwrap();
            let xattrs = names
                .into_iter()
                .map(|name| {
                    let value = self.view.getxattr(obj, &name).unwrap();
                    (name, value)
                })
                .collect();
            out.insert(path, Seen { kind: attr.kind, mode, links, xattrs, mtime, data });
        }
        out
    }

    pub fn try_commit(&self) -> Result<CommitReply, Failure> {
        let options = CommitOptions {
            message: Vec::new(),
            dry_run: false,
            rebase: false,
            wait: 0,
            allow_open_writers: false,
            history: HistoryChoice::Keep,
        };
        self.ws.commit(self.txn, me().uid, &options)
    }

    pub fn commit(&self) -> CommitReply {
        self.try_commit().unwrap_or_else(|e| panic!("{e}: {:?}", e.conflicts))
    }

    pub fn rebase(&self) -> Result<(), Failure> {
        self.ws.rebase(self.txn, me().uid, false).map(drop)
    }

    pub fn abort(&self) {
        self.ws.abort(self.txn, me().uid).unwrap();
    }

    pub fn try_undo(&self, generation: Option<u64>, to: Option<u64>) -> Result<(), Failure> {
        self.ws.undo(self.txn, me().uid, generation, to, false, false).map(drop)
    }

    pub fn undo(&self, generation: Option<u64>) {
        self.try_undo(generation, None).unwrap_or_else(|e| panic!("{e}: {:?}", e.conflicts));
    }

    pub fn undo_to(&self, to: u64) {
        self.try_undo(None, Some(to)).unwrap_or_else(|e| panic!("{e}: {:?}", e.conflicts));
    }

    /// Everything handed to the disk, and the workspace closed.
    pub fn close(self) {
        let Drive { ws, view, .. } = self;
        drop(view);
        ws.close().unwrap();
    }
}
