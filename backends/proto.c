/* SPDX-License-Identifier: Apache-2.0 */
#include "backends/proto.h"

enum wire { WIRE_VARINT = 0, WIRE_FIXED64 = 1, WIRE_BYTES = 2, WIRE_FIXED32 = 5 };

bool proto_next(struct mcfs_cursor *c, struct proto_field *f)
{
    uint64_t tag = mcfs_cursor_varint(c), len;
    *f = (struct proto_field){.number = tag >> 3};
    switch (tag & 7) {
    case WIRE_VARINT:
        f->value = mcfs_cursor_varint(c);
        break;
    case WIRE_FIXED64:
        f->value = mcfs_cursor_u64(c);
        break;
    case WIRE_FIXED32:
        f->value = mcfs_cursor_u32(c);
        break;
    case WIRE_BYTES:
        len = mcfs_cursor_varint(c);
        f->is_bytes = true;
        f->bytes = mcfs_slice(mcfs_cursor_bytes(c, len), c->failed ? 0 : (size_t)len);
        break;
    default:
        c->failed = true;
    }
    return !c->failed && f->number != 0;
}

void proto_put_varint(struct mcfs_buf *b, uint64_t v)
{
    uint8_t bytes[10];
    size_t n = 0;
    do {
        bytes[n++] = (uint8_t)(v & 0x7f) | (v > 0x7f ? 0x80 : 0);
        v >>= 7;
    } while (v);
    mcfs_buf_append(b, bytes, n);
}

void proto_put_int(struct mcfs_buf *b, unsigned field, uint64_t v)
{
    if (!v)
        return; /* as proto3 does */
    proto_put_varint(b, field << 3 | WIRE_VARINT);
    proto_put_varint(b, v);
}

void proto_put_bytes(struct mcfs_buf *b, unsigned field, struct mcfs_slice bytes)
{
    proto_put_varint(b, field << 3 | WIRE_BYTES);
    proto_put_varint(b, bytes.len);
    mcfs_buf_append(b, bytes.data, bytes.len);
}
