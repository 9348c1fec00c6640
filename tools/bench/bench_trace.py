#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Replays a KV-cache trace over files in limited room, on a mount and on ext4, and prints one JSON object last.

    mooncakefsctl bench trace [FILE] [--threads 1,4,16,64] [--bytes-per-token N | --preset NAME]
                              [--capacity SIZE | --capacity-share S] [--rounds N]

FILE has one request a line, as Mooncake's published traces do: {"timestamp", "input_length", "output_length",
"hash_ids"}, one id for each block of 512 tokens, equal ids for equal prefixes. Without FILE a trace of the same
statistics is made up. For each request a thread looks its blocks up until the first that is not there, reads those that
are, and writes the rest, each to a temporary name that is renamed. Every byte that is read is compared with what was
written; a wrong one ends the run.

Both sides have the same room. The mount keeps to it by itself (-o eviction=lru,capacity=). Beside it the replay keeps
the folder on ext4 within it, as connectors that write files do (LruFiles), and that is part of its times.

A block that was there when it was looked up and is gone when it is read ("vanished") is a miss; one that found no room
("refused") is not cached. MiB_per_s counts the whole replay, MiB_per_s_busy the time spent reading or writing alone."""
import argparse
import collections
import contextlib
import errno
import json
import math
import os
import random
import shutil
import statistics
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
SIDES = ("ext4", "mooncakefs")
PERCENTILES = (("p50", 0.5), ("p99", 0.99), ("p999", 0.999))


class WrongBytes(Exception):
    """What was read is not what was written."""


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
    """Conversations with the statistics of Mooncake's published conversation trace (12,031 requests): every request
    begins with one block that all share; 39 of 100 go on from an earlier one, the median 420 requests ago (a tenth less
    than 140, a tenth more than 1,700), and add 7 blocks on average, in the median 2; the others bring 20, in the
    median 10; none has more than 247 in all. What goes on from before the beginning is a new conversation, so reuse is
    rare at first, as it is there.

    Log-normal draws come close: 12,031 made-up requests have 25.0 blocks each and find 0.40 of them when nothing goes
    and 0.34 in a tenth of the room, the published ones 24.0, 0.37 and 0.28."""
    rng = random.Random(1)
    requests, fresh = [], 1
    for n in range(count):
        age = int(rng.lognormvariate(math.log(420), 1.0))
        if rng.random() < 0.38 and age < n:
            ids = list(requests[n - 1 - age])
            grown = rng.lognormvariate(math.log(2), 1.5)
        else:
            ids = [0]
            grown = rng.lognormvariate(math.log(10), 1.2)
        grown = max(1, min(round(grown), 247 - len(ids)))
        ids += range(fresh, fresh + grown)
        fresh += grown
        requests.append(ids)
    return requests


def hit_ratio_unlimited(requests):
    """The share of blocks that one thread finds when nothing ever goes."""
    seen, hits, blocks = set(), 0, 0
    for ids in requests:
        hits += next((n for n, i in enumerate(ids) if i not in seen), len(ids))
        blocks += len(ids)
        seen.update(ids)
    return round(hits / blocks, 4) if blocks else 0


class Blocks:
    """What blocks contain: for each id other bytes, which nobody has to store to check them."""

    def __init__(self, block_bytes):
        self.bytes = block_bytes
        self.noise = os.urandom(block_bytes + (1 << 16))

    def fill(self, block, buffer):
        start = block * 40503 & 0xffff
        buffer[:] = memoryview(self.noise)[start:start + self.bytes]
        stamp = (block & (1 << 64) - 1).to_bytes(8, "little")[:self.bytes]
        buffer[:len(stamp)] = stamp

    def check(self, block, got, buffer, expected):
        if got != self.bytes:
            raise WrongBytes(f"block {block} has {got} bytes instead of {self.bytes}")
        self.fill(block, expected)
        if buffer != expected:
            at = next(i for i in range(self.bytes) if buffer[i] != expected[i])
            raise WrongBytes(f"block {block} is wrong at byte {at}")


class LruFiles:
    """Keeps files within a capacity as SGLang HiCache's file backend does when it is given a size: room is made before a
    block is written, by removing what was used longest ago, down to nine tenths, under the lock of the list; what is
    being written stays. Without a capacity it does nothing."""
    RATIO = 0.9

    def __init__(self, capacity):
        self.capacity = capacity
        self.lock = threading.Lock()
        self.used = collections.OrderedDict()  # path -> bytes, what was used last at the end
        self.writing = collections.Counter()
        self.total = self.removed = self.removed_bytes = 0

    def touch(self, path):
        if self.capacity:
            with self.lock:
                if path in self.used:
                    self.used.move_to_end(path)

    def reserve(self, path, nbytes):
        """Makes room; false when there is none. Ends with done()."""
        if not self.capacity:
            return True
        with self.lock:
            if self.total + nbytes > self.capacity:
                self._make_room(nbytes)
            if self.total + nbytes > self.capacity:
                return False
            self._put(path, nbytes)
            self.writing[path] += 1
        return True

    def done(self, path, nbytes, written):
        if not self.capacity:
            return
        with self.lock:
            self.writing[path] -= 1
            if written:
                self._put(path, nbytes)
            elif not self.writing[path]:
                self.total -= self.used.pop(path, 0)
            if not self.writing[path]:
                del self.writing[path]

    def _put(self, path, nbytes):
        self.total += nbytes - self.used.pop(path, 0)
        self.used[path] = nbytes

    def _make_room(self, nbytes):
        for _ in range(len(self.used)):
            if self.total + nbytes <= self.capacity * self.RATIO:
                break
            path, was = self.used.popitem(last=False)
            if self.writing[path]:
                self.used[path] = was
                continue
            self.total -= was
            with contextlib.suppress(FileNotFoundError):
                os.remove(path)
                self.removed += 1
                self.removed_bytes += was


class Replay:
    """One replay in one folder."""

    def __init__(self, directory, requests, blocks, files):
        self.dir, self.requests, self.blocks, self.files = directory, requests, blocks, files
        self.lock = threading.Lock()
        self.next = 0
        self.error = None
        self.counts = collections.Counter()
        self.waits = {"lookup": [], "read": [], "write": []}

    def path(self, block):
        return os.path.join(self.dir, f"{block:016x}_kv_0_1.bin")

    @staticmethod
    def timed(waits, fn, *args):
        began = time.perf_counter()
        result = fn(*args)
        waits.append(time.perf_counter() - began)
        return result

    def read_block(self, path, buffer):
        """The bytes read, or None when there is no such block any more."""
        try:
            fd = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            return None
        try:
            got, view = 0, memoryview(buffer)
            while got < len(buffer) and (n := os.readv(fd, [view[got:]])) > 0:
                got += n
        finally:
            os.close(fd)
        self.files.touch(path)
        return got

    def write_block(self, path, data):
        """False when there is no room for it: a cache goes on without the block."""
        if not self.files.reserve(path, len(data)):
            return False
        temporary = f"{path}.tmp-{threading.get_ident()}"
        written = False
        try:
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            try:
                done = 0
                while done < len(data):
                    done += os.write(fd, memoryview(data)[done:done + (1 << 20)])
            finally:
                os.close(fd)
            os.rename(temporary, path)
            written = True
        except OSError as e:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            if e.errno != errno.ENOSPC:
                raise
        finally:
            self.files.done(path, len(data), written)
        return written

    def serve(self, ids, waits, counts, buffer, expected):
        found = 0
        for i in ids:
            if not self.timed(waits["lookup"], os.path.exists, self.path(i)):
                break
            found += 1
        hits = 0
        for i in ids[:found]:
            got = self.timed(waits["read"], self.read_block, self.path(i), buffer)
            if got is None:  # it was evicted since; what follows it is of no use to an engine
                counts["vanished"] += 1
                break
            self.blocks.check(i, got, buffer, expected)
            hits += 1
        counts["hits"] += hits
        for i in ids[hits:]:
            self.blocks.fill(i, buffer)
            if self.timed(waits["write"], self.write_block, self.path(i), buffer):
                counts["written"] += 1
            else:
                counts["refused"] += 1

    def worker(self):
        waits = {kind: [] for kind in self.waits}
        counts = collections.Counter()
        buffer, expected = bytearray(self.blocks.bytes), bytearray(self.blocks.bytes)
        try:
            while True:
                with self.lock:
                    at, self.next = self.next, self.next + 1
                if at >= len(self.requests) or self.error:
                    break
                self.serve(self.requests[at], waits, counts, buffer, expected)
        except Exception as e:  # pylint: disable=broad-except
            self.error = self.error or e
        with self.lock:
            self.counts.update(counts)
            for kind, times in waits.items():
                self.waits[kind] += times

    def run(self, threads):
        began = time.monotonic()
        workers = [threading.Thread(target=self.worker) for _ in range(threads)]
        try:
            for w in workers:
                w.start()
            for w in workers:
                w.join()
        except BaseException as e:  # Ctrl-C: each ends with the request that it is at, so that the mount can go
            self.error = e
            for w in workers:
                if w.is_alive():
                    w.join()
        seconds = time.monotonic() - began
        if self.error:
            raise self.error
        return self.result(threads, seconds)

    def result(self, threads, seconds):
        blocks = sum(len(r) for r in self.requests)
        hits, written = (self.counts[k] for k in ("hits", "written"))
        result = {"seconds": round(seconds, 3), "blocks": blocks, "hit_ratio": round(hits / blocks, 4) if blocks else 0,
                  "vanished": self.counts["vanished"], "refused": self.counts["refused"],
                  "evicted": self.files.removed, "evicted_bytes": self.files.removed_bytes}
        for kind, count in (("read", hits), ("write", written)):
            moved = count * self.blocks.bytes / (1 << 20)
            spent = sum(self.waits[kind]) / threads
            result[f"{kind}_MiB_per_s"] = round(moved / seconds, 1) if seconds else 0
            result[f"{kind}_MiB_per_s_busy"] = round(moved / spent, 1) if spent else 0
        for kind, times in self.waits.items():
            times.sort()
            for name, part in PERCENTILES:
                result[f"{kind}_{name}_us"] = round(times[int(part * (len(times) - 1))] * 1e6, 1) if times else None
        return result


def mount_root(path):
    while not os.path.ismount(path):
        path = os.path.dirname(os.path.abspath(path))
    return path


def evictions(mnt):
    """Objects and bytes that a mount has evicted since its start, or None where that is not a mount of ours."""
    try:
        with open(os.path.join(mnt, ".mooncakefs/stats")) as f:
            stats = dict(line.split() for line in f if not line.startswith("#"))
        return [int(stats[f"mooncakefs_store_{name}_total"]) for name in ("evictions", "evicted_bytes")]
    except (OSError, KeyError, ValueError):
        return None


@contextlib.contextmanager
def standalone(base, capacity):
    """The folder of a node's own mount with a fresh store, gone with the end."""
    built = os.path.join(HERE, "../fs/mooncakefs")
    program = built if os.path.exists(built) else "mooncakefs"
    mnt, state = os.path.join(base, "mnt"), os.path.join(base, "state")
    os.makedirs(mnt, exist_ok=True)
    options = ["-o", f"eviction=lru,capacity={capacity}"] if capacity else []
    subprocess.run([program, "local:" + state, mnt, *options], check=True)
    with open(os.path.join(state, "lock")) as f:
        pid = int(f.read())
    try:
        yield os.path.join(mnt, "keys/trace")
    finally:
        subprocess.run(["umount", mnt], check=True)
        while os.path.exists(f"/proc/{pid}"):
            time.sleep(0.01)
        shutil.rmtree(state)


@contextlib.contextmanager
def folder(path):
    yield path
    shutil.rmtree(path)


def replay(side, a, base, requests, blocks, threads):
    if side == "ext4":
        place, files = folder(os.path.join(base, "native")), LruFiles(a.capacity)
    else:
        place = folder(os.path.join(a.mount, "bench-trace")) if a.mount else standalone(base, a.capacity)
        files = LruFiles(0)
    with place as top:
        os.makedirs(top)
        os.sync()  # what the other side left to be written is not ours to wait for
        mnt = mount_root(top)
        before = evictions(mnt)
        result = Replay(top, requests, blocks, files).run(threads)
        if side != "ext4":
            after = evictions(mnt)
            for n, name in enumerate(("evicted", "evicted_bytes")):
                result[name] = after[n] - before[n] if before and after else None
    return result


def medians(results):
    """For each figure its median over the rounds."""
    return {name: None if any(r[name] is None for r in results)
            else round(statistics.median(r[name] for r in results), 4) for name in results[0]}


def show(threads, side, r):
    print(f"{threads:3} threads, {side:10}: {r['seconds']:8.2f} s  hits {r['hit_ratio']:.3f}  read "
          f"{r['read_MiB_per_s']:8.1f} MiB/s  write {r['write_MiB_per_s']:8.1f} MiB/s  evicted {r['evicted']}  p99 of "
          f"look-ups, reads, writes {r['lookup_p99_us']}, {r['read_p99_us']}, {r['write_p99_us']} us", flush=True)


def measure(a, base, requests, blocks):
    rows = []
    for threads in a.threads:
        results = {side: [] for side in SIDES}
        for _ in range(a.rounds):
            for side in SIDES:
                results[side].append(replay(side, a, base, requests, blocks, threads))
        row = {"threads": threads, **{side: medians(results[side]) for side in SIDES}}
        row["ratios"] = [round(e["seconds"] / m["seconds"], 3) for e, m in zip(*(results[side] for side in SIDES))]
        row["ratio"] = round(statistics.median(row["ratios"]), 3)
        rows.append(row)
        for side in SIDES:
            show(threads, side, row[side])
    return rows


def counts(text):
    numbers = [int(t) for t in text.split(",")]
    if min(numbers) < 1:
        raise ValueError
    return numbers


def arguments():
    p = argparse.ArgumentParser(prog="mooncakefsctl bench trace", description=__doc__.split("\n", maxsplit=1)[0])
    p.add_argument("file", nargs="?", help="the trace; without it, one is made up")
    p.add_argument("--threads", type=counts, default="1,4,16,64", help="numbers of threads, a row each")
    block = p.add_mutually_exclusive_group()
    block.add_argument("--bytes-per-token", type=size, help="bytes of KV cache for a token; a block has 512 of them")
    block.add_argument("--preset", choices=sorted(PRESETS), default="tiny", help="the same by model")
    p.add_argument("--requests", type=int, default=1000, help="at most so many; 0: all")
    p.add_argument("--rounds", type=int, default=1, help="replays for each row, the sides in turn; medians are told")
    room = p.add_mutually_exclusive_group()
    room.add_argument("--capacity", type=size, help="bytes that either side may store (K, M, G); 0: no limit")
    room.add_argument("--capacity-share", type=float, default=0.3,
                      help="the same as a share of the trace's distinct blocks; 0: no limit")
    p.add_argument("--dir", default="/var/tmp", help="folder on the file system to compare with")
    p.add_argument("--mount", help="replay on this folder of a mount, whose capacity is its own, instead of on a standalone "
                                   "node made for it")
    a = p.parse_args()
    if a.bytes_per_token is not None and a.bytes_per_token < 1:
        p.error("--bytes-per-token: at least 1")
    if a.rounds < 1 or a.requests < 0 or a.capacity_share < 0 or (a.capacity or 0) < 0:
        p.error("--rounds, --requests, --capacity and --capacity-share: not a number that makes sense")
    return a


def main():
    a = arguments()
    block_bytes = BLOCK_TOKENS * (a.bytes_per_token or PRESETS[a.preset])
    requests = load(a.file, a.requests) if a.file else make_up(a.requests or 10000)
    if not requests:
        sys.exit(f"bench-trace: {a.file}: no request")
    distinct = len({i for ids in requests for i in ids})
    if a.capacity is None:
        a.capacity = math.ceil(a.capacity_share * distinct) * block_bytes
    results = {"trace": a.file or "made up", "requests": len(requests), "block_bytes": block_bytes,
               "distinct_bytes": distinct * block_bytes, "capacity_bytes": a.capacity,
               "hit_ratio_unlimited": hit_ratio_unlimited(requests), "rounds": a.rounds}
    base = tempfile.mkdtemp(prefix="mcfs-bench-", dir=a.dir)
    try:
        results["rows"] = measure(a, base, requests, Blocks(block_bytes))
    except (WrongBytes, OSError, subprocess.CalledProcessError) as e:
        sys.exit(f"bench-trace: {e}")
    finally:
        subprocess.run(["umount", "-l", os.path.join(base, "mnt")], stderr=subprocess.DEVNULL, check=False)
        shutil.rmtree(base, ignore_errors=True)
    print(json.dumps(results))


if __name__ == "__main__":
    sys.exit(main())
