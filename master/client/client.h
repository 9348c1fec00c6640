/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_MASTER_CLIENT_H
#define MCFS_MASTER_CLIENT_H

/*
 * The master as its nodes and tools call it; the only part of master/ that other rooms include.
 *
 * A node opens a session: it registers under its stable id, reports what it stores, and from then
 * on holds leases and hears recalls on an open connection.  Calls wait while the session is being
 * established (after a restart of the master, too), at most for the timeout.  A tool calls without
 * a session and gets no leases.
 *
 * Every call: 0 or -1 with err; EINTR when cancelled (cancel may be NULL); any thread.
 */

#include "common/rpc/rpc.h"
#include <mooncakefs/error.h>
#include <mooncakefs/object.h>
#include <mooncakefs/object_store.h>

struct mcfs_master;

/* What a node does when the session asks for it.  All run in the session's thread. */
struct mcfs_session_ops {
    /* Calls emit for every stored object; 0 or -1. */
    int (*inventory)(void *arg, bool (*emit)(const struct mcfs_object *object, void *emit_arg),
                     void *emit_arg, struct mcfs_error *err);
    /* Whether an object of the inventory was being evicted when this node's last process died;
     * NULL: none was. */
    bool (*leaving)(void *arg, const struct mcfs_object *object);
    /* This version is nobody's any more: drop it from the store. */
    void (*discard)(void *arg, struct mcfs_slice tenant, struct mcfs_slice key, uint64_t version);
    /* Stop serving this from caches; the lease counts as returned when the function is back. */
    void (*recall)(void *arg, struct mcfs_slice tenant, struct mcfs_slice key, uint64_t version);
    /* The session is lost, and every lease with it: stop serving anything from caches. */
    void (*lost)(void *arg);
    /* Bytes the store can hold and holds, objects in it; for heartbeats. */
    void (*usage)(void *arg, uint64_t *capacity, uint64_t *used, uint64_t *objects);
};

struct mcfs_master_config {
    const char *address;
    uint32_t timeout_ms;
    const struct mcfs_rpc_keys *keys; /* or NULL; outlive the client */
    /* For a session; node_id 0-0 means none. */
    struct mcfs_id node_id;
    const char *node_name;
    const char *endpoint; /* where peers reach the node's data server */
    const struct mcfs_session_ops *ops;
    void *ops_arg;
};

/* With a session: starts its thread and returns once it is established, or fails after the timeout.
 */
struct mcfs_master *mcfs_master_open(const struct mcfs_master_config *config,
                                     struct mcfs_error *err);
void mcfs_master_close(struct mcfs_master *m);

/* Milliseconds of a lease; nodes that were connected at the last heartbeat. */
uint32_t mcfs_master_lease_ms(struct mcfs_master *m);
uint32_t mcfs_master_nodes_seen(struct mcfs_master *m);
bool mcfs_master_session_ready(struct mcfs_master *m);

/* Its number, 0 while there is none.  Another number is another run of the master, which knows
 * nothing of the puts that its predecessor had started. */
uint64_t mcfs_master_session(struct mcfs_master *m);

/* What the node stores has changed without the master's knowledge: the session is made anew, with
 * another inventory.  Calls wait meanwhile; leases are lost, as with any session. */
void mcfs_master_report_again(struct mcfs_master *m);

/* Calls made so far, for metrics. */
uint64_t mcfs_master_calls(struct mcfs_master *m);

#define MCFS_OBJECT_REPLICAS_MAX 8

struct mcfs_master_replica {
    uint64_t id, size;
    uint8_t type, status;
    bool connected;
    char node_id[48], node_name[64], endpoint[160];
};

struct mcfs_master_object {
    uint64_t version, size;
    uint32_t lease_ms;
    struct mcfs_attr attr;
    uint8_t data_type;
    bool hard_pin;
    uint64_t soft_pin_ms; /* that are left; 0: not pinned */
    char group[256];      /* "": none */
    uint32_t shard;
    uint32_t replica_count;
    struct mcfs_master_replica replicas[MCFS_OBJECT_REPLICAS_MAX];
};

int mcfs_master_get(struct mcfs_master *m, struct mcfs_slice tenant, struct mcfs_slice key,
                    struct mcfs_master_object *out, const struct mcfs_cancel *cancel,
                    struct mcfs_error *err);

struct mcfs_master_lookup {
    bool has_object, is_dir;
    struct mcfs_master_object object;
    int64_t dir_mtime_ns;
};
int mcfs_master_lookup(struct mcfs_master *m, struct mcfs_slice tenant, struct mcfs_slice path,
                       struct mcfs_master_lookup *out, const struct mcfs_cancel *cancel,
                       struct mcfs_error *err);

struct mcfs_master_entry {
    struct mcfs_slice name; /* raw; lives during the call of fn */
    bool is_dir, shadowed;
    uint64_t cookie, version, size;
    struct mcfs_attr attr;
};
/* What stands behind a looked-up object in its directory. */
struct mcfs_master_neighbour {
    struct mcfs_slice name; /* last component, raw; lives during the call of fn */
    uint64_t version, size;
    uint32_t lease_ms;
    struct mcfs_attr attr;
};
/* As mcfs_master_lookup, and calls fn for up to `ahead` neighbours, on which the session has a
 * lease, too. */
int mcfs_master_lookup_ahead(struct mcfs_master *m, struct mcfs_slice tenant,
                             struct mcfs_slice path, uint32_t ahead, struct mcfs_master_lookup *out,
                             void (*fn)(const struct mcfs_master_neighbour *n, void *arg),
                             void *arg, const struct mcfs_cancel *cancel, struct mcfs_error *err);

/* One batch of a directory ("" or ending in '/'); *next is the cookie to go on with, 0 at the end.
 */
int mcfs_master_list(struct mcfs_master *m, struct mcfs_slice tenant, struct mcfs_slice dir,
                     uint64_t cookie, uint32_t max,
                     void (*fn)(const struct mcfs_master_entry *entry, void *arg), void *arg,
                     uint64_t *next, const struct mcfs_cancel *cancel, struct mcfs_error *err);

struct mcfs_master_name {
    struct mcfs_slice name; /* raw; lives during the call of fn */
    bool is_dir, shadowed;
    uint64_t cookie;
};
/* The same, names alone, which costs the master half. */
int mcfs_master_list_names(struct mcfs_master *m, struct mcfs_slice tenant, struct mcfs_slice dir,
                           uint64_t cookie, uint32_t max,
                           void (*fn)(const struct mcfs_master_name *name, void *arg), void *arg,
                           uint64_t *next, const struct mcfs_cancel *cancel,
                           struct mcfs_error *err);

int mcfs_master_put_start(struct mcfs_master *m, struct mcfs_slice tenant, struct mcfs_slice key,
                          uint64_t size, bool replace, uint64_t *version,
                          const struct mcfs_cancel *cancel, struct mcfs_error *err);

struct mcfs_master_put_end {
    struct mcfs_slice tenant, key;
    uint64_t version, size;
    struct mcfs_attr attr;
    uint8_t data_type;
    bool no_replace;
    struct mcfs_slice from; /* rename */
    uint64_t from_version;  /* 0: none */
};
struct mcfs_master_put_result {
    uint64_t replaced_version;
    bool superseded;
    uint32_t lease_ms, shard;
};
int mcfs_master_put_end(struct mcfs_master *m, const struct mcfs_master_put_end *p,
                        struct mcfs_master_put_result *out, const struct mcfs_cancel *cancel,
                        struct mcfs_error *err);

/* Two objects that this node stores get each other's names.  Each side's new_version is from
 * mcfs_master_put_start and names the other's content under this key.  OBJECT_HAS_LEASE: again. */
struct mcfs_master_exchange {
    struct mcfs_slice tenant;
    struct {
        struct mcfs_slice key;
        uint64_t version, new_version;
    } side[2];
};
int mcfs_master_exchange(struct mcfs_master *m, const struct mcfs_master_exchange *x,
                         uint32_t *lease_ms, const struct mcfs_cancel *cancel,
                         struct mcfs_error *err);

int mcfs_master_put_revoke(struct mcfs_master *m, uint64_t version, struct mcfs_error *err);

/* *removed: the version that this node's store may drop, or 0.  A repeated request whose first try
 * had removed the object is success. */
int mcfs_master_remove(struct mcfs_master *m, struct mcfs_slice tenant, struct mcfs_slice key,
                       uint64_t version, bool force, uint64_t *removed,
                       const struct mcfs_cancel *cancel, struct mcfs_error *err);

/* Bits: 1 mode, 2 uid, 4 gid, 8 mtime; *attr gets the result. */
int mcfs_master_set_attr(struct mcfs_master *m, struct mcfs_slice tenant, struct mcfs_slice key,
                         uint64_t version, uint32_t valid, struct mcfs_attr *attr,
                         const struct mcfs_cancel *cancel, struct mcfs_error *err);
int mcfs_master_set_pin(struct mcfs_master *m, struct mcfs_slice tenant, struct mcfs_slice key,
                        bool hard, const struct mcfs_cancel *cancel, struct mcfs_error *err);

/* Pins softly for *ms (NULL: the master's default; 0: not any more). */
int mcfs_master_set_soft_pin(struct mcfs_master *m, struct mcfs_slice tenant, struct mcfs_slice key,
                             const uint64_t *ms, const struct mcfs_cancel *cancel,
                             struct mcfs_error *err);

/* One replica that this node is about to evict. */
struct mcfs_master_eviction {
    struct mcfs_slice tenant, key;
    uint64_t version;
    int code; /* what became of it: 0 or REPLICA_IS_GONE: its bytes may go; else why not */
};
#define MCFS_EVICTION_MAX 4096 /* in one batch */
/* Withdraws them, each on its own; asking again is harmless.  OBJECT_HAS_LEASE: the holders have
 * been asked to give up.  soft_too: also what is softly pinned, where the master allows that.  With
 * -1 some may have been withdrawn all the same. */
int mcfs_master_evict(struct mcfs_master *m, struct mcfs_master_eviction *items, uint32_t n,
                      bool soft_too, const struct mcfs_cancel *cancel, struct mcfs_error *err);

/* What became of one object that was to be removed; lives during the call of fn. */
struct mcfs_master_removal {
    struct mcfs_slice key;
    int code;               /* 0: removed */
    uint64_t removed;       /* the version that this node's store may drop, or 0 */
    struct mcfs_slice text; /* why not */
};
/* Removes objects in whose key the pattern is found (NULL: every object of the tenant), a part of
 * the directory at a time: *cursor is 0 at first, and 0 again at the end. */
int mcfs_master_remove_matching(struct mcfs_master *m, struct mcfs_slice tenant,
                                const struct mcfs_slice *pattern, bool force, uint64_t *cursor,
                                void (*fn)(const struct mcfs_master_removal *r, void *arg),
                                void *arg, const struct mcfs_cancel *cancel,
                                struct mcfs_error *err);
/* Finds them in the same way. */
int mcfs_master_get_matching(struct mcfs_master *m, struct mcfs_slice tenant,
                             struct mcfs_slice pattern, uint64_t *cursor,
                             void (*fn)(struct mcfs_slice key, const struct mcfs_master_object *o,
                                        void *arg),
                             void *arg, const struct mcfs_cancel *cancel, struct mcfs_error *err);

struct mcfs_master_node {
    char id[48], name[64], endpoint[160];
    bool connected;
    uint64_t capacity_bytes, used_bytes, objects;
    int64_t silent_ms;
};
int mcfs_master_nodes(struct mcfs_master *m,
                      void (*fn)(const struct mcfs_master_node *node, void *arg), void *arg,
                      struct mcfs_error *err);

/* Memory segments; callers bound to tenants are refused (ILLEGAL_CLIENT). */
struct mcfs_master_segment {
    char id[48], name[256], node_id[48], endpoint[256], state[16];
    uint64_t base, size, used, largest_free, ranges;
};
int mcfs_master_segments(struct mcfs_master *m,
                         void (*fn)(const struct mcfs_master_segment *segment, void *arg),
                         void *arg, struct mcfs_error *err);

int mcfs_master_tenants(struct mcfs_master *m,
                        void (*fn)(struct mcfs_slice tenant, uint64_t objects, uint64_t bytes,
                                   void *arg),
                        void *arg, const struct mcfs_cancel *cancel, struct mcfs_error *err);

/* Calls fn for every figure: number (text NULL) or text. */
int mcfs_master_status(struct mcfs_master *m,
                       void (*fn)(struct mcfs_slice name, const struct mcfs_slice *text,
                                  int64_t number, void *arg),
                       void *arg, struct mcfs_error *err);

struct mcfs_master_snapshot {
    char id[32];
    int64_t created_ms;
    uint64_t bytes;
};
int mcfs_master_snapshot_create(struct mcfs_master *m, char id[32], struct mcfs_error *err);
int mcfs_master_snapshot_state(struct mcfs_master *m, bool *running, char last_id[32],
                               char last_error[256], struct mcfs_error *err);
int mcfs_master_snapshots(struct mcfs_master *m,
                          void (*fn)(const struct mcfs_master_snapshot *s, void *arg), void *arg,
                          const struct mcfs_cancel *cancel, struct mcfs_error *err);
int mcfs_master_snapshot_files(struct mcfs_master *m, const char *id,
                               void (*fn)(struct mcfs_slice name, uint64_t size, int64_t mtime_ns,
                                          void *arg),
                               void *arg, const struct mcfs_cancel *cancel, struct mcfs_error *err);
/* Returns the count (short only at the end) or -1. */
int64_t mcfs_master_snapshot_read(struct mcfs_master *m, const char *id, const char *name,
                                  uint64_t off, void *buf, uint32_t len,
                                  const struct mcfs_cancel *cancel, struct mcfs_error *err);
/* Deletes all but the newest `keep` snapshots (0: none), and what interrupted checkpoints left at
 * least min_age_ms ago; counts both. */
int mcfs_master_snapshot_prune(struct mcfs_master *m, uint32_t keep, uint64_t min_age_ms,
                               uint32_t *snapshots, uint32_t *files, struct mcfs_error *err);
/* The master's snapshots, as of the cluster "", read through it; close it before the master.  What
 * its functions return stands in mooncakefs/object_store.h; writing gives EROFS.  Any thread. */
struct mcfs_object_store *mcfs_master_snapshot_store(struct mcfs_master *m, struct mcfs_error *err);

#endif
