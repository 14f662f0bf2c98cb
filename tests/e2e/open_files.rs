//! Files that stay open, mapped or running over commit and abort.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use crate::harness::Work;

/// A process in a view that does one line of Python at a time.
pub struct Python {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Python {
    pub fn in_view(work: &Work) -> Python {
        let code = "import os,mmap,sys\nfor line in sys.stdin:\n  try:\n    exec(line); print('ok', flush=True)\n  except Exception as e:\n    print(repr(e), flush=True)";
        let mut child = work
            .command(work.bin())
            .args(["run", "--", "python3", "-uc", code])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let (input, output) =
            (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Python { child, input, output }
    }

    #[track_caller]
    pub fn says(&mut self, line: &str) -> String {
        writeln!(self.input, "{line}").unwrap();
        let mut said = String::new();
        self.output.read_line(&mut said).unwrap();
        said.trim().to_owned()
    }

    #[track_caller]
    pub fn does(&mut self, line: &str) {
        assert_eq!(self.says(line), "ok", "{line}");
    }

    pub fn end(mut self) {
        drop(self.input);
        assert!(self.child.wait().unwrap().success());
    }
}

fn base(work: &Work, name: &str) -> String {
    std::fs::read_to_string(work.path(name)).unwrap()
}

#[test]
fn a_writer_and_a_mapping_stay_open_over_commit() {
    let work = Work::new();
    work.sh("printf 'base    ' > old");
    let mut p = Python::in_view(&work);
    p.does("f = open('new', 'w+b', buffering=0); f.write(b'one     ')");
    p.does("m = mmap.mmap(f.fileno(), 8)");
    p.does("g = open('old', 'r+b', buffering=0); g.write(b'two')");
    p.does("n = mmap.mmap(g.fileno(), 8)");
    work.txfs(["commit"]).ok();
    assert_eq!((base(&work, "new"), base(&work, "old")), ("one     ".into(), "twoe    ".into()));
    // What is written from here on belongs to the next transaction.
    p.does("f.seek(0); f.write(b'later'); m[7:8] = b'!'; m.flush()");
    p.does("g.seek(0); g.write(b'LATER'); n[7:8] = b'!'; n.flush()");
    p.does("assert open('new','rb').read() == b'later  !', open('new','rb').read()");
    p.does("assert open('old','rb').read() == b'LATER  !', open('old','rb').read()");
    assert_eq!((base(&work, "new"), base(&work, "old")), ("one     ".into(), "twoe    ".into()));
    work.txfs(["commit"]).ok();
    assert_eq!((base(&work, "new"), base(&work, "old")), ("later  !".into(), "LATER  !".into()));
    p.does("f.seek(0); f.write(b'third'); f.close(); m.close()");
    p.does("g.close(); n.close()");
    work.txfs(["abort"]).ok();
    assert_eq!(base(&work, "new"), "later  !");
    p.end();
}

/// Whoever writes all the while loses no write that was answered, whether the kernel or the daemon carries
/// it out: a commit takes each one along or leaves it to the next transaction.
#[test]
fn no_write_gets_lost_between_two_transactions() {
    let work = Work::new();
    work.sh("printf '00000000\\n' | tee past > through");
    let mut p = Python::in_view(&work);
    p.does("import threading; r = open('through'); r.read(); go_on = True; count = {}");
    // An open reader has the daemon serve the file, unless it does so anyhow.
    p.does(
        "exec('def write(name, how):\\n f = os.open(name, os.O_WRONLY | how); os.lseek(f, 0, 2); n = 0\\n while go_on: n += os.write(f, b\"%08d\\\\n\" % (n // 9 + 1))\\n os.close(f); count[name] = n // 9 + 1')",
    );
    p.does("past = threading.Thread(target=write, args=('past', os.O_APPEND)); past.start()");
    p.does("through = threading.Thread(target=write, args=('through', 0)); through.start()");
    for _ in 0..12 {
        work.txfs(["commit", "--allow-open-writers"]).ok();
    }
    p.does("go_on = False; past.join(); through.join()");
    p.does(
        "exec('for name in count:\\n got = open(name).read().splitlines()\\n want = [\"%08d\" % n for n in range(count[name])]\\n assert got == want, (name, len(got), len(want), [w for w in want if w not in got][:9])')",
    );
    work.txfs(["commit"]).ok();
    p.does("assert count['past'] > 1 and count['through'] > 1");
    p.end();
}

#[test]
fn a_writer_and_a_mapping_stay_open_over_abort() {
    let work = Work::new();
    work.sh("printf base > old");
    let mut p = Python::in_view(&work);
    p.does("f = open('old', 'r+b', buffering=0); f.write(b'view'); m = mmap.mmap(f.fileno(), 4)");
    p.does("h = open('gone', 'w+b', buffering=0); h.write(b'gone')");
    work.txfs(["abort"]).ok();
    // The open handles go on on what nobody else sees, or say ESTALE; the names mean the base again.
    p.says("f.seek(0); f.write(b'late')");
    p.says("m[0:1] = b'X'; m.flush()");
    p.does("assert open('old','rb').read() == b'base', open('old','rb').read()");
    p.does("assert not os.path.exists('gone')");
    p.does("g = open('old', 'r+b', buffering=0); g.write(b'B'); g.close()");
    p.does("assert open('old','rb').read() == b'Base'");
    assert_eq!(base(&work, "old"), "base");
    work.txfs(["commit"]).ok();
    assert_eq!(base(&work, "old"), "Base");
    p.end();
}

#[test]
fn readers_and_a_running_program_stay_open_over_commit_and_abort() {
    let work = Work::new();
    let mut p = Python::in_view(&work);
    p.does("import shutil, subprocess; shutil.copy('/bin/cat', 'cat'); open('r','w').write('1')");
    p.does("c = subprocess.Popen(['./cat'], stdin=subprocess.PIPE, stdout=subprocess.PIPE)");
    p.does("r = open('r', 'rb', buffering=0); assert r.read() == b'1'");
    work.txfs(["commit"]).ok();
    let before = crc32fast::hash(&std::fs::read(work.path("cat")).unwrap());
    p.does("w = open('r', 'r+b', buffering=0); w.write(b'2'); w.close()");
    p.does("r.seek(0); assert r.read() in (b'1', b'2')");
    p.does("assert open('r','rb').read() == b'2'");
    assert_eq!(base(&work, "r"), "1");
    work.txfs(["abort"]).ok();
    p.does("assert open('r','rb').read() == b'1', open('r','rb').read()");
    p.does("w = open('r', 'r+b', buffering=0); w.write(b'3'); w.close()");
    p.does("out, _ = c.communicate(b'alive'); assert out == b'alive'");
    p.does(
        "s = os.stat('cat').st_size; w = open('cat', 'r+b', buffering=0); w.write(b'#'); w.close()",
    );
    assert_eq!(
        crc32fast::hash(&std::fs::read(work.path("cat")).unwrap()),
        before,
        "the base's program is untouched"
    );
    work.txfs(["commit"]).ok();
    assert_eq!(base(&work, "r"), "3");
    p.end();
}

#[test]
fn a_follower_of_a_base_file_sees_what_is_appended_in_the_view() {
    let work = Work::new();
    work.sh("echo first > log");
    let mut p = Python::in_view(&work);
    p.does("r = open('log', 'rb', buffering=0); assert r.read() == b'first\\n'");
    p.does("w = open('log', 'ab', buffering=0); w.write(b'second\\n')");
    p.does("assert r.read() == b'second\\n'");
    p.does("m = mmap.mmap(r.fileno(), 13, prot=mmap.PROT_READ); assert m[6:12] == b'second'");
    assert_eq!(base(&work, "log"), "first\n");
    p.end();
}

#[test]
fn numbers_of_files_stay_over_copy_up_rename_and_commit() {
    let work = Work::new();
    work.sh("echo 1 > a; ln a b");
    let mut p = Python::in_view(&work);
    p.does("n = os.stat('a').st_ino; assert os.stat('b').st_ino == n");
    p.does("open('a','a').write('2'); os.rename('a', 'c'); open('new','w').write('x'); k = os.stat('new').st_ino");
    p.does("assert os.stat('c').st_ino == n and os.stat('b').st_ino == n and os.stat('b').st_nlink == 2");
    work.txfs(["commit"]).ok();
    p.does("assert (os.stat('c').st_ino, os.stat('new').st_ino) == (n, k), (os.stat('c'), os.stat('new'), n, k)");
    p.does("assert sorted(os.listdir('.')) == ['b', 'c', 'new']");
    p.end();
    assert_eq!(work.sh("cat b; [ b -ef c ]").out, "1\n2");
}

#[test]
fn a_directory_in_use_stays_usable_over_commit() {
    let work = Work::new();
    work.sh("mkdir -p d/e; echo 1 > d/e/f");
    let mut p = Python::in_view(&work);
    p.does("os.mkdir('n'); os.chdir('n'); open('x','w').write('1')");
    work.txfs(["commit"]).ok();
    p.does("assert os.path.basename(os.getcwd()) == 'n'; open('y','w').write('2'); assert sorted(os.listdir('.')) == ['x','y']");
    p.does(
        "os.chdir('../d'); os.rename('../d', '../m'); assert os.path.basename(os.getcwd()) == 'm'",
    );
    work.txfs(["commit"]).ok();
    p.does("assert open('e/f').read() == '1\\n'; assert os.path.basename(os.getcwd()) == 'm'");
    p.end();
    assert_eq!(work.sh("cat m/e/f n/x n/y").out, "1\n12");
}

#[test]
fn set_user_id_goes_with_a_write_and_stays_without() {
    let work = Work::new();
    work.sh("cp /bin/true s; chown 1:1 s; chmod 6755 s; cp s t; chown 1:1 t; chmod 6777 t");
    work.run("setpriv --reuid 65534 --regid 65534 --clear-groups sh -c 'echo x >> t'; [ $(stat -c %a t) = 777 ]; [ $(stat -c %a s) = 6755 ]; chown 2 s; [ $(stat -c %a s) = 755 ]").ok();
    work.txfs(["commit"]).ok();
    assert_eq!(work.sh("stat -c %a s t").out, "755\n777\n");
}

#[test]
fn access_lists_are_kept_inherited_and_masked() {
    let work = Work::new();
    let script = "mkdir d; setfacl -d -m u:1234:rwx,g::rx d; umask 077; echo 1 > d/f; mkdir d/g; setfacl -m u:99:r d/f; chmod 640 d/f";
    work.run(script).ok();
    work.txfs(["commit"]).ok();
    let plain = Work::new();
    plain.sh(script);
    let list = "getfacl -R -n d; stat -c %a d d/f d/g";
    assert_eq!(plain.sh(list).out, work.sh(list).out);
}
