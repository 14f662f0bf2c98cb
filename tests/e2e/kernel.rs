//! What can go wrong between the kernel and a view: caches, passthrough, identity, rights.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::harness::{Said, TXFS, Work, kill_and_wait};
use crate::manifest::assert_same;

/// A view mounted beside its workspace, unmounted at the end.
struct Mounted<'a> {
    work: &'a Work,
    at: PathBuf,
}

impl<'a> Mounted<'a> {
    #[track_caller]
    fn of(work: &'a Work) -> Mounted<'a> {
        let at = work.beside("mnt");
        fs::create_dir_all(&at).unwrap();
        work.txfs(["mount", at.to_str().unwrap()]).ok();
        Mounted { work, at }
    }

    /// `sh -ec SCRIPT` in the view. Must succeed.
    #[track_caller]
    fn sh(&self, script: &str) -> String {
        Said::of(self.command("sh").args(["-ec", script]).output().unwrap()).ok().out
    }

    fn command(&self, program: &str) -> Command {
        let mut command = self.work.command(program);
        command.current_dir(&self.at);
        command
    }

    /// A Python program in the view that answers each line on its input with a line.
    fn python(&self, program: &str) -> Talk {
        Talk::to(self.command("python3").args(["-u", "-c", program]))
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        let said = self.work.txfs(["umount", self.at.to_str().unwrap()]);
        if said.code != 0 && !std::thread::panicking() {
            panic!("umount: {}{}", said.out, said.err);
        }
    }
}

/// A process that says a line for each line it is told.
struct Talk {
    child: Child,
    tell: Option<ChildStdin>,
    hear: BufReader<ChildStdout>,
}

impl Talk {
    fn to(command: &mut Command) -> Talk {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (tell, hear) = (child.stdin.take(), BufReader::new(child.stdout.take().unwrap()));
        Talk { child, tell, hear }
    }

    #[track_caller]
    fn hears(&mut self, expected: &str) {
        let mut line = String::new();
        self.hear.read_line(&mut line).unwrap();
        assert_eq!(line.trim_end(), expected);
    }

    /// Says a line and waits for the answer.
    #[track_caller]
    fn ask(&mut self, expected: &str) {
        self.tell.as_mut().unwrap().write_all(b"\n").unwrap();
        self.hears(expected);
    }

    #[track_caller]
    fn ends(mut self) {
        drop(self.tell.take());
        assert!(self.child.wait().unwrap().success());
    }
}

/// A workspace on a file system of its own in a file.
fn on_tmpfs(work: &Work) {
    work.sh("mount -t tmpfs -o size=64m none .");
}

// ---- caches ---------------------------------------------------------------------------------

#[test]
fn unlink_beside_notifications_never_hangs() {
    let work = Work::new();
    work.sh("mkdir d; cd d; seq 100 | xargs touch");
    let view = Mounted::of(&work);
    let mut child = view
        .command("timeout")
        .args([
            "60",
            "sh",
            "-ec",
            "for i in $(seq 300); do : > d/n$i; mv d/n$i d/m$i; rm d/m$i; done",
        ])
        .spawn()
        .unwrap();
    for n in 0..6 {
        work.txfs([if n % 2 == 0 { "commit" } else { "abort" }]);
    }
    // Entries of an aborted transaction may be gone under the script's feet; a hang is 124.
    let code = child.wait().unwrap().code();
    assert!(code.is_some_and(|c| c != 124), "{code:?}");
    view.sh("timeout 5 ls d > /dev/null");
}

#[test]
fn what_a_mapping_holds_is_committed() {
    let work = Work::new();
    work.sh("truncate -s 8192 base; head -c 200M /dev/zero > /dev/null");
    let view = Mounted::of(&work);
    let mut talk = view.python(
        r#"
import mmap, os
maps = []
for name in ("base", "new"):
    f = os.open(name, os.O_RDWR | os.O_CREAT, 0o644)
    os.ftruncate(f, 8192)
    m = mmap.mmap(f, 8192)
    os.close(f)
    maps.append(m)
for m in maps: m[5000:5005] = b"first"
print("stored", flush=True); input()
for m in maps: m[5000:5006] = b"second"
print("again", flush=True); input()
print(maps[0][5000:5006].decode(), maps[1][5000:5006].decode(), flush=True)
input()
"#,
    );
    talk.hears("stored");
    work.txfs(["commit", "--allow-open-writers"]).ok();
    let at = |name: &str| fs::read(work.path(name)).unwrap()[5000..5006].to_vec();
    assert_eq!((at("base"), at("new")), (b"first\0".to_vec(), b"first\0".to_vec()));
    talk.ask("again");
    // The mapping belongs to the next transaction: the base has what was committed.
    assert_eq!((at("base"), at("new")), (b"first\0".to_vec(), b"first\0".to_vec()));
    talk.ask("second second");
    assert_eq!(view.sh("dd if=base bs=1 skip=5000 count=6 2>/dev/null"), "second");
    work.txfs(["commit", "--allow-open-writers"]).ok();
    assert_eq!((at("base"), at("new")), (b"second".to_vec(), b"second".to_vec()));
    talk.tell.as_mut().unwrap().write_all(b"\n").unwrap();
    talk.ends();
}

#[test]
fn what_a_mapping_holds_is_gone_after_abort() {
    let work = Work::new();
    work.sh("printf base > f; truncate -s 4096 f");
    let before = work.manifest();
    let view = Mounted::of(&work);
    let mut talk = view.python(
        r#"
import mmap, os
f = os.open("f", os.O_RDWR)
m = mmap.mmap(f, 4096)
m[0:4] = b"view"
print("stored", flush=True); input()
try:
    m[0:4] = b"late"; m.flush(); os.pwrite(f, b"more", 0); os.fsync(f)
except OSError as e: pass
print("stored", flush=True); input()
print(open("f").read(4), flush=True); input()
"#,
    );
    talk.hears("stored");
    work.txfs(["abort"]).ok();
    assert_eq!(view.sh("head -c 4 f"), "base");
    talk.ask("stored");
    assert_eq!(view.sh("head -c 4 f"), "base");
    talk.ask("base");
    talk.tell.as_mut().unwrap().write_all(b"\n").unwrap();
    talk.ends();
    assert_same("base", &before, &work.manifest());
}

#[test]
fn an_aborted_entry_is_gone_at_once() {
    let work = Work::new();
    work.sh("mkdir d; echo 0 > d/f; echo 0 > d/gone");
    let view = Mounted::of(&work);
    let facts = "stat -c '%h %Y %a %s' d; ls d; cat d/f d/gone; if stat d/new d/sub/x 2>/dev/null; then exit 9; fi";
    let before = view.sh(facts);
    view.sh("mkdir d/sub; echo 1 > d/sub/x; echo 1 > d/new; rm d/gone; echo 1 > d/f; chmod 700 d");
    view.sh("ls -l d d/sub; if stat d/gone 2>/dev/null; then exit 9; fi; cat d/new d/sub/x d/f");
    work.txfs(["abort"]).ok();
    assert_eq!(view.sh(facts), before);
}

#[test]
fn what_was_absent_in_a_directory_of_ours_can_come_from_outside_after_commit() {
    let work = Work::new();
    let view = Mounted::of(&work);
    view.sh("mkdir d; if stat d/x 2>/dev/null; then exit 9; fi; echo 1 > d/y; rm d/y; if stat d/y 2>/dev/null; then exit 9; fi");
    work.txfs(["commit"]).ok();
    work.sh("echo out > d/x; echo out > d/y");
    assert_eq!(view.sh("sleep 1.1; cat d/x d/y; ls d"), "out\nout\nx\ny\n");
}

#[test]
fn edits_outside_show_through_within_a_second_or_so() {
    let work = Work::new();
    work.sh("mkdir d t; echo old > d/f; echo old > t/f; echo old > t/kept");
    let view = Mounted::of(&work);
    view.sh("cat d/f t/f t/kept; ls d t; touch t/ours; ls -l d t");
    work.sh("echo newer > d/f; echo x > d/g; rm t/f; echo y > t/g; echo newer > t/kept");
    assert_eq!(
        view.sh("sleep 1.1; cat d/f; ls d; ls t; cat t/kept"),
        "newer\nf\ng\ng\nkept\nours\nnewer\n"
    );
}

#[test]
fn a_mount_inside_the_view_survives_commit_and_abort() {
    let work = Work::new();
    work.sh("mkdir -p d/e; echo 1 > f");
    let view = Mounted::of(&work);
    let inner = view.at.join("d/e");
    let inner = inner.display();
    work.sh(&format!("mount -t tmpfs none {inner}; echo 1 > {inner}/in"));
    view.sh("echo 2 > f; mkdir d/n");
    let committed = work.txfs(["commit"]);
    let one = Said::of(view.command("cat").arg("d/e/in").output().unwrap());
    view.sh("echo 3 > f; touch d/n/x");
    let aborted = work.txfs(["abort"]);
    let two = Said::of(view.command("cat").arg("d/e/in").output().unwrap());
    work.sh(&format!("umount {inner}"));
    committed.ok();
    aborted.ok();
    assert_eq!((one.ok().out, two.ok().out), ("1\n".into(), "1\n".into()));
}

#[test]
fn link_targets_are_right_over_replacement_and_abort() {
    let work = Work::new();
    work.sh("ln -s one l; ln -s one o");
    let view = Mounted::of(&work);
    assert_eq!(view.sh("readlink l o"), "one\none\n");
    view.sh("rm l; ln -s a/longer/target l");
    assert_eq!(view.sh("readlink l"), "a/longer/target\n");
    work.txfs(["abort"]).ok();
    assert_eq!(view.sh("readlink l"), "one\n");
    work.sh("rm o; ln -s elsewhere o");
    assert_eq!(view.sh("sleep 1.1; readlink o"), "elsewhere\n");
}

// ---- passthrough and handles ------------------------------------------------------------------

#[test]
fn who_writes_on_after_the_daemon_is_dead_reaches_no_base() {
    let work = Work::new();
    work.sh("printf base > f; truncate -s 4096 f");
    let view = Mounted::of(&work);
    let mut talk = view.python(
        r#"
import mmap, os
f = os.open("f", os.O_RDWR); m = mmap.mmap(f, 4096)
m[0:4] = b"view"; os.fsync(f)
print("open", flush=True); input()
for late in (lambda: os.pwrite(f, b"late", 100), lambda: m.__setitem__(slice(200, 204), b"late")):
    try: late()
    except OSError: pass
print("late", flush=True); input()
"#,
    );
    talk.hears("open");
    work.txfs(["commit", "--allow-open-writers"]).ok();
    let committed = work.manifest();
    kill_and_wait(work.daemon_pid());
    talk.ask("late");
    assert_same("base after a late write", &committed, &work.manifest());
    work.txfs(["status"]).ok();
    assert_same("base after recovery", &committed, &work.manifest());
    talk.tell.as_mut().unwrap().write_all(b"\n").unwrap();
    drop(talk.tell.take());
    talk.child.wait().unwrap();
}

#[test]
fn handles_of_every_kind_on_one_file_at_one_time() {
    let work = Work::new();
    work.sh("head -c 100000 /dev/zero > base");
    let script = r#"
import os, mmap, threading
def all_ways(name):
    r = os.open(name, os.O_RDONLY); rm = mmap.mmap(r, 4096, prot=mmap.PROT_READ)
    w = os.open(name, os.O_RDWR); a = os.open(name, os.O_WRONLY | os.O_APPEND)
    wm = mmap.mmap(w, 4096); d = os.open(name, os.O_RDWR | os.O_DIRECT)
    os.pwrite(w, b"written", 0)
    assert os.pread(r, 7, 0) == b"written", os.pread(r, 7, 0)
    assert rm[0:7] == b"written", rm[0:7]
    wm[10:16] = b"mapped"
    assert os.pread(r, 6, 10) == b"mapped", os.pread(r, 6, 10)
    assert rm[10:16] == b"mapped"
    os.write(a, b"appended"); size = os.fstat(r).st_size
    assert os.pread(r, 8, size - 8) == b"appended"
    assert os.fstat(d).st_size == size == os.stat(name).st_size
    buf = mmap.mmap(-1, 4096); n = os.preadv(d, [buf], 0); assert n == 4096 and buf[0:7] == b"written"
    t = os.open(name, os.O_RDWR | os.O_TRUNC); assert os.fstat(r).st_size == 0
    os.pwrite(w, b"after", 0); assert os.pread(t, 5, 0) == b"after"
    for f in (r, w, a, d, t): os.close(f)
all_ways("base")
open("new", "wb").write(bytes(100000))
all_ways("new")
def many(i):
    for _ in range(200):
        f = os.open("new", os.O_RDWR if i % 2 else os.O_RDONLY); os.pread(f, 10, 0); os.close(f)
ts = [threading.Thread(target=many, args=(i,)) for i in range(8)]
errors = []
threading.excepthook = lambda a: errors.append(a.exc_value)
[t.start() for t in ts]; [t.join() for t in ts]
assert not errors, errors
"#;
    fs::write(work.beside("ways.py"), script).unwrap();
    let before = work.manifest();
    let way = work.beside("ways.py").display().to_string();
    work.run(&format!("python3 {way}")).ok();
    assert_same("base", &before, &work.manifest());
    // The same where file data never bypasses the daemon.
    let cached = Work::new();
    cached.sh("head -c 100000 /dev/zero > base");
    let said = cached
        .command(TXFS)
        .env("TXFS_NO_PASSTHROUGH", "1")
        .args(["run", "--", "python3", &way])
        .output()
        .unwrap();
    Said::of(said).ok();
}

#[test]
fn readers_stay_right_over_commit_and_abort_and_can_be_joined_by_writers() {
    let work = Work::new();
    let view = Mounted::of(&work);
    view.sh("echo one > f; cp /bin/sleep tool");
    let mut reader = view.python(
        r#"
import os
f = os.open("f", os.O_RDONLY)
print(os.pread(f, 100, 0).decode().strip(), flush=True)
for line in iter(__import__("sys").stdin.readline, ""): print(os.pread(f, 100, 0).decode().strip(), flush=True)
"#,
    );
    let mut tool = view.command("./tool").arg("60").spawn().unwrap();
    reader.hears("one");
    work.txfs(["commit"]).ok();
    let base = work.sh("cksum f tool").out;
    view.sh("printf two > f; cat f; (exec 4<>f; printf TWO >&4)");
    assert_eq!(view.sh("cat f"), "TWO");
    reader.ask("TWO");
    assert_eq!(work.sh("cksum f tool").out, base, "the base changes only by commit");
    work.txfs(["abort"]).ok();
    assert_eq!(view.sh("cat f"), "one\n");
    view.sh("exec 4<>f; printf 333 >&4; cat f");
    assert!(tool.try_wait().unwrap().is_none(), "the program runs on");
    tool.kill().unwrap();
    tool.wait().unwrap();
    assert_eq!(work.sh("cksum f tool").out, base);
    reader.ends();
}

#[test]
fn an_aborted_file_in_use_is_left_under_none_of_its_names() {
    let work = Work::new();
    work.sh("echo base > a; mkdir d; ln a d/b; ln a c");
    let view = Mounted::of(&work);
    view.sh("cat a c d/b");
    let mut writer = view.python(
        r#"
import os
f = os.open("a", os.O_RDWR); os.pwrite(f, b"view", 0)
print(os.pread(f, 4, 0).decode(), flush=True); input()
"#,
    );
    writer.hears("view");
    assert_eq!(view.sh("cat a c d/b"), "view\nview\nview\n");
    work.txfs(["abort"]).ok();
    for name in ["a", "c", "d/b"] {
        assert_eq!(view.sh(&format!("exec 3<>{name}; cat {name}")), "base\n", "{name}");
    }
    writer.tell.as_mut().unwrap().write_all(b"\n").unwrap();
    writer.ends();
}

#[test]
fn times_of_a_file_written_through_a_mapping_are_never_old() {
    let work = Work::new();
    let view = Mounted::of(&work);
    let mut talk = view.python(
        r#"
import mmap, os, time
f = os.open("f", os.O_RDWR | os.O_CREAT, 0o644); os.ftruncate(f, 4096); m = mmap.mmap(f, 4096)
os.close(f)
for _ in range(3):
    time.sleep(0.05)
    before = os.stat("f").st_mtime_ns
m[0:1] = b"x"
print("moved" if os.stat("f").st_mtime_ns > before else "stood", flush=True); input()
"#,
    );
    talk.hears("moved");
    talk.tell.as_mut().unwrap().write_all(b"\n").unwrap();
    talk.ends();
}

#[test]
fn appends_from_three_processes_stay_whole() {
    let work = Work::new();
    work.sh(": > log");
    work.run("for p in a b c; do (for i in $(seq 300); do echo $p$i >> log; echo $p$i >> new; done) & done; wait; [ $(sort -u log | wc -l) = 900 ]; [ $(sort -u new | wc -l) = 900 ]").ok();
}

#[test]
fn a_program_that_runs_cannot_be_written() {
    let work = Work::new();
    work.run("cp /bin/sleep tool; ./tool 30 & p=$!; while [ \"$(readlink /proc/$p/exe | grep -c tool)\" = 0 ]; do :; done; if echo x > tool; then exit 9; fi 2>err; kill $p; grep -qi busy err; printf '#!/bin/sh\\necho hi\\n' > s; chmod +x s; [ $(./s) = hi ]").ok();
}

// ---- identity and rights ------------------------------------------------------------------------

#[test]
fn node_numbers_stay_over_copy_up_rename_and_commit() {
    let work = Work::new();
    work.sh("echo 1 > f; mkdir d; echo 1 > d/g; ln f h");
    let view = Mounted::of(&work);
    let numbers = "stat -c %i f h d d/g n 2>/dev/null || true";
    view.sh("echo n > n");
    let before = view.sh(numbers);
    view.sh("echo 2 >> f; chmod 600 d/g; mv f x; mv x f; echo 3 > h");
    assert_eq!(view.sh(numbers), before);
    work.txfs(["commit"]).ok();
    assert_eq!(view.sh(numbers), before);
    assert_eq!(view.sh("ls -i | sort -k2; ls -id d").lines().count(), 5);
    view.sh(
        "[ $(stat -c %h f) = 2 ]; [ f -ef h ]; [ $(ls -i f | cut -d' ' -f1) = $(stat -c %i f) ]",
    );
    view.sh("echo 4 > f");
    assert_eq!(view.sh(numbers), before);
}

#[test]
fn new_entries_belong_to_who_makes_them() {
    let work = Work::new();
    work.sh("chmod 777 .; mkdir s; chgrp 4321 s; chmod 2777 s; mkdir acl; setfacl -d -m u:77:rwx,o::- acl; chmod 777 acl; mkdir g; chgrp 5555 g; chmod 770 g; mkdir sticky; echo r > sticky/root; chmod 1777 sticky; echo secret > root; chmod 600 root; mkdir shut; chmod 700 shut");
    work.run(
        r#"
as() { setpriv --reuid 1234 --regid 1235 --groups 5555 -- sh -ec "$1"; }
as 'umask 0; echo > open; umask 027; echo > f; mkdir d; mkfifo p; ln -s x l; umask 077; echo > s/f; mkdir s/d; echo > acl/f; mkdir acl/d; echo > g/f'
[ "$(stat -c '%a %u %g' open)" = "666 1234 1235" ]
[ "$(stat -c '%a %u %g' f d p)" = "$(printf '640 1234 1235\n750 1234 1235\n640 1234 1235')" ]
[ "$(stat -c '%u %g' l)" = "1234 1235" ]
[ "$(stat -c '%a %u %g' s/f s/d)" = "$(printf '600 1234 4321\n2700 1234 4321')" ]
getfacl -cnp acl/f | grep -q 'user:77:rwx'
[ "$(stat -c %a acl/f)" = 660 ]
getfacl -cnp acl/d | grep -q 'default:user:77:rwx'
[ "$(stat -c '%u %g' g/f)" = "1234 1235" ]
for no in 'cat root' 'ls shut' 'rm sticky/root' 'echo > root' 'chmod 777 root' 'chown 1234 root' 'mv root x; ls x/y'; do
  if as "$no" 2>/dev/null; then echo "$no"; exit 9; fi
done
"#,
    )
    .ok();
}

#[test]
fn privileges_go_when_they_must() {
    let work = Work::new();
    work.sh("chmod 777 .; for f in w t o a k; do echo x > $f; chown 1234 $f; chmod 6777 $f; done; cp /bin/true cap; setcap cap_net_raw+ep cap; chmod 777 cap; echo x > root; chmod 6777 root");
    work.run(
        r#"
as() { setpriv --reuid 1235 --regid 1235 --clear-groups -- sh -ec "$1"; }
as 'printf y | dd of=w conv=notrunc 2>/dev/null; : > o; truncate -s 5 t; echo >> a'
[ "$(stat -c %a w o t a)" = "$(printf '777\n777\n777\n777')" ]
as 'echo x >> cap'
[ -z "$(getcap cap)" ]
chown 1236 k; [ "$(stat -c %a k)" = 777 ]
printf y | dd of=root conv=notrunc 2>/dev/null; [ "$(stat -c %a root)" = 6777 ]
"#,
    )
    .ok();
}

#[test]
fn setuid_and_devices_do_nothing_in_a_view() {
    let work = Work::new();
    work.sh("chmod 777 .; cp /usr/bin/id id; chmod 4755 id; mknod null c 1 3; chmod 666 null");
    work.run("[ $(setpriv --reuid 1234 --regid 1234 --clear-groups ./id -u) = 1234 ]; if echo x > null; then exit 9; fi 2>/dev/null; mknod mine c 1 5; [ \"$(stat -c '%t %T' mine null)\" = \"$(printf '1 5\\n1 3')\" ]").ok();
    work.txfs(["commit"]).ok();
    assert_eq!(work.sh("stat -c '%t %T %F' mine").out, "1 5 character special file\n");
}

// ---- operations -----------------------------------------------------------------------------------

#[test]
fn rename_flags() {
    let work = Work::new();
    work.sh("echo a > a; echo b > b; mkdir d; echo f > d/f; mkdir e");
    let libc = r#"
import ctypes, os, errno
lib = ctypes.CDLL(None, use_errno=True)
def rename(a, b, flags):
    return 0 if lib.renameat2(-100, a.encode(), -100, b.encode(), flags) == 0 else ctypes.get_errno()
assert rename("a", "b", 1) == errno.EEXIST
assert rename("a", "b", 2) == 0 and open("a").read() == "b\n"
assert rename("a", "d", 2) == 0 and open("d").read() == "b\n" and os.path.isdir("a")
assert rename("d", "x", 4) == errno.EINVAL
assert rename("a", "a/in", 0) == errno.EINVAL
assert rename("e", "a", 0) == errno.ENOTEMPTY
assert rename("d", "e", 0) == errno.EISDIR
assert rename("a", "d", 0) == errno.ENOTDIR
assert rename("none", "d", 0) == errno.ENOENT
assert rename("a", "e", 2) == 0 and os.listdir("e") == ["f"]
"#;
    fs::write(work.beside("rename.py"), libc).unwrap();
    work.run(&format!("python3 {}", work.beside("rename.py").display())).ok();
    work.txfs(["commit"]).ok();
    assert_eq!(work.sh("cat b d e/f; ls a").out, "a\nb\nf\n");
}

#[test]
fn holes_ranges_and_copies() {
    let work = Work::new();
    work.sh("truncate -s 1G sparse; printf end >> sparse; head -c 1M /dev/urandom > data");
    let script = r#"
import os, ctypes, errno
s = os.open("sparse", os.O_RDWR)
os.pwrite(s, b"x" * 4096, 1 << 20)
assert os.lseek(s, 0, os.SEEK_DATA) == 1 << 20, os.lseek(s, 0, os.SEEK_DATA)
assert os.lseek(s, 1 << 20, os.SEEK_HOLE) == (1 << 20) + 4096
assert os.fstat(s).st_blocks < 100, os.fstat(s).st_blocks
lib = ctypes.CDLL(None, use_errno=True)
fallocate = lambda f, mode, off, n: lib.fallocate(f, mode, ctypes.c_long(off), ctypes.c_long(n))
assert fallocate(s, 3, 1 << 20, 4096) == 0 and os.pread(s, 4, 1 << 20) == bytes(4)
assert fallocate(s, 1, 2 << 30, 4096) == 0 and os.fstat(s).st_size == (1 << 30) + 3
assert fallocate(s, 0, 0, (1 << 30) + 4096) == 0 if False else True
d = os.open("data", os.O_RDWR)
whole = os.pread(d, 1 << 20, 0)
c = os.open("copy", os.O_RDWR | os.O_CREAT)
n = 0
while n < 1 << 20:
    got = os.copy_file_range(d, c, (1 << 20) - n); assert got > 0; n += got
assert os.pread(c, 1 << 20, 0) == whole
assert os.copy_file_range(d, d, 1000, 0, 500000) == 1000 and os.pread(d, 1000, 500000) == whole[:1000]
try: os.copy_file_range(d, d, 1000, 0, 500); raise SystemExit("overlap")
except OSError as e: assert e.errno == errno.EINVAL, e
os.posix_fadvise(d, 0, 0, os.POSIX_FADV_DONTNEED)
assert os.pread(d, 1000, 0) == whole[:1000]
os.truncate("data", 5 << 20); assert os.pread(d, 10, 3 << 20) == bytes(10)
assert os.fstat(d).st_size == 5 << 20
"#;
    fs::write(work.beside("holes.py"), script).unwrap();
    work.run(&format!("python3 {}", work.beside("holes.py").display())).ok();
    work.run("cp --sparse=always sparse s2; cmp sparse s2; if cp --reflink=always data r 2>/dev/null; then cmp data r; else rm -f r; fi").ok();
    work.txfs(["commit"]).ok();
    work.sh("[ $(stat -c %b sparse) -lt 100 ]; [ $(stat -c %s sparse) = 1073741827 ]");
}

#[test]
fn special_files_are_never_opened_by_the_daemon() {
    let work = Work::new();
    work.sh("mkfifo p; python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"s\")'");
    work.run(
        r#"
timeout 5 sh -ec 'ls -l > /dev/null; chmod 600 p; setfattr -n user.x -v 1 p 2>/dev/null || true; mv p q; ln q p; (echo through > p &) ; [ "$(cat q)" = through ]'
mkfifo n; (echo two > n &); [ "$(timeout 5 cat n)" = two ]
python3 - <<'P'
import socket, threading
s = socket.socket(socket.AF_UNIX); s.bind("sock"); s.listen()
c = socket.socket(socket.AF_UNIX); c.connect("sock"); a, _ = s.accept(); c.send(b"hi"); assert a.recv(9) == b"hi"
P
"#,
    )
    .ok();
    work.txfs(["commit"]).ok();
    assert_eq!(work.sh("stat -c %F p s n sock").out, "fifo\nsocket\nfifo\nsocket\n");
}

#[test]
fn extended_attributes_and_their_limits() {
    let work = Work::new();
    work.sh("echo 1 > f; setfattr -n user.base -v 1 f");
    let script = r#"
import os, errno
def fails(code, f, *a):
    try: f(*a)
    except OSError as e: assert e.errno == code, e; return
    raise SystemExit("no error: %s" % (a,))
os.setxattr("f", "user.a", b"1", os.XATTR_CREATE)
fails(errno.EEXIST, os.setxattr, "f", "user.a", b"2", os.XATTR_CREATE)
fails(errno.ENODATA, os.setxattr, "f", "user.none", b"2", os.XATTR_REPLACE)
fails(errno.ENODATA, os.getxattr, "f", "user.none")
os.setxattr("f", "user.big", bytes(3000)); assert os.getxattr("f", "user.big") == bytes(3000)
for code in (errno.ENOSPC, errno.E2BIG):
    try: os.setxattr("f", "user.huge", bytes(65536)); raise SystemExit("huge")
    except OSError as e: assert e.errno in (errno.ENOSPC, errno.E2BIG), e
assert sorted(os.listxattr("f")) == ["user.a", "user.base", "user.big"], os.listxattr("f")
os.removexattr("f", "user.base"); os.setxattr("f", "user.empty", b"")
assert sorted(os.listxattr("f")) == ["user.a", "user.big", "user.empty"]
fails(errno.ENODATA, os.removexattr, "f", "user.base")
assert os.getxattr(".", "user.txfs.txn") == b"main"
assert os.listxattr(".") == []
"#;
    fs::write(work.beside("xattr.py"), script).unwrap();
    work.run(&format!("python3 {}", work.beside("xattr.py").display())).ok();
}

#[test]
fn odd_calls_have_ordinary_answers() {
    let work = Work::new();
    work.sh("echo 1 > f; mkdir d; ln -s /etc/passwd l; ln -s nowhere x");
    let script = r#"
import os, errno, fcntl, array
def fails(code, f, *a, **k):
    try: f(*a, **k)
    except OSError as e: assert e.errno == code, (e, a); return
    raise SystemExit("no error: %s" % (a,))
f = os.open("f", os.O_RDWR)
fails(errno.ENOTTY, fcntl.ioctl, f, 0x80086601, array.array("l", [0]))
fails(errno.EISDIR, os.open, "d", os.O_RDWR)
fails(errno.ELOOP, os.open, "l", os.O_NOFOLLOW)
fails(errno.ENOTDIR, os.open, "f/x", os.O_RDONLY)
fails(errno.ENAMETOOLONG, os.open, "a" * 256, os.O_CREAT)
os.close(os.open("a" * 255, os.O_CREAT)); os.unlink("a" * 255)
fails(errno.EEXIST, os.open, "f", os.O_CREAT | os.O_EXCL)
fails(errno.EEXIST, os.mkdir, "d")
fails(errno.EEXIST, os.symlink, "t", "x")
fails(errno.ENOTDIR, os.rmdir, "f")
fails(errno.EISDIR, os.unlink, "d")
fails(errno.EINVAL, os.readlink, "f")
fails(errno.EPERM, os.link, "d", "d2")
os.symlink("t" * 4095, "long"); assert os.readlink("long") == "t" * 4095
fails(errno.EOPNOTSUPP, os.open, ".", os.O_TMPFILE | os.O_RDWR)
for t in (-2**30, -1, 0, 2**31, 2**33):
    os.utime("f", ns=(t * 10**9 + 5, t * 10**9 + 7)); s = os.stat("f")
    assert (s.st_atime_ns, s.st_mtime_ns) == (t * 10**9 + 5, t * 10**9 + 7), (t, s)
os.chmod("f", 0o4751); assert os.stat("f").st_mode == 0o104751
s = os.statvfs("."); assert s.f_namemax == 255 and s.f_blocks > 0
d = os.open("d", os.O_RDONLY); os.fsync(d); os.fdatasync(f)
fcntl.flock(f, fcntl.LOCK_EX)
g = os.open("f", os.O_RDWR)
fails(errno.EAGAIN, fcntl.flock, g, fcntl.LOCK_EX | fcntl.LOCK_NB)
fcntl.lockf(g, fcntl.LOCK_EX)
os.rmdir("d"); fails(errno.ENOENT, os.open, "new", os.O_CREAT, dir_fd=d)
assert os.listdir(d) == []
"#;
    fs::write(work.beside("odd.py"), script).unwrap();
    work.run(&format!("python3 {}", work.beside("odd.py").display())).ok();
}

#[test]
fn a_position_in_a_listing_can_be_taken_up_again() {
    let work = Work::new();
    work.sh("mkdir d; cd d; seq 1000 | xargs touch");
    let script = r#"
import ctypes, os
lib = ctypes.CDLL(None, use_errno=True)
lib.opendir.restype = lib.readdir.restype = ctypes.c_void_p
lib.telldir.restype = ctypes.c_long
for n in ("readdir", "telldir", "rewinddir"): getattr(lib, n).argtypes = [ctypes.c_void_p]
lib.seekdir.argtypes = [ctypes.c_void_p, ctypes.c_long]
name = lambda p: ctypes.string_at(p + 19)
d = lib.opendir(b"d")
seen, at = [], []
while True:
    pos = lib.telldir(d); p = lib.readdir(d)
    if not p: break
    seen.append(name(p)); at.append(pos)
assert len(seen) == len(set(seen)) == 1002, len(seen)
for i in (5, 999, 0, 500, 1001):
    lib.seekdir(d, at[i]); assert name(lib.readdir(d)) == seen[i], i
lib.seekdir(d, at[700])
for i in range(100): os.unlink(b"d/" + seen[10 + i])
rest = []
while p := lib.readdir(d): rest.append(name(p))
assert rest == seen[700:], len(rest)
lib.rewinddir(d); n = 0
while lib.readdir(d): n += 1
assert n == 902, n
"#;
    fs::write(work.beside("dir.py"), script).unwrap();
    work.run(&format!("python3 {}", work.beside("dir.py").display())).ok();
}

// ---- where the workspace is --------------------------------------------------------------------------

#[test]
fn a_workspace_on_tmpfs_whose_root_is_inode_1() {
    let work = Work::new();
    on_tmpfs(&work);
    work.sh("mkdir d; echo 1 > d/f; echo 1 > g");
    let said = work.run("[ $(stat -c %i .) = 1 ]; echo 2 > d/f; mv g d/g; mkdir e; ls -lai > /dev/null; [ $(find . | wc -l) = 5 ]");
    let committed = work.txfs(["commit"]);
    let base = work.sh("cat d/f d/g; ls");
    let stopped = work.txfs(["__stop", "--force"]);
    work.sh("cd /; umount -l \"$OLDPWD\"");
    said.ok();
    committed.ok();
    stopped.ok();
    assert_eq!(base.out, "2\n1\nd\ne\n");
}

#[test]
fn a_workspace_on_overlayfs_where_nothing_can_bypass_the_daemon() {
    let work = Work::new();
    work.sh("cd ..; mkdir lower upper work; mkdir lower/d; echo 1 > lower/d/f; echo 1 > lower/g; mount -t overlay -o lowerdir=lower,upperdir=upper,workdir=work none ws");
    let said = work.run("echo 2 > d/f; mv g d/g; mkdir e; echo n > e/n; exec 4<>d/f; printf 3 >&4; [ $(cat d/f) = 3 ]; echo >> e/n; cat d/g");
    let committed = work.txfs(["commit"]);
    let base = work.sh("cat d/f d/g; ls");
    let stopped = work.txfs(["__stop", "--force"]);
    work.sh("cd /; umount -l \"$OLDPWD\"");
    said.ok();
    committed.ok();
    stopped.ok();
    assert_eq!(base.out, "3\n1\nd\ne\n");
}

#[test]
fn a_commit_that_the_file_system_refuses_at_its_first_step_leaves_everything_as_it_was() {
    let work = Work::new();
    work.sh("cd ..; mkdir -p lower/d upper work; echo 1 > lower/d/f; mount -t overlay -o lowerdir=lower,upperdir=upper,workdir=work none ws");
    work.run("mv d e; echo 2 > e/f").ok();
    let refused = work.txfs(["commit"]);
    let base = work.sh("find . -path ./.txfs -prune -o -print; cat d/f");
    let shown = work.run("cat e/f; mv e d");
    let committed = work.txfs(["commit"]);
    let after = work.sh("cat d/f");
    let stopped = work.txfs(["__stop", "--force"]);
    work.sh("cd /; umount -l \"$OLDPWD\"");
    assert!(refused.err.contains("redirect_dir=on"), "{}", refused.err);
    assert_eq!(refused.code, 12);
    assert_eq!(base.out, ".\n./d\n./d/f\n1\n");
    assert_eq!(shown.ok().out, "2\n");
    committed.ok();
    stopped.ok();
    assert_eq!(after.out, "2\n");
}

#[test]
fn sixty_thousand_files_with_few_descriptors() {
    let work = Work::new();
    work.sh("for d in $(seq 60); do mkdir d$d; (cd d$d; seq 1000 | xargs touch); done");
    let bin = work.bin();
    let bin = bin.display();
    work.sh(&format!("ulimit -Sn 256; ulimit -Hn 256; {bin} run -- sh -ec '[ $(find . -type f -newermt 2000-01-01 | wc -l) = 60000 ]; for d in $(seq 60); do echo x > d$d/1; done; find . -type f | xargs -n 5000 ls -l > /dev/null'"));
    work.txfs(["commit"]).ok();
}

#[test]
fn an_unmount_from_outside_ends_the_session_and_touches_no_later_mount() {
    let work = Work::new();
    work.sh("echo 1 > f");
    let at = work.beside("mnt");
    fs::create_dir(&at).unwrap();
    let mnt = at.to_str().unwrap();
    work.txfs(["mount", mnt]).ok();
    fs::write(at.join("g"), "2").unwrap();
    work.sh(&format!("umount {mnt}; mount -t tmpfs none {mnt}; echo other > {mnt}/o"));
    let again = work.run("cat g f");
    let other = fs::read_to_string(at.join("o"));
    work.sh(&format!("umount {mnt}"));
    assert_eq!(again.ok().out, "21\n");
    assert_eq!(other.unwrap(), "other\n");
    assert_eq!(fs::metadata(&at).unwrap().dev(), fs::metadata(work.dir()).unwrap().dev());
}

#[test]
fn a_mount_right_after_a_run_waits_until_the_run_s_view_is_gone() {
    let work = Work::new();
    let at = work.beside("mnt");
    fs::create_dir(&at).unwrap();
    for n in 0..30 {
        work.run(&format!("echo {n} > f")).ok();
        work.txfs(["mount", at.to_str().unwrap()]).ok();
        assert_eq!(fs::read_to_string(at.join("f")).unwrap(), format!("{n}\n"));
        work.txfs(["umount"]).ok();
    }
}

#[test]
fn status_names_who_writes() {
    let work = Work::new();
    work.sh("echo 1 > f");
    let view = Mounted::of(&work);
    let file = fs::File::options().append(true).open(view.at.join("f")).unwrap();
    let said = work.txfs(["status", "--json"]);
    drop(file);
    let status = said.ok().json();
    let writers = status["open_writers"].as_array().unwrap();
    assert_eq!(writers.len(), 1, "{status}");
    assert_eq!(writers[0]["pids"], serde_json::json!([std::process::id()]));
}

/// Whoever pages through a long diff holds nobody up.
#[test]
fn a_diff_that_nobody_reads_holds_nobody_up() {
    let work = Work::new();
    work.run("seq 900000 > long").ok();
    work.sh("mkdir ../view");
    work.txfs(["mount", "../view"]).ok();
    let mut diff =
        work.command(work.bin()).arg("diff").stdout(std::process::Stdio::piped()).spawn().unwrap();
    // One byte of it has arrived, and the rest is more than pipe and socket hold.
    std::io::Read::read_exact(diff.stdout.as_mut().unwrap(), &mut [0]).unwrap();
    work.sh("timeout 20 sh -c 'echo 1 > ../view/new; rm ../view/long'");
    let mut rest = Vec::new();
    std::io::Read::read_to_end(diff.stdout.as_mut().unwrap(), &mut rest).unwrap();
    assert!(diff.wait().unwrap().success() && rest.ends_with(b"+900000\n"));
    work.txfs(["umount", "../view"]).ok();
}
