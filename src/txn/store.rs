//! The store on disk: `WORKSPACE/.txfs` or another directory that a rename reaches.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, RenameFlags};
use txfs_journal::{Generation, SlotId, TxnId};

use crate::base::{self, Base};
use crate::proto::{Code, Failure};
use crate::view::{Staging, staging};

/// The store's name in a workspace.
pub const NAME: &str = ".txfs";

/// The open store. Whoever has it is the only one.
#[derive(Debug)]
pub struct Store {
    path: PathBuf,
    dir: OwnedFd,
    history: Arc<OwnedFd>,
    staged: OwnedFd,
    trash: OwnedFd,
    _lock: File,
}

fn fail(code: Code, what: &str, path: &Path, e: &io::Error) -> Failure {
    let failure = Failure::new(code, format!("cannot {what} {}: {e}", path.display()));
    match e.raw_os_error() {
        Some(libc::EROFS) => {
            failure.hint("remount the file system read-write, or take a copy as workspace")
        }
        Some(libc::EACCES | libc::EPERM) => {
            failure.hint("run as the owner of the workspace, or as root")
        }
        Some(libc::ENOSPC | libc::EDQUOT) => {
            failure.hint("free some space, then run the command again")
        }
        _ => failure.hint("txfs doctor"),
    }
}

fn open_dir(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    Ok(rustix::fs::open(path, flags, Mode::empty())?)
}

/// Where the store of a workspace is.
#[must_use]
pub fn place(workspace: &Path, elsewhere: Option<&Path>) -> PathBuf {
    elsewhere.map_or_else(|| workspace.join(NAME), Path::to_path_buf)
}

impl Store {
    /// Opens the store of a base, making it if it is not there.
    ///
    /// # Errors
    /// [`Code::Busy`] if another process has it; [`Code::Io`] for a read-only base or a store from
    /// which no rename reaches the base; [`Code::NotPermitted`].
    pub fn open(base: &Base, elsewhere: Option<&Path>) -> Result<Store, Failure> {
        let path = place(base.path(), elsewhere);
        if !path.is_dir() {
            make(base, &path).map_err(|e| fail(Code::Io, "make the store", &path, &e))?;
        }
        let broken = |e: io::Error| fail(Code::Io, "open the store", &path, &e);
        let lock_path = path.join("lock");
        let lock = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&lock_path)
            .map_err(broken)?;
        rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).map_err(|_| {
            Failure::new(
                Code::Busy,
                format!("another process has the store {} open", path.display()),
            )
            .hint("txfs status")
        })?;
        for sub in ["staged", "history", "trash"] {
            make_dir(&path.join(sub), base).map_err(broken)?;
        }
        let store = Store {
            dir: open_dir(&path).map_err(broken)?,
            history: Arc::new(open_dir(&path.join("history")).map_err(broken)?),
            staged: open_dir(&path.join("staged")).map_err(broken)?,
            trash: open_dir(&path.join("trash")).map_err(broken)?,
            _lock: lock,
            path,
        };
        store.tend_room();
        store.probe(base)?;
        Ok(store)
    }

    /// Commit and undo are renames between store and base, so a rename must get from one to the other
    /// (a bind mount in between gives EXDEV on one file system).
    fn probe(&self, base: &Base) -> Result<(), Failure> {
        let stat = base::stat_fd(self.dir.as_fd())
            .map_err(|e| fail(Code::Io, "look at the store", &self.path, &e))?;
        if stat.dev != base.dev() {
            return Err(self.unreachable("it is on another file system"));
        }
        if self.path.starts_with(base.path()) {
            return Ok(());
        }
        let probe = format!("probe-{}", std::process::id());
        let hidden = format!(".txfs-{probe}");
        let root =
            base::stat_fd(base.root()).map_err(|e| fail(Code::Io, "look at", base.path(), &e))?;
        let io = |e: io::Error| fail(Code::Io, "write to", &self.path, &e);
        rustix::fs::mkdirat(&self.dir, &probe, Mode::RWXU).map_err(|e| io(e.into()))?;
        let there = rustix::fs::renameat_with(
            &self.dir,
            &probe,
            base.root(),
            &hidden,
            RenameFlags::NOREPLACE,
        );
        let (dir, name) =
            if there.is_ok() { (base.root(), &hidden) } else { (self.dir.as_fd(), &probe) };
        rustix::fs::unlinkat(dir, name, AtFlags::REMOVEDIR).map_err(|e| io(e.into()))?;
        let root_fd = base::reopen(base.root(), OFlags::RDONLY | OFlags::DIRECTORY).map_err(io)?;
        staging::set_times(root_fd.as_fd(), Some(root.atime), Some(root.mtime)).map_err(io)?;
        there.map_err(|e| self.unreachable(&e.to_string()))
    }

    fn unreachable(&self, why: &str) -> Failure {
        Failure::new(
            Code::Io,
            format!(
                "the store {} cannot be reached from the workspace by a rename: {why}",
                self.path.display()
            ),
        )
        .hint("leave --store out, or name a directory on the workspace's own file system and mount")
    }

    /// Its directory.
    pub(super) fn dir(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }

    /// Its path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The directory of the journal.
    #[must_use]
    pub fn journal(&self) -> PathBuf {
        self.path.join("db")
    }

    /// Compares the journal's identity with the one that the store wrote down when both were made. sled
    /// opens a damaged log as an empty one; the identity is what tells that from a new store.
    ///
    /// # Errors
    /// [`Code::Corrupt`] if they differ.
    pub fn check_journal(&self, journal: &txfs_journal::Journal) -> Result<(), Failure> {
        let path = self.path.join("id");
        let in_journal = journal.meta("id").map_err(|e| super::workspace::journal_failed(&e))?;
        let broken = |e: io::Error| fail(Code::Io, "read", &path, &e);
        let in_store = match std::fs::read(&path) {
            Ok(id) => Some(id),
            Err(e) if e.kind() == io::ErrorKind::NotFound => None,
            Err(e) => return Err(broken(e)),
        };
        let write = |id: &[u8]| -> io::Result<()> {
            let file = File::create(&path)?;
            std::os::unix::fs::FileExt::write_all_at(&file, id, 0)?;
            file.sync_all()?;
            Ok(rustix::fs::fsync(&self.dir)?)
        };
        match (in_store, in_journal) {
            (Some(ours), Some(theirs)) if ours == theirs => Ok(()),
            // The journal's is durable first, so a crash between the two leaves this.
            (None, Some(id)) => write(&id).map_err(broken),
            (None, None) => {
                let stat = base::stat_fd(self.dir.as_fd()).map_err(broken)?;
                let now = crate::view::state::now();
                let id = format!("{:x}-{:x}-{:x}", stat.ident.ino, now.secs, now.nanos).into_bytes();
                journal.set_meta("id", &id).map_err(|e| super::workspace::journal_failed(&e))?;
                write(&id).map_err(broken)
            }
            (Some(_), _) => Err(Failure::new(
                Code::Corrupt,
                format!("the journal in {} is damaged or not the one of this store: its records are lost", self.journal().display()),
            )
            .hint("txfs doctor lists the staged content that is still there; the base is untouched")),
        }
    }

    /// `history`
    #[must_use]
    pub fn history(&self) -> &Arc<OwnedFd> {
        &self.history
    }

    /// Whether the store is still where it was opened.
    ///
    /// # Errors
    /// Those of stat(2), except that a missing store is `false`.
    pub fn is_in_place(&self) -> io::Result<bool> {
        let opened = base::stat_fd(self.dir.as_fd())?;
        match base::stat_at(rustix::fs::CWD, self.path.as_os_str().as_encoded_bytes()) {
            Ok(now) => Ok(now.ident == opened.ident),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// The staging directory of a transaction, made if it is not there.
    ///
    /// # Errors
    /// Those of mkdir(2) and open(2).
    pub fn staging(&self, txn: TxnId) -> io::Result<Staging> {
        let name = txn.to_string();
        match rustix::fs::mkdirat(&self.staged, &name, Mode::RWXU) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => {}
            Err(e) => return Err(e.into()),
        }
        Staging::open(self.open_sub(&self.staged, &name)?)
    }

    /// A directory for views that stage nothing.
    ///
    /// # Errors
    /// Those of open(2).
    pub fn no_staging(&self) -> io::Result<OwnedFd> {
        self.open_sub(&self.dir, "trash")
    }

    fn open_sub(&self, dir: &OwnedFd, name: &str) -> io::Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        Ok(rustix::fs::openat(dir, name, flags, Mode::empty())?)
    }

    /// Transactions that have a staging directory.
    ///
    /// # Errors
    /// If it cannot be listed.
    pub fn staged(&self) -> io::Result<Vec<TxnId>> {
        let numbers = numbers(&self.staged)?;
        Ok(numbers.into_iter().map(TxnId).collect())
    }

    /// Generations that have a history directory.
    ///
    /// # Errors
    /// If it cannot be listed.
    pub fn histories(&self) -> io::Result<Vec<Generation>> {
        let numbers = numbers(&self.history)?;
        Ok(numbers.into_iter().map(Generation).collect())
    }

    /// Turns the staging directory of a transaction into the history of a generation; done already
    /// is done.
    ///
    /// # Errors
    /// Those of rename(2).
    pub fn make_history(&self, txn: TxnId, generation: Generation) -> io::Result<OwnedFd> {
        let (from, to) = (txn.to_string(), generation.to_string());
        match rustix::fs::renameat_with(
            &self.staged,
            &from,
            &*self.history,
            &to,
            RenameFlags::NOREPLACE,
        ) {
            Ok(()) | Err(rustix::io::Errno::NOENT | rustix::io::Errno::EXIST) => {}
            Err(e) => return Err(e.into()),
        }
        self.history_of(generation)
    }

    /// Turns a history directory back into a staging directory, after a failed apply.
    ///
    /// # Errors
    /// Those of rename(2).
    pub fn unmake_history(&self, txn: TxnId, generation: Generation) -> io::Result<()> {
        let (from, to) = (generation.to_string(), txn.to_string());
        match rustix::fs::renameat_with(
            &*self.history,
            &from,
            &self.staged,
            &to,
            RenameFlags::NOREPLACE,
        ) {
            // It was never made.
            Ok(()) | Err(rustix::io::Errno::NOENT) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    /// The history directory of a generation.
    ///
    /// # Errors
    /// Those of open(2).
    pub fn history_of(&self, generation: Generation) -> io::Result<OwnedFd> {
        self.open_sub(&self.history, &generation.to_string())
    }

    /// Moves the staging directory of a transaction into the trash; absence is no error.
    ///
    /// # Errors
    /// Those of rename(2).
    pub fn discard_staging(&self, txn: TxnId) -> io::Result<()> {
        self.discard(&self.staged, &txn.to_string(), &format!("txn-{txn}"))
    }

    /// Moves the history of a generation into the trash; absence is no error.
    ///
    /// # Errors
    /// Those of rename(2).
    pub fn discard_history(&self, generation: Generation) -> io::Result<()> {
        self.discard(&self.history, &generation.to_string(), &format!("gen-{generation}"))
    }

    fn discard(&self, dir: &OwnedFd, name: &str, to: &str) -> io::Result<()> {
        for n in 0.. {
            let to = format!("{to}-{n}");
            match rustix::fs::renameat_with(dir, name, &self.trash, &to, RenameFlags::NOREPLACE) {
                Ok(()) | Err(rustix::io::Errno::NOENT) => return Ok(()),
                Err(rustix::io::Errno::EXIST) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    /// Removes what is in the trash.
    ///
    /// # Errors
    /// The first that cannot be removed.
    pub fn empty_trash(&self) -> io::Result<()> {
        for entry in std::fs::read_dir(self.path.join("trash"))? {
            remove_tree(&entry?.path())?;
        }
        Ok(())
    }

    /// Bytes on disk below a directory of the store.
    #[must_use]
    pub fn bytes(&self, sub: &str) -> u64 {
        disk_bytes(&self.path.join(sub))
    }

    /// Bytes on disk of the files right below a directory of the store, without the directory's own.
    #[must_use]
    pub fn bytes_of_files(&self, sub: &str) -> u64 {
        let Ok(entries) = std::fs::read_dir(self.path.join(sub)) else { return 0 };
        entries.flatten().map(|e| disk_bytes(&e.path())).sum()
    }

    /// Bytes on disk of what a plan displaced into the history of its generation. Files whose bytes are
    /// known need not be looked at.
    #[must_use]
    pub fn slot_bytes(&self, plan: &txfs_journal::Plan, known: &HashMap<SlotId, u64>) -> u64 {
        let dir = self.path.join("history").join(plan.generation.to_string());
        let Ok(entries) = std::fs::read_dir(dir) else { return 0 };
        let weigh = |entry: std::fs::DirEntry| {
            let slot = entry.file_name().to_str().and_then(|n| n.parse().ok()).map(SlotId);
            match slot.and_then(|slot| known.get(&slot)) {
                Some(bytes) => *bytes,
                None => disk_bytes(&entry.path()),
            }
        };
        entries.flatten().map(weigh).sum()
    }

    /// Writes everything of the store's file system to the disk.
    ///
    /// # Errors
    /// Those of syncfs(2).
    pub fn sync(&self) -> io::Result<()> {
        Ok(rustix::fs::syncfs(&self.dir)?)
    }
}

fn numbers(dir: &OwnedFd) -> io::Result<Vec<u64>> {
    let mut out: Vec<u64> = base::list(dir.as_fd())?
        .iter()
        .filter_map(|(name, ..)| std::str::from_utf8(name).ok()?.parse().ok())
        .collect();
    out.sort_unstable();
    Ok(out)
}

/// Removes a tree, also one with directories that may not be written.
fn remove_tree(path: &Path) -> io::Result<()> {
    let meta = std::fs::symlink_metadata(path)?;
    if !meta.is_dir() {
        return std::fs::remove_file(path);
    }
    if meta.mode() & 0o700 != 0o700 {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o700))?;
    }
    for entry in std::fs::read_dir(path)? {
        remove_tree(&entry?.path())?;
    }
    std::fs::remove_dir(path)
}

/// 512-byte blocks in use below a path, in bytes. What goes away meanwhile counts nothing.
fn disk_bytes(path: &Path) -> u64 {
    let Ok(meta) = std::fs::symlink_metadata(path) else { return 0 };
    let below = match std::fs::read_dir(path) {
        Ok(entries) if meta.is_dir() => entries.flatten().map(|e| disk_bytes(&e.path())).sum(),
        _ => 0,
    };
    meta.blocks() * 512 + below
}

fn make_dir(path: &Path, base: &Base) -> io::Result<()> {
    match std::fs::DirBuilder::new().mode(0o700).create(path) {
        Ok(()) => give_to_owner(path, base),
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(e) => Err(e),
    }
}

/// The store belongs to the workspace's owner, also when root makes it.
fn give_to_owner(path: &Path, base: &Base) -> io::Result<()> {
    let owner = base.root_stat();
    if rustix::process::geteuid().is_root() && owner.uid != 0 {
        std::os::unix::fs::chown(path, Some(owner.uid), Some(owner.gid))?;
    }
    Ok(())
}

fn make(base: &Base, path: &Path) -> io::Result<()> {
    let root = base::stat_fd(base.root())?;
    make_dir(path, base)?;
    let tag = "Signature: 8a477f597d28d172789f06886806bc55\n# The store of txfs: open transactions and history. Removing it loses them.\n";
    for (name, text) in [(".gitignore", "*\n"), ("CACHEDIR.TAG", tag)] {
        std::fs::write(path.join(name), text)?;
        give_to_owner(&path.join(name), base)?;
    }
    if path.starts_with(base.path()) {
        let fd = base::reopen(base.root(), OFlags::RDONLY | OFlags::DIRECTORY)?;
        staging::set_times(fd.as_fd(), Some(root.atime), Some(root.mtime))?;
    }
    Ok(())
}
