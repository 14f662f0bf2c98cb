//! What other views show while a generation is being applied: neither it nor half of it.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use txfs_journal::{Kind, Name, ObjId, Timestamp};

use crate::drive::{Drive, Seen};

const DIRS: usize = 8;
const FILES: usize = 12;

fn base(root: &Path) {
    for d in 0..DIRS {
        std::fs::create_dir_all(root.join(format!("d{d}/sub/deep"))).unwrap();
        for f in 0..FILES {
            std::fs::write(root.join(format!("d{d}/f{f}")), format!("{d} {f}")).unwrap();
        }
        std::fs::write(root.join(format!("d{d}/sub/deep/leaf")), "leaf").unwrap();
        std::fs::hard_link(root.join(format!("d{d}/f0")), root.join(format!("d{d}/again")))
            .unwrap();
        std::fs::write(root.join(format!("d{d}/shared")), "shared").unwrap();
    }
}

/// Changes of every kind, in every directory.
fn change(d: &Drive, round: usize) {
    for dir in (0..DIRS).map(|n| format!("d{n}")) {
        for f in 0..FILES {
            match f % 4 {
                0 => d.write(format!("{dir}/f{f}"), format!("round {round}")),
                1 => d.rm(format!("{dir}/f{f}")),
                2 => d.mv(format!("{dir}/f{f}"), format!("{dir}/moved{f}")),
                _ => d.chmod(format!("{dir}/f{f}"), 0o600),
            }
        }
        d.rm(format!("{dir}/again"));
        d.write(format!("{dir}/shared"), format!("other {round}"));
        d.mkdir(format!("{dir}/new"));
        d.write(format!("{dir}/new/f"), "new");
        d.mv(format!("{dir}/sub"), format!("{dir}/gone"));
        d.rm(format!("{dir}/gone/deep/leaf"));
    }
}

#[test]
fn views_stay_what_they_are_while_a_generation_is_applied() {
    let outer = tempfile::tempdir_in("/var/tmp").unwrap();
    let root = outer.path().join("ws");
    std::fs::create_dir(&root).unwrap();
    base(&root);
    for d in 0..DIRS {
        let to = outer.path().join(format!("outside{d}"));
        std::fs::hard_link(root.join(format!("d{d}/shared")), to).unwrap();
    }
    let d = Drive::open(&root);
    let other = d.other("other");
    // One that did nothing goes on with the live generation when it is opened again.
    other.write("own", "own");
    let first = other.tree();
    let (done, looks) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let watch = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let now = other.tree();
                assert!(now == first, "{}", difference(&first, &now));
                looks.fetch_add(1, Ordering::Relaxed);
            }
        });
        for round in 0..12 {
            change(&d, round);
            d.commit();
            d.undo(None);
            if watch.is_finished() {
                break;
            }
        }
        done.store(true, Ordering::Relaxed);
        watch.join().unwrap();
    });
    assert!(looks.into_inner() > 0, "nobody looked while it was applied");
    d.close();
}

type Tree = BTreeMap<Vec<u8>, Seen>;

/// The first entries that differ.
fn difference(then: &Tree, now: &Tree) -> String {
    let names = then.keys().chain(now.keys());
    let odd = names.filter(|k| then.get(*k) != now.get(*k));
    odd.take(4)
        .map(|k| format!("{}: {:?} became {:?}\n", k.escape_ascii(), then.get(k), now.get(k)))
        .collect()
}

/// The view that commits shows what it showed, read by others all the while: what it wrote is on its way from
/// the store to the base.
#[test]
fn a_view_goes_on_being_read_while_it_is_committed() {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    base(dir.path());
    let d = Drive::open(dir.path());
    for round in 0..10 {
        change(&d, round);
        let (first, done) = (attributes(&d), AtomicBool::new(false));
        let looks = std::thread::scope(|scope| {
            let watch = scope.spawn(|| {
                let mut looks = 0;
                while !done.load(Ordering::Relaxed) {
                    let now = attributes(&d);
                    let odd = first.iter().zip(&now).find(|(then, now)| then != now);
                    assert!(now == first, "round {round}: {odd:?}");
                    looks += 1;
                }
                looks
            });
            d.commit();
            done.store(true, Ordering::Relaxed);
            watch.join().unwrap()
        });
        assert!(looks > 0, "nobody looked in round {round}");
        d.undo(None);
    }
    d.close();
}

/// Path, kind, mode, links, size, and of everything but directories the time.
type Attributes = (Vec<u8>, Kind, u32, u32, u64, Option<Timestamp>);

/// What every entry is, without its content: to open what is being placed is to wait for it.
fn attributes(d: &Drive) -> Vec<Attributes> {
    let (mut out, mut todo) = (Vec::new(), vec![(Vec::new(), ObjId::ROOT)]);
    while let Some((path, dir)) = todo.pop() {
        for name in d.names(dir) {
            let attr = d.view.lookup(dir, &Name::new(&name).unwrap()).unwrap().attr;
            let path = [&path[..], b"/", &name].concat();
            if attr.kind == Kind::Dir {
                todo.push((path.clone(), attr.obj));
            }
            let mtime = (attr.kind != Kind::Dir).then_some(attr.mtime);
            out.push((path, attr.kind, attr.mode, attr.nlink, attr.size, mtime));
        }
    }
    out.sort();
    out
}

/// A thread that has a turn at changing the view changes it without waiting for a commit that is about to
/// begin, and nobody else gets a turn before that is over.
#[test]
fn who_has_a_turn_does_not_wait_for_a_commit() {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    base(dir.path());
    let d = Drive::open(dir.path());
    let turn = d.view.turn().expect("nobody has it stand still");
    std::thread::scope(|scope| {
        let (stands, has_stood) = std::sync::mpsc::channel();
        let (go_on, goes_on) = std::sync::mpsc::channel::<()>();
        let view = &d.view;
        scope.spawn(move || {
            let still = view.stand_still();
            stands.send(()).unwrap();
            goes_on.recv().unwrap();
            drop(still);
        });
        while view.turn().is_some() {
            std::thread::yield_now();
        }
        assert!(has_stood.try_recv().is_err(), "it stands still in the middle of a turn");
        d.write("made in time", "x");
        drop(turn);
        has_stood.recv().unwrap();
        let staged = d.find(b"made in time");
        assert!(view.open_at_once(staged, 0).is_none(), "a staged file can land any moment");
        let untouched = d.find(b"d1/f1");
        let opened = view.open_at_once(untouched, 0).expect("it need not wait").unwrap();
        view.release(opened.fh);
        go_on.send(()).unwrap();
    });
    assert!(d.view.turn().is_some());
    d.close();
}
