# SPDX-License-Identifier: Apache-2.0
"""fcntl and flock between processes of one mount, each of which has an inode of its own."""
import fcntl
import os
import select
import signal
import subprocess
import sys

import pytest
from harness import PATIENCE, Mount, wait_until

# Opens a file and does what it reads: one word each line, answered by one line.
CHILD = """
import errno, fcntl, os, sys
path, mode = sys.argv[1:]
fd = os.open(path, {"r": os.O_RDONLY, "w": os.O_WRONLY, "rw": os.O_RDWR}[mode])
print("open", flush=True)
for line in sys.stdin:
    word, *args = line.split()
    numbers = [int(x) for x in args]
    try:
        if word == "flock":
            fcntl.flock(fd, *numbers)
        elif word == "lockf":
            fcntl.lockf(fd, *numbers)
        elif word == "close":
            os.close(fd)
        elif word == "read":
            os.pread(fd, 1, 0)
        print("ok", flush=True)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    except OSError as e:
        print(errno.errorcode[e.errno], flush=True)
"""

EX, SH, UN, NB = fcntl.LOCK_EX, fcntl.LOCK_SH, fcntl.LOCK_UN, fcntl.LOCK_NB


class Child:
    def __init__(self, path, mode="rw"):
        self.p = subprocess.Popen([sys.executable, "-c", CHILD, path, mode], stdin=subprocess.PIPE,
                                  stdout=subprocess.PIPE, text=True, bufsize=1)
        assert self.answer() == "open"

    def ask(self, *words):
        self.p.stdin.write(" ".join(str(w) for w in words) + "\n")
        self.p.stdin.flush()

    def answer(self):
        ready, _, _ = select.select([self.p.stdout], [], [], 60 * PATIENCE)
        assert ready, "no answer"
        return self.p.stdout.readline().strip()

    def __call__(self, *words):
        self.ask(*words)
        return self.answer()

    def end(self):
        self.p.kill()
        self.p.wait()
        self.p.stdin.close()
        self.p.stdout.close()


@pytest.fixture
def children(world):
    m = Mount(world)
    with open(m.key("f"), "wb") as f:
        f.write(b"x" * 100)
    with open(m.key("g"), "wb") as f:
        f.write(b"y" * 100)
    made = []

    def make(mode="rw", name="f"):
        made.append(Child(m.key(name), mode))
        return made[-1]
    make.mount = m
    yield make
    for c in made:
        c.end()


def wait_until_queued(mount, count=1):
    """Until so many requests wait for a lock in the daemon."""
    wait_until(lambda: mount.stats()["locks_waiting"] >= count, what="waiting for a lock")


MODES = [("rw", "rw"), ("r", "rw"), ("rw", "r"), ("w", "rw"), ("r", "r")]


@pytest.mark.parametrize("modes", MODES)
def test_flock_excludes(children, modes):
    a, b = (children(m) for m in modes)
    assert a("flock", EX | NB) == "ok"
    assert b("flock", EX | NB) == "EAGAIN"
    assert b("flock", SH | NB) == "EAGAIN"
    assert a("flock", SH | NB) == "ok"
    assert b("flock", SH | NB) == "ok"
    assert a("flock", EX | NB) == "EAGAIN"
    assert b("flock", UN) == "ok"
    assert a("flock", EX | NB) == "ok"


@pytest.mark.parametrize("modes", [("rw", "rw"), ("w", "rw"), ("rw", "w")])
def test_ranges_exclude(children, modes):
    a, b = (children(m) for m in modes)
    assert a("lockf", EX | NB, 10, 0) == "ok"
    assert b("lockf", EX | NB, 10, 5) == "EAGAIN"
    assert b("lockf", EX | NB, 10, 10) == "ok"
    assert a("lockf", EX | NB, 0, 0) == "EAGAIN"
    assert a("lockf", UN, 5, 5) == "ok"
    assert b("lockf", EX | NB, 5, 5) == "ok"


def test_a_readers_range_excludes_a_writer(children):
    a, b = children("r"), children("rw")
    assert a("lockf", SH | NB, 10, 0) == "ok"
    assert b("lockf", SH | NB, 10, 0) == "ok"
    assert b("lockf", EX | NB, 10, 0) == "EAGAIN"
    assert a("close") == "ok"
    assert b("lockf", EX, 10, 0) == "ok"


@pytest.mark.parametrize("how", ["unlock", "close", "exit", "kill"])
@pytest.mark.parametrize("call", ["flock", "lockf"])
@pytest.mark.parametrize("mode", ["r", "rw"])
def test_a_waiter_gets_it(children, call, how, mode):
    a, b = children(mode), children()
    assert a(call, SH) == "ok"
    b.ask(call, EX)
    wait_until_queued(children.mount)
    if how == "unlock":
        assert a(call, UN) == "ok"
    elif how == "close":
        assert a("close") == "ok"
    elif how == "exit":
        a.p.stdin.close()
    else:
        a.p.kill()
    assert b.answer() == "ok"
    if how == "exit":
        a.p.stdin = open(os.devnull)


@pytest.mark.parametrize("call", ["flock", "lockf"])
def test_an_interrupt_ends_the_wait(children, call):
    a, b, c = children(), children(), children()
    assert a(call, EX) == "ok"
    b.ask(call, EX)
    wait_until_queued(children.mount)
    os.kill(b.p.pid, signal.SIGINT)
    assert b.answer() == "interrupted"
    assert a(call, UN) == "ok"
    assert c(call, EX | NB) == "ok"
    b.ask(call, EX)
    wait_until_queued(children.mount)
    b.p.kill()
    assert b.p.wait() == -signal.SIGKILL


def test_many_waiters_do_not_stop_the_mount(children):
    """More than there are threads; the holder's unlock and other requests get through."""
    m, count = children.mount, 200
    holder = children()
    assert holder("flock", EX) == "ok"
    waiters = []
    for _ in range(count):
        pid = os.fork()
        if pid == 0:
            fd = os.open(m.key("f"), os.O_RDONLY)
            fcntl.flock(fd, EX)
            os._exit(0)
        waiters.append(pid)
    wait_until_queued(m, count)
    assert open(m.key("g"), "rb").read() == b"y" * 100
    with open(m.key("h"), "wb") as f:
        f.write(b"z")
    assert holder("flock", UN) == "ok"
    assert [os.waitpid(p, 0)[1] for p in waiters] == [0] * count


def test_deadlock(children):
    a, b = children(), children()
    assert a("lockf", EX, 10, 0) == "ok"
    assert b("lockf", EX, 10, 50) == "ok"
    a.ask("lockf", EX, 10, 50)
    wait_until_queued(children.mount)
    assert b("lockf", EX, 10, 0) in ("EDEADLK", "EDEADLOCK")  # one number, two names
    assert b("lockf", UN, 10, 50) == "ok"
    assert a.answer() == "ok"


def test_locks_go_with_a_renamed_key(children):
    m = children.mount
    a = children()
    assert a("flock", EX) == "ok"
    os.rename(m.key("f"), m.key("f2"))
    assert children(name="f2")("flock", EX | NB) == "EAGAIN"
    with open(m.key("f"), "wb") as f:
        f.write(b"new")
    assert children()("flock", EX | NB) == "ok"


def test_an_unlinked_keys_locks_are_not_its_successors(children):
    m = children.mount
    a = children()
    assert a("flock", EX) == "ok"
    os.unlink(m.key("f"))
    with open(m.key("f"), "wb") as f:
        f.write(b"new")
    assert children()("flock", EX | NB) == "ok"


def test_flock_1(children):
    m = children.mount
    a = children()
    assert a("flock", EX) == "ok"
    assert subprocess.run(["flock", "-n", m.key("f"), "true"]).returncode == 1
    assert a("flock", UN) == "ok"
    assert subprocess.run(["flock", "-n", m.key("f"), "true"]).returncode == 0


def test_getlk_names_the_holder(children):
    import struct
    a = children()
    assert a("lockf", EX, 10, 20) == "ok"
    fd = os.open(children.mount.key("f"), os.O_RDWR)
    ask = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    kind, whence, start, length, pid = struct.unpack("hhqqi4x", fcntl.fcntl(fd, fcntl.F_GETLK, ask))
    assert (kind, whence, start, length, pid) == (fcntl.F_WRLCK, os.SEEK_SET, 20, 10, a.p.pid)
    os.close(fd)
