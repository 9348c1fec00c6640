# SPDX-License-Identifier: Apache-2.0
"""Reads bucket directories with no code of the project: written from the description of the formats alone (docs/formats.md,
the head of backends/bucket/bucket_log.h), so that what the project writes can be held against it."""
import os
import struct

CRC_TABLE = []
for n in range(256):
    for _ in range(8):
        n = n >> 1 ^ (0x82F63B78 if n & 1 else 0)
    CRC_TABLE.append(n)


def crc32c(data):
    crc = 0xFFFFFFFF
    for b in data:
        crc = CRC_TABLE[(crc ^ b) & 255] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def varint(data, at):
    v = shift = 0
    while True:
        b = data[at]
        v |= (b & 127) << shift
        at, shift = at + 1, shift + 7
        if b < 128:
            return v, at


def fields(data):
    """(number, value) of a protobuf message that has varints and bytes only."""
    at = 0
    while at < len(data):
        tag, at = varint(data, at)
        value, at = varint(data, at)
        if tag & 7 == 2:
            value, at = data[at:at + value], at + value
        else:
            assert tag & 7 == 0, tag
        yield tag >> 3, value
    assert at == len(data)


def read_meta(path):
    """(storage key, offset of the value, size) of each object, as Mooncake would."""
    size, keys, places = 0, [], []
    for number, value in fields(open(path, "rb").read()):
        if number == 1:
            size = value
        elif number == 2:
            keys.append(bytes(value))
        elif number == 3:
            place = dict(fields(value))
            places.append((place.get(1, 0) + place.get(2, 0), place.get(3, 0)))
    assert len(keys) == len(places)
    assert all(offset + length <= size for offset, length in places)
    return [(k, *p) for k, p in zip(keys, places)]


def read_log(path, ident):
    """(storage key, version, offset, size, crc or None) of what the records leave; ends at the first that is not whole."""
    data = open(path, "rb").read()
    magic, form, flags, number = struct.unpack_from("<8sIIQ", data)
    assert (magic, form, flags, number) == (b"MCFSLOG\0", 1, 0, ident)
    assert struct.unpack_from("<I", data, 24)[0] == crc32c(data[:24])
    at, live = 28, {}
    while len(data) - at >= 9:
        crc, length, kind = struct.unpack_from("<IIB", data, at)
        if length < 9 or at + length > len(data) or crc != crc32c(data[at + 4:at + length]):
            break
        body, at = data[at + 9:at + length], at + length
        if kind == 1:
            version, offset, size, crc, mode, uid, gid, mtime, dtype, bits, n = struct.unpack_from("<QQQIIIIqBBI", body)
            key = body[54:]
            assert len(key) == n
            live[key, version] = [offset, size, crc if bits & 1 else None]
        elif kind == 2:
            version, n = struct.unpack_from("<QI", body)
            live.pop((body[12:12 + n], version), None)
        elif kind == 4:
            old, new, n, m = struct.unpack_from("<QQII", body)
            assert len(body) == 24 + n + m
            if (body[24:24 + n], old) in live:
                live[body[24 + n:], new] = live.pop((body[24:24 + n], old))
        else:
            assert kind in (3, 5)
    return [(key, version, *place) for (key, version), place in live.items()]


def split(key):
    tenant, nul, name = key.partition(b"\0")
    return (tenant, name) if nul else (b"default", key)


def read_value(path, offset, size):
    with open(path, "rb") as f:
        f.seek(offset)
        data = f.read(size)
    assert len(data) == size
    return data


def idents(root, suffix):
    return sorted(int(f.split(".")[0]) for f in os.listdir(root) if f.endswith("." + suffix))


def read_store(root):
    """{(tenant, key): bytes}: by their logs, the newest version of each key; every checksum is checked."""
    newest = {}
    for ident in idents(root, "bucket"):
        path = os.path.join(root, f"{ident}.")
        log = next((path + s for s in ("journal", "sum") if os.path.exists(path + s)), None)
        if log:
            objects = read_log(log, ident)
        else:
            objects = [(k, 1, offset, size, None) for k, offset, size in read_meta(path + "meta")]
        for key, version, offset, size, crc in objects:
            name = split(key)
            if name in newest and newest[name][0] > version:
                continue
            data = read_value(path + "bucket", offset, size)
            assert crc is None or crc == crc32c(data), name
            newest[name] = version, data
    return {name: data for name, (_, data) in newest.items()}


def read_as_mooncake(root):
    """{(tenant, key): [bytes...]}: by .meta and .bucket alone."""
    out = {}
    for ident in idents(root, "meta"):
        path = os.path.join(root, f"{ident}.")
        for key, offset, size in read_meta(path + "meta"):
            out.setdefault(split(key), []).append(read_value(path + "bucket", offset, size))
    return out
