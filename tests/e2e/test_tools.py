# SPDX-License-Identifier: Apache-2.0
"""Tools and real trees."""
import os
import random
import shutil
import signal

from harness import Master, Mount, run, wait_until


def tree_files(root):
    return sum(len(files) for _, _, files in os.walk(root))


def compare(a, b):
    r = run("diff", "-r", "--no-dereference", a, b, check=False, timeout=300)
    assert r.returncode == 0, r.stdout[:2000]


def copy_tree(world, src, want):
    """A tree of regular files, at least `want` of them, without links."""
    dst = world.path("source")
    run("rsync", "-a", "--no-links", "--no-devices", src + "/", dst + "/")
    assert tree_files(dst) >= want
    return dst


def test_rsync_in_and_out(world, mount):
    src = copy_tree(world, "/usr/include/linux", 500)
    run("rsync", "-a", src + "/", mount.key("t") + "/")
    compare(src, mount.key("t"))
    assert run("rsync", "-ai", src + "/", mount.key("t") + "/").stdout == b""
    out = world.path("out")
    run("rsync", "-a", mount.key("t") + "/", out + "/")
    compare(src, out)
    assert run("rsync", "-ai", mount.key("t") + "/", out + "/").stdout == b""
    shutil.rmtree(os.path.join(src, "netfilter"))
    run("rsync", "-a", "--delete", src + "/", mount.key("t") + "/")
    compare(src, mount.key("t"))


def test_cp_tar_find_rm(world, mount):
    src = copy_tree(world, "/usr/include/linux", 500)
    run("cp", "-a", src, mount.key("c"))
    compare(src, mount.key("c"))
    run("tar", "-C", mount.keys, "-cf", world.path("t.tar"), "c")
    os.mkdir(mount.key("x"))
    run("tar", "-C", mount.key("x"), "-xf", world.path("t.tar"))
    compare(src, mount.key("x", "c"))
    found = run("find", mount.key("x"), "-type", "f").stdout.count(b"\n")
    assert found == tree_files(src)
    run("rm", "-r", mount.key("x"), mount.key("c"))
    assert os.listdir(mount.keys) == []


def test_real_tree_survives_everything(world):
    """/usr/include and large chunks: copied in, snapshotted, all killed, restored on a fresh state directory from
    the rsynced snapshot and the storage, compared."""
    src = copy_tree(world, "/usr/include", 5000)
    chunks = os.path.join(src, "chunks")
    os.mkdir(chunks)
    r = random.Random(11)
    for i, mib in enumerate((1, 2, 3, 4, 5, 8, 16, 32)):
        with open(os.path.join(chunks, f"chunk{i}"), "wb") as f:
            f.write(r.randbytes(mib << 20))
    # A directory is there while a key lies below it; those that mkdir alone made are the mount's.
    run("find", src, "-type", "d", "-empty", "-delete")
    m = Mount(world, name="first")
    run("cp", "-a", src, m.key("tree"), timeout=300)
    compare(src, m.key("tree"))
    ident = m.snapshot()
    backup = world.path("backup/mooncake_master_snapshot/mooncake_cluster")
    os.makedirs(backup)
    run("rsync", "-a", os.path.join(m.mnt, "snapshots", ident), backup + "/")
    m.kill()

    fresh = world.path("fresh-state")
    os.makedirs(fresh)
    run("umount", "-l", m.mnt)
    shutil.move(os.path.join(m.state, "backend"), os.path.join(fresh, "backend"))
    shutil.copy(os.path.join(m.state, "node_id"), fresh)
    shutil.copytree(world.path("backup"), os.path.join(fresh, "snapshots"))
    again = Mount(world, name="second", state=fresh)
    compare(src, again.key("tree"))
    text = open(os.path.join(fresh, "master.log")).read()
    assert f"snapshot {ident} restored" in text
