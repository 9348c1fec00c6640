# SPDX-License-Identifier: Apache-2.0
"""Many processes at once on one tree, then a full compare; the daemon killed in the middle; unmounting under load; waits that
end by a signal."""
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time

import pytest
from harness import PATIENCE, Master, Mount, freeze, is_mounted, run, wait_until

# Works in names of its own and in shared ones; says what its own ones must hold after each close.
WORKER = r'''
import hashlib, os, random, sys
root, me, seed = sys.argv[1], sys.argv[2], int(sys.argv[3])
r = random.Random(seed)
mine, shared = os.path.join(root, me), os.path.join(root, "shared")
os.makedirs(mine, exist_ok=True)
os.makedirs(shared, exist_ok=True)
state = {}

def say(name, data):
    """Before and after: what may be there, and what is."""
    print("+", name, hashlib.sha256(data).hexdigest() if data is not None else "-", flush=True)

def data():
    """Bytes, and what they can be made of again."""
    seed, size = r.getrandbits(40), r.choice([0, 10, 5000, 70000, 1 << 20, 1500000])
    return random.Random(seed).randbytes(size), f"{seed}:{size}"

def put(path, d, tmp):
    name = path + ".tmp" if tmp else path
    with open(name, "wb") as f:
        f.write(d)
    if tmp:
        os.rename(name, path)

n = 0
while True:
    n += 1
    name = f"f{r.randrange(12)}"
    path = os.path.join(mine, name)
    op = r.randrange(10)
    if op < 4:
        d, recipe = data()
        # Who dies while he writes in place has closed what he had written so far.
        print("?", name, hashlib.sha256(d).hexdigest() if op % 2 else recipe, flush=True)
        put(path, d, op % 2)
        state[name] = d
        say(name, d)
    elif op == 4 and name in state:
        print("?", name, "-", flush=True)
        os.unlink(path)
        del state[name]
        say(name, None)
    elif op == 5 and name in state:
        d = state[name] + b"appended"
        print("?", name, hashlib.sha256(d).hexdigest(), flush=True)
        with open(path, "ab") as f:
            f.write(b"appended")
        state[name] = d
        say(name, d)
    elif op == 6 and name in state:
        other = f"f{r.randrange(12)}"
        if other != name:
            h = hashlib.sha256(state[name]).hexdigest()
            print("?", name, "-", flush=True)
            print("?", other, h, flush=True)
            os.rename(path, os.path.join(mine, other))
            state[other] = state.pop(name)
            say(name, None)
            say(other, state[other])
    elif op == 7 and name in state:
        with open(path, "rb") as f:
            if f.read() != state[name]:
                sys.exit(f"{path} has other bytes")
    elif op == 8:
        if set(os.listdir(mine)) != set(state):
            sys.exit(f"{mine} lists {os.listdir(mine)}, not {list(state)}")
    else:
        # Everybody's: any whole version, or none.
        path = os.path.join(shared, name)
        try:
            if r.randrange(3) == 0:
                d, _ = data()
                put(path, hashlib.sha256(d).digest() + d, False)
            elif r.randrange(10) == 0:
                os.unlink(path)
            else:
                with open(path, "rb") as f:
                    d = f.read()
                if d and d[:32] != hashlib.sha256(d[32:]).digest():
                    sys.exit(f"{path} is torn")
        except FileNotFoundError:
            pass
'''


def is_what_was_said(data, digest, said):
    """The whole, or the beginning of what was being written in place: seed and size."""
    if ":" not in said:
        return digest == said
    seed, size = map(int, said.split(":"))
    return data is not None and random.Random(seed).randbytes(size)[:len(data)] == data


class Workers:
    def __init__(self, root, count, seed):
        self.lines = [[] for _ in range(count)]
        self.procs = [subprocess.Popen([sys.executable, "-c", WORKER, root, f"w{i}", str(seed * 100 + i)],
                                       stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for i in range(count)]
        self.threads = [threading.Thread(target=self.collect, args=(i,)) for i in range(count)]
        for t in self.threads:
            t.start()

    def collect(self, i):
        for line in self.procs[i].stdout:
            if line.endswith("\n"):  # not one that was cut off by a kill
                self.lines[i].append(line.split())

    def work(self, changes):
        wait_until(lambda: all(len(x) >= changes or p.poll() is not None for x, p in zip(self.lines, self.procs)),
                   seconds=120, what="work")

    def end(self, sig, may_fail=False):
        for p in self.procs:
            p.send_signal(sig)
        for p, t in zip(self.procs, self.threads):
            err = p.stderr.read()
            p.wait(30 * PATIENCE)
            t.join()
            assert may_fail or p.returncode == -sig, err[-1500:]
            assert "has other bytes" not in err and "is torn" not in err and " lists " not in err, err[-1500:]

    def check(self, root):
        """Each name holds what was last said of it, or what was being done when the worker ended."""
        for i, lines in enumerate(self.lines):
            sure, maybe = {}, {}
            for mark, name, digest in lines:
                if mark == "+":
                    sure[name] = digest
                    maybe.pop(name, None)
                else:
                    maybe.setdefault(name, []).append(digest)
            mine = os.path.join(root, f"w{i}")
            for name in set(sure) | set(maybe) | {n for n in os.listdir(mine) if not n.endswith(".tmp")}:
                try:
                    with open(os.path.join(mine, name), "rb") as f:
                        data = f.read()
                    got = hashlib.sha256(data).hexdigest()
                except FileNotFoundError:
                    data, got = None, "-"
                assert any(is_what_was_said(data, got, said) for said in [sure.get(name, "-"), *maybe.get(name, [])]), (i, name)


def test_many_processes_then_a_compare(mount):
    w = Workers(mount.key("s"), 6, 1)
    w.work(150)
    w.end(signal.SIGKILL)
    w.check(mount.key("s"))
    mount.forget_names()
    w.check(mount.key("s"))
    mount.umount()
    mount.start()
    w.check(mount.key("s"))


def test_daemon_killed_in_the_middle(mount):
    """Three times over: every closed file is whole."""
    for seed in range(3):
        root = mount.key(f"k{seed}")
        w = Workers(root, 5, 10 + seed)
        w.work(60)
        mount.kill()
        for p in w.procs:
            p.kill()
        w.end(signal.SIGKILL, may_fail=True)
        mount.start()
        w.check(root)


def test_processes_on_two_nodes(world):
    """The master is killed and started again meanwhile; each node sees what the other's wrote."""
    master = Master(world)
    a = Mount(world, source=master.address, name="a")
    b = Mount(world, source=master.address, name="b", options=["listen=127.0.0.1:0"])
    wa, wb = Workers(a.key("t"), 3, 32), Workers(b.key("u"), 3, 33)
    wa.work(40)
    wb.work(40)
    master.kill()
    master.start()
    wa.work(80)
    wb.work(80)
    wa.end(signal.SIGKILL)
    wb.end(signal.SIGKILL)
    wa.check(b.key("t"))
    wb.check(a.key("u"))


@pytest.mark.parametrize("how", ["umount -l", "SIGTERM", "fusermount3 -u -z"])
def test_unmounting_under_load_ends(mount, how):
    """And what was closed before is there afterwards."""
    w = Workers(mount.key("s"), 4, 50)
    w.work(40)
    pid = mount.pid()
    if how == "SIGTERM":
        os.kill(pid, signal.SIGTERM)
    else:
        run(*how.split(), mount.mnt)
        time.sleep(0.3)
    for p in w.procs:
        p.kill()
    w.end(signal.SIGKILL, may_fail=True)

    def ended():
        try:
            os.kill(pid, 0)
            with open(f"/proc/{pid}/stat") as f:
                return f.read().rsplit(")", 1)[1].split()[0] == "Z"
        except (ProcessLookupError, FileNotFoundError):
            return True

    wait_until(ended, 30, "end of the daemon")
    wait_until(lambda: not is_mounted(mount.mnt), 10, "end of the mount")
    mount.start()
    w.check(mount.key("s"))


@pytest.mark.parametrize("what", ["read", "stat", "write", "list", "unlink", "rename"])
@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGKILL])
def test_any_wait_ends_by_a_signal(world, what, sig):
    """The master stands still: whoever waits for it can be ended, long before the time limit."""
    master = Master(world)
    m = Mount(world, source=master.address, options=["rpc_timeout=300s"])
    for name in ("f", "g"):
        with open(m.key(name), "wb") as f:
            f.write(b"x" * 100000)
    os.mkdir(m.key("d"))
    m.forget_names()
    freeze(master.process.pid)
    calls = {"read": "open(p, 'rb').read()", "stat": "os.stat(p)", "write": "open(p + 'new', 'wb').write(b'1')",
             "list": "os.listdir(os.path.dirname(p))", "unlink": "os.unlink(p)", "rename": "os.rename(p, p + '2')"}
    script = ("import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); p = sys.argv[1]; "
              f"print('begun', flush=True); {calls[what]}")
    try:
        p = subprocess.Popen([sys.executable, "-c", script, m.key("f")], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert p.stdout.readline() == b"begun\n"
        time.sleep(0.3)
        assert p.poll() is None, p.stderr.read()
        p.send_signal(sig)
        p.wait(20 * PATIENCE)
        assert p.returncode == -sig
    finally:
        master.process.send_signal(signal.SIGCONT)
    for name in ("g",) if what in ("unlink", "rename") else ("f", "g"):
        with open(m.key(name), "rb") as f:
            assert f.read() == b"x" * 100000


def test_control_files_are_consistent_when_read_in_pieces(mount):
    """What one descriptor reads is of one moment, however small its reads."""
    stop = threading.Event()

    def change():
        i = 0
        while not stop.is_set():
            i += 1
            with open(mount.key(f"x{i % 50}"), "wb") as f:
                f.write(b"x" * (i % 5000))

    t = threading.Thread(target=change)
    t.start()
    try:
        for _ in range(5):
            for name in ("status.json", "nodes.json", "segments.json", "config.json"):
                fd = os.open(os.path.join(mount.mnt, ".mooncakefs", name), os.O_RDONLY)
                text = b""
                while piece := os.read(fd, 7):
                    text += piece
                json.loads(text)
                whole = os.pread(fd, 1 << 20, 0)
                os.close(fd)
                assert whole == text
            fd = os.open(os.path.join(mount.mnt, ".mooncakefs/stats"), os.O_RDONLY)
            text = b""
            while piece := os.read(fd, 11):
                text += piece
            os.close(fd)
            lines = [x for x in text.decode().splitlines() if not x.startswith("#")]
            assert text.endswith(b"\n") and all(len(x.split()) == 2 and x.split()[1].isdigit() for x in lines)
    finally:
        stop.set()
        t.join()
