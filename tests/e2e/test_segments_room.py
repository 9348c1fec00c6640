# SPDX-License-Identifier: Apache-2.0
"""Puts into full memory segments: who waits for room, who gets it, and who is told at once that there is none."""
import signal
import threading

import msgpack
from harness import Master, wait_until
from test_segments import TENANT, Node, fails, segments

IDLE = "--client_ttl=600"  # nobody pings here
LONG = 60_000  # more than the tests' RPC waits: an answer is then one that did not wait for its time


def waiting(rpc):
    return rpc.call("Status")[b"waiting_puts"]


class Waiter(threading.Thread):
    """A put that is begun by another caller."""

    def __init__(self, master, number, key, size, **config):
        super().__init__()
        self.node = Node(master, number)
        self.args = (key, size)
        self.config = {"wait_ms": LONG, **config}
        self.result = self.error = None

    def run(self):
        try:
            self.result = self.node.start(*self.args, **self.config)
        except Exception as e:  # told to whoever joins
            self.error = e

    def done(self):
        self.join(60)
        assert not self.is_alive() and self.error is None, self.error
        return self.result


def test_concurrent_puts_into_full_memory_all_succeed(world):
    master = Master(world, "--default_kv_lease_ttl=100", "--eviction_high_watermark_ratio=1", IDLE)
    a = Node(master)
    a.mount(size=100_000)
    for i in range(100):
        a.put(f"old{i}", 1000)
    failed = []

    def put(number):
        node = Node(master, number)
        try:
            for i in range(60):
                node.put(f"new{number}-{i}", 1000 + 7 * number)
        except Exception as e:
            failed.append(e)

    threads = [threading.Thread(target=put, args=(n,)) for n in range(2, 10)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failed, failed[0]
    status = a.rpc.call("Status")
    assert status[b"puts"] == 100 + 8 * 60 and status[b"waiting_puts"] == 0 and not a.exists("old0")


def test_a_put_waits_for_leases_to_end(world):
    master = Master(world, "--default_kv_lease_ttl=1500", "--eviction_high_watermark_ratio=1", IDLE)
    a = Node(master)
    a.mount(size=1000)
    a.put("k", 600)
    assert "600 bytes free" in fails(-200, a.start, "new", 600, wait_ms=0)
    a.put("new", 600)
    assert a.exists("new") and not a.exists("k")


def test_what_eviction_cannot_help_fails_at_once_and_evicts_nothing(world):
    master = Master(world, "--default_kv_lease_ttl=100", "--eviction_high_watermark_ratio=1", IDLE)
    a = Node(master)
    a.mount(size=100_000)
    a.put("hard", 60_000, hard_pin=True)
    for i in range(40):
        a.put(f"k{i}", 1000)
    assert "more than any memory segment has" in fails(-200, a.start, "new", 100_001, wait_ms=LONG)
    assert "pinned or leased" in fails(-200, a.start, "new", 40_001, wait_ms=LONG)
    assert all(a.exists(f"k{i}") for i in range(40))
    assert a.rpc.call("Status")[b"memory_evicted_objects"] == 0
    a.put("new", 40_000)
    assert not any(a.exists(f"k{i}") for i in range(40)) and a.exists("hard")


def test_a_large_put_needs_few_rounds_of_eviction(world):
    master = Master(world, "--default_kv_lease_ttl=100", "--eviction_high_watermark_ratio=1", IDLE,
                    "--eviction_ratio=0.001")
    a = Node(master)
    a.mount(size=100_000)
    for i in range(1000):
        a.put(f"k{i}", 100)
    a.put("large", 90_000, wait_ms=30_000)
    wait_until(lambda: " objects had no other" in master.log_text(), what="log")
    assert master.log_text().count(" objects had no other") < 40  # of the 900 that one by one would take


def test_full_of_leased_objects(world):
    """Leases longer than the put waits: at once; shorter ones that are renewed: when its time is over."""
    master = Master(world, "--default_kv_lease_ttl=600000", "--eviction_high_watermark_ratio=1", IDLE)
    a = Node(master)
    a.mount(size=1000)
    a.put("k", 1000)
    assert "pinned or leased" in fails(-200, a.start, "new", 1000, wait_ms=LONG)
    assert a.exists("k")

    master = Master(world, "--default_kv_lease_ttl=400", "--eviction_high_watermark_ratio=1", IDLE)
    a = Node(master)
    a.mount(size=1000)
    a.put("k", 1000)
    stop = threading.Event()
    reader = Node(master, 2)

    def read():
        while not stop.wait(0.02):
            reader.get("k")

    t = threading.Thread(target=read)
    t.start()
    try:
        fails(-200, a.start, "new", 1000, wait_ms=1000)
    finally:
        stop.set()
        t.join()
    assert a.exists("k") and waiting(a.rpc) == 0


def test_room_that_others_give_back_goes_to_who_came_first(world):
    master = Master(world, "--eviction_high_watermark_ratio=1", IDLE, "--rpc_thread_num=1")
    a = Node(master)
    one = a.mount(size=1000)
    version, _ = a.start("begun", 1000)
    first = Waiter(master, 2, "first", 600)
    first.start()
    wait_until(lambda: waiting(a.rpc) == 1, what="first")
    second = Waiter(master, 3, "second", 500)
    second.start()
    wait_until(lambda: waiting(a.rpc) == 2, what="second")
    small = Waiter(master, 4, "small", 100)
    small.start()
    wait_until(lambda: waiting(a.rpc) == 3, what="small")
    a.call("PutRevoke", version)
    # The second does not fit beside the first; the third does, and is not kept waiting by it.
    version, where = first.done()
    small.done()
    assert where[0][4] == 600 and waiting(a.rpc) == 1 and second.is_alive()
    first.node.call("PutRevoke", version)
    second.done()
    assert segments(a.rpc)[one]["used"] == 600


def test_who_leaves_waits_no_more(world):
    master = Master(world, "--eviction_high_watermark_ratio=1", IDLE)
    a, b = Node(master, 1), Node(master, 2)
    one = a.mount(size=1000)
    version, _ = a.start("begun", 1000)
    b.rpc.send(msgpack.packb([0, 77, "PutStart", [b.session, TENANT, "k", 10, False,
                                                  {"replica_num": 1, "wait_ms": LONG}]]))
    wait_until(lambda: waiting(a.rpc) == 1, what="waiting put")
    # Its connection goes on meanwhile.
    assert b.rpc.call("ExistKey", 0, TENANT, "k") is False
    b.rpc.sock.close()
    wait_until(lambda: waiting(a.rpc) == 0, what="put given up")
    a.call("PutRevoke", version)
    assert segments(a.rpc)[one]["used"] == 0 and a.rpc.call("Status")[b"pending_puts"] == 0

    # Nor does a master wait for those that wait.
    a.start("begun", 1000)
    last = Waiter(master, 3, "k", 10)
    last.start()
    wait_until(lambda: waiting(a.rpc) == 1, what="waiting put")
    master.kill(signal.SIGTERM)
    assert master.process.returncode == 0
    last.join(60)
    assert not last.is_alive() and last.error


def test_as_many_wait_as_may(world):
    master = Master(world, "--eviction_high_watermark_ratio=1", IDLE)
    a, b = Node(master, 1), Node(master, 2)
    a.mount(size=5000)
    version, _ = a.start("begun", 5000)
    fails(-600, a.start, "k", 10, wait_ms=LONG + 1)
    for i in range(4097):
        b.rpc.send(msgpack.packb([0, i, "PutStart", [b.session, TENANT, f"k{i}", 1, False,
                                                     {"replica_num": 1, "wait_ms": LONG}]]))
    kind, ident, error, _ = b.rpc.receive()
    assert (kind, ident, error[0]) == (1, 4096, -200) and b"4096 puts wait for room" in error[2]
    assert waiting(a.rpc) == 4096
    a.call("PutRevoke", version)
    order = [b.rpc.receive() for _ in range(4096)]
    assert [m[1] for m in order] == list(range(4096)) and all(m[2] is None for m in order)
