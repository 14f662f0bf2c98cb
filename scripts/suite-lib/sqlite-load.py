"""sqlite-load.py [--kill N] FILE JOURNAL-MODE SYNCHRONOUS: four processes move money between accounts of one database.

The sum must stay, the file must be whole, and each process's acknowledged transfers must be there. With --kill, one of
the processes is killed N times in the middle; a killed one's last transfer is there wholly or not at all."""
import multiprocessing
import os
import random
import signal
import sqlite3
import sys

ACCOUNTS, TRANSFERS, WORKERS = 50, 40, 4


def connect(path, mode, sync):
    db = sqlite3.connect(path, timeout=120, isolation_level=None)
    db.execute(f"pragma synchronous={sync}")
    # With no journal or one in memory, only one process at a time can write without harm; locks see to that.
    db.execute(f"pragma journal_mode={mode}").fetchone()
    return db


def worker(path, mode, sync, seed, number, said):
    db, r = connect(path, mode, sync), random.Random(seed)
    for i in range(number):
        a, b, n = r.randrange(ACCOUNTS), r.randrange(ACCOUNTS), r.randrange(100)
        db.execute("begin immediate")
        db.execute("update account set sum = sum - ? where id = ?", (n, a))
        db.execute("update account set sum = sum + ? where id = ?", (n, b))
        db.execute("insert into log values (?, ?, ?)", (seed, i, os.urandom(r.randrange(4000))))
        db.execute("commit")
        os.write(said, b"%d %d\n" % (seed, i))
    db.close()


def main():
    kills = 0
    words = sys.argv[1:]
    if words[0] == "--kill":
        kills, words = int(words[1]), words[2:]
    path, mode, sync = words
    db = connect(path, mode, sync)
    db.execute("create table account(id integer primary key, sum integer)")
    db.execute("create table log(worker, number, data)")
    db.executemany("insert into account values (?, 1000)", [(i,) for i in range(ACCOUNTS)])
    db.close()
    read, write = os.pipe()
    crew = [multiprocessing.Process(target=worker, args=(path, mode, sync, seed, TRANSFERS, write)) for seed in range(WORKERS)]
    for p in crew:
        p.start()
    said = b""
    for k in range(kills):
        p = multiprocessing.Process(target=worker, args=(path, mode, sync, 100 + k, 10**9, write))
        p.start()
        # It is killed in the middle of whatever follows its first acknowledged transfer.
        while b"\n%d 0\n" % (100 + k) not in b"\n" + said:
            said += os.read(read, 1 << 16)
        os.kill(p.pid, signal.SIGKILL)
        p.join()
    for p in crew:
        p.join()
        assert p.exitcode == 0, f"a worker ended with {p.exitcode}"
    os.close(write)
    while more := os.read(read, 1 << 16):
        said += more
    db = connect(path, mode, sync)
    assert db.execute("pragma integrity_check").fetchall() == [("ok",)], "not whole"
    assert db.execute("select sum(sum) from account").fetchone() == (ACCOUNTS * 1000,), "money came or went"
    have = set(db.execute("select worker, number from log"))
    lost = {tuple(map(int, line.split())) for line in said.splitlines()} - have
    assert not lost, f"acknowledged and lost: {sorted(lost)}"
    print(len(have), "transfers")


main()
