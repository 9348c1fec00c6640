# SPDX-License-Identifier: Apache-2.0
"""history/<id>/<tenant>/...: the directory as it stood at a snapshot."""
import errno
import json
import os
import shutil

import pytest
from harness import Master, Mount, read, run

DATA = os.path.join(os.path.dirname(__file__), "../data")


def write(path, data):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as f:
        f.write(data)


def tree(root):
    """{path: (size, mode, mtime, key)} of every file below."""
    out = {}
    for folder, _, files in os.walk(root, onerror=lambda e: (_ for _ in ()).throw(e)):
        for name in files:
            path = os.path.join(folder, name)
            st = os.lstat(path)
            out[os.path.relpath(path, root)] = (st.st_size, st.st_mode, st.st_mtime_ns,
                                                os.getxattr(path, "user.mooncake.key"))
    return out


NAMES = ["plain", "dir/a", "dir/b", "dir/sub/c", "both", "both-2", "both%25x", "x" * 255, "a/b/c/d/e",
         "%-/empty", "tail/%-", "with space", "\u00e4", "dir-", "dir0"]


def test_history_is_the_tree_of_then(mount, world):
    for i, name in enumerate(NAMES):
        write(mount.key(name), b"x" * i)
    write(world.path("value"), b"beside")
    mount.ctl("put", "both/below/it", world.path("value"))
    mount.ctl("put", "L" * 3000 + "/k", world.path("value"))
    mount.ctl("put", "L" * 3000, world.path("value"))
    os.chmod(mount.key("dir/a"), 0o600)
    os.utime(mount.key("dir/b"), ns=(0, 123456789))
    then = tree(mount.keys)
    assert "both/%=" in then and len(then) == len(NAMES) + 3
    ident = mount.snapshot()
    for name in then:
        os.unlink(mount.key(name))
    assert tree(mount.keys) == {}
    history = os.path.join(mount.mnt, "history")
    assert os.listdir(history) == [ident]
    assert os.listdir(os.path.join(history, ident)) == ["default"]
    root = os.path.join(history, ident, "default")
    assert tree(root) == then
    assert sorted(os.listdir(root)) == sorted({p.split("/")[0] for p in then})
    path = os.path.join(root, "dir/a")
    assert os.getxattr(path, "user.mooncake.tenant") == b"default"
    assert os.getxattr(path, "user.mooncake.size") == b"1"
    assert json.loads(os.getxattr(path, "user.mooncake.replicas"))[0]["status"] == 3
    for absent in ("nothing", "dir/nothing", "plain/x", "%zz"):
        with pytest.raises(OSError):
            os.stat(os.path.join(root, absent))
    for absent in ("20200101_000000_000", "x"):
        assert not os.path.exists(os.path.join(history, absent))


def test_bytes_while_the_version_lives(mount):
    for name in ("kept", "replaced", "removed"):
        write(mount.key(name), b"old " + name.encode())
    write(mount.key("large"), b"L" * (3 << 20))
    ident = mount.snapshot()
    write(mount.key("replaced"), b"new")
    os.unlink(mount.key("removed"))
    root = os.path.join(mount.mnt, "history", ident, "default")
    assert sorted(os.listdir(root)) == ["kept", "large", "removed", "replaced"]
    assert read(os.path.join(root, "kept")) == b"old kept"
    assert read(os.path.join(root, "large")) == b"L" * (3 << 20)
    for name in ("replaced", "removed"):
        assert os.stat(os.path.join(root, name)).st_size == len(b"old " + name.encode())
        with pytest.raises(OSError) as e:
            read(os.path.join(root, name))
        assert e.value.errno == errno.ENODATA


def test_read_only(mount):
    write(mount.key("d/k"), b"1")
    root = os.path.join(mount.mnt, "history", mount.snapshot(), "default")
    for action in (lambda: os.unlink(root + "/d/k"), lambda: open(root + "/d/k", "ab"),
                   lambda: os.rename(root + "/d/k", root + "/x"), lambda: os.mkdir(root + "/y"),
                   lambda: open(root + "/new", "wb"), lambda: os.truncate(root + "/d/k", 0),
                   lambda: os.chmod(root + "/d/k", 0o600), lambda: os.rmdir(root + "/d"),
                   lambda: os.setxattr(root + "/d/k", "user.mooncake.hard_pin", b"1")):
        with pytest.raises(OSError):
            action()
    assert read(root + "/d/k") == b"1"


def test_the_index_is_found_again_and_a_damaged_one_is_made_anew(mount):
    for i in range(100):
        write(mount.key(f"d{i % 3}/k{i}"), b"x")
    ident = mount.snapshot()
    root = os.path.join(mount.mnt, "history", ident, "default")
    then = tree(root)
    assert len(then) == 100
    index = os.path.join(mount.state, "history", ident + ".index")
    data = read(index)
    made = os.stat(index).st_mtime_ns
    mount.umount()
    mount.start()
    assert tree(root) == then and os.stat(index).st_mtime_ns == made
    for bad in (data[:100], b"", data[:60] + b"\xff" * 40 + data[100:], b"x" + data[1:]):
        mount.umount()
        write(index, bad)
        mount.start()
        assert tree(root) == then
        assert read(index) == data


def test_retention_takes_history_along(mount):
    write(mount.key("k"), b"1")
    ids = [mount.snapshot()]
    history = os.path.join(mount.mnt, "history")
    assert os.listdir(os.path.join(history, ids[0])) == ["default"]
    ids += [mount.snapshot() for _ in range(2)]
    assert sorted(os.listdir(history)) == ids[1:]
    assert os.listdir(os.path.join(history, ids[2], "default")) == ["k"]
    assert os.listdir(os.path.join(mount.state, "history")) == [ids[2] + ".index"]


def test_tenants_and_a_snapshot_by_mooncake(world):
    snaps = world.path("snaps")
    shutil.copytree(os.path.join(DATA, "snapshot"), snaps)
    master = Master(world, "--enable_snapshot", "--cluster_id=golden", snapshots=snaps)
    m = Mount(world, source=master.address)
    latest = os.readlink(os.path.join(m.mnt, "snapshots/latest"))
    root = os.path.join(m.mnt, "history", latest)
    assert sorted(os.listdir(root)) == ["default", "tenant-a", "tenant-b"]
    shown = json.loads(m.ctl("snapshot", "show", latest, "--json").stdout)
    files = tree(root)
    assert len(files) == shown["complete"]
    path = next(p for p, f in files.items() if f[0] > 0)
    with pytest.raises(OSError) as e:
        read(os.path.join(root, path))
    assert e.value.errno == errno.ENODATA
    confined = Mount(world, source=master.address, name="b", options=["tenant=tenant-a"])
    assert os.listdir(os.path.join(confined.mnt, "history", latest)) == ["tenant-a"]
    assert not os.path.exists(os.path.join(confined.mnt, "history", latest, "default"))


def test_on_a_read_only_mount(world):
    snaps = world.path("snaps")
    master = Master(world, "--enable_snapshot", snapshots=snaps)
    a = Mount(world, source=master.address, name="a")
    write(a.key("kept"), b"kept")
    write(a.key("gone"), b"gone")
    ident = a.snapshot()
    os.unlink(a.key("gone"))
    b = Mount(world, source=master.address, name="b", options=["ro"])
    root = os.path.join(b.mnt, "history", ident, "default")
    assert sorted(os.listdir(root)) == ["gone", "kept"]
    assert read(os.path.join(root, "kept")) == b"kept"
    with pytest.raises(OSError) as e:
        read(os.path.join(root, "gone"))
    assert e.value.errno == errno.ENODATA


def files_of(root):
    return {os.path.join(d, f): (os.stat(os.path.join(d, f)).st_mtime_ns, read(os.path.join(d, f)))
            for d, _, files in os.walk(root) for f in files}


def test_snapshot_source(world):
    """A store's snapshots without its master: read-only, in the end as it was."""
    store = world.path("a place")
    shutil.copytree(os.path.join(DATA, "snapshot"), store)
    before = files_of(store)
    view = Mount(world, source=f"snapshot:{store}", name="view")
    latest = os.readlink(os.path.join(view.mnt, "snapshots/latest"))
    shown = json.loads(view.ctl("snapshot", "show", "--json").stdout)
    assert shown["id"] == latest
    assert len(tree(os.path.join(view.mnt, "history", latest))) == shown["complete"]
    assert read(os.path.join(view.mnt, "snapshots", latest, "metadata")) == \
        before[os.path.join(store, "mooncake_master_snapshot/golden", latest, "metadata")][1]
    with pytest.raises(OSError) as e:
        open(view.key("k"), "wb")
    assert e.value.errno == errno.EROFS
    for command in (["create"], ["prune", "--keep=1"]):
        assert view.ctl("snapshot", *command, check=False).returncode == 1
    view.umount()
    assert files_of(store) == before
    for bad in (world.path("absent"), world.path("view-state")):
        m = Mount(world, source=f"snapshot:{bad}", name="bad", expect_failure=True)
        r = run(*m.command(), check=False)
        assert r.returncode == 1 and r.stderr.count(b"\n") == 1
    assert not os.path.exists(world.path("absent"))
