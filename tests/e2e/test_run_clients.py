# SPDX-License-Identifier: Apache-2.0
"""tools/run-clients, which runs the real clients where their packages are installed.  Here stand-ins with the same interface
take their place, honest ones and ones that lose bytes, so that what the script would say of real ones is known."""
import os
import subprocess
import sys

import pytest

SCRIPT = os.path.join(os.path.dirname(__file__), "../../tools/run-clients")

TORCH = '''
uint8, bfloat16 = "uint8", "bfloat16"

class Tensor:
    def __init__(self, data):
        self.data = data
    def numpy(self):
        return self
    def tobytes(self):
        return bytes(self.data)

def frombuffer(data, dtype):
    return Tensor(data)

def empty(size, dtype):
    return Tensor(bytearray(16))
'''

SGLANG = '''
import dataclasses, os

@dataclasses.dataclass
class HiCacheStorageConfig:
    tp_rank: int
    tp_size: int
    model_name: str
    is_mla_model: bool
    something_newer: bool

class HiCacheFile:
    def __init__(self, config, file_path="/tmp/x"):
        self.dir = os.environ.get("SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR", file_path)
        self.suffix = f"_{config.model_name.replace('/', '-')}_{config.tp_rank}_{config.tp_size}.bin"
    def path(self, key):
        return os.path.join(self.dir, key + self.suffix)
    def exists(self, key):
        return os.path.exists(self.path(key))
    def set(self, key, value):
        if not self.exists(key):
            data = value.tobytes()
            with open(self.path(key), "wb") as f:
                f.write(data if not os.environ.get("LOSES") else data[:-1] + b"?")
        return True
    def get(self, key, target):
        with open(self.path(key), "rb", buffering=0) as f:
            f.readinto(target.data)
        return target
    def batch_get(self, keys, targets):
        return [self.get(k, t) for k, t in zip(keys, targets)]
    def clear(self):
        for name in os.listdir(self.dir):
            os.remove(os.path.join(self.dir, name))
        return True
'''

LMCACHE = {
    "utils": '''
import dataclasses
@dataclasses.dataclass(frozen=True)
class CacheEngineKey:
    model_name: str
    world_size: int
    worker_id: int
    chunk_hash: int
    dtype: object = None
    def to_string(self):
        return f"{self.model_name}@{self.world_size}@{self.worker_id}@{self.chunk_hash:x}@{self.dtype}"
''',
    "v1/config": '''
class LMCacheEngineConfig:
    @classmethod
    def from_defaults(cls, **kw):
        c = cls()
        c.extra_config = kw["extra_config"]
        return c
''',
    "v1/metadata": '''
import dataclasses
@dataclasses.dataclass
class LMCacheMetadata:
    model_name: str
    world_size: int
    kv_shape: tuple
''',
    "v1/memory_allocators/tensor_memory_allocator": "class TensorMemoryAllocator:\n    def __init__(self, tensor):\n        pass\n",
    "v1/storage_backend/local_cpu_backend": '''
class Obj:
    def __init__(self, size):
        self.byte_array = memoryview(bytearray(size))
    def ref_count_down(self):
        pass
class LocalCPUBackend:
    def __init__(self, config, metadata, memory_allocator=None):
        self.config = config
    def allocate(self, shapes, dtypes, fmt):
        return Obj(shapes)
''',
    "v1/storage_backend/connector/fs_connector": '''
import os
from pathlib import Path
class FSConnector:
    meta_shapes, meta_dtypes, meta_fmt = 1 << 20, None, None
    def __init__(self, loop, local_cpu_backend, config, plugin_name=None, base_paths_str=None):
        self.base, self.backend = Path(base_paths_str), local_cpu_backend
    def path(self, key):
        return self.base / (key.to_string().replace("/", "-SEP-") + ".data")
    def exists_sync(self, key):
        return self.path(key).exists()
    async def exists(self, key):
        return self.exists_sync(key)
    async def put(self, key, obj):
        tmp = self.path(key).with_suffix(f".tmp.{os.getpid()}")
        tmp.write_bytes(bytes(28) + obj.byte_array)
        os.replace(tmp, self.path(key))
    async def get(self, key):
        obj = self.backend.allocate(self.meta_shapes, None, None)
        with open(self.path(key), "rb") as f:
            f.read(28)
            f.readinto(obj.byte_array)
        if os.environ.get("LOSES"):
            obj.byte_array[1000] ^= 1
        return obj
    def remove_sync(self, key):
        os.remove(self.path(key))
        return True
    async def list(self):
        return [p.stem for p in self.base.glob("*.data")]
    async def close(self):
        pass
''',
}


@pytest.fixture
def packages(world):
    def put(path, text):
        path = world.path("packages", path + ".py")
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as f:
            f.write(text)

    put("torch", TORCH)
    put("sglang/srt/mem_cache/hicache_storage", SGLANG)
    for name, text in LMCACHE.items():
        put("lmcache/" + name, text)
    return world.path("packages")


def run_script(*args, packages="", **env):
    return subprocess.run([sys.executable, SCRIPT, *args], env=dict(os.environ, PYTHONPATH=packages, **env),
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300)


def test_honest_clients_pass(mount, packages):
    os.mkdir(mount.key("kv"))
    r = run_script(mount.key("kv"), "--rounds", "20", packages=packages)
    assert r.returncode == 0, r.stdout
    assert r.stdout.count("every byte is right") == 2


@pytest.mark.parametrize("client", ["hicache", "lmcache"])
def test_a_client_that_loses_bytes_fails(mount, packages, client):
    r = run_script(mount.keys, "--only", client, "--rounds", "5", "--processes", "2", packages=packages, LOSES="1")
    assert r.returncode == 1 and "other bytes" in r.stdout, r.stdout


def test_without_the_packages(mount):
    r = run_script(mount.keys)
    if r.returncode == 3:  # a machine that has them runs them
        assert "sglang is not installed" in r.stdout and "lmcache is not installed" in r.stdout
    else:
        assert r.returncode == 0, r.stdout


def test_wrong_usage(mount):
    assert run_script(mount.key("nothing")).returncode == 2
