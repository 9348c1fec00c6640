#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures a mount beside ext4 and libfuse's passthrough_ll, in turn, and prints medians; one JSON object last.

    mooncakefsctl bench mount [--dir DIR] [--rounds N] [--names N] [GROUP ...]

DIR (default /var/tmp) lies on the file system to compare with. Needs root; the rows beside passthrough_ll need gcc and
libfuse3-dev."""
import argparse
import gzip
import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
EXAMPLE = "/usr/share/doc/libfuse3-dev/examples/passthrough_ll.c"
SMALL = 4000  # objects of 64 KiB


def drop_names():
    """Forgets names and attributes (and so what a mount has cached), not pages."""
    with open("/proc/sys/vm/drop_caches", "w") as f:
        f.write("2")


def fresh(directory):
    shutil.rmtree(directory, ignore_errors=True)
    os.makedirs(directory)
    return directory


def warm(directory):
    """Brings the large files of a folder into the page cache."""
    for f in os.listdir(directory):
        path = os.path.join(directory, f)
        if os.path.isfile(path) and os.path.getsize(path) >= 1 << 30:
            with open(path, "rb") as h:
                while h.read(1 << 20):
                    pass


class Bench:
    def __init__(self, base, rounds, names):
        self.rounds, self.names = rounds, names
        built = os.path.join(HERE, "../fs/mooncakefs")
        self.program = built if os.path.exists(built) else "mooncakefs"
        self.dir = tempfile.mkdtemp(prefix="mcfs-bench-", dir=base)
        self.native = os.path.join(self.dir, "native")
        self.mnt = os.path.join(self.dir, "mnt")
        self.ll = os.path.join(self.dir, "ll")
        self.state = os.path.join(self.dir, "state")
        for d in (self.native, self.mnt, self.ll):
            os.makedirs(d)
        self.results = {}

    def ops(self, op, directory, count, size):
        return float(subprocess.run([os.path.join(HERE, "fileops"), op, directory, str(count), str(size)],
                                    check=True, stdout=subprocess.PIPE).stdout)

    def mount(self, *options):
        subprocess.run([self.program, "local:" + self.state, self.mnt, "-o",
                        ",".join(("attr_timeout=1h",) + options)], check=True)

    def umount(self, path=None, state=None):
        pid = int(open(os.path.join(state or self.state, "lock")).read())
        subprocess.run(["umount", path or self.mnt], check=True)
        while os.path.exists(f"/proc/{pid}"):
            time.sleep(0.01)

    def mount_ll(self):
        program = os.path.join(self.dir, "passthrough_ll")
        if not os.path.exists(program):
            self.compile_ll(program)
        subprocess.run([program, "-o", f"source={self.native},cache=always", self.ll], check=True)

    def umount_ll(self):
        subprocess.run(["umount", self.ll], check=True)

    def compile_ll(self, program):
        source = EXAMPLE if os.path.exists(EXAMPLE) else EXAMPLE + ".gz"
        code = (gzip.open if source.endswith(".gz") else open)(source, "rt").read()
        open(program + ".c", "w").write(code)
        for f in os.listdir(os.path.dirname(EXAMPLE)):
            if f.endswith(".h"):
                shutil.copy(os.path.join(os.path.dirname(EXAMPLE), f), self.dir)
        flags = subprocess.run(["pkg-config", "--cflags", "--libs", "fuse3"], check=True,
                               stdout=subprocess.PIPE, text=True).stdout.split()
        subprocess.run(["gcc", "-O2", "-D_GNU_SOURCE", program + ".c", "-o", program] + flags, check=True,
                       stderr=subprocess.DEVNULL)

    def pid(self):
        return int(open(os.path.join(self.state, "lock")).read())

    def cpu(self):
        """Seconds of CPU that the daemon has used."""
        fields = open(f"/proc/{self.pid()}/stat").read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def rss(self):
        for line in open(f"/proc/{self.pid()}/status"):
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024

    def figure(self, name, value, unit):
        self.results[name] = {"value": value, "unit": unit}
        print(f"{name:58} {value:.3f} {unit}", flush=True)

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
              f"ratio {ratio:6.3f}" + (f"  must {must}" if must else ""), flush=True)

    # What is measured, by group; each leaves the folders as it found them.

    def keys(self, *n):
        return os.path.join(self.mnt, "keys", *n)

    def its(self, *n):
        return os.path.join(self.native, *n)

    def small(self, op, top):
        """One pass over the small objects, with nothing of ours or theirs cached."""
        def go():
            if top == self.mnt:
                self.umount()
                self.mount()
            else:
                self.umount_ll()
                self.mount_ll()
            return self.ops(op, self.keys("small") if top == self.mnt else self.ll + "/small", SMALL, 65536)
        return go

    def large(self):
        for top in (self.keys("big"), self.its("big")):
            self.ops("write", fresh(top), 1, 1 << 30)

        def first_read(path, *options):
            def go():
                ours = path == self.keys("big")
                if ours:
                    self.umount()
                    self.mount(*options)
                warm(os.path.join(self.state, "backend") if ours else path)
                return self.ops("read", path, 1, 1 << 30)
            return go

        self.row("read 1 GiB, first read", first_read(self.keys("big")), first_read(self.its("big")), 0.85)
        self.row("read 1 GiB, again", lambda: self.ops("read", self.keys("big"), 1, 1 << 30),
                 lambda: self.ops("read", self.its("big"), 1, 1 << 30), 0.9)
        self.row("the same without passthrough, first read", first_read(self.keys("big"), "passthrough=off"),
                 first_read(self.its("big")), 0.18)
        self.umount()
        self.mount()
        for d in (self.keys("big"), self.its("big")):
            shutil.rmtree(d)

    def write(self):
        def write_big(directory):
            return lambda: self.ops("write-sync", fresh(directory), 1, 1 << 30)
        self.row("write 1 GiB, close, fsync", write_big(self.keys("w")), write_big(self.its("w")), 0.5)
        for d in (self.keys("w"), self.its("w")):
            shutil.rmtree(d)

    def objects(self):
        self.mount_ll()
        for top in (self.keys("small"), self.its("small")):
            self.ops("write", fresh(top), SMALL, 65536)
        again = lambda top: lambda: self.ops("read", os.path.join(top, "small"), SMALL, 65536)
        self.row("read 64 KiB objects, first (vs passthrough_ll)", self.small("read", self.mnt),
                 self.small("read", self.ll), 1.2)
        self.row("read 64 KiB objects, again (vs passthrough_ll)", again(self.keys()), again(self.ll), 1.3)
        self.row("stat, entry not cached (vs passthrough_ll)", self.small("stat", self.mnt),
                 self.small("stat", self.ll), 1.0)
        self.umount()
        self.mount("ro")
        again(self.keys())()
        self.row("read-only mount, read 64 KiB objects again", again(self.keys()), again(self.native), 0.6)
        self.umount()
        self.mount()
        self.umount_ll()
        for d in (self.keys("small"), self.its("small")):
            shutil.rmtree(d)

    def create(self):
        run = lambda directory: lambda: self.ops("write", fresh(directory), 20000, 65536)
        self.row("create 20,000 objects of 64 KiB, then sync", run(self.keys("c")), run(self.its("c")), 0.3)
        for d in (self.keys("c"), self.its("c")):
            shutil.rmtree(d)

    def publish(self):
        """Each round in a folder of its own: ext4 without a journal takes long to make files after many were removed."""
        count = itertools.count()

        def run(top):
            return lambda: self.ops("publish", fresh(top("p", str(next(count)))), 100, 4 << 20)
        self.row("tmp + rename of 4 MiB objects", run(self.keys), run(self.its), 0.5)
        for d in (self.keys("p"), self.its("p")):
            shutil.rmtree(d)

    def readers(self):
        for top in (self.keys("r"), self.its("r")):
            self.ops("write", fresh(top), 8, 4 << 20)
        run = lambda directory: lambda: self.ops("threads", directory, 8, 4 << 20)
        self.row("8 readers on distinct 4 MiB objects", run(self.keys("r")), run(self.its("r")), 0.8)
        for d in (self.keys("r"), self.its("r")):
            shutil.rmtree(d)

    def listing(self):
        n = self.names
        for top in (self.keys("l"), self.its("l")):
            self.ops("write", fresh(top), n, 0)

        def run(directory, op):
            def go():
                drop_names()
                return self.ops(op, directory, n, 0)
            return go
        self.row(f"list {n} names", run(self.keys("l"), "list"), run(self.its("l"), "list"), 0.8)
        self.row(f"list {n} names with attributes", run(self.keys("l"), "list-stat"),
                 run(self.its("l"), "list-stat"), 0.5)
        known = self.rss()
        drop_names()
        time.sleep(2)
        self.figure("daemon memory with these names known", known / n, "bytes per name")
        self.figure("the same when the kernel has dropped them", self.rss() / n, "bytes per name")
        took = []
        for _ in range(self.rounds):
            self.umount()
            began = time.monotonic()
            self.mount()
            took.append(time.monotonic() - began)
        seconds = statistics.median(took)
        self.results["mount ready, s per million keys"] = {"ours_s": seconds * 1e6 / n, "must": 1}
        print(f"mount ready with {n} keys: {seconds:.3f} s, {seconds * 1e6 / n:.3f} s per million  must 1")

    def cost(self):
        """CPU of the daemon."""
        self.ops("write", fresh(self.keys("big")), 1, 1 << 30)
        self.ops("write", fresh(self.keys("small")), SMALL, 65536)
        for options, name in (((), "passing through"), (("passthrough=off",), "through the daemon")):
            self.umount()
            self.mount(*options)
            warm(os.path.join(self.state, "backend"))
            before = self.cpu()
            self.ops("read", self.keys("big"), 1, 1 << 30)
            self.figure(f"daemon CPU for reading 1 GiB, {name}", self.cpu() - before, "s")
        self.umount()
        self.mount()
        for name in ("first", "again"):
            before = self.cpu()
            self.ops("read", self.keys("small"), SMALL, 65536)
            self.figure(f"daemon CPU for 10,000 opens of 64 KiB objects, {name}",
                        (self.cpu() - before) * 10000 / SMALL, "s")
        for d in (self.keys("big"), self.keys("small")):
            shutil.rmtree(d)

    def remote(self):
        """Another node of the same master reads what this one stores."""
        other, state = os.path.join(self.dir, "mnt2"), os.path.join(self.dir, "state2")
        os.makedirs(other)
        self.ops("write", fresh(self.keys("far")), 64, 4 << 20)
        mount = [self.program, "unix:" + os.path.join(self.state, "master.sock"),
                 other, "-o", "storage_path=" + state]

        def go():
            subprocess.run(mount, check=True)
            try:
                return self.ops("read", os.path.join(other, "keys/far"), 64, 4 << 20)
            finally:
                self.umount(other, state)

        def through_ll():
            """What FUSE reaches here without passthrough when the bytes are at hand, in the page cache."""
            self.mount_ll()
            try:
                return self.ops("read", os.path.join(self.ll, "far"), 64, 4 << 20)
            finally:
                self.umount_ll()
        self.ops("write", fresh(self.its("far")), 64, 4 << 20)
        tcp = lambda: self.ops("tcp", "-", 64, 4 << 20)
        self.row("remote read of 4 MiB objects (vs a TCP stream)", go, tcp, 0.7)
        self.row("passthrough_ll, local files (vs a TCP stream)", through_ll, tcp, None)
        shutil.rmtree(self.keys("far"))
        shutil.rmtree(self.its("far"))


GROUPS = ("large", "write", "objects", "create", "publish", "readers", "remote", "cost", "listing")


def main():
    p = argparse.ArgumentParser(prog="mooncakefsctl bench mount")
    p.add_argument("--dir", default="/var/tmp", help="folder on the file system to compare with")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--names", type=int, default=1000000, help="keys in the folder that is listed")
    p.add_argument("groups", nargs="*", metavar="GROUP", help="any of " + ", ".join(GROUPS) + "; default all")
    a = p.parse_args()
    for g in a.groups:
        if g not in GROUPS:
            p.error(f"no group {g!r}: there are " + ", ".join(GROUPS))
    b = Bench(a.dir, a.rounds, a.names)
    try:
        b.mount()
        for g in a.groups or GROUPS:
            getattr(b, g)()
    finally:
        for m in ("ll", "mnt2", "mnt"):
            subprocess.run(["umount", "-l", os.path.join(b.dir, m)], stderr=subprocess.DEVNULL)
        shutil.rmtree(b.dir, ignore_errors=True)
    print(json.dumps(b.results))


if __name__ == "__main__":
    sys.exit(main())
