# SPDX-License-Identifier: Apache-2.0
"""What a power cut, or the death of a process, leaves of what tests/preload/record_calls.c has written down.

What is assumed of the file system, on the cautious side of what ext4 and XFS do:
- Changes of names (create, rename, unlink, mkdir) reach the disk in their order, as one journal takes them; an fsync of a directory
  takes the last change in it along, and all before.  An fsync of a file says nothing about its name.
- fsync and fdatasync of a file make durable what was written to it before, and its size.  Of what was written since, any part may
  be there: each write wholly, not at all, or its first sectors only; what is missing reads as zeros or as what was there before.
- syncfs makes everything durable.
"""
import os
import random
import struct
import subprocess

from harness import BUILD

RECORD = os.path.join(BUILD, "tests/preload/librecord_calls.so")
SECTOR = 512
HEAD = struct.Struct("<4I3Q")


def preload_for(program):
    """The record's library, behind the sanitizer's where the program has one."""
    needed = subprocess.run(["ldd", program], stdout=subprocess.PIPE, text=True).stdout
    return " ".join([line.split()[2] for line in needed.splitlines() if "libasan" in line or "libtsan" in line] + [RECORD])


class Call:
    def __init__(self, kind, path, other, data, ino, a, b):
        self.kind, self.path, self.other, self.data, self.ino, self.a, self.b = kind, path, other, data, ino, a, b

    def __repr__(self):
        return f"{self.kind} {self.path} {self.other} ino {self.ino} {self.a} {self.b} {len(self.data)} bytes"


def read_log(path):
    calls = []
    with open(path, "rb") as f:
        log = f.read()
    at = 0
    while at < len(log):
        kind, path_len, other_len, data_len, ino, a, b = HEAD.unpack_from(log, at)
        at += HEAD.size
        path, other = log[at:at + path_len].decode(), log[at + path_len:at + path_len + other_len].decode()
        at += path_len + other_len
        calls.append(Call(chr(kind), path, other, log[at:at + data_len], ino, a, b))
        at += data_len
    return calls


def apply_data(content, call, upto=None):
    if call.kind == "W":
        data = call.data if upto is None else call.data[:upto]
        if not data:
            return
        if len(content) < call.a:
            content.extend(bytes(call.a - len(content)))
        content[call.a:call.a + len(data)] = data
    elif call.kind == "T":
        if len(content) < call.a:
            content.extend(bytes(call.a - len(content)))
        else:
            del content[call.a:]
    elif call.kind == "P":
        end = min(call.a + call.b, len(content))
        content[call.a:end] = bytes(max(0, end - call.a))


class Disk:
    """Goes along the calls, and makes what a crash behind any of them leaves."""

    def __init__(self, calls):
        self.calls = calls
        self.at = 0
        self.names = []        # changes of names so far, as calls
        self.names_durable = 0  # so many of them are on the disk for sure
        self.durable = {}      # inode: content that is on the disk for sure
        self.since = {}        # inode: what was done to it since, in order

    def advance(self):
        """One call further; returns it."""
        call = self.calls[self.at]
        self.at += 1
        if call.kind in "CRUDM":
            self.names.append(call)
            if call.kind == "C":
                self.durable[call.ino], self.since[call.ino] = bytearray(), []
        elif call.kind in "WTP":
            self.since.setdefault(call.ino, []).append(call)
        elif call.kind == "S":
            self.flush(call.ino)
        elif call.kind == "d":
            for i in range(len(self.names), self.names_durable, -1):
                if call.path in (os.path.dirname(self.names[i - 1].path), os.path.dirname(self.names[i - 1].other or "/")):
                    self.names_durable = i
                    break
        elif call.kind == "Y":
            self.names_durable = len(self.names)
            for ino in list(self.since):
                self.flush(ino)
        return call

    def flush(self, ino):
        content = self.durable.setdefault(ino, bytearray())
        for call in self.since.get(ino, []):
            apply_data(content, call)
        self.since[ino] = []

    def tree(self, count):
        """Names after so many changes: path -> inode, and the directories."""
        files, dirs = {}, set()
        for c in self.names[:count]:
            if c.kind == "C":
                files[c.path] = c.ino
            elif c.kind == "M":
                dirs.add(c.path)
            elif c.kind == "D":
                dirs.discard(c.path)
            elif c.kind == "U":
                files.pop(c.path, None)
            elif c.kind == "R" and c.path in dirs:
                moved = [(p, c.other + p[len(c.path):]) for p in [*files, *dirs] if p == c.path or p.startswith(c.path + "/")]
                for old, new in moved:
                    if old in files:
                        files[new] = files.pop(old)
                    else:
                        dirs.discard(old)
                        dirs.add(new)
            elif c.kind == "R" and c.a & 2:
                files[c.path], files[c.other] = files[c.other], files[c.path]
            elif c.kind == "R":
                files[c.other] = files.pop(c.path)
        return files, dirs

    def content(self, ino, choose):
        content = bytearray(self.durable.get(ino, b""))
        for call in self.since.get(ino, []):
            upto = choose(call)
            if upto is not False:
                apply_data(content, call, upto)
        return content

    def leave(self, target, how, seed=0):
        """Makes `target` what is left.  how: "death" (all calls have happened), "least" (only what is sure), "random"."""
        r = random.Random(seed)
        if how == "death":
            count, choose = len(self.names), lambda call: None
        elif how == "least":
            count, choose = self.names_durable, lambda call: False
        else:
            count = r.randint(self.names_durable, len(self.names))
            share = r.random()

            def choose(call):
                if r.random() >= share:
                    return False
                if call.kind == "W" and r.random() < 0.2:
                    return r.randrange(0, len(call.data) + 1) // SECTOR * SECTOR
                return None

        files, dirs = self.tree(count)
        os.makedirs(target)
        for d in sorted(dirs):
            os.makedirs(os.path.join(target, d), exist_ok=True)
        for path, ino in files.items():
            full = os.path.join(target, path)
            os.makedirs(os.path.dirname(full), exist_ok=True)
            with open(full, "wb") as f:
                f.write(self.content(ino, choose))


class Promises:
    """What the store has said, from the marks: what must be found after a crash here, and what may be."""

    def __init__(self):
        self.known = {}    # (key, version): (size, crc), once a put of it has begun
        self.sure = set()  # versions that survive the death of the process
        self.synced = set()   # and a power cut
        self.ending = set()   # removals that have begun
        self.ended = set()    # and ended
        self.gone = set()     # and are synced: never to come back
        self.pairs = []       # renames that have begun: exactly one of the two, once the first was sure
        self.before_sync = None
        self.compacted = 0    # bytes moved by compaction

    def mark(self, text):
        what, *rest = text.split()
        if what == "?put":
            self.known[(rest[0], int(rest[1]))] = (int(rest[2]), int(rest[3]))
        elif what == "+put":
            self.sure.add((rest[0], int(rest[1])))
        elif what == "?remove":
            self.ending.add((rest[0], int(rest[1])))
        elif what == "+remove":
            self.ended.add((rest[0], int(rest[1])))
        elif what == "?rekey":
            old, new = (rest[0], int(rest[1])), (rest[2], int(rest[3]))
            self.known[new] = self.known[old]
            self.pairs.append((old, new))
            self.ending.add(old)
        elif what == "+rekey":
            self.ended.add((rest[0], int(rest[1])))
            self.sure.add((rest[2], int(rest[3])))
        elif what == "compacted":
            self.compacted = int(rest[0])
        elif what in ("?sync", "closed"):
            self.before_sync = (set(self.sure), set(self.ended))
        if what in ("+sync", "closed"):
            self.synced |= self.before_sync[0]
            self.gone |= self.before_sync[1]

    def complaint(self, found, how):
        """Why what was found is wrong, or None."""
        for o, what in found.items():
            if o not in self.known:
                return f"{o} was never put"
            if what != self.known[o]:
                return f"{o} is {what}, not {self.known[o]}"
            if o in self.gone or how == "death" and o in self.ended:
                return f"{o} has come back"
        held = self.sure if how == "death" else self.synced
        for o in held - self.ending:
            if o not in found:
                return f"{o} is lost"
        for old, new in self.pairs:
            both = old in found and new in found
            neither = old not in found and new not in found
            if both or neither and old in held and new not in self.ending:
                return f"{old} and its new name {new}: {'both are' if both else 'neither is'} there"
        return None
