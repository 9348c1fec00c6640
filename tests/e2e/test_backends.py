# SPDX-License-Identifier: Apache-2.0
"""Every backend that can be written, from end to end: files, restarts, where an object lies, damage, fsck, views."""
import json
import os
import subprocess

import pytest
from harness import CTL, Master, Mount, run, wait_until, write

BUCKET, FILES = "bucket_storage_backend", "file_per_key_storage_backend"
WRITABLE = [BUCKET, FILES]
SIZES = [0, 1, 5000, 300000, 3 << 20]


def content(name, size):
    return (name.encode() + b"-") * (size // (len(name) + 1) + 1)


@pytest.fixture(params=WRITABLE)
def store(request, world, monkeypatch):
    """A mount with this backend, whatever the suite is run with."""
    monkeypatch.delenv("MCFS_OPTIONS", raising=False)
    m = Mount(world, options=["backend=" + request.param])
    m.backend = request.param
    return m


def fill(m, folder="d", count=25):
    os.makedirs(m.key(folder), exist_ok=True)
    names = {}
    for i in range(count):
        size = SIZES[i % len(SIZES)]
        name = f"{folder}/f{i}"
        names[name] = content(name, size)[:size]
        write(m.key(name), names[name])
    return names


def check(m, names):
    for name, data in names.items():
        assert open(m.key(name), "rb").read() == data, name


def fsck(m, *args, code=0):
    r = run(CTL, "fsck", m.state, "--json", *args, check=False)
    assert r.returncode == code, r.stdout + r.stderr
    return json.loads(r.stdout)


def place(m, name):
    """Where it lies, the file's whole path."""
    return json.loads(m.ctl("locate", m.key(name), "--json").stdout)["replicas"][0]["place"]


def test_files_renames_and_restarts(store):
    names = fill(store)
    names["d/new name"] = names.pop("d/f3")
    os.rename(store.key("d/f3"), store.key("d/new name"))
    names["d/f4"] = names.pop("d/f8")
    os.rename(store.key("d/f8"), store.key("d/f4"))
    os.unlink(store.key("d/f9"))
    del names["d/f9"]
    os.chmod(store.key("d/f2"), 0o640)
    for kill in (True, False, True):
        check(store, names)
        assert sorted(os.listdir(store.key("d"))) == sorted(n[2:] for n in names)
        assert os.stat(store.key("d/f2")).st_mode & 0o777 == 0o640
        if kill:
            store.kill()
        else:
            store.umount()
        out = fsck(store)
        assert out["clean"] and out["layout"] == store.backend and out["objects"] == len(names), out
        store.start()
    check(store, names)


def test_locate_shows_file_and_offset(store):
    names = fill(store, count=5)
    for name, data in names.items():
        p = place(store, name)
        with open(p["file"], "rb") as f:
            whole = os.fstat(f.fileno()).st_size == len(data)
            f.seek(p["offset"])
            assert f.read(p["length"]) == data
        if store.backend == FILES:
            assert whole and p["whole_file"] and p["offset"] == 0, p


@pytest.mark.skipif(os.geteuid() != 0, reason="the kernel allows it to root alone")
def test_objects_of_middle_size_pass_through_with_a_file_per_key(store):
    """300,000 bytes are a part of a bucket, but a file of their own here."""
    write(store.key("middle"), content("middle", 300000))
    store.umount()
    store.start()
    before = store.stats()["fuse_passthrough_opens_total"]
    assert open(store.key("middle"), "rb").read() == content("middle", 300000)
    assert store.stats()["fuse_passthrough_opens_total"] - before == (store.backend == FILES)


def test_damage_is_found_and_dropped(store):
    names = fill(store)
    p = place(store, "d/f3")
    store.umount()
    with open(p["file"], "r+b") as f:
        f.seek(p["offset"] + 1000)
        f.write(b"\xff\x00")
    bad, = fsck(store, code=1)["findings"]
    assert bad["kind"] == "checksum" and bad["key"] == "d/f3"
    r = json.loads(run(CTL, "scrub", os.path.join(store.state, "backend"), "--json", check=False).stdout)
    assert r["damage"] == 1
    out = fsck(store, "--repair")
    assert out["clean"] and out["findings"][0]["repaired"]
    store.start()
    del names["d/f3"]
    check(store, names)
    assert not os.path.exists(store.key("d/f3"))


def test_a_view_while_the_owner_writes(store, world, monkeypatch):
    names = fill(store)
    view = Mount(world, source=f"offload:{store.state}", name="view", options=["refresh=100ms"])
    check(view, names)
    more = fill(store, folder="e")
    os.unlink(store.key("d/f1"))
    del names["d/f1"]
    wait_until(lambda: os.path.isdir(view.key("e")) and len(os.listdir(view.key("e"))) == len(more) and
               not os.path.exists(view.key("d/f1")), what="sight of what was written since")
    check(view, {**names, **more})
    with pytest.raises(OSError):
        open(view.key("d/x"), "wb")
    store.kill()
    check(view, {**names, **more})


def test_nodes_of_a_cluster(world, monkeypatch):
    """A node with one layout reads from nodes with another."""
    monkeypatch.delenv("MCFS_OPTIONS", raising=False)
    master = Master(world)
    nodes = [Mount(world, source=master.address, name=b, options=["backend=" + b, "listen=127.0.0.1:0"])
             for b in WRITABLE]
    names = [fill(m, folder=f"of{i}") for i, m in enumerate(nodes)]
    for m in nodes:
        for n in names:
            check(m, n)
    for m in nodes:
        m.kill()
        m.start()
    for m in nodes:
        for n in names:
            check(m, n)


@pytest.mark.parametrize("had,chosen", [(BUCKET, FILES), (FILES, BUCKET)])
def test_another_backends_state_directory_is_refused(world, monkeypatch, had, chosen):
    monkeypatch.delenv("MCFS_OPTIONS", raising=False)
    m = Mount(world, options=["backend=" + had])
    names = fill(m, count=5)
    m.umount()
    m.options = ["backend=" + chosen]
    r = subprocess.run(m.command(), env=m.env, capture_output=True)
    assert r.returncode != 0
    assert had in r.stderr.decode() and "backend=" + had in r.stderr.decode()
    m.options = ["backend=" + had]
    m.start()
    check(m, names)
