# SPDX-License-Identifier: Apache-2.0
"""Eviction of what a node stores: which objects go, which stay, and that nobody ever sees a part of one."""
import errno
import multiprocessing
import os
import random
import signal
import struct
import threading
import time
import urllib.request

import msgpack
import pytest
from harness import MOONCAKEFS, Master, Mount, Rpc, free_port, freeze, run, wait_until

MIB = 1 << 20
LAYOUTS = {"bucket": [], "offset": ["backend=offset_allocator_storage_backend"],
           "files": ["backend=file_per_key_storage_backend"]}
each_layout = pytest.mark.parametrize("layout", LAYOUTS)


def content(name, size):
    """Bytes that tell whose they are, and where in it."""
    word = f"{name}:{size};".encode()
    return (word * (size // len(word) + 1))[:size]


def write(m, name, size):
    with open(m.key(name), "wb") as f:
        f.write(content(name, size))


def read(m, name):
    """The file's bytes, or None when there is none."""
    try:
        with open(m.key(name), "rb") as f:
            return f.read()
    except FileNotFoundError:
        return None


def there(m, name):
    try:
        os.stat(m.key(name))
        return True
    except FileNotFoundError:
        return False


def left(m, names, size):
    """Those of the names that are there, all of them whole; listings before and after say the same, as far as an
    eviction has not gone on meanwhile."""
    found = set()
    before = set(os.listdir(m.keys)) & set(names)
    for name in names:
        data = read(m, name)
        if data is not None:
            assert data == content(name, size)
            found.add(name)
        else:
            assert not there(m, name)
    assert set(os.listdir(m.keys)) & set(names) <= found <= before
    return found


def newest(names, found):
    """They are the last ones, in the order of names; one whose key was locked by another put when it was its turn
    goes with the next pass, so a few older ones may be there."""
    behind = set(names) - set(names[len(names) - len(found):])
    assert len(found & behind) <= 1 + len(found) // 50
    assert found >= set(names[len(names) - len(found) * 9 // 10:])


def settled(m):
    """Waits until nothing is above the watermarks, nor being evicted."""
    def quiet():
        before = m.stats()["store_evictions_total"]
        time.sleep(0.3)
        return m.stats()["store_evictions_total"] == before
    wait_until(quiet, what="the end of evictions")


def rejected(*options, env=None):
    r = run(MOONCAKEFS, "local:/nowhere", "/nowhere", "-o", ",".join(options) or "rw", check=False,
            env=dict(os.environ, **(env or {})))
    assert r.returncode == 1 and r.stderr.count(b"\n") == 1, r.stderr
    return r.stderr.decode()


def test_bad_values_are_named():
    prefix = "MOONCAKE_OFFLOAD_"
    assert "option 'eviction': 'mru' is not none, fifo or lru" in rejected("eviction=mru")
    for name, value in [("BUCKET_EVICTION_POLICY", "LIFO"), ("BUCKET_MAX_TOTAL_SIZE", "much"),
                        ("BUCKET_MAX_PHYSICAL_BYTES", "-1"), ("ENABLE_DISK_WATERMARK_EVICTION", "maybe"),
                        ("DISK_EVICTION_HIGH_WATERMARK_RATIO", "1.5"), ("DISK_EVICTION_HIGH_WATERMARK_RATIO", "x"),
                        ("DISK_EVICTION_LOW_WATERMARK_RATIO", "0.95"), ("DISK_EVICTION_LOW_WATERMARK_RATIO", "nan")]:
        assert prefix + name in rejected(env={prefix + name: value}), name
    assert "option 'eviction_high'" in rejected("eviction_high=0")
    assert "option 'eviction_low'" in rejected("eviction_high=0.5", "eviction_low=0.5")
    # Each store has its own.
    offset, files = "backend=offset_allocator_storage_backend", "backend=file_per_key_storage_backend"
    for name in ("EVICTION_POLICY", "EVICTION_HIGH_RATIO", "EVICTION_LOW_RATIO"):
        assert "MOONCAKE_OFFSET_" + name in rejected(offset, env={"MOONCAKE_OFFSET_" + name: "x"}), name
    assert prefix + "ENABLE_EVICTION" in rejected(files, env={prefix + "ENABLE_EVICTION": "perhaps"})
    # An option wins over a variable.
    assert "option 'eviction'" in rejected("eviction=none2", env={prefix + "BUCKET_EVICTION_POLICY": "lru"})


@pytest.mark.parametrize("layout,policy,size,count", [
    ("bucket", "fifo", 2 * MIB, 40), ("bucket", "lru", 2 * MIB, 40), ("bucket", "fifo", 20000, 2000),
    ("bucket", "lru", 3000, 5000), ("offset", "fifo", 20000, 2000), ("offset", "lru", 2 * MIB, 40),
    ("files", "lru", 20000, 2000), ("files", "fifo", 2 * MIB, 40)])
def test_filled_several_times_past_capacity(world, layout, policy, size, count):
    capacity = 16 * MIB if size > MIB else 8 * MIB if size > 10000 else 4 * MIB
    m = Mount(world, options=[f"eviction={policy}", f"capacity={capacity}", *LAYOUTS[layout]])
    names = [f"f{i:05}" for i in range(count)]
    for name in names:
        write(m, name, size)
    settled(m)
    found = left(m, names, size)
    # The newest are there, and a good part of the tier is used.
    newest(names, found)
    assert capacity * 0.6 < len(found) * size <= capacity
    stats = m.stats()
    assert stats["store_evictions_total"] == count - len(found)
    assert stats["store_evicted_bytes_total"] == (count - len(found)) * size
    assert stats["store_used_bytes"] <= capacity
    assert os.statvfs(m.mnt).f_bavail > 0
    status = Rpc(m.config()["master"]).call("Status")
    assert status[b"evicted_replicas"] == count - len(found)
    assert status[b"evicted_bytes"] == (count - len(found)) * size
    assert Rpc(m.config()["node"]).call("NodeStatus")[b"evictions"] == count - len(found)
    text = m.ctl("status").stdout.decode()
    assert f"evicted    {count - len(found)} replicas" in text
    m.umount()
    m.remount()
    assert left(m, names, size) == found


def test_none_is_the_default_and_a_full_tier_says_so(world):
    m = Mount(world, options=["capacity=4M"])
    names = [f"f{i}" for i in range(10)]
    with pytest.raises(OSError) as e:
        for name in names:
            write(m, name, MIB)
    assert e.value.errno == errno.ENOSPC
    assert names[0] in left(m, names, MIB)
    assert m.stats()["store_evictions_total"] == 0


@each_layout
def test_what_is_read_stays_with_lru_and_goes_with_fifo(world, layout):
    for policy in ("lru", "fifo"):
        m = Mount(world, options=[f"eviction={policy}", "capacity=8M", *LAYOUTS[layout]], name=policy)
        write(m, "read", 100000)
        for i in range(300):
            write(m, f"f{i}", 100000)
            read(m, "read")
        assert there(m, "read") == (policy == "lru")
        m.umount()


def test_mooncakes_variables(world):
    prefix = "MOONCAKE_OFFLOAD_"
    env = {prefix + "BUCKET_EVICTION_POLICY": "fifo", prefix + "BUCKET_MAX_TOTAL_SIZE": "4000000",
           prefix + "BUCKET_MAX_PHYSICAL_BYTES": "64000000", prefix + "DISK_EVICTION_HIGH_WATERMARK_RATIO": "0.6",
           prefix + "DISK_EVICTION_LOW_WATERMARK_RATIO": "0.5", prefix + "ENABLE_DISK_WATERMARK_EVICTION": "1"}
    m = Mount(world, env=env)
    names = [f"f{i:03}" for i in range(100)]
    for name in names:
        write(m, name, 100000)
        assert m.stats()["store_object_bytes"] <= 4000000
    settled(m)
    found = left(m, names, 100000)
    newest(names, found)
    assert 2000000 - 200000 <= len(found) * 100000 <= 2400000
    assert m.stats()["store_capacity_bytes"] == 64000000


def test_without_watermarks_only_what_does_not_fit_makes_others_go(world):
    m = Mount(world, options=["eviction=fifo", "capacity=8M", "eviction_watermarks=false"])
    names = [f"f{i}" for i in range(9)]
    for name in names[:7]:
        write(m, name, MIB + 100)
    time.sleep(1.5)
    assert left(m, names, MIB + 100) == set(names[:7])
    write(m, names[7], MIB + 100)
    assert left(m, names, MIB + 100) == set(names[1:8])


def test_what_never_fits_evicts_nothing(world):
    m = Mount(world, options=["eviction=lru", "capacity=8M"])
    write(m, "old", MIB)
    with pytest.raises(OSError) as e:
        write(m, "huge", 9 * MIB)
    assert e.value.errno == errno.ENOSPC
    with pytest.raises(OSError) as e:
        write(m, "old", 9 * MIB)
    assert e.value.errno == errno.ENOSPC
    assert left(m, ["old", "huge"], MIB) == {"old"}
    assert m.stats()["store_evictions_total"] == 0


def test_a_path_that_went_is_gone_at_once(world):
    """What the kernel had cached of names, attributes and pages goes with the object."""
    m = Mount(world, options=["eviction=fifo", "capacity=8M"])
    names = [f"d{i % 5}/f{i:04}" for i in range(400)]
    for d in range(5):
        os.mkdir(m.key(f"d{d}"))
    for i, name in enumerate(names):
        write(m, name, 100000)
        read(m, name)
        before = i - 60
        if before >= 0: # by the listing of a moment ago
            directory = os.path.dirname(names[before])
            listed = set(os.listdir(m.key(directory)))
            for other in names[before % 5:before:5][-12:]:
                data = read(m, other)
                assert data is None or data == content(other, 100000)
                if os.path.basename(other) not in listed:
                    assert data is None and not there(m, other)


def test_pins_hold(world):
    m = Mount(world, options=["eviction=fifo", "capacity=8M"])
    for name in ("hard", "soft", "plain"):
        write(m, name, 100000)
    m.ctl("pin", "hard")
    m.ctl("pin", "--soft", "soft")
    names = [f"f{i}" for i in range(200)]
    for name in names:
        write(m, name, 100000)
    assert left(m, ["hard", "soft", "plain"], 100000) == {"hard", "soft"}


@each_layout
def test_all_pinned_is_a_full_tier_and_the_old_content_stays(world, layout):
    m = Mount(world, options=["eviction=lru", "capacity=8M", "eviction_watermarks=false", *LAYOUTS[layout]])
    names = [f"f{i}" for i in range(7)]
    for name in names:
        write(m, name, MIB)
    m.ctl("pin", *names)
    for victim in ("new", "f3"):
        with pytest.raises(OSError) as e:
            write(m, victim, 3 * MIB)
        assert e.value.errno == errno.ENOSPC
    assert left(m, names + ["new"], MIB) == set(names)
    m.ctl("unpin", "f5", "f6")
    write(m, "new", 2 * MIB)
    assert read(m, "new") == content("new", 2 * MIB)
    assert left(m, names, MIB) < set(names)


def test_soft_pins_go_when_nothing_else_is_left(world):
    m = Mount(world, options=["eviction=fifo", "capacity=8M", "eviction_watermarks=false"])
    names = [f"f{i}" for i in range(7)]
    for name in names:
        write(m, name, MIB)
    m.ctl("pin", "--soft", *names[:6])
    write(m, "a", MIB + MIB // 2)
    assert left(m, names, MIB) == set(names[:6]), "the one that is not pinned, though it is the newest"
    m.ctl("pin", "--soft", "a")
    write(m, "b", MIB)
    assert read(m, "b") == content("b", MIB)
    assert names[0] not in left(m, names, MIB)


def test_soft_pins_hold_where_the_master_says_so(world):
    m = Mount(world, options=["eviction=fifo", "capacity=4M", "master_flags=--allow_evict_soft_pinned_objects=false"])
    names = [f"f{i}" for i in range(3)]
    for name in names:
        write(m, name, MIB)
    m.ctl("pin", "--soft", *names)
    with pytest.raises(OSError) as e:
        write(m, "new", 2 * MIB)
    assert e.value.errno == errno.ENOSPC
    assert left(m, names, MIB) == set(names)


@pytest.fixture
def pair(world):
    master = Master(world, "--default_kv_lease_ttl=60s")
    a = Mount(world, source=master.address, name="a",
              options=["eviction=fifo", "capacity=8M", "lease_wait=20s"])
    b = Mount(world, source=master.address, name="b", options=["listen=127.0.0.1:0"])
    return master, a, b


def test_a_lease_of_another_mount_is_respected(pair):
    _, a, b = pair
    write(a, "leased", 100000)
    assert read(b, "leased") == content("leased", 100000)
    freeze(b.pid())
    names = [f"f{i:03}" for i in range(250)]
    for name in names:
        write(a, name, 100000)
    found = left(a, names, 100000)
    assert len(found) < 100 and names[-1] in found
    assert read(a, "leased") == content("leased", 100000), "b cannot be asked to give up"
    os.kill(b.pid(), signal.SIGCONT)
    assert read(b, "leased") == content("leased", 100000)


def test_a_lease_that_is_recalled_is_given_up_and_nothing_is_stale(pair):
    _, a, b = pair
    names = [f"f{i:03}" for i in range(300)]
    for i, name in enumerate(names):
        write(a, name, 100000)
        assert read(b, name) in (content(name, 100000), None) # b may be slow to give up the older ones
        for other in names[max(0, i - 100):i]:
            if not there(a, other):
                assert not there(b, other) and read(b, other) is None
    settled(a)
    assert left(a, names, 100000) == left(b, names, 100000)
    assert a.stats()["store_evictions_total"] > 150


def test_open_readers_finish(pair):
    """A reader on the node that evicts, and one on another node."""
    _, a, b = pair
    write(a, "f", 3 * MIB)
    want = content("f", 3 * MIB)
    with open(a.key("f"), "rb", buffering=0) as here, open(b.key("f"), "rb", buffering=0) as far, \
            open(a.key("f"), "rb", buffering=0) as late:
        assert here.read(1000) == far.read(1000) == want[:1000]
        for i in range(20):
            write(a, f"n{i}", MIB)
        wait_until(lambda: not there(a, "f"), what="eviction")
        assert not there(b, "f")
        os.posix_fadvise(here.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        for f, at in ((here, 1000), (far, 1000), (late, 0)):
            data = b""
            while piece := f.read(100000):
                data += piece
            assert data == want[at:]
        assert os.fstat(here.fileno()).st_nlink == 0


def test_a_file_that_the_kernel_opened_by_itself_is_read_to_its_end(world):
    m = Mount(world, options=["ro", "eviction=fifo", "capacity=8M"])
    source = world.path("source")
    for i, size in enumerate([3 * MIB] + [MIB] * 12):
        with open(source, "wb") as f:
            f.write(content(f"f{i}", size))
        m.ctl("put", f"f{i}", source)
        if i == 0:
            reader = open(m.key("f0"), "rb", buffering=0)
            assert reader.read(1000) == content("f0", 3 * MIB)[:1000]
    wait_until(lambda: not there(m, "f0"), what="eviction")
    data = b""
    while piece := reader.read(100000):
        data += piece
    reader.close()
    assert data == content("f0", 3 * MIB)[1000:]


def test_an_unanswered_eviction_is_settled_with_the_next_session(world):
    """The master stands still while it is asked: what it had been asked to withdraw does not come back when it goes on,
    and nothing else goes."""
    master = Master(world, "--default_kv_lease_ttl=1s")
    m = Mount(world, source=master.address, options=["eviction=fifo", "capacity=4M", "rpc_timeout=1s"])
    written, gone = [], set()
    for turn in range(3):
        def stand_still():
            freeze(master.process.pid)
            time.sleep(2.5)
            os.kill(master.process.pid, signal.SIGCONT)
        run_and_kill(m, stand_still, written, gone, 100, 60000)
        wait_until(lambda: there(m, written[-1]), what="session")
        wait_until(lambda: os.path.getsize(os.path.join(m.state, "evicting")) == 0, what="settled evictions")
        found = left(m, written, 60000)
        assert not found & gone, "what went has come back"
        wait_until(lambda: m.stats()["store_objects"] == len(os.listdir(m.keys)), what="bytes that are nobody's go")


@each_layout
def test_readers_beside_evictions_see_all_or_nothing(world, layout):
    m = Mount(world, options=["eviction=lru", "capacity=8M", *LAYOUTS[layout]])
    names = [f"f{i}" for i in range(300)]
    fork = multiprocessing.get_context("fork") # a process of its own sees what others have published, not our writers
    stop, problems = fork.Event(), fork.Queue()

    def look(seed):
        dice = random.Random(seed)
        while not stop.is_set():
            name = dice.choice(names)
            try:
                data = read(m, name)
                if data is not None and data != content(name, 60000):
                    problems.put((name, len(data)))
            except OSError as e:
                problems.put((name, str(e)))

    readers = [fork.Process(target=look, args=(i,)) for i in range(3)]
    for p in readers:
        p.start()
    for i in range(1500):
        write(m, names[i * 7 % len(names)], 60000)
    stop.set()
    assert problems.empty(), problems.get()
    for p in readers:
        p.join(30)
        assert p.exitcode == 0
    assert m.stats()["store_evictions_total"] > 100
    left(m, names, 60000)


@each_layout
@pytest.mark.parametrize("how", ["overwrite", "rename"])
def test_replacing_under_pressure(world, how, layout):
    m = Mount(world, options=["eviction=fifo", "capacity=8M", *LAYOUTS[layout]])
    names = [f"f{i}" for i in range(40)]
    for turn in range(6):
        for name in names:
            size = 300000 + turn
            path = m.key(name)
            if how == "overwrite":
                write(m, name, size)
            else:
                with open(path + ".tmp", "wb") as f:
                    f.write(content(name, size))
                os.rename(path + ".tmp", path)
            assert read(m, name) == content(name, size)
    settled(m)
    last = 300000 + 5
    found = left(m, names, last)
    assert names[-1] in found and len(found) * last <= 8 * MIB


def crc32c(data):
    crc = 0xffffffff
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82f63b78 if crc & 1 else 0)
    return crc ^ 0xffffffff


def record(name, version):
    body = msgpack.packb([b"default", name.encode(), version])
    return struct.pack("<II", len(body), crc32c(body)) + body


def version_of(m, name):
    return int(os.getxattr(m.key(name), "user.mooncake.version"))


def test_what_was_being_evicted_at_a_death_does_not_come_back(world):
    """The master has withdrawn it, and the process died before the store had removed it: what lies in the state
    directory then."""
    m = Mount(world, options=["eviction=none"])
    for name in ("gone", "pinned", "stays"):
        write(m, name, 50000)
    m.ctl("pin", "pinned")
    versions = {name: version_of(m, name) for name in ("gone", "pinned", "stays")}
    m.snapshot() # that has all three
    m.kill()
    path = os.path.join(m.state, "evicting")
    torn = record("stays", versions["stays"])[:-1]
    with open(path, "wb") as f:
        f.write(record("gone", versions["gone"]) + record("pinned", versions["pinned"]) +
                record("stays", versions["stays"] + 1) + torn)
    m.remount()
    names = ["gone", "pinned", "stays"]
    assert left(m, names, 50000) == {"pinned", "stays"}
    assert os.path.getsize(path) == 0
    assert m.stats()["store_objects"] == 2
    m.kill()
    m.remount()
    assert left(m, names, 50000) == {"pinned", "stays"}


def hammer(m, stop, written, lost, size):
    """Writes new names until it is told to stop or cannot any more."""
    i = 0
    while not stop.is_set():
        name = f"w{len(written):05}"
        try:
            write(m, name, size)
            written.append(name)
        except OSError as e:
            lost.append(e.errno)
            return
        i += 1


def watch(m, stop, written, gone):
    """Notes names that are not there any more."""
    while not stop.is_set():
        for name in list(written)[-200:]:
            if name in gone or stop.is_set():
                continue
            try:
                os.stat(m.key(name))
            except FileNotFoundError:
                gone.add(name)
            except OSError:
                return


def run_and_kill(m, kill, written, gone, after, size):
    stop, lost = threading.Event(), []
    first = len(written)
    threads = [threading.Thread(target=hammer, args=(m, stop, written, lost, size)),
               threading.Thread(target=watch, args=(m, stop, written, gone))]
    for t in threads:
        t.start()
    wait_until(lambda: len(written) - first > after or lost, 60, "writes")
    kill()
    stop.set()
    for t in threads:
        t.join()
    return lost


@pytest.mark.parametrize("layout,size", [("bucket", 60000), ("bucket", MIB + 5), ("offset", 60000), ("files", 60000)])
def test_daemon_killed_while_evicting(world, layout, size):
    m = Mount(world, options=["eviction=fifo", f"capacity={size * 40}", *LAYOUTS[layout]])
    written, gone = [], set()
    dice = random.Random(size)
    for turn in range(5):
        run_and_kill(m, m.kill, written, gone, dice.randrange(60, 100), size)
        m.remount()
        found = left(m, written, size)
        assert not found & gone, "what went has come back"
        assert len(found) <= 40
        newest(written, found)
    assert m.stats()["store_objects"] == len(os.listdir(m.keys))


def test_master_killed_while_evicting(world):
    master = Master(world, "--default_kv_lease_ttl=1s")
    m = Mount(world, source=master.address, options=["eviction=fifo", "capacity=4M", "rpc_timeout=20s"])
    written, gone = [], set()

    def kill():
        master.kill()
        time.sleep(0.3)
        master.start()

    for turn in range(4):
        lost = run_and_kill(m, kill, written, gone, 120, 60000)
        assert not lost, "a put waits for the master to come back"
        wait_until(lambda: m.stats() and there(m, written[-1]), what="session")
        found = left(m, written, 60000)
        assert not found & gone, "what went has come back"
    settled(m)
    found = left(m, written, 60000)
    assert len(found) * 60000 <= 4 * MIB
    assert m.stats()["store_objects"] == len(found)


def test_new_objects_stay_while_the_old_may_be_leased(world):
    """A master that was restarted knows of no lease, so for that long all that is old counts as leased."""
    master = Master(world, "--default_kv_lease_ttl=5s")
    m = Mount(world, source=master.address, options=["eviction=fifo", "capacity=4M"])
    old, new = [f"old{i}" for i in range(52)], [f"new{i}" for i in range(13)]
    for name in old:
        write(m, name, 60000)
    master.kill()
    master.start()
    wait_until(lambda: there(m, old[-1]), what="session")
    for name in new: # above the high watermark, and not full
        write(m, name, 60000)
    wait_until(lambda: m.stats()["eviction_refusals_total"] > 0, what="a pass")
    time.sleep(1)
    assert left(m, new, 60000) == set(new)
    wait_until(lambda: m.stats()["store_object_bytes"] <= 4 * MIB * 0.8, what="eviction")
    assert left(m, new, 60000) == set(new)


def test_nothing_goes_while_the_master_is_away(world):
    master = Master(world, "--default_kv_lease_ttl=1s")
    m = Mount(world, source=master.address, options=["eviction=fifo", "capacity=4M", "rpc_timeout=1s"])
    names = [f"f{i}" for i in range(50)]
    for name in names:
        write(m, name, 60000)
    before = left(m, names, 60000)
    master.kill()
    m.umount()
    m.options[1] = "capacity=1M" # more than is allowed now lies there
    master.start()
    m.remount()
    # A new master waits a lease time, as it does not know who leases what.
    wait_until(lambda: m.stats()["store_object_bytes"] <= MIB * 0.8, what="eviction")
    settled(m)
    found = left(m, names, 60000)
    assert found < before and len(found) * 60000 <= MIB
    master.kill()
    time.sleep(1.5)
    assert m.stats()["store_objects"] == len(found)
    master.start()
    wait_until(lambda: there(m, names[-1]), what="session")
    assert left(m, names, 60000) == found


def test_counted_by_the_master(world):
    port = free_port()
    master = Master(world, f"--metrics_port={port}")
    m = Mount(world, source=master.address, options=["eviction=fifo", "capacity=4M"])
    for i in range(100):
        write(m, f"f{i}", 60000)
    settled(m)
    evicted = m.stats()["store_evictions_total"]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as r:
        text = r.read().decode()
    assert f"mooncakefs_evicted_replicas_total {evicted}\n" in text
    assert f"mooncakefs_evicted_bytes_total {evicted * 60000}\n" in text
