# SPDX-License-Identifier: Apache-2.0
"""A store that works, cut off after any of its system calls: the promises of include/mooncakefs/backend.h.

Of io_uring nothing can be recorded, as the kernel makes its calls: the store is refused it (tests/preload/record_calls.c) and makes the
same requests by plain calls. What a store does before and after a batch does not depend on the engine, a batch's writes are in no promised order,
and none of the engines acknowledges before they have ended, so that nothing is left out but the engine itself, which has tests of its own.

MCFS_POWER_CUT=all looks behind every call, as many times as MCFS_POWER_CUT_STATES says (6); otherwise behind a sample of them."""
import os
import shutil
import subprocess
import tempfile

import pytest
from harness import BUILD
from power_cut import Disk, Promises, preload_for, read_log

WORKER = os.path.join(BUILD, "tests/crash/store_worker")
BACKENDS = ["bucket_storage_backend", "file_per_key_storage_backend", "offset_allocator_storage_backend",
            "offset_allocator_storage_backend:strict"]
STATES = int(os.environ.get("MCFS_POWER_CUT_STATES", "6"))
ALL = os.environ.get("MCFS_POWER_CUT") == "all"


class Checker:
    """Opens stores after crashes, all in one process."""

    def __init__(self, backend):
        self.process = subprocess.Popen([WORKER, "check", backend], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.process.stdin.close()
        self.process.wait()

    def look(self, directory):
        found, broken = {}, []
        self.process.stdin.write(directory + "\n")
        self.process.stdin.flush()
        for line in self.process.stdout:
            what, *rest = line.split()
            if what == "end":
                return found, broken
            if what == "object":
                found[(rest[0], int(rest[1]))] = (int(rest[2]), int(rest[3]))
            else:
                broken.append(line.strip())
                if what == "failed":
                    return found, broken
        pytest.fail("the store crashed after the crash")


@pytest.fixture
def scratch():
    """In memory: thousands of small files are made and dropped."""
    with tempfile.TemporaryDirectory(prefix="mcfs-cut-", dir="/dev/shm") as d:
        yield d


def record(scratch, backend, seed, operations):
    root, log = os.path.join(scratch, "root"), os.path.join(scratch, "log")
    os.mkdir(root)
    env = dict(os.environ, LD_PRELOAD=preload_for(WORKER), MCFS_RECORD=log, MCFS_RECORD_DIR=root)
    subprocess.run([WORKER, "work", root, backend, str(seed), str(operations)], env=env, check=True)
    return read_log(log)


def look_twice(checker, directory):
    """What recovery finds, and that it finds it again."""
    found, broken = checker.look(directory)
    again, broken_again = checker.look(directory)
    assert not broken and not broken_again, (broken, broken_again)
    assert found == again, "recovered once more it is another store"
    return found


def cut(disk, promises, checker, scratch, how, seed):
    target = os.path.join(scratch, "left")
    disk.leave(target, how, seed)
    os.makedirs(os.path.join(target, "store"), exist_ok=True)
    try:
        found = look_twice(checker, os.path.join(target, "store"))
        complaint = promises.complaint(found, how)
        assert complaint is None, complaint
    except AssertionError as e:
        kept = shutil.copytree(target, tempfile.mkdtemp(prefix="mcfs-cut-left-") + "/left")
        recent = "\n".join(map(repr, disk.calls[max(0, disk.at - 8):disk.at]))
        raise AssertionError(f"{how} {seed} behind call {disk.at}: {e}\nthe last calls:\n{recent}\nleft in {kept}") from None
    finally:
        shutil.rmtree(target)


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("backend", BACKENDS)
def test_cut_off_behind_any_call(scratch, backend, seed):
    calls = record(scratch, backend, seed, 150 if ALL else 90)
    step = 1 if ALL else 15
    disk, promises = Disk(calls), Promises()
    cuts = 0
    with Checker(backend) as checker:
        while disk.at < len(calls):
            call = disk.advance()
            if call.kind == "N":
                promises.mark(call.path)
            if disk.at % step and disk.at < len(calls):
                continue
            cut(disk, promises, checker, scratch, "death", 0)
            cut(disk, promises, checker, scratch, "least", 0)
            for s in range(STATES if ALL else 1):
                cut(disk, promises, checker, scratch, "random", disk.at * 1000 + s)
            cuts += 1
    assert cuts > 20 and promises.synced
    assert promises.compacted or "bucket" not in backend


def run_failing(scratch, backend, how, at):
    """A store whose at-th call fails; what it said, its directory, and how many calls it made."""
    root, log = os.path.join(scratch, "root"), os.path.join(scratch, "log")
    shutil.rmtree(root, ignore_errors=True)
    if os.path.exists(log):
        os.unlink(log)
    os.mkdir(root)
    env = dict(os.environ, LD_PRELOAD=preload_for(WORKER), MCFS_RECORD=log, MCFS_RECORD_DIR=root, MCFS_FAIL_AT=str(at), MCFS_FAIL_HOW=how)
    r = subprocess.run([WORKER, "work", root, backend, "5", "60"], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert r.returncode == 0, (how, at, r.returncode, r.stderr[-2000:])
    promises = Promises()
    calls = read_log(log)
    for call in calls:
        if call.kind == "N":
            promises.mark(call.path)
    return promises, os.path.join(root, "store"), sum(c.kind != "N" for c in calls)


@pytest.mark.parametrize("how", ["enospc", "eio", "short"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_any_call_fails(scratch, backend, how):
    """Once: what the operation said holds, the others go on, and the next start finds all that was acknowledged."""
    whole, _, calls = run_failing(scratch, backend, how, 0)
    hurt = 0
    with Checker(backend) as checker:
        for at in range(1, calls, 1 if ALL else 9):
            promises, store, _ = run_failing(scratch, backend, how, at)
            hurt += (promises.sure, promises.ended, promises.synced) != (whole.sure, whole.ended, whole.synced)
            found = look_twice(checker, store) if os.path.isdir(store) else {}
            complaint = promises.complaint(found, "death")
            assert complaint is None, f"{how} at call {at}: {complaint}"
    assert hurt or how == "short", "nothing failed"
