# SPDX-License-Identifier: Apache-2.0
"""Objects in memory segments under new names: by RPC, on a mount, through a snapshot and the master's death."""
import os

from harness import Master, Mount, RpcError, read, wait_until, write
from test_rename import RENAME_EXCHANGE, renameat2
from test_segments import TENANT, Node, fails, segments
from test_segments_snapshot import assert_apart, fill, ranges, taken


def rename(node, key, to, size):
    version = node.rpc.call("GetReplicaList", 0, TENANT, key)[0]
    new = node.call("PutStart", TENANT, to, 0, True)[0]
    node.call("PutEnd", TENANT, to, new, size, 0o644, 0, 0, 0, 1, False, key, version)
    return new


def exchange(node, a, b):
    versions = [node.rpc.call("GetReplicaList", 0, TENANT, k)[0] for k in (a, b)]
    new = [node.call("PutStart", TENANT, k, 0, True)[0] for k in (a, b)]
    node.call("Exchange", TENANT, a, versions[0], new[0], b, versions[1], new[1])


def test_renamed_and_exchanged_objects_survive_the_master(world):
    snaps = world.path("snaps")
    master = Master(world, "--enable_snapshot", "--enable_snapshot_restore", "--client_ttl=60",
                    "--eviction_high_watermark_ratio=1", "--default_kv_lease_ttl=500", snapshots=snaps)
    a, b = Node(master, 1), Node(master, 2)
    one, two = a.mount(size=50_000), b.mount(size=50_000)
    for i in range(8):
        a.put(f"k{i}", 1000 + i, 1 + i % 2, hard_pin=True, group=f"g{i % 3}")
    before = ranges(a, [f"k{i}" for i in range(8)])
    used = {s: segments(a.rpc)[s]["used"] for s in (one, two)}
    rename(a, "k0", "dir/new", 1000)
    assert "1001 bytes" in fails(-600, rename, a, "k1", "other", 1000)
    exchange(a, "k2", "k3")
    # Readers are recalled first, as for any rename.
    a.get("k4")
    fails(-706, rename, b, "k4", "elsewhere", 1004)
    rename(a, "k4", "k5", 1004)  # replaces
    expect = {"dir/new": before["k0"], "k1": before["k1"], "k2": before["k3"], "k3": before["k2"],
              "k5": before["k4"], "k6": before["k6"], "k7": before["k7"]}

    def holds():
        assert ranges(a, expect) == expect
        found = {k: a.rpc.call("GetReplicaList", 0, TENANT, k) for k in expect}
        assert {k: o[1] for k, o in found.items()} == {k: r[0][2] for k, r in expect.items()}
        assert all(o[8] for o in found.values())
        assert {k: o[12] for k, o in found.items()} == {
            "dir/new": b"g0", "k1": b"g1", "k2": b"g0", "k3": b"g2", "k5": b"g1", "k6": b"g0", "k7": b"g1"}
        assert not a.exists("k0") and not a.exists("k4")

    holds()
    lost = dict((r[0], r[2]) for r in before["k5"])
    wait_until(lambda: all(segments(a.rpc)[s]["used"] == used[s] - lost.get(f"seg-{n}".encode(), 0)
                           for n, s in ((1, one), (2, two))), what="release of what was replaced")
    tenants = {t: (objects, size) for t, objects, size in a.rpc.call("Tenants")}
    assert tenants[TENANT.encode()] == (7, sum(r[0][2] for r in expect.values()))
    taken(a.rpc)
    master.kill()
    master.start()
    a.register()
    b.register()
    a.mount(size=50_000)
    b.mount(size=50_000)
    holds()
    new = fill(a, "new", 700)
    assert new
    assert_apart(expect.values(), new.values())

    def renamed():
        try:
            return rename(a, "dir/new", "back", 1000)
        except RpcError as e:  # a new master does not know its predecessor's leases
            assert e.code == -706
            return False

    wait_until(renamed, what="rename")
    assert ranges(a, ["back"]) == {"back": before["k0"]}
    a.call("Remove", TENANT, "back", 0, True)
    assert not a.exists("back")


def test_on_a_mount(world):
    """A mount renames what no node stores, and exchanges it with files of its own."""
    master = Master(world, "--default_kv_lease_ttl=300", "--eviction_high_watermark_ratio=1")
    mount = Mount(world, source=master.address)
    a = Node(master)
    a.mount()
    for key, size in (("m1", 100), ("m2", 200), ("m3", 300)):
        a.put(key, size)
    before = ranges(a, ["m1", "m2", "m3"])
    os.rename(mount.key("m1"), mount.key("new"))
    assert ranges(a, ["new"]) == {"new": before["m1"]} and os.stat(mount.key("new")).st_size == 100
    assert not os.path.exists(mount.key("m1"))
    renameat2(mount.key("m2"), mount.key("m3"), RENAME_EXCHANGE)
    assert ranges(a, ["m2", "m3"]) == {"m2": before["m3"], "m3": before["m2"]}

    write(mount.key("file"), b"content")
    renameat2(mount.key("file"), mount.key("m2"), RENAME_EXCHANGE)
    assert read(mount.key("m2")) == b"content"
    assert ranges(a, ["file", "m2"]) == {"file": before["m3"], "m2": []}
    assert [r[1] for r in a.get("file")] == [0] and [r[1] for r in a.get("m2")] == [2]
    os.rename(mount.key("m3"), mount.key("m2"))  # over a file
    assert ranges(a, ["m2"]) == {"m2": before["m2"]} and [r[1] for r in a.get("m2")] == [0]
    write(mount.key("file2"), b"more content")
    os.rename(mount.key("file2"), mount.key("m2"))  # and the other way
    assert read(mount.key("m2")) == b"more content" and [r[1] for r in a.get("m2")] == [2]
    assert sorted(os.listdir(os.path.dirname(mount.key("m2")))) == ["file", "m2", "new"]
    wait_until(lambda: segments(a.rpc)["5-1"]["used"] == 400, what="release of what was replaced")
    mount.kill()
    mount.start()
    assert read(mount.key("m2")) == b"more content"
    assert ranges(a, ["new", "file"]) == {"new": before["m1"], "file": before["m3"]}
