//! The main job as a user without any privilege.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use crate::harness::{Work, test_user};
use crate::main_job::TREE;
use crate::manifest::{self, assert_same};

/// What an ordinary user can change.
const CHANGES: &str = r#"
rm -rf src/deep; mv src lib; echo more >> lib/main.rs; rm tool; printf 'A\n' > docs/notes.txt
mkdir -p new/dir; echo n > new/dir/file; ln new/dir/file new/second; ln -s file new/dir/link; mkfifo new/pipe
rmdir empty; echo now a file > empty; chmod 600 big; touch -d 1999-01-01 sparse
setfattr -n user.taste -v sweet big; mv docs/hard docs/harder; chmod 500 docs; mkdir ro; echo 1 > ro/f; chmod 555 ro
"#;

#[test]
fn run_commit_undo() {
    let work = Work::of_user();
    work.sh(TREE);
    let before = work.manifest();
    let said = work.run(&format!("id -u; {CHANGES}")).ok();
    assert_eq!(said.out.trim(), test_user().0.to_string());
    assert_same("after run", &before, &work.manifest());
    work.txfs(["status"]).ok();
    work.txfs(["diff"]).ok();
    work.txfs(["commit"]).ok();
    let plain = Work::of_user();
    plain.sh(TREE);
    plain.sh(CHANGES);
    assert_same(
        "plain, base",
        &manifest::read(&plain.dir(), false),
        &manifest::read(&work.dir(), false),
    );
    plain.sh("chmod 755 docs ro");
    work.txfs(["undo"]).ok();
    assert_same("before, after undo", &before, &work.manifest());
}

#[test]
fn abort_leaves_no_trace() {
    let work = Work::of_user();
    work.sh(TREE);
    let before = work.manifest();
    work.run(CHANGES).ok();
    work.txfs(["abort"]).ok();
    assert_same("after abort", &before, &work.manifest());
}

#[test]
fn root_in_a_user_s_view_makes_what_the_user_can_commit() {
    let work = Work::of_user();
    work.sh("echo 0 > a");
    // The user's daemon is there first: root joins it.
    work.run("echo user > u").ok();
    let root = |script: &str| {
        let said = std::process::Command::new(work.bin())
            .args(["run", "--", "sh", "-ec", script])
            .current_dir(work.dir())
            .envs(work.command("true").get_envs().filter_map(|(k, v)| Some((k, v?))))
            .output()
            .unwrap();
        crate::harness::Said::of(said)
    };
    root("echo root > r; ! chown 0 r 2>/dev/null; ! chgrp 12345 r 2>/dev/null").ok();
    work.txfs(["commit"]).ok();
    let (uid, gid) = test_user();
    assert_eq!(work.sh("cat r; stat -c %u:%g r").out, format!("root\n{uid}:{gid}\n"));
}

#[test]
fn plain_mount_by_fusermount() {
    let work = Work::of_user();
    work.sh("echo 0 > a; mkdir ../runtime/mnt");
    work.txfs(["mount", "../runtime/mnt"]).ok();
    work.sh("cd ../runtime/mnt; echo 1 > a; echo 2 > b; ! test -e ../../ws/b");
    work.txfs(["commit"]).ok();
    assert_eq!(work.sh("cat a b ../runtime/mnt/a").out, "1\n2\n1\n");
    work.txfs(["umount"]).ok();
    work.sh("! test -e ../runtime/mnt/a");
}

#[test]
fn the_command_cannot_uncover_the_base() {
    let work = Work::of_user();
    work.sh("echo 0 > a");
    work.run("umount . 2>/dev/null || true; umount -l \"$PWD\" 2>/dev/null || true; unshare -Urm umount -l \"$PWD\" 2>/dev/null || true; echo 1 > a; grep -q CapEff:.0000000000000000 /proc/self/status").ok();
    assert_eq!(work.sh("cat a").out, "0\n");
}

#[test]
fn a_second_run_joins_and_sees_the_first() {
    let work = Work::of_user();
    work.run("echo 1 > a").ok();
    work.run("cat a; echo 2 >> a").ok();
    work.kill_daemon();
    assert_eq!(work.run("cat a").ok().out, "1\n2\n");
    // Two at once share one view.
    let mut first = work
        .command(work.bin())
        .args(["run", "--", "sh", "-c", "echo up; read x; cat from-second"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = BufReader::new(first.stdout.take().unwrap());
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    assert_eq!(line, "up\n");
    work.run("echo shared > from-second").ok();
    drop(first.stdin.take());
    out.read_line(&mut line).unwrap();
    assert!(first.wait().unwrap().success());
    assert_eq!(line, "up\nshared\n");
}

#[test]
fn another_user_gets_no_answer() {
    let work = Work::of_user();
    work.run("echo 1 > a").ok();
    let socket = work.run("echo $TXFS_SOCKET").ok().out;
    let said = std::process::Command::new("setpriv")
        .args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "--", "python3", "-c"])
        .arg("import socket,sys\ns=socket.socket(socket.AF_UNIX)\ns.connect(sys.argv[1])")
        .arg(socket.trim())
        .output()
        .unwrap();
    assert!(!said.status.success(), "another uid could connect");
}

#[test]
fn root_joins_the_users_daemon() {
    let work = Work::of_user();
    work.run("echo 1 > a").ok();
    let bin = work.beside("bin/txfs");
    let as_root = std::process::Command::new(&bin)
        .args(["--json", "status"])
        .current_dir(work.dir())
        .output()
        .unwrap();
    assert!(as_root.status.success(), "{}", String::from_utf8_lossy(&as_root.stderr));
    let said: serde_json::Value = serde_json::from_slice(&as_root.stdout).unwrap();
    assert_eq!(said["counts"]["added"], 1);
    work.txfs(["commit"]).ok();
    use std::os::unix::fs::MetadataExt;
    assert_eq!(std::fs::metadata(work.path("a")).unwrap().uid(), test_user().0);
}

#[test]
fn a_run_with_any_umask_leaves_the_next_one_a_way_in() {
    let work = Work::of_user();
    let script = format!("umask 777; exec {} run -- true", work.bin().display());
    let said = work.command("sh").args(["-c", &script]).output().unwrap();
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    work.run("echo 1 > a").ok();
}
