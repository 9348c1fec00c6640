# SPDX-License-Identifier: Apache-2.0
"""Pins, groups, patterns and batches, as clients of the master and people at a shell see them."""
import json
import os
import threading

import pytest
from harness import Master, Mount, Rpc, RpcError, wait_until

HAS_LEASE, NOT_FOUND, ILLEGAL, INVALID = -706, -704, -601, -600


@pytest.fixture
def master(world):
    return Master(world, "--default_kv_lease_ttl=60s")


class Node:
    """A node that stores nothing really and hears what the master says."""

    def __init__(self, master, number):
        self.rpc = Rpc(master.address)
        self.session = self.rpc.call("Register", f"{number}-{number}", "n", "n:1", 1 << 40, 0)[0]
        self.rpc.call("InventoryEnd", self.session)

    def put(self, key, *config, tenant="default"):
        version = self.rpc.call("PutStart", self.session, tenant, key, 3, True, *config)[0]
        self.rpc.call("PutEnd", self.session, tenant, key, version, 3, 0o644, 0, 0, 0, 0, False, None, 0)
        return version

    def get(self, key, tenant="default"):
        return self.rpc.call("GetReplicaList", self.session, tenant, key)


def walk(rpc, method, *params):
    """All results of a method with a cursor."""
    out, cursor = [], 0
    while True:
        cursor, found = rpc.call(method, *params, cursor)
        out += found
        if not cursor:
            return out


def test_put_with_config(master):
    n = Node(master, 1)
    n.put("a", {"soft_pin_ms": None, "group": "g", "hard_pin": True})
    n.put("b", {"soft_pin_ms": 5000})
    n.put("c")
    a, b, c = n.get("a"), n.get("b"), n.get("c")
    assert a[8] is True and 1_700_000 < a[11] <= 1_800_000 and a[12] == b"g"
    assert 0 < b[11] <= 5000 and c[11] == 0 and c[12] == b""
    assert n.rpc.call("SetSoftPin", 0, "default", "c", None) == [1_800_000]
    assert n.rpc.call("SetSoftPin", 0, "default", "a", 0) == [0]
    assert n.get("c")[11] > 0 and n.get("a")[11] == 0
    for bad in ({"colour": 1}, {"group": 5}, {"soft_pin_ms": -1}, {"group": "g" * 256}, [], {1: 2},
                {"soft_pin_ms": 1 << 62}):
        with pytest.raises(RpcError) as e:
            n.put("x", bad)
        assert e.value.code == INVALID, bad


def test_a_regex_finds_and_leases(master):
    n, other = Node(master, 1), Node(master, 2)
    keys = [f"model/{i}/{'k' if i % 2 else 'v'}" for i in range(3000)]
    for k in keys:
        n.put(k)
    n.put("model/1/k", tenant="another")
    found = walk(other.rpc, "GetReplicaListByRegex", other.session, "default", "/[0-9]*7/k$")
    assert sorted(k.decode() for k, _ in found) == sorted(k for k in keys if k.endswith("7/k"))
    assert all(o[2] > 0 and o[10] for _, o in found)
    # It has leases on what it found, and on nothing else.
    answers = n.rpc.call("BatchRemove", n.session, "default", [["model/7/k", 0], ["model/8/v", 0]], False)
    assert answers[0][0] == HAS_LEASE and answers[1][0] == 0


@pytest.mark.parametrize("method", ["GetReplicaListByRegex", "RemoveByRegex"])
def test_patterns_that_are_refused(master, method):
    n = Node(master, 1)
    n.put("a" * 60 + "b")
    rest = [False] if method == "RemoveByRegex" else []
    for pattern, text in (("(", "wrong at byte"), ("", "256"), ("a" * 257, "256"),
                          ("^(a+)+$", "costs too much"), ("(a*)*(a*)*(a*)*[cd]", "costs too much")):
        with pytest.raises(RpcError, match=text) as e:
            walk(n.rpc, method, n.session, "default", pattern, *rest)
        assert e.value.code == INVALID
    with pytest.raises(RpcError, match="cursor"):
        n.rpc.call(method, n.session, "default", "a", *rest, 1024)
    assert n.get("a" * 60 + "b")


def test_removal_says_what_became_of_each(master):
    n, reader = Node(master, 1), Node(master, 2)
    versions = {k: n.put(k, {"hard_pin": True} if k == "pinned" else {}) for k in
                ("free", "pinned", "leased", "old", "kept")}
    reader.get("leased")
    answers = n.rpc.call("BatchRemove", n.session, "default",
                         [["free", 0], ["pinned", 0], ["leased", 0], ["missing", 0],
                          ["old", versions["old"] + 1], ["", 0]], False)
    assert [a[0] for a in answers] == [0, ILLEGAL, HAS_LEASE, NOT_FOUND, NOT_FOUND, -400]
    assert answers[0][1] == versions["free"]
    assert all(isinstance(a[1], bytes) and a[1] for a in answers[1:])
    found = {k.decode(): (code, what) for k, code, what in
             walk(n.rpc, "RemoveByRegex", n.session, "default", "^(pinned|leased|old)$", False)}
    assert found["old"] == (0, versions["old"])
    assert found["pinned"][0] == ILLEGAL and found["leased"][0] == HAS_LEASE
    # Forced: all go, and the reader still hears of it.
    found = {k.decode(): code for k, code, _ in walk(n.rpc, "RemoveAll", n.session, "default", True)}
    assert found == {"pinned": 0, "leased": 0, "kept": 0}
    notices = [reader.rpc.receive()]
    assert notices[0][:2] == [2, b"Recall"] and notices[0][2][1] == b"leased"
    assert n.rpc.call("Status")[b"objects"] == 0


def test_a_batch_that_is_malformed_removes_nothing(master):
    n = Node(master, 1)
    n.put("a")
    for params in ([[["a", 0], ["b"]], True], [[["a", 0]]], [[["a", 0]], "yes"],
                   [[["a", 0]] * 4097, True]):
        with pytest.raises(RpcError) as e:
            n.rpc.call("BatchRemove", n.session, "default", *params)
        assert e.value.code == INVALID
    assert n.get("a")


def test_remove_all_is_one_tenants(master):
    n = Node(master, 1)
    for i in range(2500):
        n.put(f"k{i}")
    n.put("k", tenant="other")
    found = walk(n.rpc, "RemoveAll", n.session, "default", False)
    assert len({k for k, code, _ in found if code == 0}) == 2500
    assert [t[0] for t in n.rpc.call("Tenants") if t[1]] == [b"other"]
    assert walk(n.rpc, "RemoveAll", n.session, "nobody", False) == []


def test_a_group_is_recalled_as_one(master):
    n, reader = Node(master, 1), Node(master, 2)
    for i in range(3):
        n.put(f"g{i}", {"group": "prompt"})
    reader.get("g0")
    version = n.get("g1")[0]
    with pytest.raises(RpcError) as e:
        n.rpc.call("Remove", n.session, "default", "g2", 0, False)
    assert e.value.code == HAS_LEASE
    notice = reader.rpc.receive()
    assert notice[1] == b"Recall" and notice[2][1] == b"g2"
    reader.rpc.call("RecallDone", reader.session, [["default", "g2", notice[2][2]]])
    assert n.rpc.call("Remove", n.session, "default", "g2", 0, False)
    assert version


def test_puts_that_never_end(world):
    master = Master(world, "--put_start_discard_timeout_sec=1", "--put_start_release_timeout_sec=3")
    a, b = Node(master, 1), Node(master, 2)
    slow = a.rpc.call("PutStart", a.session, "default", "k", 3, False)[0]
    with pytest.raises(RpcError, match="exists"):
        b.rpc.call("PutStart", b.session, "default", "k", 3, False)

    def takes_over():
        try:
            b.rpc.call("PutStart", b.session, "default", "k", 3, False)
            return True
        except RpcError:
            return False

    wait_until(takes_over, what="the place of the put that never ended")
    with pytest.raises(RpcError, match="given up"):
        a.rpc.call("PutEnd", a.session, "default", "k", slow, 3, 0o644, 0, 0, 0, 0, False, None, 0)
    wait_until(lambda: a.rpc.call("Status")[b"discarded_puts"] == 0 and
               a.rpc.call("Status")[b"pending_puts"] == 0, what="forgetting")


@pytest.mark.parametrize("flags", [["--put_start_release_timeout_sec=5"], ["--default_kv_soft_pin_ttl=0"],
                                   ["--put_start_discard_timeout_sec=2d"]])
def test_timeouts_that_make_no_sense(flags):
    from harness import MASTER, run
    r = run(MASTER, *flags, check=False)
    assert r.returncode == 1 and flags[0][2:].split("=")[0].encode() in r.stderr


def test_on_a_mount(world):
    """xattrs, and what the command line removes goes from another mount's caches, too."""
    master = Master(world, "--default_kv_lease_ttl=60s")
    a = Mount(world, source=master.address, name="a")
    b = Mount(world, source=master.address, name="b")
    for i in range(20):
        with open(a.key(f"f{i}"), "wb") as f:
            f.write(b"x")
    path = a.key("f1")
    assert os.getxattr(path, "user.mooncake.soft_pin") == b"0"
    os.setxattr(path, "user.mooncake.soft_pin", b"1")
    assert os.getxattr(path, "user.mooncake.soft_pin") == b"1"
    assert os.getxattr(path, "user.mooncake.group") == b""
    assert "user.mooncake.group" in os.listxattr(path)
    a.ctl("unpin", "f1")
    assert os.getxattr(path, "user.mooncake.soft_pin") == b"0"
    a.ctl("pin", "--soft", "--ttl=90s", "f1")
    stat = json.loads(a.ctl("--json", "stat", "f1").stdout)
    assert 0 < stat["soft_pin_ms"] <= 90000 and stat["hard_pin"] is False and stat["group"] == ""
    assert b"soft pin" in a.ctl("stat", "f1").stdout
    found = json.loads(a.ctl("--json", "stat", "--regex", "^f1[0-9]$").stdout)
    assert sorted(o["key"] for o in found) == sorted(f"f{i}" for i in range(10, 20))
    assert os.path.exists(b.key("f15"))  # a lease that has to be recalled
    a.ctl("pin", "f12")
    r = a.ctl("--json", "rm", "--regex", "^f1.", check=False)
    out = json.loads(r.stdout)
    assert r.returncode == 1 and out["removed"] == 9 and out["failed"][0]["key"] == "f12"
    assert not os.path.exists(b.key("f15")) and not os.path.exists(a.key("f15"))
    assert os.path.exists(a.key("f12")) and os.path.exists(b.key("f1"))
    a.ctl("--force", "rm", "--regex", "^f12$")
    wait_until(lambda: not os.path.exists(a.key("f12")) and not os.path.exists(b.key("f12")),
               what="a forced removal seen by all")
    r = a.ctl("rm", "--regex", "(", check=False)
    assert r.returncode == 1 and b"wrong at byte" in r.stderr
    assert len(os.listdir(b.keys)) == 10


def test_removal_by_pattern_beside_writers(master):
    """What is there before and is not written is gone afterwards; nothing is left half."""
    n, w = Node(master, 1), Node(master, 2)
    for i in range(3000):
        n.put(f"old{i}")
    stop, written = threading.Event(), []

    def write():
        while not stop.is_set():
            key = f"new{len(written)}"
            w.put(key)
            written.append(key)

    t = threading.Thread(target=write)
    t.start()
    try:
        # A putter holds leases on its puts; its own session removes them.
        left = walk(n.rpc, "RemoveByRegex", n.session, "default", "^old", False)
    finally:
        stop.set()
        t.join()
    assert len(left) == 3000 and all(code == 0 for _, code, _ in left)
    assert n.rpc.call("Status")[b"objects"] == len(written)
