#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Includes point down: include <- common <- common/rpc <- {backends, snapshot} <- master <- fs, with fs and tools
reaching master through master/client alone, and nobody including another room's private header."""
import os
import re
import sys

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")

# Room -> (rooms below, what of each may be included). None: any header.
PUBLIC = {
    "common": None,
    "common/rpc": ["rpc.h"],
    "backends": ["backends.h", "check.h", "live.h", "storage_key.h"],
    "snapshot": ["snapshot.h"],
    "master/client": ["client.h", "restore_check.h"],
    "fs/node": ["node.h", "state_dir.h"],
}
BELOW = {
    "include/mooncakefs": [],
    "common": [],
    "common/rpc": ["common"],
    "backends": ["common"],
    "snapshot": ["common"],
    "master/client": ["common", "common/rpc"],
    "master": ["common", "common/rpc", "snapshot", "master/client"],
    "fs/node": ["common", "common/rpc", "backends", "master/client"],
    "fs": ["common", "common/rpc", "backends", "snapshot", "master/client", "fs/node"],
    "tools": ["common", "common/rpc", "backends", "snapshot", "master/client"],
}


def room_of(path):
    return max((r for r in BELOW if path == r or path.startswith(r + "/")), key=len, default=None)


def main():
    problems = []
    for top in ("include", "common", "backends", "snapshot", "master", "fs", "tools"):
        for folder, _, files in os.walk(os.path.join(ROOT, top)):
            for name in files:
                if not name.endswith((".c", ".h")):
                    continue
                path = os.path.relpath(os.path.join(folder, name), ROOT)
                room = room_of(path)
                for n, line in enumerate(open(os.path.join(ROOT, path)), 1):
                    m = re.match(r'#include "([^"]+)"', line)
                    if not m:
                        continue
                    target = m.group(1)
                    where = room_of(target)
                    if not os.path.exists(os.path.join(ROOT, target)):
                        problems.append(f"{path}:{n}: {target} is not named from the root")
                    elif where == room:
                        continue
                    elif where not in BELOW[room]:
                        problems.append(f"{path}:{n}: {room} must not include {target}")
                    elif PUBLIC[where] and os.path.relpath(target, where) not in PUBLIC[where]:
                        problems.append(f"{path}:{n}: {target} is private to {where}")
    print("\n".join(problems))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
