# SPDX-License-Identifier: Apache-2.0
"""What comes over the wire can be anything."""
import os
import random
import socket
import struct
import threading

import msgpack
import pytest
from harness import MASTER, Master, Mount, Rpc, RpcError, run

GARBAGE = {
    "http": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "4 GiB string": b"\x94\x00\x01\xdb\xff\xff\xff\xff",
    "4 GiB bin": b"\x94\x00\x01\xa4Ping\x91\xc6\xff\xff\xff\xff",
    "2^32 elements": b"\xdd\xff\xff\xff\xff",
    "2^32 pairs": b"\x94\x00\x01\xa4Ping\xdf\xff\xff\xff\xff",
    "a million nested arrays": b"\x91" * 1_000_000,
    "nested in params": b"\x94\x00\x01\xa4Ping" + b"\x91" * 1_000_000 + b"\xc0",
    "reserved byte": b"\xc1" * 100,
    "response instead of request": msgpack.packb([1, 1, None, None]),
    "wrong array size": msgpack.packb([0, 1, "Ping"]),
    "params no array": msgpack.packb([0, 1, "Ping", 5]),
    "zeros": bytes(100000),
}


@pytest.fixture
def master(world):
    return Master(world)


@pytest.mark.parametrize("name", GARBAGE)
def test_garbage_ends_the_connection_only(master, name):
    with Rpc(master.address) as good:
        good.call("Status")
        with socket.create_connection(("127.0.0.1", master.port)) as s:
            s.settimeout(10)
            try:
                s.sendall(GARBAGE[name])
                s.shutdown(socket.SHUT_WR)
                while s.recv(65536):
                    pass
            except ConnectionError:
                pass
        good.call("Status")
    assert master.process.poll() is None


def test_garbage_takes_no_memory(master):
    def rss():
        with open(f"/proc/{master.process.pid}/status") as f:
            return int([l for l in f if l.startswith("VmRSS")][0].split()[1])

    before = rss()
    socks = []
    for _ in range(50):
        s = socket.create_connection(("127.0.0.1", master.port))
        s.sendall(b"\x94\x00\x01\xa4Ping\x91\xc6\x03\xff\xff\xff")
        socks.append(s)
    Rpc(master.address).call("Status")
    assert rss() - before < 100_000
    for s in socks:
        s.close()


def test_random_bytes(master):
    r = random.Random(7)
    for _ in range(200):
        with socket.create_connection(("127.0.0.1", master.port)) as s:
            try:
                s.sendall(r.randbytes(r.randrange(1, 300)))
            except ConnectionError:
                pass
    Rpc(master.address).call("Status")


def test_every_method_with_wrong_params(master):
    """Wrong shapes, types and values give an error with its number, whatever the method."""
    methods = ["Register", "InventoryItems", "InventoryEnd", "Ping", "RecallDone", "Discarded",
               "GetReplicaList", "BatchGetReplicaList", "ExistKey", "BatchExistKey", "Lookup",
               "List", "PutStart", "PutEnd", "PutRevoke", "Exchange", "Remove",
               "GetReplicaListByRegex", "BatchRemove", "RemoveByRegex", "RemoveAll", "SetSoftPin", "SetAttr", "SetPin",
               "SnapshotFiles", "SnapshotRead"]
    r = random.Random(3)
    values = [None, True, -1, 0, 2**63, 2**64 - 1, "", "x", b"\0" * 10, "k" * 5000, [], [[]], {},
              1.5, ["a"] * 50, [["default", "k", 1, 2, 3, 4, 5, 6, 7]]]
    with Rpc(master.address) as rpc:
        for method in methods:
            for _ in range(60):
                params = [r.choice(values) for _ in range(r.randrange(0, 13))]
                try:
                    rpc.call(method, *params)
                except RpcError as e:
                    assert e.code < 0 and e.errnum > 0 and e.text
        with pytest.raises(RpcError, match="no method"):
            rpc.call("Frobnicate")
        rpc.call("Status")


def test_pipelined_and_piecewise_requests(master):
    with Rpc(master.address) as rpc:
        rpc.send(b"".join(msgpack.packb([0, i, "ExistKey", [0, "default", "k"]])
                          for i in range(1, 2001)))
        assert [rpc.receive()[1] for _ in range(2000)] == list(range(1, 2001))
        for byte in msgpack.packb([0, 5000, "Status", []]):
            rpc.send(bytes([byte]))
        assert rpc.receive()[1] == 5000


def test_long_and_odd_keys(master):
    with Rpc(master.address) as rpc:
        with pytest.raises(RpcError, match="4096"):
            rpc.call("PutStart", 0, "default", "k" * 4097, 1, True)
        with pytest.raises(RpcError, match="empty"):
            rpc.call("PutStart", 0, "default", "", 1, True)
        with pytest.raises(RpcError):
            rpc.call("PutStart", 0, "t" * 256, "k", 1, True)
        assert rpc.call("PutStart", 0, "default", b"\xff\x00\x01", 0, True)


def test_listening_beyond_loopback_is_refused(world):
    r = run(MASTER, "--rpc_address=0.0.0.0", check=False)
    assert r.returncode == 1 and b"0.0.0.0" in r.stderr and b"auth_key_file" in r.stderr


@pytest.mark.parametrize("args,text", [
    (["--rpc_prot=1"], b"did you mean 'rpc_port'"),
    (["--memory-allocator=cachelib"], b"cachelib"),
    (["--enable_snapshot"], b"MOONCAKE_SNAPSHOT_LOCAL_PATH"),
    (["--default_kv_lease_ttl=soon"], b"default_kv_lease_ttl"),
    (["stray"], b"stray"),
])
def test_bad_master_flags(args, text):
    r = run(MASTER, *args, check=False)
    assert r.returncode == 1 and text in r.stderr, r.stderr


def test_garbage_on_the_nodes_socket(mount):
    path = os.path.join(mount.state, "node.sock")
    for data in GARBAGE.values():
        with socket.socket(socket.AF_UNIX) as s:
            s.connect(path)
            try:
                s.sendall(data)
            except ConnectionError:
                pass
    with open(mount.key("k"), "w") as f:
        f.write("v")
    assert open(mount.key("k")).read() == "v"
