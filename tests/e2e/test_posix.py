# SPDX-License-Identifier: Apache-2.0
"""System calls give what POSIX and the man pages say, call by call: each scenario runs on a plain directory of the
machine's own file system and on the mount, and every result, value or error, must be the same on both.  What differs on
purpose is asserted beside it."""
import errno
import os
import stat
import subprocess
import sys
import threading
import time

import pytest
from harness import Mount

LONG = "n" * 1025  # longer than a component may be on the mount


class Trial:
    """Notes what calls return, errors by name."""

    def __init__(self, root):
        self.root, self.notes = root, []

    def p(self, *names):
        return os.path.join(self.root, *names)

    def __call__(self, what, fn, *args, **kw):
        try:
            value = fn(*args, **kw)
        except OSError as e:
            value = errno.errorcode[e.errno]
        if hasattr(value, "st_mode"):
            value = facts(value)
        if isinstance(value, int) and fn is os.open:
            os.close(value)
            value = "opened"
        self.notes.append((what, value))
        return value

    def write(self, name, data=b""):
        with open(self.p(name), "wb") as f:
            f.write(data)

    def read(self, name):
        with open(self.p(name), "rb") as f:
            return f.read()


def facts(st):
    return (stat.S_IFMT(st.st_mode), oct(st.st_mode & 0o7777), st.st_uid, st.st_gid,
            st.st_size if stat.S_ISREG(st.st_mode) else None,
            st.st_nlink if stat.S_ISREG(st.st_mode) else None)


def open_(t, name, flags, mode=0o644):
    return t(f"open {name} {flags:#o}", os.open, t.p(name), flags, mode)


# ---- scenarios ----

def s_open_flags(t):
    open_(t, "absent", os.O_RDONLY)
    open_(t, "absent", os.O_WRONLY)
    open_(t, "new", os.O_CREAT | os.O_WRONLY)
    open_(t, "new", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    open_(t, "new", os.O_DIRECTORY)
    open_(t, "new", os.O_RDONLY | os.O_NOFOLLOW)
    t.write("new", b"12345")
    open_(t, "new", os.O_RDWR | os.O_TRUNC)
    t("size", os.path.getsize, t.p("new"))
    os.mkdir(t.p("d"))
    open_(t, "d", os.O_RDONLY)
    open_(t, "d", os.O_RDONLY | os.O_DIRECTORY)
    open_(t, "d", os.O_WRONLY)
    open_(t, "d", os.O_RDWR)
    open_(t, "d", os.O_CREAT | os.O_WRONLY)
    open_(t, "d", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    open_(t, "new/x", os.O_CREAT | os.O_WRONLY)
    open_(t, "nodir/x", os.O_CREAT | os.O_WRONLY)
    open_(t, "new/", os.O_RDONLY)
    open_(t, "d/", os.O_CREAT | os.O_WRONLY)


def s_create_modes(t):
    old = os.umask(0o027)
    try:
        for mode in (0o777, 0o666, 0o600, 0o4755, 0o000):
            open_(t, f"f{mode:o}", os.O_CREAT | os.O_WRONLY, mode)
            t("stat", os.stat, t.p(f"f{mode:o}"))
            t("mkdir", os.mkdir, t.p(f"d{mode:o}"), mode)
            t("mode", lambda: oct(os.stat(t.p(f"d{mode:o}")).st_mode))
            t("mknod", os.mknod, t.p(f"n{mode:o}"), stat.S_IFREG | mode)
            t("stat", os.stat, t.p(f"n{mode:o}"))
        t("mknod again", os.mknod, t.p("n666"), stat.S_IFREG | 0o600)
    finally:
        os.umask(old)


def s_write_past_end(t):
    fd = os.open(t.p("f"), os.O_CREAT | os.O_RDWR)
    t("pwrite", os.pwrite, fd, b"end", 10000)
    t("size", lambda: os.fstat(fd).st_size)
    t("pread hole", os.pread, fd, 20, 5000)
    t("pread at end", os.pread, fd, 20, 10001)
    t("pread past end", os.pread, fd, 20, 20000)
    t("pwrite empty", os.pwrite, fd, b"", 90000)
    t("size", lambda: os.fstat(fd).st_size)
    t("lseek end", os.lseek, fd, 0, os.SEEK_END)
    t("lseek before", os.lseek, fd, -1, os.SEEK_SET)
    t("lseek far", os.lseek, fd, 1 << 40, os.SEEK_SET)
    os.close(fd)
    t("contents", t.read, "f")
    t("write on closed", os.write, fd, b"x")


def s_append(t):
    t.write("f", b"one")
    a = os.open(t.p("f"), os.O_WRONLY | os.O_APPEND)
    os.lseek(a, 0, os.SEEK_SET)
    t("write", os.write, a, b"two")
    t("position", os.lseek, a, 0, os.SEEK_CUR)
    t("pwrite appends", os.pwrite, a, b"!", 0)
    os.close(a)
    t("contents", t.read, "f")


def s_wrong_mode_of_descriptor(t):
    t.write("f", b"12345")
    r, w = os.open(t.p("f"), os.O_RDONLY), os.open(t.p("f"), os.O_WRONLY)
    t("write on r", os.write, r, b"x")
    t("read on w", os.read, w, 1)
    t("truncate r", os.ftruncate, r, 1)
    t("truncate w", os.ftruncate, w, 2)
    d = os.open(t.root, os.O_RDONLY)
    t("read dir", os.read, d, 10)
    t("write dir", os.write, d, b"x")
    t("truncate dir", os.ftruncate, d, 0)
    for fd in (r, w, d):
        os.close(fd)
    t("contents", t.read, "f")


def s_truncate(t):
    t.write("f", b"0123456789" * 1000)
    for size in (10000, 10001, 3, 0, 70000, 5):
        t("truncate", os.truncate, t.p("f"), size)
        t("stat", os.stat, t.p("f"))
        t("contents", t.read, "f")
    t("absent", os.truncate, t.p("absent"), 0)
    t("directory", os.truncate, t.root, 0)
    t("negative", os.truncate, t.p("f"), -1)
    t("component", os.truncate, t.p("f", "x"), 0)


def s_unlink(t):
    t.write("f")
    os.mkdir(t.p("d"))
    t("directory", os.unlink, t.p("d"))
    t("file", os.unlink, t.p("f"))
    t("again", os.unlink, t.p("f"))
    t("component", os.unlink, t.p("nodir", "x"))
    t.write("f")
    t("not a directory", os.unlink, t.p("f", "x"))
    t("slash", os.unlink, t.p("f") + "/")
    fd = os.open(t.p("f"), os.O_RDWR)
    os.write(fd, b"data")
    os.unlink(t.p("f"))
    t("links", lambda: os.fstat(fd).st_nlink)
    t("still readable", os.pread, fd, 10, 0)
    t("still writable", os.pwrite, fd, b"more", 4)
    t("read", os.pread, fd, 10, 0)
    os.close(fd)
    t("gone", os.path.exists, t.p("f"))


def s_mkdir_rmdir(t):
    t("mkdir", os.mkdir, t.p("d"))
    t("again", os.mkdir, t.p("d"))
    t.write("f")
    t("over a file", os.mkdir, t.p("f"))
    t("below a file", os.mkdir, t.p("f", "x"))
    t("below nothing", os.mkdir, t.p("no", "x"))
    t("slash", os.mkdir, t.p("e") + "/")
    t.write("d/x")
    t("not empty", os.rmdir, t.p("d"))
    os.unlink(t.p("d", "x"))
    t("empty", os.rmdir, t.p("d"))
    t("absent", os.rmdir, t.p("d"))
    t("file", os.rmdir, t.p("f"))
    os.makedirs(t.p("a", "b"))
    t("with a directory", os.rmdir, t.p("a"))
    t("dot", os.rmdir, t.p("a", "b", "."))
    t("dotdot", os.rmdir, t.p("a", "b", ".."))
    t("list", lambda: sorted(os.listdir(t.root)))


def s_rename_files(t):
    t.write("a", b"A")
    t.write("b", b"B")
    os.mkdir(t.p("d"))
    os.mkdir(t.p("full"))
    t.write("full/x")
    t("over a file", os.rename, t.p("a"), t.p("b"))
    t("contents", t.read, "b")
    t("gone", os.path.exists, t.p("a"))
    t("absent", os.rename, t.p("a"), t.p("c"))
    t("to itself", os.rename, t.p("b"), t.p("b"))
    t("over a directory", os.rename, t.p("b"), t.p("d"))
    t("over a full one", os.rename, t.p("b"), t.p("full"))
    t("into nothing", os.rename, t.p("b"), t.p("no", "b"))
    t("below a file", os.rename, t.p("b"), t.p("full", "x", "y"))
    t("into a directory", os.rename, t.p("b"), t.p("d", "b"))
    t("with a slash", os.rename, t.p("d", "b"), t.p("c") + "/")
    t("list", lambda: sorted(os.listdir(t.root)))
    t("dot", os.rename, t.p("d", "."), t.p("e"))


def s_rename_empty_directories(t):
    os.mkdir(t.p("a"))
    os.mkdir(t.p("b"))
    t.write("f")
    os.makedirs(t.p("full", "x"))
    t("to a new name", os.rename, t.p("a"), t.p("c"))
    t("over an empty one", os.rename, t.p("c"), t.p("b"))
    t("over a file", os.rename, t.p("b"), t.p("f"))
    t("over a full one", os.rename, t.p("b"), t.p("full"))
    t("into itself", os.rename, t.p("b"), t.p("b", "y"))
    t("into another", os.rename, t.p("b"), t.p("full", "b"))
    t("list", lambda: sorted(os.listdir(t.root)))
    t("list", lambda: sorted(os.listdir(t.p("full"))))


def s_chmod_chown(t):
    t.write("f")
    os.mkdir(t.p("d"))
    for mode in (0o644, 0o000, 0o777, 0o4711, 0o2755, 0o1777):
        for name in ("f", "d"):
            t("chmod", os.chmod, t.p(name), mode)
            t("mode", lambda: oct(os.stat(t.p(name)).st_mode))
    t("absent", os.chmod, t.p("absent"), 0o600)
    t("component", os.chmod, t.p("f", "x"), 0o600)
    t("chown", os.chown, t.p("f"), 12, 34)
    t("stat", os.stat, t.p("f"))
    t("uid only", os.chown, t.p("f"), 56, -1)
    t("gid only", os.chown, t.p("d"), -1, 78)
    t("stat", os.stat, t.p("f"))
    t("gid", lambda: os.stat(t.p("d")).st_gid)
    fd = os.open(t.p("f"), os.O_RDONLY)
    t("fchmod", os.fchmod, fd, 0o640)
    t("fchown", os.fchown, fd, 1, 2)
    t("fstat", os.fstat, fd)
    os.close(fd)


def s_chown_clears_setuid(t):
    t.write("f")
    os.chmod(t.p("f"), 0o6755)
    os.chown(t.p("f"), 1, 1)
    t("mode", lambda: oct(os.stat(t.p("f")).st_mode))


def s_utimes(t):
    t.write("f", b"x")
    os.mkdir(t.p("d"))
    for name in ("f", "d"):
        for ns in ((1, 2), (1_600_000_000_123_456_789, 1_500_000_000_987_654_321), (0, 0),
                   (-1_000_000_000, -5_000_000_001)):
            t("utime", os.utime, t.p(name), ns=ns)
            t("mtime", lambda: os.stat(t.p(name)).st_mtime_ns)
            t("atime", lambda: os.stat(t.p(name)).st_atime_ns)
        before = time.time_ns() - 50_000_000
        t("now", os.utime, t.p(name))
        t("is now", lambda: os.stat(t.p(name)).st_mtime_ns >= before)
    fd = os.open(t.p("f"), os.O_RDONLY)
    t("by descriptor", os.utime, fd, ns=(7, 8))
    t("mtime", lambda: os.fstat(fd).st_mtime_ns)
    os.close(fd)
    t("absent", os.utime, t.p("absent"))


def s_times_move(t):
    """Contents, names and attributes that change set the times that POSIX names."""
    t.write("f", b"x")
    os.mkdir(t.p("d"))

    def moved(what, path, fn):
        os.utime(path, ns=(1, 1))
        before = os.stat(path)
        fn()
        t(what, lambda: os.stat(path).st_mtime_ns > before.st_mtime_ns)

    moved("write", t.p("f"), lambda: t.write("f", b"y"))
    moved("truncate", t.p("f"), lambda: os.truncate(t.p("f"), 0))
    moved("truncate to the same", t.p("f"), lambda: os.truncate(t.p("f"), 0))
    moved("read", t.p("f"), lambda: t.read("f"))
    moved("chmod", t.p("f"), lambda: os.chmod(t.p("f"), 0o600))
    moved("create in", t.p("d"), lambda: t.write("d/x"))
    moved("mkdir in", t.p("d"), lambda: os.mkdir(t.p("d/y")))
    moved("unlink in", t.p("d"), lambda: os.unlink(t.p("d/x")))
    moved("rmdir in", t.p("d"), lambda: os.rmdir(t.p("d/y")))
    moved("rename into", t.p("d"), lambda: os.rename(t.p("f"), t.p("d/f")))
    moved("rename out of", t.p("d"), lambda: os.rename(t.p("d/f"), t.p("f")))
    moved("list", t.p("d"), lambda: os.listdir(t.p("d")))
    moved("rename", t.p("f"), lambda: os.rename(t.p("f"), t.p("g")) or os.rename(t.p("g"), t.p("f")))


def s_names(t):
    for name in ("n" * 255, "ä" * 127, " ", "a b", "tab\t", "new\nline", "*?[]", "-rf", "...", "..x", "x.", "\\", "#", "\x7f"):
        t(f"create {name[:8]!r}", t.write, name, b"x")
        t("there", lambda: name in os.listdir(t.root))
        t("contents", t.read, name)
        t("unlink", os.unlink, t.p(name))
    t("empty", os.open, "", os.O_RDONLY)


def s_too_long(t):
    for fn, args in ((os.open, (os.O_RDONLY,)), (os.mkdir, ()), (os.unlink, ()), (os.rmdir, ()), (os.stat, ()),
                     (os.truncate, (0,)), (os.chmod, (0o600,))):
        t(fn.__name__, fn, t.p(LONG), *args)
    t("create", os.open, t.p(LONG), os.O_CREAT | os.O_WRONLY)
    t.write("f")
    t("rename to", os.rename, t.p("f"), t.p(LONG))
    t("path", os.stat, t.p(*["d" * 200] * 30))


def s_paths(t):
    os.makedirs(t.p("d", "e"))
    t.write("d/f", b"x")
    t("slashes", os.stat, t.p("d//f"))
    t("dot", os.stat, t.p("d/./f"))
    t("dotdot", os.stat, t.p("d/e/../f"))
    t("trailing slash on a file", os.stat, t.p("d/f/"))
    t("trailing slash on a directory", os.path.isdir, t.p("d/"))
    t("dotdot over nothing", os.stat, t.p("no/../d/f"))
    t("dotdot over a file", os.stat, t.p("d/f/../f"))
    old = os.getcwd()
    os.chdir(t.p("d", "e"))
    try:
        t("relative", os.stat, "../f")
        t("cwd", lambda: os.path.relpath(os.getcwd(), os.path.realpath(t.root)))
    finally:
        os.chdir(old)


def s_listing(t):
    for i in range(50):
        t.write(f"f{i}")
    os.mkdir(t.p("d"))
    with os.scandir(t.root) as it:
        t("types", lambda: sorted((e.name, e.is_dir(), e.is_file()) for e in it))
    with os.scandir(t.root) as it:
        t("inodes", lambda: all(e.inode() == os.stat(e.path).st_ino for e in it))
    fd = os.open(t.root, os.O_RDONLY)
    t("by descriptor", lambda: sorted(os.listdir(fd)) == sorted(os.listdir(t.root)))
    t("again", lambda: sorted(os.listdir(fd)) == sorted(os.listdir(t.root)))
    t.write("new")
    t("after a change", lambda: "new" in os.listdir(fd))
    os.close(fd)
    t("file", os.listdir, t.p("f1"))
    t("absent", os.listdir, t.p("absent"))


def s_removed_directory(t):
    os.mkdir(t.p("d"))
    fd = os.open(t.p("d"), os.O_RDONLY)
    os.rmdir(t.p("d"))
    t("create in", lambda: os.open("x", os.O_CREAT | os.O_WRONLY, dir_fd=fd))
    t("list", os.listdir, fd)
    t("stat", lambda: stat.S_ISDIR(os.fstat(fd).st_mode))
    os.mkdir(t.p("d"))
    t("a new one of that name", t.write, "d/x", b"1")
    t("list", os.listdir, t.p("d"))
    t("the old one", os.listdir, fd)
    os.close(fd)
    os.mkdir(t.p("e"))
    fd = os.open(t.p("e"), os.O_RDONLY)
    os.mkdir(t.p("f"))
    t("replaced by rename", os.rename, t.p("f"), t.p("e"))
    t("create in the new one", t.write, "e/x", b"1")
    t("the replaced one", os.listdir, fd)
    os.close(fd)


def s_at_calls(t):
    os.mkdir(t.p("d"))
    fd = os.open(t.p("d"), os.O_RDONLY)
    t("mkdirat", os.mkdir, "e", dir_fd=fd)
    x = os.open("f", os.O_CREAT | os.O_RDWR, dir_fd=fd)
    os.write(x, b"data")
    os.close(x)
    t("fstatat", lambda: os.stat("f", dir_fd=fd).st_size)
    t("renameat", os.rename, "f", "g", src_dir_fd=fd, dst_dir_fd=fd)
    t("faccessat", os.access, "g", os.R_OK, dir_fd=fd)
    t("unlinkat", os.unlink, "g", dir_fd=fd)
    t("rmdirat", os.rmdir, "e", dir_fd=fd)
    t("list", os.listdir, fd)
    os.close(fd)


def s_vectors(t):
    fd = os.open(t.p("f"), os.O_CREAT | os.O_RDWR)
    t("writev", os.writev, fd, [b"ab", b"", b"cdef"])
    t("pwritev", os.pwritev, fd, [b"XY", b"Z"], 1)
    a, b = bytearray(2), bytearray(10)
    t("preadv", os.preadv, fd, [a, b], 0)
    t("bytes", lambda: bytes(a) + bytes(b))
    os.close(fd)
    t("contents", t.read, "f")


def s_sync(t):
    fd = os.open(t.p("f"), os.O_CREAT | os.O_WRONLY)
    os.write(fd, b"x")
    t("fsync", os.fsync, fd)
    t("fdatasync", os.fdatasync, fd)
    os.close(fd)
    for flags in (os.O_SYNC, os.O_DSYNC):
        fd = os.open(t.p("s"), os.O_CREAT | os.O_WRONLY | flags)
        t("write", os.write, fd, b"synced")
        os.close(fd)
    d = os.open(t.root, os.O_RDONLY)
    t("fsync of a directory", os.fsync, d)
    os.close(d)
    t("syncfs", os.sync)
    t("contents", t.read, "s")


def s_dup_and_fork(t):
    fd = os.open(t.p("f"), os.O_CREAT | os.O_RDWR)
    other = os.dup(fd)
    os.write(fd, b"one")
    t("shared position", os.lseek, other, 0, os.SEEK_CUR)
    os.write(other, b"two")
    os.close(other)
    os.write(fd, b"three")
    pid = os.fork()
    if pid == 0:
        os.write(fd, b"-child")
        os._exit(0)
    os.waitpid(pid, 0)
    t("position after fork", os.lseek, fd, 0, os.SEEK_CUR)
    os.write(fd, b"-parent")
    os.close(fd)
    t("contents", t.read, "f")


def s_locks(t):
    import fcntl
    t.write("f", b"x" * 100)
    a, b = os.open(t.p("f"), os.O_RDWR), os.open(t.p("f"), os.O_RDWR)
    t("flock", fcntl.flock, a, fcntl.LOCK_EX | fcntl.LOCK_NB)
    t("flock again", fcntl.flock, b, fcntl.LOCK_EX | fcntl.LOCK_NB)
    t("unlock", fcntl.flock, a, fcntl.LOCK_UN)
    t("flock then", fcntl.flock, b, fcntl.LOCK_EX | fcntl.LOCK_NB)
    t("lockf", fcntl.lockf, a, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 0)
    t("lockf by the other descriptor", fcntl.lockf, b, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 5)
    # Another process opens the file for itself; it says what it gets.
    other = """
import errno, fcntl, os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
for call, args in ((fcntl.flock, ()), (fcntl.lockf, (10, 0)), (fcntl.lockf, (10, 10))):
    try:
        call(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, *args)
        print("ok")
    except OSError as e:
        print(errno.errorcode[e.errno])
"""
    t("by another process", subprocess.check_output, [sys.executable, "-c", other, t.p("f")])
    for fd in (a, b):
        os.close(fd)
    t("after close", subprocess.check_output, [sys.executable, "-c", other, t.p("f")])


def s_access(t):
    t.write("f")
    os.chmod(t.p("f"), 0o400)
    for mode in (os.F_OK, os.R_OK, os.W_OK, os.X_OK):
        t("access", os.access, t.p("f"), mode)
        t("access of a directory", os.access, t.root, mode)
        t("access of nothing", os.access, t.p("absent"), mode)


def s_concurrent_exclusive_create(t):
    """One of many creators wins."""
    won = []

    def create():
        try:
            os.close(os.open(t.p("lock"), os.O_CREAT | os.O_EXCL | os.O_WRONLY))
            won.append(1)
        except FileExistsError:
            pass

    threads = [threading.Thread(target=create) for _ in range(16)]
    for x in threads:
        x.start()
    for x in threads:
        x.join()
    t("winners", len, won)


def s_permissions_of_others(t):
    """As an ordinary user: modes and owners decide."""
    os.chmod(t.root, 0o755)
    for name, mode, uid in (("mine", 0o600, 65534), ("closed", 0o600, 0), ("open", 0o666, 0), ("run", 0o711, 0)):
        t.write(name, b"12345")
        os.chmod(t.p(name), mode)
        os.chown(t.p(name), uid, uid)
    for name, mode, uid in (("dir-mine", 0o755, 65534), ("dir-closed", 0o700, 0), ("dir-open", 0o777, 0),
                            ("dir-sticky", 0o1777, 0), ("dir-list", 0o744, 0), ("dir-pass", 0o711, 0)):
        os.mkdir(t.p(name))
        t.write(name + "/f", b"1")
        os.chmod(t.p(name), mode)
        os.chown(t.p(name), uid, uid)
    r, w = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setresgid(65534, 65534, 65534)
            os.setresuid(65534, 65534, 65534)
            c = Trial(t.root)
            for name in ("mine", "closed", "open", "run"):
                open_(c, name, os.O_RDONLY)
                open_(c, name, os.O_WRONLY)
                c("stat", os.stat, c.p(name))
                c("chmod", os.chmod, c.p(name), 0o640 if name == "mine" else 0o666)
                c("chown", os.chown, c.p(name), 65534, -1)
                c("give away", os.chown, c.p(name), 0, -1)
                c("utime now", os.utime, c.p(name))
                c("utime", os.utime, c.p(name), ns=(1, 1))
                c("truncate", os.truncate, c.p(name), 2)
                c("access", os.access, c.p(name), os.X_OK)
            for name in ("dir-mine", "dir-closed", "dir-open", "dir-sticky", "dir-list", "dir-pass"):
                c("list", os.listdir, c.p(name))
                open_(c, name + "/f", os.O_RDONLY)
                open_(c, name + "/new", os.O_CREAT | os.O_WRONLY)
                c("mkdir", os.mkdir, c.p(name, "sub"))
                c("rename", os.rename, c.p(name, "f"), c.p(name, "g"))
                c("unlink", os.unlink, c.p(name, "f"))
                c("unlink", os.unlink, c.p(name, "g"))
                c("rmdir", os.rmdir, c.p(name, "sub"))
                c("rmdir of it", os.rmdir, c.p(name))
            c("create in a root's directory", os.open, c.p("x"), os.O_CREAT | os.O_WRONLY)
            os.write(w, repr(c.notes).encode())
        finally:
            os._exit(0)
    os.close(w)
    text = b""
    while chunk := os.read(r, 65536):
        text += chunk
    os.close(r)
    os.waitpid(pid, 0)
    t.notes += eval(text)


SCENARIOS = sorted(n for n in globals() if n.startswith("s_"))


@pytest.fixture(scope="module")
def shared():
    """One mount for all scenarios, each in a directory of its own."""
    import harness
    w = harness.World()
    yield Mount(w, options=["allow_other,default_permissions"] if os.geteuid() == 0 else [])
    w.close()


@pytest.mark.parametrize("name", SCENARIOS)
def test_as_on_a_local_file_system(shared, world, name):
    if name == "s_permissions_of_others" or name.startswith("s_chown") or name == "s_chmod_chown":
        assert os.geteuid() == 0
    os.chmod(world.dir.name, 0o755)
    os.chmod(shared.world.dir.name, 0o755)
    local, mounted = Trial(world.path("local")), Trial(shared.key(name))
    for t in (local, mounted):
        os.mkdir(t.root)
        globals()[name](t)
    differ = [(a, b) for a, b in zip(local.notes, mounted.notes) if a != b]
    assert not differ, differ
    assert len(local.notes) == len(mounted.notes)


def test_what_differs_on_purpose(mount):
    """No links, no devices, no renaming of directories with keys in them."""
    t = Trial(mount.keys)
    t.write("f")
    os.mkdir(t.p("d"))
    t.write("d/x")
    assert t("link", os.link, t.p("f"), t.p("l")) == "EPERM"
    assert t("symlink", os.symlink, "f", t.p("l")) == "EPERM"
    assert t("fifo", os.mkfifo, t.p("p")) == "EPERM"
    assert t("device", os.mknod, t.p("c"), stat.S_IFCHR | 0o600, os.makedev(1, 3)) == "EPERM"
    assert t("directory", os.rename, t.p("d"), t.p("e")) == "EXDEV"
    assert t("readlink", os.readlink, t.p("f")) == "EINVAL"
    for view in ("snapshots", ".mooncakefs", "history"):
        for fn, args in ((os.mkdir, ()), (os.rmdir, ()), (os.unlink, ()), (os.chmod, (0o777,))):
            assert t(view, fn, os.path.join(mount.mnt, view, "x"), *args) in ("EROFS", "ENOENT", "EPERM"), (view, fn)
    assert t("open for writing", os.open, os.path.join(mount.mnt, ".mooncakefs/stats"), os.O_WRONLY) in ("EROFS", "EACCES")
