//! The client's side: connect, start the daemon if there is none, ask.

use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::pipe::{PipeFlags, pipe_with};

use super::place;
use super::wire::Wire;
use crate::proto::{Code, Failure, FrameKind, Reply, Request, Verb};
use crate::txn::store;

/// Which workspace, and how to open it.
#[derive(Clone, Debug)]
pub struct Target {
    /// Its directory.
    pub workspace: PathBuf,
    /// `--store`
    pub store: Option<PathBuf>,
    /// `--force`
    pub force: bool,
    /// The socket, where it is known already (inside a view).
    pub socket: Option<PathBuf>,
}

/// What came back.
#[derive(Debug)]
pub struct Answer {
    /// The last frame.
    pub reply: Reply,
    /// A descriptor that came with it.
    pub fd: Option<OwnedFd>,
}

fn unreachable(e: &io::Error) -> Failure {
    Failure::new(Code::Io, format!("the daemon did not answer: {e}"))
        .hint("run the command again; txfs doctor if it stays so")
}

/// Where a daemon listens already, and the connection.
fn find(target: &Target) -> Option<(PathBuf, UnixStream)> {
    if let Some(told) = &target.socket {
        // By whoever started us, or by the view itself.
        return UnixStream::connect(told).ok().map(|stream| (told.clone(), stream));
    }
    let mut candidates = Vec::new();
    let record = place::record(&store::place(&target.workspace, target.store.as_deref()));
    if let Ok(bytes) = std::fs::read(record) {
        candidates.push(PathBuf::from(std::ffi::OsString::from_vec(bytes)));
    }
    candidates.extend(place::own_socket(&target.workspace));
    // Root's daemon answers whoever may write the workspace, though its store is closed to him.
    candidates.extend(place::roots_socket(&target.workspace));
    candidates.into_iter().find_map(|path| {
        let stream = UnixStream::connect(&path).ok()?;
        is_trusted(&stream, &target.workspace).then_some((path, stream))
    })
}

/// Whether whoever listens may be this workspace's daemon: it is ours, root's, or the workspace's
/// owner's. Nobody else could have written the record in the store, but the store may be a
/// directory that was unpacked from somewhere.
fn is_trusted(stream: &UnixStream, workspace: &Path) -> bool {
    let Ok(peer) = rustix::net::sockopt::socket_peercred(stream) else { return false };
    let (uid, own) = (peer.uid.as_raw(), rustix::process::geteuid().as_raw());
    let owner = std::fs::metadata(workspace).map(|m| m.uid()).ok();
    if uid == 0 || uid == own || Some(uid) == owner {
        return true;
    }
    // In a user namespace root is not mapped and looks like nobody.
    const NOBODY: u32 = 65534;
    let whole = std::fs::read_to_string("/proc/self/uid_map")
        .is_ok_and(|map| map.split_whitespace().eq(["0", "0", "4294967295"]));
    if uid == NOBODY && !whole {
        return true;
    }
    log::warn!("uid {uid} listens at this workspace's socket; it is not asked");
    false
}

/// Connects to a daemon that listens already.
#[must_use]
pub fn running(target: &Target) -> Option<Wire> {
    find(target).map(|(_, stream)| Wire::new(stream))
}

/// Where a daemon listens already.
#[must_use]
pub fn socket(target: &Target) -> Option<PathBuf> {
    find(target).map(|(path, _)| path)
}

/// Connects to the daemon of a workspace, started if need be.
///
/// # Errors
/// What the daemon says if it cannot start.
pub fn connect(target: &Target) -> Result<Wire, Failure> {
    // Two that start at once: the loser finds the winner's socket on its next look.
    let mut last = None;
    for _ in 0..500 {
        if let Some(wire) = running(target) {
            return Ok(wire);
        }
        match start(target) {
            Ok(()) => {}
            Err(failure) if failure.code == Code::Busy => {
                last = Some(failure);
                // The one that has the lock is about to listen, or to end.
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
            Err(failure) => return Err(failure),
        }
    }
    Err(last.unwrap_or_else(|| {
        Failure::new(Code::Unavailable, "the daemon starts and does not listen").hint("txfs doctor")
    }))
}

fn start(target: &Target) -> Result<(), Failure> {
    let fail = |e: io::Error| {
        Failure::new(Code::Unavailable, format!("cannot start the daemon: {e}"))
            .hint("check that /proc is mounted")
    };
    let (ready, tell) = pipe_with(PipeFlags::CLOEXEC).map_err(|e| fail(e.into()))?;
    let program = std::env::current_exe().map_err(fail)?;
    let mut command = Command::new(program);
    command.arg("__daemon").arg("--ready-fd").arg("3").arg("--workspace").arg(&target.workspace);
    if let Some(store) = &target.store {
        command.arg("--store").arg(store);
    }
    if target.force {
        command.arg("--force");
    }
    command.current_dir("/").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    for name in ["TXFS", "TXFS_TXN", "TXFS_WORKSPACE", "TXFS_SOCKET"] {
        command.env_remove(name);
    }
    let number = tell.as_raw_fd();
    crate::sys::before_exec(&mut command, move || {
        rustix::process::setsid()?;
        // What our starter left open is not the daemon's: a lock, say, or a pipe's writing end.
        crate::sys::close_on_exec_above_2()?;
        crate::sys::signals::unblock_all()?;
        crate::sys::move_fd(number, 3)
    });
    let mut child = command.spawn().map_err(fail)?;
    drop(tell);
    let mut said = Vec::new();
    std::fs::File::from(ready).read_to_end(&mut said).map_err(fail)?;
    if said == b"ready" {
        return Ok(());
    }
    // It ends right after it has said why.
    child.wait().map_err(fail)?;
    match serde_json::from_slice(&said) {
        Ok(failure) => Err(failure),
        Err(_) => Err(Failure::new(Code::Internal, "the daemon ended before it listened")
            .hint("txfs doctor; see daemon.log in the store")),
    }
}

/// Asks one thing; `data` gets what is streamed.
///
/// # Errors
/// The daemon's failure, or that it did not answer.
pub fn ask(
    wire: &mut Wire,
    txn: &str,
    verb: Verb,
    fd: Option<&OwnedFd>,
    mut data: impl FnMut(&[u8]) -> io::Result<()>,
) -> Result<Answer, Failure> {
    let request = Request { version: env!("CARGO_PKG_VERSION").into(), txn: txn.into(), verb };
    wire.send_json(&request, fd).map_err(|e| unreachable(&e))?;
    loop {
        let frame = wire
            .receive()
            .map_err(|e| unreachable(&e))?
            .ok_or_else(|| unreachable(&io::ErrorKind::UnexpectedEof.into()))?;
        match frame.kind {
            FrameKind::Data => data(&frame.bytes).map_err(|e| {
                Failure::new(Code::Io, format!("cannot write the output: {e}"))
                    .hint("check where the output goes")
            })?,
            FrameKind::Json => {
                let reply = Wire::parse(&frame).map_err(|e| unreachable(&e))?;
                if let Reply::Failed(failure) = reply {
                    return Err(failure);
                }
                return Ok(Answer { reply, fd: frame.fd });
            }
        }
    }
}

/// Whether a directory is a workspace. One whose store is closed to us is one as well.
#[must_use]
pub fn has_store(dir: &Path) -> bool {
    match std::fs::symlink_metadata(dir.join(store::NAME).join("lock")) {
        Ok(_) => true,
        Err(e) => e.kind() == io::ErrorKind::PermissionDenied,
    }
}
