//! Who has a file open for writing, as far as /proc tells us: for a message, never for a decision.

use std::ffi::OsStr;
use std::fs;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::base::proc_path;

/// Processes named at most.
const MOST: usize = 8;

/// Processes that have the file behind an fd open for writing. Those that may not be looked at, and those
/// that keep only a mapping, are missing.
pub(super) fn of(fd: BorrowedFd<'_>) -> Vec<u32> {
    let (Ok(file), Ok(processes)) = (fs::metadata(proc_path(fd)), fs::read_dir("/proc")) else {
        return Vec::new();
    };
    let numbers = processes
        .flatten()
        .filter_map(|p| p.file_name().to_str().and_then(|n| n.parse::<u32>().ok()));
    let mut found: Vec<u32> =
        numbers.filter(|pid| writes(*pid, (file.dev(), file.ino()))).take(MOST).collect();
    found.sort_unstable();
    found
}

/// The processes of threads, as far as they still run. What a process opened for another one that has
/// it now is told of the one that opened it.
pub(super) fn processes(threads: &[u32]) -> Vec<u32> {
    let mut found: Vec<u32> = threads.iter().filter_map(|thread| process_of(*thread)).collect();
    found.sort_unstable();
    found.dedup();
    found
}

fn process_of(thread: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{thread}/status")).ok()?;
    status.lines().find_map(|l| l.strip_prefix("Tgid:"))?.trim().parse().ok()
}

fn writes(pid: u32, file: (u64, u64)) -> bool {
    let Ok(fds) = fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
    fds.flatten().any(|fd| {
        let same = fs::metadata(fd.path()).is_ok_and(|m| (m.dev(), m.ino()) == file);
        same && is_writable(pid, &fd.file_name())
    })
}

/// `flags:` in /proc/PID/fdinfo/FD is octal, and the access mode its last two bits.
fn is_writable(pid: u32, fd: &OsStr) -> bool {
    let path = Path::new("/proc").join(pid.to_string()).join("fdinfo").join(fd);
    let Ok(info) = fs::read_to_string(path) else { return false };
    let flags = info.lines().find_map(|l| l.strip_prefix("flags:"));
    flags
        .and_then(|f| i32::from_str_radix(f.trim(), 8).ok())
        .is_some_and(|f| f & libc::O_ACCMODE != 0)
}
