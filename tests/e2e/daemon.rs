//! The daemon's life: how it starts, whom it answers, how it ends.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Stdio;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

use crate::harness::{Work, test_user};

fn socket(work: &Work) -> PathBuf {
    fs::read_to_string(work.path(".txfs/socket")).unwrap().into()
}

/// Does something and waits for the end of a process, which must come within ten seconds.
#[track_caller]
fn ends(pid: u32, after: impl FnOnce(Pid)) {
    let pid = Pid::from_raw(pid as i32).unwrap();
    let fd = pidfd_open(pid, PidfdFlags::empty()).unwrap();
    after(pid);
    let limit = Timespec { tv_sec: 10, tv_nsec: 0 };
    assert_eq!(
        poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&limit)).unwrap(),
        1,
        "it lives on"
    );
}

#[test]
fn it_ends_by_itself_and_at_sigterm_and_keeps_the_transaction() {
    let work = Work::new();
    work.sh("echo 0 > f");
    work.run("echo 1 > f; echo 2 > g").ok();
    ends(work.daemon_pid(), |_| {});
    assert!(!work.path(".txfs/socket").exists(), "the record of the socket is left");
    work.run("grep 1 f; grep 2 g; echo 3 > h").ok();
    let socket = socket(&work);
    ends(work.daemon_pid(), |pid| kill_process(pid, Signal::TERM).unwrap());
    assert!(!socket.exists(), "the socket is left");
    work.run("grep 3 h").ok();
    // With a view mounted: the mount is left as a fence, and the next command clears it away.
    let at = work.beside("mnt");
    fs::create_dir(&at).unwrap();
    work.txfs(["mount", at.to_str().unwrap()]).ok();
    ends(work.daemon_pid(), |pid| kill_process(pid, Signal::TERM).unwrap());
    let dead = fs::read_to_string(at.join("f")).unwrap_err();
    assert_eq!(dead.raw_os_error(), Some(libc::ENOTCONN));
    work.txfs(["mount", at.to_str().unwrap()]).ok();
    assert_eq!(fs::read_to_string(at.join("f")).unwrap(), "1\n");
    work.txfs(["umount"]).ok();
    work.txfs(["commit"]).ok();
    assert_eq!(work.sh("cat f g h").out, "1\n2\n3\n");
}

#[test]
fn it_keeps_nothing_that_its_starter_had_open() {
    let work = Work::new();
    let bin = work.bin();
    let bin = bin.display();
    work.sh(&format!(
        "(flock 9; umask 077; {bin} begin >/dev/null) 9>../lock 2>/dev/null; flock -n ../lock true"
    ));
    let pid = work.daemon_pid();
    let fds = work.sh(&format!("ls -l /proc/{pid}/fd")).out;
    let lock = work.beside("lock");
    assert!(!fds.contains(lock.to_str().unwrap()), "{fds}");
    let limits = fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
    let files = limits.lines().find(|l| l.starts_with("Max open files")).unwrap();
    let fields: Vec<_> = files.split_whitespace().collect();
    assert_eq!(fields[3], fields[4], "{files}");
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    assert!(status.contains("Umask:\t0000"), "{status}");
    assert_eq!(fs::read_link(format!("/proc/{pid}/cwd")).unwrap(), PathBuf::from("/"));
}

#[test]
fn nonsense_and_silence_on_the_socket_hurt_nobody() {
    let work = Work::new();
    work.txfs(["begin"]).ok();
    let pid = work.daemon_pid();
    let connect = || UnixStream::connect(socket(&work)).unwrap();
    let silent: Vec<_> = (0..20).map(|_| connect()).collect();
    for bytes in [
        &b"\xff\xff\xff\xffJ"[..],
        b"\x05\0\0\0Jhello",
        b"\x02\0\0\0J{}",
        b"\x01\0\0\0Xx",
        b"\x10\0\0\0Jshort",
        b"\0",
        b"GET / HTTP/1.1\r\n\r\n",
    ] {
        let mut stream = connect();
        stream.write_all(bytes).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut said = Vec::new();
        // Closed, or reset with what was not read.
        if stream.read_to_end(&mut said).is_ok() {
            assert!(said.is_empty() || said.contains(&b'{'), "{said:?}");
        }
    }
    assert_eq!(work.daemon_pid(), pid, "another daemon answers");
    drop(silent);
}

#[test]
fn another_users_socket_is_not_asked() {
    let work = Work::new();
    work.sh("echo 0 > f; chmod 755 ..");
    work.run("echo 1 > f").ok();
    let real = work.daemon_pid();
    ends(real, |pid| kill_process(pid, Signal::TERM).unwrap());
    let (uid, gid) = test_user();
    let at = format!("/tmp/txfs-imposter-{}", std::process::id());
    let listen = format!(
        r#"
import socket, os, sys
s = socket.socket(socket.AF_UNIX); s.bind("{at}"); s.listen(); print("up", flush=True)
c, _ = s.accept()
print("data" if c.recv(100) else "closed", flush=True)
"#
    );
    let mut imposter = work
        .command("setpriv")
        .args(["--reuid", &uid.to_string(), "--regid", &gid.to_string(), "--clear-groups"])
        .args(["/usr/bin/python3", "-c", &listen])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut hears = std::io::BufReader::new(imposter.stdout.take().unwrap());
    let mut line = String::new();
    std::io::BufRead::read_line(&mut hears, &mut line).unwrap();
    assert_eq!(line, "up\n");
    fs::write(work.path(".txfs/socket"), &at).unwrap();
    let status = work.txfs(["--json", "status"]).ok().json();
    assert_eq!(status["counts"]["modified"], 1, "{status}");
    line.clear();
    std::io::BufRead::read_line(&mut hears, &mut line).unwrap();
    assert_eq!(line, "closed\n", "it was told something");
    imposter.wait().unwrap();
    fs::remove_file(&at).unwrap();
}

#[test]
fn a_daemon_that_dies_under_a_run_leaves_an_error_and_no_hang() {
    let work = Work::new();
    work.sh("echo base > f");
    let before = work.manifest();
    let bin = work.bin();
    let said = work.run(&format!(
        "echo view > f; sync f; kill -9 $({} --json status | sed 's/.*\"daemon_pid\":\\([0-9]*\\).*/\\1/'); while cat f 2>/dev/null; do :; done; if timeout 10 cat f; then exit 8; fi; if timeout 20 {} status 2>&1; then :; else echo \"status $?\"; fi; if echo x > f; then exit 9; fi; exit 3",
        bin.display(), bin.display()
    ));
    assert_eq!(said.code, 3, "{said:?}");
    crate::manifest::assert_same("base", &before, &work.manifest());
    assert!(said.out.contains("Hint:") && !said.out.contains("124"), "{said:?}");
    work.run("grep view f").ok();
}
