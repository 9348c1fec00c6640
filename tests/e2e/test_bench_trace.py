# SPDX-License-Identifier: Apache-2.0
"""The replay of a KV-cache trace: what it counts, that both sides keep to their room, and that wrong bytes end it."""
import json
import os
import sys

from harness import BUILD, CTL, run

SIDES = ("ext4", "mooncakefs")
BLOCK = 512 * 8


def write_trace(path, requests):
    with open(path, "w") as f:
        for ids in requests:
            f.write(json.dumps({"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": ids}) + "\n")
    return path


def replay(world, *args):
    r = run(CTL, "bench", "trace", "--dir=" + world.path(), *args)
    assert not [name for name in os.listdir(world.path()) if name.startswith("mcfs-bench-")]
    return json.loads(r.stdout.decode().strip().splitlines()[-1])


def replay_changed(world, change, *args):
    """The same, after Python code that changes what the replay calls has run; the exit status is the caller's to judge."""
    code = f"""
import importlib.machinery, importlib.util, os, sys
loader = importlib.machinery.SourceFileLoader("bench_trace", {os.path.join(BUILD, "tools/bench-trace")!r})
bench = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
loader.exec_module(bench)
{change}
sys.exit(bench.main())
"""
    return run(sys.executable, "-c", code, "--dir=" + world.path(), *args, check=False)


def test_counts_what_the_trace_has(world):
    trace = write_trace(world.path("trace.jsonl"), ([0, 1, 2], [0, 1, 3], [0, 1, 2, 4]))
    result = replay(world, trace, "--threads=1", "--capacity=0", "--rounds=2")
    assert result["hit_ratio_unlimited"] == 0.5 and result["distinct_bytes"] == 5 * result["block_bytes"]
    row = result["rows"][0]
    assert len(row["ratios"]) == 2
    for side in SIDES:
        assert row[side]["blocks"] == 10 and row[side]["hit_ratio"] == 0.5
        assert row[side]["vanished"] == row[side]["refused"] == row[side]["evicted"] == 0
        assert row[side]["write_p999_us"] >= row[side]["write_p99_us"] >= row[side]["write_p50_us"] > 0


def test_names_a_line_that_is_no_request(world):
    with open(world.path("trace.jsonl"), "w") as f:
        f.write("{}\n")
    r = run(CTL, "bench", "trace", world.path("trace.jsonl"), check=False)
    assert r.returncode == 1 and b"trace.jsonl:1" in r.stderr


def test_both_sides_keep_to_their_room(world):
    """64 blocks of room for 600: what was used last is found again, what was used long ago is not."""
    requests = []
    for first in range(0, 600, 10):
        ids = list(range(first, first + 10))
        requests += [ids, ids]
    requests.append(list(range(10)))
    trace = write_trace(world.path("trace.jsonl"), requests)
    result = replay(world, trace, "--threads=1,4", "--bytes-per-token=128", "--capacity=4M")
    assert result["capacity_bytes"] == 4 << 20
    for row in result["rows"]:
        for side in SIDES:
            r = row[side]
            assert 500 < r["evicted"] <= 1220 and r["evicted_bytes"] == r["evicted"] * result["block_bytes"]
            assert r["refused"] == 0
            if row["threads"] == 1:
                assert r["hit_ratio"] == round(600 / 1210, 4) and r["vanished"] == 0


def test_room_is_a_share_of_what_is_made_up(world):
    result = replay(world, "--threads=4", "--requests=60", f"--bytes-per-token={BLOCK // 512}")
    assert result["trace"] == "made up" and result["requests"] == 60 and result["block_bytes"] == BLOCK
    assert abs(result["capacity_bytes"] - 0.3 * result["distinct_bytes"]) <= BLOCK
    for side in SIDES:
        assert result["rows"][0][side]["evicted"] > 0


def test_a_block_that_vanishes_is_a_miss(world):
    trace = write_trace(world.path("trace.jsonl"), ([0, 1, 2], [0, 1, 3], [0, 1, 2, 4]))
    r = replay_changed(world, "os.path.exists = lambda path: True", trace, "--threads=1", "--capacity=0",
                       f"--mount={world.path()}")
    assert r.returncode == 0, r.stderr
    row = json.loads(r.stdout.decode().strip().splitlines()[-1])["rows"][0]
    for side in SIDES:
        assert row[side]["vanished"] == 3 and row[side]["hit_ratio"] == 0.5


def test_wrong_bytes_end_the_run(world):
    """One byte of a block changes on its way: the third of the second one that is written."""
    change = """
written = []
rename = os.rename
def spoil(temporary, path):
    written.append(path)
    if len(written) == 2:
        with open(temporary, "r+b") as f:
            f.seek(2)
            byte = f.read(1)[0]
            f.seek(2)
            f.write(bytes([byte ^ 1]))
    rename(temporary, path)
os.rename = spoil
"""
    trace = write_trace(world.path("trace.jsonl"), ([5, 6, 7], [5, 6]))
    r = replay_changed(world, change, trace, "--threads=1", "--capacity=0")
    assert r.returncode == 1 and b"block 6 is wrong at byte 2" in r.stderr and b"{" not in r.stdout
    assert not [name for name in os.listdir(world.path()) if name.startswith("mcfs-bench-")]
