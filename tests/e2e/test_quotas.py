# SPDX-License-Identifier: Apache-2.0
"""Tenants and what they may store: the policy file, the admin API, writers over RPC and on mounts."""
import errno
import json
import os
import urllib.error
import urllib.parse
import urllib.request

import pytest
from harness import MASTER, Master, Mount, Rpc, RpcError, free_port, run, wait_until

EXCEEDED, NOT_REGISTERED = -1700, -1701
PATH = "/api/v1/tenant_quotas"


def policy(world, text=None, **tenants):
    path = world.path("quotas.yaml")
    with open(path, "w") as f:
        f.write(text or "version: 1\ntenants:\n" + "".join(
            f"  - name: {n}\n    quota: {q}\n" for n, q in tenants.items()))
    return path


def start(world, path, *flags):
    port = free_port()
    master = Master(world, f"--metrics_port={port}", "--enable_multi_tenants",
                    f"--tenant_quota_connector_uri={path}", *flags)
    master.admin = f"http://127.0.0.1:{port}"
    return master


def ask(master, method="GET", tenant=None, body=None, token=None, path=PATH):
    url = master.admin + path + ("?" + urllib.parse.urlencode({"tenant_id": tenant})
                                 if tenant is not None else "")
    data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data=data, method=method)
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=20) as r:
            return json.loads(r.read())["data"]
    except urllib.error.HTTPError as e:
        return e.code, e.read().decode()


class Node:
    def __init__(self, master, number=1):
        self.rpc = Rpc(master.address)
        self.session = self.rpc.call("Register", f"{number}-{number}", "n", "n:1", 1 << 40, 0)[0]
        self.rpc.call("InventoryEnd", self.session)

    def start(self, tenant, key, size):
        return self.rpc.call("PutStart", self.session, tenant, key, size, True)[0]

    def end(self, tenant, key, version, size, source=None, source_version=0):
        self.rpc.call("PutEnd", self.session, tenant, key, version, size, 0o644, 0, 0, 0, 0, False,
                      source, source_version)
        return version

    def put(self, tenant, key, size):
        return self.end(tenant, key, self.start(tenant, key, size), size)

    def refused(self, code, tenant, key, size):
        with pytest.raises(RpcError) as e:
            self.start(tenant, key, size)
        assert e.value.code == code and e.value.errnum == errno.EDQUOT
        assert tenant in e.value.text


def test_counting(world):
    master = start(world, policy(world, a=1000, b=500))
    n = Node(master)
    n.refused(NOT_REGISTERED, "default", "k", 0)
    n.refused(NOT_REGISTERED, "nobody", "k", 1)
    n.put("a", "x", 600)
    n.refused(EXCEEDED, "a", "y", 401)
    second = n.start("a", "y", 400)  # set aside from here on
    n.refused(EXCEEDED, "a", "z", 1)
    n.put("a", "empty", 0)
    n.put("b", "z", 500)  # another's quota
    assert ask(master, tenant="a")["reserved_bytes"] == 400
    n.rpc.call("PutRevoke", n.session, second)
    n.put("a", "y", 400)
    n.refused(EXCEEDED, "a", "z", 1)
    # Replacing needs room for the difference only, a rename none.
    n.put("a", "x", 500)
    n.refused(EXCEEDED, "a", "x", 601)
    n.put("a", "x", 600)
    old = n.rpc.call("GetReplicaList", n.session, "a", "x")[0]
    n.end("a", "renamed", n.start("a", "renamed", 0), 600, "x", old)
    n.rpc.call("Remove", n.session, "a", "renamed", 0, False)
    assert ask(master, tenant="a")["used_bytes"] == 400
    n.put("a", "z", 600)
    n.rpc.call("RemoveAll", n.session, "a", True, 0)
    wait_until(lambda: ask(master, tenant="a")["reserved_bytes"] == 0)


def test_what_put_end_says_is_held_against_the_quota(world):
    """PutStart for little, PutEnd for much; of another tenant; a replaced object that is gone meanwhile."""
    master = start(world, policy(world, a=1000, b=1))
    n = Node(master)
    v = n.start("a", "k", 1)
    with pytest.raises(RpcError) as e:
        n.end("a", "k", v, 1001)
    assert e.value.code == EXCEEDED
    with pytest.raises(RpcError, match="of this tenant"):
        n.end("b", "k", v, 1)
    n.end("a", "k", v, 1000)
    v = n.start("a", "k", 1000)
    n.rpc.call("Remove", n.session, "a", "k", 0, False)
    n.put("a", "other", 1000)
    with pytest.raises(RpcError) as e:
        n.end("a", "k", v, 1000)
    assert e.value.code == EXCEEDED
    assert ask(master, tenant="a")["used_bytes"] == 1000


def test_puts_that_never_end_give_their_room_back(world):
    master = start(world, policy(world, a=10), "--put_start_discard_timeout_sec=1",
                   "--put_start_release_timeout_sec=1")
    n = Node(master)
    n.start("a", "k", 10)
    n.refused(EXCEEDED, "a", "k2", 10)
    wait_until(lambda: ask(master, tenant="a")["reserved_bytes"] == 0, what="room")
    n.put("a", "k2", 10)


def test_many_at_once_take_no_more_than_there_is(world):
    import threading
    master = start(world, policy(world, a=100))
    nodes, done = [Node(master, i + 1) for i in range(4)], []

    def fill(n, i):
        for k in range(100):
            try:
                n.put("a", f"{i}-{k}", 1)
                done.append(1)
            except RpcError as e:
                assert e.code == EXCEEDED

    threads = [threading.Thread(target=fill, args=(n, i)) for i, n in enumerate(nodes)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(done) == 100 and ask(master, tenant="a")["used_bytes"] == 100


def test_admin_api(world):
    path = policy(world, a=1000)
    master = start(world, path)
    n = Node(master)
    assert [t["tenant_id"] for t in ask(master)] == ["a"]
    assert ask(master, tenant="new")[0] == 404
    got = ask(master, "PUT", "new", {"requested_quota_bytes": 50})
    assert got["requested_quota_bytes"] == 50 and got["used_bytes"] == 0
    n.put("new", "k", 50)
    got = ask(master, tenant="new")
    assert (got["used_bytes"], got["committed_count"], got["over_quota"]) == (50, 1, False)
    assert ask(master, "PUT", "new", {"requested_quota_bytes": 20})["over_quota"] is True
    n.refused(EXCEEDED, "new", "k2", 1)
    status, text = ask(master, "DELETE", "new")
    assert status == 409 and "TENANT_NOT_EMPTY" in text
    n.rpc.call("Remove", n.session, "new", "k", 0, False)
    assert ask(master, "DELETE", "new") is None
    n.refused(NOT_REGISTERED, "new", "k", 1)
    ask(master, "PUT", "späte: '\"# x", {"requested_quota_bytes": 7})
    # The next master has it from the file.
    master.kill()
    master.start()
    assert {t["tenant_id"]: t["requested_quota_bytes"] for t in ask(master)} == \
        {"a": 1000, "späte: '\"# x": 7}


@pytest.mark.parametrize("tenant,body", [
    ("x", b""), ("x", b"{"), ("x", {}), ("x", {"requested_quota_bytes": 0}),
    ("x", {"requested_quota_bytes": -1}), ("x", {"requested_quota_bytes": "5"}),
    ("x", {"requested_quota_bytes": 5, "more": 1}), ("x", {"requested_quota_bytes": 1.5}),
    ("x", {"requested_quota_bytes": 1 << 70}), ("_x", {"requested_quota_bytes": 5}),
    ("", {"requested_quota_bytes": 5}), ("a/b", {"requested_quota_bytes": 5}),
    ("t" * 256, {"requested_quota_bytes": 5}), ("new\nline", {"requested_quota_bytes": 5}),
    (None, {"requested_quota_bytes": 5})])
def test_bad_requests(world, tenant, body):
    path = policy(world, a=1000)
    before = open(path).read()
    master = start(world, path)
    assert ask(master, "PUT", tenant, body)[0] == 400
    assert ask(master, "PUT", "x", b" " * 5000)[0] == 413
    assert ask(master, "POST", "x", b"{}")[0] == 405
    assert [t["tenant_id"] for t in ask(master)] == ["a"] and open(path).read() == before


def test_a_policy_that_cannot_be_written_stays(world):
    os.mkdir(world.path("d"))
    path = world.path("d", "quotas.yaml")
    master = start(world, path)  # none there yet
    assert ask(master) == []
    os.rmdir(world.path("d"))
    assert ask(master, "PUT", "x", {"requested_quota_bytes": 5})[0] == 500
    assert ask(master) == []


def test_the_token_is_asked_for(world):
    token = world.path("token")
    with open(token, "w") as f:
        f.write("t" * 20)
    master = start(world, policy(world, a=1), f"--metrics_token_file={token}")
    for method, body in (("GET", None), ("PUT", {"requested_quota_bytes": 9}), ("DELETE", None)):
        assert ask(master, method, "a", body)[0] == 401
    assert ask(master, "PUT", "a", {"requested_quota_bytes": 9}, token="t" * 20)
    assert ask(master, token="t" * 20)[0]["requested_quota_bytes"] == 9


def test_without_quotas(world):
    port = free_port()
    master = Master(world, f"--metrics_port={port}")
    master.admin = f"http://127.0.0.1:{port}"
    assert ask(master)[0] == 409
    Node(master).put("anybody", "k", 1 << 40)


def test_on_a_mount(world):
    """EDQUOT at close, and nothing else changes; what is removed can be written again."""
    master = start(world, policy(world, team="1MB"))
    m = Mount(world, source=master.address, options=["tenant=team"])

    def write(name, size):
        fd = os.open(m.key(name), os.O_WRONLY | os.O_CREAT)
        try:
            os.write(fd, b"x" * size)
        finally:
            os.close(fd)

    write("a", 600_000)
    with pytest.raises(OSError) as e:
        write("b", 600_000)
    assert e.value.errno == errno.EDQUOT
    assert os.listdir(m.keys) == ["a"] and os.stat(m.key("a")).st_size == 600_000
    with pytest.raises(OSError) as e:
        write("a", 1_200_000)
    assert e.value.errno == errno.EDQUOT
    # The kernel lets go of the descriptor a moment after close; until then its process sees its own.
    wait_until(lambda: os.stat(m.key("a")).st_size == 600_000, what="the old object")
    write("a", 1_000_000)
    os.rename(m.key("a"), m.key("c"))
    assert os.stat(m.key("c")).st_size == 1_000_000
    os.unlink(m.key("c"))
    write("b", 600_000)
    stranger = Mount(world, source=master.address, options=["tenant=stranger"], name="stranger")
    fd = os.open(stranger.key("f"), os.O_WRONLY | os.O_CREAT)
    with pytest.raises(OSError) as e:
        os.close(fd)
    assert e.value.errno == errno.EDQUOT
    # What is there counts after a restart, whoever reports it.
    master.kill()
    master.start()
    wait_until(lambda: ask(master, tenant="team")["used_bytes"] == 600_000, what="inventory")


@pytest.mark.parametrize("text,what", [
    ("version: 2\ntenants: []\n", "line 1: the version"), ("tenants: []\n", "no version"),
    ("version: 1\ntenants:\n  - name: a\n", "name and a quota"), ("- a", "version and tenants"),
    ("version: 1\ntenants:\n  - name: a\n    quota: many\n", "'many' is not a number"),
    ("version: 1\ntenants:\n  - name: a\n    quota: 0\n", "positive"),
    ("version: 1\ntenants:\n  - {name: a, quota: 1}\n  - {name: a, quota: 1}\n", "line 4: a second"),
    ("version: 1\ntenants:\n  - {name: _a, quota: 1}\n", "begin with"),
    ("version: 1\ntenants: 5\n", "list"), ("version: 1\nquotas: []\n", "no more"),
    ("version: [\n", "line "), ("", "version and tenants")])
def test_bad_policies(world, text, what):
    path = policy(world, text or "\n")
    r = run(MASTER, "--enable_multi_tenants", f"--tenant_quota_connector_uri={path}", "--metrics_port=0",
            f"--rpc_port={free_port()}", check=False)
    assert r.returncode == 1 and what in r.stderr.decode() and "quotas.yaml" in r.stderr.decode()


def test_units(world):
    master = start(world, policy(world, a="3KB", b="2MB", c="1gb", d="5B", e="7"))
    assert {t["tenant_id"]: t["requested_quota_bytes"] for t in ask(master)} == \
        {"a": 3072, "b": 2 << 20, "c": 1 << 30, "d": 5, "e": 7}


@pytest.mark.parametrize("flags,what", [
    (["--enable_multi_tenants"], "tenant_quota_connector_uri"),
    (["--tenant_quota_connector_type=etcd"], "use 'file'")])
def test_flags(flags, what):
    r = run(MASTER, *flags, check=False)
    assert r.returncode == 1 and what in r.stderr.decode()


# ---- --config_path ----

@pytest.mark.parametrize("name,text", [
    ("c.yaml", "# comment\nrpc_port: {port}\nmetrics-port: 0\ndefault_kv_lease_ttl: 7s\n"
               "enable_snapshot: false\ncluster_id: \"from file\"\n"),
    ("c.json", '{{"rpc_port": {port}, "metrics_port": 0, "default_kv_lease_ttl": "7s",'
               ' "cluster_id": "from file"}}')])
def test_config_file(world, name, text):
    port, path = free_port(), world.path(name)
    with open(path, "w") as f:
        f.write(text.format(port=port))
    master = Master(world, f"--config_path={path}", port=port)
    status = master.rpc().call("Status")
    assert status[b"cluster_id"] == b"from file"
    master.kill()
    # The command line wins wherever it stands.
    master.args[1:] = ["--cluster_id=from flag", f"--config_path={path}"]
    master.start()
    assert master.rpc().call("Status")[b"cluster_id"] == b"from flag"
    assert Node(master).rpc.call("Register", "9-9", "n", "n:1", 1, 0)[1] == 7000


@pytest.mark.parametrize("text,what", [
    ("rpc_prot: 5\n", "line 1: unknown option 'rpc_prot'; did you mean 'rpc_port'"),
    ("cluster_id: a\nrpc_port: many\n", "line 2: option 'rpc_port'"),
    ("rpc_port: [1]\n", "one value"), ("- rpc_port\n", "mapping"), ("a: [\n", "line "),
    ("config_path: other\n", "names no other")])
def test_bad_config(world, text, what):
    path = world.path("c.yaml")
    with open(path, "w") as f:
        f.write(text)
    r = run(MASTER, f"--config_path={path}", check=False)
    assert r.returncode == 1 and what in r.stderr.decode() and "c.yaml" in r.stderr.decode()
    r = run(MASTER, "--config_path=/nonexistent", check=False)
    assert r.returncode == 1 and b"/nonexistent" in r.stderr
