# SPDX-License-Identifier: Apache-2.0
"""mooncakefsctl snapshot and restore --check: of a running master, and of snapshots wherever they lie."""
import json
import os
import shutil

import pytest
from harness import CTL, Master, Mount, Rpc, run, write

DATA = os.path.join(os.path.dirname(__file__), "../data")


def ctl(*args, check=True):
    return run(CTL, *args, check=check)


def ctl_json(*args):
    return json.loads(ctl(*args, "--json").stdout)


@pytest.fixture
def two(mount):
    """A mount with two snapshots between which keys were added, removed and changed."""
    os.makedirs(mount.key("dir"))
    for i in range(100):
        write(mount.key(f"k{i}"), b"x" * i)
    mount.a = mount.snapshot()
    for i in range(5):
        os.unlink(mount.key(f"k{i}"))
    write(mount.key("k50"), b"y" * 50)
    os.chmod(mount.key("k51"), 0o600)
    write(mount.key("dir/new"), b"z")
    mount.b = mount.snapshot()
    mount.store = os.path.join(mount.state, "snapshots")
    return mount


def places(m):
    """Options that mean the same snapshots, online and offline."""
    return [["--mount", m.mnt], ["--store", m.store],
            ["--store", os.path.join(m.store, "mooncake_master_snapshot")],
            ["--store", os.path.join(m.store, "mooncake_master_snapshot/mooncake_cluster")]]


def test_list_show_verify(two):
    for where in places(two):
        assert [s["id"] for s in ctl_json("snapshot", "list", *where)] == [two.b, two.a]
        assert "latest" in ctl("snapshot", "list", *where).stdout.decode().splitlines()[0]
        for word, objects in ((two.a, 100), (two.b, 96), ("latest", 96)):
            s = ctl_json("snapshot", "show", word, *where)
            assert s["objects"] == s["complete"] == objects and s["mooncakefs"] is True
            assert s["replicas"]["local_disk"] == objects
            assert s["tenants"] == {"default": {"objects": objects, "bytes": s["bytes"]}}
            assert set(s["files"]) == {"metadata", "segments", "task_manager", "manifest.txt",
                                       "descriptor.txt", "mooncakefs"}
        assert "96 of" in ctl("snapshot", "show", *where).stdout.decode()
        v = ctl_json("snapshot", "verify", *where)
        assert [(s["id"], s["ok"], s["objects"]) for s in v] == [(two.b, True, 96),
                                                                 (two.a, True, 100)]


def test_diff(two):
    want = {("added", "dir/new"), ("changed", "k50"), ("changed", "k51"),
            *(("removed", f"k{i}") for i in range(5))}
    for where in places(two):
        d = ctl_json("snapshot", "diff", two.a, two.b, *where)
        assert {(c["change"], c["key"]) for c in d["changes"]} == want
        assert (d["added"], d["removed"], d["changed"], d["same"]) == (1, 5, 2, 93)
    folder = os.path.join(two.store, "mooncake_master_snapshot/mooncake_cluster")
    text = ctl("snapshot", "diff", os.path.join(folder, two.b), os.path.join(folder, two.a))
    assert b"+ default/k0\n" in text.stdout and b"- default/dir/new\n" in text.stdout
    assert ctl_json("snapshot", "diff", two.a, two.a, "--store", two.store)["changes"] == []


def test_damage_is_found_and_named(two, world):
    folder = os.path.join(two.store, "mooncake_master_snapshot/mooncake_cluster", two.b)
    for file in ("metadata", "segments", "task_manager", "mooncakefs", "manifest.txt",
                 "descriptor.txt"):
        copy = world.path("copy-" + file, two.b)
        shutil.copytree(folder, copy)
        with open(os.path.join(copy, file), "r+b") as f:
            data = bytearray(f.read())
            data[len(data) * 2 // 3] ^= 0x55
            f.seek(0)
            f.write(data)
        r = ctl("snapshot", "verify", copy, check=False)
        if file == "descriptor.txt" and r.returncode == 1 and b"holds no snapshots" in r.stderr:
            continue
        assert r.returncode == 1 and b"DAMAGED" in r.stdout, file
        assert file.encode() in r.stdout


def test_mooncakes_own(world):
    """What Mooncake wrote: without our file, in a folder of any name."""
    folder = os.path.join(DATA, "snapshot/mooncake_master_snapshot/golden")
    latest = open(os.path.join(folder, "latest.txt")).read()
    s = ctl_json("snapshot", "show", os.path.join(folder, latest))
    assert s["mooncakefs"] is False and len(s["segments"]) > 0
    listed = sum(t["objects"] for t in s["tenants"].values())
    assert listed == s["objects"]
    shutil.copytree(folder, world.path("backup/any"))
    for where in (os.path.join(DATA, "snapshot"), folder, world.path("backup"),
                  world.path("backup/any"), world.path("backup/any", latest)):
        r = ctl_json("restore", "--check", where)
        assert r["keys_kept"] == s["complete"] and r["id"] == latest
        assert r["keys_dropped"] == s["objects"] - s["complete"]
        assert r["dropped"] == {"no_complete_replica": r["keys_dropped"], "duplicate": 0, "memory_lost": 0}
        assert r["replicas"] >= r["keys_kept"] and r["seconds"] >= 0
    assert all(v["ok"] for v in ctl_json("snapshot", "verify", folder))
    ids = [e["id"] for e in ctl_json("snapshot", "list", folder)]
    d = ctl_json("snapshot", "diff", os.path.join(folder, ids[-1]), os.path.join(folder, ids[0]))
    older = ctl_json("snapshot", "show", os.path.join(folder, ids[-1]))["objects"]
    assert older + d["added"] - d["removed"] == s["objects"]


def test_restore_check_takes_the_next_candidate(two):
    folder = os.path.join(two.store, "mooncake_master_snapshot/mooncake_cluster", two.b)
    os.truncate(os.path.join(folder, "metadata"), 100)
    for where in places(two):
        r = ctl_json("restore", "--check", *where)
        assert r["id"] == two.a and r["keys_kept"] == 100
        assert [f["id"] for f in r["failed_candidates"]] == [two.b]
    r = ctl("restore", "--check", two.b, "--store", two.store, check=False)
    assert r.returncode == 1 and b"metadata" in r.stderr


def test_prune(two):
    folder = os.path.join(two.store, "mooncake_master_snapshot/mooncake_cluster")
    orphan = os.path.join(folder, "20200101_000000_000")
    os.mkdir(orphan)
    write(os.path.join(orphan, "metadata"), b"half")
    write(os.path.join(folder, two.b, "metadata.tmp.1.1"), b"half")
    young = ctl_json("snapshot", "prune", "--mount", two.mnt)
    assert young == {"snapshots": 0, "files": 0} and os.path.exists(orphan)
    os.utime(os.path.join(orphan, "metadata"), (0, 0))
    assert ctl_json("snapshot", "prune", "--mount", two.mnt) == {"snapshots": 0, "files": 1}
    assert not os.path.exists(orphan)
    os.utime(os.path.join(folder, two.b, "metadata.tmp.1.1"), (0, 0))
    assert ctl_json("snapshot", "prune", "--keep=1", "--store", two.store) == {"snapshots": 1,
                                                                              "files": 1}
    assert [s["id"] for s in ctl_json("snapshot", "list", "--mount", two.mnt)] == [two.b]
    assert ctl_json("snapshot", "verify", two.b, "--store", two.store)[0]["ok"]


def test_wrong_words(two, world):
    for args, status in ((["snapshot"], 2), (["snapshot", "nothing"], 2), (["restore"], 2),
                         (["snapshot", "diff", two.a], 2),
                         (["snapshot", "show", "20200101_000000_000", "--store", two.store], 1),
                         (["snapshot", "list", world.path("absent")], 1),
                         (["snapshot", "list", two.keys], 1)):
        assert ctl(*args, check=False).returncode == status, args
    assert not os.path.exists(world.path("absent")), "looking makes nothing"
    os.makedirs(world.path("several/mooncake_master_snapshot"))
    source = os.path.join(two.store, "mooncake_master_snapshot/mooncake_cluster")
    for name in ("one", "two"):
        shutil.copytree(source, world.path("several/mooncake_master_snapshot", name))
    r = ctl("snapshot", "list", world.path("several"), check=False)
    assert r.returncode == 1 and b"--cluster" in r.stderr
    assert len(ctl_json("snapshot", "list", world.path("several"), "--cluster=two")) == 2


def test_backup_dir_takes_what_the_store_refuses(world):
    snaps, backup = world.path("snaps"), world.path("kept")
    master = Master(world, "--enable_snapshot", f"--snapshot_backup_dir={backup}", snapshots=snaps)
    m = Mount(world, source=master.address)
    write(m.key("k"), b"1")
    os.makedirs(snaps, exist_ok=True)
    write(os.path.join(snaps, "mooncake_master_snapshot"), b"a file where the folder should be")
    assert m.ctl("snapshot", "create", check=False).returncode == 1
    assert ctl_json("restore", "--check", backup)["keys_kept"] == 1
    m.umount()


def test_bench_snapshot(world):
    """The benchmark checks what it measures, and leaves nothing behind."""
    out = run(CTL, "bench", "snapshot", "5000", world.path("bench")).stdout.splitlines()[-1]
    out = json.loads(out)
    assert out["keys"] == 5000 and out["checkpoint_s"] > 0 and out["restart_s"] > 0
    assert out["master_kib"] > 0 and out["checkpoint_private_kib"] >= 0
    assert sum(len(files) for _, _, files in os.walk(world.path("bench"))) == 0
