# SPDX-License-Identifier: Apache-2.0
"""Random operations on files against a model of what the mount promises; a run that fails is shrunk to the few operations that
make it fail.  Operations are plain tuples, so a failing list can be pasted into a test.

The model: a key has a content; a reader keeps what it opened; what a process writes it sees at once and others from the close
on; a temporary name becomes the object at its rename; after the daemon's death everything that was closed (or fsynced) is
there, and nothing else."""
import ctypes
import errno
import mmap
import os
import random

NAMES = ["a", "b", "c", "d/a", "d/b"]
SIZES = [0, 1, 100, 4095, 4096, 4097, 70000, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 3 << 20]
SLOTS = 3
libc = ctypes.CDLL(None, use_errno=True)


def pattern(seed, n):
    return random.Random(seed).randbytes(n)


def generate(rng, count):
    """A list of operations; whether one applies is decided when it runs."""
    ops = []
    for i in range(count):
        name, other = rng.choice(NAMES), rng.choice(NAMES)
        size = rng.choice(SIZES)
        off = rng.choice([0, 0, 1, 4096, 5000, size, rng.randrange(2 << 20)])
        slot = rng.randrange(SLOTS)
        ops.append(rng.choice([
            ("put", name, size, i), ("put", name, size, i), ("tmp", name, size, i), ("tmp", name, size, i),
            ("pwrite", name, off, min(size, 100000), i), ("pwrite", name, off, min(size, 100000), i),
            ("append", name, min(size, 70000), i), ("truncate", name, size), ("mwrite", name, off, 50, i),
            ("zero", name, off, min(size, 70000)), ("copy", name, other, off, min(size, 200000)),
            ("read", name, off, size), ("read", name, off, size), ("mread", name), ("stat", name), ("list",),
            ("rename", name, other), ("backup", name, other), ("exchange", name, other), ("unlink", name),
            ("open", slot, name), ("open", slot, name), ("check", slot, off), ("check", slot, off), ("close", slot),
            ("wopen", slot, name), ("wwrite", slot, off, min(size, 50000), i), ("wwrite", slot, off, min(size, 50000), i),
            ("wtruncate", slot, size), ("wsync", slot), ("wclose", slot), ("wclose", slot),
            ("forget",), ("touch", name, i)] + [("kill",)] * (i % 8 == 0)))
    return ops


class Wrong(AssertionError):
    pass


def same(what, got, want):
    if got == want:
        return
    if isinstance(got, (bytes, bytearray)) and isinstance(want, (bytes, bytearray)):
        at = next((i for i, (x, y) in enumerate(zip(got, want)) if x != y), min(len(got), len(want)))
        raise Wrong(f"{what}: {len(got)} bytes instead of {len(want)}, different from byte {at} on")
    raise Wrong(f"{what}: {got!r} instead of {want!r}")


class Run:
    """One directory of a mount and the model of it."""

    def __init__(self, mount, directory):
        self.mount, self.root = mount, mount.key(directory)
        os.makedirs(os.path.join(self.root, "d"))
        self.files = {}
        self.readers = [None] * SLOTS  # (fd, content)
        self.writers = [None] * SLOTS  # [fd, name, content, published]

    def path(self, name):
        return os.path.join(self.root, name)

    def written(self, name):
        """Whether a writer has it open: then other changes are left out, whose order with its close is its own story."""
        return any(w and w[1] == name for w in self.writers)

    def seen(self, name):
        """The content under a name as this process sees it."""
        for w in self.writers:
            if w and w[1] == name and w[3] is not w[2]:
                return bytes(w[2])
        return self.files.get(name)

    def full_read(self, name):
        with open(self.path(name), "rb") as f:
            return f.read()

    def run(self, ops):
        for i, op in enumerate(ops):
            try:
                getattr(self, "do_" + op[0])(*op[1:])
            except (Wrong, OSError) as e:
                raise Wrong(f"operation {i} {op}: {e}") from e
        for slot in range(SLOTS):
            self.do_wclose(slot)
        for name in NAMES:
            self.do_stat(name)
            if name in self.files:
                same(f"{name} at the end", self.full_read(name), self.files[name])
        self.do_list()

    def close(self):
        for slot in range(SLOTS):
            for fd in [x[0] for x in (self.readers[slot], self.writers[slot]) if x]:
                try:
                    os.close(fd)
                except OSError:
                    pass

    # ---- whole changes ----

    def do_put(self, name, size, seed):
        if self.written(name):
            return
        data = pattern(seed, size)
        with open(self.path(name), "wb", buffering=0) as f:
            for at in range(0, size, 1 << 19):
                f.write(data[at:at + (1 << 19)])
        self.files[name] = data

    def do_tmp(self, name, size, seed):
        if self.written(name):
            return
        data = pattern(seed, size)
        with open(self.path(name) + ".tmp", "wb") as f:
            f.write(data)
        os.rename(self.path(name) + ".tmp", self.path(name))
        self.files[name] = data

    def change(self, name, fn):
        if self.written(name) or name not in self.files:
            return
        with open(self.path(name), "r+b", buffering=0) as f:
            data = bytearray(self.files[name])
            fn(f, data)
        self.files[name] = bytes(data)

    def do_pwrite(self, name, off, size, seed):
        def fn(f, data):
            piece = pattern(seed, size)
            same("pwrite", os.pwrite(f.fileno(), piece, off), size)
            write_into(data, off, piece)
        self.change(name, fn)

    def do_append(self, name, size, seed):
        if self.written(name):
            return
        piece = pattern(seed, size)
        with open(self.path(name), "ab") as f:
            f.write(piece)
        self.files[name] = self.files.get(name, b"") + piece

    def do_truncate(self, name, size):
        if self.written(name) or name not in self.files:
            return
        os.truncate(self.path(name), size)
        self.files[name] = self.files[name][:size].ljust(size, b"\0")

    def do_mwrite(self, name, off, size, seed):
        def fn(f, data):
            if off + size > len(data):
                return
            piece = pattern(seed, size)
            with mmap.mmap(f.fileno(), 0) as m:
                m[off:off + size] = piece
                m.flush()
            data[off:off + size] = piece
        self.change(name, fn)

    def do_zero(self, name, off, size):
        def fn(f, data):
            if not size:
                return
            if libc.fallocate(f.fileno(), 3, ctypes.c_long(off), ctypes.c_long(size)):
                raise OSError(ctypes.get_errno(), "fallocate")
            end = min(off + size, len(data))
            if end > off:
                data[off:end] = bytes(end - off)
        self.change(name, fn)

    def do_copy(self, name, other, off, size):
        if name == other or self.written(other) or other not in self.files:
            return

        def fn(f, data):
            with open(self.path(other), "rb") as source:
                done = 0
                while done < size:
                    n = os.copy_file_range(source.fileno(), f.fileno(), size - done, off + done, off + done)
                    if not n:
                        break
                    done += n
            want = self.files[other][off:off + size]
            same("copied", done, len(want))
            write_into(data, off, want)
        self.change(name, fn)

    def do_touch(self, name, seed):
        if name in self.files and not self.written(name):
            os.utime(self.path(name), ns=(seed, seed * 1000))
            same("mtime", os.stat(self.path(name)).st_mtime_ns, seed * 1000)

    # ---- names ----

    def do_rename(self, name, other):
        if self.written(name) or self.written(other) or name not in self.files:
            return
        os.rename(self.path(name), self.path(other))
        self.files[other] = self.files[name]
        if name != other:
            del self.files[name]

    def do_backup(self, name, other):
        """Over a temporary name, as editors and git do."""
        if self.written(name) or self.written(other) or name not in self.files:
            return
        os.rename(self.path(name), self.path(name) + ".tmp")
        same("under a temporary name", self.full_read(name + ".tmp"), self.files[name])
        os.rename(self.path(name) + ".tmp", self.path(other))
        self.files[other] = self.files.pop(name) if name != other else self.files[name]

    def do_exchange(self, name, other):
        if self.written(name) or self.written(other) or name not in self.files or other not in self.files:
            return
        if libc.renameat2(-100, self.path(name).encode(), -100, self.path(other).encode(), 2):
            raise OSError(ctypes.get_errno(), "exchange")
        self.files[name], self.files[other] = self.files[other], self.files[name]

    def do_unlink(self, name):
        if self.written(name):
            return
        try:
            os.unlink(self.path(name))
            same("unlink", name in self.files, True)
        except FileNotFoundError:
            same("unlink", name in self.files, False)
        self.files.pop(name, None)

    # ---- looking ----

    def do_read(self, name, off, size):
        want = self.seen(name)
        try:
            with open(self.path(name), "rb", buffering=0) as f:
                got = b""
                f.seek(off)
                while len(got) < size and (piece := f.read(size - len(got))):
                    got += piece
        except FileNotFoundError:
            got = None
        same("read", got, None if want is None else want[off:off + size])

    def do_mread(self, name):
        want = self.seen(name)
        if want:
            with open(self.path(name), "rb") as f, mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ) as m:
                same("mapped", m[:], want)

    def do_stat(self, name):
        want = self.seen(name)
        try:
            got = os.stat(self.path(name)).st_size
        except FileNotFoundError:
            got = None
        same("size", got, None if want is None else len(want))

    def do_list(self):
        for directory, prefix in ((self.root, ""), (self.path("d"), "d/")):
            got = {n for n in os.listdir(directory)} - {"d"}
            want = {n[len(prefix):] for n in self.files if n.startswith(prefix) and "/" not in n[len(prefix):]}
            same("listing of " + prefix, got, want)

    def do_forget(self):
        self.mount.forget_names()

    # ---- descriptors that stay open ----

    def do_open(self, slot, name):
        if self.readers[slot] or name not in self.files or self.written(name):
            return
        self.readers[slot] = (os.open(self.path(name), os.O_RDONLY), self.files[name])

    def do_check(self, slot, off):
        if self.readers[slot]:
            fd, want = self.readers[slot]
            same("an open reader's bytes", os.pread(fd, 5000, off), want[off:off + 5000])
            same("an open reader's size", os.fstat(fd).st_size, len(want))

    def do_close(self, slot):
        if self.readers[slot]:
            self.do_check(slot, 0)
            os.close(self.readers[slot][0])
            self.readers[slot] = None

    def do_wopen(self, slot, name):
        if self.writers[slot] or self.written(name) or name not in self.files:
            return
        content = bytearray(self.files[name])
        self.writers[slot] = [os.open(self.path(name), os.O_RDWR), name, content, content]

    def wchanged(self, w):
        if w[3] is w[2]:
            w[3] = bytes(w[2])

    def do_wwrite(self, slot, off, size, seed):
        w = self.writers[slot]
        if w and size:
            self.wchanged(w)
            piece = pattern(seed, size)
            same("write", os.pwrite(w[0], piece, off), size)
            write_into(w[2], off, piece)
            same("own bytes", os.pread(w[0], size, off), piece)

    def do_wtruncate(self, slot, size):
        w = self.writers[slot]
        if w:
            self.wchanged(w)
            os.ftruncate(w[0], size)
            w[2][:] = w[2][:size].ljust(size, b"\0")
            same("own size", os.fstat(w[0]).st_size, size)

    def do_wsync(self, slot):
        w = self.writers[slot]
        if w:
            os.fsync(w[0])
            w[3] = w[2] if w[3] is w[2] else bytes(w[2])
            self.files[w[1]] = bytes(w[2])

    def do_wclose(self, slot):
        w = self.writers[slot]
        if w:
            os.close(w[0])
            self.files[w[1]] = bytes(w[2])
            self.writers[slot] = None

    def do_kill(self):
        self.mount.kill()
        for slot in range(SLOTS):
            for x in (self.readers[slot], self.writers[slot]):
                if x:
                    try:
                        os.close(x[0])
                    except OSError as e:
                        if e.errno not in (errno.ENOTCONN, errno.ECONNABORTED):
                            raise
            self.readers[slot] = self.writers[slot] = None
        self.mount.start()


def write_into(data, off, piece):
    if piece:
        if len(data) < off:
            data.extend(bytes(off - len(data)))
        data[off:off + len(piece)] = piece


def attempt(mount, ops, serial=[0]):
    """None, or what went wrong."""
    serial[0] += 1
    try:
        os.stat(mount.keys)
    except OSError:
        mount.start()  # it died on the way
    r = Run(mount, f"run{os.getpid()}-{serial[0]}")
    try:
        r.run(ops)
        return None
    except Wrong as e:
        return str(e)
    finally:
        r.close()


TRIES = int(os.environ.get("MCFS_FSX_TRIES", "120"))  # runs that shrinking may take


def shrink(mount, ops, tries):
    """Leaves out what is not needed to fail."""
    size = max(1, len(ops) // 2)
    while size and tries:
        at = 0
        while at < len(ops) and tries:
            less = ops[:at] + ops[at + size:]
            tries -= 1
            if attempt(mount, less):
                ops = less
            else:
                at += size
        size //= 2
    return ops


def check(mount, seed, count):
    ops = generate(random.Random(seed), count)
    wrong = attempt(mount, ops)
    if wrong:
        died = mount.log_text()[-2000:] if not os.path.isdir(mount.keys) else ""
        few = shrink(mount, ops, TRIES)
        raise AssertionError(f"seed {seed}: {wrong}\nshrunk to {few}\nwhich gives {attempt(mount, few)}\n{died}"
                             if TRIES else f"seed {seed}: {wrong}\n{died}")
