/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_MASTER_RECORD_H
#define MCFS_MASTER_RECORD_H

/*
 * How the directory keeps an object: one cache line beside the key for an object with a single
 * LOCAL_DISK replica, a side record in addition for everything rarer.  What reads change (leases)
 * lies elsewhere, in a shared mapping indexed by the same slot, so that serving reads while a
 * checkpoint's child lives copies no page.
 */

#include "common/arena.h"
#include "master/directory.h"
#include "master/gate.h"
#include "master/group_lease.h"
#include "master/intern.h"
#include "master/lease.h"
#include "master/soft_pin.h"
#include "master/tree.h"

#include <pthread.h>
#include <stdatomic.h>

#define SLOT_BITS 28
#define SLOT_MAX ((1u << SLOT_BITS) - 1)
#define KEY_UNIT 8
#define ARENA_STRIPES 64
#define USAGE_LOCKS 64

enum record_flag {
    RECORD_HARD_PIN = 1u << 0,
    RECORD_ADOPTED = 1u << 1,  /* not put since this master started: old leases on it are unknown */
    RECORD_INLINE = 1u << 2,   /* `node` holds a LOCAL_DISK replica with id = version */
    RECORD_SOFT_PIN = 1u << 4, /* may have a soft pin */
    RECORD_UNCONFIRMED = 1u << 3, /* the inline replica comes from a snapshot, not from its node */
};

struct record {
    uint32_t key; /* block in the key arena; 0: the slot is free */
    uint16_t key_len;
    uint16_t flags;
    uint64_t size : 48, tenant : 16;
    uint64_t put_start_ms : 48, hash : 16;
    uint64_t version;
    int64_t mtime_ns;
    uint32_t dir, place; /* in the tree */
    uint32_t attr;       /* interned mode, uid, gid */
    uint32_t putter;     /* client number */
    uint32_t side;       /* block in the key arena, or 0 */
    uint16_t node;       /* client number of the inline replica */
    uint8_t generation;  /* of the inventory that confirmed it */
    uint8_t data_type;
};
_Static_assert(sizeof(struct record) == 64, "one cache line");

/* A replica that is not the inline one. */
struct side_replica {
    uint64_t id, size;
    union {
        struct {
            uint32_t payload_off; /* the snapshot payload of kinds that are only carried through */
            uint32_t payload_len;
        };
        uint64_t address; /* MEMORY */
    };
    uint32_t node; /* client number, for LOCAL_DISK; in the segment's allocator, for MEMORY */
    uint8_t type;
    int8_t status;
    union {
        struct {
            uint8_t generation;
            uint8_t unconfirmed;
        };
        uint16_t segment; /* MEMORY */
    };
};
_Static_assert(sizeof(struct side_replica) == 32, "what there is for each replica");

struct side {
    uint32_t bytes; /* of the whole block */
    uint32_t count; /* replicas */
    uint64_t checksum;
    int64_t lease_ms; /* as restored; the live lease is in the lease table */
    uint16_t group_len;
    uint8_t has_checksum;
    uint8_t pad;
    uint32_t group_off; /* from the block's start */
    struct side_replica replicas[];
};

struct shard {
    pthread_mutex_t lock;
    uint32_t mask; /* table size - 1 */
    uint32_t count;
} __attribute__((aligned(64)));

struct pending_put;

struct directory {
    struct directory_config config;
    struct gate gate;
    struct arena *records; /* 64-byte units: block number = slot */
    struct arena *keys;
    struct record *record_base;
    uint8_t *key_base;
    struct lease_table *leases;
    struct group_leases *groups;
    struct soft_pins *soft_pins;
    struct tree *tree;
    struct intern *tenants, *clients, *attrs;
    uint32_t *table; /* all shards' hash tables, see shard_table.h */
    uint64_t table_bytes;
    struct shard shards[MCFS_SHARD_COUNT];
    struct pending_table *pending;
    struct put_spaces *put_spaces;
    struct segments *segments;
    _Atomic uint64_t next_id;
    _Atomic uint64_t node_objects[65536]; /* replicas by client number */
    _Atomic uint8_t node_generation[65536];
    _Atomic uint64_t *tenant_objects, *tenant_bytes; /* by tenant number */
    _Atomic uint64_t *tenant_reserved;               /* bytes of puts that have not ended */
    /* By tenant; taken behind shards and before the tree, where there are quotas: from the look at
     * what a tenant has until the change is made. */
    pthread_mutex_t usage_locks[USAGE_LOCKS];
    _Atomic uint64_t objects, object_bytes;
    _Atomic uint64_t lookups, puts, removes, evicted_replicas, evicted_bytes;
    /* Memory replicas that a restore could not keep: of segments that are not there, and whose
     * range is not theirs. */
    _Atomic uint64_t lost_segments, lost_ranges;
    _Atomic uint64_t restored_replicas; /* that were kept */
    int64_t carried_until_mono_ms;      /* ranges that the snapshot held for failed puts are held */
    int64_t started_mono_ms;
};

static inline struct record *record_at(const struct directory *d, uint32_t slot)
{
    return &d->record_base[slot];
}

/* A lease on a slot from now on; the shard's lock is held.  The ms granted. */
static inline uint32_t lease_grant_now(struct directory *d, uint32_t slot, uint32_t node)
{
    lease_count_granted(d->leases, 1);
    return lease_grant(d->leases, slot, node, d->config.lease_ms, lease_now(d->leases));
}

static inline struct mcfs_slice record_key(const struct directory *d, const struct record *r)
{
    return mcfs_slice(d->key_base + (uint64_t)r->key * KEY_UNIT, r->key_len);
}

static inline struct side *record_side(const struct directory *d, const struct record *r)
{
    return r->side ? (struct side *)(void *)(d->key_base + (uint64_t)r->side * KEY_UNIT) : NULL;
}

/* Where a key belongs: its shard and the rest of its hash. */
struct key_hash {
    uint32_t shard;
    uint64_t hash;
};
struct key_hash key_hash(struct mcfs_slice tenant, struct mcfs_slice key);

/* Checks lengths; INVALID_KEY with a text that says what is wrong. */
int check_key(struct mcfs_slice tenant, struct mcfs_slice key, struct mcfs_error *err);

/* ---- the shards' hash tables (shard_table.c); the caller holds the shard's lock ---- */

int shard_tables_new(struct directory *d, struct mcfs_error *err);
void shard_tables_free(struct directory *d);
uint32_t shard_find(struct directory *d, struct key_hash h, uint32_t tenant, struct mcfs_slice key);
int shard_add(struct directory *d, struct key_hash h, uint32_t slot);
void shard_del(struct directory *d, struct key_hash h, uint32_t slot);
uint32_t shard_slot_at(struct directory *d, uint32_t shard, uint32_t i); /* 0: empty */
void shard_prefetch(struct directory *d, struct key_hash h);
uint32_t shard_first(struct directory *d,
                     struct key_hash h); /* likely slot, for prefetch; no lock */

/* Has the memory fetched side by side that look-ups of n keys (DIRECTORY_AHEAD_MAX at most) will
 * need; no lock. */
void record_fetch_ahead(struct directory *d, const struct key_hash *h,
                        const struct mcfs_slice *keys, uint32_t n);

/* ---- records (record.c); the caller holds the shard's lock ---- */

/* A new record with its key, in the shard's table; 0 without memory.  Fill it in, then record_show.
 */
uint32_t record_insert(struct directory *d, struct key_hash h, uint32_t tenant,
                       struct mcfs_slice key, uint64_t size, int64_t mtime_ns);

/* Puts a record whose fields are all set under its directory, where listings find it; 0 or -1
 * without memory. */
int record_show(struct directory *d, uint32_t slot);

/* Out of table, tree and memory. */
void record_delete(struct directory *d, struct key_hash h, uint32_t slot);

/* Sets the size and keeps the sums right. */
void record_set_size(struct directory *d, struct record *r, uint64_t size);

/* The group that the object belongs to; empty when none. */
struct mcfs_slice record_group(const struct directory *d, const struct record *r);

/* A side block without replicas that names a group, for the record of a key; 0 without memory.  It
 * becomes the record's by `side` once the record has none. */
uint32_t record_new_group(struct directory *d, struct key_hash h, struct mcfs_slice group);
/* The same with room for so many replicas, none of which counts yet. */
uint32_t record_new_side(struct directory *d, struct key_hash h, struct mcfs_slice group,
                         uint32_t replicas);
/* Frees such a block that no record has, with the ranges of its memory replicas. */
void record_free_group(struct directory *d, uint32_t block);

/* Pins the object softly for ms from now, 0: not any more; 0 or -1 without memory. */
int record_set_soft_pin(struct directory *d, uint32_t slot, uint64_t ms);

/* Makes the inline LOCAL_DISK replica the only one. */
void record_set_inline(struct directory *d, struct record *r, uint32_t node, uint8_t generation);

/* Forgets all replicas (counts kept right). */
void record_drop_replicas(struct directory *d, struct record *r);

/* Adds a LOCAL_DISK replica beside what is there, or confirms it.  0 or -1 without memory. */
int record_confirm_replica(struct directory *d, uint32_t shard, struct record *r, uint32_t node,
                           uint8_t generation);

/* Takes the node's replicas of other generations out.  Returns whether the object has a replica
 * left. */
bool record_withdraw(struct directory *d, struct record *r, uint32_t node, uint8_t generation);

/* Takes the node's replica out, whatever its generation.  Returns the same. */
bool record_withdraw_node(struct directory *d, struct record *r, uint32_t node);

/* Whether the node stores the record's version. */
bool record_has_node(struct directory *d, const struct record *r, uint32_t node);

/* Tells every other node that stores this version that it is nobody's.  Returns whether `client`
 * stores it. */
bool record_discard_elsewhere(struct directory *d, const struct record *r, uint32_t client);

int record_set_attr(struct directory *d, struct record *r, const struct mcfs_attr *attr);
struct mcfs_attr record_attr(const struct directory *d, const struct record *r);

#endif
