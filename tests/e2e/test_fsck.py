# SPDX-License-Identifier: Apache-2.0
"""mooncakefsctl fsck and scrub: damage of each kind is found, named, and dropped on demand; what is whole stays."""
import hashlib
import json
import os
import pty
import shutil
import struct
import subprocess

import pytest

from harness import CTL, Mount, run

DATA = os.path.join(os.path.dirname(__file__), "../data")
LAYOUTS = {"bucket": 200, "bucket_single": 1, "offset_strict": 200, "offset_relaxed": 60, "offset_crash": 18,
           "file_per_key": 200}


def copy(world, name):
    to = world.path("store")
    shutil.copytree(os.path.join(DATA, name), to)
    return to, {o["key"]: o for o in json.load(open(os.path.join(DATA, name + ".json")))["objects"]}


def state_of(root):
    return {os.path.join(d, f): (os.lstat(os.path.join(d, f)).st_mtime_ns, os.lstat(os.path.join(d, f)).st_size)
            for d, dirs, files in os.walk(root) for f in files + dirs}


def fsck(store, *options, code=None, command="fsck"):
    r = run(CTL, command, store, "--json", *options, check=False)
    out = json.loads(r.stdout)
    assert r.returncode == (0 if out["clean"] else 1), r.stderr
    if code is not None:
        assert r.returncode == code, out
    return out


def kinds(out, damage=True):
    return sorted(f["kind"] for f in out["findings"] if f["damage"] == damage)


def poke(store, file, at, data):
    with open(os.path.join(store, file), "r+b") as f:
        f.seek(at)
        f.write(data)


def repaired(store, kind, objects):
    """It is found, and nothing is touched; then dropped, and the rest is clean."""
    before = state_of(store)
    first = fsck(store, code=1)
    assert set(kinds(first)) == {kind}
    assert state_of(store) == before
    text = run(CTL, "fsck", store, check=False)
    assert text.returncode == 1 and f"{kind}: ".encode() in text.stdout and b"--repair drops it" in text.stdout
    out = fsck(store, "--repair", code=0)
    assert all(f["repaired"] for f in out["findings"] if f["damage"])
    again = fsck(store, code=0)
    assert again["objects"] == objects
    return first


def contents(world, store, name="check"):
    """What a mount shows of it afterwards, by tenant and raw key."""
    m = Mount(world, source=f"offload:{store}", name=name)
    out = {}
    for d, _, files in os.walk(os.path.join(m.mnt, "tenants")):
        for f in files:
            path = os.path.join(d, f)
            with open(path, "rb") as g:
                out[os.getxattr(path, "user.mooncake.key").decode()] = hashlib.sha256(g.read()).hexdigest()
    m.umount()
    return out


def all_but(objects, *gone):
    return {k: o["sha256"] for k, o in objects.items() if o["present"] and k not in gone}


@pytest.mark.parametrize("name", LAYOUTS)
def test_what_mooncake_wrote_is_clean(world, name):
    store, objects = copy(world, name)
    before = state_of(store)
    out = fsck(store, code=0)
    assert out["objects"] == LAYOUTS[name] and kinds(out) == []
    assert out["bytes"] == sum(o["size"] for o in objects.values() if o["present"])
    assert fsck(store, command="scrub", code=0)["objects"] == LAYOUTS[name]
    assert fsck(store, "--repair", code=0)["objects"] == LAYOUTS[name]
    before.pop(store, None)
    assert {k: v for k, v in state_of(store).items() if not k.endswith("/lock")} == before


def test_usage(world):
    for words in (["fsck"], ["scrub"], ["fsck", "a", "b"]):
        assert run(CTL, *words, check=False).returncode == 2
    r = run(CTL, "fsck", world.path("absent"), check=False)
    assert r.returncode == 1 and b"absent" in r.stderr
    os.mkdir(world.path("empty"))
    r = run(CTL, "fsck", world.path("empty"), check=False)
    assert r.returncode == 1 and b"no offload directory" in r.stderr


# ---- offset allocator ----


@pytest.mark.parametrize("at,data,kind", [(4096, b"\xff", "checksum"), (16, b"\x07", "record"),
                                          (0, b"\xff\xff\xff\xff", "record"), (4, b"\xff\xff\xff\x0f", "range")])
def test_a_bad_record_is_dropped(world, at, data, kind):
    store, objects = copy(world, "offset_strict")
    o = objects["obj-000"]
    poke(store, "kv_cache.data", o["offset"] + at, data)
    out = repaired(store, kind, 199)
    assert [(f["file"], f["offset"]) for f in out["findings"]] == [("kv_cache.data", o["offset"])]
    assert contents(world, store) == all_but(objects, "obj-000")


def test_an_older_record_of_a_key_is_dropped(world):
    store, objects = copy(world, "offset_relaxed")
    a, b = objects["obj-000"], objects["a/b/c/../002.bin"]
    poke(store, "kv_cache.data", b["offset"], struct.pack("<IIQ", 15, b["size"], 0))
    poke(store, "kv_cache.data", b["offset"] + 24, b"default\0obj-000")
    out = repaired(store, "duplicate", 59)
    assert out["findings"][0]["offset"] == b["offset"] and out["findings"][0]["key"] == "obj-000"
    assert contents(world, store) == all_but(objects, "a/b/c/../002.bin")
    assert a["sha256"]


def test_a_data_file_cut_short(world):
    store, objects = copy(world, "offset_strict")
    os.truncate(os.path.join(store, "kv_cache.data"), 1 << 20)
    left = fsck(store, code=1)["objects"]
    assert 0 < left < 200
    repaired(store, "range", left)


def test_a_broken_checkpoint_is_named_and_left(world):
    store, _ = copy(world, "offset_strict")
    os.truncate(os.path.join(store, "kv_cache.meta"), 5000)
    for options in ([], ["--repair"]):
        out = fsck(store, *options, code=1)
        assert kinds(out) == ["index"] and out["findings"][0]["file"] == "kv_cache.meta"
    os.unlink(os.path.join(store, "kv_cache.data"))
    shutil.copy(os.path.join(DATA, "offset_strict/kv_cache.meta"), store)
    assert kinds(fsck(store, code=1)) == ["index"]


def test_two_records_with_the_same_room(world):
    """The allocator's state gives a byte away twice: nobody can say who is right."""
    store, objects = copy(world, "offset_strict")
    path = os.path.join(store, "kv_cache.meta")
    meta = bytearray(open(path, "rb").read())
    state = meta.index(b"\x12") + 4  # behind the field's tag and its length of three bytes
    used = [i for i in range(4096) if meta[state + 1120 + i * 28 + 24] == 1]
    a, b = (state + 1120 + i * 28 for i in used[:2])
    meta[a:a + 8] = meta[b:b + 8]
    open(path, "wb").write(meta)
    for options in ([], ["--repair"]):
        out = fsck(store, *options, code=1)
        assert "overlap" in kinds(out)
    assert len(contents(world, store)) == 199


def test_a_bad_record_in_the_midst_of_a_good_one_is_left(world):
    """Wiping what the allocator calls a record would wipe bytes of an object that is whole."""
    store, objects = copy(world, "offset_strict")
    path = os.path.join(store, "kv_cache.meta")
    meta = bytearray(open(path, "rb").read())
    state = meta.index(b"\x12") + 4
    shift = struct.unpack_from("<Q", meta, state + 8)[0]
    nodes = {}
    for i in range(4096):
        at = state + 1120 + i * 28
        if meta[at + 24] == 1:
            nodes[struct.unpack_from("<I", meta, at)[0] << shift] = at
    small = objects["obj-000"]
    large = max(objects.values(), key=lambda o: o["size"])
    inside = (large["offset"] + 4096 + large["size"] // 2) >> shift
    struct.pack_into("<I", meta, nodes[small["offset"]], inside)
    open(path, "wb").write(meta)
    out = fsck(store, "--repair", code=1)
    assert "overlap" in kinds(out) and not any(f["repaired"] for f in out["findings"])
    assert contents(world, store) == all_but(objects, "obj-000")


# ---- file per key ----

FILE = "file_per_key_dir/m/e/default_obj-000"


def test_a_file_cut_short_is_dropped(world):
    store, objects = copy(world, "file_per_key")
    path = os.path.join(store, FILE)
    os.truncate(path, os.stat(path).st_size - 1)
    out = repaired(store, "record", 199)
    assert out["findings"][0]["file"] == FILE
    assert not os.path.exists(path)
    assert contents(world, store) == all_but(objects, "obj-000")


def test_a_second_copy_is_dropped_and_a_misplaced_file_is_left(world):
    store, objects = copy(world, "file_per_key")
    other = os.path.join(store, "file_per_key_dir/a/a/copy")
    shutil.copy(os.path.join(store, FILE), other)
    assert kinds(fsck(store, code=1)) == ["duplicate", "misplaced"]
    fsck(store, "--repair", code=0)
    assert not os.path.exists(other)
    os.rename(os.path.join(store, FILE), other)
    assert kinds(fsck(store, "--repair", code=1)) == ["misplaced"]
    assert contents(world, store) == all_but(objects)


def test_unknown_files_are_named_and_stay(world):
    for i, (name, where) in enumerate((("file_per_key", "file_per_key_dir/a/notes"), ("offset_strict", "notes"),
                                       ("bucket", "notes"))):
        store = world.path(name)
        shutil.copytree(os.path.join(DATA, name), store)
        open(os.path.join(store, where), "w").close()
        out = fsck(store, "--repair", code=0)
        assert kinds(out, damage=False) == ["unknown_file"] and out["findings"][0]["file"] == where
        assert os.path.exists(os.path.join(store, where))


# ---- buckets that Mooncake wrote ----


def test_an_object_outside_of_its_bucket_is_dropped(world):
    store, objects = copy(world, "bucket")
    last = max((o for o in objects.values() if o["bucket_id"] == 7356854951940), key=lambda o: o["offset"])
    bucket = os.path.join(store, "7356854951940.bucket")
    os.truncate(bucket, last["offset"] + last["key_size"] + last["size"] - 1)
    out = repaired(store, "range", 199)
    assert out["findings"][0]["file"] == "7356854951940.meta" and out["findings"][0]["key"] == last["key"]
    assert contents(world, store) == all_but(objects, last["key"])


def test_a_broken_meta_is_set_aside_with_its_bucket(world):
    store, objects = copy(world, "bucket")
    os.truncate(os.path.join(store, "7356854951940.meta"), 77)
    gone = [k for k, o in objects.items() if o["bucket_id"] == 7356854951940]
    repaired(store, "index", 200 - len(gone))
    assert sorted(os.listdir(os.path.join(store, "lost+found"))) == ["7356854951940.bucket", "7356854951940.meta"]
    assert contents(world, store) == all_but(objects, *gone)


def test_another_key_before_an_object_is_named_and_left(world):
    store, objects = copy(world, "bucket")
    o = objects["obj-000"]
    poke(store, f"{o['bucket_id']}.bucket", o["offset"], b"X")
    for options in ([], ["--repair"]):
        out = fsck(store, *options, code=1)
        assert kinds(out) == ["record"] and out["findings"][0]["key"] == "obj-000"
    assert fsck(store)["objects"] == 200


def test_a_second_copy_in_an_older_bucket_is_dropped(world):
    store, objects = copy(world, "bucket")
    for suffix in ("bucket", "meta"):
        shutil.copy(os.path.join(store, f"7356854951940.{suffix}"), os.path.join(store, f"1.{suffix}"))
    n = sum(o["bucket_id"] == 7356854951940 for o in objects.values())
    out = repaired(store, "duplicate", 200)
    assert [f["file"] for f in out["findings"]] == ["1.bucket"] * n
    assert contents(world, store) == all_but(objects)


# ---- our own buckets ----


@pytest.fixture
def ours(world):
    """A store with 30 objects in one sealed bucket."""
    m = Mount(world, name="a")
    world.want = {}
    for i in range(30):
        data = (b"%02d" % i) * 2000
        with open(m.key(f"k{i:02d}"), "wb") as f:
            f.write(data)
        world.want[f"k{i:02d}"] = hashlib.sha256(data).hexdigest()
    m.umount()
    store = os.path.join(m.state, "backend")
    world.ident = next(f for f in os.listdir(store) if f.endswith(".bucket")).split(".")[0]
    assert sorted(f for f in os.listdir(store) if f[0].isdigit()) == [f"{world.ident}.{s}" for s in ("bucket", "meta", "sum")]
    return store


def test_a_wrong_checksum_is_found_and_dropped(world, ours):
    data = open(os.path.join(ours, f"{world.ident}.bucket"), "rb").read()
    poke(ours, f"{world.ident}.bucket", data.index(b"1717" * 100) + 33, b"x")
    scrub = fsck(ours, command="scrub", code=1)
    assert [f["key"] for f in scrub["findings"]] == ["k17"]
    assert scrub["read_bytes"] == 30 * 4000 and scrub["without_checksum"] == 0
    # By the state directory, as well.
    assert kinds(fsck(os.path.dirname(ours), code=1)) == ["checksum"]
    repaired(ours, "checksum", 29)
    del world.want["k17"]
    assert contents(world, ours) == world.want


def test_an_object_of_ours_outside_of_its_bucket_is_dropped(world, ours):
    path = os.path.join(ours, f"{world.ident}.bucket")
    os.truncate(path, os.stat(path).st_size - 1)
    out = repaired_set(ours, {"range", "index"}, 29)
    assert any(f["kind"] == "range" and f["key"] == "k29" for f in out["findings"])
    del world.want["k29"]
    assert contents(world, ours) == world.want


def repaired_set(store, expected, objects):
    out = fsck(store, code=1)
    assert set(kinds(out)) == expected
    fsck(store, "--repair", code=0)
    assert fsck(store, code=0)["objects"] == objects
    return out


def test_unreadable_bytes_of_a_log_are_set_aside(world, ours):
    log = os.path.join(ours, f"{world.ident}.sum")
    data = open(log, "rb").read()
    at = data.index(b"default\0k10")
    poke(ours, f"{world.ident}.sum", at, b"\xff")
    out = repaired(ours, "record", 29)
    assert out["findings"][0]["file"] == f"{world.ident}.sum"
    assert os.listdir(os.path.join(ours, "lost+found"))
    del world.want["k10"]
    assert contents(world, ours) == world.want


def test_a_broken_meta_beside_a_log_is_made_anew(world, ours):
    os.truncate(os.path.join(ours, f"{world.ident}.meta"), 100)
    repaired(ours, "index", 30)
    assert os.stat(os.path.join(ours, f"{world.ident}.meta")).st_size > 100
    os.unlink(os.path.join(ours, f"{world.ident}.sum"))  # what is left is what Mooncake reads
    assert contents(world, ours) == world.want


def test_bytes_that_two_objects_share_are_named_and_left(world):
    store = world.path("store")
    os.mkdir(store)
    def varint(n):
        return bytes([n]) if n < 128 else bytes([n & 127 | 128]) + varint(n >> 7)
    def field(number, data):
        return varint(number << 3 | 2) + varint(len(data)) + data
    def place(offset, key, size):
        return field(3, b"\x08" + varint(offset) + b"\x10" + varint(key) + b"\x18" + varint(size))
    open(os.path.join(store, "5.bucket"), "wb").write(b"default\0aAAAAdefault\0bBBBB")
    keys = field(2, b"default\0a") + field(2, b"default\0b")
    open(os.path.join(store, "5.meta"), "wb").write(b"\x08\x1a" + keys + place(0, 9, 6) + place(13, 9, 4))
    for options in ([], ["--repair"]):
        assert kinds(fsck(store, *options, code=1)) == ["overlap"]
    assert len(contents(world, store)) == 2


# ---- owners, speed, progress ----


def test_repair_is_refused_while_the_store_has_an_owner(world, mount):
    with open(mount.key("k"), "wb") as f:
        f.write(b"x" * 100)
    assert fsck(mount.state, code=0)["objects"] == 1  # looking is allowed
    r = run(CTL, "fsck", mount.state, "--repair", check=False)
    assert r.returncode == 1 and str(mount.pid()).encode() in r.stderr, r.stderr


def test_repair_is_refused_while_a_process_without_a_lock_has_a_file_open(world):
    store, _ = copy(world, "offset_strict")
    holder = subprocess.Popen(["sleep", "60"], stdin=open(os.path.join(store, "kv_cache.data"), "rb"))
    world.processes.append(holder)
    r = run(CTL, "fsck", store, "--repair", check=False)
    assert r.returncode == 1 and str(holder.pid).encode() in r.stderr, r.stderr
    assert not os.path.exists(os.path.join(store, "lock"))
    holder.terminate()
    holder.wait()
    fsck(store, "--repair", code=0)
    assert not os.path.exists(os.path.join(store, "lock"))


def test_a_limit_of_bandwidth_changes_no_result(world):
    store, objects = copy(world, "offset_strict")
    size = sum(o["size"] for o in objects.values())
    assert fsck(store, "--bandwidth=8M", command="scrub", code=0)["read_bytes"] == size
    assert run(CTL, "scrub", store, "--bandwidth=much", check=False).returncode == 2


def test_progress_is_for_terminals(world):
    store, _ = copy(world, "offset_strict")
    main, sub = pty.openpty()
    p = subprocess.Popen([CTL, "scrub", store, "--bandwidth=2M"], stdout=subprocess.PIPE, stderr=sub)
    world.processes.append(p)
    os.close(sub)
    seen = b""
    try:
        while chunk := os.read(main, 4096):
            seen += chunk
    except OSError:
        pass
    os.close(main)
    assert p.wait() == 0 and seen.count(b"%") > 2  # slow enough to be drawn more than once
    assert run(CTL, "scrub", store).stderr == b""
