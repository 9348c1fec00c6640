# SPDX-License-Identifier: Apache-2.0
"""What the bucket store writes, read by an independent reader: sealed, open, after every kind of change, after SIGKILL."""
import os

import pytest

import bucket_reader
from harness import Mount


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
