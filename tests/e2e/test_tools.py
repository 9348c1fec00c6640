# SPDX-License-Identifier: Apache-2.0
"""Tools and real trees."""
import hashlib
import os
import random
import shutil
import signal
import subprocess
import time

import pytest
from harness import Mount, run, wait_until


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


def sha256(path):
    with open(path, "rb") as f:
        return hashlib.sha256(f.read()).hexdigest()


def test_mv_and_cp(world, mount):
    """Within the mount, in, out; directories with keys in them are copied by mv, as between file systems."""
    src = copy_tree(world, "/usr/include/linux/netfilter", 50)
    run("cp", "-a", src, mount.key("a"))
    run("mv", mount.key("a"), mount.key("b"))
    assert os.listdir(mount.keys) == ["b"]
    compare(src, mount.key("b"))
    run("mv", mount.key("b", "nf_log.h"), mount.key("b", "renamed.h"))
    run("mv", mount.key("b", "renamed.h"), mount.key("b", "nf_log.h"))
    run("cp", "--reflink=auto", "--sparse=always", mount.key("b", "nf_log.h"), mount.key("copy"))
    run("cmp", mount.key("copy"), os.path.join(src, "nf_log.h"))
    run("mv", mount.key("b"), world.path("out"))
    compare(src, world.path("out"))
    assert os.listdir(mount.keys) == ["copy"]


def group_lives(group):
    try:
        os.killpg(group, 0)
        return True
    except ProcessLookupError:
        return False


@pytest.mark.parametrize("words", [["--partial"], ["--partial", "--inplace"], ["--partial-dir=.part"]])
def test_rsync_interrupted_and_resumed(world, mount, words):
    src = world.path("src")
    os.mkdir(src)
    for i in range(3):
        with open(os.path.join(src, f"f{i}"), "wb") as f:
            f.write(random.Random(i).randbytes(6 << 20))
    for end in (signal.SIGINT, signal.SIGKILL):
        p = subprocess.Popen(["rsync", "-a", "--bwlimit=8m", *words, src + "/", mount.key("t") + "/"],
                             stderr=subprocess.DEVNULL, start_new_session=True)
        time.sleep(0.8)
        os.killpg(p.pid, end)
        p.wait()
        wait_until(lambda: not group_lives(p.pid), what="end of rsync's other processes")
    run("rsync", "-a", *words, src + "/", mount.key("t") + "/")
    for left in os.listdir(mount.key("t")):  # SIGKILL leaves a temporary file, or the empty folder, as anywhere
        if left.startswith(".f"):
            os.unlink(mount.key("t", left))
        elif left == ".part":
            os.rmdir(mount.key("t", left))
    compare(src, mount.key("t"))
    with open(os.path.join(src, "f1"), "r+b") as f:  # a delta against what is there
        f.seek(3 << 20)
        f.write(b"changed")
    run("rsync", "-a", "--no-whole-file", *words, src + "/", mount.key("t") + "/")
    compare(src, mount.key("t"))
    assert run("rsync", "-ai", src + "/", mount.key("t") + "/").stdout == b""


def test_cpio_zip(world, mount):
    src = copy_tree(world, "/usr/include/linux", 500)
    run("sh", "-c", f"cd {src} && find . -depth -type f | cpio -o -H newc > {mount.key('a.cpio')} && "
                    f"zip -q -r {mount.key('a.zip')} .")
    os.mkdir(mount.key("c"))
    run("sh", "-c", f"cd {mount.key('c')} && cpio -i -d -m < {mount.key('a.cpio')}")
    compare(src, mount.key("c"))
    run("unzip", "-q", mount.key("a.zip"), "-d", mount.key("z"))
    compare(src, mount.key("z"))
    run("unzip", "-q", "-t", mount.key("a.zip"))


def test_find_du_df_dd_sha256sum(world, mount):
    os.makedirs(mount.key("d/e"))
    run("dd", "if=/dev/urandom", "of=" + mount.key("d/big"), "bs=1M", "count=5", "conv=fsync")
    run("dd", "if=/dev/urandom", "of=" + mount.key("d/e/small"), "bs=1000", "count=3", "oflag=direct,append",
        "conv=notrunc")
    run("dd", "if=/dev/zero", "of=" + mount.key("d/big"), "bs=4096", "seek=10", "count=1", "conv=notrunc")
    with open(mount.key("d/big"), "rb") as f:
        f.seek(40960)
        assert f.read(4096) == bytes(4096)
    found = run("find", mount.keys, "-type", "f", "-size", "+1M", "-newermt", "2020-01-01").stdout
    assert found == mount.key("d/big").encode() + b"\n"
    assert int(run("du", "-sb", "--apparent-size", mount.key("d/e")).stdout.split()[0]) == 3000
    assert int(run("du", "-s", "-B1", mount.key("d/big")).stdout.split()[0]) == 5 << 20
    used, inodes = run("df", "--output=used,iused", "-B1", mount.keys).stdout.split()[-2:]
    assert int(used) >= 5 << 20 and int(inodes) == 2
    sums = run("sh", "-c", f"cd {mount.keys} && find . -type f | sort | xargs sha256sum").stdout
    with open(world.path("sums"), "wb") as f:
        f.write(sums)
    mount.kill()
    mount.start()
    run("sh", "-c", f"cd {mount.keys} && sha256sum -c --quiet {world.path('sums')}")
    run("dd", "if=" + mount.key("d/big"), "of=" + world.path("copy"), "bs=1M", "iflag=direct")
    assert sha256(world.path("copy")) == sha256(mount.key("d/big"))


def test_editors(world, mount):
    with open(mount.key("text"), "w") as f:
        f.write("one\ntwo\nthree\n")
    os.chmod(mount.key("text"), 0o640)
    run("sed", "-i", "s/two/2/", mount.key("text"))
    assert open(mount.key("text")).read() == "one\n2\nthree\n"
    assert os.stat(mount.key("text")).st_mode & 0o777 == 0o640
    run("sed", "-i.bak", "s/one/1/", mount.key("text"))
    assert open(mount.key("text.bak")).read() == "one\n2\nthree\n"
    for words in ([], ["-c", "set nowritebackup"], ["-c", "set backupcopy=yes"]):
        run("vim.tiny", "-u", "NONE", "-es", *words, "-c", "normal Goadded", "-c", "wq", mount.key("text"),
            stdin=subprocess.DEVNULL)
    assert open(mount.key("text")).read() == "1\n2\nthree\n" + "added\n" * 3
    assert set(os.listdir(mount.keys)) == {"text", "text.bak"}


def test_git(world, mount):
    """A repository on the mount: cloned, worked in, checked, cloned from."""
    src = world.path("repo")
    env = dict(os.environ, HOME=world.dir.name, GIT_AUTHOR_NAME="a", GIT_AUTHOR_EMAIL="a@b", GIT_COMMITTER_NAME="a",
               GIT_COMMITTER_EMAIL="a@b", GIT_CONFIG_NOSYSTEM="1")

    def git(*words):
        return run("git", "-c", "init.defaultBranch=main", "-c", "safe.directory=*", *words, env=env).stdout

    git("init", "-q", src)
    for i in range(30):
        with open(os.path.join(src, f"f{i}"), "w") as f:
            f.write(f"{i}\n" * 500)
        git("-C", src, "add", ".")
        git("-C", src, "commit", "-qm", str(i))
    on = mount.key("clone")
    git("clone", "-q", "file://" + src, on)
    assert git("-C", on, "rev-parse", "HEAD") == git("-C", src, "rev-parse", "HEAD")
    assert git("-C", on, "status", "--porcelain") == b""
    with open(os.path.join(on, "f3"), "a") as f:
        f.write("more\n")
    os.unlink(os.path.join(on, "f4"))
    git("-C", on, "checkout", "-qb", "topic")
    git("-C", on, "commit", "-qam", "change")
    git("-C", on, "checkout", "-q", "main")
    git("-C", on, "merge", "-q", "topic")
    git("-C", on, "gc", "-q")
    git("-C", on, "fsck", "--strict")
    mount.kill()
    mount.start()
    git("-C", on, "fsck", "--strict")
    git("clone", "-q", on, world.path("again"))
    run("diff", "-r", "--exclude=.git", on, world.path("again"))


def test_sqlite(mount):
    db = mount.key("data.db")
    for journal in ("delete", "truncate", "persist", "memory"):
        sql = f"""pragma journal_mode={journal}; create table if not exists t(k integer primary key, v blob);
        begin; with recursive n(i) as (select 1 union all select i+1 from n where i<2000)
        insert or replace into t select i, randomblob(500) from n; commit;
        begin; delete from t where k % 3 = 0; rollback; update t set v = zeroblob(10) where k = 7;"""
        run("sqlite3", db, sql)
        assert run("sqlite3", db, "select count(*), length(v) from t where k = 7 or k = 7; pragma integrity_check;").stdout \
            == b"1|10\nok\n"
    mount.kill()
    mount.start()
    assert run("sqlite3", db, "select count(*) from t; pragma integrity_check;").stdout == b"2000\nok\n"
    run("sqlite3", db, "vacuum;")
    assert run("sqlite3", db, "pragma integrity_check;").stdout == b"ok\n"


@pytest.mark.parametrize("rw", ["write", "randwrite"])
def test_fio_verify(world, mount, rw):
    # It leaves a file about the state of its verification where it stands.
    run("fio", "--name=v", "--aux-path=" + world.path(), "--directory=" + mount.keys, "--size=8m", "--nrfiles=2", "--rw=" + rw, "--bs=4k-64k",
        "--verify=crc32c", "--do_verify=1", "--verify_fatal=1", "--fallocate=posix", "--ioengine=psync", "--randseed=3",
        "--output-format=terse")
