//! Where the control socket of a workspace is.

use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::proto::{Code, Failure};

/// The runtime directory of a uid.
fn runtime_dir(uid: u32) -> PathBuf {
    if uid == 0 {
        return PathBuf::from("/run/txfs");
    }
    match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(dir) if Path::new(&dir).is_absolute() => PathBuf::from(dir).join("txfs"),
        _ => PathBuf::from(format!("/tmp/txfs-{uid}")),
    }
}

fn checked(dir: &Path, uid: u32) -> io::Result<()> {
    let mode = if uid == 0 { 0o755 } else { 0o700 };
    match std::fs::DirBuilder::new().mode(mode).create(dir) {
        // Whatever the umask: the next one to come may have another.
        Ok(()) => std::fs::set_permissions(dir, std::fs::Permissions::from_mode(mode))?,
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
        Err(e) => return Err(e),
    }
    let meta = std::fs::symlink_metadata(dir)?;
    if !meta.is_dir() || meta.uid() != uid || meta.mode() & 0o022 != 0 {
        return Err(io::Error::other("it is not a directory of ours that only we may write"));
    }
    Ok(())
}

/// The name of a workspace's socket, from its identity, so that its length never matters.
fn socket_name(workspace: &Path) -> io::Result<String> {
    let meta = std::fs::metadata(workspace)?;
    Ok(format!("{:x}-{:x}.sock", meta.dev(), meta.ino()))
}

/// The path at which a daemon of this process's uid listens.
///
/// # Errors
/// [`Code::Io`] if the runtime directory cannot be made or is not ours.
pub fn own_socket(workspace: &Path) -> Result<PathBuf, Failure> {
    let uid = rustix::process::geteuid().as_raw();
    let dir = runtime_dir(uid);
    checked(&dir, uid).map_err(|e| {
        Failure::new(Code::Io, format!("cannot use the runtime directory {}: {e}", dir.display()))
            .hint("set XDG_RUNTIME_DIR to a directory of yours with mode 0700")
    })?;
    let name = socket_name(workspace).map_err(|e| {
        Failure::new(Code::NotFound, format!("cannot look at {}: {e}", workspace.display()))
            .hint("txfs -C DIRECTORY ...")
    })?;
    Ok(dir.join(name))
}

/// The path at which root's daemon listens, if it does; only root can put a socket there.
#[must_use]
pub fn roots_socket(workspace: &Path) -> Option<PathBuf> {
    Some(runtime_dir(0).join(socket_name(workspace).ok()?))
}

/// The file in the store that says where the daemon listens.
#[must_use]
pub fn record(store: &Path) -> PathBuf {
    store.join("socket")
}
