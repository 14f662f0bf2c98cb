//! From requests to verbs, and their answers.

use std::io::{self, Seek};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::Daemon;
use super::wire::Wire;
use crate::fuse::mount;
use crate::proto::{
    ChangesReply, Code, DaemonReply, Failure, FrameKind, MountHow, MountReply, PathBytes, Reply,
    Request, Verb,
};
use crate::txn::Workspace;
use crate::txn::verbs::CommitOptions;

/// Bytes that are sent in one data frame.
const PIECE: usize = 256 << 10;
/// Bytes of an output that are kept in memory; what is longer goes through a file that has no name.
const IN_MEMORY: usize = 4 << 20;

/// Answers one request.
///
/// # Errors
/// If the client is gone.
pub(super) fn answer(
    daemon: &Arc<Daemon>,
    wire: &mut Wire,
    request: &Request,
    fd: Option<OwnedFd>,
    uid: u32,
    pid: u32,
) -> io::Result<()> {
    if request.version != env!("CARGO_PKG_VERSION") {
        let what = format!(
            "the daemon is txfs {}, this is {}",
            env!("CARGO_PKG_VERSION"),
            request.version
        );
        let failure =
            Failure::new(Code::Busy, what).hint("txfs __stop, then run the command again");
        return wire.send_json(&Reply::Failed(failure), None);
    }
    if end_if_lost(daemon, wire)? {
        return Ok(());
    }
    if let Verb::Mount { how, at } = &request.verb {
        return serve_mount(daemon, wire, &request.txn, *how, at, fd, uid, pid);
    }
    let stop = matches!(request.verb, Verb::Stop { .. });
    let reply = perform(daemon, wire, request, uid).unwrap_or_else(Reply::Failed);
    let stopped = stop && !matches!(reply, Reply::Failed(_));
    if stopped {
        daemon.remove_socket();
        if let Err(e) = daemon.workspace.close() {
            log::error!("{e}");
        }
    }
    let sent = wire.send_json(&reply, None);
    if matches!(reply, Reply::Failed(_)) && is_lost(daemon).is_some() {
        // A full disk, say: who comes next finds a daemon that reads what there is.
        daemon.remove_socket();
        std::process::exit(0);
    }
    if stopped {
        // Sessions that are left answer ENOTCONN from here on: nothing is written past the journal.
        std::process::exit(0);
    }
    sent
}

/// Why this daemon is of use to nobody, if it is: its store was removed or its journal could not be
/// written, and it serves no view. It ends then, and the next command starts one that opens what there is.
fn is_lost(daemon: &Daemon) -> Option<Failure> {
    daemon.workspace.check_store().err().filter(|_| daemon.sessions().is_empty())
}

fn end_if_lost(daemon: &Daemon, wire: &mut Wire) -> io::Result<bool> {
    let Some(failure) = is_lost(daemon) else { return Ok(false) };
    log::warn!("ending: {failure}");
    daemon.remove_socket();
    let failure = Failure::new(failure.code, format!("{}; its daemon ends now", failure.message))
        .hint("run the command again");
    wire.send_json(&Reply::Failed(failure), None)?;
    std::process::exit(0)
}

fn perform(
    daemon: &Arc<Daemon>,
    wire: &mut Wire,
    request: &Request,
    uid: u32,
) -> Result<Reply, Failure> {
    let ws = &daemon.workspace;
    let txn = request.txn.as_str();
    Ok(match &request.verb {
        Verb::Ping => Reply::Daemon(about(daemon)),
        Verb::Begin => Reply::Txn(ws.begin(txn, uid)?),
        Verb::List => Reply::List(ws.list(uid)?),
        Verb::Status { paths } => Reply::Status(Box::new(ws.status(txn, uid, paths)?)),
        Verb::Diff { form, paths } => {
            let changes = stream(ws, wire, |out| ws.diff(txn, uid, *form, paths, out))?;
            Reply::Changes(ChangesReply { txn: txn.to_owned(), changes })
        }
        Verb::Log { processes } => Reply::Log(ws.log(txn, uid, *processes)?),
        Verb::Trace { path } => Reply::Log(ws.trace(txn, uid, path)?),
        Verb::Show { generation, form } => {
            Reply::Show(stream(ws, wire, |out| ws.show(uid, *generation, *form, out))?)
        }
        Verb::Commit { message, dry_run, rebase, wait, allow_open_writers, history } => {
            let options = CommitOptions {
                message: message.0.clone(),
                dry_run: *dry_run,
                rebase: *rebase,
                wait: *wait,
                allow_open_writers: *allow_open_writers,
                history: *history,
            };
            Reply::Commit(ws.commit(txn, uid, &options)?)
        }
        Verb::Rebase { dry_run } => Reply::Rebase(ws.rebase(txn, uid, *dry_run)?),
        Verb::Abort => Reply::Abort(ws.abort(txn, uid)?),
        Verb::Undo { generation, to, with_dependents, dry_run } => {
            Reply::Undo(ws.undo(txn, uid, *generation, *to, *with_dependents, *dry_run)?)
        }
        Verb::History => Reply::History(ws.history()?),
        Verb::Gc { keep } => {
            ws.check_owner(uid)?;
            Reply::Gc(ws.gc(*keep)?)
        }
        Verb::Doctor { fix } => {
            if *fix {
                ws.check_owner(uid)?;
            }
            Reply::Doctor(ws.doctor(*fix)?)
        }
        Verb::Umount => Reply::Txn(ws.info(txn, uid)?),
        Verb::Unmounted => {
            daemon.await_unmounted(txn);
            Reply::Txn(ws.info(txn, uid)?)
        }
        Verb::Step { what } => Reply::Step(ws.step(txn, uid, what.0.clone())?),
        Verb::Savepoint { name, allow_open_writers } => {
            Reply::Savepoint(ws.savepoint(txn, uid, name.as_deref(), *allow_open_writers)?)
        }
        Verb::Savepoints => Reply::Savepoints(ws.savepoints(txn, uid)?),
        Verb::Rollback { to } => Reply::Rollback(ws.rollback(txn, uid, to)?),
        Verb::Stop { force } => {
            let mounts = daemon.sessions().len();
            if mounts > 0 && !force {
                return Err(Failure::new(Code::Busy, format!("{mounts} views are mounted"))
                    .hint("txfs umount, or end the runs that use them"));
            }
            Reply::Daemon(about(daemon))
        }
        Verb::Mount { .. } => {
            return Err(Failure::new(Code::Internal, "mount is served elsewhere"));
        }
    })
}

fn about(daemon: &Daemon) -> DaemonReply {
    use std::os::unix::ffi::OsStrExt;
    DaemonReply {
        daemon_pid: std::process::id(),
        version: env!("CARGO_PKG_VERSION").into(),
        workspace: PathBytes(daemon.workspace.base().path().as_os_str().as_bytes().to_vec()),
        mounts: u32::try_from(daemon.sessions().len()).unwrap_or(u32::MAX),
    }
}

/// Runs a verb that writes output, and sends it in pieces as it comes.
fn stream<T>(
    ws: &Workspace,
    wire: &mut Wire,
    verb: impl FnOnce(&mut dyn io::Write) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let failed = |what: &str, e: io::Error| Failure::new(Code::Io, format!("{what}: {e}"));
    // The verb has the view stand still, and whoever reads its output may take his time.
    // The store is of the right owner and in no view; a file of the environment's choice might be in the base.
    let mut whole = tempfile::spooled_tempfile_in(IN_MEMORY, ws.store().path());
    let result = verb(&mut whole)?;
    whole.rewind().map_err(|e| failed("the output cannot be kept", e))?;
    let mut out = io::BufWriter::with_capacity(PIECE, Frames(wire));
    io::copy(&mut whole, &mut out)
        .and_then(|_| io::Write::flush(&mut out))
        .map_err(|e| failed("the client does not take the output", e))?;
    Ok(result)
}

struct Frames<'a>(&'a mut Wire);

impl io::Write for Frames<'_> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let piece = &buf[..buf.len().min(PIECE)];
        self.0.send(FrameKind::Data, piece, None)?;
        Ok(piece.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[allow(clippy::too_many_arguments)]
fn serve_mount(
    daemon: &Arc<Daemon>,
    wire: &mut Wire,
    txn: &str,
    how: MountHow,
    at: &PathBytes,
    fd: Option<OwnedFd>,
    uid: u32,
    pid: u32,
) -> io::Result<()> {
    let runs = at.0.is_empty();
    match begin_mount(daemon, txn, how, at, fd, uid) {
        Err(failure) => wire.send_json(&Reply::Failed(failure), None),
        Ok((reply, mount)) => {
            let asks = how == MountHow::Ask;
            let is_served = daemon.sessions().contains_key(txn);
            let holds = runs && is_served;
            if holds && let Some(session) = daemon.sessions().get_mut(txn) {
                session.runners.push(pid);
            }
            let sent = wire.send_json(&Reply::Mount(reply), mount.as_ref());
            drop(mount);
            if holds {
                // The connection lives as long as the run; a mount does not end with it.
                let ended = sent.and_then(|()| wire.receive().map(drop));
                if let Err(failure) = daemon.workspace.hand_over() {
                    log::error!("{failure}");
                }
                if let Some(session) = daemon.sessions().get_mut(txn)
                    && let Some(n) = session.runners.iter().position(|p| *p == pid)
                {
                    session.runners.remove(n);
                }
                return ended;
            }
            if asks { sent } else { sent.inspect(|()| daemon.wake(b'.')) }
        }
    }
}

fn begin_mount(
    daemon: &Arc<Daemon>,
    txn: &str,
    how: MountHow,
    at: &PathBytes,
    fd: Option<OwnedFd>,
    uid: u32,
) -> Result<(MountReply, Option<OwnedFd>), Failure> {
    let ws = &daemon.workspace;
    ws.check_store()?;
    ws.ensure(txn, uid)?;
    if !at.0.is_empty() {
        daemon.await_ending(txn);
    }
    // One mount is made at a time: whoever comes second finds the first one's.
    let _mounting = daemon.mounting.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let served = daemon.sessions().get(txn).map(|s| (s.runners.last().copied(), s.passthrough));
    let (existing, holder, passthrough, mount) = match (served, how) {
        (Some((holder, passthrough)), _) => (true, holder, passthrough, None),
        (None, MountHow::Ask) => (false, None, false, None),
        (None, MountHow::Detached) => {
            let made = mount::detached(true, txn).map_err(|e| {
                Failure::new(Code::Unavailable, format!("cannot make a FUSE mount: {e}"))
                    .hint("check /dev/fuse and CAP_SYS_ADMIN; in a container: --device /dev/fuse --cap-add SYS_ADMIN")
            })?;
            let passthrough = daemon.begin_session(txn, uid, made.device, at)?;
            (false, None, passthrough, Some(made.mount))
        }
        (None, MountHow::FuseFd) => {
            let device = fd.ok_or_else(|| {
                Failure::new(Code::Internal, "no FUSE connection came with the request")
            })?;
            let passthrough = daemon.begin_session(txn, uid, device, at)?;
            (false, None, passthrough, None)
        }
    };
    let reply = MountReply {
        txn: ws.info(txn, uid)?,
        existing,
        holder,
        passthrough,
        daemon_pid: std::process::id(),
    };
    Ok((reply, mount))
}
