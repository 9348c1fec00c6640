# SPDX-License-Identifier: Apache-2.0
"""A checkpoint that is killed after any of its file-system calls: what is named is whole, and the next one clears what is left."""
import json
import os

import pytest
from harness import BUILD, CTL, Master, Rpc, run, wait_until
from test_snapshots import read_snapshot

PRELOAD = os.path.join(BUILD, "tests/preload/libkill_after.so")
FILES = {"metadata", "segments", "task_manager", "mooncakefs", "manifest.txt", "descriptor.txt"}
OBJECTS = 40


class Killed:
    """A master whose checkpoints are killed as the plan says."""

    def __init__(self, world, plan=""):
        self.plan = world.path("plan")
        self.set(plan)
        self.store = world.path("snaps")
        self.root = os.path.join(self.store, "mooncake_master_snapshot/mooncake_cluster")
        assert os.path.exists(PRELOAD), "build with -Dtests=true"
        env = {"LD_PRELOAD": PRELOAD, "MCFS_KILL_PLAN": self.plan,
               "ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "") + ":verify_asan_link_order=0"}
        self.master = Master(world, "--enable_snapshot", "--enable_snapshot_restore",
                             snapshots=self.store, env=env)
        self.rpc = Rpc(self.master.address)
        self.put(OBJECTS)

    def put(self, n):
        session = self.rpc.call("Register", "11-22", "n", "unix:/nowhere", 1 << 30, 0)[0]
        self.rpc.call("InventoryEnd", session)
        for i in range(n):
            version = self.rpc.call("PutStart", session, "default", f"k{i}", i, True)[0]
            self.rpc.call("PutEnd", session, "default", f"k{i}", version, i, 0o644, 0, 0, 0, 0, False,
                          None, 0)

    def set(self, text):
        with open(self.plan, "w") as f:
            f.write(text)

    def take(self):
        """Takes a checkpoint; its id, and whether the master says that it is published."""
        ident = self.rpc.call("SnapshotCreate")[0].decode()
        state = []

        def done():
            state[:] = self.rpc.call("SnapshotState")
            return not state[0]

        wait_until(done, what="checkpoint's end")
        return ident, state[1].decode() == ident and not state[2]

    def latest(self):
        return open(os.path.join(self.root, "latest.txt")).read()

    def check(self):
        """What a reader and a restore find."""
        latest = self.latest()
        assert FILES <= set(os.listdir(os.path.join(self.root, latest)))
        assert len(read_snapshot(os.path.join(self.root, latest))) == OBJECTS
        r = json.loads(run(CTL, "restore", "--check", self.store, "--json").stdout)
        assert (r["id"], r["keys_kept"], r["failed_candidates"]) == (latest, OBJECTS, [])
        for v in json.loads(run(CTL, "snapshot", "verify", "--store", self.store, "--json").stdout):
            assert v["ok"] and v["objects"] == OBJECTS, v

    def tree(self):
        return {os.path.relpath(os.path.join(d, f), self.root)
                for d, _, files in os.walk(self.root) for f in files}


@pytest.mark.parametrize("how", ["", " half"])
def test_killed_after_any_call(world, how):
    k = Killed(world)
    assert k.take()[1] and k.take()[1]
    n, published, killed = 0, 0, 0
    while True:
        n += 1
        k.set(f"{n}{how}")
        before = k.latest()
        ident, good = k.take()
        calls = int(open(k.plan + ".count").read())
        if good:
            assert calls < n, "it was to be killed"
            break
        killed += 1
        assert calls == n and k.latest() in (before, ident)
        published += k.latest() == ident
        k.check()
        k.set("0")
        next_ident, good = k.take()
        assert good and k.latest() == next_ident
        whole = {e for e in os.listdir(k.root) if e != "latest.txt"}
        assert len(whole) == 2 and next_ident in whole, (n, k.tree(), k.master.log_text())
        assert k.tree() == {"latest.txt"} | {f"{i}/{f}" for i in whole for f in FILES}, \
            f"what was killed after {n} calls is cleared away"
    assert killed > 60 and 0 < published < killed
    k.check()


def test_first_of_all_killed(world):
    """Without a snapshot before it: nothing is named until one is whole, and a master starts empty."""
    k = Killed(world)
    n, unnamed = 0, 0
    while True:
        n += 1
        k.set(str(n))
        run("rm", "-rf", k.root)
        _, good = k.take()
        if os.path.exists(os.path.join(k.root, "latest.txt")):
            k.check()
        else:
            unnamed += 1
            r = run(CTL, "snapshot", "list", "--store", k.store, "--json", check=False)
            for e in json.loads(r.stdout) if r.returncode == 0 else []:
                assert json.loads(run(CTL, "snapshot", "verify", e["id"], "--store", k.store,
                                      "--json").stdout)[0]["ok"]
        if good:
            break
    assert unnamed > 30


def test_master_killed_with_its_checkpoint(world):
    """The remains of a checkpoint whose master died too go with the next master's first one."""
    k = Killed(world)
    assert k.take()[1]
    k.set("20")
    assert not k.take()[1]
    assert any(".tmp." in f for f in k.tree())
    k.rpc.sock.close()
    k.master.kill()
    k.set("0")
    k.master.start()
    with Rpc(k.master.address) as k.rpc:
        ident, good = k.take()
        assert good and k.latest() == ident
        k.check()
        assert not any(".tmp." in f for f in k.tree())
        assert len(k.tree()) == 2 * len(FILES) + 1
