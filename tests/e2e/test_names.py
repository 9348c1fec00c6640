# SPDX-License-Identifier: Apache-2.0
"""Keys and paths name each other, whatever the bytes."""
import errno
import os
import random

import pytest
from harness import Mount, Rpc


def put_key(mount, key, data=b"x"):
    """Puts a key past the mount, over the node's own server."""
    with Rpc(mount.config()["node"]) as rpc:
        stage = rpc.call("StageOpen")[0]
        rpc.call("StageWrite", stage, 0, data)
        rpc.call("StageCommit", stage, b"default", key, len(data))


@pytest.mark.parametrize("key,path", [
    (b"plain", b"plain"),
    (b"a/b/c", b"a/b/c"),
    (b"50%", b"50%25"),
    (b"nul\0byte", b"nul%00byte"),
    (b".", b"%2E"),
    (b"..", b"%2E%2E"),
    (b"a/./b", b"a/%2E/b"),
    (b"/lead", b"%-/lead"),
    (b"trail/", b"trail/%-"),
    (b"a//b", b"a/%-/b"),
    (b"tab\tnew\nline", b"tab\tnew\nline"),
    (b"\xff\xfe", b"\xff\xfe"),
    ("键 with spaces".encode(), "键 with spaces".encode()),
])
def test_key_has_its_path(mount, key, path):
    put_key(mount, key, b"value")
    full = os.path.join(mount.keys.encode(), path)
    assert open(full, "rb").read() == b"value"
    assert os.getxattr(full, "user.mooncake.key") == key
    top = path.split(b"/")[0]
    assert os.listdir(mount.keys.encode()) == [top]
    os.unlink(full)
    with pytest.raises(FileNotFoundError):
        open(full, "rb")


def test_path_makes_its_key(mount):
    for path, key in ((b"%25", b"%"), (b"x%2525", b"x%25"), (b"%2e%2e", b"..")):
        with open(os.path.join(mount.keys.encode(), path), "wb") as f:
            f.write(path)
        full = os.path.join(mount.keys.encode(), path)
        assert os.getxattr(full, "user.mooncake.key") == key


@pytest.mark.parametrize("name", [b"%", b"%2", b"%zz", b"%41", b"a%2E", b"%+"])
def test_malformed_escapes(mount, name):
    full = os.path.join(mount.keys.encode(), name)
    with pytest.raises(FileNotFoundError):
        os.stat(full)
    with pytest.raises(OSError) as e:
        open(full, "wb")
    assert e.value.errno == errno.EINVAL


def test_object_beside_directory_of_its_name(mount):
    put_key(mount, b"a", b"object")
    put_key(mount, b"a/b", b"below")
    assert os.listdir(mount.keys) == ["a"]
    assert sorted(os.listdir(mount.key("a"))) == ["%=", "b"]
    assert open(mount.key("a", "%="), "rb").read() == b"object"
    assert os.getxattr(mount.key("a", "%="), "user.mooncake.key") == b"a"
    os.unlink(mount.key("a", "b"))
    os.rmdir(mount.key("a"))
    assert open(mount.key("a"), "rb").read() == b"object"


def test_long_names(mount):
    """Components over 255 bytes work as they are, and over the kernel's limit in pieces."""
    name = "n" * 900
    with open(mount.key(name), "w") as f:
        f.write("long")
    assert os.listdir(mount.keys) == [name]
    assert open(mount.key(name)).read() == "long"
    os.unlink(mount.key(name))

    key = bytes(random.Random(1).choice(b"abcdef") for _ in range(2500))
    put_key(mount, key, b"longer")
    found = []
    for root, dirs, files in os.walk(mount.keys.encode()):
        found += [os.path.join(root, f) for f in files]
    assert len(found) == 1
    assert os.path.relpath(found[0], mount.keys.encode()).count(b"%+") == 2
    assert open(found[0], "rb").read() == b"longer"
    assert os.getxattr(found[0], "user.mooncake.key") == key


def test_over_long_key_is_refused(mount):
    with pytest.raises(OSError) as e:
        os.makedirs(mount.key(*["d" * 1000] * 4))
        open(mount.key(*["d" * 1000] * 4, "f" * 900), "w")
    assert e.value.errno == errno.ENAMETOOLONG


def test_tenants(world):
    m = Mount(world)
    with open(os.path.join(m.mnt, "tenants/a/k"), "w") as f:
        f.write("of a")
    with open(m.key("k"), "w") as f:
        f.write("of default")
    assert sorted(os.listdir(os.path.join(m.mnt, "tenants"))) == ["a", "default"]
    assert open(os.path.join(m.mnt, "tenants/a/k")).read() == "of a"
    assert open(os.path.join(m.mnt, "tenants/default/k")).read() == "of default"
    m.umount()
    m.options.append("tenant=a")
    m.start()
    assert "tenants" not in os.listdir(m.mnt)
    assert open(m.key("k")).read() == "of a"
