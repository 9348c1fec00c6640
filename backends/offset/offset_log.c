/* SPDX-License-Identifier: Apache-2.0 */
#include "backends/offset/offset_log.h"

#include "backends/attr_record.h"
#include "backends/offset/offset_record.h"
#include "backends/storage_key.h"
#include "common/crc32c.h"
#include "common/cursor.h"

static const char magic[8] = "MCFSOFS";

#define FORMAT 1u
#define PUT_HAS_CRC 1u
#define PUT_RECORD_CRC 2u
#define PUT_BARE 4u
#define RECORD_MAX (OFFSET_KEY_MAX + 512u)

void offset_log_put_head(struct mcfs_buf *b, const struct offset_log_head *h)
{
    size_t at = b->len;
    mcfs_buf_append(b, magic, sizeof(magic));
    mcfs_buf_u32(b, FORMAT);
    mcfs_buf_u32(b, h->kind);
    mcfs_buf_u32(b, h->flags);
    mcfs_buf_u32(b, h->meta.crc32c);
    mcfs_buf_u64(b, h->meta.size);
    mcfs_buf_u64(b, h->meta_before.size);
    mcfs_buf_u32(b, h->meta_before.crc32c);
    mcfs_buf_u32(b, 0);
    mcfs_buf_u64(b, h->epoch);
    mcfs_buf_u64(b, h->position);
    mcfs_buf_u64(b, h->insert_seq);
    mcfs_buf_u64(b, h->count);
    mcfs_buf_u64(b, h->data_size);
    mcfs_buf_u64(b, (uint64_t)h->data_mtime_ns);
    mcfs_buf_u32(b, 0); /* to a multiple of 8 with the checksum */
    if (!b->failed)
        mcfs_buf_u32(b, mcfs_crc32c(0, b->data + at, OFFSET_LOG_HEAD - 4));
}

int offset_log_parse_head(const void *data, size_t len, enum offset_log_kind kind,
                          struct offset_log_head *out, struct mcfs_error *err)
{
    struct mcfs_cursor c = mcfs_cursor(data, len);
    *out = (struct offset_log_head){0};
    const uint8_t *m = mcfs_cursor_bytes(&c, sizeof(magic));
    uint32_t format = mcfs_cursor_u32(&c);
    if (c.failed || memcmp(m, magic, sizeof(magic)) != 0)
        return mcfs_fail(err, MCFS_INVALID_PARAMS, "it does not begin as one of our files");
    if (format > FORMAT)
        return mcfs_fail(err, MCFS_INVALID_VERSION, "its format %u is newer than %u", format,
                         FORMAT);
    out->kind = mcfs_cursor_u32(&c);
    out->flags = mcfs_cursor_u32(&c);
    out->meta.crc32c = mcfs_cursor_u32(&c);
    out->meta.size = mcfs_cursor_u64(&c);
    out->meta_before.size = mcfs_cursor_u64(&c);
    out->meta_before.crc32c = mcfs_cursor_u32(&c);
    mcfs_cursor_u32(&c);
    out->epoch = mcfs_cursor_u64(&c);
    out->position = mcfs_cursor_u64(&c);
    out->insert_seq = mcfs_cursor_u64(&c);
    out->count = mcfs_cursor_u64(&c);
    out->data_size = mcfs_cursor_u64(&c);
    out->data_mtime_ns = (int64_t)mcfs_cursor_u64(&c);
    mcfs_cursor_u32(&c);
    uint32_t crc = mcfs_cursor_u32(&c);
    if (c.failed || crc != mcfs_crc32c(0, data, OFFSET_LOG_HEAD - 4))
        return mcfs_fail(err, MCFS_INVALID_PARAMS, "its header's checksum is wrong");
    if (format != FORMAT || out->kind != kind)
        return mcfs_fail(err, MCFS_INVALID_PARAMS, "its header is another file's");
    return 0;
}

/* ---- records ---- */

static void put_key(struct mcfs_buf *b, struct mcfs_slice key)
{
    mcfs_buf_u32(b, (uint32_t)key.len);
    mcfs_buf_append(b, key.data, key.len);
}

static void put_put(struct mcfs_buf *b, const struct offset_log_record *r)
{
    uint8_t bytes[2] = {r->data_type,
                        (uint8_t)((r->has_crc ? PUT_HAS_CRC : 0) |
                                  (r->record_crc ? PUT_RECORD_CRC : 0) | (r->bare ? PUT_BARE : 0))};
    mcfs_buf_u64(b, r->replaces);
    mcfs_buf_u64(b, r->version);
    mcfs_buf_u64(b, r->offset);
    mcfs_buf_u32(b, r->size);
    mcfs_buf_u32(b, r->crc32c);
    attr_record_put(b, &r->attr);
    mcfs_buf_append(b, bytes, sizeof(bytes));
    put_key(b, r->key);
}

void offset_log_put_record(struct mcfs_buf *b, const struct offset_log_record *r)
{
    size_t at = b->len;
    uint8_t type = (uint8_t)r->type;
    mcfs_buf_u32(b, 0); /* checksum and length are filled in below */
    mcfs_buf_u32(b, 0);
    mcfs_buf_append(b, &type, 1);
    mcfs_buf_u64(b, r->type == OFFSET_LOG_SYNC ? r->position : r->seq);
    if (r->type == OFFSET_LOG_PUT)
        put_put(b, r);
    if (r->type == OFFSET_LOG_ATTR)
        attr_record_put(b, &r->attr);
    if (r->type == OFFSET_LOG_REKEY) {
        mcfs_buf_u64(b, r->new_seq);
        mcfs_buf_u64(b, r->version);
        put_key(b, r->key);
    }
    if (b->failed)
        return;
    uint32_t len = (uint32_t)(b->len - at);
    memcpy(b->data + at + 4, &len, sizeof(len));
    uint32_t crc = mcfs_crc32c(0, b->data + at + 4, len - 4);
    memcpy(b->data + at, &crc, sizeof(crc));
}

static void take_key(struct mcfs_cursor *c, struct mcfs_slice *key)
{
    uint32_t len = mcfs_cursor_u32(c);
    const uint8_t *bytes = mcfs_cursor_bytes(c, len);
    *key = mcfs_slice(bytes, bytes ? len : 0);
    if (!bytes || !storage_key_is_valid(*key))
        c->failed = true;
}

static void take_put(struct mcfs_cursor *c, struct offset_log_record *r)
{
    r->replaces = mcfs_cursor_u64(c);
    r->version = mcfs_cursor_u64(c);
    r->offset = mcfs_cursor_u64(c);
    r->size = mcfs_cursor_u32(c);
    r->crc32c = mcfs_cursor_u32(c);
    attr_record_take(c, &r->attr);
    r->data_type = mcfs_cursor_u8(c);
    uint8_t flags = mcfs_cursor_u8(c);
    r->has_crc = flags & PUT_HAS_CRC;
    r->record_crc = flags & PUT_RECORD_CRC;
    r->bare = flags & PUT_BARE;
    take_key(c, &r->key);
    /* A record's own checksum can only be told from the value's. */
    if (flags & ~(PUT_HAS_CRC | PUT_RECORD_CRC | PUT_BARE) || (r->record_crc && !r->has_crc) ||
        (r->bare && (r->key.len < sizeof(MCFS_DEFAULT_TENANT) ||
                     memcmp(r->key.data, MCFS_DEFAULT_TENANT, sizeof(MCFS_DEFAULT_TENANT)) != 0)))
        c->failed = true;
}

size_t offset_log_parse_record(const void *data, size_t len, struct offset_log_record *r)
{
    struct mcfs_cursor c = mcfs_cursor(data, len);
    *r = (struct offset_log_record){0};
    uint32_t crc = mcfs_cursor_u32(&c), whole = mcfs_cursor_u32(&c);
    if (c.failed || whole < OFFSET_LOG_RECORD_MIN || whole > RECORD_MAX || whole > len ||
        crc != mcfs_crc32c(0, (const uint8_t *)data + 4, whole - 4))
        return 0;
    c = mcfs_cursor((const uint8_t *)data + 8, whole - 8);
    r->type = mcfs_cursor_u8(&c);
    uint64_t first = mcfs_cursor_u64(&c);
    r->seq = first;
    switch (r->type) {
    case OFFSET_LOG_PUT:
        take_put(&c, r);
        break;
    case OFFSET_LOG_DELETE:
        break;
    case OFFSET_LOG_ATTR:
        attr_record_take(&c, &r->attr);
        break;
    case OFFSET_LOG_REKEY:
        r->new_seq = mcfs_cursor_u64(&c);
        r->version = mcfs_cursor_u64(&c);
        take_key(&c, &r->key);
        break;
    case OFFSET_LOG_SYNC:
        r->position = first;
        break;
    default:
        return 0;
    }
    return c.failed || mcfs_cursor_left(&c) ? 0 : whole;
}
