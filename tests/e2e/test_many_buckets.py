# SPDX-License-Identifier: Apache-2.0
"""A store of a hundred thousand buckets needs no more descriptors than one of ten."""
import os
import random
import resource
import subprocess
import tempfile

import pytest
from harness import Mount, is_mounted

BUCKETS = 100_000
DESCRIPTORS = 256


def varint(n):
    out = b""
    while n > 127:
        out += bytes([n & 127 | 128])
        n >>= 7
    return out + bytes([n])


def message(number, content):
    return varint(number << 3 | 2) + varint(len(content)) + content


def fill(store, count):
    """Buckets of one object each, as Mooncake writes them."""
    os.makedirs(store)
    for i in range(count):
        key, value = b"default\0d%d/k%d" % (i % 100, i), b"value of %d" % i
        place = b"\x10" + varint(len(key)) + b"\x18" + varint(len(value))
        ident = 7_000_000_000_000 + i
        with open(f"{store}/{ident}.bucket", "wb") as f:
            f.write(key + value)
        with open(f"{store}/{ident}.meta", "wb") as f:
            f.write(b"\x08" + varint(len(key) + len(value)) + message(2, key) + message(3, place))


class FewDescriptors(Mount):
    def start(self):
        def limit():
            resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))

        r = subprocess.run(self.command(), preexec_fn=limit, env=self.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert r.returncode == 0 and is_mounted(self.mnt), r.stdout.decode() + self.log_text()


@pytest.fixture
def state():
    """In memory: so many files are slow to make and to drop on a disk."""
    with tempfile.TemporaryDirectory(prefix="mcfs-many-", dir="/dev/shm") as d:
        yield d


def test_a_hundred_thousand_buckets(state, world):
    m = FewDescriptors(world, state=state, expect_failure=True)
    fill(os.path.join(state, "backend"), BUCKETS)
    m.start()
    r = random.Random(1)
    assert m.stats()["store_objects"] == BUCKETS
    assert len(os.listdir(m.key("d7"))) == BUCKETS // 100
    for i in r.sample(range(BUCKETS), 2000):
        with open(m.key(f"d{i % 100}/k{i}"), "rb") as f:
            assert f.read() == b"value of %d" % i
    # Each of these gives another bucket a log.
    for i in range(0, 600):
        os.unlink(m.key(f"d{i % 100}/k{i}"))
    for i in range(600):
        with open(m.key(f"new{i}"), "wb") as f:
            f.write(b"new")
    fds = len(os.listdir(f"/proc/{m.pid()}/fd"))
    assert fds < DESCRIPTORS
    m.umount()
    m.start()
    assert m.stats()["store_objects"] == BUCKETS
    assert not os.path.exists(m.key("d5/k5")) and open(m.key("d77/k99977"), "rb").read() == b"value of 99977"
    m.umount()
