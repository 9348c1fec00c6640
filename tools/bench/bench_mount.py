#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures a mount beside ext4 and libfuse's passthrough_ll, in turn, and prints medians; one JSON object last.

    tools/bench/bench_mount.py BUILD [--dir DIR] [--rounds N] [--list N]

DIR (default /var/tmp) lies on the file system to compare with. Needs root, gcc and libfuse3-dev."""
import argparse
import gzip
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

EXAMPLE = "/usr/share/doc/libfuse3-dev/examples/passthrough_ll.c"


def drop_names():
    """Forgets names and attributes (and so what a mount has cached), not pages."""
    with open("/proc/sys/vm/drop_caches", "w") as f:
        f.write("2")


class Bench:
    def __init__(self, build, base, rounds):
        self.build, self.rounds = build, rounds
        self.dir = tempfile.mkdtemp(prefix="mcfs-bench-", dir=base)
        self.native = os.path.join(self.dir, "native")
        self.mnt = os.path.join(self.dir, "mnt")
        self.ll = os.path.join(self.dir, "ll")
        self.state = os.path.join(self.dir, "state")
        for d in (self.native, self.mnt, self.ll):
            os.makedirs(d)
        self.results = {}

    def ops(self, op, directory, count, size):
        return float(subprocess.run([os.path.join(self.build, "tools/fileops"), op, directory,
                                     str(count), str(size)], check=True,
                                    stdout=subprocess.PIPE).stdout)

    def mount(self, *options):
        subprocess.run([os.path.join(self.build, "fs/mooncakefs"), "local:" + self.state, self.mnt,
                        "-o", ",".join(("attr_timeout=1h",) + options)], check=True)

    def umount(self, path=None):
        pid = int(open(os.path.join(self.state, "lock")).read())
        subprocess.run(["umount", path or self.mnt], check=True)
        while path is None and os.path.exists(f"/proc/{pid}"):
            time.sleep(0.01)

    def passthrough(self):
        source = EXAMPLE if os.path.exists(EXAMPLE) else EXAMPLE + ".gz"
        code = (gzip.open if source.endswith(".gz") else open)(source, "rt").read()
        c = os.path.join(self.dir, "passthrough_ll.c")
        open(c, "w").write(code)
        for f in os.listdir(os.path.dirname(EXAMPLE)):
            if f.endswith(".h"):
                shutil.copy(os.path.join(os.path.dirname(EXAMPLE), f), self.dir)
        flags = subprocess.run(["pkg-config", "--cflags", "--libs", "fuse3"], check=True,
                               stdout=subprocess.PIPE, text=True).stdout.split()
        subprocess.run(["gcc", "-O2", "-D_GNU_SOURCE", c, "-o", c[:-2]] + flags, check=True,
                       stderr=subprocess.DEVNULL)
        subprocess.run([c[:-2], "-o", f"source={self.native},cache=always", self.ll], check=True)

    def row(self, name, ours, other, must):
        """Runs both in turn; higher ratio is better: other's time over ours."""
        a, b = [], []
        for _ in range(self.rounds):
            b.append(other())
            a.append(ours())
        ratio = statistics.median(y / x for x, y in zip(a, b))
        self.results[name] = {"ours_s": statistics.median(a), "other_s": statistics.median(b),
                              "ratio": round(ratio, 3), "must": must}
        print(f"{name:58} ours {statistics.median(a):8.4f} s  other {statistics.median(b):8.4f} s  "
              f"ratio {ratio:6.3f}  must {must}", flush=True)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("build")
    p.add_argument("--dir", default="/var/tmp")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--list", type=int, default=1000000)
    a = p.parse_args()
    b = Bench(a.build, a.dir, a.rounds)
    keys = lambda *n: os.path.join(b.mnt, "keys", *n)
    native = lambda *n: os.path.join(b.native, *n)
    try:
        b.mount()
        b.passthrough()

        def fresh(directory):
            shutil.rmtree(directory, ignore_errors=True)
            os.makedirs(directory)
            return directory

        # Large objects.
        for top in (keys("big"), native("big")):
            b.ops("write", fresh(top), 1, 1 << 30)

        def first_read(path):
            def go():
                warm = native("big") if path == native("big") else \
                    os.path.join(b.state, "backend")
                for f in os.listdir(warm):
                    full = os.path.join(warm, f)
                    if os.path.isfile(full) and os.path.getsize(full) >= 1 << 30:
                        with open(full, "rb") as h:
                            while h.read(1 << 20):
                                pass
                return b.ops("read", path, 1, 1 << 30)
            return go

        def cold(path):
            run = first_read(path)

            def go():
                b.umount()
                b.mount()
                return run()
            return go

        b.row("read 1 GiB, first read", cold(keys("big")), first_read(native("big")), 0.85)
        b.row("read 1 GiB, again", lambda: b.ops("read", keys("big"), 1, 1 << 30),
              lambda: b.ops("read", native("big"), 1, 1 << 30), 0.9)

        def write_big(directory):
            return lambda: b.ops("write-sync", fresh(directory), 1, 1 << 30)
        b.row("write 1 GiB, close, fsync", write_big(keys("w")), write_big(native("w")), 0.5)
        for d in (keys("w"), native("w"), keys("big"), native("big")):
            shutil.rmtree(d)

        # Small objects.
        n = 4000
        for top in (keys("small"), native("small")):
            b.ops("write", fresh(top), n, 65536)

        def first(directory, op, size=65536):
            def go():
                if directory.startswith(b.mnt):
                    b.umount()
                    b.mount()
                elif directory.startswith(b.ll):
                    subprocess.run(["umount", b.ll], check=True)
                    subprocess.run([os.path.join(b.dir, "passthrough_ll"), "-o",
                                    f"source={b.native},cache=always", b.ll], check=True)
                return b.ops(op, directory, n, size)
            return go

        b.row("read 64 KiB objects, first (vs passthrough_ll)", first(keys("small"), "read"),
              first(os.path.join(b.ll, "small"), "read"), 1.2)
        b.row("read 64 KiB objects, again (vs passthrough_ll)",
              lambda: b.ops("read", keys("small"), n, 65536),
              lambda: b.ops("read", os.path.join(b.ll, "small"), n, 65536), 1.3)
        b.row("stat, entry not cached (vs passthrough_ll)", first(keys("small"), "stat"),
              first(os.path.join(b.ll, "small"), "stat"), 1.0)
        b.umount()
        b.mount("ro")
        b.ops("read", keys("small"), n, 65536)
        b.row("read-only mount, read 64 KiB objects again",
              lambda: b.ops("read", keys("small"), n, 65536),
              lambda: b.ops("read", native("small"), n, 65536), 0.6)
        b.umount()
        b.mount()

        def create(directory):
            return lambda: b.ops("write", fresh(directory), 20000, 65536)
        b.row("create 20,000 objects of 64 KiB, then sync", create(keys("c")), create(native("c")),
              0.3)

        def publish(directory):
            return lambda: b.ops("publish", fresh(directory), 100, 4 << 20)
        b.row("tmp + rename of 4 MiB objects", publish(keys("p")), publish(native("p")), 0.5)
        b.row("8 readers on distinct 4 MiB objects",
              lambda: b.ops("threads", keys("p"), 8, 4 << 20),
              lambda: b.ops("threads", native("p"), 8, 4 << 20), 0.8)
        for d in (keys("c"), native("c"), keys("p"), native("p"), keys("small"), native("small")):
            shutil.rmtree(d)

        # Listing and start.
        if a.list:
            for top in (keys("l"), native("l")):
                b.ops("write", fresh(top), a.list, 0)

            def listing(directory, op):
                def go():
                    drop_names()
                    return b.ops(op, directory, a.list, 0)
                return go
            b.row(f"list {a.list} names", listing(keys("l"), "list"),
                  listing(native("l"), "list"), 0.8)
            b.row(f"list {a.list} names with attributes", listing(keys("l"), "list-stat"),
                  listing(native("l"), "list-stat"), 0.5)
            b.umount()
            began = time.monotonic()
            b.mount()
            took = time.monotonic() - began
            b.results["mount ready, s per million keys"] = {"ours_s": took * 1e6 / a.list, "must": 1}
            print(f"mount ready with {a.list} keys: {took:.3f} s")
    finally:
        subprocess.run(["umount", "-l", b.ll], stderr=subprocess.DEVNULL)
        subprocess.run(["umount", "-l", b.mnt], stderr=subprocess.DEVNULL)
        shutil.rmtree(b.dir, ignore_errors=True)
    print(json.dumps(b.results))


if __name__ == "__main__":
    sys.exit(main())
