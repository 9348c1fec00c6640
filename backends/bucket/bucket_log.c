/* SPDX-License-Identifier: Apache-2.0 */
#include "backends/bucket/bucket_log.h"

#include "backends/attr_record.h"
#include "common/crc32c.h"
#include "common/cursor.h"

static const char magic[8] = "MCFSLOG";

#define PUT_HAS_CRC 1u
#define PUT_KEY_INLINE 2u
#define PUT_BARE 4u
#define PUT_MOVED 8u
#define KEY_LIMIT (MCFS_TENANT_MAX + 1 + MCFS_KEY_MAX + (1u << 20)) /* Mooncake allows 1 MiB */
#define RECORD_MAX (2 * KEY_LIMIT + 128)

void log_put_header(struct mcfs_buf *b, uint64_t bucket_id)
{
    size_t at = b->len;
    mcfs_buf_append(b, magic, sizeof(magic));
    mcfs_buf_u32(b, LOG_FORMAT);
    mcfs_buf_u32(b, 0);
    mcfs_buf_u64(b, bucket_id);
    if (!b->failed)
        mcfs_buf_u32(b, mcfs_crc32c(0, b->data + at, LOG_HEADER_SIZE - 4));
}

static void put_key(struct mcfs_buf *b, struct mcfs_slice key)
{
    mcfs_buf_u32(b, (uint32_t)key.len);
    mcfs_buf_append(b, key.data, key.len);
}

void log_put_record(struct mcfs_buf *b, const struct log_record *r)
{
    size_t at = b->len;
    mcfs_buf_u32(b, 0); /* checksum and length are filled in below */
    mcfs_buf_u32(b, 0);
    mcfs_buf_u8(b, (uint8_t)r->type);
    switch (r->type) {
    case LOG_PUT:
        mcfs_buf_u64(b, r->version);
        mcfs_buf_u64(b, r->offset);
        mcfs_buf_u64(b, r->size);
        mcfs_buf_u32(b, r->crc32c);
        attr_record_put(b, &r->attr);
        mcfs_buf_u8(b, r->data_type);
        mcfs_buf_u8(b, (uint8_t)((r->has_crc ? PUT_HAS_CRC : 0) |
                                 (r->key_inline ? PUT_KEY_INLINE : 0) | (r->bare ? PUT_BARE : 0) |
                                 (r->moved ? PUT_MOVED : 0)));
        put_key(b, r->key);
        break;
    case LOG_DELETE:
        mcfs_buf_u64(b, r->version);
        put_key(b, r->key);
        break;
    case LOG_ATTR:
        mcfs_buf_u64(b, r->version);
        attr_record_put(b, &r->attr);
        put_key(b, r->key);
        break;
    case LOG_REKEY:
        mcfs_buf_u64(b, r->version);
        mcfs_buf_u64(b, r->new_version);
        mcfs_buf_u32(b, (uint32_t)r->key.len);
        mcfs_buf_u32(b, (uint32_t)r->new_key.len);
        mcfs_buf_append(b, r->key.data, r->key.len);
        mcfs_buf_append(b, r->new_key.data, r->new_key.len);
        break;
    case LOG_SYNC:
        mcfs_buf_u64(b, r->synced_to);
        break;
    }
    if (b->failed)
        return;
    uint32_t len = (uint32_t)(b->len - at), crc;
    memcpy(b->data + at + 4, &len, sizeof(len));
    crc = mcfs_crc32c(0, b->data + at + 4, len - 4);
    memcpy(b->data + at, &crc, sizeof(crc));
}

int log_parse_header(const void *data, size_t len, uint64_t *bucket_id, struct mcfs_error *err)
{
    struct mcfs_cursor c = mcfs_cursor(data, len);
    const uint8_t *m = mcfs_cursor_bytes(&c, sizeof(magic));
    uint32_t format = mcfs_cursor_u32(&c);
    mcfs_cursor_u32(&c);
    *bucket_id = mcfs_cursor_u64(&c);
    uint32_t crc = mcfs_cursor_u32(&c);
    if (c.failed || memcmp(m, magic, sizeof(magic)) != 0 ||
        crc != mcfs_crc32c(0, data, LOG_HEADER_SIZE - 4))
        return mcfs_fail(err, MCFS_FILE_READ_FAIL, "not the log of a bucket");
    if (format > LOG_FORMAT)
        return mcfs_fail(err, MCFS_INVALID_VERSION,
                         "written by a newer mooncakefs (log format %u; this one knows %u)", format,
                         LOG_FORMAT);
    return 0;
}

static struct mcfs_slice read_bytes(struct mcfs_cursor *c, uint32_t len)
{
    if (len > KEY_LIMIT)
        c->failed = true;
    return mcfs_slice(mcfs_cursor_bytes(c, len), c->failed ? 0 : len);
}

static bool read_body(struct mcfs_cursor *c, struct log_record *r)
{
    uint32_t len, new_len;
    uint8_t flags;
    switch (r->type) {
    case LOG_PUT:
        r->version = mcfs_cursor_u64(c);
        r->offset = mcfs_cursor_u64(c);
        r->size = mcfs_cursor_u64(c);
        r->crc32c = mcfs_cursor_u32(c);
        attr_record_take(c, &r->attr);
        r->data_type = mcfs_cursor_u8(c);
        flags = mcfs_cursor_u8(c);
        r->has_crc = flags & PUT_HAS_CRC;
        r->key_inline = flags & PUT_KEY_INLINE;
        r->bare = flags & PUT_BARE;
        r->moved = flags & PUT_MOVED;
        r->key = read_bytes(c, mcfs_cursor_u32(c));
        break;
    case LOG_DELETE:
        r->version = mcfs_cursor_u64(c);
        r->key = read_bytes(c, mcfs_cursor_u32(c));
        break;
    case LOG_ATTR:
        r->version = mcfs_cursor_u64(c);
        attr_record_take(c, &r->attr);
        r->key = read_bytes(c, mcfs_cursor_u32(c));
        break;
    case LOG_REKEY:
        r->version = mcfs_cursor_u64(c);
        r->new_version = mcfs_cursor_u64(c);
        len = mcfs_cursor_u32(c);
        new_len = mcfs_cursor_u32(c);
        r->key = read_bytes(c, len);
        r->new_key = read_bytes(c, new_len);
        break;
    case LOG_SYNC:
        r->synced_to = mcfs_cursor_u64(c);
        break;
    default:
        return false;
    }
    return !c->failed && c->p == c->end;
}

size_t log_parse_record(const void *data, size_t len, struct log_record *r)
{
    struct mcfs_cursor c = mcfs_cursor(data, len);
    uint32_t crc = mcfs_cursor_u32(&c), size = mcfs_cursor_u32(&c);
    if (c.failed || size < LOG_RECORD_MIN || size > len || size > RECORD_MAX ||
        crc != mcfs_crc32c(0, (const uint8_t *)data + 4, size - 4))
        return 0;
    c.end = (const uint8_t *)data + size;
    *r = (struct log_record){.type = (enum log_type)mcfs_cursor_u8(&c)};
    return read_body(&c, r) ? size : 0;
}
