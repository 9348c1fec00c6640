# SPDX-License-Identifier: Apache-2.0
"""The programs that keep KV cache as plain files, call by call: the system calls of each, in its order, with its kind of
names and sizes, by several processes at once that write and read the same chunks.  A chunk's content follows from its name,
so that every byte that anybody reads is checked."""
import subprocess
import sys

import pytest
from harness import Master, Mount

COMMON = r'''
import hashlib, json, mmap, os, random, struct, sys, threading
directory, me, rounds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
rng = random.Random(me)
MODEL = "meta-llama/Llama-3.1-405B-Instruct-FP8-with-a-long-name-as-people-fine-tune-them"

def content(name, size):
    """Cheap, and different for every name and place."""
    seed = hashlib.sha256(name.encode()).digest()
    return (seed * (size // 32 + 1))[:size]

def same(name, got, want):
    if bytes(got) != want:
        sys.exit(f"{name}: {len(got)} bytes, wanted {len(want)}, or others")

hits = 0
'''

# LMCache's fs connector: stat; tmp beside it, header and body, replace; header and body read apart, into a buffer.
LMCACHE = COMMON + r'''
def name_of(chunk):
    key = "@".join(["vllm", MODEL.replace("/", "-SEP-"), "8", str(chunk % 8),
                    hashlib.sha256(str(chunk).encode()).hexdigest(), "salt-" + "s" * 120])
    return key + ".data"

SIZE = 1 << 20
os.makedirs(directory, exist_ok=True)
for _ in range(rounds):
    name = name_of(rng.randrange(24))
    path = os.path.join(directory, name)
    header = struct.pack("<7i", SIZE, 2, 1, 2, 32, 256, 1024)
    try:
        os.stat(path)
    except FileNotFoundError:
        tmp = os.path.join(directory, name[:-5] + f".{me}.tmp")
        with open(tmp, "wb") as f:
            f.write(header)
            f.write(content(name, SIZE))
        os.replace(tmp, path)
    with open(path, "rb") as f:
        got = struct.unpack("<7i", f.read(28))
        body = bytearray(got[0])
        if f.readinto(body) != SIZE or f.read(1):
            sys.exit(f"{name}: a part")
        same(name, body, content(name, SIZE))
    hits += 1
'''

# SGLang HiCache's file backend: one flat directory, whole files; existence by path or by one listing; LRU by remove.
HICACHE = COMMON + r'''
SIZE = 300000 + 4096
def name_of(page):
    return f"{hashlib.sha256(str(page).encode()).hexdigest()}_{MODEL.replace('/', '-')}_{page % 4}_4.bin"

os.makedirs(directory, exist_ok=True)
for i in range(rounds):
    page = rng.randrange(40)
    name = name_of(page)
    path = os.path.join(directory, name)
    if not os.path.exists(path):
        if i % 2:
            with open(path, "wb") as f:   # the older way: in place
                f.write(content(name, SIZE))
        else:
            tmp = f"{path}.tmp.{me}"
            fd = os.open(tmp, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            body = content(name, SIZE)
            if os.writev(fd, [body[:4096], body[4096:]]) != SIZE:
                sys.exit("a short write")
            os.close(fd)
            os.replace(tmp, path)
    buf = bytearray(SIZE)
    try:
        with open(path, "rb", buffering=0) as f:
            if f.readinto(buf) != SIZE:
                sys.exit(f"{name}: a part")
        same(name, buf, content(name, SIZE))
        hits += 1
    except FileNotFoundError:
        pass  # another one's LRU
    if i % 10 == 9:
        files = []
        with os.scandir(directory) as it:
            for e in it:
                try:
                    if e.name.endswith(".bin"):
                        files.append((e.stat().st_atime, e.path))
                except FileNotFoundError:
                    pass  # another one's LRU
        for _, path in sorted(files)[:max(0, len(files) - 25)]:
            try:
                os.remove(path)
            except FileNotFoundError:
                pass
'''

# vLLM's shared-storage connector: a directory for each prefix, a safetensors file for each layer, read by mmap.
VLLM = COMMON + r'''
SIZE = 200000
for _ in range(rounds):
    prefix = hashlib.sha256(str(rng.randrange(6)).encode()).hexdigest()[:32]
    folder = os.path.join(directory, prefix)
    os.makedirs(folder, exist_ok=True)
    for layer in range(4):
        name = f"model.layers.{layer}.self_attn.attn.safetensors"
        path = os.path.join(folder, name)
        if not os.path.exists(path):
            head = json.dumps({"kv_cache": {"dtype": "BF16", "shape": [2, SIZE // 4], "data_offsets": [0, SIZE]}}).encode()
            with open(path, "wb") as f:
                f.write(struct.pack("<Q", len(head)) + head)
                f.write(content(prefix + name, SIZE))
        with open(path, "rb") as f, mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ) as m:
            (length,) = struct.unpack("<Q", m[:8])
            a, b = json.loads(m[8:8 + length])["kv_cache"]["data_offsets"]
            same(path, m[8 + length + a:8 + length + b], content(prefix + name, SIZE))
            hits += 1
'''

# llm-d's fs backend: worker threads, temporary + rename, files of 1 to 16 MiB, read in parts by several threads.
LLMD = COMMON + r'''
def size_of(block):
    return (1 << 20) << (block % 5)

def path_of(block):
    h = hashlib.sha256(str(block).encode()).hexdigest()[:16]
    return os.path.join(directory, MODEL, "block_size_16", "tp_4_rank_0", h[:3], h[3:5], h + ".bin")

def store(block):
    path = path_of(block)
    if os.path.exists(path):
        return
    os.makedirs(os.path.dirname(path), exist_ok=True)
    tmp = f"{path}_{me}_{threading.get_ident()}.tmp"
    with open(tmp, "wb", buffering=1 << 20) as f:
        f.write(content(os.path.basename(path), size_of(block)))
    os.rename(tmp, path)

def load(block):
    size = size_of(block)
    buf = bytearray(size)
    fd = os.open(path_of(block), os.O_RDONLY)
    failed = []
    def part(at, end):
        view = memoryview(buf)
        try:
            while at < end:
                n = os.preadv(fd, [view[at:end]], at)
                if n <= 0:
                    os._exit(3)
                at += n
        except OSError as e:
            failed.append(e)
    threads = [threading.Thread(target=part, args=(size * i // 4, size * (i + 1) // 4)) for i in range(4)]
    for t in threads: t.start()
    for t in threads: t.join()
    os.close(fd)
    if failed:
        raise failed[0]
    same(path_of(block), buf, content(os.path.basename(path_of(block)), size))

for _ in range(rounds):
    blocks = [rng.randrange(15) for _ in range(3)]
    threads = [threading.Thread(target=store, args=(b,)) for b in blocks]
    for t in threads: t.start()
    for t in threads: t.join()
    for b in blocks:
        load(b)
        hits += 1
'''

CLIENTS = {"lmcache": (LMCACHE, 40), "hicache": (HICACHE, 60), "vllm": (VLLM, 15), "llm-d": (LLMD, 8)}


def run_all(script, directories, rounds):
    procs = [subprocess.Popen([sys.executable, "-c", script + "\nprint(hits)", d, str(i), str(rounds)],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE) for i, d in enumerate(directories)]
    for p in procs:
        out, err = p.communicate(timeout=300)
        assert p.returncode == 0, err.decode()[-2000:]
        assert int(out) > 0


@pytest.mark.parametrize("client", CLIENTS)
def test_several_processes_on_one_mount(mount, client):
    script, rounds = CLIENTS[client]
    run_all(script, [mount.key("kv")] * 4, rounds)
    mount.kill()
    mount.start()
    run_all(script, [mount.key("kv")], rounds)


@pytest.mark.parametrize("client", CLIENTS)
def test_processes_on_two_nodes(world, client):
    """What one engine stored the other one finds, whichever node wrote it last."""
    script, rounds = CLIENTS[client]
    master = Master(world)
    a = Mount(world, source=master.address, name="a")
    b = Mount(world, source=master.address, name="b", options=["listen=127.0.0.1:0"])
    run_all(script, [a.key("kv"), b.key("kv"), a.key("kv"), b.key("kv")], max(4, rounds // 2))
