# SPDX-License-Identifier: Apache-2.0
"""A reader sees a whole object or none, never part of one."""
import os
import subprocess
import sys
import threading
import time

import pytest
from harness import Mount

WRITER = """
import os, sys
path, rounds, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
for n in range(rounds):
    size = [10, 5000, 200000, 1500000][(n + seed) % 4]
    body = bytes([(n + seed) % 251]) * size
    with open(path, 'wb', buffering=0) as f:
        for at in range(0, size, 65536):
            f.write(body[at:at + 65536])
"""


def is_whole(data):
    return len(data) in (10, 5000, 200000, 1500000) and data == data[:1] * len(data)


@pytest.mark.parametrize("writers", [1, 3])
def test_concurrent_overwrites_and_reads(mount, writers):
    """Every read is one whole version, while other processes overwrite in pieces."""
    path = mount.key("contended")
    with open(path, "wb") as f:
        f.write(b"\0" * 10)
    procs = [subprocess.Popen([sys.executable, "-c", WRITER, path, "40", str(i)])
             for i in range(writers)]
    bad, reads = [], [0]

    def reader():
        while any(p.poll() is None for p in procs):
            with open(path, "rb") as f:
                data = f.read()
            reads[0] += 1
            if not is_whole(data):
                bad.append((len(data), data[:20], data[-20:]))
                return

    threads = [threading.Thread(target=reader) for _ in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert all(p.wait() == 0 for p in procs)
    assert not bad and reads[0] > 10
    assert is_whole(open(path, "rb").read())


def test_new_file_is_nobodys_before_close(mount):
    path = mount.key("new")
    with open(path, "wb", buffering=0) as f:
        f.write(b"part")
        assert subprocess.run(["cat", path], capture_output=True).returncode != 0
        assert subprocess.run(["ls", mount.keys], capture_output=True).stdout == b""
        f.write(b"-rest")
    assert subprocess.run(["cat", path], capture_output=True).stdout == b"part-rest"


def test_slow_reader_keeps_its_version(mount):
    path = mount.key("f")
    old = os.urandom(6 << 20)
    with open(path, "wb") as f:
        f.write(old)
    with open(path, "rb", buffering=0) as f:
        got = f.read(4096)
        for i in range(5):
            with open(path, "wb") as g:
                g.write(bytes([i]) * (3 << 20))
        while True:
            piece = f.read(65536)
            if not piece:
                break
            got += piece
            time.sleep(0)
    assert got == old


def test_two_mounts_of_one_master(world):
    """What one mount replaces or removes is gone on the other at once, cached or not."""
    a = Mount(world, name="a")
    b = Mount(world, source="unix:" + os.path.join(a.state, "master.sock"), name="b")
    for i in range(30):
        data = f"version {i}".encode() * (i * 100 + 1)
        writer, reader = (a, b) if i % 2 else (b, a)
        with open(writer.key("f"), "wb") as f:
            f.write(data)
        assert open(reader.key("f"), "rb").read() == data
        assert open(writer.key("f"), "rb").read() == data
        assert os.stat(reader.key("f")).st_size == len(data)
    os.unlink(a.key("f"))
    assert not os.path.exists(b.key("f")) and not os.path.exists(a.key("f"))


def test_rereads_within_the_lease_ask_nobody(world):
    a = Mount(world, name="a")
    with open(a.key("f"), "wb") as f:
        f.write(b"x" * 100000)
    os.stat(a.key("f"))
    before = a.stats()
    for _ in range(200):
        os.stat(a.key("f"))
    after = a.stats()
    assert after["fuse_lookups_total"] - before["fuse_lookups_total"] <= 5


def publish(directory, name, data):
    with open(os.path.join(directory, name + ".tmp"), "wb", buffering=0) as f:
        f.write(data)
    os.rename(os.path.join(directory, name + ".tmp"), os.path.join(directory, name))


def make_directory(mount, made_here):
    """One whose attributes this mount keeps, or (not made here) one that it knows by its keys alone."""
    directory = mount.key("d")
    os.mkdir(directory)
    publish(directory, "first", b"x")
    if not made_here:
        mount.umount()
        os.unlink(os.path.join(mount.state, "directories"))
        mount.start()
    return directory


@pytest.mark.parametrize("made_here", [True, False])
def test_requests_of_a_publication(mount, made_here):
    """Two look-ups (the temporary name, the final one), the put's beginning and its end; where the mount has no attributes
    of the directory, once its mtime. Names that are asked for once a second, and pings, come on top."""
    directory = make_directory(mount, made_here)
    count = 200
    publish(directory, "warm", b"x")
    began, before = time.monotonic(), mount.stats()["master_calls_total"]
    for i in range(count):
        publish(directory, f"f{i}", b"x" * 1000)
    calls, seconds = mount.stats()["master_calls_total"] - before, time.monotonic() - began
    assert calls <= count * (4 if made_here else 5) + 10 * (seconds + 1)


@pytest.mark.parametrize("made_here", [True, False])
def test_mtime_of_a_directory_shows_own_changes_at_once(mount, made_here):
    directory = make_directory(mount, made_here)
    for i in range(5):
        before = os.stat(directory).st_mtime_ns
        publish(directory, f"f{i}", b"x")
        assert os.stat(directory).st_mtime_ns > before


def test_a_directory_stays_when_its_only_temporary_name_moves_out(mount):
    """And so does one that loses its last key by unlink."""
    os.makedirs(mount.key("from"))
    os.makedirs(mount.key("to"))
    with open(mount.key("from", "x.tmp"), "wb") as f:
        f.write(b"x")
    os.rename(mount.key("from", "x.tmp"), mount.key("to", "x"))
    assert sorted(os.listdir(mount.keys)) == ["from", "to"]
    publish(mount.key("from"), "y", b"y")
    os.unlink(mount.key("from", "y"))
    assert os.listdir(mount.key("from")) == []
