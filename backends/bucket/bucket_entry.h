/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_BACKENDS_BUCKET_ENTRY_H
#define MCFS_BACKENDS_BUCKET_ENTRY_H

/*
 * What the index knows of an object, in as few bytes as it takes: there are many millions of them.
 *
 * Entries and buckets lie in one arena, of all bucket stores of the process (common/arena.h), and
 * name each other by its 32-bit numbers; an address is base + number * 8, and does not change.
 * Before an entry lies its place in the order of eviction, in a store that evicts.  Behind its
 * fixed part lie the time, where it has one, and the storage key.  Owner and mode are numbered:
 * few of them are ever in use.
 *
 * An object that gets another name or other attributes, for which its block is too small, has time
 * and key in a block of their own from then on; the entry stays where it is, because readers and
 * moves hold it.
 */

#include "backends/evict_order.h"
#include <mooncakefs/backend.h>

#include <stdatomic.h>

struct bucket;

#define ENTRY_UNIT 8u
#define ENTRY_FAR_KEY UINT16_MAX
#define ENTRY_TIME_BYTES sizeof(int64_t)
#define ENTRY_PLACE_MAX ((1ull << 48) - 1) /* of offsets and sizes: no file is longer */

/* What is known of a value's bytes; what was put is good. */
enum check_state { UNCHECKED, GOOD, BAD };

/* What is kept of the attributes beside the number of mode and owner. */
enum entry_attr_kind { ATTR_NO_TIME, ATTR_TIME, ATTR_WHOLE };

struct entry {
    /* Set before anybody else can see the entry, and then as it is; but for the version, which
     * changes with the key.  Bits of one word must not be under different locks.  The wide ones are
     * read through functions: as they are, they would be added up in 48 bits. */
    uint64_t version;
    uint64_t offset_ : 48, data_type : 8, has_crc : 1, has_link : 1;
    uint64_t size_ : 48;
    uint32_t crc32c;
    uint32_t bucket; /* 0 until it has one */

    /* Under the bucket's lock: */
    uint32_t before, after; /* in its bucket */
    union {
        uint32_t readers;
        uint32_t put_at; /* while the log is replayed: where its PUT record is */
    };

    /* Changes under the stripe's and the bucket's lock, as what is behind it and the key: */
    uint16_t key_len;       /* ENTRY_FAR_KEY: it is too long for the arena, and in the heap */
    uint8_t owner;          /* number of mode, uid and gid */
    uint8_t key_inline : 1, /* the storage key lies before the value */
        bare : 1,           /* on disk without "default", 0x00: from before Mooncake had tenants */
        outside : 1, /* time and key are in a block of their own, whose number is in `tail` */
        attr_kind : 2;

    uint8_t : 0;                 /* no byte is shared by what is under different locks */
    uint8_t dead : 1, moved : 1; /* under the bucket's lock; moved: its PUT record says so */
    _Atomic(uint8_t) checked;    /* since the store was opened */
    char tail[];
};

/* ---- the arena ---- */

/* Makes it, with the first store; 0, or -1. */
int entry_arena_init(struct mcfs_error *err);

extern char *entry_arena_base;

/* A cleared block for a bucket, NULL without memory; what a bucket has been is given back. */
struct bucket *bucket_alloc(size_t bytes);
void bucket_dealloc(struct bucket *b);

static inline void *entry_arena_at(uint32_t number)
{
    return number ? entry_arena_base + (uint64_t)number * ENTRY_UNIT : NULL;
}

static inline uint32_t entry_arena_number(const void *p)
{
    return p ? (uint32_t)((uint64_t)((const char *)p - entry_arena_base) / ENTRY_UNIT) : 0;
}

static inline struct entry *entry_at(uint32_t number)
{
    return entry_arena_at(number);
}

static inline uint32_t entry_number(const struct entry *e)
{
    return entry_arena_number(e);
}

/* Where it lies; it has a bucket. */
static inline struct bucket *entry_bucket(const struct entry *e)
{
    return (struct bucket *)(void *)(entry_arena_base + (uint64_t)e->bucket * ENTRY_UNIT);
}

static inline void entry_set_bucket(struct entry *e, const struct bucket *b)
{
    e->bucket = entry_arena_number(b);
}

static inline struct entry *entry_after(const struct entry *e)
{
    return entry_at(e->after);
}

/* At most ENTRY_PLACE_MAX. */
static inline void entry_set_offset(struct entry *e, uint64_t offset)
{
    e->offset_ = offset & ENTRY_PLACE_MAX;
}

static inline uint64_t entry_offset(const struct entry *e)
{
    return e->offset_;
}

static inline void entry_set_size(struct entry *e, uint64_t size)
{
    e->size_ = size & ENTRY_PLACE_MAX;
}

static inline uint64_t entry_size(const struct entry *e)
{
    return e->size_;
}

/* ---- entries ---- */

/* An entry with nothing but key and attributes; has_link: of a store that evicts.  NULL without
 * memory. */
struct entry *entry_new(struct mcfs_slice key, const struct mcfs_attr *attr, bool has_link);
void entry_free(struct entry *e);

/* Its place in the order of eviction, NULL where nothing is evicted; and back. */
static inline struct evict_link *entry_link(const struct entry *e)
{
    return e->has_link ? (struct evict_link *)(uintptr_t)e - 1 : NULL;
}

static inline struct entry *entry_of_link(const struct evict_link *l)
{
    return (struct entry *)(uintptr_t)(l + 1);
}

/* Held back by an eviction; under its stripe's lock. */
static inline bool entry_is_leaving(const struct entry *e)
{
    const struct evict_link *l = entry_link(e);
    return l && l->leaving;
}

struct mcfs_slice entry_key_elsewhere(const struct entry *e);

/* Its storage key; under the stripe's or the bucket's lock. */
static inline struct mcfs_slice entry_key(const struct entry *e)
{
    if (e->outside || e->attr_kind == ATTR_WHOLE || e->key_len == ENTRY_FAR_KEY)
        return entry_key_elsewhere(e);
    return mcfs_slice(e->tail + (e->attr_kind == ATTR_TIME ? ENTRY_TIME_BYTES : 0), e->key_len);
}

struct mcfs_attr entry_attr(const struct entry *e);

/* Bytes that it takes in the arena. */
uint64_t entry_memory(const struct entry *e);

/* Memory for a change of key or attributes, got before it is known whether there will be one. */
struct entry_room {
    uint32_t block;
    char *far_key;
};

/* Room for a key of this length and these attributes; 0, or -1 without memory.  The entry is as it
 * was; the room is for entry_change or entry_room_free. */
int entry_make_room(const struct entry *e, const struct mcfs_attr *attr, size_t key_len,
                    struct entry_room *room);
void entry_room_free(struct entry_room *room);

/* Gives it this key, which may be its own, and these attributes. */
void entry_change(struct entry *e, const struct mcfs_attr *attr, struct mcfs_slice key,
                  struct entry_room *room);

/* The two for a caller who changes the attributes alone and has nothing to do in between. */
int entry_set_attr(struct entry *e, const struct mcfs_attr *attr);

/* The storage key as it stands on disk. */
static inline struct mcfs_slice entry_disk_key(const struct entry *e)
{
    struct mcfs_slice key = entry_key(e);
    size_t skip = e->bare ? sizeof(MCFS_DEFAULT_TENANT) : 0;
    return mcfs_slice(key.data + skip, key.len - skip);
}

/* Where its bytes begin, an inline key included. */
static inline uint64_t entry_start(const struct entry *e)
{
    return entry_offset(e) - (e->key_inline ? entry_disk_key(e).len : 0);
}

static inline uint64_t entry_length(const struct entry *e)
{
    return entry_offset(e) + entry_size(e) - entry_start(e);
}

#endif
