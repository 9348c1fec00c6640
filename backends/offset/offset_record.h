/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_BACKENDS_OFFSET_RECORD_H
#define MCFS_BACKENDS_OFFSET_RECORD_H

/*
 * A record of `kv_cache.data`, little-endian: u32 key_len, u32 value_len, u64 seq, u32 flags (1:
 * the checksum is there), u32 CRC-32C over bytes 0..19, key and value; the storage key; zeros up to
 * the next multiple of 4096 from the record's start; the value.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define OFFSET_RECORD_HEAD 24u
#define OFFSET_RECORD_SUMMED 20u /* bytes of the head under the checksum */
#define OFFSET_KEY_MAX (1u << 20)

struct offset_record {
    uint32_t key_len, value_len, crc32c;
    uint64_t seq;
    bool has_crc;
    uint64_t value_at; /* from the record's start */
    uint64_t length;   /* of all of it */
};

/* Where the value of a record with a key of so many bytes begins, from the record's start. */
uint64_t offset_record_value_at(uint32_t key_len);

/* Writes the head, of OFFSET_RECORD_HEAD bytes, for a record whose key is `key`; value_crc: of the
 * value, used when the record is to carry a checksum. */
void offset_record_build(void *head, const void *key, uint32_t key_len, uint32_t value_len,
                         uint64_t seq, bool has_crc, uint32_t value_crc);

/* Takes a head of OFFSET_RECORD_HEAD bytes apart; NULL, or what is wrong with it. */
const char *offset_record_parse(const void *head, size_t len, struct offset_record *out);

#endif
