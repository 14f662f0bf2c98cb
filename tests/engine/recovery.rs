//! A process is killed at every named point of commit and undo, and then somebody edits the workspace
//! before the next command recovers: nothing of his is overwritten or carried off, nothing of the
//! transaction is lost. Needs neither FUSE nor root.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::drive::{self, Drive};
use crate::manifest::{Manifest, assert_same, read};
use txfs::proto::{Code, RollbackTo};

const CHILD: &str = "TXFS_TEST_CHILD";
const SIGKILL: i32 = 9;

fn base(root: &Path) {
    let write = |p: &str, text: &str| fs::write(root.join(p), text).unwrap();
    fs::create_dir_all(root.join("tree/inner")).unwrap();
    fs::create_dir(root.join("dir")).unwrap();
    fs::create_dir(root.join("leaf")).unwrap();
    write("changed", "before");
    write("moved", "moved");
    write("removed", "removed");
    write("mode", "mode");
    write("tree/a", "a");
    write("tree/inner/b", "b");
    write("dir/kept", "kept");
    write("linked", "linked");
    fs::hard_link(root.join("linked"), root.join("dir/second")).unwrap();
    fs::hard_link(root.join("linked"), root.join("third")).unwrap();
}

/// One change of every kind.
fn change(d: &Drive) {
    d.truncate("changed", 0);
    d.write("changed", "after, and longer");
    d.mv("moved", "dir/moved-here");
    d.rm("removed");
    d.chmod("mode", 0o600);
    d.rm("tree");
    d.mv("dir", "renamed");
    d.mkdir("new");
    d.write("new/file", "new");
    d.symlink("new/link", b"file");
    d.rm("third");
    d.rm("leaf");
    d.write("leaf", "a file now");
}

/// What the child does, by name.
fn child_does(root: &Path, what: &str) {
    let d = match Drive::try_open(root) {
        Ok(d) => d,
        Err(e) => {
            eprintln!("{e}");
            std::process::exit(3);
        }
    };
    let done = match what {
        "commit" => d.try_commit().map(drop),
        "savepoint" => d.ws.savepoint("main", drive::me().uid, Some("here"), false).map(drop),
        "rollback" => {
            let to = RollbackTo::Savepoint("there".into());
            d.ws.rollback("main", drive::me().uid, &to).map(drop)
        }
        "undo" => d.ws.undo("main", drive::me().uid, None, None, false, false).map(drop),
        "undo-all" => d.ws.undo("main", drive::me().uid, None, Some(0), false, false).map(drop),
        "rebase" => d.again("two").rebase(),
        "open" => Ok(()),
        _ => panic!("{what}"),
    };
    if let Err(e) = done {
        eprintln!("{e} {:?}", e.conflicts);
        std::process::exit(4);
    }
}

#[test]
fn child() {
    let Ok(what) = std::env::var(CHILD) else { return };
    let (what, root) = what.split_once(':').unwrap();
    child_does(Path::new(root), what);
}

/// Runs a child that dies at a point; `None` if it came to its end.
fn die(root: &Path, what: &str, point: &str) -> Option<()> {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "recovery::child", "--nocapture", "--test-threads", "1"])
        .env(CHILD, format!("{what}:{}", root.display()))
        .env("TXFS_FAILPOINT", point)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let child = {
        let _forking = drive::FORKS.lock();
        command.spawn().unwrap()
    };
    let out = child.wait_with_output().unwrap();
    use std::os::unix::process::ExitStatusExt;
    match out.status.signal() {
        Some(SIGKILL) => Some(()),
        Some(n) => {
            panic!("{what} at {point}: signal {n}\n{}", String::from_utf8_lossy(&out.stderr))
        }
        None => None,
    }
}

/// A fresh workspace with the change proposed but not committed.
fn proposed(base: impl Fn(&Path), change: impl Fn(&Drive)) -> (tempfile::TempDir, Manifest) {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    base(dir.path());
    Drive::open(dir.path()).close();
    let old = read(dir.path(), true);
    let d = Drive::open(dir.path());
    change(&d);
    d.close();
    (dir, old)
}

/// Reopens until recovery has nothing more to say; answers what it said first.
fn recover(root: &Path) -> (Drive, Option<txfs::proto::Failure>) {
    match Drive::try_open(root) {
        Ok(d) => (d, None),
        Err(e) => (Drive::open(root), Some(e)),
    }
}

/// Without the times of directories: those that a commit had begun to change are new when it has been
/// taken back, since somebody else may have changed them too.
fn settled(tree: &Manifest) -> Manifest {
    let mut tree = tree.clone();
    for item in tree.values_mut().filter(|i| i.kind == "dir") {
        item.mtime = (0, 0);
    }
    tree
}

#[track_caller]
fn assert_taken_back(what: &str, old: &Manifest, root: &Path) {
    assert_same(what, &settled(old), &settled(&read(root, true)));
}

fn keep_times(path: &Path, act: impl Fn()) {
    let meta = fs::metadata(path).unwrap();
    act();
    let times = fs::FileTimes::new().set_modified(meta.modified().unwrap());
    fs::File::open(path).unwrap().set_times(times).unwrap();
}

#[test]
fn obstacles_after_the_seal_are_refused_and_everything_is_taken_back() {
    let mut points = 0;
    for n in 1..=40 {
        for point in ["apply.step.before", "apply.step.after"] {
            let point = format!("{point}:{n}");
            let (dir, old) = proposed(base, change);
            let root = dir.path();
            if die(root, "commit", &point).is_none() {
                continue;
            }
            points += 1;
            // Somebody takes the place that the last of the new names needs.
            let there = root.join("new");
            if there.exists() {
                drop(dir);
                continue;
            }
            keep_times(root, || fs::write(&there, "somebody's").unwrap());
            let (d, said) = recover(root);
            let said = said.unwrap_or_else(|| panic!("{point}: recovery said nothing"));
            assert_eq!(said.code, Code::Drift, "{point}: {said}");
            assert_eq!(fs::read(&there).unwrap(), b"somebody's", "{point}");
            keep_times(root, || fs::remove_file(&there).unwrap());
            assert_taken_back(&format!("{point}, taken back"), &old, root);
            let old = read(root, true);
            d.commit();
            d.undo(None);
            assert_same(&format!("{point}, then committed and undone"), &old, &read(root, true));
            d.close();
        }
    }
    println!("killed at {points} points, then obstructed");
    assert!(points > 15, "only {points}");
}

/// What somebody writes into a file between the crash and the recovery must be there afterwards.
#[test]
fn edits_between_crash_and_recovery_are_not_carried_off() {
    for (path, point) in [
        ("changed", "commit.sealed:1"),
        ("removed", "commit.sealed:1"),
        ("tree/a", "commit.sealed:1"),
        ("tree/inner/b", "commit.sealed:1"),
        ("changed", "apply.history:1"),
        ("removed", "apply.step.before:1"),
    ] {
        let (dir, _) = proposed(base, change);
        let root = dir.path();
        die(root, "commit", point).unwrap();
        fs::write(root.join(path), "somebody's edit").unwrap();
        let (d, said) = recover(root);
        let said = said.unwrap_or_else(|| panic!("{path} at {point}: recovery said nothing"));
        assert_eq!(said.code, Code::Drift, "{path} at {point}: {said}");
        assert_eq!(said.conflicts[0].path.0, path.as_bytes(), "{said}");
        assert_eq!(fs::read(root.join(path)).unwrap(), b"somebody's edit", "{path} at {point}");
        // Nothing of the transaction is lost either.
        assert_eq!(d.read("changed"), b"after, and longer");
        assert_eq!(d.try_commit().unwrap_err().code, Code::Drift);
        d.close();
    }
}

#[test]
fn what_is_made_in_a_removed_directory_after_the_seal_is_not_carried_off() {
    for new in ["tree/new", "tree/inner/new", "leaf/new"] {
        let (dir, _) = proposed(base, change);
        let root = dir.path();
        die(root, "commit", "commit.sealed:1").unwrap();
        fs::write(root.join(new), "somebody's").unwrap();
        let (d, said) = recover(root);
        assert_eq!(said.unwrap_or_else(|| panic!("{new}: nothing was said")).code, Code::Drift);
        assert_eq!(fs::read(root.join(new)).unwrap(), b"somebody's", "{new}");
        fs::remove_file(root.join(new)).unwrap();
        d.commit();
        d.close();
    }
}

/// What lands is the user's; if he changes it before recovery has come to its end, that is an edit of the
/// new generation.
#[test]
fn edits_of_what_was_placed_already_stay() {
    let (dir, _) = proposed(base, change);
    let root = dir.path();
    die(root, "commit", "apply.synced:1").unwrap();
    fs::write(root.join("new/file"), "edited").unwrap();
    fs::remove_file(root.join("new/link")).unwrap();
    let (d, said) = recover(root);
    assert!(said.is_none(), "{said:?}");
    assert_eq!(d.ws.live().unwrap().0, 1);
    assert_eq!(fs::read(root.join("new/file")).unwrap(), b"edited");
    assert!(!root.join("new/link").exists());
    d.close();
}

/// The taking back dies too, at each of its points, and is begun again.
#[test]
fn killed_while_taking_back() {
    let mut killed = 0;
    for point in ["rollback.step", "rollback.synced", "rollback.restamped", "rollback.staged"] {
        for n in 1..=12 {
            let (dir, old) = proposed(base, change);
            let root = dir.path();
            die(root, "commit", "apply.step.after:6").unwrap();
            keep_times(root, || fs::write(root.join("new"), "somebody's").unwrap());
            if die(root, "open", &format!("{point}:{n}")).is_none() {
                break;
            }
            killed += 1;
            let (d, _) = recover(root);
            keep_times(root, || fs::remove_file(root.join("new")).unwrap());
            assert_taken_back(&format!("{point}:{n}"), &old, root);
            let old = read(root, true);
            d.commit();
            d.undo(None);
            assert_same(&format!("{point}:{n}, committed, undone"), &old, &read(root, true));
            d.close();
        }
    }
    println!("killed at {killed} points of taking back");
    assert!(killed >= 6, "only {killed}");
}

/// Links outside the workspace: the inode is rewritten in place, and what is half-written is known.
mod in_place {
    use super::*;

    /// `shared` has a name outside.
    fn begin() -> (tempfile::TempDir, std::path::PathBuf) {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let root = dir.path().join("work");
        fs::create_dir(&root).unwrap();
        fs::write(dir.path().join("outside"), "the old content").unwrap();
        fs::hard_link(dir.path().join("outside"), root.join("shared")).unwrap();
        fs::write(root.join("z"), "z").unwrap();
        Drive::open(&root).close();
        (dir, root)
    }

    fn propose(root: &Path) {
        let d = Drive::open(root);
        d.write("shared", "THE NEW CONTENT, longer");
        d.chmod("shared", 0o640);
        d.mkdir("zz");
        d.close();
    }

    #[test]
    fn killed_at_every_point() {
        let mut killed = 0;
        let points = ["apply.step.before", "apply.rewrite.begun", "apply.rewrite.written"];
        for point in points.into_iter().chain(["apply.step.after", "apply.synced"]) {
            for n in 1..=4 {
                let (dir, root) = begin();
                let old = read(&root, true);
                propose(&root);
                if die(&root, "commit", &format!("{point}:{n}")).is_none() {
                    break;
                }
                killed += 1;
                let d = Drive::open(&root);
                let outside = dir.path().join("outside");
                assert_eq!(fs::read(&outside).unwrap(), b"THE NEW CONTENT, longer");
                d.undo(None);
                assert_eq!(fs::read(&outside).unwrap(), b"the old content");
                assert_same(&format!("{point}:{n}"), &old, &read(&root, true));
                d.close();
            }
        }
        println!("killed at {killed} points of rewriting");
        assert!(killed >= 8, "only {killed}");
    }

    /// The step was never reached: taking back must not write over what somebody wrote since.
    #[test]
    fn what_was_not_reached_is_not_written_back() {
        for edit in ["somebody's edit", "same length!!!!"] {
            let (dir, root) = begin();
            propose(&root);
            die(&root, "commit", "commit.sealed:1").unwrap();
            fs::write(dir.path().join("outside"), edit).unwrap();
            let (d, said) = recover(&root);
            assert_eq!(said.unwrap().code, Code::Drift);
            assert_eq!(fs::read(root.join("shared")).unwrap(), edit.as_bytes());
            assert_eq!(d.read("shared"), b"THE NEW CONTENT, longer");
            d.close();
        }
    }

    #[test]
    fn what_was_rewritten_is_written_back() {
        for point in ["apply.rewrite.begun:1", "apply.rewrite.written:1", "apply.step.after:2"] {
            let (_dir, root) = begin();
            let old = read(&root, true);
            propose(&root);
            if die(&root, "commit", point).is_none() {
                continue;
            }
            // The next step's place is taken if it is free yet.
            if root.join("zz").exists() {
                continue;
            }
            keep_times(&root, || fs::write(root.join("zz"), "somebody's").unwrap());
            let (d, said) = recover(&root);
            assert_eq!(said.unwrap().code, Code::Drift, "{point}");
            keep_times(&root, || fs::remove_file(root.join("zz")).unwrap());
            assert_taken_back(point, &old, &root);
            let old = read(&root, true);
            d.commit();
            d.undo(None);
            assert_same(&format!("{point}, again"), &old, &read(&root, true));
            d.close();
        }
    }
}

/// An undo of several generations is several segments; it may be obstructed in any of them.
#[test]
fn an_undo_of_several_generations_is_taken_back_across_its_barriers() {
    let mut killed = 0;
    for n in 1..=14 {
        let (dir, _) = proposed(base, change);
        let root = dir.path();
        let d = Drive::open(root);
        d.commit();
        d.write("changed", "second");
        d.mv("new/file", "new/file2");
        d.commit();
        d.write("changed", "third!");
        d.rm("new/link");
        d.commit();
        d.close();
        let full = read(root, true);
        if die(root, "undo-all", &format!("apply.step.after:{n}")).is_none() {
            break;
        }
        killed += 1;
        // In the last segment the old tree comes back here.
        keep_times(root, || fs::create_dir(root.join("tree")).unwrap());
        let (d, said) = recover(root);
        let Some(said) = said else {
            panic!("{n}: nothing was said");
        };
        assert_eq!(said.code, Code::Drift, "{n}: {said}");
        assert_eq!(d.ws.live().unwrap().0, 3, "{n}");
        keep_times(root, || fs::remove_dir(root.join("tree")).unwrap());
        assert_taken_back(&format!("{n}, taken back"), &full, root);
        d.undo_to(0);
        d.close();
    }
    println!("killed at {killed} steps of an undo of three generations, then obstructed");
    assert!(killed >= 10, "only {killed}");
}

#[test]
fn killed_around_savepoint_and_rollback() {
    for (what, point) in [
        ("savepoint", "savepoint.marked"),
        ("rollback", "rollback.recorded"),
        ("rollback", "rollback.done"),
    ] {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let root = dir.path();
        base(root);
        let d = Drive::open(root);
        d.write("changed", "at the savepoint");
        d.write("new-file", "new");
        d.chmod("mode", 0o640);
        d.ws.savepoint("main", drive::me().uid, Some("there"), false).unwrap();
        let then = d.tree();
        change(&d);
        d.write("new-file", "later");
        let late = d.tree();
        d.close();
        die(root, what, point).unwrap_or_else(|| panic!("{point} was not reached"));
        let d = Drive::open(root);
        let marks = d.ws.savepoints("main", drive::me().uid).unwrap().marks;
        let names: Vec<_> = marks.iter().map(|m| m.name.0.as_slice()).collect();
        if what == "savepoint" {
            // It had not answered: it is there or not, and nothing else is different.
            assert!(names == [&b"there"[..]] || names == [&b"there"[..], b"here"], "{point}");
            assert_eq!(d.tree(), late, "{point}");
        } else {
            assert_eq!((names, d.tree()), (vec![&b"there"[..]], then.clone()), "{point}");
        }
        let to = RollbackTo::Savepoint("there".into());
        d.ws.rollback("main", drive::me().uid, &to).unwrap();
        assert_eq!(d.tree(), then, "{point}: once more");
        d.commit();
        assert_eq!(fs::read(root.join("changed")).unwrap(), b"at the savepoint", "{point}");
        d.close();
    }
}
/// Paths with their content, or with `=` and the path of another name; and what is done.
type Case = (&'static [(&'static str, &'static str)], fn(&Drive));

/// Trees and changes in which names, links and kinds meet.
const CASES: [Case; 4] = [
    (&[("q", "x")], |d| {
        d.write("p", "y");
        d.try_link("p", "r").unwrap();
        d.mv("r", "q");
    }),
    (&[("q", "x"), ("r", "y"), ("p", "=r")], |d| d.mv("r", "q")),
    (&[("q", "x"), ("r", "=q"), ("p", "=q"), ("s", "z")], |d| {
        d.mv("s", "q");
        d.write("r", "other");
        d.mv("p", "t");
    }),
    (&[("q", "x"), ("r", "y"), ("p", "=r"), ("d/e", "e"), ("d/f", "=q")], |d| {
        d.try_swap("q", "r").unwrap();
        d.rm("d");
        d.mkdir("q2");
        d.mv("p", "q2/p");
        d.chmod("q2/p", 0o600);
    }),
];

fn lay(tree: &[(&str, &str)], root: &Path) {
    for (path, what) in tree {
        let at = root.join(path);
        fs::create_dir_all(at.parent().unwrap()).unwrap();
        match what.strip_prefix('=') {
            Some(other) => fs::hard_link(root.join(other), at).unwrap(),
            None => fs::write(at, what).unwrap(),
        }
    }
}

/// Nobody else acts: what was decided is finished, whatever the point of the death.
#[test]
fn what_was_decided_is_finished() {
    let mut killed = 0;
    for (tree, change) in CASES {
        for point in ["apply.step.before", "apply.step.after"] {
            for n in 1..40 {
                let (dir, old) = proposed(|root| lay(tree, root), change);
                let root = dir.path();
                let what = format!("{tree:?} {point}:{n}");
                let died = die(root, "commit", &format!("{point}:{n}")).is_some();
                let d = Drive::open(root);
                assert_eq!(d.ws.live().unwrap().0, 1, "{what}");
                let new = read(root, true);
                d.close();
                let undone = die(root, "undo", &format!("{point}:{n}")).is_some();
                let d = Drive::open(root);
                assert_eq!(d.ws.live().unwrap().0, 2, "{what}: undo");
                assert_same(&format!("{what}: undo"), &old, &read(root, true));
                d.undo(Some(2));
                assert_same(&format!("{what}: undo of the undo"), &new, &read(root, true));
                d.close();
                killed += usize::from(died) + usize::from(undone);
                if !died && !undone {
                    break;
                }
            }
        }
    }
    println!("killed at {killed} points");
    assert!(killed > 60, "only {killed}");
}

/// Decided is done: the transaction is on the live generation, whole.
#[test]
fn killed_while_moved_onto_another_generation() {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let root = dir.path();
    base(root);
    let d = Drive::open(root);
    let two = d.other("two");
    two.write("dir/two", "two");
    two.chmod("mode", 0o640);
    d.write("dir/one", "one");
    d.rm("removed");
    d.commit();
    drop(two);
    d.close();
    die(root, "rebase", "rebase.decided:1").unwrap();
    let d = Drive::open(root);
    let two = d.again("two");
    assert_eq!((two.read("dir/one"), two.read("dir/two")), (b"one".to_vec(), b"two".to_vec()));
    two.rebase().unwrap();
    two.commit();
    assert_eq!(fs::read(root.join("dir/two")).unwrap(), b"two");
    assert_eq!(fs::read(root.join("dir/one")).unwrap(), b"one");
    assert!(!root.join("removed").exists());
    drop(two);
    d.close();
}
