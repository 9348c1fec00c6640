# SPDX-License-Identifier: Apache-2.0
"""The store's I/O engine: chosen, refused by the kernel, killed in the middle of batches."""
import json
import os
import random
import subprocess
import tempfile
import time

import pytest
from harness import BUILD, Mount, wait_until
from power_cut import preload_for

BACKENDS = ["bucket_storage_backend", "file_per_key_storage_backend", "offset_allocator_storage_backend"]
WORKER = os.path.join(BUILD, "tests/crash/batch_worker")
REFUSED = "io_uring cannot be used: Function not implemented"


def engine(m):
    """What the mount says in its three places: asked for, and in use."""
    in_use = json.load(open(os.path.join(m.mnt, ".mooncakefs/status.json")))["store"]["io_engine"]
    assert m.stats()["store_io_uring"] == (in_use == "uring")
    return m.config()["io_engine"], in_use


@pytest.fixture
def without_uring():
    """The record's library makes liburing's set-up answer ENOSYS, as a kernel without io_uring does; it records nothing here."""
    return {"LD_PRELOAD": preload_for(WORKER)}


@pytest.mark.parametrize("options,variable,said", [
    ([], None, ("auto", "uring")),
    (["io_engine=uring"], None, ("uring", "uring")),
    (["io_engine=plain"], None, ("plain", "plain")),
    ([], "1", ("uring", "uring")),
    ([], "true", ("uring", "uring")),
    ([], "false", ("plain", "plain")),
    (["io_engine=auto"], "0", ("auto", "uring")),
])
def test_the_engine_is_chosen_by_the_option_and_else_by_mooncakes_variable(world, options, variable, said):
    m = Mount(world, options=options, env={"MOONCAKE_OFFLOAD_USE_URING": variable} if variable else {})
    assert engine(m) == said
    assert "io_uring" not in m.log_text()


def test_an_engine_of_another_name_is_refused(world):
    m = Mount(world, expect_failure=True, options=["io_engine=libaio"])
    r = subprocess.run(m.command(), stderr=subprocess.PIPE, env=m.env)
    assert r.returncode == 1 and r.stderr.decode().count("\n") == 1
    assert "'io_engine'" in r.stderr.decode() and "'libaio' is not auto, uring or plain" in r.stderr.decode()
    m.options, m.env["MOONCAKE_OFFLOAD_USE_URING"] = m.options[:-1], "maybe"
    r = subprocess.run(m.command(), stderr=subprocess.PIPE, env=m.env)
    assert r.returncode == 1 and "MOONCAKE_OFFLOAD_USE_URING" in r.stderr.decode() and "'maybe'" in r.stderr.decode()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("asked_for,level", [("auto", "info"), ("uring", "warning")])
def test_a_kernel_that_refuses_costs_a_line_in_the_log(world, without_uring, backend, asked_for, level):
    m = Mount(world, options=["backend=" + backend, "io_engine=" + asked_for], env=without_uring)
    assert engine(m) == (asked_for, "plain")
    lines = [line for line in m.log_text().splitlines() if REFUSED in line]
    assert len(lines) == 1 and f" {level} " in lines[0], m.log_text()
    want = {}
    for i, size in enumerate([0, 1, 4097, 300_000, 5_000_001]):
        want[f"f{i}"] = random.Random(size).randbytes(size)
        with open(m.key(f"f{i}"), "wb") as f:
            f.write(want[f"f{i}"])
    m.kill()
    m.remount()
    assert {name: open(m.key(name), "rb").read() for name in os.listdir(m.keys)} == want


def killed(directory, backend, chosen, env, objects, seconds):
    """What a worker acknowledged that was killed some time after it had put so many objects; its engine first."""
    with tempfile.NamedTemporaryFile("r") as out:
        with open(out.name, "w") as to:
            p = subprocess.Popen([WORKER, directory, backend, chosen], stdout=to, stderr=subprocess.PIPE, text=True, env=env)
        try:
            wait_until(lambda: p.poll() is not None or len(open(out.name).readlines()) > objects, what="objects put")
            time.sleep(seconds)
        finally:
            p.kill()
            errors = p.communicate()[1]
        assert p.returncode == -9, errors
        first, *lines = [line.split() for line in out.read().split("\n")[:-1]]
    return first, {key: int(size) for key, size in lines}


def whole(key, data):
    text = key.encode() + b" "
    return data == (text * (len(data) // len(text) + 1))[:len(data)]


@pytest.mark.parametrize("refused", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
def test_killed_in_the_middle_of_batches(world, without_uring, backend, refused):
    """What was acknowledged is there, what was not is there whole or not at all, and nothing is left over."""
    env = dict(os.environ, **(without_uring if refused else {}))
    for i, (objects, seconds) in enumerate([(1, 0), (7, 0.003), (14, 0.017), (30, 0.031)]):
        with tempfile.TemporaryDirectory(prefix="mcfs-engine-", dir="/var/tmp") as state:  # a disk, with O_DIRECT
            store = os.path.join(state, "backend")
            said, put = killed(store, backend, "uring", env, objects, seconds)
            assert said == ["engine", "plain" if refused else "uring"]
            m = Mount(world, state=state, name=f"mnt{i}", options=["backend=" + backend, "verify=strict", "capacity=8G"])
            there = {name: open(m.key(name), "rb").read() for name in os.listdir(m.keys)}
            assert {key: len(there.get(key, b"")) for key in put} == put
            assert [key for key, data in there.items() if not whole(key, data)] == []
            assert not os.path.isdir(os.path.join(store, "lost+found")), os.listdir(os.path.join(store, "lost+found"))
            m.umount()
