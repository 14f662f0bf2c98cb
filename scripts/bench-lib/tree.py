"""A deterministic tree that looks like source code, as directory, tar and git repository."""
import math
import os
import random
import subprocess

WORDS = ("let fn impl struct return match self buf len path inode node result Ok Err None Some pub use crate mod "
         "const static trait where async await unsafe loop while for in if else u64 String Vec HashMap Arc").split()
SUFFIXES = [".rs"] * 40 + [".js"] * 20 + [".json"] * 10 + [".toml"] * 8 + [".md"] * 8 + [".py"] * 8 + [".txt"] * 6
GIT_ENV = dict(os.environ, GIT_AUTHOR_NAME="b", GIT_AUTHOR_EMAIL="b@b", GIT_COMMITTER_NAME="b", GIT_COMMITTER_EMAIL="b@b",
               GIT_AUTHOR_DATE="2026-01-01T00:00:00Z", GIT_COMMITTER_DATE="2026-01-01T00:00:00Z",
               GIT_CONFIG_GLOBAL="/dev/null", GIT_CONFIG_SYSTEM="/dev/null")


def make(out, files):
    """Makes OUT/tree with FILES files, OUT/tree.tar and OUT/repo.git (branch `other` differs in 10 %)."""
    rnd = random.Random(20261130)
    text = " ".join(rnd.choice(WORDS) + ("\n" if rnd.random() < .12 else "") for _ in range(120000)).encode()
    tree = os.path.join(out, "tree")
    os.makedirs(tree)
    dirs = [""]
    for i in range(max(1, files // 10)):
        parent = rnd.choice(dirs[-400:])
        if parent.count("/") > 7:
            parent = ""
        dirs.append(os.path.join(parent, "d%05d" % i))
        os.makedirs(os.path.join(tree, dirs[-1]))
    for i in range(files):
        size = min(262144, int(math.exp(rnd.gauss(7.8, 1.3))) + 16)
        start = rnd.randrange(len(text))
        body = (text[start:] + text)[:size]
        with open(os.path.join(tree, rnd.choice(dirs), "f%06d%s" % (i, rnd.choice(SUFFIXES))), "wb") as f:
            f.write(b"// %d\n" % i + body)
    with open(os.path.join(tree, "needle.txt"), "w") as f:
        f.write("xyzzy_needle_42\n")
    subprocess.check_call(["tar", "-cf", os.path.join(out, "tree.tar"), "-C", out, "tree"])
    work = os.path.join(out, "gitw")
    subprocess.check_call(["cp", "-a", tree, work])

    def git(*args):
        subprocess.check_call(["git", "-C", work, "-c", "gc.auto=0", *args], env=GIT_ENV, stdout=subprocess.DEVNULL)
    git("init", "-q", "-b", "main")
    git("add", "-A")
    git("commit", "-q", "-m", "one")
    git("checkout", "-q", "-b", "other")
    names = sorted(os.path.join(d, f) for d, _, fs in os.walk(work) if ".git" not in d for f in fs)
    for name in rnd.sample(names, max(1, files // 10)):
        with open(name, "ab") as f:
            f.write(b"// changed\n")
    git("add", "-A")
    git("commit", "-q", "-m", "two")
    git("checkout", "-q", "main")
    subprocess.check_call(["git", "clone", "-q", "--bare", work, os.path.join(out, "repo.git")], env=GIT_ENV)
    subprocess.check_call(["rm", "-rf", work])
