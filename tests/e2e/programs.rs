//! Real programs inside `txfs run`, compared with the same work in a plain copy.

use crate::harness::Work;
use crate::manifest::{self, Manifest, assert_same};

/// Runs one script in a transaction that is committed and in a plain directory, and compares the
/// two trees without times and without what `differs` matches (things that hold a path or a time).
#[track_caller]
fn same_as_plain(setup: &str, script: &str, differs: &[&str]) -> Work {
    let work = Work::new();
    let plain = Work::new();
    work.sh(setup);
    plain.sh(setup);
    let before = work.manifest();
    work.run(script).ok();
    assert_same("the base before commit", &before, &work.manifest());
    plain.sh(script);
    work.txfs(["commit"]).ok();
    let strip = |dir: &std::path::Path| -> Manifest {
        let mut m = manifest::read(dir, false);
        m.retain(|p, _| !differs.iter().any(|d| p.windows(d.len()).any(|w| w == d.as_bytes())));
        m
    };
    assert_same("plain, base", &strip(&plain.dir()), &strip(&work.dir()));
    work
}

#[test]
fn git_clone_commit_rebase() {
    let setup = "git init -q --bare r; git init -q s; cd s; git config user.email a@b; git config user.name a; export GIT_AUTHOR_DATE='2020-01-01T00:00:00Z' GIT_COMMITTER_DATE='2020-01-01T00:00:00Z'; for i in 1 2 3; do echo $i > f$i; git add .; git commit -qm $i; done; git push -q ../r HEAD:main";
    let script = "export GIT_AUTHOR_DATE='2021-01-01T00:00:00Z' GIT_COMMITTER_DATE='2021-01-01T00:00:00Z'; git clone -q -b main r c; cd c; git config user.email a@b; git config user.name a; git checkout -qb side HEAD~1; echo x > side; git add side; git commit -qm side; git rebase -q main; git mv f1 g1; git commit -qm mv; git stash list; git status --porcelain; git fsck --strict";
    let work = same_as_plain(
        setup,
        script,
        &[".git/index", ".git/logs", "c/.git/config", ".git/hooks", "FETCH_HEAD", "ORIG_HEAD"],
    );
    work.sh("cd c; git status --porcelain | wc -l | grep -q ^0; git fsck --strict");
}

#[test]
fn cargo_build_test_and_rebuild() {
    let setup = "cargo init -q --name demo --vcs none p; echo '#[test] fn t() { assert_eq!(1, 1) }' >> p/src/main.rs";
    let script = "cd p; cargo build -q --offline; cargo test -q --offline >/dev/null; touch ../stamp; cargo build --offline 2>&1 | grep -q Finished; [ -z \"$(find target -name 'demo-*' -newer ../stamp)\" ]; target/debug/demo";
    let work = same_as_plain(setup, script, &["target/", "stamp"]);
    work.sh("cd p; cargo build --offline 2>&1 | grep -vq Compiling; target/debug/demo");
}

#[test]
fn npm_and_node_modules() {
    let setup = "mkdir -p a/lib b; printf '{\"name\":\"dep\",\"version\":\"1.0.0\",\"main\":\"lib/i.js\",\"bin\":{\"dep\":\"lib/i.js\"}}' > a/package.json; echo 'module.exports=1' > a/lib/i.js; printf '{\"name\":\"top\",\"version\":\"1.0.0\"}' > b/package.json; cd a; npm pack --silent --offline >/dev/null";
    let script = "cd b; npm install --offline --no-audit --no-fund --silent ../a/dep-1.0.0.tgz --cache ../cache; node -e 'if (require(\"dep\")!==1) process.exit(1)'; npm ls --silent >/dev/null";
    same_as_plain(setup, script, &["cache", "node_modules/.package-lock"]);
}

#[test]
fn python_venv_with_pip() {
    let work = Work::new();
    work.run(
        "python3 -m venv v; v/bin/python -m pip --version; v/bin/python -c 'import json, sqlite3'",
    )
    .ok();
    work.txfs(["commit"]).ok();
    work.sh("v/bin/python -m pip --version");
}

#[test]
fn tar_and_rsync_round_trips() {
    // Times of long ago: rsync does not set one that is the present second's.
    let setup = &format!(
        "{}\nfind . -exec touch -h -d '2001-02-03 04:05:06.789' {{}} +",
        crate::main_job::TREE
    );
    let script = "tar --xattrs --acls --sparse -cf t.tar --exclude=t.tar . ; mkdir x; tar --xattrs --acls --sparse -xpf t.tar -C x; rsync -aHAX --exclude=/x --exclude=/y --exclude=/t.tar . y/; rm t.tar";
    let work = same_as_plain(setup, script, &[]);
    let x = manifest::read(&work.path("x"), true);
    let mut y = manifest::read(&work.path("y"), true);
    // rsync without --sparse fills holes.
    for (path, item) in &mut y {
        item.sparse = x.get(path).is_some_and(|i| i.sparse);
    }
    let root = Vec::new();
    let (mut x, mut y) = (x, y);
    x.remove(&root);
    y.remove(&root);
    assert_same("tar, rsync", &x, &y);
}

#[test]
fn find_delete_and_moves_of_big_directories() {
    let setup = "mkdir -p t/a t/b t/c; for d in t/a t/b t/c; do (cd $d; seq 300 | xargs touch); done; mkdir keep; echo 1 > keep/f";
    same_as_plain(
        setup,
        "find t/a -delete; mv t/b moved; mv t/c t/d; mv t/d/7 moved/; find keep -name f -exec sed -i s/1/2/ {} +",
        &[],
    );
}

#[test]
fn an_editors_atomic_save() {
    let setup = "echo 1 > f; chmod 640 f";
    let script = "cp -p f f~; echo 2 > .f.swp; chmod 640 .f.swp; sync .f.swp; mv .f.swp f; rm f~; python3 -c \"import os,tempfile\nfd,n=tempfile.mkstemp(dir='.')\nos.write(fd,b'3')\nos.fsync(fd)\nos.close(fd)\nos.chmod(n,0o640)\nos.replace(n,'f')\"";
    same_as_plain(setup, script, &[]);
}
