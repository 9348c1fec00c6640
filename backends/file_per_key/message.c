/* SPDX-License-Identifier: Apache-2.0 */
#include "backends/file_per_key/message.h"

#include "common/cursor.h"

#define HEAD 32u /* bytes that hold a field's tag and its length or number */

enum wire { WIRE_VARINT = 0, WIRE_FIXED64 = 1, WIRE_BYTES = 2, WIRE_FIXED32 = 5 };

struct source {
    message_read_fn read_at;
    void *arg;
    uint64_t at, size;
    struct mcfs_error *err;
};

static int bad(struct source *s, const char *what)
{
    return mcfs_fail(s->err, MCFS_CHECKSUM_MISMATCH, "%s", what);
}

static int read_some(struct source *s, void *buf, size_t len, uint64_t at, ssize_t *got)
{
    *got = s->read_at(s->arg, buf, len, at);
    return *got < 0 ? mcfs_fail_errno(s->err, errno, "read") : 0;
}

/* A field's content, of len bytes at s->at. */
static int take_bytes(struct source *s, uint64_t number, uint64_t len, struct message *out)
{
    ssize_t n;
    if (len > s->size - s->at)
        return bad(s, "the file ends inside the object");
    if (number == 2) {
        out->value_at = s->at;
        out->value_size = len;
    } else if (number == 1) {
        mcfs_buf_reset(&out->key);
        uint8_t *to = len <= MESSAGE_KEY_MAX ? mcfs_buf_reserve(&out->key, len ? len : 1) : NULL;
        if (!to)
            return len <= MESSAGE_KEY_MAX ? mcfs_fail_errno(s->err, ENOMEM, "key")
                                          : bad(s, "its key is too long");
        if (read_some(s, to, len, s->at, &n))
            return -1;
        if ((uint64_t)n < len)
            return bad(s, "the file ends inside the key");
        out->key.len = len;
    }
    s->at += len;
    return 0;
}

static int take_field(struct source *s, struct message *out)
{
    uint8_t head[HEAD];
    ssize_t n;
    if (read_some(s, head, HEAD, s->at, &n))
        return -1;
    if ((uint64_t)n > s->size - s->at)
        n = (ssize_t)(s->size - s->at); /* it has grown */
    struct mcfs_cursor c = mcfs_cursor(head, (size_t)n);
    uint64_t tag = mcfs_cursor_varint(&c), len = 0;
    bool is_bytes = (tag & 7) == WIRE_BYTES;
    switch (tag & 7) {
    case WIRE_VARINT:
        mcfs_cursor_varint(&c);
        break;
    case WIRE_FIXED64:
        mcfs_cursor_u64(&c);
        break;
    case WIRE_FIXED32:
        mcfs_cursor_u32(&c);
        break;
    case WIRE_BYTES:
        len = mcfs_cursor_varint(&c);
        break;
    default:
        c.failed = true;
    }
    uint64_t number = tag >> 3;
    if (c.failed || number == 0 || (number <= 2 && !is_bytes))
        return bad(s, "it is not a message with a key and a value");
    s->at += (uint64_t)(c.p - head);
    return is_bytes ? take_bytes(s, number, len, out) : 0;
}

int message_parse(message_read_fn read_at, void *arg, uint64_t size, struct message *out,
                  struct mcfs_error *err)
{
    struct source s = {read_at, arg, 0, size, err};
    *out = (struct message){.key = MCFS_BUF_INIT};
    while (s.at < size)
        if (take_field(&s, out))
            return -1;
    if (out->key.len == 0)
        return bad(&s, size ? "it holds no key" : "it is empty");
    return 0;
}

void message_free(struct message *m)
{
    mcfs_buf_free(&m->key);
}
