# SPDX-License-Identifier: Apache-2.0
"""Look-ups that were answered before they were asked: few requests, and never an old answer."""
import os
import random
import threading

import pytest
from harness import Master, Mount, read, wait_until, write

COUNT = 600


@pytest.fixture
def pair(world):
    master = Master(world)
    a = Mount(world, source=master.address, name="a")
    b = Mount(world, source=master.address, name="b", options=["listen=127.0.0.1:0"])
    # Where a node knows of others, less is cached.
    wait_until(lambda: a.stats()["cluster_nodes"] == 2, what="news of the other node")
    return a, b


def names(count=COUNT):
    return [f"block-{i:05d}" for i in range(count)]


def fill(m, directory="d"):
    os.makedirs(m.key(directory), exist_ok=True)
    for name in names():
        write(m.key(directory, name), name.encode())


def test_names_in_order_cost_few_requests(pair):
    a, b = pair
    fill(b)
    folder = os.open(a.key("d"), os.O_RDONLY)  # so that the names above it cost nothing
    before = a.stats()
    for name in names():
        assert os.stat(name, dir_fd=folder).st_size == len(name)
    after = a.stats()
    os.close(folder)
    assert after["lookup_ahead_hits_total"] - before["lookup_ahead_hits_total"] > COUNT * 3 // 4
    assert after["master_calls_total"] - before["master_calls_total"] < COUNT // 4


def test_names_at_random_take_little_along(pair):
    a, b = pair
    fill(b)
    order = names()
    random.Random(1).shuffle(order)
    folder = os.open(a.key("d"), os.O_RDONLY)
    before = a.stats()
    for name in order:
        assert os.stat(name, dir_fd=folder).st_size == len(name)
    after = a.stats()
    os.close(folder)
    assert after["master_calls_total"] - before["master_calls_total"] <= COUNT + 20


def test_what_was_taken_along_is_recalled(pair):
    """The other mount changes names that this one knows of without having been asked for them."""
    a, b = pair
    fill(b)
    for name in names(100):
        os.stat(a.key("d", name))
    for i in (100, 101, 120, 150):  # taken along by now
        write(b.key("d", f"block-{i:05d}"), b"a longer content")
        assert read(a.key("d", f"block-{i:05d}")) == b"a longer content"
    os.unlink(b.key("d", "block-00102"))
    assert not os.path.exists(a.key("d", "block-00102"))
    os.rename(b.key("d", "block-00103"), b.key("d", "block-00104"))
    assert not os.path.exists(a.key("d", "block-00103"))
    assert read(a.key("d", "block-00104")) == b"block-00103"
    os.chmod(b.key("d", "block-00105"), 0o600)
    assert os.stat(a.key("d", "block-00105")).st_mode & 0o777 == 0o600


def test_own_changes_are_seen(pair):
    a, b = pair
    fill(b)
    for name in names(100):
        os.stat(a.key("d", name))
    write(a.key("d", "block-00100"), b"own content, longer")
    assert os.stat(a.key("d", "block-00100")).st_size == 19
    os.unlink(a.key("d", "block-00101"))
    assert not os.path.exists(a.key("d", "block-00101"))
    os.utime(a.key("d", "block-00103"), (1, 2))
    assert os.stat(a.key("d", "block-00103")).st_mtime == 2


def test_never_an_old_answer_under_change(pair):
    """One mount reads names in order, the other replaces and removes: after each change the reader sees it."""
    a, b = pair
    fill(b)
    stop = threading.Event()

    def reader():
        while not stop.is_set():
            for name in names():
                try:
                    os.stat(a.key("d", name))
                except FileNotFoundError:
                    pass
    thread = threading.Thread(target=reader)
    thread.start()
    try:
        rng = random.Random(2)
        for round in range(150):
            name = f"block-{rng.randrange(COUNT):05d}"
            if rng.random() < 0.3:
                if os.path.exists(b.key("d", name)):
                    os.unlink(b.key("d", name))
                assert not os.path.exists(a.key("d", name))
            else:
                data = os.urandom(rng.randrange(1, 3000))
                write(b.key("d", name), data)
                assert os.stat(a.key("d", name)).st_size == len(data)
                assert read(a.key("d", name)) == data
    finally:
        stop.set()
        thread.join()


def test_stat_of_a_listing(pair):
    a, b = pair
    fill(b)
    with os.scandir(a.key("d")) as entries:
        sizes = {e.name: e.stat().st_size for e in entries}
    assert sizes == {name: len(name) for name in names()}
