//! A workspace with the program beside it, cleaned up whatever happens.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::manifest::{self, Manifest};

/// The program under test.
pub const TXFS: &str = env!("CARGO_BIN_EXE_txfs");

/// A temporary workspace of its own.
pub struct Work {
    // Dropped last: the directory goes only after the daemon.
    temp: tempfile::TempDir,
    user: bool,
    /// Set for every command, and so for the daemon.
    pub env: Vec<(&'static str, &'static str)>,
}

/// What a command said.
#[derive(Debug)]
pub struct Said {
    pub code: i32,
    pub out: String,
    pub err: String,
    pub raw: Vec<u8>,
}

impl Said {
    pub fn of(output: Output) -> Said {
        use std::os::unix::process::ExitStatusExt;
        Said {
            code: output
                .status
                .code()
                .unwrap_or_else(|| 1000 + output.status.signal().unwrap_or(0)),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
            raw: output.stdout,
        }
    }

    /// The exit code is this one.
    #[track_caller]
    pub fn code(self, code: i32) -> Said {
        assert_eq!(self.code, code, "exit code; stdout:\n{}\nstderr:\n{}", self.out, self.err);
        self
    }

    /// The exit code is 0.
    #[track_caller]
    pub fn ok(self) -> Said {
        self.code(0)
    }

    /// Standard output as one JSON object.
    #[track_caller]
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.out).unwrap_or_else(|e| panic!("not JSON ({e}): {}", self.out))
    }
}

impl Work {
    /// An empty workspace owned by root, used by root.
    #[track_caller]
    pub fn new() -> Work {
        require_root();
        let temp = tempfile::Builder::new().prefix("txfs-e2e-").tempdir_in("/var/tmp").unwrap();
        fs::create_dir(temp.path().join("ws")).unwrap();
        Work { temp, user: false, env: Vec::new() }
    }

    /// An empty workspace owned and used by the ordinary user `txfs-test`.
    #[track_caller]
    pub fn of_user() -> Work {
        let mut work = Work::new();
        work.user = true;
        fs::set_permissions(work.temp.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let (uid, gid) = test_user();
        for dir in ["ws", "bin", "runtime"] {
            let path = work.temp.path().join(dir);
            fs::create_dir_all(&path).unwrap();
            std::os::unix::fs::chown(&path, Some(uid), Some(gid)).unwrap();
        }
        // The build directory need not be open to everybody.
        let copy = work.temp.path().join("bin/txfs");
        fs::copy(TXFS, &copy).unwrap();
        fs::set_permissions(&copy, fs::Permissions::from_mode(0o755)).unwrap();
        fs::set_permissions(work.temp.path().join("runtime"), fs::Permissions::from_mode(0o700))
            .unwrap();
        work
    }

    /// The workspace directory.
    pub fn dir(&self) -> PathBuf {
        self.temp.path().join("ws")
    }

    /// A path in the workspace directory.
    pub fn path(&self, rel: impl AsRef<Path>) -> PathBuf {
        self.dir().join(rel)
    }

    /// A path beside the workspace.
    pub fn beside(&self, rel: impl AsRef<Path>) -> PathBuf {
        self.temp.path().join(rel)
    }

    /// A command that runs in the workspace as its user.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = if self.user {
            let mut c = Command::new("setpriv");
            let (uid, gid) = test_user();
            c.args([
                "--reuid",
                &uid.to_string(),
                "--regid",
                &gid.to_string(),
                "--clear-groups",
                "--",
            ]);
            c.arg(program);
            c.env("HOME", "/home/txfs-test").env("USER", "txfs-test");
            c.env("XDG_RUNTIME_DIR", self.beside("runtime"));
            c
        } else {
            Command::new(program)
        };
        for name in ["TXFS", "TXFS_TXN", "TXFS_WORKSPACE", "TXFS_SOCKET", "TXFS_FAILPOINT"] {
            command.env_remove(name);
        }
        command.envs(self.env.iter().copied());
        command.current_dir(self.dir()).stdin(Stdio::null());
        command
    }

    /// The program started in another directory.
    pub fn command_in(&self, dir: &str) -> Command {
        let mut command = self.command(self.bin());
        command.current_dir(dir);
        command
    }

    /// The program's path for this workspace's user.
    pub fn bin(&self) -> PathBuf {
        if self.user { self.beside("bin/txfs") } else { PathBuf::from(TXFS) }
    }

    /// `txfs ARGS`
    #[track_caller]
    pub fn txfs<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Said {
        Said::of(self.command(self.bin()).args(args).output().unwrap())
    }

    /// `txfs run -- sh -ec SCRIPT`
    #[track_caller]
    pub fn run(&self, script: &str) -> Said {
        self.txfs(["run", "--", "sh", "-ec", script])
    }

    /// `sh -ec SCRIPT` in the workspace itself, without txfs. Must succeed.
    #[track_caller]
    pub fn sh(&self, script: &str) -> Said {
        Said::of(self.command("sh").args(["-ec", script]).output().unwrap()).ok()
    }

    /// Everything in the workspace directory as it is now.
    pub fn manifest(&self) -> Manifest {
        manifest::read(&self.dir(), true)
    }

    /// The number of the live generation.
    #[track_caller]
    pub fn generation(&self) -> u64 {
        self.txfs(["--json", "history"]).ok().json()["generation"].as_u64().unwrap()
    }

    /// The daemon's process id.
    #[track_caller]
    pub fn daemon_pid(&self) -> u32 {
        self.txfs(["--json", "status"]).ok().json()["daemon_pid"].as_u64().unwrap() as u32
    }

    /// Kills the daemon and waits until it is gone.
    #[track_caller]
    pub fn kill_daemon(&self) {
        kill_and_wait(self.daemon_pid());
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        if self.dir().join(".txfs").exists() {
            let said = self.txfs(["__stop", "--force"]);
            if said.code != 0 && !std::thread::panicking() {
                panic!("the daemon did not stop: {}{}", said.out, said.err);
            }
        }
        let prefix = self.temp.path().display().to_string();
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        for line in mounts.lines() {
            let Some(at) = line.split(' ').nth(1) else { continue };
            if at.starts_with(&prefix) {
                let status = Command::new("umount").args(["-l", at]).status();
                if !std::thread::panicking() {
                    panic!("{at} was left mounted; umount: {status:?}");
                }
            }
        }
    }
}

/// SIGKILL, then waits for the end of a process that is not our child.
#[track_caller]
pub fn kill_and_wait(pid: u32) {
    use rustix::event::{PollFd, PollFlags, poll};
    use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
    let pid = Pid::from_raw(pid as i32).unwrap();
    let fd = pidfd_open(pid, PidfdFlags::empty()).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
    let limit = rustix::event::Timespec { tv_sec: 20, tv_nsec: 0 };
    assert_eq!(
        poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&limit)).unwrap(),
        1,
        "it lives on"
    );
}

/// Fails where the suite cannot show anything.
#[track_caller]
pub fn require_root() {
    assert!(
        rustix::process::geteuid().is_root(),
        "these tests need root: run scripts/test as root"
    );
    assert!(Path::new("/dev/fuse").exists(), "these tests need /dev/fuse: modprobe fuse");
}

/// The ids of `txfs-test`.
#[track_caller]
pub fn test_user() -> (u32, u32) {
    let passwd = fs::read_to_string("/etc/passwd").unwrap();
    let line = passwd
        .lines()
        .find(|l| l.starts_with("txfs-test:"))
        .expect("the user txfs-test is missing: run scripts/setup test");
    let mut fields = line.split(':').skip(2).map(|f| f.parse().unwrap());
    (fields.next().unwrap(), fields.next().unwrap())
}
