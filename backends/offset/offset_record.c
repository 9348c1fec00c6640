/* SPDX-License-Identifier: Apache-2.0 */
#include "backends/offset/offset_record.h"

#include "common/cursor.h"

#define FLAG_CRC 1u
#define ALIGN 4096ull

const char *offset_record_parse(const void *head, size_t len, struct offset_record *out)
{
    struct mcfs_cursor c = mcfs_cursor(head, len);
    *out = (struct offset_record){0};
    out->key_len = mcfs_cursor_u32(&c);
    out->value_len = mcfs_cursor_u32(&c);
    out->seq = mcfs_cursor_u64(&c);
    uint32_t flags = mcfs_cursor_u32(&c);
    out->crc32c = mcfs_cursor_u32(&c);
    if (c.failed)
        return "the record is cut short";
    if (out->key_len == 0 || out->key_len > OFFSET_KEY_MAX)
        return "there is no record";
    if (flags & ~FLAG_CRC)
        return "the record has unknown flags";
    out->has_crc = flags & FLAG_CRC;
    out->value_at = (OFFSET_RECORD_HEAD + (uint64_t)out->key_len + ALIGN - 1) / ALIGN * ALIGN;
    out->length = out->value_at + out->value_len;
    return NULL;
}
