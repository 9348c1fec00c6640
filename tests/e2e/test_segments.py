# SPDX-License-Identifier: Apache-2.0
"""Memory segments: mounting, allocating, reading, freeing.  The test plays the nodes over RPC."""
import json
import time
import urllib.parse
import urllib.request

import pytest
from harness import CTL, MASTER, Master, Mount, Rpc, RpcError, free_port, run, wait_until

MB = 1 << 20
MEMORY, LOCAL_DISK = 0, 2
TENANT = "default"


class Node:
    """A node with memory, as any client would be one."""

    def __init__(self, master, number=1, name=None):
        self.master, self.number, self.name = master, number, name or f"node-{number}"
        self.register()

    def register(self):
        self.rpc = Rpc(self.master.address)
        self.session = self.rpc.call("Register", f"77-{self.number}", self.name, f"h{self.number}:1", 0, 0)[0]

    def call(self, method, *params):
        return self.rpc.call(method, self.session, *params)

    def ping(self):
        self.call("Ping", 0, 0, 0)

    def mount(self, segment=None, name=None, base=None, size=MB):
        segment = segment or f"5-{self.number}"
        self.call("MountSegment", segment, name or f"seg-{self.number}", base or self.number << 40, size,
                  f"10.0.0.{self.number}:7000")
        return segment

    def start(self, key, size, replicas=1, replace=False, **config):
        version, where = self.call("PutStart", TENANT, key, size, replace,
                                   {"replica_num": replicas, **config})
        return version, where

    def end(self, key, version, size):
        return self.call("PutEnd", TENANT, key, version, size, 0o644, 0, 0, 0, 1, False, None, 0)

    def put(self, key, size, replicas=1, **config):
        version, where = self.start(key, size, replicas, **config)
        self.end(key, version, size)
        return version, where

    def get(self, key, session=None):
        o = self.rpc.call("GetReplicaList", self.session if session is None else session, TENANT, key)
        return o[10]

    def exists(self, key):
        return self.rpc.call("ExistKey", 0, TENANT, key)


def segments(rpc):
    names = ("id", "name", "node", "endpoint", "base", "size", "used", "largest", "ranges", "state")
    return {row[0].decode(): dict(zip(names, row)) for row in rpc.call("GetAllSegments")}


def fails(code, fn, *args, **kw):
    with pytest.raises(RpcError) as e:
        fn(*args, **kw)
    assert e.value.code == code, e.value
    return e.value.text


def test_put_get_remove(world):
    master = Master(world, "--default_kv_lease_ttl=200")
    a, b = Node(master, 1), Node(master, 2)
    assert "no memory segment is mounted" in fails(-200, a.start, "k", 10)
    one, two = a.mount(), b.mount()
    a.mount()  # again, after a lost answer
    version, where = a.start("k", 1000, 2)
    assert sorted(w[1] for w in where) == [b"seg-1", b"seg-2"] and all(w[4] == 1000 for w in where)
    assert not a.exists("k")
    a.end("k", version, 1000)
    a.end("k", version, 1000)
    found = {r[8]: r for r in b.get("k")}
    for ident, name, endpoint, address, size in where:
        r = found[name]
        number = int(name.split(b"-")[1])
        assert r[0] == ident and r[1:4] == [MEMORY, 3, 1000] and r[9] == address and r[6] == endpoint
        assert r[4] == f"77-{number}".encode() and r[7] is True
        assert number << 40 <= address <= (number << 40) + MB - 1000
    assert segments(a.rpc)[one]["used"] == 1000 and segments(a.rpc)[two]["ranges"] == 1
    assert a.rpc.call("QuerySegment", "seg-1") == a.rpc.call("QuerySegment", one) != []
    fails(-101, a.rpc.call, "QuerySegment", "seg-9")

    # Remove waits for the lease of b, or for its word.
    fails(-706, a.call, "Remove", TENANT, "k", 0, False)
    assert segments(a.rpc)[one]["used"] == 1000
    b.call("RecallDone", [[TENANT, "k", version]])

    def removed():
        try:
            a.call("Remove", TENANT, "k", 0, False)
            return True
        except RpcError as e:
            assert e.code == -706
            return False

    wait_until(removed, what="removal")
    # What a itself may still be reading is free once its own lease has ended.
    wait_until(lambda: segments(a.rpc)[one]["used"] == 0, what="release")
    assert segments(a.rpc)[two]["ranges"] == 0


def test_replacing_keeps_the_old_range_for_its_lease(world):
    master = Master(world, "--default_kv_lease_ttl=1500", "--eviction_high_watermark_ratio=1")
    a = Node(master)
    one = a.mount(size=1000)
    a.put("k", 600)
    # The new version does not fit beside the old one, which goes when this one is complete.
    text = fails(-200, a.start, "k", 600, replace=True, wait_ms=0)
    assert "600 bytes free" in text
    version, (new,) = a.start("k", 400, replace=True)
    began = time.monotonic()
    a.end("k", version, 400)
    if time.monotonic() - began < 1:
        assert segments(a.rpc)[one]["used"] == 1000
    assert [r[9] for r in a.get("k")] == [new[3]]
    wait_until(lambda: segments(a.rpc)[one]["used"] == 400, what="release of the old version")


def test_revoked_and_given_up(world):
    master = Master(world, "--put_start_discard_timeout_sec=1", "--put_start_release_timeout_sec=4")
    a, b = Node(master, 1), Node(master, 2)
    one = a.mount()
    version, _ = a.start("k", 1000)
    fails(-601, b.call, "PutRevoke", version)
    fails(-601, b.end, "k", version, 1000)
    assert "1000 bytes" in fails(-600, a.end, "k", version, 999)
    a.call("PutRevoke", version)
    a.call("PutRevoke", version)
    assert segments(a.rpc)[one]["used"] == 0
    fails(-704, a.end, "k", version, 1000)

    version, _ = a.start("slow", 1000)
    fails(-705, b.start, "slow", 10)
    wait_until(lambda: a.rpc.call("Status")[b"discarded_puts"] == 1, what="discard")
    b.put("slow", 10)
    # The slow writer may still be busy in its range, which stays its own for now.
    used = segments(a.rpc)[one]["used"]
    assert used == 1010 or a.rpc.call("Status")[b"discarded_puts"] == 0
    fails(-704, a.end, "slow", version, 1000)
    wait_until(lambda: segments(a.rpc)[one]["used"] == 10, what="release")


def test_odd_sizes_and_numbers(world):
    master = Master(world)
    a = Node(master)
    a.mount(size=4096)
    fails(-600, a.start, "k", 10, 0)
    assert "4294967296" in fails(-600, a.start, "k", 10, 1 << 32)
    fails(-600, a.start, "k", 10, 17)
    assert "4096" in fails(-200, a.start, "k", 4097)
    fails(-600, a.start, "k", 1 << 48)
    fails(-600, a.call, "PutStart", TENANT, "k", 10, False, {"replica_num": -1})
    fails(-600, a.call, "PutStart", TENANT, "k", 10, False, {"replica_num": 1, "preferred_segments": "x"})
    fails(-600, a.start, "k", 10, allocation_strategy="best")
    fails(-601, a.rpc.call, "PutStart", 0, TENANT, "k", 10, False, {"replica_num": 1})
    _, where = a.put("empty", 0)
    assert a.get("empty")[0][3] == 0 and a.get("empty")[0][9] == where[0][3]
    # As many of the replicas as there is room for.
    _, where = a.put("three", 10, 3)
    assert len(where) == 1
    a.put("all", 4000)
    fails(-705, a.start, "all", 4000)

    for bad in (["5", "s", 0, 10, "e"], ["5-5", "s", 0, 0, "e"], ["5-5", "", 0, 10, "e"],
                ["5-5", "s", (1 << 64) - 5, 10, "e"], ["5-5", "s" * 256, 0, 10, "e"], ["5-5", "s", 0, -1, "e"]):
        fails(-600, a.call, "MountSegment", *bad)
    fails(-102, a.call, "MountSegment", "5-1", "seg-1", 1 << 40, 8192, "e")
    fails(-102, a.call, "MountSegment", "5-9", "other", (1 << 40) + 100, 8192, "e")
    b = Node(master, 2)
    fails(-102, b.call, "MountSegment", "5-1", "seg-1", 1 << 40, 4096, "e")
    fails(-601, b.call, "UnmountSegment", "5-1")
    fails(-601, b.call, "GracefulUnmountSegment", "5-1", 10)
    fails(-601, a.rpc.call, "MountSegment", 0, "5-5", "s", 0, 10, "e")
    fails(-600, a.call, "GracefulUnmountSegment", "5-1", 1 << 60)


def test_preferred_segments_and_free_ratio(world):
    master = Master(world, "--allocation_strategy=free_ratio_first")
    a = Node(master)
    for i in range(4):
        a.mount(f"6-{i}", f"s{i}", (1 + i) << 30, size=10000)
    _, where = a.put("a", 5000, preferred_segments=["nowhere", "s2"])
    assert where[0][1] == b"s2"
    _, where = a.put("b", 5000, preferred_segments=["s2"])
    assert where[0][1] == b"s2"
    _, where = a.put("c", 5000, 2, preferred_segments=["s2", "s0"])
    assert where[0][1] == b"s0" and where[1][1] in (b"s1", b"s3")
    # The emptiest first: each of the rest gets its share, and s2, which is full, nothing.
    names = [a.put(f"d{i}", 100)[1][0][1] for i in range(60)]
    assert set(names) == {b"s1", b"s3"} - {where[1][1]} or b"s2" not in names
    used = {g["name"]: g["used"] for g in segments(a.rpc).values()}
    assert used[b"s2"] == 10000 and max(used[n] for n in (b"s0", b"s1", b"s3")) < 6000
    names = [a.put(f"e{i}", 10, allocation_strategy="random")[1][0][1] for i in range(60)]
    assert {b"s0", b"s1", b"s3"} == set(names)


def test_unmount_takes_what_is_there_only(world):
    master = Master(world, "--default_kv_lease_ttl=300")
    a, b = Node(master, 1), Node(master, 2)
    one, two = a.mount(), b.mount()
    a.put("both", 100, 2)
    a.put("here", 100, preferred_segments=["seg-1"])
    a.put("there", 100, preferred_segments=["seg-2"])
    version, _ = a.start("begun", 100, preferred_segments=["seg-1"])
    assert a.call("UnmountSegment", one) == [1]
    assert a.call("UnmountSegment", one) == [0]
    assert not a.exists("here") and a.exists("there")
    assert [r[8] for r in b.get("both")] == [b"seg-2"]
    assert "gone" in fails(-101, a.end, "begun", version, 100)
    assert set(segments(a.rpc)) == {two}
    # Mounted anew it has nothing but what readers may still be looking at and writers busy in.
    a.mount()
    _, where = a.put("again", 100, preferred_segments=["seg-1"])
    assert where[0][1] == b"seg-1"
    wait_until(lambda: segments(a.rpc)[one]["used"] == 200, what="end of the leases")


def test_graceful_unmount_drains(world):
    master = Master(world, "--default_kv_lease_ttl=200")
    a = Node(master)
    one = a.mount()
    a.put("k", 100)
    assert a.call("GracefulUnmountSegment", one, 60000) == [1]
    assert a.call("GracefulUnmountSegment", one, 60000) == [1]
    assert "draining" in fails(-200, a.start, "new", 10)
    assert a.get("k")[0][7] is True and segments(a.rpc)[one]["state"] == b"draining"
    a.call("Remove", TENANT, "k", 0, True)
    wait_until(lambda: not segments(a.rpc), what="end of the segment")

    one = a.mount("5-7")
    a.put("k", 100)
    a.call("GracefulUnmountSegment", "5-7", 1500)
    assert a.exists("k")
    wait_until(lambda: not segments(a.rpc), what="deadline")
    assert not a.exists("k")


def test_a_silent_node_loses_its_memory(world):
    master = Master(world, "--client_ttl=2")
    a, b = Node(master, 1), Node(master, 2)
    a.mount()
    b.mount()
    b.put("both", 100, 2)
    b.put("on-a", 100, preferred_segments=["seg-1"])
    b.put("on-b", 100, preferred_segments=["seg-2"])

    def gone():
        b.ping()
        return not b.exists("on-a")

    wait_until(gone, what="expiry")
    assert b.exists("on-b") and [r[8] for r in b.get("both")] == [b"seg-2"]
    assert list(segments(b.rpc)) == ["5-2"]


def test_a_node_that_registers_again_goes_on_with_what_it_mounts(world):
    master = Master(world, "--client_ttl=3")
    a, b = Node(master, 1), Node(master, 2)
    a.mount("5-1", "kept", 1 << 40)
    a.mount("5-2", "left", 2 << 40)
    a.put("kept", 100, preferred_segments=["kept"])
    a.put("left", 100, preferred_segments=["left"])
    a.rpc.sock.close()
    a.register()
    assert segments(b.rpc)["5-1"]["state"] == b"awaited" and b.get("kept")[0][7] is False
    a.mount("5-1", "kept", 1 << 40)
    assert segments(b.rpc)["5-1"]["state"] == b"ok" and b.get("kept")[0][7] is True

    def lost():
        a.ping()
        b.ping()
        return not b.exists("left")

    wait_until(lost, what="loss of what was not mounted again")
    assert b.exists("kept")


def test_memory_and_disk_replicas_of_one_object(world):
    """What a node stores of the same version joins the memory replica and outlives it."""
    master = Master(world, "--default_kv_lease_ttl=200")
    a = Node(master)
    one = a.mount()
    version, _ = a.put("k", 100)
    a.call("InventoryItems", [[TENANT, "k", version, 100, 0o644, 0, 0, 0, 1]])
    a.call("InventoryEnd")
    assert sorted(r[1] for r in a.get("k")) == [MEMORY, LOCAL_DISK]
    assert a.call("UnmountSegment", one) == [0]
    assert [r[1] for r in a.get("k")] == [LOCAL_DISK]


def test_a_full_memory_evicts_and_takes_new_objects(world):
    master = Master(world, "--default_kv_lease_ttl=100", "--eviction_ratio=0.1")
    a = Node(master)
    one = a.mount(size=100_000)
    a.put("hard", 1000, hard_pin=True)
    for i in range(300):
        a.put(f"k{i}", 1000)
    assert a.exists("hard") and a.exists("k299") and not a.exists("k0")
    wait_until(lambda: segments(a.rpc)[one]["used"] <= 90_000, what="use below the watermark")

    def counted():
        s = a.rpc.call("Status")
        return s[b"memory_evicted_objects"] >= 200 and s[b"objects"] == 301 - s[b"memory_evicted_objects"] and \
            s[b"memory_evicted_bytes"] == 1000 * s[b"memory_evicted_objects"]

    wait_until(counted, what="counts that agree")


def test_flags_of_eviction(world):
    master = Master(world, "--default_kv_lease_ttl=100", "--allow_evict_soft_pinned_objects=false",
                    "--eviction_high_watermark_ratio=0.5", "--eviction_ratio=0.5")
    a = Node(master)
    one = a.mount(size=10_000)
    for i in range(5):
        a.put(f"soft{i}", 1000, soft_pin_ms=600_000)
    for i in range(4):
        a.put(f"k{i}", 1000)
    wait_until(lambda: segments(a.rpc)[one]["used"] == 5000, what="eviction down to what is pinned")
    assert all(a.exists(f"soft{i}") for i in range(5))
    version, _ = a.start("filler", 5000)
    fails(-200, a.start, "more", 10, wait_ms=0)
    a.call("PutRevoke", version)
    for flag in ("--eviction_ratio=0", "--eviction_ratio=1.5", "--eviction_high_watermark_ratio=0",
                 "--eviction_high_watermark_ratio=nan", "--allocation_strategy=best"):
        r = run(MASTER, flag, f"--rpc_port={master.port}", check=False)
        assert r.returncode == 1 and flag[2:].split("=")[0].encode() in r.stderr


def test_figures_of_segments(world):
    """Admin HTTP, mooncakefsctl status and segments.json."""
    port = free_port()
    master = Master(world, f"--metrics_port={port}")
    mount = Mount(world, source=master.address)
    a = Node(master)
    a.mount("5-1", 'seg"1')
    a.mount("5-2", 'seg"1', 9 << 40, 2 * MB)
    a.put("k", 1000)
    fails(-200, a.start, "big", 3 * MB)

    def get(path, **args):
        url = f"http://127.0.0.1:{port}{path}?" + urllib.parse.urlencode(args)
        return urllib.request.urlopen(url, timeout=20).read().decode()

    assert get("/get_all_segments").splitlines()[2:] == ['seg"1', 'seg"1']  # behind the nodes
    assert get("/query_segment", segment='seg"1') == f"Used(bytes): 1000\nCapacity(bytes) : {3 * MB}\n"
    assert get("/query_segment", segment="5-2").endswith(f" {2 * MB}\n")
    detail = {s["id"]: s for s in json.loads(get("/get_segments_detail"))["segments"] if s["type"] == "MEMORY"}
    assert set(detail) == {"5-1", "5-2"} and sum(s["used_bytes"] for s in detail.values()) == 1000
    assert detail["5-1"]["state"] == "ok" and detail["5-1"]["node"] == "77-1" and detail["5-1"]["base"] == 1 << 40
    text = get("/metrics")
    for line in (f'mooncakefs_tier_capacity_bytes{{tier="memory"}} {3 * MB}',
                 'mooncakefs_tier_used_bytes{tier="memory"} 1000', "mooncakefs_allocation_failures_total 1",
                 f'mooncakefs_segment_capacity_bytes{{segment="seg\\"1",id="5-1"}} {MB}'):
        assert line + "\n" in text, line
    status = json.loads(run(CTL, "--json", "--mount", mount.mnt, "status").stdout)
    assert {s["id"]: s["capacity_bytes"] for s in status["segments"]} == {"5-1": MB, "5-2": 2 * MB}
    shown = run(CTL, "--mount", mount.mnt, "status").stdout.decode()
    assert shown.count("\nmemory ") == 2 and "1 ranges, ok" in shown
    listed = json.load(open(f"{mount.mnt}/.mooncakefs/segments.json"))
    assert sorted(s["type"] for s in listed) == ["LOCAL_DISK"] * 2 + ["MEMORY"] * 2


def test_durations_of_methods(world):
    """A Prometheus histogram for each method that was called; refused requests count, too."""
    port = free_port()
    master = Master(world, f"--metrics_port={port}", "--rpc_thread_num=3")
    nodes = [Node(master, i) for i in range(1, 6)]
    for n in nodes:
        for _ in range(10):
            n.exists("absent")
        fails(-704, n.get, "absent")
    text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20).read().decode()
    name = "mooncakefs_rpc_duration_seconds"
    assert text.count(f"# HELP {name} ") == text.count(f"# TYPE {name} histogram\n") == 1
    for method, count in (("ExistKey", 50), ("GetReplicaList", 5), ("Register", 5)):
        lines = [line for line in text.splitlines() if f'method="{method}"' in line]
        buckets = [line for line in lines if line.startswith(name + "_bucket")]
        counts = [int(line.split()[1]) for line in buckets]
        bounds = [float(line.split('le="')[1].split('"')[0]) for line in buckets]
        assert counts == sorted(counts) and bounds == sorted(bounds) and bounds[-1] == float("inf")
        assert counts[-1] == count and f'{name}_count{{method="{method}"}} {count}' in lines
        total = next(float(line.split()[1]) for line in lines if line.startswith(name + "_sum"))
        low = sum((c - p) * b for c, p, b in zip(counts, [0] + counts, [0] + bounds))
        assert low <= total
    assert 'method="RemoveAll"' not in text
