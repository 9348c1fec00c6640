# SPDX-License-Identifier: Apache-2.0
"""Snapshots in S3: published, listed, looked into and restored, by a network that fails."""
import json
import os
import re
import subprocess
import threading
import urllib.error
import urllib.request

import msgpack
import pytest
from harness import (CTL, PATIENCE, Master, Mount, Rpc, RpcError, alive, free_port, is_mounted, run,
                     wait_until)
from s3 import Proxy, Server, s3rver

FLAGS = ["--enable_snapshot", "--enable_snapshot_restore", "--snapshot_object_store_type=s3"]


@pytest.fixture(params=["own", "s3rver"])
def s3(world, request):
    if request.param == "s3rver" and not s3rver():
        pytest.skip("npm could not install s3rver")
    server = Server(world, request.param)
    proxy = Proxy(server)
    proxy.env = server.env(proxy.port)
    yield proxy
    proxy.close()


def ctl(s3, *args, check=True):
    return run(CTL, "snapshot", *args, check=check, env=dict(os.environ, **s3.env))


def fetch(port, path):
    try:
        r = urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=20 * PATIENCE)
        return r.status, r.read().decode()
    except urllib.error.HTTPError as e:
        return e.code, e.read().decode()
    except OSError:
        return 0, ""


def health(port):
    return fetch(port, "/health")


def write(path, data):
    with open(path, "wb") as f:
        f.write(data)


def test_round_trip_over_a_flaky_network(world, s3):
    def fault(method, path, turn):
        return {3: "reset", 7: "slow", 10: "cut"}.get(turn % 29)

    s3.fault = fault
    master = Master(world, *FLAGS, env=s3.env)
    m = Mount(world, source=master.address)
    for i in range(60):
        write(m.key(f"k{i}"), b"x" * i)
    first = m.snapshot()
    os.unlink(m.key("k7"))
    second = m.snapshot()
    assert sorted(os.listdir(os.path.join(m.mnt, "snapshots"))) == [first, second, "latest"]
    assert len(open(os.path.join(m.mnt, "snapshots", second, "metadata"), "rb").read()) > 500
    listed = json.loads(ctl(s3, "list", "s3://bucket", "--json").stdout)
    assert [e["id"] for e in listed] == [second, first]
    verified = json.loads(ctl(s3, "verify", "--store=s3://bucket", "--json").stdout)
    assert [(v["ok"], v["objects"]) for v in verified] == [(True, 59), (True, 60)]
    d = json.loads(ctl(s3, "diff", first, second, "--store=s3://bucket", "--json").stdout)
    assert [(c["change"], c["key"]) for c in d["changes"]] == [("removed", "k7")]
    third = m.snapshot()
    listed = json.loads(ctl(s3, "list", "s3://", "--json").stdout)
    assert [e["id"] for e in listed] == [third, second], "retention"
    m.umount()
    master.kill()
    master.start()
    with Rpc(master.address) as rpc:
        assert rpc.call("Status")[b"objects"] == 59
    assert {"reset", "slow", "cut"} <= set(s3.faults)


def test_wrong_bytes_are_found(world, s3):
    master = Master(world, *FLAGS, env=s3.env)
    m = Mount(world, source=master.address)
    write(m.key("a"), b"1")
    first = m.snapshot()
    write(m.key("b"), b"2")
    second = m.snapshot()
    m.umount()
    master.kill()
    s3.fault = lambda method, path, turn: \
        "flip" if method == "GET" and f"{second}/metadata" in path else None
    r = ctl(s3, "verify", "--store=s3://bucket", second, check=False)
    assert r.returncode == 1 and f"{second}/metadata".encode() in r.stdout
    master.start()
    assert f"snapshot {second} cannot be restored" in master.log_text()
    assert f"snapshot {first} restored" in master.log_text()
    assert "flip" in s3.faults


def test_expired_credentials(world, s3):
    master = Master(world, *FLAGS, env=s3.env)
    m = Mount(world, source=master.address)
    write(m.key("a"), b"1")
    good = m.snapshot()
    for fault, meaning, code in (("expired", "the credentials have expired", "ExpiredToken"),
                                 ("denied", "access is denied", "AccessDenied")):
        s3.fault = lambda method, path, turn: fault if method in ("PUT", "POST") else None
        r = m.ctl("snapshot", "create", check=False)
        assert r.returncode == 1
        (line,) = r.stderr.decode().splitlines()
        assert re.search(r" s3://bucket/mooncake_master_snapshot/mooncake_cluster/\d{8}_\d{6}_\d{3}/"
                         rf"\w+: PUT: {meaning} \(HTTP status 40\d, {code}: [^\n]*\)", line), line
        assert master.log_text().count(f"{meaning} (") == 1, "one line"
    s3.fault = lambda method, path, turn: None
    assert [e["id"] for e in json.loads(ctl(s3, "list", "s3://bucket", "--json").stdout)] == [good]
    assert open(m.key("a")).read() == "1", "the mount goes on"
    better = m.snapshot()
    assert os.readlink(os.path.join(m.mnt, "snapshots/latest")) == better
    m.umount()


def test_pruning_where_access_is_denied(world, s3):
    master = Master(world, *FLAGS, env=s3.env)
    m = Mount(world, source=master.address)
    good = m.snapshot()
    m.umount()
    s3.fault = lambda method, path, turn: "denied" if "uploads" in path else None
    r = ctl(s3, "prune", "--store=s3://bucket", check=False)
    assert r.returncode == 1 and r.stderr.count(b"\n") == 1
    assert b"s3://bucket/: GET: access is denied" in r.stderr
    s3.fault = lambda method, path, turn: None
    assert json.loads(ctl(s3, "prune", "--store=s3://bucket", "--json").stdout)["snapshots"] == 0
    assert [e["id"] for e in json.loads(ctl(s3, "list", "s3://bucket", "--json").stdout)] == [good]


def test_an_unreachable_store_does_not_hold_up_the_master(world, s3):
    master = Master(world, "--enable_snapshot", "--snapshot_object_store_type=s3", env=s3.env)
    m = Mount(world, source=master.address)
    s3.fault = lambda method, path, turn: "reset"
    with Rpc(master.address) as rpc:
        rpc.send(msgpack.packb([0, 1, "SnapshotList", []]))
        for i in range(20):
            write(m.key(f"k{i}"), b"x")
            assert open(m.key(f"k{i}")).read() == "x"
    assert "reset" in s3.faults
    m.umount()


def test_snapshot_source_in_s3(world, s3):
    master = Master(world, "--enable_snapshot", "--snapshot_object_store_type=s3", env=s3.env)
    m = Mount(world, source=master.address)
    write(m.key("k"), b"1")
    ident = m.snapshot()
    m.umount()
    master.kill()
    view = Mount(world, source="snapshot:s3://bucket", name="view", env=s3.env)
    assert os.listdir(os.path.join(view.mnt, "history", ident, "default")) == ["k"]
    assert os.path.getsize(os.path.join(view.mnt, "snapshots", ident, "metadata")) > 0
    view.umount()


def test_while_a_master_restores(world, s3):
    """It says so and how far it is, nothing half restored is shown, and a mount waits for it."""
    port = free_port()
    flags = FLAGS + [f"--metrics_port={port}"]
    master = Master(world, *flags, env=s3.env)
    m = Mount(world, source=master.address, options=["rpc_timeout=1s"])
    for i in range(50):
        write(m.key(f"k{i}"), b"x")
    ident = m.snapshot()
    m.umount()
    master.kill()
    held = threading.Event()
    s3.fault = lambda method, path, turn: \
        held.wait() and None if method == "GET" and f"{ident}/metadata" in path else None
    master.start(wait=False)
    try:
        wait_until(lambda: health(port)[0] == 503, what="master's first answer")
        assert f"restoring snapshot {ident}: 0 of" in health(port)[1] or "(none yet)" in health(port)[1]
        with Rpc(master.address) as rpc:
            for call in (("GetReplicaList", 0, "default", "k1"), ("List", 0, "default", "", 0, 10),
                         ("Status",), ("SnapshotList",), ("PutStart", 0, "default", "k", 1, True)):
                with pytest.raises(RpcError, match="restoring") as e:
                    rpc.call(*call)
                assert e.value.code == -1010
        assert "mooncakefs_restoring 1\n" in fetch(port, "/metrics")[1]
        r = run(CTL, "--master", master.address, f"--timeout={int(2 * PATIENCE)}s", "status", check=False)
        assert r.returncode == 1 and b"restoring" in r.stderr, r.stderr
        mounting = subprocess.Popen(m.command(), env=m.env)
        wait_until(lambda: "restoring" in m.log_text(), what="mount that is told to wait")
        assert mounting.poll() is None and not is_mounted(m.mnt)
        daemon = m.pid()
        mounting.terminate()
        assert mounting.wait(30 * PATIENCE) != 0
        wait_until(lambda: not alive(daemon), what="end of the daemon whose command was given up")
        mounting = subprocess.Popen(m.command(), env=m.env)
        wait_until(lambda: m.log_text().count("restoring") > 1, what="second mount that waits")
    finally:
        held.set()
    assert mounting.wait(30 * PATIENCE) == 0
    assert sorted(os.listdir(m.keys)) == sorted(f"k{i}" for i in range(50))
    assert health(port)[0] == 200
    assert f"snapshot {ident} restored" in master.log_text()
    m.umount()


def test_a_master_that_restores_can_be_ended(world, s3):
    master = Master(world, *FLAGS, env=s3.env)
    m = Mount(world, source=master.address)
    for i in range(50):
        write(m.key(f"k{i}"), b"x")
    ident = m.snapshot()
    m.umount()
    master.kill()
    open(master.log, "w").close()
    held, asked = threading.Event(), threading.Event()

    def fault(method, path, turn):
        if method == "GET" and f"{ident}/metadata" in path:
            asked.set()
            held.wait()

    s3.fault = fault
    try:
        master.start(wait=False)
        assert asked.wait(30 * PATIENCE)
        master.process.terminate()
    finally:
        held.set()
    assert master.process.wait(30 * PATIENCE) == 0
    assert "the restore is given up" in master.log_text()
    assert "restored" not in master.log_text() and "error" not in master.log_text()
