# SPDX-License-Identifier: Apache-2.0
"""The operator's command line."""
import json
import os

import pytest

from harness import CTL, Mount, run


def test_status(mount):
    text = mount.ctl("status").stdout.decode()
    assert "connected" in text and "master" in text
    s = json.loads(mount.ctl("status", "--json").stdout)
    assert s["nodes"][0]["connected"] is True and s["master"]["objects"] == 0


def test_put_get_ls_stat_rm(mount, world):
    data = os.urandom(9 << 20)
    open(world.path("in"), "wb").write(data)
    mount.ctl("put", "dir/key", world.path("in"))
    assert open(mount.key("dir/key"), "rb").read() == data
    assert mount.ctl("get", "dir/key").stdout == data
    mount.ctl("get", "dir/key", world.path("out"))
    assert open(world.path("out"), "rb").read() == data
    assert b"dir/\n" in mount.ctl("ls").stdout
    assert json.loads(mount.ctl("ls", "dir/", "--json").stdout)[0]["size"] == len(data)
    assert json.loads(mount.ctl("stat", "dir/key", "--json").stdout)["size"] == len(data)
    mount.ctl("rm", "dir/key")
    assert mount.ctl("get", "dir/key", check=False).returncode == 1
    assert not os.path.exists(mount.key("dir/key"))


def test_locate_leads_to_the_bytes(mount):
    for name, size in (("small", 5000), ("big", 3 << 20)):
        data = os.urandom(size)
        open(mount.key(name), "wb").write(data)
        out = json.loads(mount.ctl("locate", mount.key(name), "--physical", "--json").stdout)
        place = out["replicas"][0]["place"]
        with open(place["file"], "rb") as f:
            f.seek(place["offset"])
            assert f.read(place["length"]) == data
        assert place["whole_file"] == (size > 1 << 20)
        assert place["extents"]


def test_pin(mount):
    open(mount.key("k"), "w").write("v")
    mount.ctl("pin", "k")
    assert mount.ctl("rm", "k", check=False).returncode == 1
    mount.ctl("unpin", "k")
    mount.ctl("rm", "k")


def test_snapshot(mount):
    assert mount.ctl("snapshot", "list").stdout == b""
    ident = json.loads(mount.ctl("snapshot", "create", "--json").stdout)["id"]
    assert ident in mount.ctl("snapshot", "list").stdout.decode()
    assert json.loads(mount.ctl("snapshot", "list", "--json").stdout)[0]["id"] == ident


def test_wrong_usage(mount):
    assert run(CTL, check=False).returncode == 2
    assert run(CTL, "frob", check=False).returncode == 2
    assert mount.ctl("get", check=False).returncode == 2
    r = run(CTL, "--jsn", "status", check=False)
    assert r.returncode == 2 and b"did you mean 'json'" in r.stderr
    r = run(CTL, "--master", "unix:/nowhere", "--timeout=200ms", "status", check=False)
    assert r.returncode == 1 and b"/nowhere" in r.stderr


@pytest.mark.parametrize("name", ["master", "mount", "backend"])
def test_bench_explains_itself(name):
    """Each benchmark that is offered is there."""
    r = run(CTL, "bench", name, "--help")
    assert b"rounds" in r.stdout


def test_bench_master_measures_a_small_directory(world):
    r = run(CTL, "bench", "master", "--keys=2000", "--rounds=1", "--round_time=100ms", "--dir=" + world.path())
    result = json.loads(r.stdout.decode().strip().splitlines()[-1])
    assert result["keys"] == 2000 and result["in_process"]["keys"] == 2000
    for figure in ("puts_per_s", "lookups_per_s", "batched_lookups_per_s", "checkpoint_s", "bytes_per_object"):
        assert result[figure] > 0


@pytest.mark.skipif(os.geteuid() != 0, reason="the page cache is dropped by root alone")
def test_bench_backend_measures_recovery(world):
    r = run(CTL, "bench", "backend", "--objects=2", "--object_size=64K", "--rounds=1", "--recover=1000",
            "--dir=" + world.path())
    result = json.loads(r.stdout.decode().strip().splitlines()[-1])
    assert result["index_file_bytes"] > 1000 * 16


@pytest.mark.parametrize("backend", ["offset_allocator", "bucket", "file_per_key"])
@pytest.mark.parametrize("test", ["all", "mixed_rw", "churn", "restart"])
def test_bench_backend_takes_mooncakes_options(world, backend, test):
    """Every test runs, sees its own bytes, has its figures and leaves nothing behind."""
    open(world.path("mine"), "w").close()
    r = run(CTL, "bench", "backend", "mooncake", "--backend=" + backend, "--test=" + test, "--value_size=5000",
            "--batch_size", "4", "--num_operations=6", "--warmup_operations=2", "--num_threads=2", "--read_threads=2",
            "--write_threads=1", "--capacity_gb=1", "--fill_ratio=0.001", "--read_ratio=0.5", "--pattern=zipf",
            "--notime_series", "--rounds=2", "--storage_path=" + world.path())
    results = json.loads(r.stdout.decode().strip().splitlines()[-1])["backends"][backend]
    names = {"all": ["init", "offload", "load", "concurrent_load", "exist_hit", "exist_miss"],
             "mixed_rw": ["mixed_rw_read", "mixed_rw_write"]}.get(test, [test])
    assert sorted(results) == sorted(names)
    for name, result in results.items():
        assert result["errors"] == 0 and result["checksum_failures"] == 0
        if name not in ("init", "restart"):
            assert 0 < result["min_ms"] <= result["p50_ms"] <= result["p99_ms"] <= result["p999_ms"] <= result["max_ms"]
        if "ratio" in result:
            assert result["bytes"] == result["plain"]["bytes"] > 0
    assert not [name for name in os.listdir(world.path()) if name.startswith("mcfs-bench-")]
    assert os.path.exists(world.path("mine"))


@pytest.mark.parametrize("word, says", [
    ("--backend=dfs", b"offset_allocator"), ("--test=reading", b"concurrent_load"), ("--pattern=x", b"zipf"),
    ("--cache_mode=fadvise_dontneed", b"drop_cache_external"), ("--cache_mode=x", b"buffered"),
    ("--io_engine=x", b"uring"), ("--value_size=0", b"value_size"), ("--batch_size=x", b"whole number"),
    ("--num_operations=0", b"num_operations"), ("--fill_ratio=nan", b"fill_ratio"), ("--read_ratio=1.5", b"read_ratio"),
    ("--rounds=65", b"rounds"), ("--num_operations=1000000", b"capacity_gb"), ("--nosuch", b"unknown option"),
    ("words", b"not an option")])
def test_bench_backend_refuses_bad_options_of_mooncakes(word, says):
    r = run(CTL, "bench", "backend", "mooncake", word, check=False)
    assert r.returncode == 2 and says in r.stderr and not r.stdout


def test_bench_of_nothing_lists_what_there_is():
    r = run(CTL, "bench", "weather", check=False)
    assert r.returncode == 2 and b"backend" in r.stderr
