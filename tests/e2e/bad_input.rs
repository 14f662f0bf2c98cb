//! Bad input and bad luck: a clear error with the path and the next step, and nothing is lost.

use std::fs;

use crate::harness::{TXFS, Work};

#[track_caller]
fn refused(work: &Work, args: &[&str], code: i32) -> serde_json::Value {
    let said = work.txfs(args).code(code);
    assert!(said.err.contains("Hint:"), "no next step in: {}", said.err);
    assert!(!said.err.contains("panicked"), "{}", said.err);
    let mut json = vec!["--json"];
    json.extend(args);
    let said = work.txfs(json).code(code).json();
    assert_eq!(said["ok"], false);
    assert_eq!(said["schema_version"], 1);
    said
}

#[test]
fn unknown_names_and_generations() {
    let work = Work::new();
    refused(&work, &["status"], 9);
    work.run("echo 1 > a").ok();
    refused(&work, &["undo", "7"], 9);
    refused(&work, &["show", "7"], 9);
    refused(&work, &["commit", "--txn", "nobody"], 9);
    refused(&work, &["begin", "--txn", "../x"], 2);
    refused(&work, &["begin"], 7);
}

#[test]
fn a_workspace_that_must_not_be_one() {
    let work = Work::new();
    let said = work.txfs(["-C", "/", "run", "--", "true"]).code(125);
    assert!(said.err.contains("--force"), "{}", said.err);
    assert!(!std::path::Path::new("/.txfs").exists());
    let said =
        work.command(TXFS).args(["-C", "/root", "begin"]).env("HOME", "/root").output().unwrap();
    assert_eq!(said.status.code(), Some(3), "{}", String::from_utf8_lossy(&said.stderr));
    work.txfs(["-C", "/no/such/dir", "begin"]).code(9);
    work.sh("echo x > file");
    work.txfs(["-C", "file", "begin"]).code(9);
}

#[test]
fn a_store_on_another_device() {
    let work = Work::new();
    let said = work.txfs(["--store", "/dev/shm/txfs-e2e-store", "begin"]);
    assert_ne!(said.code, 0);
    assert!(
        said.err.contains("/dev/shm/txfs-e2e-store") && said.err.contains("Hint:"),
        "{}",
        said.err
    );
}

#[test]
fn a_read_only_base() {
    let work = Work::new();
    work.sh("mkdir ../low; echo 1 > ../low/a; mount --bind ../low . && mount -o remount,ro,bind .");
    let dir = work.dir();
    let said = work.command(TXFS).arg("-C").arg(&dir).arg("begin").output().unwrap();
    let text = String::from_utf8_lossy(&said.stderr).into_owned();
    std::process::Command::new("umount").arg(&dir).status().unwrap();
    assert_ne!(said.status.code(), Some(0));
    assert!(text.contains("ead-only") && text.contains("Hint:"), "{text}");
}

#[test]
fn a_base_that_vanishes() {
    let work = Work::new();
    work.run("echo 1 > a").ok();
    fs::rename(work.dir(), work.beside("elsewhere")).unwrap();
    let said = work.command_in("/").arg("-C").arg(work.dir()).arg("status").output().unwrap();
    assert_eq!(said.status.code(), Some(9), "{}", String::from_utf8_lossy(&said.stderr));
    fs::rename(work.beside("elsewhere"), work.dir()).unwrap();
    work.txfs(["commit"]).ok();
    assert!(work.path("a").exists());
}

#[test]
fn mount_points_that_will_not_do() {
    let work = Work::new();
    work.sh("mkdir inside ../full; echo 1 > ../full/f; echo 1 > ../plain");
    refused(&work, &["mount", "../missing"], 9);
    refused(&work, &["mount", "../plain"], 2);
    refused(&work, &["mount", "inside"], 3);
    let said = work.txfs(["mount", "../full"]);
    assert_ne!(said.code, 0, "an occupied directory is not covered unasked");
    assert_eq!(work.sh("cat ../full/f").out, "1\n");
}

#[test]
fn a_workspace_inside_a_view() {
    let work = Work::new();
    work.sh("mkdir sub; echo 1 > sub/a");
    let bin = work.bin();
    // A run in a view is a run of the same transaction; a view is no workspace of its own.
    work.run(&format!(
        "cd sub; {} run -- sh -c 'echo 2 > b'; cat b; ls -a | grep -c txfs && exit 9; true",
        bin.display()
    ))
    .ok();
    let at = work.beside("mnt");
    fs::create_dir(&at).unwrap();
    work.txfs(["mount", at.to_str().unwrap()]).ok();
    let said = work
        .command(TXFS)
        .args(["__daemon", "--ready-fd", "3", "--workspace"])
        .arg(at.join("sub"))
        .output();
    assert!(!said.unwrap().status.success());
    assert!(!at.join("sub/.txfs").exists());
    work.txfs(["umount"]).ok();
}

#[test]
fn verbs_work_from_inside_the_view_and_from_below() {
    let work = Work::new();
    work.sh("mkdir -p sub/deep; echo 1 > sub/deep/a");
    let bin = work.bin();
    let bin = bin.display();
    work.run(&format!("cd sub/deep; echo 2 > a; {bin} status | grep -q sub/deep/a; {bin} commit"))
        .ok();
    assert_eq!(work.sh("cat sub/deep/a").out, "2\n");
    assert_eq!(work.sh(&format!("cd sub/deep && {bin} --json status")).json()["generation"], 1);
}

#[test]
fn a_corrupt_journal_is_reported_and_nothing_is_lost() {
    let work = Work::new();
    work.sh("echo base > keep");
    work.run("echo staged > new; sync new").ok();
    work.txfs(["__stop", "--force"]).ok();
    let db = work.path(".txfs/db/db");
    let mut bytes = fs::read(&db).unwrap();
    for at in (0..bytes.len()).step_by(37) {
        bytes[at] ^= 0x55;
    }
    fs::write(&db, &bytes).unwrap();
    let said = work.txfs(["status"]);
    assert_eq!(said.code, 12, "{}{}", said.out, said.err);
    assert!(said.err.contains("Hint:") && said.err.contains("doctor"), "{}", said.err);
    let doctor = work.txfs(["doctor"]);
    assert_ne!(doctor.code, 0);
    assert!(
        doctor.out.contains("staged") || doctor.err.contains("staged"),
        "{}{}",
        doctor.out,
        doctor.err
    );
    assert_eq!(work.sh("cat keep; cat .txfs/staged/*/*").out, "base\nstaged\n");
}

#[test]
fn two_daemons_at_once() {
    let work = Work::new();
    let children: Vec<_> = (0..6)
        .map(|_| {
            work.command(work.bin())
                .args(["run", "--", "sh", "-c", "echo 1 >> $$"])
                .stderr(std::process::Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    for child in children {
        let out = child.wait_with_output().unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    }
    assert_eq!(work.txfs(["--json", "status"]).ok().json()["counts"]["added"], 6);
}

#[test]
fn a_full_disk_loses_nothing() {
    let work = Work::new();
    // The workspace is a small file system of its own.
    work.sh("truncate -s 24M ../img; mkfs.ext4 -q -m 0 ../img; mount -o loop ../img .");
    let dir = work.dir();
    let at = |args: &[&str]| work.command_in("/").arg("-C").arg(&dir).args(args).output().unwrap();
    let run = at(&[
        "run",
        "--",
        "sh",
        "-c",
        "echo kept > kept; dd if=/dev/zero of=big bs=64k 2>err; grep -q 'No space' err",
    ]);
    let abort = at(&["abort"]);
    let again = at(&["run", "--on-success", "commit", "--", "sh", "-c", "echo 2 > small"]);
    at(&["__stop", "--force"]);
    let small = fs::read_to_string(dir.join("small"));
    let big = dir.join("big").exists();
    let umount = std::process::Command::new("umount").arg(&dir).status().unwrap();
    let text = |o: &std::process::Output| String::from_utf8_lossy(&o.stderr).into_owned();
    assert!(run.status.success(), "{}", text(&run));
    assert!(abort.status.success(), "{}", text(&abort));
    assert!(again.status.success(), "{}", text(&again));
    assert_eq!(small.unwrap(), "2\n");
    assert!(!big && umount.success());
}

#[test]
fn a_transaction_can_be_dropped_on_a_full_disk() {
    let work = Work::new();
    work.sh("truncate -s 64M ../img; mkfs.ext4 -q -m 0 ../img; mount -o loop ../img .");
    work.sh("echo 1 > f");
    let dir = work.dir();
    let at = |args: &[&str]| work.command_in("/").arg("-C").arg(&dir).args(args).output().unwrap();
    let change = "echo 2 > f; mkdir d; head -c 20M /dev/zero > d/big";
    // Not one block is left by somebody outside.
    let fill = "cat /dev/zero > fill 2> /dev/null || :; n=0; while head -c 4k /dev/zero > fill$n; do n=$((n + 1)); done 2> /dev/null || :";
    let mut said = Vec::new();
    for restart in [false, true] {
        said.push(at(&["run", "--", "sh", "-ec", change]));
        if restart {
            said.push(at(&["__stop", "--force"]));
        }
        work.sh(fill);
        said.push(at(&["abort"]));
        work.sh("rm fill*");
        said.push(at(&["run", "--", "sh", "-ec", "test ! -e d; echo 2 > small"]));
        said.push(at(&["abort"]));
    }
    at(&["__stop", "--force"]);
    let left = work.sh("cat f; ls").out;
    let umount = std::process::Command::new("umount").arg(&dir).status().unwrap();
    for (n, out) in said.iter().enumerate() {
        assert!(out.status.success(), "{n}: {}", String::from_utf8_lossy(&out.stderr));
    }
    assert_eq!(left, "1\nf\nlost+found\n");
    assert!(umount.success());
}

#[test]
fn deep_and_long_paths() {
    let work = Work::new();
    work.run(
        r#"python3 - <<'P'
import os
for i in range(60):
    os.mkdir("d" * 200); os.chdir("d" * 200)
open("f", "w").write("deep")
P"#,
    )
    .ok();
    assert_eq!(work.txfs(["--json", "status"]).ok().json()["counts"]["added"], 61);
    work.txfs(["commit"]).ok();
    work.sh("python3 -c \"import os\nfor i in range(60): os.chdir('d'*200)\nassert open('f').read()=='deep'\"");
    work.txfs(["undo"]).ok();
    assert_eq!(fs::read_dir(work.dir()).unwrap().count(), 1);
}

#[test]
fn history_has_its_limits() {
    let work = Work::new();
    for i in 0..70 {
        work.txfs(["run", "--on-success", "commit", "--", "sh", "-c", &format!("echo {i} > a")])
            .ok();
    }
    work.txfs(["gc"]).ok();
    let kept = work.txfs(["--json", "history"]).ok().json();
    let with_undo =
        kept["generations"].as_array().unwrap().iter().filter(|g| g["pruned"] == false).count();
    assert_eq!(with_undo, 64);
    let said = refused(&work, &["undo", "1"], 9);
    assert_eq!(said["code"], "pruned");
    work.txfs(["undo"]).ok();
    assert_eq!(work.sh("cat a").out, "68\n");
}

#[test]
fn few_descriptors_are_enough() {
    let work = Work::new();
    work.sh("for i in $(seq 300); do mkdir -p t/d$i; echo $i > t/d$i/f; done");
    let bin = work.bin();
    let bin = bin.display();
    // The daemon raises the soft limit to the hard one, so both are set.
    work.sh(&format!("ulimit -n 128; {bin} run -- sh -ec 'find t -type f | wc -l; cat t/*/f | wc -l; for i in $(seq 300); do echo x >> t/d$i/f; done; rm -r t/d7'"));
    work.sh(&format!("ulimit -n 128; {bin} commit"));
    assert_eq!(work.sh("cat t/*/f | grep -c x; ls t | wc -l").out, "299\n299\n");
}

#[test]
fn a_store_removed_while_it_is_used() {
    let work = Work::new();
    work.sh("echo base > a");
    let at = work.beside("mnt");
    fs::create_dir(&at).unwrap();
    work.txfs(["mount", at.to_str().unwrap()]).ok();
    fs::write(at.join("a"), "view").unwrap();
    let socket = fs::read(work.path(".txfs/socket")).unwrap();
    fs::rename(work.path(".txfs"), work.beside("gone")).unwrap();
    let socket = String::from_utf8(socket).unwrap();
    let said = work
        .command(work.bin())
        .args(["-C", at.to_str().unwrap(), "commit"])
        .env("TXFS_SOCKET", socket)
        .output()
        .unwrap();
    assert_eq!(said.status.code(), Some(10), "{}", String::from_utf8_lossy(&said.stderr));
    assert_eq!(work.sh("cat a").out, "base\n");
    fs::rename(work.beside("gone"), work.path(".txfs")).unwrap();
    work.txfs(["commit"]).ok();
    assert_eq!(work.sh("cat a").out, "view");
    work.txfs(["umount"]).ok();
}
