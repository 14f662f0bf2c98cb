//! What `show` tells of generations that later ones went over.

use crate::harness::Work;

/// The patch of every generation, applied to the tree before it, is the tree after it: while views are
/// open, and when the daemon knows nothing but the journal.
#[test]
fn the_patch_of_each_generation_makes_it_from_the_one_before() {
    let work = Work::new();
    let changes = [
        "mkdir d d/sub; seq 9 > f; seq 5 > d/g; echo deep > d/sub/h; ln -s f link; ln f again",
        "seq 4 > f; mv d e; chmod +x e/g; rm link; ln -s e/g link",
        "mv e/sub .; echo more >> sub/h; rm f again; mkdir f; echo in > f/in",
        "rm -r e; mv sub/h sub/i; printf 'a\\0b' > binary",
        "rm -r f sub; seq 3 > f",
    ];
    work.sh("mkdir ../tree0");
    let keep = |n: usize| {
        work.sh(&format!("mkdir -p ../tree{n}; cp -a . ../tree{n}; rm -rf ../tree{n}/.txfs"));
    };
    for (n, change) in changes.iter().enumerate() {
        work.run(change).ok();
        work.txfs(["commit"]).ok();
        keep(n + 1);
    }
    work.txfs(["undo"]).ok();
    keep(changes.len() + 1);
    work.txfs(["undo", "--to", "1"]).ok();
    keep(changes.len() + 2);
    for restart in [false, true] {
        if restart {
            work.txfs(["__stop", "--force"]).ok();
        }
        for n in 1..=changes.len() + 2 {
            let patch = work.txfs(["show", "--patch", &n.to_string()]).ok().out;
            std::fs::write(work.dir().join("../patch"), patch).unwrap();
            let before = n - 1;
            work.sh(&format!(
                "rm -rf ../made; cp -a ../tree{before} ../made; cd ../made; git apply ../patch; \
                 cd ..; find made tree{n} -type d -empty -delete; diff -r --no-dereference made tree{n}; \
                 mkdir -p tree{n}; cd made && find . -type f -perm -100 | sort > ../made.x; \
                 cd ../tree{n} && find . -type f -perm -100 | sort | cmp - ../made.x"
            ));
        }
    }
}

#[test]
fn what_an_undo_of_several_changed_is_told_once() {
    let work = Work::new();
    work.sh("echo 0 > f; echo 0 > g; mkdir d; echo 0 > d/h");
    work.run("echo 1 > f; echo new > n").ok();
    work.txfs(["commit"]).ok();
    work.run("mv f d/f; echo 2 > d/f; rm n; mv d e").ok();
    work.txfs(["commit"]).ok();
    work.run("rm -r e; echo 3 > g").ok();
    work.txfs(["commit"]).ok();
    work.txfs(["undo", "--to", "0"]).ok();
    let told = work.txfs(["show", "--name-status", "4"]).ok().out;
    assert_eq!(told, "A\td\nA\td/h\nA\tf\nM\tg\n");
    // Three generations that end where they began.
    work.run("echo 5 > g").ok();
    work.txfs(["commit"]).ok();
    work.run("mv g k").ok();
    work.txfs(["commit"]).ok();
    work.txfs(["undo", "--to", "4"]).ok();
    work.txfs(["undo", "--to", "6"]).ok();
    let told = work.txfs(["show", "--name-status", "8"]).ok().out;
    assert_eq!(told, "D\tg\nA\tk\n");
}

/// What a generation changed under a name that its directory had only for a while.
#[test]
fn an_undo_of_several_tells_what_changed_in_a_directory_that_went_and_came_back() {
    let work = Work::new();
    work.sh("mkdir -p d/sub; echo 0 > d/f; echo 0 > d/sub/g");
    for change in ["mv d e", "echo 1 > e/f; mv e/sub e/low", "echo 1 > e/low/g", "mv e d"] {
        work.run(change).ok();
        work.txfs(["commit"]).ok();
    }
    work.txfs(["undo", "--to", "0"]).ok();
    let told = work.txfs(["show", "--name-status", "5"]).ok().out;
    // Another inode at another path is one gone and one come.
    assert_eq!(told, "D\td/low/g\nM\td/f\nR\td/low\td/sub\nA\td/sub/g\n");
}
