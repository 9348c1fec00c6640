# SPDX-License-Identifier: Apache-2.0
"""Reads directories of the offset allocator with no code of the project: kv_cache.data and kv_cache.meta by Mooncake's rules, and
kv_cache.index and kv_cache.journal from their description (the head of backends/offset/offset_log.h)."""
import os
import struct

from bucket_reader import crc32c, fields

NONE = 2 ** 64 - 1


def read(directory, name):
    try:
        with open(os.path.join(directory, name), "rb") as f:
            return f.read()
    except FileNotFoundError:
        return b""


def record(data, at, limit):
    """(key, seq, offset of the value, size) of the record at an offset, or None."""
    if at + 24 > limit:
        return None
    data.seek(at)
    head = data.read(24)
    key_len, size, seq, flags, crc = struct.unpack("<IIQII", head)
    value = at + (24 + key_len + 4095) // 4096 * 4096
    if not key_len or flags & ~1 or value + size > limit:
        return None
    key = data.read(key_len)
    data.seek(value)
    if flags & 1 and crc32c(head[:20] + key + data.read(size)) != crc:
        return None
    return key, seq, value, size


def mooncake(directory):
    """{storage key: (seq, value)} as a start of Mooncake's finds it."""
    meta, state, insert_seq, evicted = read(directory, "kv_cache.meta"), None, 0, set()
    for number, value in fields(meta):
        if number == 1:
            assert value == 3
        elif number == 2:
            state = value
        elif number == 3:
            insert_seq = value
        elif number == 5:
            evicted.add(bytes(value))
    if state is None:
        return {}
    base, bits, capacity, allocated, number = struct.unpack_from("<5Q", state, 0)
    size, current, most, free_storage, tops = struct.unpack_from("<5I", state, 40)
    assert base == 0 and bits < 32 and capacity >> bits == size and 0 < current <= most <= 2 ** 24
    at = 40 + 20 + 32 + 1024
    free_offset, = struct.unpack_from("<I", state, at)
    assert free_offset <= current and len(state) == at + 4 + current * 32
    unused = set(struct.unpack_from("<%dI" % current, state, at + 4 + current * 28)[free_offset:])
    used, free, found = 0, 0, {}
    limit = os.path.getsize(os.path.join(directory, "kv_cache.data"))
    with open(os.path.join(directory, "kv_cache.data"), "rb") as data:
        for i in range(current):
            node = struct.unpack_from("<6IB", state, at + 4 + i * 28)
            if i in unused:
                continue
            if not node[6]:
                free += node[1]
                continue
            used += 1
            r = record(data, node[0] << bits, min(limit, (node[0] + node[1]) << bits))
            if r and r[1] < insert_seq and r[0] not in evicted and (r[0] not in found or found[r[0]][0] < r[1]):
                data.seek(r[2])
                found[r[0]] = (r[1], data.read(r[3]))
    assert used == number and free == free_storage
    return found


def head(data, kind):
    assert data[:8] == b"MCFSOFS\0" and struct.unpack_from("<II", data, 8) == (1, kind)
    assert crc32c(data[:100]) == struct.unpack_from("<I", data, 100)[0]
    epoch, position, insert_seq, count = struct.unpack_from("<4Q", data, 48)
    return epoch, position, count


def records(data):
    """(distance from the first one, type, body) of each whole record."""
    at = 104
    while at + 9 <= len(data):
        crc, length, kind = struct.unpack_from("<IIB", data, at)
        if length < 9 or at + length > len(data) or crc32c(data[at + 4:at + length]) != crc:
            return
        yield at - 104, kind, data[at + 9:at + length]
        at += length


def ours(directory):
    """{(storage key, version): value} by index and journal."""
    index, journal = read(directory, "kv_cache.index"), read(directory, "kv_cache.journal")
    epoch, position, count = head(index, 1)
    journal_epoch, base, _ = head(journal, 2)
    assert epoch == journal_epoch and base <= position
    todo = [(k, b) for _, k, b in records(index)]
    assert len(todo) == count
    todo += [(k, b) for at, k, b in records(journal) if base + at >= position]
    stored = {}
    for kind, body in todo:
        seq, = struct.unpack_from("<Q", body, 0)
        if kind == 1:
            replaces, version, offset = struct.unpack_from("<3Q", body, 8)
            size, crc = struct.unpack_from("<II", body, 32)
            flags, key_len = struct.unpack_from("<BI", body, 61)
            key = body[66:66 + key_len]
            stored.pop(replaces, None)
            before = len(key) - (8 if flags & 4 else 0)
            stored[seq] = [key, version, offset + (24 + before + 4095) // 4096 * 4096, size, crc if flags & 1 else None]
        elif kind == 2:
            stored.pop(seq, None)
        elif kind == 4:
            new_seq, version, key_len = struct.unpack_from("<QQI", body, 8)
            entry = stored.pop(seq)
            entry[:2] = body[28:28 + key_len], version
            stored[new_seq] = entry
    found = {}
    with open(os.path.join(directory, "kv_cache.data"), "rb") as data:
        for key, version, at, size, crc in stored.values():
            data.seek(at)
            value = data.read(size)
            assert crc is None or crc32c(value) == crc, key
            found[key, version] = value
    return found
