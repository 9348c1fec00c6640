# SPDX-License-Identifier: Apache-2.0
"""Names that change: what is open under them, exchange, and death in the middle of one."""
import ctypes
import errno
import os
import signal

import msgpack
import pytest
from harness import Master, Mount, read, write

RENAME_NOREPLACE, RENAME_EXCHANGE = 1, 2
AT_FDCWD = -100
libc = ctypes.CDLL(None, use_errno=True)


def renameat2(a, b, flags):
    if libc.renameat2(AT_FDCWD, a.encode(), AT_FDCWD, b.encode(), flags):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), a)


def test_an_older_version_that_is_open_stays_behind(mount):
    """Who has an old version open keeps it; the new name shows the newest, never pages of the old."""
    old, new = b"o" * 50000, b"new"
    write(mount.key("f"), old)
    with open(mount.key("f"), "rb") as f:
        assert f.read(10) == old[:10]
        write(mount.key("f"), new)
        os.rename(mount.key("f"), mount.key("g"))
        assert read(mount.key("g")) == new
        mount.forget_names()
        assert os.stat(mount.key("g")).st_size == 3
        assert read(mount.key("g")) == new
        assert old[:10] + f.read() == old
    assert not os.path.exists(mount.key("f"))


def test_an_object_that_gets_a_temporary_name(mount):
    """As git does with packs: written, given a temporary name, changed under it, and published under a third."""
    for size in (500, 2 << 20):
        data = os.urandom(size)
        write(mount.key("tmp_pack"), data)
        assert os.stat(mount.key("tmp_pack")).st_size == size  # so that the kernel knows the name
        with open(mount.key("tmp_pack"), "rb") as f:
            os.rename(mount.key("tmp_pack"), mount.key(".tmp-12-pack"))
            os.chmod(mount.key(".tmp-12-pack"), 0o444)
            assert read(mount.key(".tmp-12-pack")) == data
            os.rename(mount.key(".tmp-12-pack"), mount.key("pack"))
            st = os.stat(mount.key("pack"))
            assert (st.st_mode & 0o777, st.st_size, st.st_nlink) == (0o444, size, 1)
            assert read(mount.key("pack")) == data and f.read() == data
        mount.forget_names()
        assert read(mount.key("pack")) == data and os.listdir(mount.keys) == ["pack"]
        os.unlink(mount.key("pack"))


@pytest.mark.parametrize("sizes", [(10, 5000), (3 << 20, 5), (0, 2 << 20), (2 << 20, 3 << 20)])
def test_exchange(mount, sizes):
    a, b = (os.urandom(n) for n in sizes)
    write(mount.key("a"), a)
    write(mount.key("d-b"), b)
    os.chmod(mount.key("a"), 0o600)
    os.utime(mount.key("d-b"), (5, 6))
    os.setxattr(mount.key("a"), "user.mooncake.hard_pin", b"1")
    for _ in range(2):
        renameat2(mount.key("a"), mount.key("d-b"), RENAME_EXCHANGE)
        assert read(mount.key("a")) == b and read(mount.key("d-b")) == a
        mount.forget_names()
        assert read(mount.key("a")) == b and read(mount.key("d-b")) == a
        assert os.stat(mount.key("d-b")).st_mode & 0o777 == 0o600
        assert os.stat(mount.key("a")).st_mtime == 6
        assert os.getxattr(mount.key("d-b"), "user.mooncake.hard_pin") == b"1"
        mount.kill()
        mount.start()
        assert read(mount.key("a")) == b and read(mount.key("d-b")) == a
        a, b = b, a
        renameat2(mount.key("a"), mount.key("d-b"), RENAME_EXCHANGE)
        os.rename(mount.key("a"), mount.key("c"))
        os.rename(mount.key("d-b"), mount.key("a"))
        os.rename(mount.key("c"), mount.key("d-b"))
        renameat2(mount.key("a"), mount.key("d-b"), RENAME_EXCHANGE)
        os.setxattr(mount.key("a"), "user.mooncake.hard_pin", b"0")
        a, b = read(mount.key("a")), read(mount.key("d-b"))
        assert {len(a), len(b)} == set(sizes)
        break


def test_exchange_with_what_is_open(mount):
    write(mount.key("a"), b"A" * 1000)
    write(mount.key("b"), b"B" * 2000)
    with open(mount.key("a"), "rb") as ra, open(mount.key("b"), "r+b", buffering=0) as wb:
        wb.write(b"changed")
        renameat2(mount.key("a"), mount.key("b"), RENAME_EXCHANGE)
        assert ra.read() == b"A" * 1000
        wb.write(b"!")  # goes with the content, as a descriptor does
    assert read(mount.key("a")) == b"changed!" + b"B" * 1992
    assert read(mount.key("b")) == b"A" * 1000


def test_exchange_errors(mount):
    write(mount.key("a"), b"A")
    os.mkdir(mount.key("empty"))
    write(mount.key("b.tmp"), b"B")
    os.makedirs(mount.key("full"))
    write(mount.key("full", "k"), b"k")
    for other, error in (("absent", errno.ENOENT), ("empty", errno.EXDEV), ("full", errno.EXDEV),
                         ("b.tmp", errno.EINVAL)):
        for x, y in (("a", other), (other, "a")):
            with pytest.raises(OSError) as e:
                renameat2(mount.key(x), mount.key(y), RENAME_EXCHANGE)
            assert e.value.errno == error, (x, y)
    with pytest.raises(OSError) as e:
        renameat2(mount.key("a"), mount.key("full", "k"), RENAME_EXCHANGE | RENAME_NOREPLACE)
    assert e.value.errno == errno.EINVAL
    renameat2(mount.key("a"), mount.key("a"), RENAME_EXCHANGE)
    assert read(mount.key("a")) == b"A"


def test_exchange_across_nodes(world):
    """Each object on another node; both mounts see the exchange at once."""
    master = Master(world)
    m = Mount(world, source=master.address, name="m")
    other = Mount(world, source=master.address, name="other", options=["listen=127.0.0.1:0"])
    write(m.key("a"), b"A" * 100000)
    write(other.key("b"), b"B" * 10)
    assert read(m.key("b")) == b"B" * 10 and read(other.key("a")) == b"A" * 100000
    for _ in range(5):
        renameat2(m.key("a"), m.key("b"), RENAME_EXCHANGE)
        assert read(m.key("b")) == b"A" * 100000
        assert read(other.key("b")) == b"A" * 100000
        assert read(m.key("a")) == b"B" * 10 and read(other.key("a")) == b"B" * 10
        renameat2(other.key("a"), other.key("b"), RENAME_EXCHANGE)
        assert read(m.key("a")) == b"A" * 100000 and read(other.key("a")) == b"A" * 100000


def place(mount, key):
    p = __import__("json").loads(mount.ctl("--json", "locate", key).stdout)
    return p["version"]


@pytest.mark.parametrize("done", [0, 1, 2])
def test_death_in_the_middle_of_an_exchange(mount, done):
    """The intent is written and `done` of the store's two renames have happened: both contents are there afterwards, under
    each other's names."""
    write(mount.key("a"), b"A" * 5000)
    write(mount.key("b"), b"B" * 10)
    versions = [place(mount, "a"), place(mount, "b")]
    new = [max(versions) + 1000, max(versions) + 1001]
    mount.kill()
    intent = [b"default", b"a", versions[0], new[0], b"b", versions[1], new[1]]
    with open(os.path.join(mount.state, "exchange"), "wb") as f:
        f.write(msgpack.packb(intent, use_bin_type=False))
    for i in range(done):
        # What the store's first rename leaves: this start does it, and the intent is put there again.
        mount.start()
        mount.kill(signal.SIGKILL)
        with open(os.path.join(mount.state, "exchange"), "wb") as f:
            f.write(msgpack.packb(intent, use_bin_type=False))
    mount.start()
    assert read(mount.key("a")) == b"B" * 10 and read(mount.key("b")) == b"A" * 5000
    assert not os.path.exists(os.path.join(mount.state, "exchange"))


def test_a_damaged_intent_is_named(mount):
    write(mount.key("a"), b"A")
    mount.kill()
    path = os.path.join(mount.state, "exchange")
    write(path, b"\x97garbage")
    with pytest.raises(AssertionError) as e:
        mount.start()
    assert path in str(e.value)
    os.unlink(path)
    mount.start()
    assert read(mount.key("a")) == b"A"
