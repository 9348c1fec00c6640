# SPDX-License-Identifier: Apache-2.0
"""Ten thousand connections that say nothing cost nothing: little memory, no work, and no time of those who ask."""
import os
import resource
import socket
import time

import pytest
from harness import PATIENCE, Master, Rpc

COUNT = 10000


def ticks(pid):
    fields = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
    return int(fields[11]) + int(fields[12])


def rss_kib(pid):
    return int(next(line for line in open(f"/proc/{pid}/status") if line.startswith("VmRSS")).split()[1])


@pytest.fixture
def crowd():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    want = COUNT + 1000
    if hard != resource.RLIM_INFINITY and hard < want:
        pytest.fail(f"this machine allows {hard} descriptors; {want} are needed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, want), hard))
    socks = []
    yield socks
    for s in socks:
        s.close()
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_ten_thousand_idle_connections(world, crowd):
    master = Master(world, "--enable_snapshot", snapshots=world.path("snapshots"))
    pid = master.process.pid
    before = rss_kib(pid)
    for _ in range(COUNT):
        s = socket.create_connection(("127.0.0.1", master.port), timeout=20 * PATIENCE)
        crowd.append(s)
    with Rpc(master.address) as rpc:
        assert rpc.call("Status")[b"rpc_connections"] >= COUNT
        if PATIENCE == 1:  # a sanitizer keeps more of everything
            assert (rss_kib(pid) - before) * 1024 < COUNT * 1024
            idle = ticks(pid)
            time.sleep(2)
            assert ticks(pid) - idle <= 10, "of 200"
        # Half of them had begun to say something.
        for s in crowd[::2]:
            s.sendall(b"\x94\x00\x01\xa6Status")
        for _ in range(100):
            rpc.call("Status")
        # A checkpoint's child has nothing to do with them.
        rpc.call("SnapshotCreate")
        while rpc.call("SnapshotState")[0]:
            time.sleep(0.05)
        assert rpc.call("SnapshotState")[2] == b""
        for s in crowd[1::2]:
            s.close()
        for s in crowd[::2]:
            s.sendall(b"\x90")
        got = crowd[0].recv(100)
        assert got.startswith(b"\x94\x01\x01\xc0"), got
    assert os.path.exists(f"/proc/{pid}")
