# SPDX-License-Identifier: Apache-2.0
"""Two nodes on one master."""
import errno
import os
import signal
import subprocess
import time

import pytest
from harness import Master, Mount, Rpc, freeze, read, run, wait_until, write


@pytest.fixture
def pair(world):
    master = Master(world)
    a = Mount(world, source=master.address, name="a", options=["lease_wait=20s"])
    b = Mount(world, source=master.address, name="b", options=["listen=127.0.0.1:0"])
    return master, a, b


@pytest.mark.parametrize("size", [10, 100000, 9 << 20])
def test_remote_read(pair, size):
    _, a, b = pair
    data = os.urandom(size)
    write(a.key("from-a"), data)
    write(b.key("from-b"), data)
    assert read(b.key("from-a")) == data
    assert read(a.key("from-b")) == data
    assert sorted(os.listdir(a.keys)) == sorted(os.listdir(b.keys)) == ["from-a", "from-b"]


def test_overwrite_on_the_other_node(pair):
    _, a, b = pair
    write(a.key("f"), b"a" * 100000)
    assert read(b.key("f")) == b"a" * 100000
    write(b.key("f"), b"b" * 50000)
    assert read(a.key("f")) == b"b" * 50000
    # The first node has dropped what is nobody's any more.
    wait_until(lambda: Rpc(a.config()["node"]).call("NodeStatus")[b"objects"] == 0)


def test_append_rename_unlink_across(pair):
    _, a, b = pair
    write(a.key("f"), b"start")
    with open(b.key("f"), "ab") as f:
        f.write(b"-end")
    assert read(a.key("f")) == b"start-end"
    os.rename(a.key("f"), a.key("g"))
    assert read(b.key("g")) == b"start-end" and not os.path.exists(b.key("f"))
    os.unlink(b.key("g"))
    assert not os.path.exists(a.key("g"))


def test_away_node_gives_ehostdown_and_comes_back(pair):
    _, a, b = pair
    write(a.key("f"), b"data")
    a.kill()
    wait_until(lambda: any(not n[3] for n in Rpc(b.config()["master"]).call("Nodes")))
    assert "f" in os.listdir(b.keys)
    with pytest.raises(OSError) as e:
        read(b.key("f"))
    assert e.value.errno == errno.EHOSTDOWN
    a.start()
    assert read(b.key("f")) == b"data"


def test_removed_while_its_node_was_away(pair):
    """A node that comes back with what was removed meanwhile drops it."""
    _, a, b = pair
    write(a.key("f"), b"data")
    write(a.key("stays"), b"data")
    a.kill()
    os.unlink(b.key("f"))
    a.start()
    assert os.listdir(a.keys) == ["stays"]
    wait_until(lambda: Rpc(a.config()["node"]).call("NodeStatus")[b"objects"] == 1)


def test_many_removed_while_their_node_was_away(pair):
    """More than one message of the inventory is answered with "nobody's", while the node still scans its store."""
    _, a, b = pair
    count = 4500
    for i in range(count):
        write(a.key(f"{i:05d}"), b"data")
    a.kill()
    for i in range(0, count, 2):
        os.unlink(b.key(f"{i:05d}"))
    a.start()
    assert sorted(os.listdir(a.keys)) == [f"{i:05d}" for i in range(1, count, 2)]
    wait_until(lambda: Rpc(a.config()["node"]).call("NodeStatus")[b"objects"] == count // 2)


def test_interrupted_wait_returns(pair):
    """Ctrl-C ends a read that waits for the master."""
    master, a, _ = pair
    write(a.key("f"), b"data")
    freeze(master.process.pid)
    try:
        p = subprocess.Popen(["cat", a.key("other")], stderr=subprocess.PIPE)
        time.sleep(0.5)
        assert p.poll() is None
        p.send_signal(signal.SIGINT)
        p.wait(5)
    finally:
        os.kill(master.process.pid, signal.SIGCONT)


def test_lease_of_a_dead_mount_is_waited_out(world):
    """Who cannot be asked to give a lease up is waited for, at most its length."""
    master = Master(world, "--default_kv_lease_ttl=1500")
    a = Mount(world, source=master.address, name="a")
    b = Mount(world, source=master.address, name="b")
    write(a.key("f"), b"old")
    assert read(b.key("f")) == b"old"
    pid = b.pid()
    freeze(pid)
    try:
        write(a.key("f"), b"new")
        assert read(a.key("f")) == b"new"
    finally:
        os.kill(pid, signal.SIGCONT)
    assert read(b.key("f")) == b"new"
