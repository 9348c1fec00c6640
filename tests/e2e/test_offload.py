# SPDX-License-Identifier: Apache-2.0
"""offload:DIR: directories that a real Mooncake wrote, and one that is being written, as files."""
import errno
import hashlib
import json
import os
import shutil

import pytest

from harness import Mount, read, run, wait_until

DATA = os.path.join(os.path.dirname(__file__), "../data")
LAYOUTS = ["bucket", "bucket_single", "offset_strict", "offset_relaxed", "offset_crash", "file_per_key"]


def escape(key):
    """The path of a key that is no other's directory (docs: names)."""
    out = []
    for part in key.split("/"):
        out.append("%-" if part == "" else {".": "%2E", "..": "%2E%2E"}.get(part, part.replace("%", "%25").replace("\0", "%00")))
    return "/".join(out)


def state_of(root):
    out = {}
    for d, dirs, files in os.walk(root):
        for f in files + dirs:
            st = os.lstat(os.path.join(d, f))
            out[os.path.join(d, f)] = (st.st_mtime_ns, st.st_ctime_ns, st.st_size, st.st_mode)
    return out


def copy(world, name):
    to = world.path("store")
    shutil.copytree(os.path.join(DATA, name), to)
    return to, json.load(open(os.path.join(DATA, name + ".json")))["objects"]


def files_below(root):
    return [os.path.join(d, f) for d, _, files in os.walk(root) for f in files]


@pytest.mark.parametrize("name", LAYOUTS)
def test_what_mooncake_wrote(world, name):
    store, objects = copy(world, name)
    before = state_of(store)
    m = Mount(world, source=f"offload:{store}")
    tenants = os.path.join(m.mnt, "tenants")
    present = [o for o in objects if o["present"]]
    assert sorted(os.listdir(tenants)) == sorted({o["tenant"] for o in present})
    assert len(files_below(tenants)) == len(present)
    for o in objects:
        path = os.path.join(tenants, o["tenant"], escape(o["key"]))
        if not o["present"]:
            assert not os.path.exists(path)
            continue
        data = read(path)
        assert os.stat(path).st_size == len(data) == o["size"]
        assert hashlib.sha256(data).hexdigest() == o["sha256"]
    o = present[len(present) // 2]
    path = os.path.join(tenants, o["tenant"], escape(o["key"]))
    assert os.getxattr(path, "user.mooncake.key") == o["key"].encode()
    assert os.getxattr(path, "user.mooncake.tenant") == o["tenant"].encode()
    assert int(os.getxattr(path, "user.mooncake.size")) == o["size"]
    replicas = json.loads(os.getxattr(path, "user.mooncake.replicas"))
    assert [(r["type"], r["status"]) for r in replicas] == [("LOCAL_DISK", "COMPLETE")]
    assert os.statvfs(m.mnt).f_files >= len(present)
    m.umount()
    assert state_of(store) == before


def test_nothing_can_be_changed(world):
    store, objects = copy(world, "offset_strict")
    m = Mount(world, source=f"offload:{store}")
    path = m.key("obj-000")
    for change in (lambda: open(path, "wb"), lambda: open(m.key("new"), "xb"), lambda: os.unlink(path),
                   lambda: os.rename(path, m.key("other")), lambda: os.mkdir(m.key("dir")),
                   lambda: os.truncate(path, 0), lambda: os.chmod(path, 0o600),
                   lambda: os.setxattr(path, "user.mooncake.hard_pin", b"1")):
        with pytest.raises(OSError) as e:
            change()
        assert e.value.errno == errno.EROFS
    assert json.load(open(os.path.join(m.mnt, ".mooncakefs/config.json")))["backend"] == \
        "offset_allocator_storage_backend"


def test_bytes_that_change_under_the_mount_are_eio(world):
    store, objects = copy(world, "offset_strict")
    m = Mount(world, source=f"offload:{store}")
    o = next(o for o in objects if o["key"] == "obj-000")
    with open(os.path.join(store, "kv_cache.data"), "r+b") as f:
        f.seek(o["offset"] + 8)  # the record's number: its owner has put another one there
        f.write(b"\x77")
    with pytest.raises(OSError) as e:
        read(m.key("obj-000"))
    assert e.value.errno == errno.EIO
    assert "kv_cache.data" in m.log_text()


def test_damage_of_a_checksummed_bucket_is_eio(world):
    """A store of our own, found by its state directory, with a bad byte in one value."""
    a = Mount(world, name="a")
    for name, data in (("good", b"g" * 5000), ("bad", b"b" * 5000)):
        with open(a.key(name), "wb") as f:
            f.write(data)
    a.umount()
    bucket = next(f for f in files_below(a.state) if f.endswith(".bucket"))
    data = read(bucket)
    with open(bucket, "r+b") as f:
        f.seek(data.index(b"bbbb") + 100)
        f.write(b"x")
    m = Mount(world, source=f"offload:{a.state}", name="view")
    assert read(m.key("good")) == b"g" * 5000
    with pytest.raises(OSError) as e:
        read(m.key("bad"))
    assert e.value.errno == errno.EIO
    assert os.path.basename(bucket) in m.log_text()


def test_damage_is_dropped_with_a_word(world):
    store, objects = copy(world, "offset_strict")
    o = next(o for o in objects if o["key"] == "obj-000")
    with open(os.path.join(store, "kv_cache.data"), "r+b") as f:
        f.seek(o["offset"] + 4096)
        f.write(b"\xff")
    m = Mount(world, source=f"offload:{store}")
    assert not os.path.exists(m.key("obj-000"))
    assert f"{store}/kv_cache.data, offset {o['offset']}: the record's checksum is wrong" in m.log_text()


def same(path, data):
    """Whether it is there with these bytes; a moment of change may answer with an error, never with other bytes."""
    try:
        return read(path) == data
    except OSError as e:
        assert e.errno in (errno.ENOENT, errno.EIO, errno.ESTALE), e
        return False


def test_a_store_that_is_being_written(world):
    """Its owner goes on undisturbed; the view follows; nothing is touched by it."""
    a = Mount(world, name="a")
    for i in range(20):
        with open(a.key(f"k{i}"), "wb") as f:
            f.write(b"%d" % i * 1000)
    m = Mount(world, source=f"offload:{a.state}/backend", name="view", options=["refresh=50ms"])
    for i in range(20):
        assert read(m.key(f"k{i}")) == b"%d" % i * 1000
    kept = open(m.key("k0"), "rb")
    for i in range(20):
        with open(a.key(f"k{i}"), "wb") as f:
            f.write(b"new %d" % i * 1000)
        assert read(a.key(f"k{i}")) == b"new %d" % i * 1000
    os.unlink(a.key("k7"))
    for i in range(20):
        if i != 7:
            wait_until(lambda: same(m.key(f"k{i}"), b"new %d" % i * 1000), what=f"k{i}")
    wait_until(lambda: not os.path.exists(m.key("k7")), what="end of k7")
    assert sorted(os.listdir(m.keys)) == sorted(f"k{i}" for i in range(20) if i != 7)
    assert kept.read(2) in (b"00", b"")
    kept.close()
    before = sorted(os.listdir(os.path.join(a.state, "backend")))
    m.umount()
    assert sorted(os.listdir(os.path.join(a.state, "backend"))) == before


def test_without_refresh_it_stays_as_it_was_found(world):
    store, objects = copy(world, "file_per_key")
    m = Mount(world, source=f"offload:{store}", options=["refresh=0"])
    n = len(files_below(os.path.join(m.mnt, "tenants")))
    os.unlink(os.path.join(store, "file_per_key_dir/m/e/default_obj-000"))
    assert len(files_below(os.path.join(m.mnt, "tenants"))) == n


def test_files_by_key_that_come_and_go_and_change(world):
    store, objects = copy(world, "file_per_key")
    m = Mount(world, source=f"offload:{store}", options=["refresh=50ms"])
    path = os.path.join(store, "file_per_key_dir/m/e/default_obj-000")
    assert len(read(m.key("obj-000"))) == 1
    with open(path, "wb") as f:
        f.write(b"\x0a\x0fdefault\0obj-000\x12\x05other")
    wait_until(lambda: same(m.key("obj-000"), b"other"), what="the new bytes")
    os.unlink(path)
    wait_until(lambda: not os.path.exists(m.key("obj-000")), what="its end")
    with open(path, "wb") as f:
        f.write(b"\x0a\x0fdefault\0obj-000\x12\x05again")
    wait_until(lambda: same(m.key("obj-000"), b"again"), what="its return")


def test_a_bucket_of_mooncakes_that_stores_a_key_again(world):
    store, objects = copy(world, "bucket")
    m = Mount(world, source=f"offload:{store}", options=["refresh=50ms"])
    assert len(read(m.key("obj-000"))) == 1
    with open(os.path.join(store, "7356854959999.bucket"), "wb") as f:
        f.write(b"default\0obj-000Z")
    with open(os.path.join(store, "7356854959999.meta.part"), "wb") as f:
        f.write(b"\x08\x10\x12\x0fdefault\0obj-000\x1a\x04\x10\x0f\x18\x01")
    os.rename(os.path.join(store, "7356854959999.meta.part"), os.path.join(store, "7356854959999.meta"))
    wait_until(lambda: same(m.key("obj-000"), b"Z"), what="the younger copy")
    assert len(files_below(os.path.join(m.mnt, "tenants"))) == 200


def test_another_checkpoint(world):
    store, objects = copy(world, "offset_strict")
    m = Mount(world, source=f"offload:{store}", options=["refresh=50ms"])
    tenants = os.path.join(m.mnt, "tenants")
    assert len(files_below(tenants)) == 200
    with open(os.path.join(store, "kv_cache.meta"), "r+b") as f:
        f.truncate(4000)  # unreadable for a moment: what was read before stays
    wait_until(lambda: "what was read before is shown still" in m.log_text(), what="a word about it")
    assert len(files_below(tenants)) == 200
    for name in ("data", "meta"):
        shutil.copy(os.path.join(DATA, f"offset_relaxed/kv_cache.{name}"), os.path.join(store, "new"))
        os.rename(os.path.join(store, "new"), os.path.join(store, f"kv_cache.{name}"))
    wait_until(lambda: len(files_below(tenants)) == 60, what="the other checkpoint")
    for o in json.load(open(os.path.join(DATA, "offset_relaxed.json")))["objects"]:
        assert hashlib.sha256(read(os.path.join(tenants, o["tenant"], escape(o["key"])))).hexdigest() == o["sha256"]


def test_the_layout_is_named_or_recognised(world):
    store, objects = copy(world, "file_per_key")
    shutil.copy(os.path.join(DATA, "offset_crash/kv_cache.meta"), store)
    shutil.copy(os.path.join(DATA, "offset_crash/kv_cache.data"), store)
    m = Mount(world, source=f"offload:{store}", name="m", expect_failure=True)
    r = run(*m.command(), check=False)
    assert r.returncode == 1 and b"say which one is meant" in r.stderr and r.stderr.count(b"\n") == 1
    for name, count in (("file_per_key_storage_backend", 200), ("offset_allocator_storage_backend", 18)):
        v = Mount(world, source=f"offload:{store}", name=name[:4],
                  env={"MOONCAKE_OFFLOAD_STORAGE_BACKEND_DESCRIPTOR": name})
        assert len(files_below(os.path.join(v.mnt, "tenants"))) == count
        v.umount()
    os.rename(os.path.join(store, "file_per_key_dir"), os.path.join(store, "elsewhere"))
    v = Mount(world, source=f"offload:{store}", name="renamed",
              options=["backend=file_per_key_storage_backend", "fsdir=elsewhere"])
    assert len(files_below(os.path.join(v.mnt, "tenants"))) == 200


def test_what_is_no_store_is_refused_with_one_line(world):
    os.makedirs(world.path("empty"))
    store, _ = copy(world, "offset_strict")
    os.truncate(os.path.join(store, "kv_cache.meta"), 1000)
    for i, (bad, word) in enumerate((("empty", b"no offload directory"), ("absent", b"No such file"),
                                     ("store", b"kv_cache.meta"))):
        m = Mount(world, source=f"offload:{world.path(bad)}", name=f"m{i}", expect_failure=True)
        r = run(*m.command(), check=False)
        assert r.returncode == 1 and r.stderr.count(b"\n") == 1 and word in r.stderr, r.stderr
    assert not os.path.exists(world.path("absent"))
    assert os.listdir(world.path("empty")) == []


def test_confined_to_one_tenant(world):
    store, objects = copy(world, "bucket")
    m = Mount(world, source=f"offload:{store}", options=["tenant=tenant-a"])
    assert not os.path.exists(os.path.join(m.mnt, "tenants"))
    assert len(files_below(m.keys)) == sum(o["present"] and o["tenant"] == "tenant-a" for o in objects)


def test_an_older_file_in_the_place_of_a_newer_one(world):
    """Its time, which is the version, goes back; what is shown does not."""
    store, _ = copy(world, "file_per_key")
    path = os.path.join(store, "file_per_key_dir/m/e/default_obj-000")
    m = Mount(world, source=f"offload:{store}", options=["refresh=50ms"])
    versions = [int(os.getxattr(m.key("obj-000"), "user.mooncake.version"))]
    for i in range(3):
        with open(path + ".new", "wb") as f:
            f.write(b"\x0a\x0fdefault\0obj-000\x12\x05old-%d" % i)
        os.utime(path + ".new", (1000 - i, 1000 - i))
        os.rename(path + ".new", path)
        wait_until(lambda: same(m.key("obj-000"), b"old-%d" % i), what=f"old-{i}")
        versions.append(int(os.getxattr(m.key("obj-000"), "user.mooncake.version")))
    assert versions == sorted(set(versions))


def test_a_store_after_a_crash_is_shown_and_not_repaired(world):
    """Open journal with a torn end, a .tmp, a stranger: whoever only looks leaves them to the owner."""
    a = Mount(world, name="a")
    for i in range(10):
        with open(a.key(f"k{i}"), "wb") as f:
            f.write(b"%d" % i * 500)
    a.kill()
    run("umount", a.mnt)
    store = os.path.join(a.state, "backend")
    journal = next(f for f in os.listdir(store) if f.endswith(".journal"))
    with open(os.path.join(store, journal), "ab") as f:
        f.write(b"\x01\x02\x03\x04\xff\x00\x00\x00\x01torn")
    for name in ("7.meta.tmp", "notes"):
        open(os.path.join(store, name), "w").close()
    before = state_of(a.state)
    m = Mount(world, source=f"offload:{store}", name="view")
    assert {f: read(m.key(f)) for f in os.listdir(m.keys)} == {f"k{i}": b"%d" % i * 500 for i in range(10)}
    m.umount()
    assert state_of(a.state) == before
