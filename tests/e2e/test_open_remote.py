# SPDX-License-Identifier: Apache-2.0
"""An open file whose bytes another node stores goes on reading what it opened, whatever becomes of its key."""
import ctypes
import os
import random
import subprocess
import sys
import time

import pytest
from harness import Master, Mount, Rpc, wait_until, write

SIZE = 12 << 20  # more than is read ahead in one piece


@pytest.fixture
def pair(world):
    master = Master(world)
    return pair_of(world, master)


def pair_of(world, master):
    a = Mount(world, source=master.address, name="a")
    b = Mount(world, source=master.address, name="b")
    return master, a, b


def held(mount):
    return Rpc(mount.config()["node"]).call("NodeStatus")[b"held_replicas"]


def replace(owner, _, key):
    write(owner.key(key), b"new" * 1000)


def replace_here(_, reader, key):
    """By another process of the reader's own mount: its lease does not stand in its way."""
    subprocess.run([sys.executable, "-c", "import sys; open(sys.argv[1], 'wb').write(b'new')", reader.key(key)], check=True)


def remove(owner, _, key):
    os.unlink(owner.key(key))


def rename(owner, _, key):
    os.rename(owner.key(key), owner.key(key + ".moved"))


def rename_over(owner, _, key):
    write(owner.key("other"), b"other")
    os.rename(owner.key("other"), owner.key(key))


def exchange(owner, _, key):
    write(owner.key("other"), b"other")
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(-100, owner.key("other").encode(), -100, owner.key(key).encode(), 2):
        raise OSError(ctypes.get_errno(), "renameat2")


CHANGES = [replace, replace_here, remove, rename, rename_over, exchange]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("wait", ["at once", "after its lease"])
def test_the_rest_is_read(world, change, wait):
    ttl = 60000 if wait == "at once" else 400
    _, a, b = pair_of(world, Master(world, f"--default_kv_lease_ttl={ttl}"))
    data = random.Random(1).randbytes(SIZE)
    write(a.key("f"), data)
    with open(b.key("f"), "rb", buffering=0) as f:
        assert f.read(1000) == data[:1000]
        if wait != "at once":
            time.sleep(1.2)
        change(a, b, "f")
        change(a, b, "f") if change is replace else None
        rest = b""
        while piece := f.read(1 << 20):
            rest += piece
        assert rest == data[1000:]
        assert os.fstat(f.fileno()).st_size == SIZE
    wait_until(lambda: held(a) == 0, what="end of the hold")


def test_not_a_byte_was_read_before(pair):
    _, a, b = pair
    data = random.Random(2).randbytes(SIZE)
    write(a.key("f"), data)
    with open(b.key("f"), "rb", buffering=0) as f:
        os.unlink(a.key("f"))
        got = b""
        while piece := f.read(1 << 20):
            got += piece
        assert got == data
    assert not os.path.exists(b.key("f"))


def test_through_a_restart_of_the_master(pair):
    master, a, b = pair
    data = random.Random(3).randbytes(SIZE)
    write(a.key("f"), data)
    with open(b.key("f"), "rb", buffering=0) as f:
        assert f.read(1000) == data[:1000]
        master.kill()
        master.start()
        write(a.key("f"), b"new")
        with open(b.key("f"), "rb") as g:
            assert g.read() == b"new"
        f.seek(SIZE - 1000)
        assert f.read(1000) == data[-1000:]


def test_short_opens_ask_for_nothing(pair):
    _, a, b = pair
    write(a.key("f"), b"x" * 100000)
    for _ in range(50):
        with open(b.key("f"), "rb") as f:
            assert len(f.read()) == 100000
    assert held(a) == 0


def test_a_dead_reader_holds_nothing_for_ever(pair):
    """Its hold is for a time; here: as short as one can be asked for."""
    _, a, b = pair
    write(a.key("f"), b"x" * 100000)
    version = int(os.getxattr(a.key("f"), "user.mooncake.version"))
    rpc = Rpc(a.config()["node"])
    assert rpc.call("HoldReplica", "somebody", "default", "f", version, 500) is None
    os.unlink(a.key("f"))
    assert rpc.call("ReadReplica", "default", "f", version, 99990, 100) == b"x" * 10
    wait_until(lambda: held(a) == 0, 30, "end of the hold")
    with pytest.raises(Exception, match="not stored|gone|no such"):
        rpc.call("ReadReplica", "default", "f", version, 0, 10)


def test_wrong_holds(pair):
    _, a, _ = pair
    rpc = Rpc(a.config()["node"])
    for params in ([], ["h"], ["h", "default", "f", 1], ["h" * 100, "default", "f", 1, 1], ["h", "default", "f", -1, 1],
                   ["h", "default", "f", 1, "x"], ["h", "default", "f", 12345, 1000]):
        with pytest.raises(Exception):
            rpc.call("HoldReplica", *params)
    assert rpc.call("HoldReplica", "h", "default", "f", 12345, 0) is None
    assert held(a) == 0
