# SPDX-License-Identifier: Apache-2.0
"""The master's admin HTTP, asked as curl would."""
import http.client
import json
import re
import socket
import urllib.error
import urllib.parse
import urllib.request

import pytest
from harness import MASTER, Master, Mount, Rpc, free_port, run, wait_until


def admin(world, *flags):
    port = free_port()
    master = Master(world, f"--metrics_port={port}", *flags)
    master.admin = f"http://127.0.0.1:{port}"
    return master


def get(master, path, token=None, **query):
    url = master.admin + path + ("?" + urllib.parse.urlencode(query) if query else "")
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})
    with urllib.request.urlopen(request, timeout=20) as r:
        return r.read()


def status_of(master, path, token=None, **query):
    with pytest.raises(urllib.error.HTTPError) as e:
        get(master, path, token, **query)
    return e.value.code


def metrics(master):
    text = get(master, "/metrics").decode()
    values = dict(re.findall(r"^(mooncakefs_\S+) (\S+)$", text, re.M))
    for name in values:
        family = re.sub(r"_(bucket|sum|count)$", "", name.split("{")[0]) if "rpc_duration" in name else name.split("{")[0]
        assert f"# HELP {family} " in text and f"# TYPE {family} " in text
    return {k: float(v) for k, v in values.items()}


def test_keys_and_segments(world):
    master = admin(world)
    mount = Mount(world, source=master.address)
    for i in range(300):
        with open(mount.key(f"k{i}"), "wb") as f:
            f.write(b"x" * 100)
    with open(mount.key("new\nline"), "wb") as f:
        f.write(b"y")
    expected = {f"k{i}".encode() for i in range(300)} | {b"new%0Aline"}
    lines = get(master, "/get_all_keys").splitlines()
    assert len(lines) == len(expected) and set(lines) == expected
    assert get(master, "/get_all_keys", tenant="nobody") == b""

    found = json.loads(get(master, "/query_key", key="k7"))
    assert (found["key"], found["size"]) == ("k7", 100)
    replica, = found["replicas"]
    assert replica["type"] == "LOCAL_DISK" and replica["connected"]
    assert json.loads(get(master, "/query_key", key="new\nline"))["size"] == 1
    batch = json.loads(get(master, "/batch_query_keys", keys="k1,absent"))
    assert batch["success"] and batch["data"]["k1"]["ok"]
    assert batch["data"]["absent"] == {"ok": False, "error": "OBJECT_NOT_FOUND"}

    segment, = json.loads(get(master, "/get_segments_detail"))["segments"]
    assert segment["objects"] == 301 and segment["connected"]
    assert get(master, "/get_all_segments").decode().split() == [segment["segment"]]
    assert f"Capacity(bytes) : {segment['capacity_bytes']}" in get(
        master, "/query_segment", segment=segment["segment"]).decode()

    m = metrics(master)
    assert m["mooncakefs_objects"] == 301 and m["mooncakefs_object_bytes"] == 30001
    assert m["mooncakefs_nodes_connected"] == 1 and m["mooncakefs_memory_per_key_bytes"] > 0
    assert m['mooncakefs_tier_capacity_bytes{tier="local_disk"}'] == segment["capacity_bytes"]
    assert b"Keys: 301 " in get(master, "/metrics/summary")


def test_bad_requests(world):
    master = admin(world)
    assert get(master, "/health") == b"OK\n"
    assert get(master, "/role") == b"leader\n"
    assert get(master, "/leader").decode().strip() == master.address
    assert status_of(master, "/nothing") == 404
    assert status_of(master, "/query_key") == 400
    assert status_of(master, "/query_key", key="absent") == 404
    assert status_of(master, "/query_key", key="k" * 5000) == 400
    assert status_of(master, "/query_segment", segment="absent") == 404
    assert status_of(master, "/get_all_keys", tenant="t" * 300) == 400
    with pytest.raises(urllib.error.HTTPError) as e:
        urllib.request.urlopen(master.admin + "/metrics", data=b"posted", timeout=20)
    assert e.value.code == 405
    with socket.create_connection(("127.0.0.1", int(master.admin.rsplit(":", 1)[1]))) as s:
        s.sendall(b"\x00\xff GET nonsense\r\n\r\n")
        assert get(master, "/health") == b"OK\n"  # nobody waits for a peer that never asks anything


def test_token(world):
    token = "0123456789abcdef-secret"
    path = world.path("token")
    with open(path, "w") as f:
        f.write(token + "\n")
    master = admin(world, f"--metrics_token_file={path}")
    assert get(master, "/health") == b"OK\n"
    assert get(master, "/role", token) == b"leader\n"
    for wrong in (None, token[:-1], token + "x", "0" * len(token)):
        assert status_of(master, "/metrics", wrong) == 401


def test_goes_on_beside_checkpoints(world):
    """A checkpoint's child lets go of the parent's connections, not the parent."""
    port = free_port()
    master = Master(world, f"--metrics_port={port}", "--enable_snapshot", snapshots=world.path("snapshots"))
    kept = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    with Rpc(master.address) as rpc:
        for taken in range(1, 4):
            rpc.call("SnapshotCreate")
            wait_until(lambda: not rpc.call("SnapshotState")[0], what="snapshot")
            kept.request("GET", "/metrics")
            assert f"mooncakefs_snapshots_taken_total {taken}\n" in kept.getresponse().read().decode()
    kept.close()


def test_refused(world):
    r = run(MASTER, f"--rpc_port={free_port()}", f"--metrics_port={free_port()}", "--metrics_host=0.0.0.0",
            check=False)
    assert r.returncode == 1 and b"metrics_token_file" in r.stderr
    path = world.path("short")
    with open(path, "w") as f:
        f.write("short\n")
    r = run(MASTER, f"--rpc_port={free_port()}", f"--metrics_port={free_port()}",
            f"--metrics_token_file={path}", check=False)
    assert r.returncode == 1 and path.encode() in r.stderr
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        port = s.getsockname()[1]
        r = run(MASTER, f"--rpc_port={free_port()}", f"--metrics_port={port}", check=False)
    assert r.returncode == 1 and b"--metrics_port" in r.stderr
