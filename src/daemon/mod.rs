//! One process a workspace: control socket, sessions, life and death.
//!
//! Every verb goes through it, so that there is one opener of the store and one path of code. It is
//! started by the first verb that finds none, and ends two seconds after its last connection and
//! mount.

pub mod client;
mod dispatch;
pub mod place;
pub mod wire;

use std::collections::HashMap;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::fuse::{self, About};
use crate::proto::{Code, Failure, MAX_FRAME, PathBytes};
use crate::sys;
use crate::txn::Workspace;
use wire::Wire;

/// How long a daemon without connections and mounts stays.
const LINGER: Duration = Duration::from_secs(2);
/// How long a client may take over its request.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a command waits for the end of a view that nobody is in.
const ENDING: Duration = Duration::from_secs(2);
/// Connections at one time; further ones wait in the socket's queue.
const CONNECTIONS: usize = 256;
/// Bytes read from somebody who is not answered.
const STRANGER: u32 = 64 << 10;
/// Bytes of log from which on a new daemon begins a new one.
const LOG_BYTES: u64 = 1 << 20;
/// How long no connection is accepted after that has failed (no descriptor left, say).
const BREATHER: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// A view being served.
#[derive(Debug, Default)]
struct Session {
    /// Processes whose connections stay open because the view stands in their namespaces.
    runners: Vec<u32>,
    passthrough: bool,
}

/// The daemon.
pub struct Daemon {
    workspace: Workspace,
    socket: PathBuf,
    sessions: Mutex<HashMap<String, Session>>,
    /// A session has ended.
    ended: Condvar,
    connections: AtomicUsize,
    wake: Mutex<UnixStream>,
    mounting: Mutex<()>,
}

/// Runs the daemon until it has nothing to do. `ready` gets the word `ready`, or a [`Failure`] as JSON.
///
/// # Errors
/// What has been told to `ready` too.
pub fn serve(
    path: &Path,
    store: Option<&Path>,
    force: bool,
    ready: OwnedFd,
) -> Result<(), Failure> {
    let mut ready = std::fs::File::from(ready);
    let prepared = prepare(path, store, force);
    let told = match &prepared {
        Ok(_) => ready.write_all(b"ready"),
        Err(failure) => {
            serde_json::to_vec(failure).map_err(io::Error::from).and_then(|f| ready.write_all(&f))
        }
    };
    drop(ready);
    if let Err(e) = told {
        log::warn!("whoever started the daemon is gone: {e}");
    }
    let (daemon, listener, woken) = prepared?;
    daemon.run(&listener, &woken)
}

fn io_failed(what: &str, e: &io::Error) -> Failure {
    Failure::new(Code::Io, format!("cannot {what}: {e}")).hint("txfs doctor")
}

fn prepare(
    path: &Path,
    store: Option<&Path>,
    force: bool,
) -> Result<(Arc<Daemon>, UnixListener, UnixStream), Failure> {
    rustix::process::umask(rustix::fs::Mode::empty());
    let limit = getrlimit(Resource::Nofile);
    if let Err(e) =
        setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })
    {
        log::debug!("the limit on open files stays: {e}");
    }
    spare_from_oom();
    // A lease that is broken sends this, and its default is death.
    sys::ignore_signal(libc::SIGIO, true);
    sys::ignore_signal(libc::SIGHUP, true);
    let workspace = Workspace::open(path, store, force)?;
    log_to(&workspace.store().path().join("daemon.log"));
    let socket = place::own_socket(workspace.base().path())?;
    // The store's lock is ours, so nobody listens there any more.
    match std::fs::remove_file(&socket) {
        Ok(()) => {}
        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
        Err(e) => return Err(io_failed("remove the old socket", &e)),
    }
    let listener = UnixListener::bind(&socket).map_err(|e| io_failed("listen", &e))?;
    let mode = if rustix::process::geteuid().is_root() { 0o666 } else { 0o600 };
    std::fs::set_permissions(&socket, std::fs::Permissions::from_mode(mode))
        .map_err(|e| io_failed("listen", &e))?;
    listener.set_nonblocking(true).map_err(|e| io_failed("listen", &e))?;
    let record = place::record(workspace.store().path());
    std::fs::write(&record, socket.as_os_str().as_bytes())
        .map_err(|e| io_failed("record the socket", &e))?;
    let (wake, woken) = UnixStream::pair().map_err(|e| io_failed("make a socket pair", &e))?;
    woken.set_nonblocking(true).map_err(|e| io_failed("make a socket pair", &e))?;
    let term = wake.try_clone().map_err(|e| io_failed("make a socket pair", &e))?;
    signal_hook::low_level::pipe::register(signal_hook::consts::SIGTERM, term)
        .map_err(|e| io_failed("take signals", &e))?;
    let daemon = Arc::new(Daemon {
        workspace,
        socket,
        sessions: Mutex::default(),
        connections: AtomicUsize::new(0),
        wake: Mutex::new(wake),
        ended: Condvar::new(),
        mounting: Mutex::new(()),
    });
    Ok((daemon, listener, woken))
}

/// Asks the kernel to end others first when memory is short: with us all views die. Only root may
/// ask for that; everybody may give up a worse place than the usual one.
fn spare_from_oom() {
    let ask = |score: &str| std::fs::write("/proc/self/oom_score_adj", score);
    if let Err(e) = ask("-900").or_else(|_| ask("0")) {
        log::debug!("oom_score_adj stays: {e}");
    }
}

/// Sends the log to a file from here on: standard error leads nowhere.
fn log_to(path: &Path) {
    if std::fs::metadata(path).is_ok_and(|m| m.len() > LOG_BYTES)
        && let Err(e) = std::fs::rename(path, path.with_extension("log.1"))
    {
        log::warn!("{}: {e}", path.display());
    }
    let opened = std::fs::File::options().create(true).append(true).open(path);
    match opened {
        Ok(file) => {
            for number in [1, 2] {
                if let Err(e) = sys::move_fd(std::os::fd::AsRawFd::as_raw_fd(&file), number) {
                    log::warn!("{e}");
                }
            }
        }
        Err(e) => log::warn!("{}: {e}", path.display()),
    }
}

/// What came of accepting.
#[derive(Clone, Copy, Debug, Default)]
struct Accepted {
    /// There was a connection.
    any: bool,
    /// There is one that could not be taken.
    failed: bool,
}

impl Daemon {
    fn sessions(&self) -> MutexGuard<'_, HashMap<String, Session>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self, why: u8) {
        let mut wake = self.wake.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(e) = wake.write_all(&[why]) {
            log::warn!("{e}");
        }
    }

    fn is_idle(&self) -> bool {
        self.connections.load(Ordering::SeqCst) == 0 && self.sessions().is_empty()
    }

    fn run(
        self: &Arc<Daemon>,
        listener: &UnixListener,
        mut woken: &UnixStream,
    ) -> Result<(), Failure> {
        let linger = Timespec { tv_sec: LINGER.as_secs() as i64, tv_nsec: 0 };
        let (mut ending, mut tired) = (false, false);
        loop {
            let full = self.connections.load(Ordering::SeqCst) >= CONNECTIONS;
            let mut fds = vec![PollFd::new(woken, PollFlags::IN)];
            if !tired && !full {
                fds.push(PollFd::new(listener, PollFlags::IN));
            }
            let timeout = match (tired, self.is_idle()) {
                (true, _) => Some(&BREATHER),
                (false, true) => Some(&linger),
                (false, false) => None,
            };
            let ready = match poll(&mut fds, timeout) {
                Ok(n) => n,
                Err(rustix::io::Errno::INTR) => continue,
                Err(e) => return Err(io_failed("wait", &e.into())),
            };
            let mut buf = [0u8; 64];
            if let Ok(n) = io::Read::read(&mut woken, &mut buf) {
                // signal-hook writes an X for SIGTERM.
                ending |= buf[..n].contains(&b'X');
            }
            let accepted = self.accept_all(listener);
            let rested = std::mem::replace(&mut tired, accepted.failed);
            let idle = ready == 0 && !rested && self.is_idle() && !accepted.any;
            if ending || idle {
                // Whoever connected before the socket went is still served.
                self.remove_socket();
                if !self.accept_all(listener).any || ending {
                    break;
                }
            }
        }
        self.workspace.close()
    }

    fn accept_all(self: &Arc<Daemon>, listener: &UnixListener) -> Accepted {
        let mut accepted = Accepted::default();
        while self.connections.load(Ordering::SeqCst) < CONNECTIONS {
            let stream = match listener.accept() {
                Ok((stream, _)) => stream,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(e) if e.kind() == io::ErrorKind::ConnectionAborted => continue,
                Err(e) => {
                    log::error!("cannot take a connection: {e}");
                    accepted.failed = true;
                    break;
                }
            };
            accepted.any = true;
            self.connections.fetch_add(1, Ordering::SeqCst);
            let daemon = Arc::clone(self);
            let started = std::thread::Builder::new().name("verb".into()).spawn(move || {
                if let Err(e) = stream.set_nonblocking(false).and_then(|()| daemon.converse(stream))
                {
                    log::debug!("a client went away: {e}");
                }
                daemon.connections.fetch_sub(1, Ordering::SeqCst);
                daemon.wake(b'.');
            });
            if let Err(e) = started {
                log::error!("{e}");
                self.connections.fetch_sub(1, Ordering::SeqCst);
            }
        }
        accepted
    }

    fn remove_socket(&self) {
        for path in [self.socket.clone(), place::record(self.workspace.store().path())] {
            match std::fs::remove_file(&path) {
                Ok(()) => {}
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                Err(e) => log::warn!("{}: {e}", path.display()),
            }
        }
    }

    /// Whether a uid is answered at all: root, the daemon's own, and where the daemon is root's those
    /// who may write the workspace.
    fn is_welcome(&self, uid: u32, gid: u32) -> bool {
        let own = rustix::process::geteuid().as_raw();
        if uid == 0 || uid == own {
            return true;
        }
        let Ok(meta) = std::fs::metadata(self.workspace.base().path()) else { return false };
        own == 0
            && (uid == meta.uid()
                || meta.mode() & 0o002 != 0
                || (gid == meta.gid() && meta.mode() & 0o020 != 0))
    }

    fn converse(self: &Arc<Daemon>, stream: UnixStream) -> io::Result<()> {
        let peer = rustix::net::sockopt::socket_peercred(&stream)?;
        let (uid, gid, pid) =
            (peer.uid.as_raw(), peer.gid.as_raw(), peer.pid.as_raw_nonzero().get());
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut wire = Wire::new(stream);
        let welcome = self.is_welcome(uid, gid);
        let limit = if welcome { MAX_FRAME } else { STRANGER };
        let Some(frame) = wire.receive_at_most(limit)? else { return Ok(()) };
        wire.stream().set_read_timeout(None)?;
        if !welcome {
            let failure = Failure::new(
                Code::NotPermitted,
                format!("this workspace's daemon does not answer uid {uid}"),
            )
            .hint("ask the workspace's owner");
            return wire.send_json(&crate::proto::Reply::Failed(failure), None);
        }
        let request = Wire::parse(&frame)?;
        dispatch::answer(self, &mut wire, &request, frame.fd, uid, u32::try_from(pid).unwrap_or(0))
    }

    /// Waits for the end of a session that nobody is in any more: the kernel takes a run's mount down
    /// some time after the last process in its namespace has been waited for.
    fn await_ending(&self, txn: &str) {
        self.await_end(txn, |session| {
            session.runners.retain(|pid| sys::is_alive(*pid));
            session.runners.is_empty() && !self.workspace.has_mount(txn)
        });
    }

    /// Waits for the end of a session whose mount a client has just taken away. It lives on, detached, if
    /// it is in use.
    fn await_unmounted(&self, txn: &str) {
        self.await_end(txn, |_| true);
    }

    /// Waits for the end of a session, for some time and as long as it seems to end.
    fn await_end(&self, txn: &str, mut ends: impl FnMut(&mut Session) -> bool) {
        let from = Instant::now();
        let mut sessions = self.sessions();
        while let Some(session) = sessions.get_mut(txn) {
            let left = ENDING.saturating_sub(from.elapsed());
            if left.is_zero() || !ends(session) {
                return;
            }
            sessions = match self.ended.wait_timeout(sessions, left) {
                Ok((guard, _)) => guard,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
    }

    /// Serves a view on a FUSE connection, that the client is going to attach at a path (empty
    /// for a run). Answers whether file data bypasses the daemon.
    fn begin_session(
        self: &Arc<Daemon>,
        txn: &str,
        uid: u32,
        device: OwnedFd,
        at: &PathBytes,
    ) -> Result<bool, Failure> {
        let view = self.workspace.view(txn, uid)?;
        let about = About {
            workspace: self.workspace.base().path().as_os_str().as_bytes().to_vec(),
            txn: txn.to_owned(),
            socket: self.socket.as_os_str().as_bytes().to_vec(),
        };
        let allow = rustix::process::geteuid().is_root()
            && std::env::var_os("TXFS_NO_PASSTHROUGH").is_none();
        self.sessions().insert(txn.to_owned(), Session::default());
        // Before the session begins, whose end takes it back.
        if !at.0.is_empty() {
            self.workspace.set_mount(txn, Some(at.0.clone()));
        }
        let (daemon, name) = (Arc::clone(self), txn.to_owned());
        let served = fuse::serve(&view, device, about, allow, move || {
            daemon.workspace.set_mount(&name, None);
            daemon.sessions().remove(&name);
            daemon.ended.notify_all();
            daemon.wake(b'.');
        });
        match served {
            Ok(served) => {
                if let Some(session) = self.sessions().get_mut(txn) {
                    session.passthrough = served.passthrough;
                }
                Ok(served.passthrough)
            }
            Err(e) => {
                self.sessions().remove(txn);
                self.workspace.set_mount(txn, None);
                Err(Failure::new(
                    Code::Unavailable,
                    format!("the kernel does not talk FUSE with us: {e}"),
                )
                .hint("txfs doctor"))
            }
        }
    }
}
