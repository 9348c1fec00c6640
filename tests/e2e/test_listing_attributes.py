# SPDX-License-Identifier: Apache-2.0
"""Listings bring attributes along: few look-ups, and never what another node has changed meanwhile."""
import os
import random
import signal
import subprocess
import sys
import threading
import time

import pytest
from harness import Master, Mount, wait_until, write

COUNT = 3000


@pytest.fixture
def mounts(world):
    master = Master(world)
    return [Mount(world, source=master.address, name=name, options=["attr_timeout=1h"]) for name in ("a", "b")]


def fill(mount, count, size=10):
    os.makedirs(mount.key("d"), exist_ok=True)
    for i in range(count):
        write(mount.key("d", f"f{i:05}"), b"x" * size)


def sizes(mount):
    """Of all in the directory, asked for by name in it, as ls(1) and find(1) do."""
    fd = os.open(mount.key("d"), os.O_RDONLY)
    try:
        return [e.stat(follow_symlinks=False).st_size for e in os.scandir(fd)]
    finally:
        os.close(fd)


def forget_names():
    with open("/proc/sys/vm/drop_caches", "w") as f:
        f.write("2")


def test_few_look_ups(mounts):
    a, b = mounts
    fill(a, COUNT)
    asked = []
    for _ in range(3):  # what is recalled meanwhile is looked up by name
        forget_names()
        before = b.stats()["fuse_lookups_total"]
        assert sizes(b) == [10] * COUNT
        asked.append(b.stats()["fuse_lookups_total"] - before)
    assert min(asked) < COUNT / 10


def test_names_alone_hold_little(mounts):
    """Who asks for no attributes gets them with the first names at most."""
    a, b = mounts
    fill(a, COUNT)
    assert len(os.listdir(b.key("d"))) == COUNT
    assert b.stats()["inodes"] < COUNT / 2


def test_the_kernel_gives_all_back(mounts):
    a, b = mounts
    fill(a, COUNT)
    before = b.stats()["inodes"]
    for _ in range(3):
        sizes(b)
    # Another test may have the kernel forget names meanwhile.
    wait_until(lambda: len(sizes(b)) and b.stats()["inodes"] > before + COUNT - 100, what="known inodes")
    wait_until(lambda: forget_names() or b.stats()["inodes"] < before + 50, what="forgotten inodes")


def test_a_listing_that_pauses(mounts):
    """The kernel has been told of names, and its caller has not come back: changes are seen all the same, and at once."""
    a, b = mounts
    fill(a, COUNT)
    listing = os.scandir(b.key("d"))
    first = [next(listing) for _ in range(50)]
    paths = [os.path.relpath(e.path, b.key()) for e in first]
    began = time.monotonic()
    for i, path in enumerate(paths):
        mine, theirs = a.key(path), b.key(path)
        assert os.stat(theirs).st_size == 10
        if i % 3 == 0:
            write(mine, b"y" * (100 + i))
            assert os.stat(theirs).st_size == 100 + i
        elif i % 3 == 1:
            os.unlink(mine)
            assert not os.path.exists(theirs)
        else:
            os.rename(mine, mine + ".moved")
            assert not os.path.exists(theirs) and os.stat(theirs + ".moved").st_size == 10
    assert time.monotonic() - began < 20
    assert len([e for e in listing if e.name.endswith("0")]) > 0


def test_own_changes_while_a_listing_pauses(mounts):
    _, b = mounts
    fill(b, COUNT)
    listing = os.scandir(b.key("d"))
    next(listing)
    for i in range(0, 60, 3):
        path = b.key("d", f"f{i:05}")
        write(path, b"z" * 77)
        assert os.stat(path).st_size == 77
        os.rename(path, path + ".x")
        assert not os.path.exists(path)
        os.unlink(path + ".x")
        assert not os.path.exists(path + ".x")
    assert sum(1 for _ in listing) >= COUNT - 100


LIST = """
import os, sys
while True:
    fd = os.open(sys.argv[1], os.O_RDONLY)
    for e in os.scandir(fd):
        try:
            e.stat(follow_symlinks=False)
        except FileNotFoundError:
            pass
    os.close(fd)
"""


def test_listed_throughout(mounts):
    """What one node has changed the other shows from then on, whatever is listed meanwhile."""
    a, b = mounts
    fill(a, 400)
    listers = [subprocess.Popen([sys.executable, "-c", LIST, b.key("d")]) for _ in range(3)]
    rng = random.Random(1)
    try:
        until = time.monotonic() + 12
        n = 0
        while time.monotonic() < until:
            n += 1
            name = f"f{rng.randrange(400):05}"
            write(a.key("d", name), b"w" * (100 + n))
            assert os.stat(b.key("d", name)).st_size == 100 + n
            if n % 5 == 0:
                os.unlink(a.key("d", name))
                assert not os.path.exists(b.key("d", name))
        assert n > 50
        for p in listers:
            assert p.poll() is None
    finally:
        for p in listers:
            p.send_signal(signal.SIGKILL)
            p.wait()


def test_both_remove_what_both_have_listed(mounts):
    a, b = mounts
    fill(a, 600)
    failed = []

    def empty(mount):
        with os.scandir(mount.key("d")) as listing:
            for e in listing:
                try:
                    e.stat(follow_symlinks=False)
                    os.unlink(e.path)
                except FileNotFoundError:
                    pass
                except OSError as err:
                    failed.append(err)
    threads = [threading.Thread(target=empty, args=(m,)) for m in mounts]
    began = time.monotonic()
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failed
    assert time.monotonic() - began < 60
    assert not [n for n in os.listdir(a.key("d")) if n.startswith("f")]
