# SPDX-License-Identifier: Apache-2.0
"""Read-only mounts, on which the kernel opens files without asking."""
import fcntl
import json
import os
import subprocess

import pytest
from harness import Master, Mount, Rpc, read, run

SIZES = {"empty": 0, "small": 100, "middle": 70000, "large": 5 << 20}


@pytest.fixture
def ro(world):
    """A read-only mount of what a read-write one has stored."""
    m = Mount(world)
    data = {name: os.urandom(size) for name, size in SIZES.items()}
    for name, content in data.items():
        with open(m.key(name), "wb") as f:
            f.write(content)
    id = m.snapshot()
    m.umount()
    m.options = ["ro"]
    m.start()
    return m, data, id


def test_contents(ro):
    m, data, id = ro
    for name, content in data.items():
        assert read(m.key(name)) == content
        assert read(m.key(name)) == content
    assert m.stats()["fuse_opens_total"] == 0
    snapshot = os.path.join(m.mnt, "snapshots", id)
    for name in os.listdir(snapshot):
        assert len(read(os.path.join(snapshot, name))) == os.path.getsize(os.path.join(snapshot, name))


def test_cached_pages_cost_no_request(ro):
    m, data, _ = ro
    read(m.key("middle"))
    before = m.stats()
    for _ in range(50):
        assert read(m.key("middle")) == data["middle"]
    after = m.stats()
    # Reading the figures is one or two requests itself.
    assert after["fuse_reads_total"] - before["fuse_reads_total"] <= 4
    assert after["fuse_lookups_total"] - before["fuse_lookups_total"] <= 8


def test_control_files_are_fresh_and_whole(ro):
    m, _, _ = ro
    first = m.stats()["fuse_lookups_total"]
    read(m.key("small"))
    assert m.stats()["fuse_lookups_total"] > first
    path = os.path.join(m.mnt, ".mooncakefs/status.json")
    fd = os.open(path, os.O_RDONLY)
    pieces = b""
    while True:  # one byte more each time: all from the same moment
        piece = os.read(fd, len(pieces) + 1)
        if not piece:
            break
        pieces += piece
    os.close(fd)
    assert json.loads(pieces)["master"]
    assert os.path.getsize(path) > 100


def test_writing_is_refused(ro):
    m, _, _ = ro
    for flags in (os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_CREAT):
        with pytest.raises(OSError):
            os.open(m.key("small"), flags)
    with pytest.raises(OSError):
        os.unlink(m.key("small"))


@pytest.mark.parametrize("name", ["middle", "large"])
def test_an_open_file_keeps_its_version(world, name):
    """Another mount of the cluster replaces and removes what this one has open."""
    master = Master(world)
    w = Mount(world, source=master.address, name="w")
    first = os.urandom(SIZES[name])
    with open(w.key(name), "wb") as f:
        f.write(first)
    w.umount()
    r = Mount(world, source=master.address, name="r", state=w.state, options=["ro"])
    other = Mount(world, source=master.address, name="other", options=["listen=127.0.0.1:0"])
    with open(r.key(name), "rb") as f:
        assert f.read(1000) == first[:1000]
        with open(r.key(name), "rb") as untouched:
            with open(other.key(name), "wb") as g:
                g.write(b"second" * 1000)
            assert read(r.key(name)) == b"second" * 1000
            assert f.read() == first[1000:]
            assert untouched.read() == first
    os.unlink(other.key(name))
    assert not os.path.exists(r.key(name))


def test_opens_all_lets_large_objects_pass(ro):
    m, data, _ = ro
    m.umount()
    m.options = ["ro", "opens=all"]
    m.start()
    for name, content in data.items():
        assert read(m.key(name)) == content
    assert m.stats()["fuse_opens_total"] >= 4
    if os.geteuid() == 0:
        assert m.stats()["fuse_passthrough_opens_total"] == 1


def test_many_files_are_read(world):
    """More than readers are kept for."""
    m = Mount(world)
    for i in range(3000):
        with open(m.key(f"f{i:04d}"), "wb") as f:
            f.write(f"content of {i}".encode() * 10)
    m.umount()
    m.options = ["ro"]
    m.start()
    for _ in range(2):
        for i in range(3000):
            assert read(m.key(f"f{i:04d}")) == f"content of {i}".encode() * 10
        m.forget_names()


def test_locks_are_the_kernels(ro):
    """No open file is known here by which a lock could be dropped."""
    m, _, _ = ro
    with open(m.key("small"), "rb") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        assert subprocess.run(["flock", "-n", m.key("small"), "true"]).returncode == 1
    assert subprocess.run(["flock", "-n", m.key("small"), "true"]).returncode == 0
