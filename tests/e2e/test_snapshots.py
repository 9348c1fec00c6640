# SPDX-License-Identifier: Apache-2.0
"""Checkpoints in Mooncake's format: taken, shown, copied away, restored."""
import os
import pty
import shutil
import signal
import subprocess
import time

import msgpack
import pytest
import zstandard
from harness import MASTER, Master, Mount, Rpc, RpcError, free_port, run, wait_until, write

DATA = os.path.join(os.path.dirname(__file__), "../data/snapshot")


def unpack(frame):
    return msgpack.unpackb(zstandard.ZstdDecompressor().decompressobj().decompress(frame), raw=True,
                           strict_map_key=False)


def read_snapshot(directory):
    """What an independent reader finds: {(tenant, key): object}."""
    m = msgpack.unpackb(open(os.path.join(directory, "metadata"), "rb").read(), raw=True,
                        strict_map_key=False)
    out = {}
    for frame in m[b"shards"].values():
        assert zstandard.frame_content_size(frame) > 0
        entries = unpack(frame)[b"metadata"]
        assert entries == sorted(entries, key=lambda e: (e[0], e[1]))
        for tenant, key, obj in entries:
            out[(tenant, key)] = obj
    return out


def test_snapshot_is_mooncakes_format(mount):
    for i in range(200):
        write(mount.key(f"k{i}"), b"x" * i)
    ident = mount.snapshot()
    d = os.path.join(mount.mnt, "snapshots", ident)
    assert set(os.listdir(d)) == {"metadata", "segments", "task_manager", "manifest.txt",
                                  "descriptor.txt", "mooncakefs"}
    assert open(d + "/manifest.txt").read() == f"messagepack|1.0.0|{ident}"
    seq, view, created = open(d + "/descriptor.txt").read().split("|")
    assert abs(int(created) / 1000 - time.time()) < 100
    objects = read_snapshot(d)
    assert len(objects) == 200
    o = objects[(b"default", b"k7")]
    assert o[2] == 7 and o[6] == 1 and o[8][2] == 2 and o[8][1] == 3
    assert set(unpack(open(d + "/segments", "rb").read())) == {b"ma", b"an", b"ms", b"cs", b"ld"}
    assert unpack(open(d + "/task_manager", "rb").read()) == []
    assert os.readlink(os.path.join(mount.mnt, "snapshots/latest")) == ident


def test_snapshots_are_read_only(mount):
    ident = mount.snapshot()
    d = os.path.join(mount.mnt, "snapshots", ident)
    for action in (lambda: os.unlink(d + "/metadata"), lambda: open(d + "/metadata", "ab"),
                   lambda: os.rename(d, d + "x"), lambda: os.mkdir(d + "/y")):
        with pytest.raises(OSError):
            action()


def test_sigusr1_and_interval(world):
    snaps = world.path("snaps")
    master = Master(world, "--enable_snapshot", "--snapshot_interval_seconds=1", snapshots=snaps)
    root = os.path.join(snaps, "mooncake_master_snapshot/mooncake_cluster")
    wait_until(lambda: os.path.exists(root + "/latest.txt"), what="first snapshot")
    first = open(root + "/latest.txt").read()
    master.process.send_signal(signal.SIGUSR1)
    wait_until(lambda: open(root + "/latest.txt").read() != first, what="second snapshot")


def test_retention(mount):
    ids = [mount.snapshot() for _ in range(4)]
    listed = sorted(os.listdir(os.path.join(mount.mnt, "snapshots")))
    assert listed == sorted(ids[-2:]) + ["latest"]


def test_restore_with_fallback(world):
    """A damaged newest snapshot costs a line in the log and the next older one."""
    snaps = world.path("snaps")
    flags = ["--enable_snapshot", "--enable_snapshot_restore"]
    master = Master(world, *flags, snapshots=snaps)
    m = Mount(world, source=master.address)
    write(m.key("first"), b"1")
    one = m.snapshot()
    write(m.key("second"), b"2")
    two = m.snapshot()
    m.umount()
    master.kill()
    root = os.path.join(snaps, "mooncake_master_snapshot/mooncake_cluster")
    path = os.path.join(root, two, "metadata")
    data = open(path, "rb").read()
    for damage in (data[:len(data) // 2], b"", b"\xc1" + data[1:],
                   data[:60] + b"\xff" * 20 + data[80:]):
        open(path, "wb").write(damage)
        open(master.log, "w").close()
        master.start()
        with Rpc(master.address) as rpc:
            assert [e[0] for e in rpc.call("List", 0, "default", "", 0, 100)[1]] == [b"first"]
        text = master.log_text()
        assert f"snapshot {two} cannot be restored" in text
        assert f"snapshot {one} restored" in text
        master.kill()


def test_restored_objects_wait_for_their_node(world):
    """Kept whatever their lease; readable when the node comes; gone when it comes without them."""
    snaps = world.path("snaps")
    flags = ["--enable_snapshot", "--enable_snapshot_restore"]
    master = Master(world, *flags, snapshots=snaps)
    m = Mount(world, source=master.address)
    write(m.key("kept"), b"kept")
    write(m.key("deleted-later"), b"x")
    m.snapshot()
    os.unlink(m.key("deleted-later"))
    write(m.key("written-later"), b"later")
    master.kill()
    m.kill()
    master.start()
    with Rpc(master.address) as rpc:
        o = rpc.call("GetReplicaList", 0, "default", "kept")
        assert o[10][0][7] is False, "its node is away"
        names = {e[0] for e in rpc.call("List", 0, "default", "", 0, 100)[1]}
        assert names == {b"kept", b"deleted-later"}
    m.start()
    assert sorted(os.listdir(m.keys)) == ["kept", "written-later"]
    assert open(m.key("kept")).read() == "kept"
    assert open(m.key("written-later")).read() == "later"


def test_golden_snapshot_restores_whole(world):
    """A snapshot that Mooncake took: every object with a complete replica is kept, and goes out again."""
    snaps = world.path("snaps")
    shutil.copytree(os.path.join(DATA, "mooncake_master_snapshot"),
                    os.path.join(snaps, "mooncake_master_snapshot"))
    root = os.path.join(snaps, "mooncake_master_snapshot/golden")
    latest = open(root + "/latest.txt").read()
    before = read_snapshot(os.path.join(root, latest))
    master = Master(world, "--enable_snapshot", "--enable_snapshot_restore",
                    "--cluster_id=golden", snapshots=snaps)
    complete = {k for k, o in before.items() if any(r[1] == 3 for r in o[8:8 + o[6]])}
    assert f"{len(complete)} objects kept" in master.log_text()
    with Rpc(master.address) as rpc:
        assert rpc.call("Status")[b"objects"] == len(complete)
        ident = rpc.call("SnapshotCreate")[0].decode()
        wait_until(lambda: not rpc.call("SnapshotState")[0], what="snapshot")
    after = read_snapshot(os.path.join(root, ident))
    assert set(after) == complete
    for k in complete:
        b, a = before[k], after[k]
        n = b[6]
        assert a[6] == n and a[0:3] == b[0:3] and a[7] == b[7]
        assert sorted(a[8:8 + n], key=lambda r: r[0])[0][0] == sorted(b[8:8 + n],
                                                                    key=lambda r: r[0])[0][0]
        for x, y in zip(sorted(a[8:8 + n], key=lambda r: r[0]),
                        sorted(b[8:8 + n], key=lambda r: r[0])):
            if y[2] != 2:
                assert x == y
        assert a[8 + n] == b[8 + n] and a[9 + n] == b[9 + n]
        assert a[10 + n:] == b[10 + n:]
    for f in ("segments", "task_manager"):
        assert unpack(open(os.path.join(root, ident, f), "rb").read()) == \
            unpack(open(os.path.join(root, latest, f), "rb").read())


def test_rsynced_snapshot_restores_elsewhere(world):
    a = Mount(world, name="a")
    for i in range(50):
        write(a.key(f"k{i}"), str(i).encode())
    ident = a.snapshot()
    backup = world.path("backup/mooncake_master_snapshot/mooncake_cluster")
    os.makedirs(backup)
    run("rsync", "-a", os.path.join(a.mnt, "snapshots", ident), backup + "/")
    assert b"" == run("rsync", "-ai", os.path.join(a.mnt, "snapshots", ident), backup + "/").stdout
    master = Master(world, "--enable_snapshot_restore", snapshots=world.path("backup"))
    with Rpc(master.address) as rpc:
        assert rpc.call("Status")[b"objects"] == 50


def test_snapshot_methods_refuse_other_paths(world):
    master = Master(world, "--enable_snapshot", snapshots=world.path("snaps"))
    with Rpc(master.address) as rpc:
        for params in (["../../etc", "passwd"], ["20260101_000000_000", "../../x"],
                       ["20260101_000000_000", "/etc/passwd"], ["", ""]):
            with pytest.raises(RpcError):
                rpc.call("SnapshotRead", *params, 0, 100)


def test_progress_on_a_terminal(world):
    """A master that is started on a terminal draws a bar while it restores, and clears it."""
    m = Mount(world)
    for i in range(30):
        write(m.key(f"k{i}"), b"x")
    ident = m.snapshot()
    m.umount()
    ours, theirs = pty.openpty()
    port = free_port()
    p = subprocess.Popen([MASTER, f"--rpc_port={port}", "--metrics_port=0",
                          "--enable_snapshot_restore",
                          f"--snapshot_local_path={m.state}/snapshots"], stderr=theirs)
    world.processes.append(p)
    os.close(theirs)
    text = b""
    while b"serving" not in text:
        text += os.read(ours, 4096)
    os.close(ours)
    bar = text.index(f"restoring {ident} [".encode())
    assert text.index(b"\r\x1b[K", bar) < text.index(f"snapshot {ident} restored".encode())
    assert b"30 objects kept, 0 dropped (0 without a complete replica, 0 there already)" in text
