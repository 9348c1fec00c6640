/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_BACKENDS_BUCKET_LOG_H
#define MCFS_BACKENDS_BUCKET_LOG_H

/*
 * The log of a bucket: `<id>.journal` while the bucket is open, renamed to `<id>.sum` when it is
 * sealed.  It only grows: puts first, then whatever happens to them.  One format and one way to
 * recover serve both.
 *
 *   header  8 bytes "MCFSLOG\0", u32 format, u32 flags (0), u64 bucket id,
 *           u32 crc32c of the 24 bytes before
 *   record  u32 crc32c of what follows, u32 length of the whole record, u8 type, body
 *
 * All integers little-endian.  Bodies:
 *
 *   PUT     u64 version, offset, size; u32 crc32c, mode, uid, gid; i64 mtime_ns; u8 data_type,
 *           u8 flags (1: crc32c is known, 2: the storage key lies before the value,
 *           4: and there and in the .meta without "default", 0x00,
 *           8: moved here from an older bucket, its bytes durable before this record);
 *           u32 key_len, storage key
 *   DELETE  u64 version; u32 key_len, storage key
 *   ATTR    u64 version; u32 mode, uid, gid; i64 mtime_ns; u32 key_len, storage key
 *   REKEY   u64 version, new version; u32 key_len, new key_len; storage key, new storage key
 *   SYNC    u64 offset in the log: the data of every put recorded before it is durable
 *           (0: of every put before this record)
 *
 * A storage key is tenant, 0x00, key (Mooncake's rule).
 *
 * A move of an object (bucket_move.c) is a PUT in the younger bucket and later a DELETE in the
 * older one.  As long as both PUTs are there the younger counts, whatever has happened to the
 * object in the younger log since: a removal or another name there is one of the older copy as
 * well.
 */

#include "common/buf.h"
#include <mooncakefs/backend.h>

#define LOG_FORMAT 1u
#define LOG_HEADER_SIZE 28u
#define LOG_RECORD_MIN 9u
#define LOG_SYNC_SIZE 17u /* of a SYNC record */

enum log_type { LOG_PUT = 1, LOG_DELETE, LOG_ATTR, LOG_REKEY, LOG_SYNC };

struct log_record {
    enum log_type type;
    uint64_t version, new_version;
    uint64_t offset, size;
    struct mcfs_attr attr;
    uint32_t crc32c;
    uint8_t data_type;
    bool has_crc, key_inline, bare, moved;
    uint64_t synced_to;             /* SYNC */
    struct mcfs_slice key, new_key; /* storage keys */
};

void log_put_header(struct mcfs_buf *b, uint64_t bucket_id);

/* Appends a record. */
void log_put_record(struct mcfs_buf *b, const struct log_record *r);

/* Checks a header; 0, or -1: INVALID_VERSION for a format that is newer than ours, else not a log.
 */
int log_parse_header(const void *data, size_t len, uint64_t *bucket_id, struct mcfs_error *err);

/* Takes the record at data apart; its keys point into data.  Returns its length, or 0 when no
 * whole, valid record is there.
 */
size_t log_parse_record(const void *data, size_t len, struct log_record *r);

#endif
