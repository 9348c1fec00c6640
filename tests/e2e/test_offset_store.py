# SPDX-License-Identifier: Apache-2.0
"""A node whose store is the offset allocator's: what it writes, read by an independent reader, in each mode and after SIGKILL."""
import json
import os

import pytest

import offset_reader
from harness import CTL, Mount, run
from test_bucket_format import change, content, put

BACKEND = "backend=offset_allocator_storage_backend"


def node(world, *options, **kw):
    m = Mount(world, options=[BACKEND, *options], **kw)
    m.dir = os.path.join(m.state, "backend")
    return m


def by_name(found):
    return {tuple(key.split(b"\0", 1)): value for key, value in found.items()}


def check(m, want):
    """The reader finds what is wanted by our files, and fsck and scrub find nothing wrong."""
    found = offset_reader.ours(m.dir)
    assert by_name({key: value for (key, _), value in found.items()}) == want and len(found) == len(want)
    for command in ("fsck", "scrub"):
        out = json.loads(run(CTL, command, "--json", m.dir).stdout)
        assert out["clean"] and out["objects"] == len(want), out
        assert not any(f["damage"] for f in out["findings"]), out


@pytest.mark.parametrize("mode", ["relaxed", "strict"])
def test_clean_end_and_kill(world, mode):
    m = node(world, f"offset_persist={mode}", "capacity=64M")
    want = {}
    change(m, want)
    m.kill()
    check(m, want)
    m.remount()
    for (tenant, name), data in want.items():
        with open(os.path.join(m.mnt, "tenants", tenant.decode(), name.decode()), "rb") as f:
            assert f.read() == data
    put(m, want, "default", "after", content(7, 200_000))
    put(m, want, "default", "large2", content(8, 10))
    m.umount()
    check(m, want)
    assert by_name({k: v for k, (_, v) in offset_reader.mooncake(m.dir).items()}) == want


def test_a_checkpoint_is_what_mooncake_goes_on_with(world):
    m = node(world, "offset_checkpoint=200ms", "capacity=64M")
    want = {}
    change(m, want)
    before = os.stat(os.path.join(m.dir, "kv_cache.meta")).st_ino
    put(m, want, "default", "last", b"last")
    for _ in range(600):
        found = by_name({k: v for k, (_, v) in offset_reader.mooncake(m.dir).items()})
        if found == want:
            break
        run("sleep", "0.1")
    assert found == want and os.stat(os.path.join(m.dir, "kv_cache.meta")).st_ino != before
    m.kill()
    check(m, want)


def test_disabled_keeps_nothing(world):
    m = node(world, "offset_persist=disabled", "capacity=64M")
    with open(m.key("a"), "wb") as f:
        f.write(b"x" * 5000)
    assert open(m.key("a"), "rb").read() == b"x" * 5000
    assert not os.path.exists(os.path.join(m.dir, "kv_cache.meta"))
    m.umount()
    m.remount()
    assert os.listdir(m.keys) == []


def test_a_full_store_is_enospc_and_keeps_the_old(world):
    m = node(world, "capacity=4M")
    with open(m.key("a"), "wb") as f:
        f.write(b"old" * 500_000)
    with pytest.raises(OSError) as e:
        with open(m.key("a"), "wb") as f:
            f.write(b"new" * 1_000_000)
    assert e.value.errno == 28
    assert open(m.key("a"), "rb").read() == b"old" * 500_000
    os.unlink(m.key("a"))
    with open(m.key("b"), "wb") as f:
        f.write(b"b" * 3_000_000)


def test_another_layout_is_refused(world):
    m = Mount(world)
    with open(m.key("a"), "wb") as f:
        f.write(b"a")
    m.umount()
    m.options = [BACKEND]
    r = run(*m.command(), check=False)
    assert r.returncode and b"bucket_storage_backend" in r.stderr
    m.options = []
    m.remount()
    assert open(m.key("a"), "rb").read() == b"a"


def test_our_files_are_no_strangers_of_the_buckets(world):
    m = node(world, "capacity=16M")
    with open(m.key("a"), "wb") as f:
        f.write(b"a")
    m.umount()
    m.options = []
    r = run(*m.command(), check=False)
    assert r.returncode and b"offset_allocator_storage_backend" in r.stderr
    m.options = [BACKEND]
    m.remount()
    assert open(m.key("a"), "rb").read() == b"a"
