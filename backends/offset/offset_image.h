/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_BACKENDS_OFFSET_IMAGE_H
#define MCFS_BACKENDS_OFFSET_IMAGE_H

/*
 * What our files say is stored in a directory: kv_cache.index and what kv_cache.journal adds to it,
 * held against kv_cache.data.  The store's recovery, views and fsck all read it by this code.
 *
 * Thread safety: none.
 */

#include "backends/evict_order.h"
#include "backends/finding.h"
#include "backends/offset/offset_log.h"

#include <stdatomic.h>

#define OFFSET_INDEX "kv_cache.index"
#define OFFSET_JOURNAL "kv_cache.journal"
#define OFFSET_FILE_MAX (16ull << 30) /* bytes of an index, journal or checkpoint */

/* What is known of a value's bytes; what was put is good. */
enum offset_check { OFFSET_UNCHECKED, OFFSET_GOOD, OFFSET_BAD };

/* An object, and where its record lies. */
struct offset_entry {
    struct offset_entry *before, *after; /* of the list that it is in */
    char *key;                           /* storage key */
    uint64_t version, seq, offset;       /* offset: of the record in kv_cache.data */
    struct evict_link evict;             /* under its stripe's lock */
    struct mcfs_attr attr;
    uint32_t key_len;
    uint32_t size, crc32c;      /* of the value */
    uint32_t node;              /* the allocator's */
    _Atomic uint32_t refs;      /* readers, and scans that stand here */
    struct offset_entry *waits; /* the next one in the list of dead entries */
    union {
        uint64_t position; /* while the journal is replayed: of its PUT; 0: from the index */
        uint64_t gone_at;  /* dead: the end of the journal behind its DELETE */
    };
    uint8_t data_type;
    bool has_crc;    /* crc32c is known */
    bool record_crc; /* the record carries a checksum */
    bool bare;       /* its key stands on disk without "default", 0x00 */
    bool head_stale; /* the record's head has another name than the object */
    bool dead;       /* in no index any more */
    _Atomic(enum offset_check) checked;
};

struct offset_list {
    struct offset_entry *first, *last;
};

void offset_list_add(struct offset_list *l, struct offset_entry *e);
void offset_list_del(struct offset_list *l, struct offset_entry *e);

/* The entries of a list in the order of their offsets. */
struct offset_by_place {
    struct offset_entry **v; /* malloc'ed */
    size_t n;
};

/* Sorts a list's entries; 0, or -1 without memory. */
int offset_list_by_place(const struct offset_list *l, struct offset_by_place *out,
                         struct mcfs_error *err);

/* The one at an offset, or NULL. */
struct offset_entry *offset_at_place(const struct offset_by_place *all, uint64_t offset);

struct offset_entry *offset_entry_new(struct mcfs_slice key);
void offset_entry_free(struct offset_entry *e);
void offset_list_free(struct offset_list *l);

static inline struct mcfs_slice offset_entry_key(const struct offset_entry *e)
{
    return mcfs_slice(e->key, e->key_len);
}

/* The storage key as it stands, or should stand, in the record. */
struct mcfs_slice offset_entry_disk_key(const struct offset_entry *e);

/* Where the value begins in kv_cache.data, and how long the whole record is. */
uint64_t offset_entry_value(const struct offset_entry *e);
uint64_t offset_entry_length(const struct offset_entry *e);

/* Its PUT record. */
struct offset_log_record offset_entry_record(const struct offset_entry *e);

enum offset_image_state {
    OFFSET_IMAGE_NONE,         /* there is no index, or none that can be read */
    OFFSET_IMAGE_NOTHING_KEPT, /* the last owner kept nothing */
    OFFSET_IMAGE_STALE,        /* kv_cache.meta is another program's since */
    OFFSET_IMAGE_OURS,
};

struct offset_image {
    enum offset_image_state state;
    struct offset_log_head head; /* of the index; zero without one */
    struct offset_digest meta;   /* of the kv_cache.meta that lies there */
    struct offset_list entries;  /* in the order in which they were put */
    uint64_t insert_seq;         /* greater than any seq in use */
    uint64_t journal_end;        /* position behind its last whole record */
    uint64_t count, dropped;
    bool has_journal;     /* there is one that goes on from the index */
    bool clean;           /* index and journal are as an orderly end leaves them */
    bool index_damaged;   /* it is there, and cannot be read (any more than in part) */
    bool journal_damaged; /* not only its tail is torn, or it is another index's */
};

/* Reads it; what is dropped goes to the sink (may be NULL).  data_fd: of kv_cache.data, -1 when it
 * is missing.  Returns 0 or -1; offset_list_free(&out->entries) in either case. */
int offset_image_load(const char *dir, int data_fd, const struct finding_sink *sink,
                      struct offset_image *out, struct mcfs_error *err);

/* The digest of bytes that are, or will be, kv_cache.meta. */
struct offset_digest offset_digest(const void *data, size_t len);

/* For tests of the parsers: replays the bytes of an index and of a journal. */
int offset_image_replay(struct mcfs_slice index, struct mcfs_slice journal,
                        const struct finding_sink *sink, struct offset_image *out,
                        struct mcfs_error *err);

#endif
