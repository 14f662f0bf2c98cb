//! The system calls that no library wraps safely. The only unsafe code of the program.

#![allow(unsafe_code)]

pub mod signals;

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Largest file handle that the kernel makes, `MAX_HANDLE_SZ` of open_by_handle_at(2).
const MAX_HANDLE: usize = 128;

#[repr(C)]
struct RawHandle {
    bytes: u32,
    kind: i32,
    data: [u8; MAX_HANDLE],
}

/// name_to_handle_at(2) of a name in a directory, itself if it is a link; of the fd itself if the
/// name is empty. 4 bytes of little-endian type, then the handle.
///
/// # Errors
/// `EOPNOTSUPP` where the file system has no handles.
pub fn file_handle(fd: BorrowedFd<'_>, name: &[u8]) -> io::Result<Vec<u8>> {
    let name = CString::new(name)?;
    let flags = if name.is_empty() { libc::AT_EMPTY_PATH } else { 0 };
    let mut raw = RawHandle { bytes: MAX_HANDLE as u32, kind: 0, data: [0; MAX_HANDLE] };
    let mut mount = 0i32;
    // SAFETY: the path is a valid C string, `raw` has the layout of `struct file_handle` with room
    // for as many bytes as it says, and both pointers live over the call.
    let done = unsafe {
        libc::syscall(
            libc::SYS_name_to_handle_at,
            fd.as_raw_fd(),
            name.as_ptr(),
            &raw mut raw,
            &raw mut mount,
            flags,
        )
    };
    if done < 0 {
        return Err(io::Error::last_os_error());
    }
    let len = (raw.bytes as usize).min(MAX_HANDLE);
    let mut out = raw.kind.to_le_bytes().to_vec();
    out.extend_from_slice(&raw.data[..len]);
    Ok(out)
}

/// open_by_handle_at(2). Needs CAP_DAC_READ_SEARCH.
///
/// # Errors
/// `EPERM` without the capability, `ESTALE` if the object is gone.
pub fn open_handle(mount: BorrowedFd<'_>, handle: &[u8], flags: i32) -> io::Result<OwnedFd> {
    let invalid = || io::Error::from_raw_os_error(libc::EINVAL);
    let (kind, data) = handle.split_first_chunk::<4>().ok_or_else(invalid)?;
    if data.len() > MAX_HANDLE {
        return Err(invalid());
    }
    let mut raw = RawHandle {
        bytes: data.len() as u32,
        kind: i32::from_le_bytes(*kind),
        data: [0; MAX_HANDLE],
    };
    raw.data[..data.len()].copy_from_slice(data);
    // SAFETY: `raw` has the layout of `struct file_handle` and lives over the call.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_open_by_handle_at,
            mount.as_raw_fd(),
            &raw mut raw,
            flags | libc::O_CLOEXEC,
        )
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just gave us this descriptor and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Whether somebody may be writing the file behind a read-only fd: an open writable description, a
/// writable shared mapping whose descriptor is closed included.
///
/// Asked with a read lease (fcntl(2), F_SETLEASE), which is given back at once. Any refusal counts
/// as a writer.
///
/// # Errors
/// Only if a lease that was given cannot be given back.
pub fn may_have_writer(fd: BorrowedFd<'_>) -> io::Result<bool> {
    // SAFETY: fcntl with an integer argument.
    if unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETLEASE, libc::F_RDLCK) } != 0 {
        return Ok(true);
    }
    // SAFETY: as above.
    if unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETLEASE, libc::F_UNLCK) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(false)
}

/// fsconfig(2) with `FSCONFIG_SET_FD`, which tells a new FUSE mount its device.
///
/// # Errors
/// As fsconfig(2).
pub fn fsconfig_set_fd(fs: BorrowedFd<'_>, key: &CStr, fd: BorrowedFd<'_>) -> io::Result<()> {
    const FSCONFIG_SET_FD: u32 = 5;
    // SAFETY: the key is a valid C string and the value pointer is null, as this command wants.
    let done = unsafe {
        libc::syscall(
            libc::SYS_fsconfig,
            fs.as_raw_fd(),
            FSCONFIG_SET_FD,
            key.as_ptr(),
            std::ptr::null::<u8>(),
            fd.as_raw_fd(),
        )
    };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Ignores a signal in this process, or gives it its default action again.
pub fn ignore_signal(signal: i32, ignore: bool) {
    // SAFETY: SIG_IGN and SIG_DFL run no code of ours.
    unsafe {
        libc::signal(signal, if ignore { libc::SIG_IGN } else { libc::SIG_DFL });
    }
}

/// Takes over a descriptor that another process was told to leave open for us, by number.
///
/// # Errors
/// `EBADF` if it is not open.
pub fn adopt_fd(number: i32) -> io::Result<OwnedFd> {
    // SAFETY: F_GETFD takes no pointer.
    if number < 3 || unsafe { libc::fcntl(number, libc::F_GETFD) } < 0 {
        return Err(io::Error::from_raw_os_error(libc::EBADF));
    }
    // SAFETY: it is open, and by the agreement with our starter nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Sets up a child between fork and exec.
///
/// `setup` may only make system calls: the child of a process with threads must not touch locks.
pub fn before_exec(
    command: &mut std::process::Command,
    setup: impl FnMut() -> io::Result<()> + Send + Sync + 'static,
) {
    use std::os::unix::process::CommandExt;
    // SAFETY: the callers' closures only make system calls, as documented.
    unsafe {
        command.pre_exec(setup);
    }
}

/// Duplicates a descriptor to a number, open over exec. For use between fork and exec.
///
/// # Errors
/// Those of dup2(2).
pub fn move_fd(from: i32, to: i32) -> io::Result<()> {
    // SAFETY: plain system calls on descriptor numbers; the numbers are this child's own business.
    let done = unsafe {
        if from == to { libc::fcntl(from, libc::F_SETFD, 0) } else { libc::dup2(from, to) }
    };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// unshare(2). The caller is single-threaded, or asks only for what a thread may have alone.
///
/// # Errors
/// Those of unshare(2).
pub fn unshare(flags: rustix::thread::UnshareFlags) -> io::Result<()> {
    // SAFETY: file-descriptor tables are never unshared here, which is what could break I/O safety.
    Ok(unsafe { rustix::thread::unshare_unsafe(flags - rustix::thread::UnshareFlags::FILES) }?)
}

/// Has all descriptors above 2 closed by the next exec. For use between fork and exec.
///
/// # Errors
/// Those of close_range(2); kernels before 5.11 have no such flag.
pub fn close_on_exec_above_2() -> io::Result<()> {
    const CLOSE_RANGE_CLOEXEC: u32 = 4;
    // SAFETY: only flags of descriptors change.
    let done = unsafe { libc::syscall(libc::SYS_close_range, 3u32, u32::MAX, CLOSE_RANGE_CLOEXEC) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Whether a process with this id, as we see it, exists. One of another user's counts.
#[must_use]
pub fn is_alive(pid: u32) -> bool {
    let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
    pid.is_none_or(|pid| rustix::process::test_kill_process(pid) != Err(rustix::io::Errno::SRCH))
}
