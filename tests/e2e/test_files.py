# SPDX-License-Identifier: Apache-2.0
"""Files behave like files."""
import ctypes
import errno
import mmap
import os
import signal
import stat
import subprocess
import threading

import pytest
from harness import Mount, read, run, wait_until, write


@pytest.mark.parametrize("size", [0, 1, 4095, 65536, 1 << 20, (1 << 20) + 1, 5 << 20])
def test_write_and_read_back(mount, size):
    data = os.urandom(size)
    write(mount.key("f"), data)
    assert read(mount.key("f")) == data
    st = os.stat(mount.key("f"))
    assert st.st_size == size and stat.S_ISREG(st.st_mode)


def test_overwrite_append_truncate(mount):
    p = mount.key("f")
    write(p, b"one")
    write(p, b"two2")
    assert read(p) == b"two2"
    with open(p, "ab") as f:
        f.write(b"+more")
    assert read(p) == b"two2+more"
    os.truncate(p, 3)
    assert read(p) == b"two"
    os.truncate(p, 6)
    assert read(p) == b"two\0\0\0"
    with open(p, "r+b") as f:
        f.seek(1)
        f.write(b"XY")
        f.truncate(4)
    assert read(p) == b"tXY\0"
    os.truncate(p, 0)
    assert read(p) == b""


def test_sparse_write(mount):
    p = mount.key("sparse")
    with open(p, "wb") as f:
        f.seek(3 << 20)
        f.write(b"end")
    data = read(p)
    assert len(data) == (3 << 20) + 3 and data.endswith(b"end") and not data[:1000].strip(b"\0")


def test_partial_change_of_large_object(mount):
    data = bytearray(os.urandom(4 << 20))
    p = mount.key("big")
    write(p, data)
    with open(p, "r+b") as f:
        f.seek(1234567)
        f.write(b"changed")
    data[1234567:1234574] = b"changed"
    assert read(p) == bytes(data)


def test_rename(mount):
    a, b = mount.key("a"), mount.key("b")
    write(a, b"A")
    write(b, b"B")
    os.rename(a, b)
    assert read(b) == b"A" and not os.path.exists(a)
    os.mkdir(mount.key("d"))
    os.rename(b, mount.key("d", "c"))
    assert read(mount.key("d", "c")) == b"A"
    assert os.listdir(mount.keys) == ["d"]


def test_rename_noreplace(mount):
    write(mount.key("a"), b"A")
    write(mount.key("b"), b"B")
    r = run("mv", "-n", mount.key("a"), mount.key("b"), check=False)
    assert read(mount.key("b")) == b"B" and read(mount.key("a")) == b"A", r


def test_rename_of_directory_with_keys_is_copied_by_mv(mount):
    os.makedirs(mount.key("d"))
    write(mount.key("d", "f"), b"x")
    with pytest.raises(OSError) as e:
        os.rename(mount.key("d"), mount.key("e"))
    assert e.value.errno == errno.EXDEV
    run("mv", mount.key("d"), mount.key("e"))
    assert read(mount.key("e", "f")) == b"x" and not os.path.exists(mount.key("d"))


def test_temporary_name_is_published_by_rename(mount):
    data = os.urandom(2 << 20)
    write(mount.key("x.tmp"), data)
    assert "x.tmp" in os.listdir(mount.keys)
    names = run("true")
    del names
    assert mount.ctl("ls").stdout == b""
    os.rename(mount.key("x.tmp"), mount.key("x"))
    assert read(mount.key("x")) == data
    assert b"x\n" in mount.ctl("ls").stdout
    staging = os.path.join(mount.state, "staging")  # where empty files may lie ready
    assert [n for n in os.listdir(staging) if os.path.getsize(os.path.join(staging, n))] == []


def test_temporary_names_survive_restart(mount):
    write(mount.key("y.part"), b"partial")
    mount.kill()
    mount.start()
    assert read(mount.key("y.part")) == b"partial"
    os.rename(mount.key("y.part"), mount.key("y"))
    assert read(mount.key("y")) == b"partial"


def test_unlink_while_open(mount):
    p = mount.key("f")
    data = os.urandom(100000)
    write(p, data)
    with open(p, "rb") as f:
        os.unlink(p)
        assert not os.path.exists(p)
        assert f.read() == data
    with pytest.raises(FileNotFoundError):
        os.unlink(p)


def test_replaced_while_open(mount):
    p = mount.key("f")
    old, new = os.urandom(300000), os.urandom(200000)
    write(p, old)
    with open(p, "rb") as f:
        first = f.read(1000)
        write(p, new)
        assert first + f.read() == old
    assert read(p) == new


def test_mkdir_rmdir(mount):
    os.mkdir(mount.key("d"))
    with pytest.raises(FileExistsError):
        os.mkdir(mount.key("d"))
    assert os.listdir(mount.key("d")) == []
    write(mount.key("d", "f"), b"1")
    with pytest.raises(OSError) as e:
        os.rmdir(mount.key("d"))
    assert e.value.errno == errno.ENOTEMPTY
    os.unlink(mount.key("d", "f"))
    os.rmdir(mount.key("d"))
    with pytest.raises(FileNotFoundError):
        os.rmdir(mount.key("d"))
    with pytest.raises(FileNotFoundError):
        write(mount.key("nodir", "f"), b"")


def test_links_are_refused(mount):
    write(mount.key("f"), b"1")
    for action in (lambda: os.link(mount.key("f"), mount.key("g")),
                   lambda: os.symlink("f", mount.key("s")),
                   lambda: os.mkfifo(mount.key("p"))):
        with pytest.raises(OSError) as e:
            action()
        assert e.value.errno == errno.EPERM


def test_exclusive_create(mount):
    fd = os.open(mount.key("lock"), os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    r = subprocess.run(["python3", "-c", "import os,sys\n"
                        f"os.open({mount.key('lock')!r}, os.O_CREAT|os.O_EXCL|os.O_WRONLY)"],
                       stderr=subprocess.PIPE)
    assert r.returncode != 0 and b"FileExistsError" in r.stderr
    os.close(fd)
    with pytest.raises(FileExistsError):
        os.open(mount.key("lock"), os.O_CREAT | os.O_EXCL | os.O_WRONLY)


def test_attributes_are_kept_across_restart(mount):
    p = mount.key("f")
    write(p, b"1")
    os.chmod(p, 0o640)
    os.chown(p, 1000, 1001)
    os.utime(p, ns=(1_000_000_000_123_456_789, 1_111_111_111_987_654_321))
    ino = os.stat(p).st_ino
    for restart in (mount.umount, mount.kill):
        restart()
        mount.start()
        st = os.stat(p)
        assert (st.st_mode & 0o7777, st.st_uid, st.st_gid) == (0o640, 1000, 1001)
        assert st.st_mtime_ns == 1_111_111_111_987_654_321
        assert st.st_ino == ino


def directory_facts(root):
    out = {}
    for at, dirs, _ in os.walk(root):
        for d in dirs:
            st = os.stat(os.path.join(at, d))
            out[os.path.relpath(os.path.join(at, d), root)] = (st.st_mode, st.st_uid, st.st_gid,
                                                               st.st_mtime_ns, st.st_ino)
    return out


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_directories_are_kept_across_restart(mount, end):
    """Empty ones, their modes, owners and times, and what rmdir and chmod changed."""
    for d in ("empty/below/deep", "full", "gone/x", "old name"):
        os.makedirs(mount.key(d))
    write(mount.key("full/k"), b"k")
    os.chmod(mount.key("empty"), 0o2750)
    os.chown(mount.key("full"), 1000, 1001)
    os.rmdir(mount.key("gone/x"))
    os.rmdir(mount.key("gone"))
    os.rename(mount.key("old name"), mount.key("new %25"))
    os.utime(mount.key("full"), ns=(1, 1_234_567_890_123_456_789))
    os.utime(mount.key("empty/below"), ns=(1, 987_654_321))
    before = directory_facts(mount.keys)
    assert set(before) == {"empty", "empty/below", "empty/below/deep", "full", "new %25"}
    for _ in range(2):
        mount.kill(end)
        mount.start()
        assert directory_facts(mount.keys) == before
    os.unlink(mount.key("full/k"))  # stays, until rmdir
    mount.kill(end)
    mount.start()
    assert os.listdir(mount.key("full")) == []
    for d in ("empty/below/deep", "empty/below", "empty", "full", "new %25"):
        os.rmdir(mount.key(d))
    mount.kill(end)
    mount.start()
    assert os.listdir(mount.keys) == []


def test_damaged_directory_log(mount):
    """What stands before the damage counts, what stands behind it is kept aside and named."""
    os.mkdir(mount.key("one"), 0o700)
    log = os.path.join(mount.state, "directories")
    whole = os.path.getsize(log)
    os.mkdir(mount.key("two"))
    mount.kill()
    with open(log, "r+b") as f:
        f.seek(whole + 12)
        f.write(b"\xff")
    mount.start()
    assert os.listdir(mount.keys) == ["one"] and os.stat(mount.key("one")).st_mode & 0o777 == 0o700
    assert log + ".damaged" in mount.log_text() and os.path.exists(log + ".damaged")
    os.mkdir(mount.key("two"))
    mount.kill()
    os.truncate(log, os.path.getsize(log) - 3)
    mount.start()
    assert os.listdir(mount.keys) == ["one"]


def test_mmap_read_and_write(mount):
    p = mount.key("m")
    data = os.urandom(1 << 20)
    write(p, data)
    with open(p, "rb") as f, mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ) as m:
        assert m[:] == data
    with open(p, "r+b") as f:
        with mmap.mmap(f.fileno(), 0) as m:
            m[100:105] = b"hello"
            m.flush()
    assert read(p) == data[:100] + b"hello" + data[105:]


def test_fsync_publishes(mount):
    p = mount.key("f")
    with open(p, "wb") as f:
        f.write(b"first")
        f.flush()
        os.fsync(f.fileno())
        assert subprocess.run(["cat", p], stdout=subprocess.PIPE).stdout == b"first"
        f.write(b"-second")
    assert read(p) == b"first-second"


def test_own_unpublished_writes_are_seen_by_their_process(mount):
    p = mount.key("f")
    with open(p, "wb", buffering=0) as f:
        f.write(b"abc")
        assert os.path.getsize(p) == 3
        assert read(p) == b"abc"


def test_child_that_inherits_a_descriptor_publishes_nothing(mount):
    """A process started while a file is being written closes its copy at exec; that ends nobody's writing."""
    p = mount.key("f")
    fd = os.open(p, os.O_CREAT | os.O_WRONLY)
    os.write(fd, b"half")
    subprocess.run(["true"])
    assert subprocess.run(["cat", p], capture_output=True).returncode != 0
    os.write(fd, b"-whole")
    os.close(fd)
    assert read(p) == b"half-whole"


def test_statfs(mount):
    write(mount.key("f"), b"x" * 100000)
    v = os.statvfs(mount.keys)
    assert v.f_blocks > 0 and v.f_bavail > 0 and v.f_namemax == 1024
    assert v.f_files - v.f_ffree == 1


def test_full_tier_gives_enospc_and_keeps_the_old(world):
    m = Mount(world, options=["capacity=8M"])
    write(m.key("f"), b"old")
    with pytest.raises(OSError) as e:
        write(m.key("f"), os.urandom(9 << 20))
    assert e.value.errno == errno.ENOSPC
    assert read(m.key("f")) == b"old"
    # Nor while the descriptor that could not be published lives on in a child.
    fd = os.open(m.key("f"), os.O_RDWR)
    os.pwrite(fd, b"x" * 4096, 9 << 20)
    other = os.dup(fd)
    with pytest.raises(OSError) as e:
        os.close(fd)
    assert e.value.errno == errno.ENOSPC
    assert read(m.key("f")) == b"old" and os.path.getsize(m.key("f")) == 3
    os.ftruncate(other, 5)  # makes it small enough: published at its close
    os.close(other)
    assert read(m.key("f")) == b"old\0\0"
    write(m.key("small"), b"fits")


def test_uid_gid_umask_options(world):
    m = Mount(world, options=["uid=1234", "gid=2345", "umask=027"])
    write(m.key("f"), b"1")
    os.mkdir(m.key("d"))
    st = os.stat(m.key("f"))
    assert (st.st_uid, st.st_gid, st.st_mode & 0o777) == (1234, 2345, 0o640)
    assert os.stat(m.key("d")).st_mode & 0o777 == 0o750


def test_many_files_in_parallel(mount):
    def work(i):
        for n in range(100):
            write(mount.key(f"p{i}-{n}"), f"{i}:{n}".encode() * 100)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(os.listdir(mount.keys)) == 800
    for i in range(8):
        for n in range(100):
            assert read(mount.key(f"p{i}-{n}")) == f"{i}:{n}".encode() * 100


def test_listing_of_many(mount):
    for i in range(3000):
        fd = os.open(mount.key(f"k{i:05}"), os.O_CREAT | os.O_WRONLY)
        os.close(fd)
    assert sorted(os.listdir(mount.keys)) == [f"k{i:05}" for i in range(3000)]
    with os.scandir(mount.keys) as it:
        assert all(e.is_file() and e.stat().st_size == 0 for e in it)


def test_listing_is_stable_under_change(mount):
    """Entries that are there throughout appear exactly once."""
    for i in range(2500):
        os.close(os.open(mount.key(f"stay{i}"), os.O_CREAT | os.O_WRONLY))
        if i % 5 == 0:
            os.close(os.open(mount.key(f"go{i}"), os.O_CREAT | os.O_WRONLY))
    seen = []
    with os.scandir(mount.keys) as it:
        for n, e in enumerate(it):
            seen.append(e.name)
            if n % 50 == 0:
                try:
                    os.unlink(mount.key(f"go{n // 50 * 5}"))
                except FileNotFoundError:
                    pass
                os.close(os.open(mount.key(f"new{n}"), os.O_CREAT | os.O_WRONLY))
    stayed = [n for n in seen if n.startswith("stay")]
    assert len(stayed) == 2500 and len(set(stayed)) == 2500


def test_xattrs(mount):
    write(mount.key("f"), b"12345")
    p = mount.key("f")
    assert os.getxattr(p, "user.mooncake.key") == b"f"
    assert os.getxattr(p, "user.mooncake.size") == b"5"
    assert os.getxattr(p, "user.mooncake.tenant") == b"default"
    assert b"LOCAL_DISK" in os.getxattr(p, "user.mooncake.replicas")
    os.setxattr(p, "user.mooncake.hard_pin", b"1")
    with pytest.raises(OSError) as e:
        os.unlink(p)
    assert e.value.errno == errno.EPERM
    os.setxattr(p, "user.mooncake.hard_pin", b"0")
    os.unlink(p)


def test_files_of_temporary_names_are_used_again(mount):
    """A longer content before leaves nothing in a shorter one after, nor in what survives a kill."""
    contents = {}
    for i, size in enumerate((50000, 10, 30000, 0, 70000, 1, 999999, 5)):
        contents[f"f{i}"] = os.urandom(size)
        with open(mount.key("x.tmp"), "wb") as f:
            f.write(contents[f"f{i}"])
        os.rename(mount.key("x.tmp"), mount.key(f"f{i}"))
    for name, data in contents.items():
        assert open(mount.key(name), "rb").read() == data
    with open(mount.key("left.tmp"), "wb") as f:
        f.write(b"short")
    with open(mount.key("removed.tmp"), "wb") as f:
        f.write(b"never to be seen again")
    os.unlink(mount.key("removed.tmp"))
    mount.kill()
    mount.remount()
    contents["left.tmp"] = b"short"
    assert sorted(os.listdir(mount.keys)) == sorted(contents)
    for name, data in contents.items():
        assert open(mount.key(name), "rb").read() == data


FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE, FALLOC_FL_COLLAPSE_RANGE, FALLOC_FL_ZERO_RANGE = 1, 2, 8, 16


def fallocate(fd, mode, offset, length):
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.fallocate(fd, mode, ctypes.c_long(offset), ctypes.c_long(length)):
        raise OSError(ctypes.get_errno(), "fallocate")


@pytest.mark.parametrize("size", [1000, 3 << 20])
def test_fallocate(mount, size):
    p = mount.key("f")
    data = bytearray(os.urandom(size))
    write(p, data)
    with open(p, "r+b", buffering=0) as f:
        os.posix_fallocate(f.fileno(), 0, size + 500)
        data += bytes(500)
        assert os.fstat(f.fileno()).st_size == size + 500
        fallocate(f.fileno(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 100, 300)
        data[100:400] = bytes(300)
        fallocate(f.fileno(), FALLOC_FL_ZERO_RANGE, size + 400, 1000)
        data = data.ljust(size + 1400, b"\0")
        fallocate(f.fileno(), FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE, size - 10, 10000)
        data[size - 10:] = bytes(1410)
        for mode in (FALLOC_FL_KEEP_SIZE, FALLOC_FL_COLLAPSE_RANGE):
            with pytest.raises(OSError) as e:
                fallocate(f.fileno(), mode, 0, 4096)
            assert e.value.errno == errno.EOPNOTSUPP
        f.seek(0)
        assert f.read() == bytes(data)
    assert read(p) == bytes(data)


@pytest.mark.parametrize("size", [1000, 40 << 20])
def test_copy_file_range(mount, size):
    """Between objects, from what is being written, and within one file."""
    data = os.urandom(size)
    write(mount.key("a"), data)
    with open(mount.key("a"), "rb") as a, open(mount.key("b"), "w+b", buffering=0) as b:
        done = 0
        while done < size:
            n = os.copy_file_range(a.fileno(), b.fileno(), size - done, done, done + 7)
            assert n > 0
            done += n
        assert os.copy_file_range(a.fileno(), b.fileno(), 100, size, 0) == 0
        assert os.copy_file_range(b.fileno(), b.fileno(), 5, 7, 0) == 5
    assert read(mount.key("b")) == data[:5] + bytes(2) + data
    with open(mount.key("b"), "rb") as b:
        with pytest.raises(OSError) as e:
            os.copy_file_range(b.fileno(), b.fileno(), 1, 0, 100)
        assert e.value.errno == errno.EBADF


def test_seek_data_and_hole(mount):
    write(mount.key("f"), b"x" * 100000)
    with open(mount.key("f"), "rb") as f:
        assert os.lseek(f.fileno(), 0, os.SEEK_HOLE) == 100000
        assert os.lseek(f.fileno(), 5000, os.SEEK_DATA) == 5000
        for whence in (os.SEEK_DATA, os.SEEK_HOLE):
            with pytest.raises(OSError) as e:
                os.lseek(f.fileno(), 100000, whence)
            assert e.value.errno == errno.ENXIO


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system")
@pytest.mark.parametrize("name", ["x.tmp", "x"])
def test_a_disk_that_is_full(world, name):
    """Long writes are acknowledged before they are made: what then fails is told by a later write or by close, and what is
    not whole gets no other name and is shown to nobody else."""
    disk = world.path("disk")
    os.mkdir(disk)
    run("mount", "-t", "tmpfs", "-o", "size=24m", "none", disk)
    try:
        mount = Mount(world, state=os.path.join(disk, "state"), options=["capacity=1g"])
        fd = os.open(mount.key(name), os.O_WRONLY | os.O_CREAT, 0o644)
        with pytest.raises(OSError) as e:
            try:
                for _ in range(40):
                    os.write(fd, b"x" * (1 << 20))
            finally:
                os.close(fd)
        assert e.value.errno == errno.ENOSPC
        if name == "x.tmp":
            with pytest.raises(OSError) as e:
                os.rename(mount.key(name), mount.key("x"))
            assert e.value.errno == errno.ENOSPC
            with open(mount.key(name), "wb") as f:  # and is written anew
                f.write(b"new")
            os.rename(mount.key(name), mount.key("x"))
            assert read(mount.key("x")) == b"new"
        else:
            assert not os.path.exists(mount.key("x"))
        wait_until(lambda: os.statvfs(disk).f_bavail * 4096 > 12 << 20, what="room that comes back")  # with RELEASE
        with open(mount.key("y"), "wb", buffering=0) as f:
            f.write(b"y" * (3 << 20))
        assert read(mount.key("y")) == b"y" * (3 << 20)
        mount.umount()
    finally:
        run("umount", "-l", disk)
