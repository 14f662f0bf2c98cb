//! Savepoints and steps over a live mount: the view goes back under those who use it.

use crate::harness::Work;
use crate::open_files::Python;

#[test]
fn a_view_goes_back_to_savepoints_and_to_before_steps() {
    let work = Work::new();
    work.sh("mkdir d; echo 1 > d/a; echo 2 > b; ln b c");
    let base = work.manifest();
    work.run("echo new > n; echo more >> b; chmod 600 d/a").ok();
    let said = work.txfs(["savepoint", "one"]).ok();
    assert!(said.out.contains("savepoint one is set; to go back to it: txfs rollback one"));
    let before = work.txfs(["diff"]).ok().out;
    work.run("mv d e; rm c; echo gone > n; echo gone >> b; mkdir -p x/y; echo z > x/y/z").ok();
    assert_ne!(work.txfs(["diff"]).ok().out, before);
    let back = work.txfs(["--json", "rollback", "one"]).ok().json();
    assert_eq!((back["kind"].as_str(), back["undo"].is_null()), (Some("rollback"), true));
    assert!(back["effects"].as_u64().unwrap() > 5 && back["reason"].is_string());
    assert_eq!(work.txfs(["diff"]).ok().out, before);
    // Steps are numbered on; the second one went with the rollback.
    work.run("echo third >> b").ok();
    let marks = work.txfs(["--json", "savepoints"]).ok().json();
    let steps: Vec<_> = marks["marks"].as_array().unwrap().iter().map(|m| &m["step"]).collect();
    assert_eq!(steps, [1, 1, 3]);
    work.txfs(["rollback", "--last"]).ok();
    assert_eq!(work.txfs(["diff"]).ok().out, before);
    work.txfs(["rollback", "--step", "3"]).code(9);
    work.txfs(["rollback", "--step", "1"]).ok();
    assert_eq!(work.txfs(["diff"]).ok().out, "");
    work.txfs(["rollback"]).code(9);
    assert_eq!(work.manifest(), base);
}

#[test]
fn going_back_shows_at_once_in_a_view_in_use() {
    let work = Work::new();
    work.sh("mkdir d; echo 1 > d/a; echo 2 > b");
    let mut p = Python::in_view(&work);
    p.does("os.mkdir('d/new'); open('d/kept','w').write('kept')");
    work.txfs(["savepoint", "s"]).ok();
    p.does("os.chdir('d'); os.mkdir('deep'); os.rename('../d', '../m'); os.unlink('kept')");
    p.does("open('a','a').write('more'); os.unlink('../b'); os.mkdir('../inside'); q = os.open('../inside', os.O_RDONLY)");
    p.does("assert sorted(os.listdir('.')) == ['a', 'deep', 'new'], os.listdir('.')");
    work.txfs(["rollback", "s"]).ok();
    // The current directory is the same one under its old name, with what was in it.
    p.does("assert sorted(os.listdir('.')) == ['a', 'kept', 'new'], os.listdir('.')");
    // The kernel goes by the name that was looked up last.
    p.does("assert os.path.samefile('../d', '.') and os.path.basename(os.getcwd()) == 'd'");
    p.does("assert open('a').read() == '1\\n' and open('kept').read() == 'kept'");
    p.does("assert open('../b').read() == '2\\n' and not os.path.exists('../m')");
    p.does("assert not os.path.exists('../inside') and sorted(os.listdir('..')) == ['b', 'd']");
    // A directory that was taken back is one that was removed.
    assert!(p.says("os.open('x', os.O_CREAT|os.O_RDWR, 0o600, dir_fd=q)").contains("Error"));
    p.does("os.chdir('new'); open('x','w').write('x')");
    work.txfs(["rollback", "s"]).ok();
    p.does("assert os.listdir('.') == [] and os.path.basename(os.getcwd()) == 'new'");
    p.does("os.mkdir('again'); open('again/y','w').write('y')");
    work.txfs(["commit"]).ok();
    p.end();
    assert_eq!(
        work.sh("find . -path ./.txfs -prune -o -print | sort; cat d/a d/kept b d/new/again/y").out,
        ".\n./b\n./d\n./d/a\n./d/kept\n./d/new\n./d/new/again\n./d/new/again/y\n1\nkept2\ny"
    );
}

#[test]
fn writers_and_mappings_go_on_over_a_savepoint_and_lead_nowhere_after_a_rollback() {
    let work = Work::new();
    work.sh("printf 'base    ' > old");
    let mut p = Python::in_view(&work);
    p.does("f = open('new', 'w+b', buffering=0); f.write(b'one     ')");
    p.does("m = mmap.mmap(f.fileno(), 8); m[7:8] = b'!'");
    p.does("g = open('old', 'r+b', buffering=0); g.write(b'two'); n = mmap.mmap(g.fileno(), 8); g.close()");
    p.does("n[6:7] = b'?'");
    work.txfs(["savepoint"]).ok();
    p.does("f.seek(0); f.write(b'later'); m[6:7] = b'X'; n[0:3] = b'TWO'; m.flush(); n.flush()");
    p.does("assert open('new','rb').read() == b'later X!', open('new','rb').read()");
    p.does("assert open('old','rb').read() == b'TWOe  ? ', open('old','rb').read()");
    work.txfs(["rollback"]).ok();
    p.does("assert open('new','rb').read() == b'one    !', open('new','rb').read()");
    p.does("assert open('old','rb').read() == b'twoe  ? ', open('old','rb').read()");
    // The handles of before go on on what nobody else sees, or say ESTALE.
    p.says("f.seek(0); f.write(b'LATE')");
    p.says("m[0:1] = b'L'; m.flush()");
    p.says("n[0:1] = b'L'; n.flush()");
    p.does("assert open('new','rb').read() == b'one    !', open('new','rb').read()");
    p.does("w = open('new', 'r+b', buffering=0); w.write(b'1'); w.close()");
    p.does("w = open('old', 'r+b', buffering=0); w.write(b'2'); w.close()");
    p.does("assert open('old','rb').read() == b'2woe  ? ', open('old','rb').read()");
    work.txfs(["commit"]).ok();
    p.says("f.close(); m.close(); n.close()");
    p.end();
    assert_eq!(work.sh("cat new old; stat -c %h new old").out, "1ne    !2woe  ? 1\n1\n");
}

#[test]
fn readers_stay_open_over_a_rollback_and_writes_after_it_work() {
    let work = Work::new();
    work.sh("printf base > b");
    let mut p = Python::in_view(&work);
    p.does("import shutil, subprocess; shutil.copy('/bin/cat', 'cat'); open('r','w').write('1')");
    p.does("c = subprocess.Popen(['./cat'], stdin=subprocess.PIPE, stdout=subprocess.PIPE)");
    p.does("r = open('r', 'rb', buffering=0); k = open('b', 'rb', buffering=0); assert k.read() == b'base'");
    work.txfs(["savepoint"]).ok();
    p.does("w = open('r', 'r+b', buffering=0); w.write(b'2'); w.close()");
    p.does("w = open('b', 'r+b', buffering=0); w.write(b'BASE'); w.close()");
    p.does("assert open('r','rb').read() == b'2' and open('b').read() == 'BASE'");
    work.txfs(["rollback"]).ok();
    p.does("assert open('r','rb').read() == b'1' and open('b').read() == 'base', open('r').read()");
    p.does("w = open('r', 'r+b', buffering=0); w.write(b'3'); w.close()");
    p.does("w = open('b', 'r+b', buffering=0); w.write(b'B'); w.close()");
    p.does("assert open('r','rb').read() == b'3' and open('b').read() == 'Base'");
    p.does("out, _ = c.communicate(b'alive'); assert out == b'alive'");
    work.txfs(["commit"]).ok();
    p.says("r.close(); k.close()");
    p.end();
    assert_eq!(work.sh("cat r b").out, "3Base");
}

#[test]
fn savepoints_outlive_the_daemon() {
    let work = Work::new();
    work.sh("echo 1 > a");
    work.run("echo 2 > a; echo 3 > b").ok();
    work.txfs(["savepoint", "kept"]).ok();
    work.run("echo 4 > a; rm b; mkdir c").ok();
    work.kill_daemon();
    work.txfs(["rollback", "kept"]).ok();
    work.kill_daemon();
    work.run("[ $(cat a) = 2 ]; [ $(cat b) = 3 ]; [ ! -e c ]").ok();
    work.txfs(["commit"]).ok();
    assert_eq!(work.sh("cat a b").out, "2\n3\n");
}
