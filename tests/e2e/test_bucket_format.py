# SPDX-License-Identifier: Apache-2.0
"""What the bucket store writes, read by an independent reader: sealed, open, after every kind of change, after SIGKILL."""
import os

import pytest

import bucket_reader
from harness import Mount, wait_until


def content(i, size):
    return (b"%06d-" % i * (size // 7 + 1))[:size]


def put(m, want, tenant, name, data):
    path = os.path.join(m.mnt, "tenants", tenant, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as f:
        f.write(data)
    want[tenant.encode(), name.encode()] = data


def change(m, want):
    """Puts of many sizes, two tenants, large objects, then overwrites, removals and renames."""
    for i in range(120):
        put(m, want, ("default", "tenant-b")[i % 2], f"dir{i % 5}/k{i:03d}", content(i, (0, 1, 7, 4095, 4096, 9000)[i % 6]))
    for i in range(3):
        put(m, want, "default", f"large{i}", content(i, 150_000))
    for i in range(0, 120, 7):
        put(m, want, ("default", "tenant-b")[i % 2], f"dir{i % 5}/k{i:03d}", content(1000 + i, 500))
    for i in range(0, 120, 11):
        tenant, name = ("default", "tenant-b")[i % 2], f"dir{i % 5}/k{i:03d}"
        os.unlink(os.path.join(m.mnt, "tenants", tenant, name))
        del want[tenant.encode(), name.encode()]
    for old, new in (("large0", "renamed"), ("large1", "large2"), ("dir1/k001", "dir1/n001"), ("dir3/k003", "a longer name")):
        tenant = "default" if old.startswith("large") else "tenant-b"
        os.rename(os.path.join(m.mnt, "tenants", tenant, old), os.path.join(m.mnt, "tenants", tenant, new))
        want[tenant.encode(), new.encode()] = want.pop((tenant.encode(), old.encode()))


@pytest.fixture
def store(world):
    m = Mount(world, options=["single_object_min=100000", "bucket_keys_limit=40"])
    m.dir = os.path.join(m.state, "backend")
    return m


def test_sealed_buckets(store):
    want = {}
    change(store, want)
    store.umount()
    assert bucket_reader.idents(store.dir, "journal") == []
    assert bucket_reader.read_store(store.dir) == want
    # Mooncake, which has no versions and takes the first copy that it meets, finds one of each and the right one.
    assert bucket_reader.read_as_mooncake(store.dir) == {name: [data] for name, data in want.items()}


def test_an_open_bucket(store):
    want = {}
    change(store, want)
    assert len(bucket_reader.idents(store.dir, "journal")) >= 1
    # Versions that were replaced go in the background.
    assert bucket_reader.read_store(store.dir) == want


def test_after_sigkill_and_a_recovery(store):
    want = {}
    change(store, want)
    store.kill()
    assert bucket_reader.read_store(store.dir) == want
    store.remount()
    for i in range(10):
        put(store, want, "default", f"later{i}", content(i, 3000))
    store.umount()
    assert bucket_reader.idents(store.dir, "journal") == []
    assert bucket_reader.read_store(store.dir) == want
    assert bucket_reader.read_as_mooncake(store.dir) == {name: [data] for name, data in want.items()}


@pytest.mark.parametrize("end", ["umount", "kill"])
def test_thin_buckets_become_few(world, end):
    """Nobody sees more of it than fewer files: not who has an object open, nor the next start, nor Mooncake."""
    m = Mount(world, options=["single_object_min=100000", "bucket_keys_limit=40", "flush_interval=20ms"])
    directory, want = os.path.join(m.state, "backend"), {}
    for i in range(800):
        put(m, want, "default", f"k{i:03d}", content(i, 1 + i * 11 % 9000))
    before = len(bucket_reader.idents(directory, "bucket"))
    with open(m.key("k007"), "rb") as held:
        for i in range(800):
            if i % 10 != 7:
                os.unlink(m.key(f"k{i:03d}"))
                del want[b"default", f"k{i:03d}".encode()]
        wait_until(lambda: len(bucket_reader.idents(directory, "bucket")) <= before // 4, what="fewer buckets")
        assert held.read() == want[b"default", b"k007"]
    assert m.stats()["store_compactions_total"] > 0
    os.rename(m.key("k017"), m.key("renamed"))
    want[b"default", b"renamed"] = want.pop((b"default", b"k017"))
    for _ in range(2):
        assert sorted(os.listdir(m.key(""))) == sorted(name.decode() for _, name in want)
        for (_, name), data in want.items():
            with open(m.key(name.decode()), "rb") as f:
                assert f.read() == data
        getattr(m, end)()
        assert bucket_reader.read_store(directory) == want
        m.remount()
    m.umount()
    assert bucket_reader.read_as_mooncake(directory) == {name: [data] for name, data in want.items()}


def test_the_reader_reads_what_mooncake_wrote():
    """The reader itself, against Mooncake's own listing."""
    import hashlib
    import json
    data = os.path.join(os.path.dirname(__file__), "../data")
    for name in ("bucket", "bucket_single"):
        listing = json.load(open(os.path.join(data, name + ".json")))["objects"]
        got = bucket_reader.read_store(os.path.join(data, name))
        assert {k: hashlib.sha256(v).hexdigest() for k, v in got.items()} == \
            {(o["tenant"].encode(), o["key"].encode()): o["sha256"] for o in listing if o["present"]}
