//! Which process causes an effect: looked up in /proc once a process, before any lock is taken.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use txfs_journal::{Entry, JournalError, ProcId, TxnWriter};

use super::state::now;

/// Bytes of a command line that are kept.
const ARGV: usize = 4096;
/// Parents followed at most.
const PARENTS: usize = 32;
/// For so long a process is taken to execute what it did.
const EXECUTES: Duration = Duration::from_millis(2);
/// For so long a thread's number is taken to mean the same thread: numbers are given out in turn.
const MEANS: Duration = Duration::from_millis(100);
/// Threads and processes remembered.
const KEPT: usize = 4096;

/// A process at one moment: the same one that executes another program is another here.
#[derive(Debug)]
pub(super) struct Process {
    /// Differs between any two.
    id: u64,
    pid: u32,
    start: u64,
    exe: Vec<u8>,
    argv: Vec<u8>,
    parent: Option<Arc<Process>>,
}

#[derive(Debug)]
struct Seen {
    /// When /proc was asked for all of it.
    looked: Instant,
    /// When it was asked for the executable.
    checked: Instant,
    process: Arc<Process>,
}

/// The processes seen by a view.
#[derive(Debug, Default)]
pub(super) struct Processes {
    next: AtomicU64,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    threads: HashMap<u32, Seen>,
    processes: HashMap<u32, Arc<Process>>,
}

thread_local! {
    /// On whose behalf this thread works.
    static ACTING: RefCell<Option<Arc<Process>>> = const { RefCell::new(None) };
}

/// What /proc says of a process; what it does not say is empty.
struct Facts {
    pid: u32,
    parent: u32,
    start: u64,
    exe: Vec<u8>,
}

impl Facts {
    /// Of the process that has a thread; `None` if there is none.
    fn of(thread: u32) -> Option<Facts> {
        let status = std::fs::read_to_string(format!("/proc/{thread}/status")).ok()?;
        let field = |name: &str| {
            let line = status.lines().find_map(|l| l.strip_prefix(name))?;
            line.trim().parse::<u32>().ok()
        };
        let pid = field("Tgid:")?;
        let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
        // The name, in parentheses, may hold anything.
        let after = stat.iter().rposition(|&b| b == b')')?;
        let rest = std::str::from_utf8(stat.get(after + 2..)?).ok()?;
        // Field 22 of proc_pid_stat(5); the state after the name is field 3.
        let start = rest.split(' ').nth(19)?.parse().ok()?;
        Some(Facts { pid, parent: field("PPid:").unwrap_or(0), start, exe: executable(pid) })
    }
}

/// What a process executes; empty where that is not told.
fn executable(pid: u32) -> Vec<u8> {
    use std::os::unix::ffi::OsStringExt;
    std::fs::read_link(format!("/proc/{pid}/exe"))
        .map_or_else(|_| Vec::new(), |p| p.into_os_string().into_vec())
}

impl Processes {
    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// This thread works for a thread of another process from now on; 0 is nobody who is known.
    pub(super) fn act_for(&self, thread: u32) {
        let process = if thread == 0 { None } else { self.process_of(thread) };
        ACTING.set(process);
    }

    fn process_of(&self, thread: u32) -> Option<Arc<Process>> {
        let at = Instant::now();
        if let Some(seen) = self.lock().threads.get_mut(&thread)
            && at.duration_since(seen.looked) < MEANS
        {
            if at.duration_since(seen.checked) < EXECUTES {
                return Some(Arc::clone(&seen.process));
            }
            if executable(thread) == seen.process.exe {
                seen.checked = at;
                return Some(Arc::clone(&seen.process));
            }
        }
        let process = self.look(thread, PARENTS)?;
        let mut known = self.lock();
        if known.threads.len() >= KEPT {
            known.threads.clear();
            known.processes.clear();
        }
        known
            .threads
            .insert(thread, Seen { looked: at, checked: at, process: Arc::clone(&process) });
        Some(process)
    }

    /// The process of a thread with its parents, up to the program that runs commands in views.
    fn look(&self, thread: u32, parents: usize) -> Option<Arc<Process>> {
        let facts = Facts::of(thread)?;
        if let Some(known) = self.lock().processes.get(&facts.pid)
            && (known.start, &known.exe) == (facts.start, &facts.exe)
        {
            return Some(Arc::clone(known));
        }
        let mut argv = std::fs::read(format!("/proc/{}/cmdline", facts.pid)).unwrap_or_default();
        argv.truncate(ARGV);
        let ours = std::env::current_exe().is_ok_and(|own| {
            std::os::unix::ffi::OsStrExt::as_bytes(own.as_os_str()) == facts.exe.as_slice()
        });
        let last = ours || facts.parent <= 1 || parents == 0;
        let parent = if last { None } else { self.look(facts.parent, parents - 1) };
        let process = Arc::new(Process {
            id: self.next.fetch_add(1, Ordering::Relaxed),
            pid: facts.pid,
            start: facts.start,
            exe: facts.exe,
            argv,
            parent,
        });
        self.lock().processes.insert(facts.pid, Arc::clone(&process));
        Some(process)
    }
}

/// The processes that a transaction's list has.
#[derive(Debug, Default)]
pub(super) struct Recorded {
    /// Highest number in the list.
    last: u32,
    ids: HashMap<u64, ProcId>,
}

impl Recorded {
    /// Goes on after those that a list has already.
    pub(super) fn after(records: &[txfs_journal::Record]) -> Recorded {
        let is_process = |r: &&txfs_journal::Record| matches!(r.entry, Entry::Process { .. });
        let count = records.iter().filter(is_process).count();
        Recorded { last: u32::try_from(count).unwrap_or(u32::MAX), ids: HashMap::new() }
    }

    /// The number of the process that this thread works for, recorded first if it is not yet; 0 if
    /// that is not known.
    ///
    /// # Errors
    /// If it cannot be recorded.
    pub(super) fn acting(&mut self, writer: &TxnWriter) -> Result<ProcId, JournalError> {
        match ACTING.with_borrow(Clone::clone) {
            Some(process) => self.number(writer, &process),
            None => Ok(ProcId(0)),
        }
    }

    fn number(&mut self, writer: &TxnWriter, process: &Process) -> Result<ProcId, JournalError> {
        if let Some(known) = self.ids.get(&process.id) {
            return Ok(*known);
        }
        let parent = match &process.parent {
            Some(parent) => Some(self.number(writer, parent)?),
            None => None,
        };
        let proc = ProcId(self.last + 1);
        let entry = Entry::Process {
            proc,
            pid: process.pid,
            parent,
            exe: process.exe.clone(),
            argv: process.argv.clone(),
        };
        writer.append(now(), &entry)?;
        self.last = proc.0;
        self.ids.insert(process.id, proc);
        Ok(proc)
    }
}
