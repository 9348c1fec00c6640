# SPDX-License-Identifier: Apache-2.0
"""Memory replicas through snapshots, deaths of the master, and snapshots that contradict themselves."""
import json
import os
import shutil
import struct

import msgpack
import zstandard
from harness import CTL, Master, RpcError, run, wait_until
from test_segments import MB, TENANT, Node, segments
from test_snapshots import DATA, read_snapshot, unpack

KEPT = 1053  # objects of the golden snapshot that have a complete replica
PACK = zstandard.ZstdCompressor(write_content_size=True).compress


def taken(rpc):
    ident = rpc.call("SnapshotCreate")[0].decode()
    wait_until(lambda: not rpc.call("SnapshotState")[0], what="snapshot")
    assert rpc.call("SnapshotState")[2] == b""
    return ident


def ranges(node, keys):
    """{key: [(segment, address, size)]} of the memory replicas that connected nodes have."""
    return {k: sorted((r[8], r[9], r[3]) for r in node.get(k) if r[1] == 0) for k in keys}


def assert_apart(*lists):
    flat = sorted((address, address + max(size, 1)) for ranges in lists for replicas in ranges
                  for _, address, size in replicas)
    assert all(a[1] <= b[0] for a, b in zip(flat, flat[1:]))


def fill(node, prefix, size):
    """Puts until there is no room; where everything went."""
    where = {}
    while True:
        node.ping()
        try:
            _, got = node.put(f"{prefix}{len(where)}", size, hard_pin=True)
            where[f"{prefix}{len(where)}"] = [(w[1], w[3], w[4]) for w in got]
        except RpcError as e:
            assert e.code == -200
            return where


def allocated(folder):
    """What an independent reader finds used in each segment's allocator: {id: {node: (offset, size)}}."""
    out = {}
    for ident, s in unpack(open(os.path.join(folder, "segments"), "rb").read())[b"ms"].items():
        base, bits, _, _, count, core = s[7][5]
        nodes = zstandard.ZstdDecompressor().decompressobj().decompress(core[7])
        used = {}
        for i in range(core[1]):
            flag, offset, size = struct.unpack_from("<BII", nodes, 25 * i)
            if flag:
                used[i] = (base + (offset << bits), size << bits)
        assert len(used) == count
        out[ident] = used
    return out


def memory_of(obj):
    return [r for r in obj[8:8 + obj[6]] if r[2] == 0]


def test_restored_ranges_are_reserved(world):
    snaps = world.path("snaps")
    master = Master(world, "--enable_snapshot", "--enable_snapshot_restore", "--client_ttl=4",
                    "--eviction_high_watermark_ratio=1", "--default_kv_lease_ttl=100", snapshots=snaps)
    a, b = Node(master, 1), Node(master, 2)
    a.mount(size=MB)
    b.mount(size=MB)
    for i in range(40):
        a.put(f"k{i}", 1000 + i * 37, 1 + i % 2, hard_pin=True)
    for i in range(0, 40, 3):
        a.call("Remove", TENANT, f"k{i}", 0, True)
    keys = [f"k{i}" for i in range(40) if i % 3]
    a.put("only-a", 500, preferred_segments=["seg-1"], hard_pin=True)
    a.put("only-b", 500, preferred_segments=["seg-2"], hard_pin=True)
    keys.append("only-a")
    _, begun = a.start("begun", 4321)
    before = ranges(a, keys)
    ident = taken(a.rpc)
    folder = os.path.join(snaps, "mooncake_master_snapshot/mooncake_cluster", ident)

    # An independent reader finds each replica where its segment's allocator says.
    used, objects = allocated(folder), read_snapshot(folder)
    names = {s: f"seg-{s.split(b'-')[1].decode()}".encode() for s in used}
    for key in keys:
        found = sorted((names[p[2]], p[1], p[0]) for p in (r[3] for r in memory_of(objects[(b"default", key.encode())])))
        assert found == before[key]
    for obj in objects.values():
        for r in memory_of(obj):
            size, address, segment, has_handle, (real, requested, (offset, node)) = r[3]
            assert has_handle and real == address and requested == size == obj[2]
            assert used[segment][node] == (address, size) and offset == address - (int(segment.split(b"-")[1]) << 40)
    discarded = msgpack.unpackb(open(os.path.join(folder, "metadata"), "rb").read(), raw=True,
                                strict_map_key=False)[b"discarded_replicas"]
    assert any(e[1] == 4321 and e[3][3][1] == begun[0][3] for e in discarded)

    a.put("after", 900)  # not in the snapshot: gone with this master
    master.kill()
    master.start()
    assert "objects kept, 0 dropped" in master.log_text()
    a.register()
    assert {s["state"] for s in segments(a.rpc).values()} == {b"awaited"}
    assert a.get("only-a")[0][7] is False
    a.mount(size=MB)
    assert ranges(a, keys) == before and a.get("only-a")[0][7] is True
    # Filled to the last byte, no range of before is met, that of the put that had begun included.
    new = fill(a, "new", 1500)
    small = fill(a, "small", 1)
    assert len(new) > 600 and small
    assert_apart(before.values(), new.values(), small.values(), [[(w[1], w[3], w[4]) for w in begun]])

    def lost():
        a.ping()
        return not a.exists("only-b")

    # b does not come back: what only it had is lost, the rest has its other replica.
    wait_until(lost, what="loss of what did not come back")
    assert list(segments(a.rpc)) == ["5-1"]
    after = ranges(a, [k for k in keys if any(r[0] == b"seg-1" for r in before[k])])
    assert all(after[k] == [r for r in before[k] if r[0] == b"seg-1"] for k in after)
    assert a.exists("only-a")


def test_a_snapshot_of_a_restored_master_is_the_same(world):
    snaps = world.path("snaps")
    master = Master(world, "--enable_snapshot", "--enable_snapshot_restore", "--client_ttl=60", snapshots=snaps)
    a = Node(master)
    a.mount()
    for i in range(20):
        a.put(f"k{i}", i * 100)
    root = os.path.join(snaps, "mooncake_master_snapshot/mooncake_cluster")
    first = taken(a.rpc)
    for _ in range(2):
        master.kill()
        master.start()
        with master.rpc() as rpc:
            second = taken(rpc)
        x, y = read_snapshot(os.path.join(root, first)), read_snapshot(os.path.join(root, second))
        assert {k: memory_of(o) for k, o in x.items()} == {k: memory_of(o) for k, o in y.items()}
        assert unpack(open(os.path.join(root, first, "segments"), "rb").read()) == \
            unpack(open(os.path.join(root, second, "segments"), "rb").read())
        first = second


def write_segments(path, s):
    """Texts as str, the two packed arrays of each allocator as bin."""
    def texts(v):
        if isinstance(v, bytes):
            return v.decode("utf-8", "surrogateescape")
        if isinstance(v, list):
            return [texts(x) for x in v]
        return {texts(k): texts(x) for k, x in v.items()} if isinstance(v, dict) else v

    packed = {ident: g[7][5][5][7:9] for ident, g in s[b"ms"].items() if g[7]}
    out = texts(s)
    for ident, arrays in packed.items():
        out["ms"][ident.decode()][7][5][5][7:9] = arrays
    open(path, "wb").write(PACK(msgpack.packb(out, unicode_errors="surrogateescape")))


def doctored(world, change_objects=None, change_segments=None):
    """The golden snapshot with changes; without our file there are no checksums."""
    snaps = world.path("snaps")
    shutil.copytree(os.path.join(DATA, "mooncake_master_snapshot"),
                    os.path.join(snaps, "mooncake_master_snapshot"))
    root = os.path.join(snaps, "mooncake_master_snapshot/golden")
    latest = open(root + "/latest.txt").read()
    for name in os.listdir(root):
        if name not in ("latest.txt", latest):
            shutil.rmtree(os.path.join(root, name))
    if change_objects:
        path = os.path.join(root, latest, "metadata")
        m = msgpack.unpackb(open(path, "rb").read(), raw=True, strict_map_key=False)
        shards = {i: unpack(frame)[b"metadata"] for i, frame in m[b"shards"].items()}
        change_objects([e for entries in shards.values() for e in entries])
        m[b"shards"] = {i: PACK(msgpack.packb({b"metadata": e}, use_bin_type=False)) for i, e in shards.items()}
        open(path, "wb").write(msgpack.packb({k.decode(): v for k, v in m.items()}))
    if change_segments:
        path = os.path.join(root, latest, "segments")
        s = unpack(open(path, "rb").read())
        change_segments(s)
        write_segments(path, s)
    return snaps


def restored(world, snaps):
    master = Master(world, "--enable_snapshot_restore", "--cluster_id=golden", "--client_ttl=600", snapshots=snaps)
    check = json.loads(run(CTL, "--json", "restore", "--check", snaps).stdout)
    with master.rpc() as rpc:
        status = rpc.call("Status")
    assert status[b"objects"] == check["keys_kept"] and status[b"restore_dropped_objects"] == check["keys_dropped"]
    return master, check


def only_memory(entries):
    return [e for e in entries if e[2][6] == 1 and e[2][8][2] == 0 and e[2][8][1] == 3]


def test_a_range_is_one_replicas(world):
    """Two objects that name one range, one outside of its segment, one of a segment that is not there."""
    def change(entries):
        one, two, three, four = only_memory(entries)[:4]
        two[2][8][3] = one[2][8][3]
        three[2][8][3][1] = three[2][8][3][4][0] = 1
        four[2][8][3][2] = b"1-1"

    master, check = restored(world, doctored(world, change))
    assert check["dropped"]["memory_lost"] == 3 and check["keys_kept"] == KEPT - 3
    log = master.log_text()
    assert "3 objects more are dropped, whose memory replicas could not be kept" in log
    assert "1 memory replicas lie in segments that it has not" in log
    assert "2 memory replicas have no range of their own" in log


def test_an_allocator_that_contradicts_itself(world):
    """Then the replicas themselves say what is in use."""
    def change(s):
        for segment in s[b"ms"].values():
            segment[7][5][5][3] -= 1  # the room that is free

    master, check = restored(world, doctored(world, change_segments=change))
    assert check["keys_kept"] == KEPT
    assert "replicas are reserved one by one" in master.log_text()
    with master.rpc() as rpc:
        assert sum(s["ranges"] for s in segments(rpc).values()) >= 1198


def test_segments_without_allocators_or_owners(world):
    def change(s):
        for segment in s[b"ms"].values():
            segment[6], segment[7] = False, None
        s[b"cs"] = {}

    _, check = restored(world, doctored(world, change_segments=change))
    assert check["keys_kept"] == KEPT


def test_no_segments_at_all(world):
    def change(s):
        s[b"ms"], s[b"cs"], s[b"an"] = {}, {}, []

    _, check = restored(world, doctored(world, change_segments=change))
    assert check["dropped"]["memory_lost"] == KEPT - check["keys_kept"] > 0


def test_golden_memory_goes_when_its_nodes_do_not_come_back(world):
    snaps = doctored(world)
    latest = open(os.path.join(snaps, "mooncake_master_snapshot/golden/latest.txt")).read()
    objects = read_snapshot(os.path.join(snaps, "mooncake_master_snapshot/golden", latest))
    stay = {k for k, o in objects.items() if any(r[1] == 3 and r[2] != 0 for r in o[8:8 + o[6]])}
    master = Master(world, "--enable_snapshot_restore", "--cluster_id=golden", "--client_ttl=1", snapshots=snaps)
    with master.rpc() as rpc:
        wait_until(lambda: rpc.call("Status")[b"objects"] == len(stay), what="loss of the memory replicas")
        assert segments(rpc) == {} and 0 < len(stay) < KEPT
