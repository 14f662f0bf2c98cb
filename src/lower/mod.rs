//! Performs witnessed commands by system calls, without a shell and without looking up a program.
//!
//! What is done, said on standard error and returned is what GNU coreutils would do, say and return.
//! Where the facts of the moment do not fit that (a prompt would come, a name leads out of the view,
//! a device is copied), the command is handed back with nothing done: see [`Split`]. Entries are
//! changed through a descriptor of the directory that they were checked in, so that a link which is
//! put in the way between the check and the change leads nowhere else.

mod copy;
mod make;
mod remove;
mod rename;
mod say;
mod scene;
mod split;

#[cfg(test)]
mod tests;

use std::io::Write;
use std::os::fd::BorrowedFd;

use rustix::fs::{Mode, OFlags, openat};

use crate::classify::{Command, Witness};
use scene::Scene;
pub use split::Split;

/// What the commands meet.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// What relative operands are relative to.
    pub dir: BorrowedFd<'a>,
    /// The only device on which anything may be changed; `None` is any.
    pub within: Option<u64>,
    /// Whether standard input is a terminal: `mv` and `rm` would ask before they replace or remove
    /// what is not writable.
    pub asks: bool,
    /// Whether messages may have the quotation marks of UTF-8.
    pub utf8: bool,
    /// Whether `CDPATH` could lead a `cd` elsewhere.
    pub cdpath: bool,
}

/// What came of a witnessed text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lowered {
    /// It was performed, up to the first command that failed. The exit code.
    Done(u8),
    /// The commands before this one were performed and succeeded. Of this one, and those behind it,
    /// nothing was done.
    Back {
        /// The number of the first command that was not performed.
        first: usize,
        /// What did not fit.
        split: Split,
    },
}

/// The exit code of a command that was performed, or what did not fit: nothing was done then.
type Done = Result<u8, Split>;

/// Performs a witnessed text. What the tools would say on standard error is written to `err`.
pub fn perform(witness: &Witness<'_>, facts: &Facts<'_>, err: &mut dyn Write) -> Lowered {
    let back = |first, split| Lowered::Back { first, split };
    let entered;
    let mut facts = *facts;
    if let Some(dir) = witness.cd {
        // Whoever looks a relative directory up in CDPATH is not us.
        if facts.cdpath && dir[0] != b'/' && !dir.starts_with(b"./") {
            return back(0, Split::CdPath);
        }
        match openat(
            facts.dir,
            dir,
            OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        ) {
            Ok(fd) if scene::may_search(&fd) => entered = fd,
            // What a shell says then is its own.
            Ok(_) | Err(_) => return back(0, Split::CdFails),
        }
        facts.dir = std::os::fd::AsFd::as_fd(&entered);
    }
    let mut scene = Scene { facts, err };
    for (first, command) in witness.commands.iter().enumerate() {
        match one(&mut scene, command) {
            Ok(0) => {}
            Ok(code) => return Lowered::Done(code),
            Err(split) => return back(first, split),
        }
    }
    Lowered::Done(0)
}

fn one(scene: &mut Scene<'_>, command: &Command<'_>) -> Done {
    match command {
        Command::Mv { clobber, from, to } => rename::mv(scene, *clobber, from, to),
        Command::Cp { preserve, recursive, from, to } => {
            copy::cp(scene, copy::How { preserve: *preserve, recursive: *recursive }, from, to)
        }
        Command::Rm { force, recursive, paths } => remove::rm(scene, *force, *recursive, paths),
        Command::Rmdir { paths } => remove::rmdir(scene, paths),
        Command::Mkdir { parents, paths } => make::mkdir(scene, *parents, paths),
        Command::Touch { paths } => make::touch(scene, paths),
        Command::Chmod { digits, paths } => make::chmod(scene, digits, paths),
        Command::Symlink { target, link } => make::symlink(scene, target, link),
        Command::Write { append, content, to } => make::write(scene, *append, &content.bytes(), to),
    }
}
