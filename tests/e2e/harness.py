# SPDX-License-Identifier: Apache-2.0
"""Starts real daemons, masters and mounts for the end-to-end tests, and cleans up what it started, by pid."""
import ctypes
import hashlib
import hmac
import json
import os
import signal
import socket
import subprocess
import tempfile
import time

import msgpack

BUILD = os.environ.get("MCFS_BUILD", os.path.join(os.path.dirname(__file__), "../../build"))
MOONCAKEFS = os.path.join(BUILD, "fs/mooncakefs")
MASTER = os.path.join(BUILD, "master/mooncakefs-master")
CTL = os.path.join(BUILD, "tools/mooncakefsctl")
MS_NOSUID, MS_NODEV, MS_REMOUNT = 2, 4, 32
# Sanitizer builds run several times slower.
PATIENCE = float(os.environ.get("MCFS_PATIENCE", "1"))


def wait_until(condition, seconds=20, what="condition"):
    """Polls until condition() is true."""
    end = time.monotonic() + seconds * PATIENCE
    while time.monotonic() < end:
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError(f"{what} did not come true")


def findings(path):
    """What a sanitizer wrote, without what libfuse 3.14 loses by itself: an INTERRUPT that comes for a request just
    answered is kept for the next request, and left over at the end."""
    text = open(path, errors="replace").read()
    blocks = [b for b in text.split("\n\n") if " leak of " in b]
    lost = [b for b in blocks if "in 1 object(s)" in b and all(
        "__interceptor" in line or "libfuse3" in line for line in b.splitlines() if line.lstrip().startswith("#"))]
    return "" if blocks and len(lost) == len(blocks) else text[:8000]


def freeze(pid):
    """SIGSTOP; returns once every thread stands still, which takes a while on a busy machine."""
    os.kill(pid, signal.SIGSTOP)

    def still():
        for tid in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{tid}/stat") as f:
                if f.read().rsplit(")", 1)[1].split()[0] != "T":
                    return False
        return True

    wait_until(still, what=f"stop of {pid}")


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as f:
            return f.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def write(path, data):
    with open(path, "wb") as f:
        f.write(data)


def read(path):
    with open(path, "rb") as f:
        return f.read()


def is_mounted(path):
    with open("/proc/self/mounts") as f:
        return any(line.split()[1] == str(path) for line in f)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def run(*args, check=True, **kw):
    kw.setdefault("stdout", subprocess.PIPE)
    kw.setdefault("stderr", subprocess.PIPE)
    kw.setdefault("timeout", 120 * PATIENCE)
    r = subprocess.run([str(a) for a in args], **kw)
    if check and r.returncode:
        raise AssertionError(f"{args} gave {r.returncode}: {r.stdout!r} {r.stderr!r}")
    return r


class Master:
    """A master process on TCP, on a Unix socket, or on both."""

    def __init__(self, world, *flags, snapshots=None, port=None, env=None, key=None):
        self.world = world
        self.key = key  # (name, secret) for a master that asks for one
        self.port = port or free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.log = world.path("master-%d.log" % self.port)
        self.args = [MASTER, f"--rpc_port={self.port}", "--metrics_port=0", *flags]
        self.env = dict(os.environ, **(env or {}))
        if snapshots:
            self.env["MOONCAKE_SNAPSHOT_LOCAL_PATH"] = str(snapshots)
        self.start()

    def start(self, wait=True):
        self.process = subprocess.Popen(self.args, env=self.env, stdout=subprocess.DEVNULL,
                                        stderr=open(self.log, "ab"))
        self.world.processes.append(self.process)
        if not wait:
            return
        wait_until(lambda: self.answers() or self.process.poll() is not None, what="master")
        assert self.process.poll() is None, open(self.log).read()

    def answers(self):
        try:
            with self.rpc() as rpc:
                rpc.call("Status")
            return True
        except (OSError, RpcError): # not there yet, or it restores
            return False

    def rpc(self, **kw):
        return Rpc(self.address, key=self.key, **kw)

    def kill(self, sig=signal.SIGKILL):
        self.process.send_signal(sig)
        self.process.wait(30 * PATIENCE)

    def log_text(self):
        return open(self.log, errors="replace").read()


class Mount:
    """A mounted node."""

    def __init__(self, world, source=None, options=(), name="mnt", state=None, expect_failure=False,
                 env=None):
        self.world = world
        self.mnt = world.path(name)
        os.makedirs(self.mnt, exist_ok=True)
        self.state = state or world.path(name + "-state")
        self.source = source or f"local:{self.state}"
        # The whole suite in another configuration; what a test asks for itself wins.
        self.options = [o for o in os.environ.get("MCFS_OPTIONS", "").split(",") if o] + list(options)
        if not self.source.startswith("local:"):
            self.options.append(f"storage_path={self.state}")
        self.env = dict(os.environ, **(env or {}))
        # What a sanitizer finds in a daemon goes where World.close looks for it.  ASan opens that file before a library that
        # records calls is ready; what it finds ends the daemon all the same.
        recorded = "librecord_calls" in self.env.get("LD_PRELOAD", "")
        for name in () if recorded else ("ASAN_OPTIONS", "TSAN_OPTIONS", "UBSAN_OPTIONS"):
            self.env[name] = self.env.get(name, "") + f":log_path={self.state}/sanitizer"
        world.mounts.append(self)
        if not expect_failure:
            self.start()

    def command(self):
        args = [MOONCAKEFS, self.source, self.mnt]
        if self.options:
            args += ["-o", ",".join(self.options)]
        return args

    def start(self):
        r = run(*self.command(), check=False, env=self.env)
        assert r.returncode == 0, r.stderr.decode() + self.log_text()
        assert is_mounted(self.mnt)
        return r

    @property
    def keys(self):
        return os.path.join(self.mnt, "keys")

    def key(self, *names):
        return os.path.join(self.mnt, "keys", *names)

    def pid(self):
        return int(open(os.path.join(self.state, "lock")).read())

    def config(self):
        return json.load(open(os.path.join(self.mnt, ".mooncakefs/config.json")))

    def master_pid(self):
        return json.load(open(os.path.join(self.mnt, ".mooncakefs/status.json")))["master"]["pid"]

    def stats(self):
        out = {}
        for line in open(os.path.join(self.mnt, ".mooncakefs/stats")):
            if not line.startswith("#"):
                name, value = line.split()
                out[name.replace("mooncakefs_", "", 1)] = int(value)
        return out

    def umount(self):
        pid = self.pid()
        run("umount", self.mnt)
        wait_until(lambda: not alive(pid), what="daemon's end")

    def kill(self, sig=signal.SIGKILL):
        """Kills the daemon; a standalone node's master dies with it."""
        pid = self.pid()
        os.kill(pid, sig)
        wait_until(lambda: not alive(pid), what="daemon's death")

    def remount(self):
        self.start()

    def forget_names(self):
        """Has the kernel drop every name, inode and page of this mount that nobody uses, as when memory is short."""
        libc = ctypes.CDLL(None, use_errno=True)
        read_only = os.statvfs(self.mnt).f_flag & os.ST_RDONLY
        flags = MS_REMOUNT | MS_NOSUID | MS_NODEV | read_only
        if os.geteuid() == 0 and libc.mount(None, self.mnt.encode(), None, flags, None):
            raise OSError(ctypes.get_errno(), "remount")

    def log_text(self):
        try:
            return open(os.path.join(self.state, "mooncakefs.log"), errors="replace").read()
        except FileNotFoundError:
            return ""

    def ctl(self, *args, check=True):
        return run(CTL, "--mount", self.mnt, *args, check=check)

    def snapshot(self):
        return self.ctl("snapshot", "create").stdout.decode().strip()


class World:
    """Everything one test makes; closed at its end."""

    def __init__(self):
        self.dir = tempfile.TemporaryDirectory(prefix="mcfs-")
        self.processes, self.mounts = [], []

    def path(self, *names):
        return os.path.join(self.dir.name, *names)

    def close(self):
        problems = []
        for m in self.mounts:
            if is_mounted(m.mnt):
                pid = None
                try:
                    pid = m.pid()
                except (OSError, ValueError):
                    pass
                subprocess.run(["umount", "-l", m.mnt], stderr=subprocess.DEVNULL)
                if pid and alive(pid):
                    try:
                        wait_until(lambda: not alive(pid), 10, "daemon's end")
                    except AssertionError:
                        problems.append(f"daemon {pid} did not end")
                        os.kill(pid, signal.SIGKILL)
            for f in os.listdir(m.state) if os.path.isdir(m.state) else []:
                if f.startswith("sanitizer") and (found := findings(os.path.join(m.state, f))):
                    problems.append(found)
        for f in os.listdir(self.dir.name):
            if f.startswith("master-") and "Sanitizer" in open(self.path(f), errors="replace").read():
                problems.append(open(self.path(f), errors="replace").read()[:8000])
        for p in self.processes:
            if p.poll() is None:
                p.terminate()
                try:
                    p.wait(10 * PATIENCE)
                except subprocess.TimeoutExpired:
                    p.kill()
                    problems.append(f"process {p.args[0]} did not end")
        self.dir.cleanup()
        assert not problems, "\n".join(problems)


class Rpc:
    """MessagePack-RPC as any client would speak it."""

    def __init__(self, address, timeout=20, key=None):
        if address.startswith("unix:"):
            self.sock = socket.socket(socket.AF_UNIX)
            target = address[5:]
        else:
            host, port = address.rsplit(":", 1)
            self.sock = socket.socket()
            target = (host, int(port))
        self.sock.settimeout(timeout * PATIENCE)
        self.sock.connect(target)
        self.unpacker = msgpack.Unpacker(raw=True, strict_map_key=False, max_buffer_size=1 << 30)
        self.id = 0
        if key:
            self.prove(*key)

    def prove(self, name, secret):
        """The handshake, as docs/rpc.md has it."""
        ours = os.urandom(32)
        theirs, proof = self.call("AuthHello", name, ours)

        def expect(side):
            text = b"mooncakefs-rpc-1" + side + bytes([len(name)]) + name.encode() + ours + theirs
            return hmac.new(secret, text, hashlib.sha256).digest()

        assert proof == expect(b"S"), "the server does not know the key"
        assert self.call("AuthProve", expect(b"C")) is None

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.sock.close()

    def send(self, data):
        self.sock.sendall(data)

    def receive(self):
        while True:
            for message in self.unpacker:
                return message
            data = self.sock.recv(1 << 16)
            if not data:
                raise ConnectionError("closed")
            self.unpacker.feed(data)

    def call(self, method, *params):
        self.id += 1
        self.send(msgpack.packb([0, self.id, method, list(params)], use_bin_type=True))
        while True:
            m = self.receive()
            if m[0] == 1 and m[1] == self.id:
                if m[2] is not None:
                    raise RpcError(*m[2])
                return m[3]


class RpcError(Exception):
    def __init__(self, code, errnum, text):
        super().__init__(f"{code}: {text.decode()}")
        self.code, self.errnum, self.text = code, errnum, text.decode()
