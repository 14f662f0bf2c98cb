//! A workspace: its base, its store, its journal, its open transactions; and the verbs on them.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use txfs_journal::{
    Fingerprint, Generation, Journal, JournalError, Kind, Plan, Step, TxnHead, TxnState,
};

use super::failpoint::failpoint;
use super::store::Store;
use crate::base::{Base, Whereabouts};
use crate::proto::{Code, Failure, TxnInfo};
use crate::view::state::now;
use crate::view::{Layer, Parts, View};

/// The transaction that is meant where none is named.
pub const MAIN: &str = "main";

/// What the names of undos begin with; no transaction of a user's can be named so.
pub(super) const UNDO: &str = ".undo";

/// An open transaction.
#[derive(Clone)]
pub struct Txn {
    /// Its head.
    pub head: TxnHead,
    /// Its view, built when first used.
    pub view: Option<Arc<View>>,
    /// Where it is mounted, as the client said.
    pub mount: Option<Vec<u8>>,
}

/// A workspace, open in this process and no other.
pub struct Workspace {
    /// Dropped first: the views hold ends of the journal.
    pub(super) txns: Mutex<BTreeMap<String, Txn>>,
    pub(super) base: Arc<Base>,
    pub(super) journal: Journal,
    /// Dropped last: it holds the lock.
    pub(super) store: Arc<Store>,
    /// Views without a transaction.
    pub(super) snapshots: Mutex<Vec<Weak<View>>>,
    /// Held by whoever makes the next generation.
    pub(super) gate: Mutex<()>,
    /// Why nothing more is done until the workspace is opened again, once that is so.
    pub(super) fence: OnceLock<Failure>,
    /// The thread that empties the trash.
    sweeper: Mutex<Option<std::thread::JoinHandle<()>>>,
}

impl Drop for Workspace {
    /// Whoever opens the workspace next finds nobody at work in it.
    fn drop(&mut self) {
        self.wait_for_sweeper();
    }
}

/// The journal's failure as one of the command.
pub fn journal_failed(e: &JournalError) -> Failure {
    let damaged = "txfs doctor (the base is untouched, and staged content is kept under its ids in .txfs/staged)";
    let (code, hint) = match e {
        JournalError::Corrupt { .. } | JournalError::Order { .. } => (Code::Corrupt, damaged),
        JournalError::NewerFormat { .. } => {
            (Code::NewerFormat, "install the txfs that wrote it, or a newer one")
        }
        JournalError::NameTaken(_) | JournalError::WrongState { .. } => (Code::Busy, "txfs list"),
        JournalError::NoTxn(_) | JournalError::NoGeneration(_) => (Code::NotFound, "txfs history"),
        JournalError::Failed(_) => (
            Code::Io,
            "make room on the disk, end the runs and mounts, then run the command again: nothing is lost",
        ),
        JournalError::Store { .. } => (Code::Io, damaged),
    };
    Failure::new(code, e.to_string()).hint(hint)
}

pub(super) fn io_failed(what: &str, e: &std::io::Error) -> Failure {
    Failure::new(Code::Io, format!("cannot {what}: {e}")).hint("txfs doctor")
}

/// Refuses workspaces in which nobody wants an undo of everything.
fn check_place(base: &Base, force: bool) -> Result<(), Failure> {
    let path = base.path();
    if force {
        return Ok(());
    }
    let home = std::env::var_os("HOME").map(std::path::PathBuf::from);
    let what = if path == Path::new("/") {
        "the root of the system"
    } else if home.as_deref() == Some(path)
        || path == Path::new("/root")
        || path.parent() == Some(Path::new("/home"))
    {
        "a home directory"
    } else {
        return Ok(());
    };
    Err(Failure::new(Code::Refused, format!("{} is {what}", path.display()))
        .hint("name a project below it, or say --force"))
}

/// Refuses views as workspaces: their files are another transaction's.
fn check_not_a_view(base: &Base) -> Result<(), Failure> {
    let stat = rustix::fs::fstatfs(base.root())
        .map_err(|e| io_failed("look at the workspace", &e.into()))?;
    const FUSE_SUPER_MAGIC: i64 = 0x6573_5546;
    let about = crate::base::xattr::get(base.root(), b"user.txfs.txn");
    if stat.f_type == FUSE_SUPER_MAGIC
        && (about.is_ok_and(|v| v.is_some()) || is_txfs_mount(base.path()))
    {
        return Err(Failure::new(
            Code::Refused,
            format!("{} is inside the view of another transaction", base.path().display()),
        )
        .hint("leave the view, or use its own transaction: txfs status"));
    }
    Ok(())
}

fn is_txfs_mount(path: &Path) -> bool {
    let Ok(mounts) = std::fs::read_to_string("/proc/self/mounts") else { return false };
    let best = mounts
        .lines()
        .filter_map(|l| {
            let mut fields = l.split(' ').skip(1);
            Some((fields.next()?, fields.next()?))
        })
        .filter(|(at, _)| path.starts_with(at))
        .max_by_key(|(at, _)| at.len());
    best.is_some_and(|(_, kind)| kind == "fuse.txfs")
}

/// Checks a transaction's name.
///
/// # Errors
/// [`Code::Usage`]
pub fn check_name(name: &str) -> Result<(), Failure> {
    check_name_of("transaction", name)
}

/// Checks the name of a transaction or of something in it.
pub(super) fn check_name_of(what: &str, name: &str) -> Result<(), Failure> {
    let good = !name.is_empty()
        && name.len() <= 64
        && !name.starts_with(['.', '-'])
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b));
    if good {
        return Ok(());
    }
    Err(Failure::new(Code::Usage, format!("{name:?} is no name for a {what}"))
        .hint("use 1 to 64 letters, digits, '.', '_' and '-', not beginning with '.' or '-'"))
}

impl Workspace {
    /// Opens a workspace and finishes what a crash left unfinished.
    ///
    /// # Errors
    /// [`Code::NotFound`], [`Code::Refused`], [`Code::Busy`], [`Code::Corrupt`], [`Code::Io`].
    pub fn open(path: &Path, store: Option<&Path>, force: bool) -> Result<Workspace, Failure> {
        let base = Base::open(path).map_err(|e| {
            let code = match e.raw_os_error() {
                Some(libc::ENOENT | libc::ENOTDIR) => Code::NotFound,
                _ => Code::Io,
            };
            Failure::new(code, format!("cannot open {}: {e}", path.display()))
                .hint("txfs -C DIRECTORY ...")
        })?;
        check_not_a_view(&base)?;
        let place = super::store::place(base.path(), store);
        if !place.is_dir() {
            check_place(&base, force)?;
        }
        let store = Arc::new(Store::open(&base, store)?);
        let journal = Journal::open(&store.journal()).map_err(|e| journal_failed(&e))?;
        store.check_journal(&journal)?;
        let workspace = Workspace {
            base: Arc::new(base),
            store,
            journal,
            txns: Mutex::default(),
            snapshots: Mutex::default(),
            gate: Mutex::new(()),
            fence: OnceLock::new(),
            sweeper: Mutex::new(None),
        };
        workspace.recover()?;
        Ok(workspace)
    }

    /// The base.
    #[must_use]
    pub fn base(&self) -> &Base {
        &self.base
    }

    /// The store.
    #[must_use]
    pub fn store(&self) -> &Store {
        &self.store
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Txn>> {
        self.txns.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn recover(&self) -> Result<(), Failure> {
        let failed = |e: JournalError| journal_failed(&e);
        if self.journal.poison().map_err(failed)?.is_none()
            && let Some(sealed) = self.journal.sealed().map_err(failed)?
        {
            log::info!("finishing the commit of generation {}", sealed.plan().generation);
            self.carry_out(sealed, 0, false)?;
        }
        for head in self.journal.heads().map_err(failed)? {
            match head.state {
                // An undo that did not get as far as its seal.
                TxnState::Open if head.name.starts_with(UNDO) => {
                    self.journal.begin_abort(head.id).map_err(failed)?;
                    self.finish_abort(&head)?;
                }
                TxnState::Open | TxnState::Sealed => {
                    self.lock().insert(head.name.clone(), Txn { head, view: None, mount: None });
                }
                TxnState::Aborting => self.finish_abort(&head)?,
                TxnState::Committed(_) | TxnState::Aborted => {
                    self.journal.forget(head.id).map_err(failed)?
                }
            }
        }
        self.sweep()
    }

    /// Removes what nothing refers to: staging of transactions that ended, trash.
    fn sweep(&self) -> Result<(), Failure> {
        let open: Vec<_> = self.lock().values().map(|t| t.head.id).collect();
        for txn in self.store.staged().map_err(|e| io_failed("list the store", &e))? {
            // What the journal does not know and holds something is nothing to throw away.
            if !open.contains(&txn) && self.store.bytes_of_files(&format!("staged/{txn}")) == 0 {
                self.store
                    .discard_staging(txn)
                    .map_err(|e| io_failed("clear the staging area", &e))?;
            }
        }
        self.empty_trash_later();
        Ok(())
    }

    pub(super) fn empty_trash_later(&self) {
        self.wait_for_sweeper();
        let store = Arc::clone(&self.store);
        let started = std::thread::Builder::new().name("trash".into()).spawn(move || {
            if let Err(e) = store.empty_trash() {
                // What cannot go now goes at the next chance.
                log::warn!("the trash of the store: {e}");
            }
        });
        match started {
            Ok(thread) => {
                *self.sweeper.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread);
            }
            Err(e) => log::warn!("the trash of the store stays: {e}"),
        }
    }

    fn wait_for_sweeper(&self) {
        let thread = self.sweeper.lock().unwrap_or_else(PoisonError::into_inner).take();
        if thread.is_some_and(|t| t.join().is_err()) {
            log::error!("the thread that empties the trash panicked");
        }
    }

    /// Refuses while the workspace is poisoned, or a decided commit waits for the next opening.
    pub(super) fn check_sound(&self) -> Result<(), Failure> {
        if let Some(failure) = self.fence.get() {
            return Err(failure.clone());
        }
        match self.journal.poison().map_err(|e| journal_failed(&e))? {
            None => {}
            Some(why) => {
                return Err(Failure::new(
                    Code::Blocked,
                    format!("the workspace is blocked: {why}"),
                )
                .hint("txfs doctor says which versions there are and what to run"));
            }
        }
        self.check_store()
    }

    /// Refuses to work on a store that is no longer in its place, or with a journal that failed.
    ///
    /// # Errors
    /// [`Code::Blocked`] or [`Code::Io`].
    pub fn check_store(&self) -> Result<(), Failure> {
        self.journal.check_alive().map_err(|e| journal_failed(&e))?;
        match self.store.is_in_place() {
            Ok(true) => Ok(()),
            Ok(false) => Err(Failure::new(
                Code::Blocked,
                format!(
                    "the store {} was removed or replaced while it was in use",
                    self.store.path().display()
                ),
            )
            .hint("txfs __stop --force, then begin anew; the base is untouched")),
            Err(e) => Err(io_failed("look at the store", &e)),
        }
    }

    /// The newest generation.
    ///
    /// # Errors
    /// If the journal cannot be read.
    pub fn live(&self) -> Result<Generation, Failure> {
        self.journal.live().map_err(|e| journal_failed(&e))
    }

    /// Begins a transaction.
    ///
    /// # Errors
    /// [`Code::Usage`] for a bad name, [`Code::Busy`] if it is open.
    pub fn begin(&self, name: &str, uid: u32) -> Result<TxnInfo, Failure> {
        check_name(name)?;
        self.check_sound()?;
        let mut txns = self.lock();
        let head = match self.journal.begin(name, uid, now()) {
            Ok(head) => head,
            Err(JournalError::NameTaken(_)) => {
                return Err(Failure::new(
                    Code::Busy,
                    format!("transaction \"{name}\" is open already"),
                )
                .hint(format!("txfs status --txn {name}, or txfs begin --txn ANOTHER")));
            }
            Err(e) => return Err(journal_failed(&e)),
        };
        txns.insert(name.to_owned(), Txn { head, view: None, mount: None });
        drop(txns);
        self.info(name, uid)
    }

    /// An open transaction that `uid` may use. `main` is begun if it is not open.
    pub(super) fn txn(&self, name: &str, uid: u32) -> Result<Txn, Failure> {
        check_name(name)?;
        // What its view shows may be half of one generation and half of another.
        if let Some(failure) = self.fence.get() {
            return Err(failure.clone());
        }
        let found = self.lock().get(name).cloned();
        let txn = match found {
            Some(txn) => txn,
            None if name == MAIN => {
                self.ensure(name, uid)?;
                return self.txn(name, uid);
            }
            None => {
                return Err(Failure::new(
                    Code::NotFound,
                    format!("no open transaction \"{name}\""),
                )
                .hint("txfs list, or txfs begin --txn NAME"));
            }
        };
        if uid != 0 && uid != txn.head.owner {
            // Others do not learn that it exists.
            return Err(Failure::new(Code::NotFound, format!("no open transaction \"{name}\""))
                .hint("txfs list, or txfs begin --txn NAME"));
        }
        Ok(txn)
    }

    /// Begins a transaction unless it is open.
    ///
    /// # Errors
    /// As [`Workspace::begin`].
    pub fn ensure(&self, name: &str, uid: u32) -> Result<(), Failure> {
        check_name(name)?;
        let there = self.lock().contains_key(name);
        if there {
            return self.txn(name, uid).map(drop);
        }
        match self.begin(name, uid) {
            // Somebody else was faster.
            Err(failure) if failure.code == Code::Busy => self.txn(name, uid).map(drop),
            other => other.map(drop),
        }
    }

    /// The view of a transaction.
    ///
    /// # Errors
    /// If its records do not decode or its staged files are gone.
    pub fn view(&self, name: &str, uid: u32) -> Result<Arc<View>, Failure> {
        let txn = self.txn(name, uid)?;
        if let Some(view) = txn.view {
            return Ok(view);
        }
        let _gate = self.gate.lock().unwrap_or_else(PoisonError::into_inner);
        let mut txns = self.lock();
        let txn = txns.get_mut(name).ok_or_else(|| {
            Failure::new(Code::NotFound, format!("no open transaction \"{name}\""))
                .hint("txfs list")
        })?;
        if let Some(view) = &txn.view {
            return Ok(Arc::clone(view));
        }
        if txn.head.base != self.live()? && self.is_untouched(&txn.head)? {
            txn.head = self.renew(&txn.head)?;
        }
        let view = Arc::new(self.build_view(&txn.head)?);
        txn.view = Some(Arc::clone(&view));
        Ok(view)
    }

    /// Whether a transaction has no effect that holds.
    fn is_untouched(&self, head: &TxnHead) -> Result<bool, Failure> {
        let records = self.journal.records(head.id).map_err(|e| journal_failed(&e))?;
        Ok(crate::view::delta::live_before(&records).is_empty())
    }

    /// Puts an untouched transaction on the live generation: nothing is lost by beginning again.
    fn renew(&self, head: &TxnHead) -> Result<TxnHead, Failure> {
        self.journal.begin_abort(head.id).map_err(|e| journal_failed(&e))?;
        let next = self.journal.succeed(head, now()).map_err(|e| journal_failed(&e))?;
        self.finish_abort(head)?;
        Ok(next)
    }

    fn build_view(&self, head: &TxnHead) -> Result<View, Failure> {
        let failed = |e: JournalError| journal_failed(&e);
        let records = self.journal.records(head.id).map_err(failed)?;
        let mut layers = Vec::new();
        let mut generation = head.base.next();
        let live = self.live()?;
        while generation <= live {
            let record = self.journal.generation(generation).map_err(failed)?;
            self.remember_moves(&record.plan);
            layers.push(Arc::new(Layer::new(&record.plan)));
            generation = generation.next();
        }
        let staging =
            self.store.staging(head.id).map_err(|e| io_failed("open the staging area", &e))?;
        let parts = Parts {
            base: Arc::clone(&self.base),
            history: Arc::clone(self.store.history()),
            staging: Arc::new(staging),
            writer: self.journal.writer(head.id).map_err(failed)?,
            records,
            generation: head.base,
            layers,
        };
        View::open(parts).map_err(|e| {
            Failure::new(
                Code::Corrupt,
                format!("transaction \"{}\" cannot be rebuilt: {e}", head.name),
            )
            .hint("txfs doctor (the base is untouched, and staged content is kept)")
        })
    }

    /// Where the generations from one on left things, and in what state, by inode, they left what is in the
    /// base. What a generation displaced is in its own slots or in those of later ones, and what it placed is
    /// on its record: an undo need not know what came before the oldest that it takes back.
    pub(super) fn left_since(
        &self,
        first: Generation,
    ) -> Result<(super::undo::Held, HashMap<u64, Fingerprint>), Failure> {
        let failed = |e: JournalError| journal_failed(&e);
        let restamped = self.restamped()?;
        let mut held = super::undo::Held::default();
        let mut known = HashMap::new();
        let all = self.journal.generations().map_err(failed)?;
        for generation in all.into_iter().filter(|g| *g >= first) {
            let record = self.journal.generation(generation).map_err(failed)?;
            held.remember(generation, &record.plan.steps);
            self.remember_moves(&record.plan);
            if !record.pruned {
                known.extend(record.after.iter().map(|(_, print)| {
                    (print.ident.ino, super::validate::with_our_stamp(print, &restamped))
                }));
            }
        }
        Ok((held, known))
    }

    /// Says where a generation took things. In between they are said to be where they no longer are.
    pub(super) fn remember_moves(&self, plan: &Plan) {
        let _moving = self.base.moving();
        for step in &plan.steps {
            self.remember_move(plan.generation, step);
        }
    }

    fn remember_move(&self, generation: Generation, step: &Step) {
        match step {
            Step::Fetch { from, from_slot, slot, ident } => {
                self.base.moves(ident.ino, Whereabouts::Slot(generation, *slot));
                self.base.fetches((*from, *from_slot), (generation, *slot));
            }
            Step::Evacuate { from, slot, ident, .. } => {
                self.base.moves(ident.ino, Whereabouts::Slot(generation, *slot));
                if ident.kind == Kind::Dir {
                    self.base.dir_leaves(&from.path, (generation, *slot));
                }
            }
            Step::Place { slot, to, ident } => {
                self.base.moves(ident.ino, Whereabouts::Base(to.path.clone()));
                if ident.kind == Kind::Dir {
                    self.base.dir_comes((generation, *slot), &to.path);
                }
            }
            Step::Exchange { slot, at, new, old, .. } => {
                self.base.moves(old.ino, Whereabouts::Slot(generation, *slot));
                if old.kind == Kind::Dir {
                    self.base.dir_leaves(&at.path, (generation, *slot));
                }
                self.base.moves(new.ino, Whereabouts::Base(at.path.clone()));
            }
            Step::Unlink { existing, ident, .. } => {
                self.base.moves(ident.ino, Whereabouts::Base(existing.path.clone()));
            }
            Step::Link { .. } | Step::Rewrite { .. } | Step::SetMeta { .. } | Step::Barrier => {}
        }
    }

    /// A transaction in words.
    ///
    /// # Errors
    /// If it is not open.
    pub fn info(&self, name: &str, uid: u32) -> Result<TxnInfo, Failure> {
        let txn = self.txn(name, uid)?;
        let live = self.live()?;
        let effects = match &txn.view {
            Some(view) => view.effects(),
            None => self.journal.records(txn.head.id).map_err(|e| journal_failed(&e))?.len() as u64,
        };
        let state = match txn.head.state {
            TxnState::Open => "open",
            TxnState::Sealed => "sealed",
            TxnState::Aborting => "aborting",
            TxnState::Committed(_) => "committed",
            TxnState::Aborted => "aborted",
        };
        Ok(TxnInfo {
            txn: txn.head.name.clone(),
            id: txn.head.id.0,
            owner: txn.head.owner,
            state: state.into(),
            base_generation: txn.head.base.0,
            generation: live.0,
            stale: txn.head.base != live,
            began: txn.head.began.secs,
            effects,
            staged_bytes: self.store.bytes_of_files(&format!("staged/{}", txn.head.id)),
            mount: txn.mount.map(crate::proto::PathBytes),
        })
    }

    /// Names of the transactions that `uid` may see.
    #[must_use]
    pub fn names(&self, uid: u32) -> Vec<String> {
        self.lock()
            .values()
            .filter(|t| uid == 0 || t.head.owner == uid)
            .map(|t| t.head.name.clone())
            .collect()
    }

    /// Says where a transaction is mounted.
    pub fn set_mount(&self, name: &str, at: Option<Vec<u8>>) {
        if let Some(txn) = self.lock().get_mut(name) {
            txn.mount = at;
        }
    }

    /// Whether a plain mount of a transaction's view is noted.
    pub fn has_mount(&self, name: &str) -> bool {
        self.lock().get(name).is_some_and(|txn| txn.mount.is_some())
    }

    pub(super) fn finish_abort(&self, head: &TxnHead) -> Result<(), Failure> {
        self.store.discard_staging(head.id).map_err(|e| io_failed("clear the staging area", &e))?;
        failpoint("abort.staging");
        self.journal.finish_abort(head.id).map_err(|e| journal_failed(&e))?;
        failpoint("abort.finished");
        self.journal.forget(head.id).map_err(|e| journal_failed(&e))
    }

    /// What was done so far survives the end of this process; called when somebody looks or a run ends.
    ///
    /// # Errors
    /// If the journal cannot be written.
    pub fn hand_over(&self) -> Result<(), Failure> {
        self.journal.hand_over().map_err(|e| journal_failed(&e))
    }

    /// Hands what is queued to the disk, before the process ends.
    ///
    /// # Errors
    /// If the journal cannot be written.
    pub fn close(&self) -> Result<(), Failure> {
        self.journal.make_durable().map_err(|e| journal_failed(&e))
    }
}
