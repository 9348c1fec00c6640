#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""docs/rpc.md has a row for every method of the table, with its params and result; `--write` writes the rows."""
import os
import re
import sys

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
TABLES = {"MCFS_MASTER_METHODS": "master", "MCFS_NODE_METHODS": "node",
          "MCFS_SESSION_NOTICES": "notices"}


def rows():
    text = open(os.path.join(ROOT, "include/mooncakefs/rpc_methods.h")).read()
    out = {}
    for macro, name in TABLES.items():
        body = re.search(r"#define " + macro + r"\(X\)(.*?)(?=\n\n|\n#endif|\n/\*)", text, re.S)
        body = body.group(1).replace("\\\n", "\n")
        out[name] = []
        for call in re.findall(r"X\(\s*\w+\s*,((?:\s*\"(?:[^\"\\]|\\.)*\"|\s*,)+)\)", body):
            fields, current = [], ""
            for token in re.findall(r"\"((?:[^\"\\]|\\.)*)\"|(,)", call):
                if token[1]:
                    fields.append(current)
                    current = ""
                else:
                    current += token[0].replace('\\"', '"')
            fields.append(current)
            out[name].append(fields)
    return out


def section(methods):
    lines = ["| method | params | result | what it does |", "|---|---|---|---|"]
    for name, params, result, text in methods:
        lines.append(f"| `{name}` | `{params}` | " + (f"`{result}`" if result else "") +
                     f" | {text} |")
    return "\n".join(lines)


def main():
    path = os.path.join(ROOT, "docs/rpc.md")
    text = open(path).read()
    wanted = text
    for name, methods in rows().items():
        assert methods, name
        wanted = re.sub(rf"(<!-- {name} -->\n).*?(\n<!-- end -->)",
                        lambda m: m.group(1) + section(methods) + m.group(2), wanted, flags=re.S)
    if "--write" in sys.argv:
        open(path, "w").write(wanted)
        return 0
    if wanted != text:
        print("docs/rpc.md is not what the table says; run tests/check_rpc_docs.py --write")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
