# SPDX-License-Identifier: Apache-2.0
"""Whatever is restarted, in whatever order and however it ended: every closed object is there."""
import errno
import hashlib
import os
import random
import signal
import subprocess
import sys

import pytest
from harness import Master, Mount, wait_until


def fill(mount, n=60, seed=1):
    r = random.Random(seed)
    want = {}
    for i in range(n):
        name = f"d{i % 5}/k{i}"
        os.makedirs(mount.key(f"d{i % 5}"), exist_ok=True)
        data = r.randbytes(r.choice([0, 1, 100, 5000, 70000, 1200000]))
        with open(mount.key(name), "wb") as f:
            f.write(data)
        want[name] = hashlib.sha256(data).hexdigest()
    return want


def found(mount):
    got = {}
    for root, _, files in os.walk(mount.keys):
        for f in files:
            p = os.path.join(root, f)
            got[os.path.relpath(p, mount.keys)] = hashlib.sha256(open(p, "rb").read()).hexdigest()
    return got


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_standalone(mount, end):
    want = fill(mount)
    for _ in range(3):
        mount.kill(end)
        mount.start()
        assert found(mount) == want


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("order", ["master", "daemon", "master-daemon", "daemon-master"])
def test_cluster_node_and_master_without_snapshot(world, order, end):
    """The node re-registers what it stores under its stable id."""
    master = Master(world)
    m = Mount(world, source=master.address)
    want = fill(m)
    node = open(os.path.join(m.state, "node_id")).read()
    for what in order.split("-"):
        if what == "master":
            master.kill(end)
        else:
            m.kill(end)
    if "master" in order:
        master.start()
    if "daemon" in order:
        m.start()
    assert found(m) == want
    assert open(os.path.join(m.state, "node_id")).read() == node
    assert m.config()["node_id"] == node.strip()


def test_changes_survive_too(mount):
    """Removals, renames and replacements are not undone by a restart."""
    want = fill(mount, 30)
    names = sorted(want)
    for n in names[:10]:
        os.unlink(mount.key(n))
        del want[n]
    for n in names[10:20]:
        os.rename(mount.key(n), mount.key(n + ".renamed"))
        want[n + ".renamed"] = want.pop(n)
    for n in names[20:25]:
        with open(mount.key(n), "wb") as f:
            f.write(b"replaced " + n.encode())
        want[n] = hashlib.sha256(b"replaced " + n.encode()).hexdigest()
    mount.kill()
    mount.start()
    assert found(mount) == want
    mount.umount()
    mount.start()
    assert found(mount) == want


WRITER = """
import sys, os, random
keys, seed = sys.argv[1], int(sys.argv[2])
r = random.Random(seed)
n = 0
while True:
    name = f"{seed}-{n % 40}"
    data = r.randbytes(r.choice([10, 3000, 1100000]))
    try:
        with open(os.path.join(keys, name), "wb") as f:
            f.write(data)
    except OSError:
        sys.exit(0)
    import hashlib
    print(name, hashlib.sha256(data).hexdigest(), flush=True)
    n += 1
"""


def test_killed_while_writing(mount):
    """After each of several kills in the middle of writing, every file whose close returned is whole."""
    for round_ in range(3):
        procs = [subprocess.Popen([sys.executable, "-c", WRITER, mount.keys, str(round_ * 10 + i)],
                                  stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
                 for i in range(3)]
        lines = [p.stdout.readline() for p in procs for _ in range(15)]
        assert all(lines)
        mount.kill()
        closed = {}
        for p in procs:
            out, _ = p.communicate()
            for line in [l for l in lines if l.split(b"-")[0] == out.split(b"-")[0]] + \
                    out.splitlines():
                name, digest = line.decode().split()
                closed.setdefault(name, []).append(digest)
        mount.start()
        got = found(mount)
        for name, digests in closed.items():
            # The last close, or the write after it that was just being published.
            assert name in got
            if got[name] not in digests:
                assert got[name], name
            else:
                assert got[name] == digests[-1]


def test_corrupt_meta_of_a_foreign_bucket_is_set_aside(mount):
    want = fill(mount, 10)
    mount.umount()
    backend = os.path.join(mount.state, "backend")
    open(os.path.join(backend, "77.meta"), "wb").write(b"\xff" * 50)
    open(os.path.join(backend, "77.bucket"), "wb").write(b"data")
    open(os.path.join(backend, "notes.txt"), "wb").write(b"somebody's")
    mount.start()
    assert found(mount) == want
    lost = os.listdir(os.path.join(backend, "lost+found"))
    assert sorted(lost) == ["77.bucket", "77.meta", "notes.txt"]
    assert "77.meta" in mount.log_text()


def test_torn_journal(mount):
    want = fill(mount, 40)
    mount.kill()
    backend = os.path.join(mount.state, "backend")
    journals = [f for f in os.listdir(backend) if f.endswith(".journal")]
    assert journals
    with open(os.path.join(backend, journals[0]), "ab") as f:
        f.write(b"\x12\x34\x56\x78\xff\x00\x00\x00\x01torn")
    mount.start()
    assert found(mount) == want


def test_missing_meta_is_written_again(mount):
    want = fill(mount, 10)
    mount.umount()
    backend = os.path.join(mount.state, "backend")
    for f in os.listdir(backend):
        if f.endswith(".meta"):
            os.unlink(os.path.join(backend, f))
    mount.start()
    assert found(mount) == want
    mount.umount()
    names = os.listdir(backend)
    assert sum(f.endswith(".meta") for f in names) == sum(f.endswith(".bucket") for f in names)


def test_damaged_bytes_are_an_error_not_a_wrong_answer(mount):
    """A bucket that lost its tail gives EIO or ENOENT, and nothing else suffers."""
    with open(mount.key("small"), "wb") as f:
        f.write(b"s" * 1000)
    with open(mount.key("big"), "wb") as f:
        f.write(b"b" * (2 << 20))
    mount.umount()
    backend = os.path.join(mount.state, "backend")
    big = [f for f in os.listdir(backend)
           if f.endswith(".bucket") and os.path.getsize(os.path.join(backend, f)) == 2 << 20]
    os.truncate(os.path.join(backend, big[0]), 1 << 20)
    mount.start()
    assert open(mount.key("small"), "rb").read() == b"s" * 1000
    with pytest.raises(OSError):
        open(mount.key("big"), "rb").read()


def test_a_listing_waits_for_the_inventory(world):
    """A new master that does not know yet what the node stores lists nothing less than that."""
    master = Master(world)
    m = Mount(world, source=master.address)
    names = {f"{i:05}" for i in range(3000)}
    for n in names:
        with open(m.key(n), "wb"):
            pass
    for _ in range(5):
        with os.scandir(m.keys) as listing:  # opened with the old master, read from the new one
            master.kill()
            master.start(wait=False)
            assert {e.name for e in listing} == names


def test_a_listing_does_not_go_on_after_a_restart(world):
    """The new master's places are others: better an error than names left out, which rsync --delete would take for removed."""
    master = Master(world)
    m = Mount(world, source=master.address)
    names = {f"{i:05}" for i in range(10000)}  # more than what is fetched ahead
    for n in names:
        with open(m.key(n), "wb"):
            pass
    with os.scandir(m.keys) as listing:
        next(listing)
        master.kill()
        master.start()
        with pytest.raises(OSError) as e:
            list(listing)
    assert e.value.errno == errno.ESTALE
    assert set(os.listdir(m.keys)) == names
