# SPDX-License-Identifier: Apache-2.0
"""A daemon that dies after any of its file-system calls while temporary names are written, renamed and removed: what was
closed is there under the name that it had, or under the one that a rename was giving it, and nothing else is."""
import os

import pytest
from harness import BUILD, Mount, alive, run, wait_until

PRELOAD = os.path.join(BUILD, "tests/preload/libkill_after.so")
SMALL, LARGE = b"s" * 70000, b"l" * (2 << 20)
OTHER = b"o" * 50000


class Story:
    """What has been acknowledged; `now` is what may or may not have happened."""

    def __init__(self, mount):
        self.mount = mount
        self.there = {}
        self.now = None  # (names that it takes away, names that it brings)

    def step(self, fn, gone, came):
        self.now = (gone, came)
        fn()
        for name in gone:
            self.there.pop(name, None)
        self.there.update(came)
        self.now = None

    def write(self, name, data):
        def go():
            with open(self.mount.key(name), "wb", buffering=0) as f:
                f.write(data)
        self.step(go, [], {name: data})

    def rename(self, old, new):
        data = self.there[old]
        self.step(lambda: os.rename(self.mount.key(old), self.mount.key(new)), [old], {new: data})

    def unlink(self, name):
        self.step(lambda: os.unlink(self.mount.key(name)), [name], {})

    def tell(self):
        """Small and large, files used again for a shorter content, one that stays and one that is removed."""
        self.write("a.tmp", SMALL)
        self.rename("a.tmp", "a")
        self.write("stays.tmp", OTHER)
        self.write("b.tmp", LARGE)
        self.rename("b.tmp", "b")
        self.write("gone.tmp", SMALL)
        self.unlink("gone.tmp")
        self.write("c.tmp", OTHER)
        self.rename("c.tmp", "d.tmp")
        self.rename("d.tmp", "a")

    def check(self):
        found = {}
        for name in os.listdir(self.mount.keys):
            with open(self.mount.key(name), "rb") as f:
                found[name] = f.read()
        gone, came = self.now or ([], {})
        for name, data in self.there.items():
            if name in came:
                assert found[name] in (data, came[name]), name
            elif name not in gone:
                assert found[name] == data, name
        for name in gone:  # renamed: under the old name, the new one, or both
            if came and name in self.there:
                assert self.there[name] in (found.get(name), *(found.get(n) for n in came)), name
        for name, data in found.items():
            assert data == self.there.get(name) or data == came.get(name), f"{name}: {len(data)} bytes of nothing"


def planned(world, n, plan):
    """A mount that is yet to be started."""
    with open(world.path("plan"), "w") as f:
        f.write(plan)
    env = {"LD_PRELOAD": PRELOAD, "MCFS_KILL_PLAN": world.path("plan"),
           "ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "") + ":verify_asan_link_order=0"}
    return Mount(world, options=["flush_interval=1h"], name=f"m{n}", env=env, expect_failure=True)


def calls(world):
    return int(open(world.path("plan.count")).read())


@pytest.mark.parametrize("how", ["", " half"])
def test_killed_after_any_call(world, how):
    assert os.path.exists(PRELOAD), "build with -Dtests=true"
    mount = planned(world, 0, "0")
    mount.start()
    first = calls(world)
    Story(mount).tell()
    last = calls(world)
    mount.umount()
    assert last - first > 15
    died = 0
    for n in range(first + 1, last + 1):
        mount = planned(world, n, f"{n}{how}")
        r = run(*mount.command(), check=False, env=mount.env)
        story = Story(mount)
        pid = mount.pid()
        try:
            if r.returncode:  # how many calls there are until the mount is ready is not always the same
                assert b"died before it was ready" in r.stderr, r.stderr
                raise OSError("no mount")
            story.tell()
        except OSError:
            died += 1
            wait_until(lambda: not alive(pid), what="daemon's death")
        else:
            mount.kill()
        mount.env.pop("LD_PRELOAD")
        mount.start()
        story.check()
        mount.umount()
    assert died > (last - first) // 2 or how
