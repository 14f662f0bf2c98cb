//! Situations that broke at least one published tool of this kind.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::Stdio;

use crate::harness::{Work, kill_and_wait};
use crate::manifest::{self, assert_same};

#[test]
fn names_come_back_after_unlink_and_rename() {
    let work = Work::new();
    work.sh("echo 1 > a; mkdir d; echo 1 > d/f");
    work.run("rm a; echo 2 > a; mv a b; echo 3 > a; rm -r d; mkdir d; echo 2 > d/f; test ! -e d/g; [ $(cat a b d/f | tr -d '\\n') = 322 ]").ok();
    work.run("git init -q sub && git -C sub status --porcelain").ok();
    work.txfs(["commit"]).ok();
    assert_eq!(work.sh("cat a b d/f").out, "3\n2\n2\n");
}

#[test]
fn lock_files_renamed_over_their_target_again_and_again() {
    let work = Work::new();
    work.sh("echo 0 > x");
    work.run("set -C; for i in 1 2 3; do echo $i > x.lock; mv x.lock x; grep -q $i x; done").ok();
    work.txfs(["commit"]).ok();
    assert_eq!(work.sh("cat x; ls").out, "3\nx\n");
}

#[test]
fn rmdir_of_a_directory_that_is_full_only_in_the_view() {
    let work = Work::new();
    work.sh("mkdir e");
    work.run("echo 1 > e/f; if rmdir e 2>err; then exit 9; fi; grep -q 'not empty' err; cat e/f")
        .ok();
    work.txfs(["commit"]).ok();
    assert_eq!(work.sh("cat e/f").out, "1\n");
}

#[test]
fn a_moved_base_directory_keeps_its_content_over_remount() {
    let work = Work::new();
    work.sh("mkdir -p d/e; echo 1 > d/e/f");
    work.run("mv d m; ls m/e; cat m/e/f").ok();
    work.kill_daemon();
    assert_eq!(work.run("cat m/e/f; test ! -e d").ok().out, "1\n");
    work.txfs(["commit"]).ok();
    assert_eq!(work.sh("cat m/e/f; test ! -e d").out, "1\n");
}

#[test]
fn an_open_file_that_lost_its_name_stays_usable_and_stays_gone() {
    let work = Work::new();
    work.sh("echo base > old");
    work.run(
        r#"python3 - <<'P'
import os
for name in ("old", "new"):
    if name == "new": open(name, "w").write("fresh\n")
    f = os.open(name, os.O_RDWR)
    os.unlink(name)
    assert os.fstat(f).st_nlink == 0, os.fstat(f)
    assert len(os.pread(f, 100, 0)) > 3
    os.pwrite(f, b"xyz", 2); os.ftruncate(f, 4); os.fsync(f)
    assert os.pread(f, 100, 0)[2:] == b"xy", os.pread(f, 100, 0)
    assert not os.path.exists(name)
P"#,
    )
    .ok();
    work.kill_daemon();
    work.run("test ! -e old; test ! -e new").ok();
    work.txfs(["commit"]).ok();
    assert!(!work.path("old").exists());
}

#[test]
fn an_edit_behind_the_back_is_refused_and_both_versions_are_kept() {
    let work = Work::new();
    work.sh("echo 0 > a; mkdir d");
    work.run("echo view > a; rmdir d").ok();
    work.sh("echo outsider > a; echo x > d/new");
    let said = work.txfs(["--json", "commit"]).code(6).json();
    assert_eq!(said["code"], "drift");
    let paths = said["conflicts"].to_string();
    assert!(paths.contains("\"a\"") && paths.contains("\"d"), "{paths}");
    assert_eq!(work.sh("cat a d/new").out, "outsider\nx\n");
    work.run("grep view a").ok();
    let status = work.txfs(["--json", "status"]).ok().json();
    assert!(status["drift"].to_string().contains("\"a\""), "{status}");
}

#[test]
fn a_killed_daemon_loses_no_transaction() {
    let work = Work::new();
    work.sh("echo 0 > a");
    work.run("echo 1 > a; mkdir d; sync d; echo 2 > d/f; sync d/f").ok();
    for _ in 0..3 {
        work.kill_daemon();
        work.run("grep 1 a; grep 2 d/f").ok();
    }
    work.txfs(["commit"]).ok();
    assert_eq!(work.sh("cat a d/f").out, "1\n2\n");
}

#[test]
fn a_failed_command_is_not_committed() {
    let work = Work::new();
    work.txfs(["run", "--on-success", "commit", "--", "sh", "-c", "touch a; false"]).code(1);
    assert!(!work.path("a").exists());
    assert_eq!(work.generation(), 0);
}

#[test]
fn hostile_names_survive_every_verb() {
    let work = Work::new();
    let make = r#"python3 - <<'P'
import os
for n in (b"new\nline", b"\xff\xfe", b"\x1b[31mred", b"-rf", b" ", b"a" * 255, b"tab\t\"quote\\"):
    open(n, "wb").write(n)
P"#;
    work.run(make).ok();
    let status = work.txfs(["status"]).ok();
    assert!(!status.out.contains('\x1b'), "escape sequences must not reach the terminal");
    let json = work.txfs(["--json", "status"]).ok().json();
    assert_eq!(json["counts"]["added"], 7);
    // Content may hold anything; names in headers are quoted.
    work.txfs(["diff"]).ok();
    work.txfs(["log"]).ok();
    work.txfs(["commit"]).ok();
    let plain = Work::new();
    plain.sh(make);
    assert_same(
        "plain, base",
        &manifest::read(&plain.dir(), false),
        &manifest::read(&work.dir(), false),
    );
    work.txfs(["undo"]).ok();
    assert_eq!(fs::read_dir(work.dir()).unwrap().count(), 1, "only .txfs is left");
}

#[test]
fn a_hard_linked_pair_stays_one_file() {
    let work = Work::new();
    work.sh("echo 0 > a; ln a b; echo 0 > c; ln c ../outside");
    let before = work.manifest();
    work.run("echo 1 > a; grep 1 b; [ $(stat -c %h a) = 2 ]; [ $(stat -c %i a) = $(stat -c %i b) ]; echo 2 >> c").ok();
    work.txfs(["commit"]).ok();
    assert_eq!(
        work.sh("cat b; [ a -ef b ]; [ c -ef ../outside ]; cat ../outside").out,
        "1\n0\n2\n"
    );
    work.txfs(["undo"]).ok();
    assert_same("before, after undo", &before, &work.manifest());
    work.sh("[ a -ef b ]; [ c -ef ../outside ]; grep 0 ../outside; ! grep 2 ../outside");
}

#[test]
fn metadata_of_an_untouched_file_never_reaches_the_base_before_commit() {
    let work = Work::new();
    work.sh("echo 0 > a; setfattr -n user.k -v 1 a");
    let before = work.manifest();
    let ctime = fs::metadata(work.path("a")).unwrap().ctime_nsec();
    let script = "chmod 600 a; chown 1234:1234 a; touch -d 1980-01-01 a; setfattr -n user.k -v 2 a; setfattr -n user.n -v 3 a";
    work.run(script).ok();
    assert_same("after run", &before, &work.manifest());
    work.txfs(["abort"]).ok();
    assert_same("after abort", &before, &work.manifest());
    assert_eq!(ctime, fs::metadata(work.path("a")).unwrap().ctime_nsec());
    work.run(script).ok();
    work.txfs(["commit"]).ok();
    assert_eq!(
        work.sh("stat -c '%a %u %g %Y' a; getfattr --only-values -n user.k a").out,
        "600 1234 1234 315532800\n2"
    );
    work.txfs(["undo"]).ok();
    assert_same("after undo", &before, &work.manifest());
}

#[test]
fn status_and_diff_answer_while_a_build_runs() {
    let work = Work::new();
    let mut child = work
        .command(work.bin())
        .args(["run", "--", "sh", "-c", "echo ready; i=0; while read -t 0 x || [ ! -e stop ]; do i=$((i+1)); echo $i > f$((i%50)); done 2>/dev/null; true"])
        .args::<[&str; 0], &str>([])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(
        &mut std::io::BufReader::new(child.stdout.take().unwrap()),
        &mut line,
    )
    .unwrap();
    for _ in 0..5 {
        work.txfs(["status"]).ok();
        work.txfs(["diff"]).ok();
        work.txfs(["log"]).ok();
    }
    work.run("touch stop").ok();
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_dead_mount_point_is_replaced() {
    let work = Work::new();
    work.sh("echo 0 > a");
    let at = work.beside("mnt");
    fs::create_dir(&at).unwrap();
    let at = at.to_str().unwrap().to_owned();
    work.txfs(["mount", &at]).ok();
    fs::write(work.beside("mnt/b"), "1").unwrap();
    fs::File::open(work.beside("mnt/b")).unwrap().sync_all().unwrap();
    let pid = work.daemon_pid();
    kill_and_wait(pid);
    assert!(fs::metadata(&at).is_err(), "the dead mount is the fence");
    work.txfs(["mount", &at]).ok();
    assert_eq!(fs::read_to_string(work.beside("mnt/b")).unwrap(), "1");
    work.txfs(["umount", &at]).ok();
}

#[test]
fn output_may_end_early() {
    let work = Work::new();
    work.run("for i in $(seq 3000); do echo $i > file$i; done").ok();
    let bin = work.bin();
    let bin = bin.display();
    for verb in ["status", "log", "diff", "diff --name-status", "log --json"] {
        let said =
            work.sh(&format!("{bin} {verb} 2>err | head -1 >/dev/null; cat err >&2; rm err"));
        assert!(
            !said.err.contains("panic") && !said.err.contains("Broken pipe"),
            "{verb}: {}",
            said.err
        );
    }
}

#[test]
fn a_handle_opened_before_the_file_became_read_only_still_writes() {
    let work = Work::of_user();
    work.run("exec 3> f; chmod 444 f; echo late >&3; exec 3>&-; [ \"$(cat f)\" = late ]; if echo x > f; then exit 9; fi 2>/dev/null").ok();
    work.txfs(["commit"]).ok();
    assert_eq!(work.sh("cat f; stat -c %a f").out, "late\n444\n");
}

#[test]
fn nothing_extra_is_left_in_the_base() {
    let work = Work::new();
    work.sh("mkdir d; echo 1 > d/a; chmod 750 d");
    work.run("echo 2 > d/a; echo 3 > d/b; mkdir d/e").ok();
    work.txfs(["commit"]).ok();
    let said = work
        .sh("find . -path ./.txfs -prune -o -print | sort; stat -c %a d; getfattr -d -m - -R d .");
    assert_eq!(said.out.trim(), ".\n./d\n./d/a\n./d/b\n./d/e\n750");
}

#[test]
fn the_working_directory_answers_in_new_renamed_and_aborted_directories() {
    let work = Work::new();
    work.sh("mkdir old");
    work.run("mkdir n; cd n; pwd | grep /n$; cd ../old; mv ../old ../renamed; [ \"$(/bin/pwd)\" = \"$(cd ..; /bin/pwd)/renamed\" ]").ok();
    let at = work.beside("mnt");
    fs::create_dir(&at).unwrap();
    work.txfs(["mount", at.to_str().unwrap()]).ok();
    let mut child = work
        .command("sh")
        .args(["-c", "cd ../mnt/n && echo in && read x; timeout 10 /bin/pwd; [ $? -ne 124 ]"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut out = std::io::BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    std::io::BufRead::read_line(&mut out, &mut line).unwrap();
    assert_eq!(line, "in\n");
    work.txfs(["abort"]).ok();
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success(), "getcwd hung");
    work.txfs(["umount"]).ok();
}

#[test]
fn two_processes_write_through_their_own_name_of_one_file() {
    let work = Work::new();
    work.sh("printf 0000000000 > a; ln a b");
    work.run("(dd if=/dev/zero bs=1 count=2 seek=0 conv=notrunc of=a; dd if=/dev/zero bs=1 count=2 seek=8 conv=notrunc of=b) 2>/dev/null; cmp a b; [ $(tr -d '\\0' < a | wc -c) = 6 ]").ok();
    work.txfs(["commit"]).ok();
    work.sh("cmp a b; [ $(tr -d '\\0' < a | wc -c) = 6 ]");
}

#[test]
fn ten_thousand_changes_hide_no_deletion() {
    let work = Work::new();
    work.sh("mkdir d; cd d; seq 2000 | xargs touch");
    work.run("cd d; rm 7 1234 1999; for i in $(seq 10000); do :> n$i; done").ok();
    let out = work.txfs(["status"]).ok().out;
    for gone in ["d/7", "d/1234", "d/1999"] {
        assert!(
            out.lines().any(|l| l.contains('D') && l.trim_end().ends_with(gone)
                || l.contains("deleted") && l.contains(gone)),
            "{gone} is missing"
        );
    }
    let first_new = out.find("d/n1").unwrap_or(usize::MAX);
    assert!(out.find("d/1999").unwrap() < first_new, "deletions come first");
    let json = work.txfs(["--json", "status"]).ok().json();
    assert_eq!(json["changes"].as_array().map(Vec::len), Some(10003));
}

#[test]
fn undo_of_a_deleted_executable_brings_back_its_mode() {
    let work = Work::new();
    work.sh("printf '#!/bin/sh\\necho hi\\n' > tool; chmod 4755 tool");
    let before = work.manifest();
    work.run("rm tool").ok();
    work.txfs(["commit"]).ok();
    work.txfs(["undo"]).ok();
    assert_same("before, after undo", &before, &work.manifest());
}

#[test]
fn a_big_directory_that_is_only_moved_is_not_copied() {
    let work = Work::new();
    work.sh(
        "mkdir t; head -c 64M /dev/urandom > t/blob; mkdir t/sub; cd t/sub; seq 1000 | xargs touch",
    );
    work.run("mv t u; chmod 600 u/blob").ok();
    let status = work.txfs(["--json", "status"]).ok().json();
    assert_eq!(status["staged_bytes"], 0, "{status}");
    work.txfs(["commit"]).ok();
    let store = work.sh("du -sk .txfs | cut -f1").out.trim().parse::<u64>().unwrap();
    assert!(store < 8192, "the store has {store} KiB");
}

#[test]
fn parallel_writers_in_two_mounts_do_not_mix() {
    let work = Work::new();
    work.sh("echo 0 > f");
    let spawn = |txn: &str, text: &str| {
        let script = format!(
            "for i in $(seq 300); do echo {text} > f; grep -q {text} f || exit 9; echo {text}$i > n$i; done"
        );
        work.command(work.bin())
            .args(["run", "--txn", txn, "--", "sh", "-c", &script])
            .stderr(Stdio::null())
            .spawn()
            .unwrap()
    };
    let (mut one, mut two) = (spawn("one", "aaa"), spawn("two", "bbb"));
    assert!(one.wait().unwrap().success() && two.wait().unwrap().success());
    work.txfs(["run", "--txn", "one", "--", "sh", "-ec", "! grep -l bbb f n*"]).ok();
    work.txfs(["commit", "--txn", "two"]).ok();
    work.sh("! grep -l aaa f n*");
}

#[test]
fn a_mount_below_the_workspace_is_a_boundary() {
    let work = Work::new();
    work.sh("mkdir below; mount -t tmpfs none below; echo 1 > below/f");
    let said = work.run("ls below; if echo x > below/g; then exit 9; fi 2>err; grep -qi 'read-only' err; rm err; echo 1 > beside");
    let committed = work.txfs(["commit"]);
    work.sh("umount below");
    said.ok();
    committed.ok();
    assert!(work.path("beside").exists());
}

#[test]
fn listings_stay_right_while_entries_come_and_go() {
    let work = Work::new();
    work.sh("mkdir d; cd d; seq 500 | xargs touch");
    work.run(
        r#"python3 - <<'P'
import os
seen = []
with os.scandir("d") as it:
    for n, e in enumerate(it):
        seen.append(e.name)
        if n % 3 == 0: os.unlink("d/" + e.name)
        if n % 7 == 0: open("d/new%d" % n, "w").close()
old = [s for s in seen if not s.startswith("new")]
assert len(old) == len(set(old)) == 500, len(old)
assert len([n for n in os.listdir("d") if not n.startswith("new")]) == 500 - 167
P"#,
    )
    .ok();
    let before = work.run("ls d | sort | cksum").ok().out;
    work.kill_daemon();
    assert_eq!(before, work.run("ls d | sort | cksum").ok().out);
}

#[test]
fn sqlite_works_in_wal_and_rollback_mode() {
    let work = Work::new();
    for mode in ["wal", "delete"] {
        work.run(&format!(
            "sqlite3 {mode}.db 'pragma journal_mode={mode}; create table t(x); insert into t values(1)' >/dev/null
             for i in $(seq 20); do sqlite3 {mode}.db \"insert into t values($i)\" & done; wait
             sqlite3 {mode}.db 'pragma integrity_check; select count(*)>0 from t'"
        ))
        .ok();
        work.txfs(["commit"]).ok();
        assert_eq!(
            work.sh(&format!(
                "sqlite3 {mode}.db 'pragma integrity_check; select count(*)>0 from t'"
            ))
            .out,
            "ok\n1\n"
        );
    }
}

#[test]
fn the_store_is_out_of_reach_in_a_view() {
    let work = Work::new();
    work.sh("echo 1 > a");
    work.run("! ls -a | grep txfs; ! test -e .txfs; ! mkdir .txfs 2>/dev/null; ! touch .txfs/x 2>/dev/null; rm -rf ./* .txfs; mkdir -p sub/.txfs; echo ok > sub/.txfs/f").ok();
    work.txfs(["commit"]).ok();
    assert_eq!(work.sh("cat sub/.txfs/f").out, "ok\n");
    assert_eq!(work.generation(), 1);
}
