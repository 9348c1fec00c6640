/* SPDX-License-Identifier: Apache-2.0 */
#include "backends/bucket/bucket_meta.h"

#include "backends/proto.h"

void meta_put_size(struct mcfs_buf *b, uint64_t data_size)
{
    proto_put_int(b, 1, data_size);
}

void meta_put_key(struct mcfs_buf *b, struct mcfs_slice key)
{
    proto_put_bytes(b, 2, key);
}

void meta_put_place(struct mcfs_buf *b, const struct meta_place *place)
{
    struct mcfs_buf inner = MCFS_BUF_INIT;
    proto_put_int(&inner, 1, place->offset);
    proto_put_int(&inner, 2, place->key_size);
    proto_put_int(&inner, 3, place->data_size);
    proto_put_bytes(b, 3, mcfs_slice(inner.data, inner.len));
    b->failed |= inner.failed;
    mcfs_buf_free(&inner);
}

static bool parse_place(struct mcfs_slice bytes, struct meta_place *place)
{
    struct mcfs_cursor c = mcfs_cursor(bytes.data, bytes.len);
    *place = (struct meta_place){0};
    while (mcfs_cursor_left(&c) > 0) {
        struct proto_field f;
        if (!proto_next(&c, &f) || (f.number <= 3 && f.is_bytes))
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
static bool find(struct mcfs_cursor *c, uint64_t number, struct proto_field *f)
{
    while (mcfs_cursor_left(c) > 0 && proto_next(c, f))
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
    struct proto_field f;
    *data_size = 0;
    while (mcfs_cursor_left(&c) > 0) {
        if (!proto_next(&c, &f) || (f.number == 1 && f.is_bytes) ||
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
        struct proto_field key;
        if (!find(&k, 2, &key) || !find(&p, 3, &f) || !parse_place(f.bytes, &place))
            return -1;
        fn(key.bytes, &place, arg);
    }
    return keys;
}
