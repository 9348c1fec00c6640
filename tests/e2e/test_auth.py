# SPDX-License-Identifier: Apache-2.0
"""TCP callers prove a key to a master and to nodes that have a key file."""
import errno
import hashlib
import hmac
import os
import random
import socket
import time

import msgpack
import pytest
from harness import CTL, MASTER, Master, Mount, Rpc, RpcError, alive, free_port, read, run, wait_until, write

ILLEGAL_CLIENT = -601
SECRET = bytes(range(32))
ADMIN = ("admin", SECRET)


def key_file(world, name, *lines, mode=0o600):
    path = world.path(name)
    with open(path, "w") as f:
        f.write("\n".join(lines) + "\n")
    os.chmod(path, mode)
    return path


def line(name, secret, tenants=None):
    return " ".join([name] + ([tenants] if tenants else []) + [secret.hex()])


@pytest.fixture
def keys(world):
    return key_file(world, "keys", "# the cluster's", line(*ADMIN))


@pytest.fixture
def master(world, keys):
    return Master(world, f"--auth_key_file={keys}", key=ADMIN)


def mount(world, master, keys, name="mnt", *options, **kw):
    return Mount(world, source=master.address, name=name,
                 options=([f"auth_key_file={keys}"] if keys else []) + list(options), **kw)


def fails_to_mount(m):
    r = run(*m.command(), check=False)
    assert r.returncode != 0
    return r.stderr.decode()


def test_right_key_everywhere(world, master, keys):
    """Mounts, their data servers beyond loopback, and the command line with one key file."""
    a = mount(world, master, keys, "a", "listen=0.0.0.0:0")
    b = mount(world, master, keys, "b", "listen=127.0.0.1:0")
    data = os.urandom(5 << 20)
    write(b.key("f"), data)
    assert read(a.key("f")) == data
    assert socket.gethostname() in a.config()["node"]
    endpoint = b.config()["node"]
    with pytest.raises(RpcError, match="auth_key_file") as e:
        Rpc(endpoint).call("NodeStatus")
    assert e.value.code == ILLEGAL_CLIENT
    assert Rpc(endpoint, key=ADMIN).call("NodeStatus")[b"objects"] == 1
    # A mount's own socket is guarded by the file system.
    assert Rpc("unix:" + os.path.join(b.state, "node.sock")).call("NodeStatus")[b"objects"] == 1

    out = world.path("out")
    run(CTL, "--master", master.address, "--auth_key_file", keys, "get", "f", out)
    assert read(out) == data
    a.ctl("put", "g", out)
    assert read(b.key("g")) == data
    r = run(CTL, "--master", master.address, "ls", check=False)
    assert r.returncode == 1 and b"auth_key_file" in r.stderr


def test_master_beyond_loopback(world, keys):
    master = Master(world, "--rpc_address=0.0.0.0", f"--auth_key_file={keys}", key=ADMIN)
    master.rpc().call("Status")
    with pytest.raises(RpcError, match="auth_key_file"):
        Rpc(master.address).call("Status")


def test_listening_of_a_node_beyond_loopback_needs_a_key(world):
    master = Master(world)
    m = mount(world, master, None, "m", "listen=0.0.0.0:0", expect_failure=True)
    assert "auth_key_file" in fails_to_mount(m)


def test_unix_sockets_need_no_key(world, keys):
    path = world.path("master.sock")
    master = Master(world, f"--rpc_socket={path}", f"--auth_key_file={keys}", key=ADMIN)
    assert Rpc("unix:" + path).call("Status")
    m = Mount(world, source="unix:" + path)
    write(m.key("f"), b"x")
    assert master.rpc().call("ExistKey", 0, "default", "f")


def test_wrong_key(world, master):
    """Another secret under the same name, and a name nobody knows: told at once, and logged with the address."""
    other = key_file(world, "other", line("admin", bytes(32)))
    assert "key files differ" in fails_to_mount(
        mount(world, master, other, "a", expect_failure=True))
    unknown = key_file(world, "unknown", line("stranger", SECRET))
    assert "no key 'stranger'" in fails_to_mount(
        mount(world, master, unknown, "b", expect_failure=True))
    with Rpc(master.address) as rpc:
        rpc.call("AuthHello", "admin", os.urandom(32))
        with pytest.raises(RpcError, match="wrong") as e:
            rpc.call("AuthProve", bytes(32))
        assert e.value.code == ILLEGAL_CLIENT and e.value.errnum == errno.EPERM
        with pytest.raises(ConnectionError):
            rpc.call("Status")
    wait_until(lambda: "caller 127.0.0.1:" in master.log_text() and
               "the proof of key 'admin' is wrong" in master.log_text(), what="log")
    r = run(CTL, "--master", master.address, "--auth_key_file", other, "ls", check=False)
    assert r.returncode == 1 and b"key files differ" in r.stderr


def test_no_key(world, master):
    assert "auth_key_file" in fails_to_mount(mount(world, master, None, "a", expect_failure=True))
    with Rpc(master.address) as rpc:
        with pytest.raises(RpcError, match="auth_key_file"):
            rpc.call("ExistKey", 0, "default", "k")
        with pytest.raises(ConnectionError):
            rpc.call("ExistKey", 0, "default", "k")


def test_a_key_where_none_is_asked_for(world, keys):
    """A caller that has a key does not trust a server that cannot prove it."""
    master = Master(world)
    r = run(CTL, "--master", master.address, "--auth_key_file", keys, "ls", check=False)
    assert r.returncode == 1 and b"no auth_key_file" in r.stderr
    run(CTL, "--master", master.address, "ls")


def test_a_proof_is_good_once(master):
    """What one connection said is worth nothing on another, nor is the server's own proof sent back."""
    with Rpc(master.address) as first, Rpc(master.address) as second, Rpc(master.address) as third:
        nonce = os.urandom(32)
        theirs, proof = first.call("AuthHello", "admin", nonce)
        again, other = second.call("AuthHello", "admin", nonce)
        assert theirs != again and proof != other
        text = b"mooncakefs-rpc-1C\x05admin" + nonce + theirs
        good = hmac.new(SECRET, text, hashlib.sha256).digest()
        assert first.call("AuthProve", good) is None
        assert first.call("Status")
        with pytest.raises(RpcError, match="wrong"):
            second.call("AuthProve", good)
        _, servers = third.call("AuthHello", "admin", nonce)
        with pytest.raises(RpcError, match="wrong"):
            third.call("AuthProve", servers)
        with pytest.raises(RpcError, match="handshake is over"):
            first.call("AuthHello", "admin", nonce)


@pytest.mark.parametrize("message", [
    [0, 1, "AuthHello", []], [0, 1, "AuthHello", ["admin"]], [0, 1, "AuthHello", [5, bytes(32)]],
    [0, 1, "AuthHello", ["admin", bytes(31)]], [0, 1, "AuthHello", ["a" * 60000, bytes(32)]],
    [0, 1, "AuthHello", ["", bytes(32)]], [0, 1, "AuthProve", [bytes(32)]], [0, 1, "AuthProve", []],
    [0, 1, "Status", []]])
def test_garbage_handshakes_get_an_error(master, message):
    with Rpc(master.address) as rpc:
        rpc.send(msgpack.packb(message, use_bin_type=True))
        answer = rpc.receive()
        assert answer[:2] == [1, 1] and answer[2][0] == ILLEGAL_CLIENT
        with pytest.raises(ConnectionError):
            rpc.receive()
    master.rpc().call("Status")


def test_bytes_that_are_no_handshake(master):
    r = random.Random(5)
    hello = msgpack.packb([0, 1, "AuthHello", ["admin", bytes(32)]], use_bin_type=True)
    texts = [b"GET / HTTP/1.1\r\n\r\n", b"\x94\x00\x01\xdb\xff\xff\xff\xff", bytes(200000),
             msgpack.packb([2, "AuthHello", []]), msgpack.packb([1, 1, None, None]),
             hello + hello, hello[:20]]
    for _ in range(60):
        broken = bytearray(hello)
        for _ in range(r.randrange(1, 6)):
            broken[r.randrange(len(broken))] = r.randrange(256)
        texts.append(bytes(broken))
    for text in texts:
        with socket.create_connection(("127.0.0.1", master.port)) as s:
            s.settimeout(30)
            try:
                s.sendall(text)
                s.shutdown(socket.SHUT_WR)
                while s.recv(65536):
                    pass
            except OSError as e:
                assert e.errno in (errno.ECONNRESET, errno.EPIPE, errno.ENOTCONN)
    master.rpc().call("Status")
    assert "turned away" in master.log_text()


def test_a_flood_of_strangers_does_not_fill_the_log(master):
    for _ in range(300):
        with pytest.raises(RpcError):
            Rpc(master.address).call("Status")
    time.sleep(1.1)
    with pytest.raises(RpcError):
        Rpc(master.address).call("Status")
    assert master.log_text().count("turned away: ") < 200
    assert "more callers were turned away" in master.log_text()


def test_a_peer_that_never_finishes(master):
    """It is let go of in time, and keeps nobody else from working."""
    slow = []
    for text in (b"", msgpack.packb([0, 1, "AuthHello", ["admin", bytes(32)]])[:9],
                 msgpack.packb([0, 1, "AuthHello", ["admin", bytes(32)]], use_bin_type=True)):
        s = socket.create_connection(("127.0.0.1", master.port))
        s.sendall(text)
        s.settimeout(60)
        slow.append(s)
    good = master.rpc()
    good.call("Status")
    for s in slow:
        try:
            while s.recv(4096):
                pass
        except ConnectionError:
            pass
    assert "did not finish the handshake in time" in master.log_text()
    good.call("Status")  # the proven one stays


@pytest.mark.parametrize("lines,mode,text", [
    ([SECRET.hex()], 0o644, b"chmod 600"),
    ([SECRET.hex()], 0o640, b"chmod 600"),
    (["# nothing"], 0o600, b"holds no key"),
    (["abcd"], 0o600, b"hexadecimal"),
    (["a " + "g" * 64], 0o600, b"hexadecimal"),
    (["a t x " + SECRET.hex()], 0o600, b"three words"),
    (["a " + SECRET.hex(), "a " + SECRET.hex()], 0o600, b"second key 'a'"),
    (["n" * 65 + " " + SECRET.hex()], 0o600, b"64 bytes"),
    (["a t " + SECRET.hex()], 0o600, b"state_dir"),
])
def test_bad_key_files(world, lines, mode, text):
    path = key_file(world, "bad", *lines, mode=mode)
    r = run(MASTER, f"--rpc_port={free_port()}", "--metrics_port=0", f"--auth_key_file={path}",
            check=False)
    assert r.returncode == 1 and text in r.stderr and b"bad" in r.stderr
    assert SECRET.hex().encode() not in r.stderr
    r = run(MASTER, "--auth_key_file=/nonexistent", check=False)
    assert r.returncode == 1 and b"/nonexistent" in r.stderr


A, B = ("team-a", b"a" * 32), ("team-b", b"b" * 32)


@pytest.fixture
def bound(world):
    """A master with a key for everything and two that are bound to tenants."""
    lines = [line(*ADMIN), line(*A, tenants="red,green"), line(*B, tenants="blue")]
    keys = key_file(world, "bound", *lines)
    master = Master(world, f"--auth_key_file={keys}", f"--state_dir={world.path('state')}",
                    key=ADMIN)
    files = {"admin": keys, "a": key_file(world, "bound-a", lines[1]),
             "b": key_file(world, "bound-b", lines[2])}
    return master, files


def test_tenants_of_a_key(world, bound):
    master, files = bound
    a = mount(world, master, files["a"], "a", "tenant=red")
    write(a.key("f"), b"red's")
    assert read(a.key("f")) == b"red's" and os.listdir(a.keys) == ["f"]
    out = mount(world, master, files["a"], "out", "tenant=blue")
    with pytest.raises(OSError) as e:
        write(out.key("f"), b"x")
    assert e.value.errno == errno.EPERM
    with pytest.raises(OSError):
        os.listdir(out.keys)
    everything = mount(world, master, files["admin"], "all", "tenant=red")
    assert os.listdir(everything.keys) == ["f"]
    r = run(CTL, "--master", master.address, "--auth_key_file", files["b"], "--tenant=red", "stat",
            "f", check=False)
    assert r.returncode == 1 and b"not good for tenant 'red'" in r.stderr
    assert read(a.key("f")) == b"red's"


def test_what_a_bound_key_cannot_ask(world, bound):
    master, _ = bound
    with Rpc(master.address, key=A) as rpc:
        for method, *params in (["GetReplicaList", 0, "blue", "k"], ["List", 0, "blue", "", 0, 10],
                                ["PutStart", 0, "default", "k", 1, True], ["SetPin", 0, "blue", "k", True],
                                ["Remove", 0, "blue", "k", 0, True], ["SnapshotList"],
                                ["SnapshotCreate"], ["SnapshotPrune", 1, 0]):
            with pytest.raises(RpcError) as e:
                rpc.call(method, *params)
            assert e.value.code == ILLEGAL_CLIENT, method
        assert rpc.call("ExistKey", 0, "green", "k") is False
        assert rpc.call("Status")
        assert rpc.call("Tenants") == []


def test_a_bound_key_takes_over_no_node(world, bound):
    """By another's session or id one could withdraw what that one stores, of whatever tenant."""
    master, files = bound
    m = mount(world, master, files["admin"], "m", "tenant=blue")
    write(m.key("f"), b"blue's")
    theirs = m.config()["node_id"]
    with Rpc(master.address, key=A) as rpc:
        with pytest.raises(RpcError, match="another key") as e:
            rpc.call("Register", theirs, "x", "x:1", 0, 0)
        assert e.value.code == ILLEGAL_CLIENT
        session = rpc.call("Register", "7-7", "x", "x:1", 0, 0)[0]
        for number in range(1, 5):
            other = session & ~0xffff | number
            if other != session:
                with pytest.raises(RpcError, match="session"):
                    rpc.call("InventoryEnd", other)
        with pytest.raises(RpcError, match="not good for tenant 'blue'"):
            rpc.call("InventoryItems", session, [["blue", "f", 1 << 60, 5, 0o644, 0, 0, 0, 0]])
        rpc.call("InventoryItems", session, [["red", "f", 1 << 60, 5, 0o644, 0, 0, 0, 0]])
        rpc.call("InventoryEnd", session)
        assert rpc.call("Tenants")[0][0] == b"red"
    assert read(m.key("f")) == b"blue's"
    # The next master knows it, too.
    m.umount()
    master.kill()
    master.start()
    with Rpc(master.address, key=A) as rpc:
        with pytest.raises(RpcError, match="another key"):
            rpc.call("Register", theirs, "x", "x:1", 0, 0)
        rpc.call("Register", "7-7", "x", "x:1", 0, 0)


def test_a_master_that_changes_its_key(world, master, keys):
    """A mount goes on by itself once the keys agree again; until then what needs the master fails, and nothing hangs."""
    m = mount(world, master, keys)
    write(m.key("f"), b"x")
    master.kill()
    key_file(world, "keys2", line("admin", bytes(32)))
    good, bad = master.args, [a.replace(keys, world.path("keys2")) for a in master.args]
    master.args, master.key = bad, ("admin", bytes(32))
    master.start()
    wait_until(lambda: "key files differ" in m.log_text(), what="the mount's complaint")
    with pytest.raises(OSError):
        write(m.key("g"), b"y")
    assert alive(m.pid())
    master.kill()
    master.args, master.key = good, ADMIN
    master.start()

    def works():
        try:
            write(m.key("g"), b"y")
            return True
        except OSError:
            return False

    wait_until(works, what="writing")
    assert read(m.key("f")) == b"x" and read(m.key("g")) == b"y"
