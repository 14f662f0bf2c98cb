"""What a directory tree holds, in a form that can be compared: content, kind, mode, owner, times, attributes, links."""
import hashlib
import os
import stat


def read(root, identity=False):
    """The tree below `root` as {path: {field: value}}, without the store. With `identity` also what only a tree that
    nobody touched keeps: inode numbers, change times and allocated blocks."""
    found, first = {}, {}
    root = os.fsencode(root)

    def visit(rel):
        path = os.path.join(root, rel) if rel else root
        st = os.lstat(path)
        kind = stat.S_IFMT(st.st_mode)
        item = {"mode": oct(st.st_mode), "owner": f"{st.st_uid}:{st.st_gid}", "mtime": st.st_mtime_ns}
        if kind in (stat.S_IFBLK, stat.S_IFCHR):
            item["device"] = st.st_rdev
        if kind != stat.S_IFDIR:
            # The store is a directory of the root in the base and none in a view.
            item["links"] = st.st_nlink
            if st.st_nlink > 1:
                item["same as"] = first.setdefault((st.st_dev, st.st_ino), rel)
        item["attributes"] = attributes(path)
        if kind == stat.S_IFLNK:
            item["target"] = os.readlink(path)
        if kind == stat.S_IFREG:
            item["size"] = st.st_size
            item["content"] = content(path)
        if identity and rel:
            # Making the store changes the root's own.
            item.update({"inode": st.st_ino, "ctime": st.st_ctime_ns, "blocks": st.st_blocks})
        found[rel] = item
        if kind == stat.S_IFDIR:
            try:
                names = sorted(os.listdir(path))
            except PermissionError:
                item["names"] = "not readable"
                return
            for name in names:
                if rel or name != b".txfs":
                    visit(os.path.join(rel, name))

    visit(b"")
    return found


def attributes(path):
    names = os.listxattr(path, follow_symlinks=False)
    return {n: os.getxattr(path, n, follow_symlinks=False) for n in sorted(names)}


def content(path):
    """A digest of what is in the file; holes are not read, so that a huge sparse file costs little."""
    digest = hashlib.blake2b()
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except PermissionError:
        return "not readable"
    try:
        at = 0
        while True:
            try:
                at = os.lseek(fd, at, os.SEEK_DATA)
            except OSError:
                break
            end = os.lseek(fd, at, os.SEEK_HOLE)
            while at < end:
                block = os.pread(fd, min(1 << 16, end - at, (1 << 16) - at % (1 << 16)), at)
                if not block:
                    break
                # Zeroes that are written are the same as a hole.
                if block.count(0) != len(block):
                    digest.update(at.to_bytes(8, "big") + block.rstrip(b"\0"))
                at += len(block)
            else:
                continue
            break
        return digest.hexdigest()
    finally:
        os.close(fd)


def differences(want, have):
    """One line for each path and field that is not the same in both."""
    lines = []
    for path in sorted(want.keys() | have.keys()):
        name = ascii(os.fsdecode(path) or ".")
        a, b = want.get(path), have.get(path)
        if a is None or b is None:
            lines.append(f"{name}: {'is new' if a is None else 'is missing'}")
            continue
        for field in sorted(a.keys() | b.keys()):
            if a.get(field) != b.get(field):
                lines.append(f"{name}: {field}: {a.get(field)!r} became {b.get(field)!r}")
    return lines


def plant(root):
    """A small tree with one of everything, so that a base that must stay as it is has something to lose."""
    def write(name, data):
        with open(os.path.join(root, name), "wb") as f:
            f.write(data)

    for d in ("kept", "kept/deep", "kept/deep/er", "kept/empty"):
        os.mkdir(os.path.join(root, d))
    write("kept/text", b"one\ntwo\n")
    write("kept/big", b"0123456789abcdef" * 65536)
    write("kept/deep/er/tool", b"#!/bin/sh\nexit 0\n")
    os.chmod(os.path.join(root, "kept/deep/er/tool"), 0o750)
    os.link(os.path.join(root, "kept/text"), os.path.join(root, "kept/deep/hard"))
    os.symlink("../text", os.path.join(root, "kept/deep/link"))
    os.mkfifo(os.path.join(root, "kept/pipe"))
    write("kept/sparse", b"")
    os.truncate(os.path.join(root, "kept/sparse"), 1 << 30)
    os.setxattr(os.path.join(root, "kept/big"), "user.taste", b"sweet")
    os.chmod(os.path.join(root, "kept/empty"), 0o2770)
    for i, name in enumerate(("kept/text", "kept/big", "kept/deep/er/tool")):
        os.utime(os.path.join(root, name), ns=(10**18 + i, 10**18 + i))
