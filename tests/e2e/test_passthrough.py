# SPDX-License-Identifier: Apache-2.0
"""Where the bytes of an open file come from: the kernel alone, the page cache, the daemon; and that damage never
passes."""
import os
import threading

import pytest
from harness import Mount, read, wait_until

SIZE = 3 << 20


def random_object(m, name, size=SIZE):
    data = os.urandom(size)
    with open(m.key(name), "wb") as f:
        f.write(data)
    return data


def buckets(m):
    d = os.path.join(m.state, "backend")
    return [os.path.join(d, f) for f in os.listdir(d) if f.endswith(".bucket")]


def flip(path, at):
    """Another byte in the middle of a bucket, as a bad disk would give."""
    with open(path, "r+b") as f:
        f.seek(at)
        old = f.read(1)
        f.seek(at)
        f.write(bytes([old[0] ^ 0xff]))


@pytest.mark.skipif(os.geteuid() != 0, reason="the kernel allows it to root alone")
def test_large_objects_are_read_without_the_daemon(mount):
    data = random_object(mount, "large")
    before = mount.stats()
    assert read(mount.key("large")) == data
    after = mount.stats()
    assert after["fuse_passthrough_opens_total"] == before["fuse_passthrough_opens_total"] + 1
    # Reading the figures is reading, too.
    assert after["fuse_read_bytes_total"] - before["fuse_read_bytes_total"] < SIZE // 2


def test_passthrough_can_be_turned_off(world):
    m = Mount(world, options=["passthrough=off"])
    data = random_object(m, "large")
    assert read(m.key("large")) == data
    assert m.stats()["fuse_passthrough_opens_total"] == 0
    assert m.stats()["fuse_reads_total"] > 0


@pytest.mark.parametrize("mode", ["auto", "off"])
def test_open_files_of_several_kinds_at_once(world, mode):
    """Readers, a writer's own handle, a map and a replacement of one object side by side."""
    m = Mount(world, options=["passthrough=" + mode])
    first = random_object(m, "k")
    with open(m.key("k"), "rb") as a, open(m.key("k"), "rb") as b:
        assert a.read(1000) == first[:1000]
        with open(m.key("k"), "r+b") as w:
            w.write(b"new beginning")
            w.flush()
            assert a.read(1000) == first[1000:2000]
        second = b"new beginning" + first[13:]
        with open(m.key("k"), "rb") as c:
            assert c.read() == second
        assert b.read() == first
        assert a.read() == first[2000:]
    with open(m.key("k"), "rb") as d, open(m.key("k"), "r+b") as w:
        os.fsync(w.fileno())
        w.seek(SIZE)
        w.write(b"tail")
        os.fsync(w.fileno())
        w.seek(0)
        assert w.read() == second + b"tail"
        assert d.read() == second
    os.unlink(m.key("k"))
    assert os.listdir(m.keys) == []


def test_many_readers_of_one_large_object(mount):
    data = random_object(mount, "k")
    failed = []

    def reader():
        for _ in range(20):
            if read(mount.key("k")) != data:
                failed.append(1)
    threads = [threading.Thread(target=reader) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failed


def test_space_comes_back_after_the_last_reader(mount):
    """A backing file is let go when it is closed, not when the daemon ends."""
    random_object(mount, "k")
    with open(mount.key("k"), "rb") as f:
        os.unlink(mount.key("k"))
        assert len(f.read()) == SIZE

    def is_there():
        try:
            return any(os.path.getsize(b) == SIZE for b in buckets(mount))
        except FileNotFoundError:
            return True  # gone since the listing: look again

    wait_until(lambda: not is_there(), what="bucket's end")
    pid = mount.pid()

    def deleted():
        found = []
        for fd in os.listdir(f"/proc/{pid}/fd"):
            try:
                found.append(os.readlink(f"/proc/{pid}/fd/{fd}"))
            except FileNotFoundError:
                pass  # closed since the listing
        return [target for target in found if ".bucket (deleted)" in target]
    wait_until(lambda: not deleted(), what="closing of the data file")


@pytest.mark.parametrize("verify", ["scrub", "strict"])
def test_a_flipped_byte_of_a_small_object_is_an_error(world, verify):
    m = Mount(world, options=["verify=" + verify])
    random_object(m, "small", 50000)
    with open(m.key("other"), "wb") as f:
        f.write(b"o" * 100)
    m.umount()
    path, = buckets(m)
    m.start()
    flip(path, 25000)  # after recovery, which looks at the last buckets' values itself
    with pytest.raises(OSError):
        read(m.key("small"))
    with pytest.raises(OSError):
        read(m.key("small"))
    assert read(m.key("other")) == b"o" * 100
    assert m.stats()["store_checksum_errors_total"] >= 1


def test_a_flipped_byte_of_a_large_object_is_found_before_reading_with_verify_strict(world):
    m = Mount(world, options=["verify=strict"])
    random_object(m, "large")
    m.umount()
    flip(buckets(m)[0], SIZE // 2)
    m.start()
    with pytest.raises(OSError):
        read(m.key("large"))


def test_a_flipped_byte_of_a_large_object_is_found_soon_after_it_was_opened(mount):
    random_object(mount, "large")
    mount.umount()
    flip(buckets(mount)[0], SIZE // 2)
    mount.start()
    read(mount.key("large"))
    wait_until(lambda: mount.stats()["store_checksum_errors_total"] == 1, what="background check")
    with pytest.raises(OSError):
        read(mount.key("large"))
    assert "large" in mount.log_text()


def test_bad_values_of_the_options_are_refused(world):
    for option in ("passthrough=maybe", "verify=never"):
        m = Mount(world, options=[option], expect_failure=True)
        with pytest.raises(AssertionError, match=option.split("=")[1]):
            m.start()
