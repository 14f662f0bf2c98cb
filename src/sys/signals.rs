//! Signals taken in turn by a process that stands between a terminal and a command.
//!
//! They are blocked and read from a descriptor (signalfd(2)), so that no disposition changes: what
//! our starter had us ignore, as nohup(1) does, a command that we start ignores too.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};

/// Blocked signals, and the mask that was before.
pub struct Signals {
    fd: OwnedFd,
    before: libc::sigset_t,
}

/// A signal that came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrived {
    /// Its number.
    pub signal: i32,
    /// The kernel sent it, as it does for the keys of a terminal; else a process did.
    pub from_kernel: bool,
}

/// The mask of a process, to be put back by [`restore_mask`].
#[derive(Clone, Copy)]
pub struct Mask(libc::sigset_t);

fn set_of(signals: &[i32]) -> libc::sigset_t {
    // SAFETY: the set is initialised by sigemptyset before anything reads it.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        for signal in signals {
            libc::sigaddset(&raw mut set, *signal);
        }
        set
    }
}

impl Signals {
    /// Blocks these signals in this process, which is single-threaded, and takes them from here on.
    ///
    /// # Errors
    /// Those of sigprocmask(2) and signalfd(2).
    pub fn take(signals: &[i32]) -> io::Result<Signals> {
        let set = set_of(signals);
        let mut before = set_of(&[]);
        // SAFETY: both sets are initialised and live over the calls.
        let fd = unsafe {
            if libc::sigprocmask(libc::SIG_BLOCK, &raw const set, &raw mut before) != 0 {
                return Err(io::Error::last_os_error());
            }
            libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK)
        };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel just gave us this descriptor and nobody else has it.
        Ok(Signals { fd: unsafe { OwnedFd::from_raw_fd(fd) }, before })
    }

    /// The mask that was before.
    #[must_use]
    pub fn before(&self) -> Mask {
        Mask(self.before)
    }

    /// The next signal that came; `None` if there is none at the moment.
    ///
    /// # Errors
    /// Those of read(2).
    pub fn next(&self) -> io::Result<Option<Arrived>> {
        let mut bytes = [0u8; size_of::<libc::signalfd_siginfo>()];
        match rustix::io::read(&self.fd, &mut bytes) {
            Ok(n) if n == bytes.len() => {}
            Ok(_) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return Ok(None),
            Err(e) => return Err(e.into()),
        }
        // SAFETY: the kernel filled all of it, and every bit pattern is a value of this structure of
        // integers; the copy may be unaligned.
        let info =
            unsafe { std::ptr::read_unaligned(bytes.as_ptr().cast::<libc::signalfd_siginfo>()) };
        let signal = i32::try_from(info.ssi_signo).map_err(io::Error::other)?;
        // Keys of a terminal have SI_KERNEL, a changed window and a hang-up too.
        Ok(Some(Arrived { signal, from_kernel: info.ssi_code > 0 }))
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Puts a mask back. For use between fork and exec too.
///
/// # Errors
/// Those of sigprocmask(2).
pub fn restore_mask(mask: &Mask) -> io::Result<()> {
    // SAFETY: the set is initialised and lives over the call.
    if unsafe { libc::sigprocmask(libc::SIG_SETMASK, &raw const mask.0, std::ptr::null_mut()) } != 0
    {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Unblocks all signals. For use between fork and exec.
///
/// # Errors
/// Those of sigprocmask(2).
pub fn unblock_all() -> io::Result<()> {
    restore_mask(&Mask(set_of(&[])))
}

/// Stops this process as a signal that stops does, and returns when somebody has it go on.
///
/// In a process group without a shell to have it go on the kernel lets nobody stop, and this returns
/// at once.
///
/// # Errors
/// Those of kill(2) and sigprocmask(2).
pub fn stop_with(signal: i32) -> io::Result<()> {
    let set = set_of(&[signal]);
    let mut before = set_of(&[]);
    // SAFETY: the sets are initialised and live over the calls; the disposition of a signal that stops
    // is the default here, which runs no code of ours.
    unsafe {
        if libc::raise(signal) != 0
            || libc::sigprocmask(libc::SIG_UNBLOCK, &raw const set, &raw mut before) != 0
            || libc::sigprocmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut()) != 0
        {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Gives SIGCHLD its default action, without which nobody can wait for a child, and says whether it
/// was ignored.
#[must_use]
pub fn mind_children() -> bool {
    // SAFETY: SIG_DFL runs no code of ours.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) == libc::SIG_IGN }
}

/// Whether there is a terminal that can stop this process.
#[must_use]
pub fn has_terminal() -> bool {
    rustix::fs::open(
        "/dev/tty",
        rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CLOEXEC | rustix::fs::OFlags::NOCTTY,
        rustix::fs::Mode::empty(),
    )
    .is_ok()
}
