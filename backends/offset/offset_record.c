/* SPDX-License-Identifier: Apache-2.0 */
#include "backends/offset/offset_record.h"

#include "common/crc32c.h"
#include "common/cursor.h"

#define FLAG_CRC 1u
#define ALIGN 4096ull

uint64_t offset_record_value_at(uint32_t key_len)
{
    return (OFFSET_RECORD_HEAD + (uint64_t)key_len + ALIGN - 1) / ALIGN * ALIGN;
}

void offset_record_build(void *head, const void *key, uint32_t key_len, uint32_t value_len,
                         uint64_t seq, bool has_crc, uint32_t value_crc)
{
    uint8_t *at = head;
    uint32_t flags = has_crc ? FLAG_CRC : 0, crc = 0;
    memcpy(at, &key_len, 4);
    memcpy(at + 4, &value_len, 4);
    memcpy(at + 8, &seq, 8);
    memcpy(at + 16, &flags, 4);
    if (has_crc) {
        crc = mcfs_crc32c(mcfs_crc32c(0, at, OFFSET_RECORD_SUMMED), key, key_len);
        crc = mcfs_crc32c_combine(crc, value_crc, value_len);
    }
    memcpy(at + 20, &crc, 4);
}

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
    out->value_at = offset_record_value_at(out->key_len);
    out->length = out->value_at + out->value_len;
    return NULL;
}
