/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_FS_NODE_H
#define MCFS_FS_NODE_H

/*
 * A node: a store on local disk, a session with the master, a server for peers, and the path of
 * bytes between them. The mount is built on it; it knows nothing of FUSE.
 *
 * Writing: PutStart (the master hands out a version), the bytes into the store under that version,
 * PutEnd (the master makes it visible), and the version that it replaced out of the store.  Commits
 * of one key by this node happen one after the other.
 *
 * All functions may be called from any thread.
 */

#include "common/rpc/rpc.h"
#include "fs/node/state_dir.h"
#include "master/client/client.h"
#include <mooncakefs/backend.h>

struct node;

struct node_config {
    struct state_dir *state;         /* owned by the caller, outlives the node */
    const char *master_address;      /* NULL: start a master of its own below the state directory */
    const char *const *master_flags; /* further flags for that master, NULL-terminated; or NULL */
    const char
        *listen_address; /* of the data server: "HOST:PORT" (port 0: any) or NULL: a Unix socket */
    const char *auth_key_file; /* what peers prove to each other over TCP; or NULL */
    const char *backend;       /* descriptor; NULL: bucket_storage_backend */
    /* dir NULL: the state directory's; read_only: the layout is recognised unless it is named. */
    struct mcfs_backend_config store;
    uint32_t refresh_ms; /* store.read_only: how often to look whether its owner has changed it */
    uint32_t rpc_timeout_ms, lease_wait_ms;
    bool read_only;
    bool verify_strict;     /* check even large values before they are read, not soon after */
    void (*may_wait)(void); /* called before the caller's thread asks another process; or NULL */
    /* The mount's part in the lease protocol; see struct mcfs_session_ops. */
    void (*recall)(void *arg, struct mcfs_slice tenant, struct mcfs_slice key, uint64_t version);
    void (*lost)(void *arg);
    struct node_eviction {
        uint64_t max_bytes; /* most bytes of values; 0: no limit beside the store's capacity */
        bool watermarks;    /* evict between these, not only for a put that does not fit */
        double high, low;   /* shares of what may be stored */
    } eviction;             /* the policy is the store's */
    /* A version is about to be evicted (and may stay all the same): no cache of the mount's may
     * answer for it any more.  forget_names follows once for several of them.  Neither may wait for
     * what a caller of the node may hold.  evicted: it has gone; this may wait. */
    void (*evicting)(void *arg, struct mcfs_slice tenant, struct mcfs_slice key, uint64_t version);
    void (*forget_names)(void *arg);
    void (*evicted)(void *arg, struct mcfs_slice tenant, struct mcfs_slice key, uint64_t version);
    /* The store is about to drop a version. */
    void (*dropping)(void *arg, struct mcfs_slice tenant, struct mcfs_slice key, uint64_t version);
    void *arg;
};

struct node *node_start(const struct node_config *config, struct mcfs_error *err);

/* Seals the store, ends the session and the own master. */
int node_stop(struct node *n, struct mcfs_error *err);

struct mcfs_master *node_master(struct node *n);
const char *node_master_address(struct node *n);
const char *node_endpoint(struct node *n);
struct mcfs_id node_id(struct node *n);
void node_store_stats(struct node *n, struct mcfs_backend_stats *out);
const char *node_backend_name(struct node *n);

/* Walks over the store for victims, and victims that were not to go (pinned, leased). */
void node_eviction_counts(struct node *n, uint64_t *passes, uint64_t *refused);

/* Where new objects come from. */
struct node_put {
    struct mcfs_slice tenant, key;
    struct mcfs_attr attr;
    uint64_t size;
    const void *data;         /* the bytes, or */
    const char *staging_path; /* a file with them, which is used up */
    uint32_t crc32c;
    bool has_crc;
    bool no_replace; /* EEXIST when the key is there */
    bool sync;       /* survive power loss, too */
};

struct node_put_result {
    uint64_t version;      /* 0: superseded by a later put at once */
    uint64_t from_version; /* rename: what was renamed */
    uint32_t lease_ms;
};

/* Stores and publishes; on failure nothing has changed (a staging file may be gone when it had been
 * stored). */
int node_put(struct node *n, const struct node_put *p, struct node_put_result *out,
             const struct mcfs_cancel *cancel, struct mcfs_error *err);

int node_remove(struct node *n, struct mcfs_slice tenant, struct mcfs_slice key, bool force,
                const struct mcfs_cancel *cancel, struct mcfs_error *err);

/* Gives an object another key without copying its bytes where this node stores them. */
int node_rename(struct node *n, struct mcfs_slice tenant, struct mcfs_slice from,
                struct mcfs_slice to, bool no_replace, struct node_put_result *out,
                const struct mcfs_cancel *cancel, struct mcfs_error *err);

/* Gives two objects each other's keys in one step, for everybody who looks and whenever this
 * process dies.  An object that other nodes store is brought here first.  versions[0..3]: that a
 * and b had, that a and b have now. */
int node_exchange(struct node *n, struct mcfs_slice tenant, struct mcfs_slice a,
                  struct mcfs_slice b, uint64_t versions[4], const struct mcfs_cancel *cancel,
                  struct mcfs_error *err);

int node_set_attr(struct node *n, struct mcfs_slice tenant, struct mcfs_slice key, uint64_t version,
                  uint32_t valid, struct mcfs_attr *attr, const struct mcfs_cancel *cancel,
                  struct mcfs_error *err);

/* A lease on an object as an answer granted it. */
struct node_lease {
    int64_t until_ms; /* mcfs_mono_ms time */
    uint64_t mark;    /* tells whether it was recalled meanwhile */
};

/* Whether it lasts and has not been recalled, nor the object changed by this node.  Whoever notes a
 * lease down notes it first and asks this then: a recall that he does not see here comes later and
 * finds the note. */
bool node_lease_holds(struct node *n, struct mcfs_slice tenant, struct mcfs_slice key,
                      const struct node_lease *lease);

/* What a path is (mcfs_master_lookup), and the lease on the object.  out->object says nothing about
 * replicas when the answer was at hand already. */
int node_lookup(struct node *n, struct mcfs_slice tenant, struct mcfs_slice path,
                struct mcfs_master_lookup *out, struct node_lease *lease,
                const struct mcfs_cancel *cancel, struct mcfs_error *err);
/* Look-ups that needed no request. */
uint64_t node_lookup_hits(struct node *n);

int node_sync(struct node *n, struct mcfs_error *err);

/* ---- reading: replica_reader.c ---- */

struct replica_reader;

/* Opens the best replica of an object that the master has just described.  EHOSTDOWN when no node
 * that has one answers; REPLICA_IS_GONE when the version is not stored any more (look it up again).
 */
struct replica_reader *node_reader_open(struct node *n, struct mcfs_slice tenant,
                                        struct mcfs_slice key,
                                        const struct mcfs_master_object *object,
                                        struct mcfs_error *err);
void node_reader_close(struct replica_reader *r);

/* Opens a version that the caller holds a lease on, if this node stores it; asks nobody.  NULL: it
 * does not, or its bytes are damaged (err says so). */
struct replica_reader *node_reader_open_stored(struct node *n, struct mcfs_slice tenant,
                                               struct mcfs_slice key, uint64_t version,
                                               struct mcfs_error *err);

/* As in struct mcfs_backend_ops; reader_fd is -1 for a remote replica. */
int64_t node_reader_read(struct replica_reader *r, void *buf, size_t len, uint64_t off,
                         const struct mcfs_cancel *cancel, struct mcfs_error *err);
int node_reader_fd(struct replica_reader *r, uint64_t *offset, uint64_t *length);

/* Looks a key up and opens it, again when it changes meanwhile. */
struct replica_reader *node_open(struct node *n, struct mcfs_slice tenant, struct mcfs_slice key,
                                 struct mcfs_master_object *object,
                                 const struct mcfs_cancel *cancel, struct mcfs_error *err);

#endif
