/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_BACKENDS_OFFSET_LOG_H
#define MCFS_BACKENDS_OFFSET_LOG_H

/*
 * The two files that we keep beside Mooncake's kv_cache.data and kv_cache.meta, which it ignores:
 *
 *   kv_cache.index     what is stored, as of a checkpoint: a PUT record for each object
 *   kv_cache.journal   what has happened since then
 *
 * Both are a header and then records, all integers little-endian.
 *
 *   header  8 bytes "MCFSOFS\0", u32 format (1), u32 kind (1 index, 2 journal), u32 flags (1: the
 *           data file holds nothing of value), u32 CRC-32C of the kv_cache.meta that was written
 *           with this index, u64 its size; u64 size of the one that it replaced, u32 CRC-32C of
 *           that (size 0: there was none), u32 0; u64 epoch, u64 position, u64 insert_seq,
 *           u64 records that follow (index), u64 size and i64 modification time in ns of
 *           kv_cache.data as the checkpoint left it, u32 0, u32 CRC-32C of the 100 bytes before
 *   record  u32 CRC-32C of what follows, u32 length of the whole record, u8 type, body
 *
 * The journal's records have positions: its header's for the first, and on from there by their
 * lengths.  An index's position says which records it contains already: those before it.
 *
 *   PUT     u64 seq, u64 seq of the record that it replaces (2^64 - 1: none), u64 version,
 *           u64 offset of the record in kv_cache.data; u32 size of the value, u32 CRC-32C of the
 *           value, u32 mode, uid, gid; i64 mtime_ns; u8 data_type, u8 flags (1: the CRC-32C is
 *           known, 2: the record in kv_cache.data carries its own checksum, 4: its key stands there
 *           without "default", 0x00); u32 key_len, storage key
 *   DELETE  u64 seq
 *   ATTR    u64 seq; u32 mode, uid, gid; i64 mtime_ns
 *   REKEY   u64 seq, new seq, new version; u32 key_len, new storage key
 *   SYNC    u64 position: the data of every PUT before it is durable
 *
 * seq is the number in the head of the record in kv_cache.data, and names an object within the
 * store.  The epoch is chosen anew when a store begins with an empty data file; index and journal
 * belong together when they have the same.
 */

#include "common/buf.h"
#include <mooncakefs/backend.h>

#define OFFSET_LOG_HEAD 104u
#define OFFSET_LOG_RECORD_MIN 9u
#define OFFSET_SEQ_NONE UINT64_MAX
#define OFFSET_LOG_NOTHING_KEPT 1u

enum offset_log_kind { OFFSET_LOG_INDEX = 1, OFFSET_LOG_JOURNAL = 2 };

/* Tells one kv_cache.meta from another; size 0: there is none. */
struct offset_digest {
    uint64_t size;
    uint32_t crc32c;
};

struct offset_log_head {
    uint32_t kind, flags;
    struct offset_digest meta, meta_before;
    uint64_t epoch, position, insert_seq, count, data_size;
    int64_t data_mtime_ns;
};

enum offset_log_type {
    OFFSET_LOG_PUT = 1,
    OFFSET_LOG_DELETE,
    OFFSET_LOG_ATTR,
    OFFSET_LOG_REKEY,
    OFFSET_LOG_SYNC
};

struct offset_log_record {
    enum offset_log_type type;
    uint64_t seq, replaces, new_seq, version, offset;
    uint64_t position; /* SYNC */
    struct mcfs_attr attr;
    uint32_t size, crc32c;
    uint8_t data_type;
    bool has_crc, record_crc, bare;
    struct mcfs_slice key; /* storage key */
};

void offset_log_put_head(struct mcfs_buf *b, const struct offset_log_head *h);
void offset_log_put_record(struct mcfs_buf *b, const struct offset_log_record *r);

/* Takes a header apart; 0, or -1: INVALID_VERSION for a format that is newer than ours,
 * INVALID_PARAMS for what is none. */
int offset_log_parse_head(const void *data, size_t len, enum offset_log_kind kind,
                          struct offset_log_head *out, struct mcfs_error *err);

/* Takes the record at data apart; its key points into data.  Returns its length, or 0 when no
 * whole, valid record is there. */
size_t offset_log_parse_record(const void *data, size_t len, struct offset_log_record *r);

#endif
