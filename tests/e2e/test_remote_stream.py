# SPDX-License-Identifier: Apache-2.0
"""What another node stores is taken off the connection as it is read: content, order, and peers that die or stop."""
import os
import random
import signal
import threading
import time

import pytest
from harness import Master, Mount, Rpc, read, wait_until, write

MIB = 1 << 20
STREAMS_MAX = 64  # connections with something left on them that a node keeps


def two_nodes(world, *options):
    master = Master(world)
    a = Mount(world, source=master.address, name="a")
    b = Mount(world, source=master.address, name="b", options=options)
    return a, b


def rss(mount):
    for line in open(f"/proc/{mount.pid()}/status"):
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) << 10


def sockets(mount):
    fds = f"/proc/{mount.pid()}/fd"
    count = 0
    for fd in os.listdir(fds):
        try:
            count += os.readlink(os.path.join(fds, fd)).startswith("socket:")
        except FileNotFoundError:
            pass
    return count


@pytest.mark.parametrize("size", [0, 1, 4097, 4 * MIB - 1, 4 * MIB, 4 * MIB + 1, 12 * MIB - 1, 12 * MIB, 12 * MIB + 1, 37 * MIB + 5])
def test_sizes_around_what_is_asked_for_at_once(world, size):
    a, b = two_nodes(world)
    data = random.Random(size).randbytes(size)
    write(a.key("f"), data)
    assert read(b.key("f")) == data


def test_reading_here_and_there(world):
    a, b = two_nodes(world)
    data = random.Random(4).randbytes(40 * MIB)
    write(a.key("f"), data)
    rng = random.Random(5)
    with open(b.key("f"), "rb", buffering=0) as f:
        for _ in range(150):
            off, n = rng.randrange(len(data)), rng.choice([1, 5000, 200000, 3 * MIB])
            assert os.pread(f.fileno(), n, off) == data[off:off + n]


def test_little_of_a_large_object_fetches_little(world):
    a, b = two_nodes(world)
    write(a.key("f"), b"x" * (64 * MIB))
    with open(b.key("f"), "rb", buffering=0) as f:
        for off in (50 * MIB, 20 * MIB, 40 * MIB):
            assert os.pread(f.fileno(), 100, off) == b"x" * 100
    assert Rpc(b.config()["node"]).call("NodeStatus")[b"remote_bytes"] < 8 * MIB


def test_a_peer_is_killed_in_the_middle(world):
    a, b = two_nodes(world, "rpc_timeout=1s")
    data = random.Random(6).randbytes(48 * MIB)
    write(a.key("f"), data)
    with open(b.key("f"), "rb", buffering=0) as f:
        assert f.read(MIB) == data[:MIB]
        os.kill(a.pid(), signal.SIGKILL)
        got = MIB
        with pytest.raises(OSError):
            while piece := f.read(MIB):
                assert piece == data[got:got + len(piece)]
                got += len(piece)
        assert got < len(data)


def test_a_peer_stops_in_the_middle(world):
    """The read fails in time, and goes on when the peer does."""
    a, b = two_nodes(world, "rpc_timeout=1s")
    data = random.Random(7).randbytes(48 * MIB)
    write(a.key("f"), data)
    with open(b.key("f"), "rb", buffering=0) as f:
        assert f.read(MIB) == data[:MIB]
        os.kill(a.pid(), signal.SIGSTOP)
        try:
            with pytest.raises(OSError):
                while f.read(MIB):
                    pass
        finally:
            os.kill(a.pid(), signal.SIGCONT)
        time.sleep(1.5)
        assert os.pread(f.fileno(), len(data), 0) == data


def test_many_open_files_keep_little(world):
    a, b = two_nodes(world)
    data = random.Random(8).randbytes(16 * MIB)
    count = 2 * STREAMS_MAX
    for i in range(8):
        write(a.key(f"f{i}"), data)
    assert read(b.key("f0")) == data
    before = rss(b)
    files = [open(b.key(f"f{i % 8}"), "rb", buffering=0) for i in range(count)]
    for i, f in enumerate(files):
        os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        assert os.pread(f.fileno(), 1000, i * 4096) == data[i * 4096:i * 4096 + 1000]
    assert rss(b) - before < 64 * MIB
    for f in files[:8]:
        assert f.read() == data
    for f in files:
        f.close()


def test_what_nobody_reads_on_is_let_go(world):
    """Its connections end; who reads on later gets the rest all the same."""
    a, b = two_nodes(world)
    data = random.Random(10).randbytes(16 * MIB)
    write(a.key("f"), data)
    before = sockets(b)
    files = [open(b.key("f"), "rb", buffering=0) for _ in range(10)]
    for i, f in enumerate(files):
        os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        assert os.pread(f.fileno(), 1000, 0) == data[:1000]
    assert sockets(b) >= before + 5
    wait_until(lambda: sockets(b) <= before + 4, 30, "idle connections to end")
    for f in files:
        assert f.read() == data
        f.close()


def test_many_read_at_once(world):
    a, b = two_nodes(world)
    data = random.Random(9).randbytes(20 * MIB)
    for i in range(8):
        write(a.key(f"f{i}"), data)
    bad = []
    threads = [threading.Thread(target=lambda i=i: read(b.key(f"f{i % 8}")) == data or bad.append(i)) for i in range(16)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not bad
