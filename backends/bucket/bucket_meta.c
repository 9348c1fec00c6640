/* SPDX-License-Identifier: Apache-2.0 */
#include "backends/bucket/bucket_meta.h"

#include "common/cursor.h"

enum wire { WIRE_VARINT = 0, WIRE_FIXED64 = 1, WIRE_BYTES = 2, WIRE_FIXED32 = 5 };

static void put_varint(struct mcfs_buf *b, uint64_t v)
{
    uint8_t bytes[10];
    size_t n = 0;
    do {
        bytes[n++] = (uint8_t)(v & 0x7f) | (v > 0x7f ? 0x80 : 0);
        v >>= 7;
    } while (v);
    mcfs_buf_append(b, bytes, n);
}

static void put_int(struct mcfs_buf *b, unsigned field, uint64_t v)
{
    if (!v)
        return; /* proto3 leaves zero out */
    put_varint(b, field << 3 | WIRE_VARINT);
    put_varint(b, v);
}

void meta_put_size(struct mcfs_buf *b, uint64_t data_size)
{
    put_int(b, 1, data_size);
}

void meta_put_key(struct mcfs_buf *b, struct mcfs_slice key)
{
    put_varint(b, 2 << 3 | WIRE_BYTES);
    put_varint(b, key.len);
    mcfs_buf_append(b, key.data, key.len);
}

void meta_put_place(struct mcfs_buf *b, const struct meta_place *place)
{
    struct mcfs_buf inner = MCFS_BUF_INIT;
    put_int(&inner, 1, place->offset);
    put_int(&inner, 2, place->key_size);
    put_int(&inner, 3, place->data_size);
    put_varint(b, 3 << 3 | WIRE_BYTES);
    put_varint(b, inner.len);
    mcfs_buf_append(b, inner.data, inner.len);
    b->failed |= inner.failed;
    mcfs_buf_free(&inner);
}

/* A field's number and its content: a number, or bytes. */
struct field {
    uint64_t number, value;
    struct mcfs_slice bytes;
    bool is_bytes;
};

static bool next_field(struct mcfs_cursor *c, struct field *f)
{
    uint64_t tag = mcfs_cursor_varint(c), len;
    *f = (struct field){.number = tag >> 3};
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

static bool parse_place(struct mcfs_slice bytes, struct meta_place *place)
{
    struct mcfs_cursor c = mcfs_cursor(bytes.data, bytes.len);
    *place = (struct meta_place){0};
    while (mcfs_cursor_left(&c) > 0) {
        struct field f;
        if (!next_field(&c, &f) || (f.number <= 3 && f.is_bytes))
            return false;
        if (f.number == 1)
            place->offset = f.value;
        else if (f.number == 2)
            place->key_size = f.value;
        else if (f.number == 3)
            place->data_size = f.value;
    }
    return !c.failed && place->offset <= INT64_MAX && place->key_size <= INT64_MAX &&
           place->data_size <= INT64_MAX;
}

/* The next field with this number; false at the end. */
static bool find(struct mcfs_cursor *c, uint64_t number, struct field *f)
{
    while (mcfs_cursor_left(c) > 0 && next_field(c, f))
        if (f->number == number && f->is_bytes)
            return true;
    return false;
}

int64_t meta_parse(const void *data, size_t len, uint64_t *data_size,
                   void (*fn)(struct mcfs_slice key, const struct meta_place *place, void *arg),
                   void *arg)
{
    struct mcfs_cursor c = mcfs_cursor(data, len);
    int64_t keys = 0, places = 0;
    struct meta_place place;
    struct field f;
    *data_size = 0;
    while (mcfs_cursor_left(&c) > 0) {
        if (!next_field(&c, &f) || (f.number == 1 && f.is_bytes) ||
            ((f.number == 2 || f.number == 3) && !f.is_bytes))
            return -1;
        if (f.number == 1)
            *data_size = f.value;
        keys += f.number == 2;
        places += f.number == 3;
        if (f.number == 3 && !parse_place(f.bytes, &place))
            return -1;
    }
    if (c.failed || keys != places || *data_size > INT64_MAX)
        return -1;
    struct mcfs_cursor k = mcfs_cursor(data, len), p = k;
    for (int64_t i = 0; i < keys && fn; i++) {
        struct field key;
        if (!find(&k, 2, &key) || !find(&p, 3, &f) || !parse_place(f.bytes, &place))
            return -1;
        fn(key.bytes, &place, arg);
    }
    return keys;
}
