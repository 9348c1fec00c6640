#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Replays a KV-cache trace over files, on a mount and on ext4, and prints one JSON object last.

    mooncakefsctl bench trace [FILE] [--threads 1,4,16,64] [--bytes-per-token N | --preset NAME] [--capacity SIZE]

FILE has one request a line, as Mooncake's published traces do: {"timestamp", "input_length", "output_length",
"hash_ids"}, one id for each block of 512 tokens, equal ids for equal prefixes. Without FILE a trace of the same
statistics is made up. For each request a thread looks its blocks up until the first that is not there, reads those that
are, and writes the rest, each to a temporary name that is renamed. A capacity is kept by removing the blocks that were
used longest ago, as engines do."""
import argparse
import collections
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
BLOCK_TOKENS = 512
# Bytes of KV cache for each token: layers * 2 * KV heads * head size * bytes of a number.
PRESETS = {"tiny": 128, "llama-3.1-8b": 131072, "llama-3.1-70b": 327680, "qwen2.5-7b": 57344, "deepseek-v3": 70272}
UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def size(text):
    unit = UNITS.get(text[-1:].upper())
    return int(float(text[:-1]) * unit) if unit else int(text)


def load(path, limit):
    """Lists of block ids, one for each request."""
    requests = []
    with open(path) as f:
        for number, line in enumerate(f, 1):
            if not line.strip():
                continue
            try:
                ids = json.loads(line)["hash_ids"]
                requests.append([int(i) for i in ids])
            except (ValueError, KeyError, TypeError) as e:
                sys.exit(f"bench-trace: {path}:{number}: not a request of a trace ({e})")
            if limit and len(requests) == limit:
                break
    return requests


def make_up(count):
    """Conversations as the published trace has them: about 14 blocks a request, a third of them seen before."""
    rng = random.Random(1)
    requests, sessions, fresh = [], [], 1
    for _ in range(count):
        if sessions and rng.random() < 0.55:
            ids = list(rng.choice(sessions[-200:]))
        else:
            ids = [0]
        grown = max(1, int(rng.expovariate(1 / 9)))
        ids += range(fresh, fresh + grown)
        fresh += grown
        sessions.append(ids)
        requests.append(ids)
    return requests


class Replay:
    """One replay on one directory."""

    def __init__(self, directory, requests, block_bytes, capacity):
        self.dir, self.requests, self.capacity = directory, requests, capacity
        self.block = os.urandom(1 << 16) * (block_bytes >> 16) + os.urandom(block_bytes & 0xffff)
        self.lock = threading.Lock()
        self.next = 0
        self.used = collections.OrderedDict()  # path -> None, latest last
        self.lookups, self.hits, self.read, self.written, self.removed = 0, 0, 0, 0, 0
        self.waits = {"lookup": [], "read": [], "write": []}

    def path(self, block):
        return os.path.join(self.dir, f"{block:016x}_kv_0_1.bin")

    def timed(self, waits, kind, fn, *args):
        began = time.perf_counter()
        result = fn(*args)
        waits[kind].append(time.perf_counter() - began)
        return result

    @staticmethod
    def read_block(path, buffer):
        try:
            fd = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            return 0
        got = 0
        while (n := os.readv(fd, [memoryview(buffer)[got:]])) > 0:
            got += n
        os.close(fd)
        return got

    def write_block(self, path):
        temporary = f"{path}.tmp-{threading.get_ident()}"
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        done = 0
        while done < len(self.block):
            done += os.write(fd, memoryview(self.block)[done:done + (1 << 20)])
        os.close(fd)
        os.rename(temporary, path)

    def touch(self, path):
        """Notes a use; returns what has to go to keep the capacity."""
        gone = []
        with self.lock:
            self.used[path] = None
            self.used.move_to_end(path)
            while self.capacity and len(self.used) * len(self.block) > self.capacity:
                gone.append(self.used.popitem(last=False)[0])
        return gone

    def serve(self, ids, waits, buffer):
        known = 0
        for i in ids:
            self.lookups += 1
            if not self.timed(waits, "lookup", os.path.exists, self.path(i)):
                break
            known += 1
        for i in ids[:known]:
            n = self.timed(waits, "read", self.read_block, self.path(i), buffer)
            self.read += n
            self.hits += n > 0
            self.touch(self.path(i))
        for i in ids[known:]:
            self.timed(waits, "write", self.write_block, self.path(i))
            self.written += len(self.block)
            for path in self.touch(self.path(i)):
                try:
                    os.unlink(path)
                    self.removed += 1
                except FileNotFoundError:
                    pass

    def worker(self):
        waits = {kind: [] for kind in self.waits}
        buffer = bytearray(len(self.block))
        while True:
            with self.lock:
                at, self.next = self.next, self.next + 1
            if at >= len(self.requests):
                break
            self.serve(self.requests[at], waits, buffer)
        with self.lock:
            for kind, times in waits.items():
                self.waits[kind] += times

    def run(self, threads):
        began = time.monotonic()
        workers = [threading.Thread(target=self.worker) for _ in range(threads)]
        for w in workers:
            w.start()
        for w in workers:
            w.join()
        seconds = time.monotonic() - began
        blocks = sum(len(r) for r in self.requests)
        result = {"threads": threads, "seconds": round(seconds, 3), "requests": len(self.requests), "blocks": blocks,
                  "hit_ratio": round(self.hits / blocks, 4), "read_MiB_per_s": round(self.read / seconds / (1 << 20), 1),
                  "write_MiB_per_s": round(self.written / seconds / (1 << 20), 1), "removed": self.removed}
        for kind, times in self.waits.items():
            times.sort()
            for name, part in (("p50", 0.5), ("p99", 0.99), ("p999", 0.999)):
                result[f"{kind}_{name}_us"] = round(times[int(part * (len(times) - 1))] * 1e6, 1) if times else None
        return result


def main():
    p = argparse.ArgumentParser(prog="mooncakefsctl bench trace", description=__doc__.split("\n")[0])
    p.add_argument("file", nargs="?", help="the trace; without it, one is made up")
    p.add_argument("--threads", default="1,4,16,64", help="numbers of threads, one replay each")
    p.add_argument("--bytes-per-token", type=int, help="bytes of KV cache for a token; a block has 512 of them")
    p.add_argument("--preset", choices=sorted(PRESETS), default="tiny", help="the same by model")
    p.add_argument("--requests", type=int, default=1000, help="at most so many; 0: all")
    p.add_argument("--capacity", type=size, default=0, help="bytes of blocks that are kept (K, M, G); 0: all")
    p.add_argument("--dir", default="/var/tmp", help="folder on the file system to compare with")
    p.add_argument("--mount", help="replay on this folder of a mount instead of on a standalone node of its own")
    a = p.parse_args()
    block_bytes = BLOCK_TOKENS * (a.bytes_per_token or PRESETS[a.preset])
    requests = load(a.file, a.requests) if a.file else make_up(a.requests or 10000)
    built = os.path.join(HERE, "../fs/mooncakefs")
    program = built if os.path.exists(built) else "mooncakefs"
    base = tempfile.mkdtemp(prefix="mcfs-bench-", dir=a.dir)
    mnt = os.path.join(base, "mnt")
    results = {"block_bytes": block_bytes, "trace": a.file or "made up", "rounds": []}
    try:
        for threads in (int(t) for t in a.threads.split(",")):
            row = {}
            for kind in ("ext4", "mooncakefs"):
                if kind == "ext4":
                    top = os.path.join(base, "native")
                elif a.mount:
                    top = os.path.join(a.mount, "bench-trace")
                else:
                    os.makedirs(mnt, exist_ok=True)
                    subprocess.run([program, "local:" + os.path.join(base, "state"), mnt], check=True)
                    top = os.path.join(mnt, "keys/trace")
                os.makedirs(top)
                row[kind] = Replay(top, requests, block_bytes, a.capacity).run(threads)
                shutil.rmtree(top)
                if kind == "mooncakefs" and not a.mount:
                    subprocess.run(["umount", mnt], check=True)
            row["ratio"] = round(row["ext4"]["seconds"] / row["mooncakefs"]["seconds"], 3)
            results["rounds"].append(row)
            for kind in ("ext4", "mooncakefs"):
                r = row[kind]
                print(f"{threads:3} threads, {kind:10}: {r['seconds']:8.2f} s  hits {r['hit_ratio']:.3f}  read "
                      f"{r['read_MiB_per_s']:8.1f} MiB/s  write {r['write_MiB_per_s']:8.1f} MiB/s  p99 of look-ups, reads, "
                      f"writes {r['lookup_p99_us']}, {r['read_p99_us']}, {r['write_p99_us']} us", flush=True)
    finally:
        subprocess.run(["umount", "-l", mnt], stderr=subprocess.DEVNULL)
        shutil.rmtree(base, ignore_errors=True)
    print(json.dumps(results))


if __name__ == "__main__":
    sys.exit(main())
