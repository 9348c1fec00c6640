# SPDX-License-Identifier: Apache-2.0
"""Random operations against a model (fsx.py).  MCFS_FSX_SEEDS and MCFS_FSX_OPS make a longer run."""
import os

import fsx
import pytest
from harness import Master, Mount

SEEDS = int(os.environ.get("MCFS_FSX_SEEDS", "6"))
OPS = int(os.environ.get("MCFS_FSX_OPS", "250"))


@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_operations(mount, seed):
    fsx.check(mount, seed, OPS)


@pytest.mark.parametrize("seed", range(SEEDS // 3))
def test_random_operations_in_a_cluster(world, seed):
    """With a second node, so that names are looked up every time."""
    master = Master(world)
    m = Mount(world, source=master.address, name="m")
    Mount(world, source=master.address, name="other")
    fsx.check(m, 1000 + seed, OPS)


def test_a_wrong_byte_is_found_and_shrunk(mount, monkeypatch):
    """The tester itself: a model that is wrong about truncation is told so by few operations."""
    truncate = fsx.Run.do_truncate

    def wrong(self, name, size):
        truncate(self, name, size)
        if self.files.get(name):
            self.files[name] = b"?" + self.files[name][1:]
    monkeypatch.setattr(fsx.Run, "do_truncate", wrong)
    monkeypatch.setattr(fsx, "TRIES", 120)
    with pytest.raises(AssertionError) as e:
        for seed in range(5):
            fsx.check(mount, seed, 60)
    few = str(e.value).split("shrunk to ")[1].split("\nwhich")[0]
    assert few.count("(") <= 4, few
