/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_MASTER_DIRECTORY_H
#define MCFS_MASTER_DIRECTORY_H

/*
 * The directory: (tenant, key) -> object, in 1024 shards.
 *
 * A request enters (directory_enter), makes any number of the calls below and leaves; a checkpoint
 * forks while nobody is inside.  Only visible objects are here: a put lives in a table of pending
 * puts until PutEnd, and becomes visible whole, in one step.  Readers of a listing never see half
 * of a change.
 *
 * Nothing that a node holds a lease on is removed or replaced: such a call starts a recall and
 * fails with OBJECT_HAS_LEASE, and its caller comes again until the holders have answered or the
 * lease has ended.
 *
 * Lock order: shard (two of them in ascending order), a tenant's usage, tree, arena stripe; the
 * ranges of puts, the segments' table, one segment, held ranges.  The recall table and the nodes'
 * lists have their own innermost locks.
 */

#include "common/buf.h"
#include "master/segments.h"
#include <mooncakefs/error.h>
#include <mooncakefs/object.h>
#include <stdbool.h>
#include <stdint.h>

struct directory;

#define GROUP_NAME_MAX 255

struct directory_config {
    uint32_t lease_ms;           /* default_kv_lease_ttl */
    uint32_t soft_pin_ms;        /* default_kv_soft_pin_ttl */
    uint32_t put_discard_ms;     /* put_start_discard_timeout */
    uint32_t put_release_ms;     /* put_start_release_timeout; at least the former */
    uint64_t memory_limit_bytes; /* admission stops here with NO_AVAILABLE_HANDLE; 0: no limit */
    /* Asks a node's mount to give up its leases on a key (called with a shard locked; must not
     * block). */
    void (*recall)(void *arg, uint32_t node, struct mcfs_slice tenant, struct mcfs_slice key,
                   uint64_t version);
    /* Tells that a node stores a version that is nobody's any more (same conditions). */
    void (*discard)(void *arg, uint32_t node, struct mcfs_slice tenant, struct mcfs_slice key,
                    uint64_t version);
    /* Whether a node is connected. */
    bool (*connected)(void *arg, uint32_t node);
    /* Where a node is reached, for a snapshot; bytes that last. */
    struct mcfs_slice (*endpoint)(void *arg, uint32_t node);
    /* Whether a node may hold a lease that this master gave. */
    bool (*may_hold_lease)(void *arg, uint32_t node);
    /* Whether every mount that may hold a lease of an earlier master has been heard of. */
    bool (*leases_known)(void *arg);
    /* Bytes that a tenant may store, or -1 with err when it may write nothing; NULL: no quotas. May
     * be called with shards locked. */
    int (*quota)(void *arg, struct mcfs_slice tenant, uint64_t *bytes, struct mcfs_error *err);
    void *arg;
};

/* A config to start from where no master runs around the directory: notices go nowhere, and either
 * every node is connected and reached at `endpoint` (a text that lasts), or, with NULL, none is. */
struct directory_config directory_alone(const char *endpoint);

struct directory *directory_new(const struct directory_config *config, struct mcfs_error *err);
void directory_free(struct directory *d);

/* Everything a request does with the directory happens between these two. */
unsigned directory_enter(struct directory *d);
void directory_leave(struct directory *d, unsigned slot);

/* Number for a node's or client's id, as used below; 0 without memory. */
uint32_t directory_client(struct directory *d, struct mcfs_id id);
struct mcfs_id directory_client_id(struct directory *d, uint32_t client);

/* ---- look-up ---- */

#define VIEW_REPLICAS_MAX 16

struct replica_view {
    uint64_t id, size;
    uint8_t type;   /* enum mcfs_replica_type */
    uint8_t status; /* enum mcfs_replica_status */
    bool connected; /* its node answers */
    uint32_t node;  /* client number, 0 where the kind has no node */
    /* MEMORY: where it lies, as segments_get takes it. */
    uint32_t segment, serial;
    uint64_t address;
};

/* A copy of what the directory knows of an object. */
struct object_view {
    uint64_t version, size;
    struct mcfs_attr attr;
    uint32_t lease_ms; /* granted by this call; 0: do not cache */
    uint32_t shard;
    uint64_t cookie; /* of a listing that goes on behind it */
    uint8_t data_type;
    bool hard_pin;
    bool has_checksum;
    uint64_t checksum;
    uint64_t soft_pin_ms; /* that are left; 0: not pinned */
    uint32_t replica_count;
    uint8_t group_len;          /* what stands before is set in any case, */
    char group[GROUP_NAME_MAX]; /* of these only as much as there is */
    struct replica_view replicas[VIEW_REPLICAS_MAX];
};

/* Finds an object.  With node != 0 the node gets a lease.  OBJECT_NOT_FOUND, INVALID_KEY. */
int directory_get(struct directory *d, struct mcfs_slice tenant, struct mcfs_slice key,
                  uint32_t node, struct object_view *out, struct mcfs_error *err);

/* The same for many keys of a tenant, several times as fast as one by one, because the memory that
 * they need is fetched side by side.  fn is called for each in turn, outside of all locks: view is
 * NULL when there is no such object, and err says why. */
void directory_get_batch(struct directory *d, struct mcfs_slice tenant,
                         const struct mcfs_slice *keys, uint32_t n, uint32_t node,
                         void (*fn)(uint32_t i, const struct object_view *view,
                                    const struct mcfs_error *err, void *arg),
                         void *arg);

/* Whether keys exist below `path` + "/"; *mtime_ns gets the directory's time. */
bool directory_is_dir(struct directory *d, struct mcfs_slice tenant, struct mcfs_slice path,
                      int64_t *mtime_ns);

/* One name of a listing. */
struct list_entry {
    struct mcfs_slice name; /* last component, raw */
    bool is_dir;
    bool shadowed;          /* an object whose name is a directory's too */
    uint64_t cookie;        /* resumes behind this entry */
    uint64_t version, size; /* objects */
    struct mcfs_attr attr;  /* dirs: mtime only */
};

/* Visits up to `max` children of the directory `path` ("" is the root, else it ends in '/') behind
 * a cookie (0: from the start), with names_only without sizes, versions and attributes; slices live
 * during the call of fn only.  *next gets the cookie to go on with, 0 at the end. OBJECT_NOT_FOUND
 * when there is no such directory. */
int directory_list(struct directory *d, struct mcfs_slice tenant, struct mcfs_slice path,
                   uint64_t cookie, uint32_t max, bool names_only,
                   void (*fn)(const struct list_entry *entry, void *arg), void *arg, uint64_t *next,
                   struct mcfs_error *err);

/* ---- put ---- */

#define SOFT_PIN_DEFAULT UINT64_MAX
#define SOFT_PIN_MAX_MS (365ull * 86400 * 1000)

struct put_start {
    struct mcfs_slice tenant, key;
    uint64_t size;
    uint32_t client; /* who puts */
    bool upsert;     /* replacing is meant; else OBJECT_ALREADY_EXISTS */
    /* What the object gets at PutEnd; what is not said stays as it is with one that is replaced. */
    bool hard_pin;
    bool has_soft_pin;
    uint64_t soft_pin_ms; /* SOFT_PIN_DEFAULT: the default's */
    bool has_group;
    struct mcfs_slice group; /* at most GROUP_NAME_MAX bytes; empty: none */
    bool in_memory;          /* set by directory_put_start_memory */
};

/* Begins a put; *version names it from here on.  TENANT_QUOTA_EXCEEDED, TENANT_NOT_REGISTERED. */
int directory_put_start(struct directory *d, const struct put_start *p, uint64_t *version,
                        struct mcfs_error *err);

struct memory_replica {
    struct segment_range range;
    uint64_t id;
};

/* A put into memory segments instead of the putting node's store. */
struct memory_put {
    uint64_t replica_num;
    enum segment_strategy strategy;
    const struct mcfs_slice *preferred; /* names of segments */
    uint32_t preferred_count;
    bool again; /* it was asked for before, and found no room */
    /* Filled in: where to write; fewer than asked for where there is no room for all. */
    uint32_t count;
    struct memory_replica replicas[SEGMENT_REPLICAS_MAX];
    bool full; /* it failed, and would not have in emptier segments */
};

/* Begins a put into memory; PutEnd then makes the object visible with these replicas, and its size
 * must be the one that was named here.  NO_AVAILABLE_HANDLE, INVALID_PARAMS, and what
 * directory_put_start fails with. */
int directory_put_start_memory(struct directory *d, const struct put_start *p, struct memory_put *m,
                               uint64_t *version, struct mcfs_error *err);

/* The segments, whose replicas the directory holds. */
struct segments *directory_segments(struct directory *d);

struct put_end {
    struct mcfs_slice tenant, key;
    uint64_t version;
    uint32_t client; /* the node that put and now stores the bytes */
    uint64_t size;
    struct mcfs_attr attr;
    uint8_t data_type;
    bool no_replace; /* OBJECT_ALREADY_EXISTS when the key is there */
    struct mcfs_slice
        from;              /* rename: the key whose bytes these were, taken out in the same step; */
    uint64_t from_version; /* its version; 0: this is no rename */
};

struct put_result {
    uint64_t replaced_version; /* that the calling node stores and may now drop; 0: none */
    bool superseded;           /* a later put has overtaken this one: its bytes are nobody's */
    uint32_t lease_ms;
    uint32_t shard;
};

/* Makes a put visible.  Doing it again is success.  OBJECT_HAS_LEASE: come again; the put stays
 * pending. */
int directory_put_end(struct directory *d, const struct put_end *p, struct put_result *out,
                      struct mcfs_error *err);

/* Gives a put up.  Doing it again is success. */
int directory_put_revoke(struct directory *d, uint64_t version, uint32_t client,
                         struct mcfs_error *err);

/* Two objects whose bytes `client` stores and has given each other's keys, under versions that
 * PutStart handed out. */
struct exchange {
    struct mcfs_slice tenant;
    uint32_t client;
    struct exchange_side {
        struct mcfs_slice key;
        uint64_t version;     /* that the key has now */
        uint64_t new_version; /* of the other's content under this key */
    } side[2];
};

/* Gives two objects each other's names in one step; pins go with the content.  Doing it again is
 * success.  OBJECT_NOT_FOUND when a key has another version by now; OBJECT_HAS_LEASE: come again.
 * *lease_ms gets the lease on both. */
int directory_exchange(struct directory *d, const struct exchange *x, uint32_t *lease_ms,
                       struct mcfs_error *err);

/* Gives up puts that were started longer than the discard time ago, so that another put may take
 * their place, and forgets them after the release time, until when a slow writer may still be busy;
 * returns how many were forgotten.  Leases of groups that have ended go, too. */
uint32_t directory_discard_puts(struct directory *d);

/* ---- change ---- */

/* Removes an object.  version 0: whatever is there.  *removed gets the version that was removed
 * from `client`'s store (0 when it stored none).  OBJECT_NOT_FOUND, OBJECT_HAS_LEASE; a hard pin
 * without force is ILLEGAL_CLIENT (EPERM).  With force holders of leases are told, and not waited
 * for. */
int directory_remove(struct directory *d, struct mcfs_slice tenant, struct mcfs_slice key,
                     uint64_t version, uint32_t client, bool force, uint64_t *removed,
                     struct mcfs_error *err);

#define SET_MODE 1u
#define SET_UID 2u
#define SET_GID 4u
#define SET_MTIME 8u

/* Changes attributes; *attr holds the new values and gets the result. */
int directory_set_attr(struct directory *d, struct mcfs_slice tenant, struct mcfs_slice key,
                       uint64_t version, uint32_t client, uint32_t valid, struct mcfs_attr *attr,
                       struct mcfs_error *err);

/* Pins softly for ms (SOFT_PIN_DEFAULT: the default's; 0: not any more); *ms gets what holds. */
int directory_set_soft_pin(struct directory *d, struct mcfs_slice tenant, struct mcfs_slice key,
                           uint64_t *ms, struct mcfs_error *err);

int directory_set_hard_pin(struct directory *d, struct mcfs_slice tenant, struct mcfs_slice key,
                           bool pin, struct mcfs_error *err);

/* Withdraws the replica of a version at a node that is about to evict it; the object goes with its
 * last one.  ILLEGAL_CLIENT: pinned hard.  OBJECT_REPLICA_BUSY: pinned softly, unless soft_too; or
 * the node is still putting it.  OBJECT_HAS_LEASE: others hold leases, which are recalled; the
 * node's own are no hindrance.  REPLICA_IS_GONE: the directory leads nobody to this version at this
 * node, so that its bytes may go. */
int directory_evict_disk(struct directory *d, struct mcfs_slice tenant, struct mcfs_slice key,
                         uint64_t version, uint32_t node, bool soft_too, struct mcfs_error *err);

/* ---- leases ---- */

/* A holder says that it caches nothing of this key any more. */
void directory_lease_returned(struct directory *d, struct mcfs_slice tenant, struct mcfs_slice key,
                              uint64_t version, uint32_t node);

/* ---- nodes ---- */

/* A node begins to report what it stores; returns the generation to pass below. */
uint8_t directory_inventory_begin(struct directory *d, uint32_t node);

/* The generation of the inventory that the node reports now. */
uint8_t directory_inventory_generation(struct directory *d, uint32_t node);

/* Fetches ahead what the next items will need: n objects, DIRECTORY_AHEAD_MAX at most. */
#define DIRECTORY_AHEAD_MAX 32
void directory_inventory_ahead(struct directory *d, const struct mcfs_object *objects, uint32_t n);

/* One object that the node stores.  Returns 1 when it is (now) this object's replica, 0 when the
 * version is nobody's and the node may drop it, -1 on error. */
int directory_inventory_item(struct directory *d, uint32_t node, uint8_t generation,
                             const struct mcfs_object *object, struct mcfs_error *err);

/* The same for one that the node was evicting when its last process died: nobody's (0), unless the
 * directory has it and it may not go, being pinned or leased. */
int directory_inventory_leaving(struct directory *d, uint32_t node, uint8_t generation,
                                const struct mcfs_object *object, struct mcfs_error *err);

/* The report is complete: what the node did not name is withdrawn.  *dropped gets the number of
 * objects that are gone with their last replica. */
void directory_inventory_end(struct directory *d, uint32_t node, uint8_t generation,
                             uint64_t *dropped);

/* Objects that the node has a replica of. */
uint64_t directory_node_objects(struct directory *d, uint32_t node);

/* ---- checkpoint and restore ---- */

struct snap_object;

/* Closes the door, waits until nobody is inside, calls fn (which forks) and opens it again. Returns
 * fn's result. */
int directory_exclusive(struct directory *d, int (*fn)(void *arg), void *arg);

/* Visits the objects of a shard in (tenant, key) order.  For the forked child: takes no lock. */
int directory_visit_shard(struct directory *d, uint32_t shard,
                          int (*fn)(const struct snap_object *object, void *arg,
                                    struct mcfs_error *err),
                          void *arg, struct mcfs_error *err);
uint64_t directory_shard_objects(struct directory *d, uint32_t shard);

/* Calls fn for every key of a tenant in one shard, in no order; the slices live during the call
 * only.  Takes the shard's lock, so fn must not call the directory. */
void directory_shard_keys(struct directory *d, struct mcfs_slice tenant, uint32_t shard,
                          void (*fn)(struct mcfs_slice key, void *arg), void *arg);

/* Adds an object from a snapshot: kept when it has a complete replica and was not there yet.  A
 * memory replica is kept when its segment is one of the snapshot's (directory_restore_segments came
 * first) and its range is nobody else's; RESTORE_LOST_MEMORY: no other complete one was left.
 * Returns one of these, or -1 on error. */
enum { RESTORE_INCOMPLETE, RESTORE_KEPT, RESTORE_TWICE, RESTORE_LOST_MEMORY, RESTORE_OUTCOMES };
int directory_restore(struct directory *d, const struct snap_object *object,
                      struct mcfs_error *err);

/* Next id for replicas and versions, and its floor after a restore. */
uint64_t directory_next_id(struct directory *d);

/* Whether an address lies in the memory of records, keys and tables, which fork shares. */
bool directory_holds(const struct directory *d, const void *p);
void directory_raise_next_id(struct directory *d, uint64_t id);

/* Takes out everything, as before a restore is tried again. */
void directory_clear(struct directory *d);

void directory_collapse(struct directory *d);

struct directory_stats {
    uint64_t objects, object_bytes, directories, pending_puts, discarded_puts;
    uint64_t memory_bytes; /* records, keys, tables, tree */
    uint64_t leases_granted, recalls, lookups, puts, removes;
    uint64_t evicted_replicas, evicted_bytes;
    /* Memory replicas that the restore could not keep: of segments that the snapshot has not, and
     * whose range is outside of theirs or another's. */
    uint64_t restore_lost_segments, restore_lost_ranges;
    uint64_t restored_replicas;
};
void directory_stats(struct directory *d, struct directory_stats *out);

/* Objects and bytes of one tenant. */
void directory_tenant_stats(struct directory *d, struct mcfs_slice tenant, uint64_t *objects,
                            uint64_t *bytes);

struct tenant_usage {
    uint64_t objects, bytes;
    uint64_t reserved_bytes; /* of puts that have begun and not ended */
};
void directory_tenant_usage(struct directory *d, struct mcfs_slice tenant,
                            struct tenant_usage *out);

/* Calls fn for every tenant that has or had objects. */
void directory_tenants(struct directory *d, void (*fn)(struct mcfs_slice tenant, void *arg),
                       void *arg);

#endif
