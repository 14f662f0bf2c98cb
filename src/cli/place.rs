//! Which workspace and which transaction a command is about, and the paths in it that it names.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

use super::args::Global;
use crate::daemon::client::{self, Target};
use crate::proto::{Code, Failure, PathBytes};
use crate::report::quote;
use crate::txn::workspace;

/// The directory that commands are about, and how to reach its daemon.
pub(super) struct Place {
    pub(super) target: Target,
    pub(super) txn: String,
    /// Whether there is a store already.
    pub(super) has_store: bool,
    /// Where we see it: the workspace itself, or the mount of a view of it.
    root: PathBuf,
}

/// A path in a message.
pub(super) fn name(path: &Path) -> String {
    quote::shown(path.as_os_str().as_bytes())
}

/// A path without links, dots and double slashes.
pub(super) fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    path.canonicalize().map_err(|e| {
        let failure =
            |code| Failure::new(code, format!("cannot open {}: {e}", name(path)));
        match e.raw_os_error() {
            Some(libc::ENOTCONN | libc::ECONNABORTED) => failure(Code::Unavailable)
                .hint("the view's daemon is dead: leave this directory, then txfs umount it, or run again"),
            _ => failure(Code::NotFound).hint("txfs -C DIRECTORY ..."),
        }
    })
}

/// What the view around a directory says of itself.
pub(super) struct View {
    /// Where it is mounted.
    pub(super) root: PathBuf,
    /// What it is a view of.
    pub(super) workspace: PathBuf,
    /// Its transaction.
    pub(super) txn: String,
    /// Its daemon's socket.
    pub(super) socket: Option<PathBuf>,
}

fn path_of(bytes: Vec<u8>) -> PathBuf {
    PathBuf::from(OsString::from_vec(bytes))
}

/// What is mounted at a directory, if that is the root of a view.
pub(super) fn view_at(root: &Path) -> Option<View> {
    let about = |what: &str| {
        let mut buf = vec![0u8; 4096];
        let len = rustix::fs::getxattr(root, format!("user.txfs.{what}"), &mut buf).ok()?;
        buf.truncate(len);
        Some(buf)
    };
    Some(View {
        root: root.to_path_buf(),
        workspace: path_of(about("workspace")?),
        txn: String::from_utf8(about("txn")?).ok()?,
        socket: about("socket").map(path_of),
    })
}

impl View {
    /// The view as what a command is about.
    pub(super) fn place(self, global: &Global, txn: String) -> Place {
        let target = Target {
            workspace: self.workspace,
            store: global.store.clone(),
            force: global.force,
            socket: self.socket,
        };
        Place { target, txn, has_store: true, root: self.root }
    }
}

/// The run around us, if it is one of this workspace: its transaction.
fn txn_around(workspace: &Path) -> Result<Option<String>, Failure> {
    let Some(txn) = std::env::var_os("TXFS_TXN").filter(|t| !t.is_empty()) else {
        return Ok(None);
    };
    if std::env::var_os("TXFS_WORKSPACE")
        .is_some_and(|w| !w.is_empty() && Path::new(&w) != workspace)
    {
        return Ok(None);
    }
    txn.into_string().map(Some).map_err(|raw| {
        let raw = quote::shown(raw.as_bytes());
        Failure::new(Code::Usage, format!("TXFS_TXN is {raw}, which is no name for a transaction"))
            .hint("unset TXFS_TXN, or say --txn NAME")
    })
}

fn txn_for(global: &Global, workspace: &Path, default: &str) -> Result<String, Failure> {
    let txn = match &global.txn {
        Some(named) => named.clone(),
        None => txn_around(workspace)?.unwrap_or_else(|| default.to_owned()),
    };
    workspace::check_name(&txn)?;
    Ok(txn)
}

fn enter(dir: &Path) -> Result<(), Failure> {
    std::env::set_current_dir(dir).map_err(|e| {
        Failure::new(Code::NotFound, format!("cannot enter {}: {e}", name(dir)))
            .hint("txfs -C DIRECTORY ...")
    })
}

/// Finds the workspace around the current directory, or `-C`'s; else the one of the run around us.
/// With `make` the directory itself is it when there is none.
pub(super) fn find(global: &Global, make: bool) -> Result<Place, Failure> {
    let start = absolute(global.directory.as_deref().unwrap_or(Path::new(".")))?;
    if !start.is_dir() {
        return Err(Failure::new(Code::NotFound, format!("{} is no directory", name(&start)))
            .hint("txfs -C DIRECTORY ..."));
    }
    if global.directory.is_some() {
        enter(&start)?;
    }
    if let Some(view) = start.ancestors().find_map(view_at) {
        let txn = txn_for(global, &view.workspace, &view.txn)?;
        return Ok(view.place(global, txn));
    }
    let place = |workspace: &Path, has_store: bool, socket: Option<PathBuf>| {
        Ok(Place {
            target: Target {
                workspace: workspace.to_path_buf(),
                store: global.store.clone(),
                force: global.force,
                socket,
            },
            txn: txn_for(global, workspace, workspace::MAIN)?,
            has_store,
            root: workspace.to_path_buf(),
        })
    };
    if let Some(store) = &global.store {
        return place(&start, store.join("lock").exists(), None);
    }
    if let Some(dir) = start.ancestors().find(|dir| client::has_store(dir)) {
        return place(dir, true, None);
    }
    let around = std::env::var_os("TXFS_WORKSPACE").filter(|w| Path::new(w).is_absolute());
    if let (Some(workspace), None) = (around, &global.directory) {
        let socket = std::env::var_os("TXFS_SOCKET").filter(|s| !s.is_empty()).map(PathBuf::from);
        return place(Path::new(&workspace), true, socket);
    }
    if make {
        return place(&start, false, None);
    }
    Err(Failure::new(Code::NotFound, format!("{} is in no workspace", name(&start)))
        .hint("txfs run -- COMMAND makes the current directory one"))
}

/// A path without links as far as it exists; below that as it is written.
fn resolved(path: &Path) -> io::Result<PathBuf> {
    let mut existing = path;
    let mut rest = Vec::new();
    loop {
        match existing.canonicalize() {
            Ok(mut full) => {
                for part in rest.into_iter().rev() {
                    match part {
                        Component::ParentDir => drop(full.pop()),
                        Component::Normal(name) => full.push(name),
                        Component::CurDir | Component::RootDir | Component::Prefix(_) => {}
                    }
                }
                return Ok(full);
            }
            Err(e) => {
                let (Some(parent), Some(last)) =
                    (existing.parent(), existing.components().next_back())
                else {
                    return Err(e);
                };
                rest.push(last);
                existing = parent;
            }
        }
    }
}

impl Place {
    /// Where the view that we are in is mounted, if that is not the workspace's own path.
    pub(super) fn mounted(&self) -> Option<PathBuf> {
        (self.root != self.target.workspace).then(|| self.root.clone())
    }

    /// Paths as they were given, from the root of the workspace.
    ///
    /// The last name is not followed: it is the entry that is meant, not what a link leads to.
    pub(super) fn paths(&self, given: &[PathBuf]) -> Result<Vec<PathBytes>, Failure> {
        let here = std::env::current_dir().map_err(|e| {
            Failure::new(Code::Io, format!("cannot find the current directory: {e}"))
        })?;
        given.iter().map(|path| self.path(&here.join(path), path)).collect()
    }

    fn path(&self, full: &Path, given: &Path) -> Result<PathBytes, Failure> {
        let full = match (full.parent(), full.file_name()) {
            (Some(parent), Some(last)) => resolved(parent).map(|p| p.join(last)),
            // It ends in dots, or is the root.
            (None, _) | (_, None) => resolved(full),
        };
        let full = full.map_err(|e| {
            Failure::new(Code::NotFound, format!("cannot look at {}: {e}", name(given)))
        })?;
        // The workspace itself may be named through a link.
        let below = match full.strip_prefix(&self.root) {
            Ok(rel) => Some(rel.to_path_buf()),
            Err(_) => full
                .canonicalize()
                .ok()
                .and_then(|real| real.strip_prefix(&self.root).ok().map(Path::to_path_buf)),
        };
        below.map(|rel| PathBytes(rel.into_os_string().into_vec())).ok_or_else(|| {
            Failure::new(Code::Usage, format!("{} is outside the workspace", name(given)))
                .hint(format!("name paths below {}", name(&self.root)))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_resolved_as_far_as_they_exist() {
        let temp = tempfile::tempdir().unwrap();
        let root = temp.path().canonicalize().unwrap();
        std::fs::create_dir(root.join("real")).unwrap();
        std::os::unix::fs::symlink("real", root.join("link")).unwrap();
        std::os::unix::fs::symlink("nowhere", root.join("dangling")).unwrap();
        let target = Target { workspace: root.clone(), store: None, force: false, socket: None };
        let place = Place { target, txn: "main".into(), has_store: true, root: root.clone() };
        let at = |given: &str| place.path(&root.join(given), Path::new(given)).map(|p| p.0);
        assert_eq!(at("link/f"), Ok(b"real/f".to_vec()));
        assert_eq!(at("real/gone/../f"), Ok(b"real/f".to_vec()));
        assert_eq!(at("link/.."), Ok(Vec::new()));
        assert_eq!(at("link"), Ok(b"link".to_vec()));
        assert_eq!(at("dangling"), Ok(b"dangling".to_vec()));
        assert_eq!(at("./a/./b"), Ok(b"a/b".to_vec()));
        assert_eq!(at("../x").unwrap_err().code, Code::Usage);
        assert_eq!(at("/").unwrap_err().code, Code::Usage);
    }
}
