# SPDX-License-Identifier: Apache-2.0
"""Memory that comes back: a writer whose put was under way there is not written over, nor does it write over others."""
import time

import pytest
from harness import Master, RpcError, wait_until
from test_segments import Node, segments
from test_segments_snapshot import assert_apart, fill


def filled(node):
    """Where every byte that can be had is, in large and small pieces."""
    large = fill(node, f"l{node.number}-{time.monotonic_ns()}", 900)
    return {**large, **fill(node, f"s{node.number}-{time.monotonic_ns()}", 7)}


def place(where):
    return [(w[1], w[3], w[4]) for w in where]


def test_a_put_under_way_when_its_segment_is_unmounted(world):
    master = Master(world, "--default_kv_lease_ttl=100", "--eviction_high_watermark_ratio=1",
                    "--client_ttl=600",
                    "--put_start_discard_timeout_sec=2", "--put_start_release_timeout_sec=12")
    a = Node(master)
    one = a.mount(size=20_000)
    version, where = a.start("slow", 5000)
    ended, done = a.start("done", 3000)
    a.end("done", ended, 3000)
    a.call("UnmountSegment", one)
    wait_until(lambda: a.exists("done") is False, what="sweep")
    a.mount("5-9", size=20_000)
    wait_until(lambda: segments(a.rpc)["5-9"]["used"] == 5000, what="end of the readers' leases")
    new = filled(a)
    assert_apart([place(where)], new.values())
    assert any(r[0][1] < done[0][3] + 3000 and done[0][3] < r[0][1] + r[0][2] for r in new.values())
    with pytest.raises(RpcError) as e:
        a.end("slow", version, 5000)
    assert e.value.code in (-101, -704)  # its segment is gone; or it has been given up by now
    # Given up is not over; when the writer's time is, the room is there.
    wait_until(lambda: a.rpc.call("Status")[b"discarded_puts"] == 1, what="discard")
    assert segments(a.rpc)["5-9"]["used"] > 19_000
    a.call("UnmountSegment", "5-9")
    a.mount("5-10", size=20_000)
    assert segments(a.rpc)["5-10"]["used"] == 5000

    def released():
        a.ping()
        return segments(a.rpc)["5-10"]["used"] == 0

    wait_until(released, what="release")


def test_a_put_under_way_when_its_node_is_lost(world):
    """Silent for too long, and there again with the same memory; or with new bytes in it after a new session."""
    master = Master(world, "--default_kv_lease_ttl=100", "--eviction_high_watermark_ratio=1", "--client_ttl=2")
    a, b = Node(master, 1), Node(master, 2)
    a.mount(size=20_000)
    _, where = b.start("slow", 5000)

    def gone():
        b.ping()
        return not segments(b.rpc)

    wait_until(gone, what="expiry")
    a.register()
    a.mount(size=20_000)
    assert segments(b.rpc)["5-1"]["used"] == 5000
    _, second = b.start("slow too", 2000)
    # A new session, whose memory holds other bytes at the same place: its id is another.
    a.register()
    assert segments(b.rpc)["5-1"]["state"] == b"awaited"
    a.mount("5-77", size=20_000)
    assert segments(b.rpc)["5-77"]["used"] == 7000
    assert_apart([place(where), place(second)], filled(a).values())
    # Another node's memory is other memory.
    c = Node(master, 3)
    c.mount("5-3", base=1 << 40, size=20_000)
    assert segments(c.rpc)["5-3"]["used"] == 0
