//! `txfs hook install` and `uninstall`: our hook in a host's settings, and out of them again.

use std::fs;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::{Host, edit};
use crate::proto::{Code, Failure};
use crate::report::{patch, quote};

/// The settings of a host below a directory: the project's, or the home of the user.
#[must_use]
pub fn settings(host: Host, below: &Path) -> PathBuf {
    below.join(match host {
        Host::ClaudeCode => ".claude/settings.json",
        Host::Codex => ".codex/hooks.json",
        Host::Gemini => ".gemini/settings.json",
    })
}

/// What would change.
#[derive(Debug)]
pub struct Change {
    /// The file, links followed.
    pub path: PathBuf,
    before: Option<String>,
    after: String,
}

fn failure(what: &str, path: &Path, e: &dyn std::fmt::Display) -> Failure {
    let name = quote::shown(path.as_os_str().as_bytes());
    Failure::new(Code::Io, format!("cannot {what} {name}: {e}"))
}

/// Finds what has to change in the settings so that our hook calls `command`, or is gone.
///
/// # Errors
/// If the settings cannot be read, or are not what the host's settings look like.
pub fn plan(host: Host, path: &Path, command: Option<&str>) -> Result<Option<Change>, Failure> {
    // A settings file may be a link into a repository of such files: that is the one to edit.
    let path = match fs::canonicalize(path) {
        Ok(path) => path,
        Err(e) if path.is_symlink() => return Err(failure("follow", path, &e)),
        Err(_) => path.to_path_buf(),
    };
    let before = match fs::read_to_string(&path) {
        Ok(text) => Some(text),
        Err(e) if e.kind() == io::ErrorKind::NotFound => None,
        Err(e) => return Err(failure("read", &path, &e)),
    };
    if before.is_none() && command.is_none() {
        return Ok(None);
    }
    let text = before.as_deref().unwrap_or_default();
    let not_understood = |e: serde_json::Error| {
        failure("understand", &path, &e)
            .hint("put it right, or add the hook by hand: see docs/hooks.md")
    };
    let after = edit::edited(host, text, command).map_err(not_understood)?;
    // How it is laid out is no change. What has a number or a depth that we cannot read, the host
    // may not read either, and it would take that for no hook at all.
    let parse = |text: &str| serde_json::from_str::<Value>(text).map_err(not_understood);
    let new = parse(&after)?;
    let same = !text.trim().is_empty() && parse(text)? == new;
    Ok((!same).then_some(Change { path, before, after }))
}

impl Change {
    /// Writes the change as a patch.
    ///
    /// # Errors
    /// Those of the output.
    pub fn show(&self, out: &mut dyn Write) -> io::Result<()> {
        let path = self.path.as_os_str().as_bytes();
        let path = path.strip_prefix(b"/").unwrap_or(path).to_vec();
        let side = |text: &String| patch::Side {
            path: path.clone(),
            mode: 0o100_644,
            content: text.as_bytes().to_vec(),
        };
        patch::write(out, self.before.as_ref().map(side).as_ref(), Some(&side(&self.after)))
    }

    /// Makes the change, all or nothing. Says where what was there is kept.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn make(&self) -> Result<Option<PathBuf>, Failure> {
        let dir = self.path.parent().unwrap_or(Path::new("/"));
        fs::create_dir_all(dir).map_err(|e| failure("make", dir, &e))?;
        let backup = match self.before {
            Some(_) => Some(self.keep().map_err(|e| failure("keep a copy of", &self.path, &e))?),
            None => None,
        };
        self.replace().map_err(|e| failure("write", &self.path, &e))?;
        Ok(backup)
    }

    /// Copies what is there to a name that is free.
    fn keep(&self) -> io::Result<PathBuf> {
        for n in 0..1000 {
            let mut name = self.path.as_os_str().to_owned();
            name.push(if n == 0 { ".txfs-backup".into() } else { format!(".txfs-backup.{n}") });
            // It may hold what only its owner may read.
            let new = fs::File::options().write(true).create_new(true).mode(0o600).open(&name);
            match new {
                Ok(mut file) => {
                    io::copy(&mut fs::File::open(&self.path)?, &mut file)?;
                    file.set_permissions(fs::metadata(&self.path)?.permissions())?;
                    return Ok(PathBuf::from(name));
                }
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(e),
            }
        }
        Err(io::Error::other("there are a thousand copies already"))
    }

    fn replace(&self) -> io::Result<()> {
        let mut name = self.path.as_os_str().to_owned();
        name.push(format!(".{}", std::process::id()));
        let mut file = fs::File::options().write(true).create_new(true).open(&name)?;
        if let Ok(old) = fs::metadata(&self.path) {
            file.set_permissions(old.permissions())?;
        }
        file.write_all(self.after.as_bytes())?;
        file.sync_all()?;
        fs::rename(&name, &self.path)
    }
}
