//! Run, look, decide: the main job on a small tree with everything in it that a tree can have.

use crate::harness::{Said, Work};
use crate::manifest::{self, assert_same};

/// A tree with every kind of entry.
pub const TREE: &str = r#"
mkdir -p src/deep/er docs empty
printf 'fn main() {}\n' > src/main.rs
printf 'a\nb\nc\n' > docs/notes.txt
printf '#!/bin/sh\nexit 0\n' > tool; chmod 755 tool
head -c 100000 /dev/zero | tr '\0' 'x' > big
truncate -s 10M sparse; printf tail >> sparse
ln -s src/main.rs link; ln -s /nowhere dangling
ln docs/notes.txt docs/hard
mkfifo pipe
setfattr -n user.colour -v blue tool
setfacl -m u:12345:r docs/notes.txt
setfacl -d -m u:12345:rwx docs
touch -d '2001-02-03 04:05:06.789' docs/notes.txt src empty .
"#;

/// Changes of every kind to [`TREE`].
pub const CHANGES: &str = r#"
rm -rf src/deep
mv src lib
echo more >> lib/main.rs
rm tool
printf 'A\n' > docs/notes.txt
mkdir -p new/dir; echo n > new/dir/file; ln new/dir/file new/second
ln -s file new/dir/link
mkfifo new/pipe
rmdir empty; echo now a file > empty
chmod 600 big
touch -d '1999-01-01' sparse
setfattr -n user.taste -v sweet big
rm dangling; mkdir dangling
mv docs/hard docs/harder
"#;

#[test]
fn nothing_reaches_the_base_before_commit() {
    let work = Work::new();
    work.sh(TREE);
    let before = work.manifest();
    work.run(CHANGES).ok();
    assert_same("the base after run", &before, &work.manifest());
}

#[test]
fn commit_makes_the_base_equal_to_the_view() {
    commit_equals_view(&Work::new());
}

#[test]
fn commit_makes_the_base_equal_to_the_view_without_handles_and_passthrough() {
    let mut work = Work::new();
    work.env = vec![("TXFS_NO_HANDLES", "1"), ("TXFS_NO_PASSTHROUGH", "1")];
    commit_equals_view(&work);
}

fn commit_equals_view(work: &Work) {
    work.sh(TREE);
    work.run(CHANGES).ok();
    let view = work.beside("view");
    std::fs::create_dir(&view).unwrap();
    work.txfs(["mount", view.to_str().unwrap()]).ok();
    let shown = manifest::read(&view, true);
    work.txfs(["commit", "-m", "all kinds"]).ok();
    let base = work.manifest();
    assert_same("view before commit, base after", &shown, &base);
    assert_same("base, view after commit", &base, &manifest::read(&view, true));
    work.txfs(["umount"]).ok();
    // The same changes made without txfs give the same tree.
    let plain = Work::new();
    plain.sh(TREE);
    plain.sh(CHANGES);
    assert_same(
        "plain, base",
        &manifest::read(&plain.dir(), false),
        &manifest::read(&work.dir(), false),
    );
}

#[test]
fn abort_leaves_no_trace() {
    let work = Work::new();
    work.sh(TREE);
    let before = work.manifest();
    work.run(CHANGES).ok();
    work.txfs(["abort"]).ok();
    assert_same("the base after abort", &before, &work.manifest());
    let status = work.txfs(["--json", "status"]).ok().json();
    assert_eq!(status["changes"].as_array().map(Vec::len), Some(0), "{status}");
    assert_eq!(status["staged_bytes"], 0);
}

#[test]
fn undo_brings_everything_back_and_undo_of_undo_is_redo() {
    let work = Work::new();
    work.sh(TREE);
    let before = work.manifest();
    work.run(CHANGES).ok();
    work.txfs(["commit"]).ok();
    let after = work.manifest();
    work.txfs(["undo"]).ok();
    assert_same("before, after undo", &before, &work.manifest());
    work.txfs(["undo", "2"]).ok();
    assert_same("after commit, after redo", &after, &work.manifest());
    work.txfs(["undo", "--to", "0"]).ok();
    assert_same("before, after undo --to 0", &before, &work.manifest());
}

#[test]
fn several_commits_undo_in_any_legal_order() {
    let work = Work::new();
    work.sh("echo 0 > a; echo 0 > b");
    let start = work.manifest();
    for (n, script) in
        ["echo 1 > a", "echo 1 > b", "echo 2 > a", "mkdir d; mv b d"].iter().enumerate()
    {
        work.run(script).ok();
        work.txfs(["commit"]).ok();
        assert_eq!(work.generation(), n as u64 + 1);
    }
    let last = work.manifest();
    let said = work.txfs(["--json", "undo", "1"]).code(6).json();
    assert!(
        said["conflicts"].to_string().contains('3'),
        "the blocking generation is named: {said}"
    );
    assert_same("a refused undo changes nothing", &last, &work.manifest());
    work.txfs(["undo", "3"]).ok();
    assert_eq!(std::fs::read_to_string(work.path("a")).unwrap(), "1\n");
    work.txfs(["undo", "--to", "0"]).ok();
    assert_same("start, undo --to 0", &start, &work.manifest());
}

#[test]
fn undo_with_dependents_takes_the_later_ones_along() {
    let work = Work::new();
    work.sh("echo 0 > a; echo 0 > b");
    for script in ["echo 1 > a", "echo 1 > b", "echo 2 > a"] {
        work.run(script).ok();
        work.txfs(["commit"]).ok();
    }
    let said = work.txfs(["--json", "undo", "1", "--with-dependents"]).ok().json();
    assert_eq!(said["undone"].to_string(), "[3,1]");
    assert_eq!(std::fs::read_to_string(work.path("a")).unwrap(), "0\n");
    assert_eq!(std::fs::read_to_string(work.path("b")).unwrap(), "1\n");
}

#[test]
fn run_returns_what_the_command_returns() {
    let work = Work::new();
    work.run("exit 7").code(7);
    work.run("kill -TERM $$").code(128 + 15);
    work.txfs(["run", "--", "/no/such/program"]).code(127);
    work.sh("echo x > plain");
    work.txfs(["run", "--", "./plain"]).code(126);
    let said = work.run("echo $TXFS $TXFS_TXN; pwd; cat /proc/self/status | grep -c .").ok();
    let mut lines = said.out.lines();
    assert_eq!(lines.next(), Some("1 main"));
    assert_eq!(lines.next(), work.dir().to_str(), "absolute paths keep working");
}

#[test]
fn run_commits_on_success_and_aborts_on_failure_when_told() {
    let work = Work::new();
    work.txfs(["run", "--on-success", "commit", "--", "sh", "-c", "echo 1 > a"]).ok();
    assert!(work.path("a").exists());
    work.txfs(["run", "--on-failure", "abort", "--", "sh", "-c", "echo 2 > a; exit 3"]).code(3);
    assert_eq!(std::fs::read_to_string(work.path("a")).unwrap(), "1\n");
    let status = work.txfs(["--json", "status"]).ok().json();
    assert_eq!(status["changes"].as_array().map(Vec::len), Some(0));
}

#[test]
fn two_transactions_do_not_see_each_other_and_the_second_commit_is_stale() {
    let work = Work::new();
    work.sh("echo 0 > a; echo 0 > b");
    work.txfs(["run", "--txn", "one", "--", "sh", "-c", "echo 1 > a"]).ok();
    work.txfs(["run", "--txn", "two", "--", "sh", "-ec", "grep 0 a; echo 2 > b"]).ok();
    work.txfs(["commit", "--txn", "one"]).ok();
    // Its view is still that of its own generation.
    work.txfs(["run", "--txn", "two", "--", "sh", "-ec", "grep 0 a; grep 2 b"]).ok();
    let said = work.txfs(["commit", "--txn", "two", "--json"]).code(5).json();
    assert_eq!(said["code"], "stale");
    assert_eq!(said["ok"], false);
    work.txfs(["run", "--txn", "two", "--", "grep", "2", "b"]).ok();
    work.txfs(["abort", "--txn", "two"]).ok();
    assert_eq!(work.sh("cat a b").out, "1\n0\n");
}

#[test]
fn a_stale_transaction_is_moved_onto_the_live_generation_under_its_mount() {
    let work = Work::new();
    work.sh("mkdir d; echo 0 > a; echo 0 > b; echo 0 > d/c");
    let at = work.beside("mnt");
    std::fs::create_dir(&at).unwrap();
    work.txfs(["mount", "--txn", "two", at.to_str().unwrap()]).ok();
    let in_view = |script: &str| {
        Said::of(work.command("sh").current_dir(&at).args(["-ec", script]).output().unwrap())
            .ok()
            .out
    };
    in_view("echo 2 > b; echo 2 > d/two");
    work.txfs(["run", "--on-success", "commit", "--", "sh", "-ec", "echo 1 > a; echo 1 > d/one"])
        .ok();
    assert_eq!(in_view("cat a b; ls d"), "0\n2\nc\ntwo\n");
    let status = work.txfs(["status", "--txn", "two", "--json"]).ok().json();
    assert_eq!(status["next_step"], "txfs commit --rebase --txn two, or txfs abort --txn two");
    let stale = work.txfs(["commit", "--txn", "two", "--json"]).code(5).json();
    assert!(stale["hint"].as_str().unwrap().contains("--rebase"), "{stale}");
    let moved = work.txfs(["rebase", "--txn", "two", "--json"]).ok().json();
    assert_eq!((&moved["from"], &moved["generation"]), (&0.into(), &1.into()), "{moved}");
    assert_eq!(in_view("cat a b; ls d"), "1\n2\nc\none\ntwo\n");
    in_view("echo 3 >> a");
    work.txfs(["run", "--on-success", "commit", "--", "sh", "-ec", "echo 4 > d/four"]).ok();
    work.txfs(["commit", "--rebase", "--txn", "two"]).ok();
    assert_eq!(work.sh("cat a b; ls d").out, "1\n3\n2\nc\nfour\none\ntwo\n");
    work.txfs(["umount", "--txn", "two"]).ok();
}

/// Eight callers, each with a transaction of its own, commit again and again: new files all arrive, and of
/// those who write one file nobody's line is lost without his being told.
#[test]
fn callers_side_by_side_lose_nothing() {
    let work = Work::new();
    work.sh("mkdir d; : > log");
    let lines: Vec<usize> = std::thread::scope(|scope| {
        let callers: Vec<_> = (0..8)
            .map(|caller| {
                let work = &work;
                scope.spawn(move || {
                    let name = format!("caller{caller}");
                    let mut written = 0;
                    for n in 0..5 {
                        let script = format!("echo {n} > d/{caller}.{n}");
                        let options =
                            ["run", "--txn", &name, "--on-success", "commit", "--rebase", "--"];
                        work.txfs(options.iter().copied().chain(["sh", "-ec", &script])).ok();
                        let line = format!("echo {caller}.{n} >> log");
                        let said = work.txfs(options.iter().copied().chain(["sh", "-ec", &line]));
                        match said.code {
                            0 => written += 1,
                            _ => {
                                assert_eq!(said.code, 125, "{}", said.err);
                                work.txfs(["abort", "--txn", &name]).ok();
                            }
                        }
                    }
                    written
                })
            })
            .collect();
        callers.into_iter().map(|c| c.join().unwrap()).collect()
    });
    assert_eq!(work.sh("ls d | wc -l").out.trim(), "40");
    let log = work.sh("cat log").out;
    let written: usize = lines.iter().sum();
    println!("{written} of 40 lines were committed, the rest refused");
    assert_eq!(log.lines().count(), written, "{log}");
    assert!(written > 0);
}

#[test]
fn what_both_changed_is_named_and_stays_as_it_is() {
    let work = Work::new();
    work.sh("mkdir d gone; echo 0 > a; echo 0 > d/c; echo 0 > gone/f; echo 0 > del");
    work.txfs([
        "run",
        "--txn",
        "two",
        "--",
        "sh",
        "-ec",
        "echo 2 > a; echo 2 > new; rm -r d; echo 2 > gone/g; rm del; echo 2 > free",
    ])
    .ok();
    work.run("echo 1 > a; echo 1 > new; echo 1 > d/more; rm -r gone; echo 1 > del").ok();
    work.txfs(["commit"]).ok();
    let before = work.sh("cat a new d/more del; ls").out;
    let said = work.txfs(["commit", "--rebase", "--txn", "two", "--json"]).code(6).json();
    assert_eq!(said["code"], "conflict", "{said}");
    let kinds: Vec<_> = said["conflicts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|c| {
            let reason = c["reason"].as_str().unwrap();
            format!("{} {}", c["path"].as_str().unwrap(), reason.split(':').next().unwrap())
        })
        .collect();
    let expected = [
        "a write-write",
        "d/more directory not empty",
        "del delete-write",
        "gone parent gone",
        "new create-create",
    ];
    assert_eq!(kinds, expected);
    work.txfs([
        "run",
        "--txn",
        "two",
        "--",
        "sh",
        "-ec",
        "[ \"$(cat a new free gone/g | tr -d '\\n')\" = 2222 ]",
    ])
    .ok();
    assert_eq!(work.sh("cat a new d/more del; ls").out, before);
}

#[test]
fn the_patch_applies_with_git() {
    let work = Work::new();
    work.sh("mkdir d; printf 'a\\nb\\n' > d/text; head -c 3000 /dev/urandom > bin; ln -s a l; echo x > run; printf 'no newline' > n");
    work.sh("cp -a . ../copy; rm -rf ../copy/.txfs; cd ../copy; git init -q .");
    work.run("echo c >> d/text; head -c 3000 /dev/urandom > bin; ln -sfn b l; chmod 755 run; mv d/text d/moved; printf 'new' > n; printf '\\0\\1' > '\tna\"me'; rm -f gone").ok();
    let patch = work.txfs(["diff"]).ok();
    std::fs::write(work.beside("patch"), &patch.raw).unwrap();
    work.sh("cd ../copy; git apply ../patch");
    work.txfs(["commit"]).ok();
    let strip = |mut m: manifest::Manifest| {
        m.retain(|p, i| !p.starts_with(b".git") && i.kind != "dir");
        m
    };
    assert_same(
        "base, patched copy",
        &strip(manifest::read(&work.dir(), false)),
        &strip(manifest::read(&work.beside("copy"), false)),
    );
}

#[test]
fn a_git_repository_worked_on_in_a_transaction_is_sound_after_commit() {
    let work = Work::new();
    work.sh("git init -q . && git config user.email a@b && git config user.name a && echo 1 > f && git add f && git commit -qm one");
    work.run("echo 2 > f; git commit -qam two; git mv f g; git commit -qm three; git gc -q; git checkout -qb other; echo 3 > h; git add h; git commit -qm four; git rebase -q HEAD~2 && git worktree add -q wt HEAD~1 && git fsck --strict").ok();
    assert_eq!(work.sh("git log --oneline | wc -l").out.trim(), "1");
    work.txfs(["commit"]).ok();
    assert_eq!(
        work.sh("export GIT_OPTIONAL_LOCKS=0; git fsck --strict && git status --porcelain -uno && git log --oneline | wc -l")
            .out
            .trim(),
        "4"
    );
    work.txfs(["undo"]).ok();
    assert_eq!(
        work.sh("export GIT_OPTIONAL_LOCKS=0; git fsck --strict && git status --porcelain && git log --oneline | wc -l")
            .out
            .trim(),
        "1"
    );
}

#[test]
fn the_terminal_is_the_commands() {
    let work = Work::new();
    // A terminal with a shell in it that has job control: interrupt, stop and go on, exit code.
    let script = r#"
import os, pty, sys, time, select, signal
txfs, ws = sys.argv[1:3]
os.chdir(ws)
pid, fd = pty.fork()
if pid == 0:
    # Whoever runs the tests may ignore it.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.environ.update(PS1='READY$ ', TERM='dumb')
    os.execvp('bash', ['bash', '--norc', '--noprofile', '-i'])
def until(what):
    seen = b''
    while what not in seen:
        if not select.select([fd], [], [], 20)[0]: sys.exit('no %r in %r' % (what, seen))
        seen += os.read(fd, 4096)
    return seen
until(b'READY$ ')
os.write(fd, ('%s run -- sh -c \'test -t 0 && test -t 1 && trap "echo CAUGHT; exit 5" INT; echo U"P"; while :; do sleep 1; done\'\n' % txfs).encode())
until(b'UP\r\n')
os.write(fd, b'\x03')
assert b'CAUGHT' in until(b'READY$ ')
os.write(fd, b'echo code=$? D"O"NE\n'); assert b'code=5 ' in until(b'DONE\r\n')
os.write(fd, ('%s run -- sh -c \'echo U"P"; read line; echo got=$line\'\n' % txfs).encode())
until(b'UP\r\n')
os.write(fd, b'\x1a'); assert b'Stopped' in until(b'READY$ ')
os.write(fd, b'fg\n'); until(b'read line')
os.write(fd, b'hello\n'); assert b'got=hello' in until(b'READY$ ')
os.write(fd, b'exit\n')
os.waitpid(pid, 0)
"#;
    let said = work
        .command("python3")
        .args(["-c", script])
        .arg(work.bin())
        .arg(work.dir())
        .output()
        .unwrap();
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
}

#[test]
fn signals_reach_the_command() {
    let work = Work::new();
    use std::io::BufRead;
    let mut child = work
        .command(work.bin())
        .args(["run", "--", "sh", "-c", "trap 'exit 9' TERM; echo up; while :; do sleep 0.1; done"])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let mut line = String::new();
    std::io::BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let pid = rustix::process::Pid::from_raw(child.id() as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(9));
}
