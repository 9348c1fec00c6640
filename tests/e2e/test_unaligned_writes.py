# SPDX-License-Identifier: Apache-2.0
"""Long writes from memory that is not aligned, which the kernel cuts in two: nothing of either part is late or lost."""
import ctypes
import errno
import mmap
import os
import random
import resource
import threading

import pytest
from harness import Mount

MIB = 1 << 20
libc = ctypes.CDLL(None, use_errno=True)
libc.pwrite.restype = ctypes.c_ssize_t


class Source:
    """Random bytes that begin `shift` bytes behind a page."""

    def __init__(self, size, shift, seed):
        self.data = random.Random(seed).randbytes(size)
        self.memory = mmap.mmap(-1, size + shift + 4096)
        self.memory[shift:shift + size] = self.data
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory, shift))

    def pwrite(self, fd, start, end):
        n = libc.pwrite(fd, ctypes.c_void_p(self.address + start), ctypes.c_size_t(end - start), ctypes.c_long(start))
        if n < 0:
            raise OSError(ctypes.get_errno(), "pwrite")
        assert n == end - start


@pytest.mark.parametrize("shift", [0, 1, 320, 4095])
@pytest.mark.parametrize("step", [MIB, 3 * MIB, MIB + 777, 130000])
def test_what_is_written_is_there_at_once(mount, shift, step):
    """Size and bytes by each way of asking, between the writes and after them."""
    source = Source(13 * MIB + 5, shift, step + shift)
    fd = os.open(mount.key("f"), os.O_RDWR | os.O_CREAT)
    for start in range(0, len(source.data), step):
        end = min(start + step, len(source.data))
        source.pwrite(fd, start, end)
        if start // step % 2:
            assert os.fstat(fd).st_size == end
        else:
            assert os.pread(fd, 3000, end - 3000) == source.data[end - 3000:end]
    assert os.pread(fd, len(source.data), 0) == source.data
    os.close(fd)
    with open(mount.key("f"), "rb") as f:
        assert f.read() == source.data


def test_many_writers(mount):
    bad = []

    def go(i):
        source = Source(9 * MIB + i, 17 * i + 1, i)
        path = mount.key(f"f{i}")
        fd = os.open(path + ".tmp", os.O_RDWR | os.O_CREAT)
        for start in range(0, len(source.data), MIB):
            source.pwrite(fd, start, min(start + MIB, len(source.data)))
        os.close(fd)
        os.rename(path + ".tmp", path)
        with open(path, "rb") as f:
            if f.read() != source.data:
                bad.append(i)
    threads = [threading.Thread(target=go, args=(i,)) for i in range(12)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not bad


def test_parts_that_are_written_over(mount):
    """Later writes win, wherever the earlier one was cut."""
    source = Source(4 * MIB, 320, 1)
    fd = os.open(mount.key("f"), os.O_RDWR | os.O_CREAT)
    for start in range(0, 4 * MIB, MIB):
        source.pwrite(fd, start, start + MIB)
        os.pwrite(fd, b"x" * 1000, start + MIB - 1000)
    os.close(fd)
    got = open(mount.key("f"), "rb").read()
    assert got == b"".join(source.data[s:s + MIB - 1000] + b"x" * 1000 for s in range(0, 4 * MIB, MIB))


def test_no_room_is_told(world):
    """What was acknowledged and could not be written is told by a later call, by close at the latest, and nothing is published."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3 * MIB, hard))  # of the daemon's staging file
    try:
        mount = Mount(world)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    source = Source(8 * MIB, 320, 2)
    fd = os.open(mount.key("f"), os.O_RDWR | os.O_CREAT)
    with pytest.raises(OSError) as e:
        try:
            for start in range(0, 8 * MIB, MIB):
                source.pwrite(fd, start, start + MIB)
        finally:
            os.close(fd)
    assert e.value.errno in (errno.EFBIG, errno.EIO, errno.ENOSPC)
    assert not os.path.exists(mount.key("f"))
