# SPDX-License-Identifier: Apache-2.0
"""A power cut under a mount: what fsync(2) was called for is there, under its name or the one that it was renamed to since; what it was
not called for is there whole, or not."""
import os

import pytest
from harness import BUILD, Mount
from power_cut import Disk, preload_for, read_log

OPTIONS = ["flush_interval=1h"]  # nothing gets to the disk by itself


@pytest.fixture
def recorded(world):
    root = world.path("root")
    os.makedirs(os.path.join(root, "state"))
    m = Mount(world, state=os.path.join(root, "state"), options=OPTIONS,
              env={"LD_PRELOAD": preload_for(os.path.join(BUILD, "fs/mooncakefs")), "MCFS_RECORD": world.path("log"),
                   "MCFS_RECORD_DIR": root})
    m.cuts = 0
    return m


def after_power_cut(mount, how="least", seed=0):
    """What the disk has of all that has been done so far, mounted: name -> content."""
    world, n = mount.world, mount.cuts
    mount.cuts += 1
    disk = Disk(read_log(world.path("log")))
    while disk.at < len(disk.calls):
        disk.advance()
    left = world.path(f"left{n}")
    disk.leave(left, how, seed)
    os.makedirs(os.path.join(left, "state"), exist_ok=True)
    again = Mount(world, name=f"again{n}", state=os.path.join(left, "state"), options=OPTIONS)
    found = {}
    for name in os.listdir(again.keys):
        with open(again.key(name), "rb") as f:
            found[name] = f.read()
    again.umount()
    return found


def write(path, data, sync):
    with open(path, "wb", buffering=0) as f:
        f.write(data)
        if sync:
            os.fsync(f.fileno())


@pytest.mark.parametrize("size", [0, 70000, 3 << 20])
def test_written_synced_and_renamed(recorded, size):
    m, data = recorded, os.urandom(size)
    write(m.key("x"), b"old", True)
    write(m.key("x.tmp"), data, True)
    assert after_power_cut(m) == {"x": b"old", "x.tmp": data}
    os.rename(m.key("x.tmp"), m.key("x"))
    found = after_power_cut(m)
    assert found.pop("x") == data
    assert found in ({}, {"x.tmp": data})
    # The file that the temporary name had is used again: its old name, which the disk may still have, gets no other's bytes.
    write(m.key("y.tmp"), os.urandom(size), False)
    found = after_power_cut(m)
    assert found.pop("x") == data
    assert found in ({}, {"x.tmp": data})


def test_nothing_broken_is_shown(recorded):
    m, known = recorded, {}
    for i in range(4):
        for name in ("a", "b.tmp", "c"):
            data = os.urandom((0, 5000, 70000, 2 << 20)[(i + len(name)) % 4])
            known.setdefault(name.removesuffix(".tmp"), []).append(data)
            write(m.key(name + ".tmp" if name == "c" else name), data, False)
        os.rename(m.key("c.tmp"), m.key("c"))
        with open(m.key("b.tmp"), "r+b", buffering=0) as f:  # in place
            f.write(b"begun anew")
            f.seek(40000)
            f.write(b"and on")
        with open(m.key("b.tmp"), "rb") as f:
            known["b"].append(f.read())
    for seed in range(10):
        for name, data in after_power_cut(m, "random", seed).items():
            assert data in known[name.removesuffix(".tmp")], (seed, name, len(data))
