//! The daemon is killed at every named point between two writes of commit, undo, abort, gc and
//! recovery; the next command must find the base at exactly one generation, and go on.
//!
//! With a file system of its own beneath (ext4 and xfs images), the kill is followed by
//! `FS_IOC_SHUTDOWN`, which loses what was not made durable: a power cut.

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::harness::{Said, Work};
use crate::main_job::{CHANGES, TREE};
use crate::manifest::{Manifest, assert_same, read};

/// What is done when the daemon dies.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Doing {
    Commit,
    Undo,
    Abort,
    Gc,
}

/// How hard the machine dies with it.
#[derive(Clone, Copy, Debug)]
enum Death {
    Process,
    /// `FS_IOC_SHUTDOWN` with this flag: 1 writes the log first, 2 loses it.
    Power(u32),
}

/// A workspace in a file system of its own.
struct Disk {
    work: Work,
    /// The image of its file system and how often it was attached.
    image: Option<(PathBuf, Cell<u32>)>,
}

impl Disk {
    fn new(kind: Option<&str>) -> Disk {
        let work = Work::new();
        let image = kind.map(|kind| {
            let image =
                PathBuf::from(format!("/dev/shm/txfs-crash-{}-{kind}.img", std::process::id()));
            drop(std::fs::remove_file(&image));
            let sized = Command::new("truncate").args(["-s", "400M"]).arg(&image).status().unwrap();
            assert!(sized.success());
            let made = Command::new(format!("mkfs.{kind}")).arg("-q").arg(&image).status().unwrap();
            assert!(made.success());
            (image, Cell::new(0))
        });
        let disk = Disk { work, image };
        disk.attach();
        disk
    }

    /// Mounts a fresh copy of the image: the kernel may still know the file system that was shut down by
    /// its old loop device.
    fn attach(&self) {
        let Some((image, times)) = &self.image else { return };
        let before = self.copy(times.get());
        times.set(times.get() + 1);
        let now = self.copy(times.get());
        let from = if times.get() == 1 { image } else { &before };
        let copied = Command::new("cp").arg("--sparse=always").arg(from).arg(&now).status();
        assert!(copied.unwrap().success());
        std::fs::remove_file(from).unwrap();
        // xfs refuses a second file system of one UUID, and the old one may not be gone yet.
        let options = if image.to_string_lossy().contains("-xfs") { "loop,nouuid" } else { "loop" };
        let done =
            Command::new("mount").args(["-o", options]).arg(&now).arg(self.work.dir()).status();
        assert!(done.unwrap().success());
    }

    fn copy(&self, n: u32) -> PathBuf {
        let image = self.image.as_ref().map(|(image, _)| image.display().to_string());
        PathBuf::from(format!("{}.{n}", image.unwrap_or_default()))
    }

    fn detach(&self) {
        if self.image.is_some() {
            let done = Command::new("umount").arg(self.work.dir()).status().unwrap();
            assert!(done.success(), "the file system is still in use");
        }
    }

    fn die(&self, death: Death) {
        let Death::Power(flag) = death else { return };
        let code = "import fcntl,os,struct,sys\nfd=os.open(sys.argv[1],os.O_RDONLY)\nfcntl.ioctl(fd,0x8004587d,struct.pack('I',int(sys.argv[2])))";
        let done = Command::new("python3")
            .args(["-c", code])
            .arg(self.work.dir())
            .arg(flag.to_string())
            .status();
        assert!(done.unwrap().success());
        self.detach();
        self.attach();
    }

    fn dir(&self) -> PathBuf {
        self.work.dir()
    }

    fn txfs(&self, args: &[&str], failpoint: Option<&str>) -> Said {
        let mut command = self.work.command_in("/");
        command.arg("-C").arg(self.dir()).args(args);
        if let Some(point) = failpoint {
            command.env("TXFS_FAILPOINT", point);
        }
        Said::of(command.output().unwrap())
    }

    fn sh(&self, script: &str) {
        let done =
            Command::new("sh").args(["-ec", script]).current_dir(self.dir()).status().unwrap();
        assert!(done.success());
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if let Some((_, times)) = &self.image {
            self.txfs(&["__stop", "--force"], None);
            let done = Command::new("umount").arg("-l").arg(self.work.dir()).status();
            let gone = std::fs::remove_file(self.copy(times.get()));
            if !std::thread::panicking() {
                assert!(done.unwrap().success());
                gone.unwrap();
            }
        }
    }
}

/// Brings a disk to the state in which `doing` is about to happen. Answers the legal outcomes.
fn prepare(disk: &Disk, doing: Doing) -> (Manifest, Manifest) {
    disk.txfs(&["abort"], None);
    disk.sh("find . -mindepth 1 -maxdepth 1 ! -name .txfs ! -name lost+found -exec rm -rf {} +");
    disk.sh(TREE);
    let run = |script: &str| disk.txfs(&["run", "--", "sh", "-ec", script], None).ok();
    let before = tree(&disk.dir());
    match doing {
        Doing::Commit => {
            run(CHANGES);
            // What commit gives is learned from an undo; see `outcomes`.
            (before.clone(), before)
        }
        Doing::Undo | Doing::Gc => {
            run(CHANGES);
            disk.txfs(&["commit"], None).ok();
            (tree(&disk.dir()), before)
        }
        Doing::Abort => {
            run(CHANGES);
            (before.clone(), before)
        }
    }
}

fn tree(dir: &Path) -> Manifest {
    let mut m = read(dir, true);
    m.retain(|p, _| !p.starts_with(b"lost+found"));
    // Making the store of a file system's root changes nothing else.
    m
}

fn verb(doing: Doing) -> &'static [&'static str] {
    match doing {
        Doing::Commit => &["commit"],
        Doing::Undo => &["undo"],
        Doing::Abort => &["abort"],
        Doing::Gc => &["gc", "--keep", "0"],
    }
}

/// Kills at the `n`-th pass of `point` while `doing`; answers whether the point was reached.
fn round(disk: &Disk, doing: Doing, point: &str, n: u32, death: Death) -> bool {
    let what = format!("{doing:?} killed at {point}:{n} ({death:?})");
    let (old, new) = prepare(disk, doing);
    let generation = live(disk);
    disk.txfs(&["__stop", "--force"], None).ok();
    if matches!(death, Death::Power(_)) {
        disk.sh("sync -f .");
    }
    let said = disk.txfs(verb(doing), Some(&format!("{point}:{n}")));
    if said.code == 0 {
        disk.txfs(&["__stop", "--force"], None).ok();
        return false;
    }
    disk.die(death);
    // Recovery dies as well, at its first steps, and is begun again.
    for again in ["apply.step.after:1", "apply.step.before:2", "apply.synced:1"] {
        if disk.txfs(&["--json", "status"], Some(again)).code != 0 {
            disk.die(death);
        }
        disk.txfs(&["__stop", "--force"], None);
    }
    // Whatever comes next recovers; status is harmless.
    let status = disk.txfs(&["--json", "status"], None);
    assert!(status.code == 0 || status.code == 9, "{what}: {}{}", status.out, status.err);
    let now = tree(&disk.dir());
    match doing {
        Doing::Commit if live(disk) == generation => {
            assert_same(&what, &old, &now);
            disk.txfs(&["commit"], None).ok();
            disk.txfs(&["undo"], None).ok();
            assert_same(&format!("{what}, committed again and undone"), &old, &tree(&disk.dir()));
        }
        Doing::Commit => {
            assert_eq!(live(disk), generation + 1, "{what}");
            disk.txfs(&["undo"], None).ok();
            assert_same(&format!("{what}, undone"), &old, &tree(&disk.dir()));
        }
        Doing::Undo if live(disk) == generation => {
            assert_same(&what, &old, &now);
            disk.txfs(&["undo"], None).ok();
            assert_same(&format!("{what}, undone again"), &new, &tree(&disk.dir()));
        }
        Doing::Undo => assert_same(&what, &new, &now),
        Doing::Abort | Doing::Gc => {
            assert_same(&what, &old, &now);
            disk.txfs(verb(doing), None).ok();
            assert_same(&format!("{what}, done again"), &old, &tree(&disk.dir()));
        }
    }
    let next =
        disk.txfs(&["run", "--on-success", "commit", "--", "sh", "-c", "echo next > next"], None);
    assert_eq!(next.code, 0, "{what}: the next commit: {}", next.err);
    let doctor = disk.txfs(&["doctor"], None);
    assert_eq!(doctor.code, 0, "{what}: {}{}", doctor.out, doctor.err);
    true
}

fn live(disk: &Disk) -> u64 {
    disk.txfs(&["--json", "history"], None).ok().json()["generation"].as_u64().unwrap()
}

/// Every named point, its first `passes` passes.
fn every_point(kind: Option<&str>, deaths: &[Death], passes: u32) {
    let disk = Disk::new(kind);
    let points = disk.txfs(&["__failpoints"], None).ok().out;
    let mut killed = 0;
    for death in deaths {
        for point in points.lines() {
            let doing = match point.split('.').next() {
                Some("undo") => &[Doing::Undo][..],
                Some("abort") => &[Doing::Abort],
                Some("gc") => &[Doing::Gc],
                _ => &[Doing::Commit, Doing::Undo],
            };
            for &doing in doing {
                for n in 1..=passes {
                    if !round(&disk, doing, point, n, *death) {
                        break;
                    }
                    killed += 1;
                }
            }
        }
    }
    println!("killed at {killed} points ({kind:?}, {deaths:?})");
    assert!(killed > 10, "only {killed} points were reached");
}

#[test]
fn killed_at_every_point() {
    every_point(None, &[Death::Process], 3);
}

#[test]
fn power_cut_at_every_point_on_ext4() {
    every_point(Some("ext4"), &[Death::Power(1), Death::Power(2)], 1);
}

#[test]
fn power_cut_at_every_point_on_xfs() {
    every_point(Some("xfs"), &[Death::Power(1), Death::Power(2)], 1);
}
