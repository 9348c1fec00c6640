# SPDX-License-Identifier: Apache-2.0
"""The daemon dies by SIGKILL in the middle of a tool's work: the next mount has every file that the tool had closed, whole,
and of the one that it was writing nothing or all of it."""
import filecmp
import os
import subprocess

import pytest
from harness import run, wait_until

SOURCE = "/usr/include/linux"


@pytest.fixture
def source(world):
    """Regular files alone: links are refused."""
    dst = world.path("source")
    run("rsync", "-a", "--no-links", "--no-devices", SOURCE + "/", dst + "/")
    with open(os.path.join(dst, "large"), "wb") as f:
        f.write(os.urandom(20 << 20))
    return dst


def files_below(root):
    return {os.path.relpath(os.path.join(d, f), root) for d, _, files in os.walk(root) for f in files}


def tar(world, source, target):
    run("tar", "-C", source, "-cf", world.path("t.tar"), ".")
    return ["tar", "-C", target, "-xf", world.path("t.tar")]


def unzip(world, source, target):
    run("zip", "-qr", world.path("t.zip"), ".", cwd=source)
    return ["unzip", "-q", world.path("t.zip"), "-d", target]


def cpio(world, source, target):
    names = "\n".join(sorted(files_below(source)))
    subprocess.run(["cpio", "--quiet", "-o", "-O", world.path("t.cpio")], input=names.encode(), cwd=source, check=True)
    return ["cpio", "--quiet", "-id", "-D", target, "-I", world.path("t.cpio")]


TOOLS = {
    "cp -a": lambda world, source, target: ["cp", "-a", source + "/.", target],
    "rsync -a": lambda world, source, target: ["rsync", "-a", source + "/", target + "/"],
    "rsync --inplace": lambda world, source, target: ["rsync", "-a", "--inplace", source + "/", target + "/"],
    "tar": tar,
    "unzip": unzip,
    "cpio": cpio,
}


def differing(source, target, names):
    return [f for f in names if not filecmp.cmp(os.path.join(source, f), os.path.join(target, f), shallow=False)]


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("after", [20, 200])
def test_copying(world, mount, source, tool, after):
    target = mount.key("t")
    os.mkdir(target)
    p = subprocess.Popen(TOOLS[tool](world, source, target), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_until(lambda: p.poll() is not None or mount.stats()["store_objects"] >= after, what="some files")
    mount.kill()
    p.wait(60)
    mount.start()
    there = {f for f in files_below(target) if not os.path.basename(f).startswith(".")}  # rsync's temporary names
    assert len(there) >= after
    assert differing(source, target, there) == []
    if tool.startswith(("cp", "rsync")):  # begun again, it ends
        run(*TOOLS[tool](world, source, target))
        assert differing(source, target, files_below(source)) == []


def test_git_clone(world, mount):
    """What git had written is whole; the clone goes on from where it was."""
    origin = world.path("origin")
    run("git", "init", "-q", origin)
    for i in range(300):
        with open(os.path.join(origin, f"f{i}"), "wb") as f:
            f.write(os.urandom(3000))
    git = ["git", "-c", "user.name=x", "-c", "user.email=x@x"]
    run("git", "-C", origin, "add", ".")
    run(*git, "-C", origin, "commit", "-qm", "all")
    run("git", "clone", "-q", "--no-checkout", origin, mount.key("clone"))
    before = mount.stats()["store_objects"]
    p = subprocess.Popen(["git", "-C", mount.key("clone"), "reset", "-q", "--hard"], stderr=subprocess.DEVNULL)
    wait_until(lambda: p.poll() is not None or mount.stats()["store_objects"] >= before + 100, what="some files")
    mount.kill()
    p.wait(60)
    mount.start()
    for name in os.listdir(mount.key("clone")):
        if name != ".git":
            assert filecmp.cmp(os.path.join(origin, name), mount.key("clone", name), shallow=False), name
    for lock in ("index.lock", "HEAD.lock"):
        if os.path.exists(mount.key("clone", ".git", lock)):
            os.remove(mount.key("clone", ".git", lock))
    run("git", "-C", mount.key("clone"), "fsck", "--strict")
    run("git", "-C", mount.key("clone"), "reset", "-q", "--hard")
    assert run("git", "-C", mount.key("clone"), "status", "--porcelain").stdout == b""
