/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_MASTER_CHECKPOINT_H
#define MCFS_MASTER_CHECKPOINT_H

/*
 * Checkpoints: the directory is forked, and the child writes what it sees at that instant to the
 * snapshot store while the parent goes on.  The parent's exclusive section is the fork alone.  A
 * thread takes one every interval, on demand, and ends a child that takes too long.
 */

#include "master/directory.h"
#include "snapshot/snapshot.h"

struct checkpointer;

struct checkpoint_config {
    struct directory *directory;
    struct mcfs_object_store *store;
    const char *cluster;
    uint32_t retention;
    const char *backup_dir; /* where a snapshot goes that could not be published; or NULL */
    int64_t interval_ms;    /* 0: on demand only */
    int64_t child_timeout_ms;
    /* Carried through from the snapshot that was restored (decoded payloads); owned by the caller.
     */
    struct mcfs_slice segments, tasks, discarded;
    /* Fills in the nodes to be written down; returns how many (at most max). */
    uint32_t (*nodes)(void *arg, struct snap_node *out, uint32_t max);
    /* In the child, first thing: let go of what is the parent's (sockets). */
    void (*in_child)(void *arg);
    void *arg;
};

struct checkpointer *checkpointer_start(const struct checkpoint_config *config,
                                        struct mcfs_error *err);
/* Ends the checkpoint under way and takes no more; its state can still be asked for. */
void checkpointer_stop(struct checkpointer *c);
void checkpointer_free(struct checkpointer *c);

/* Asks for one now; the id that it will have.  One that is under way is joined. */
int checkpointer_request(struct checkpointer *c, char id[SNAP_ID_SIZE], struct mcfs_error *err);

struct checkpoint_state {
    bool running;
    char last_id[SNAP_ID_SIZE]; /* of the last that was published */
    char last_error[256];       /* of the last that failed, "" when the last one did not */
    int64_t last_created_ms, last_duration_ms, last_pause_us;
    uint64_t last_copied_bytes; /* of the directory, on write, while the child lived */
    uint64_t taken, failed;
};
void checkpointer_state(struct checkpointer *c, struct checkpoint_state *out);

struct mcfs_object_store *checkpointer_store(struct checkpointer *c);

struct restore_result {
    char id[SNAP_ID_SIZE];
    uint64_t kept, replicas;    /* objects, and replicas of those */
    uint64_t incomplete, twice; /* dropped: without a complete replica, there already */
    uint64_t lost_memory;       /* dropped: its memory replicas could not be kept */
    uint64_t failed_candidates;
    struct mcfs_buf segments, tasks, discarded; /* to be carried through */
};
struct restore_watch {
    void (*progress)(uint64_t done, uint64_t all, void *arg); /* shards; one call at a time */
    void *arg;
    void (*candidate)(const char *id, void *arg); /* of restore_newest, which tries it; or NULL */
    bool (*stop)(void *arg); /* asked by any thread; true ends the restore (EINTR); or NULL */
};
/* Restores this snapshot into an empty directory, which is empty again when that fails.  watch may
 * be NULL.  The caller frees the buffers of out. */
int restore_one(struct directory *d, struct mcfs_object_store *store, const char *cluster,
                const char *id, const struct restore_watch *watch, struct restore_result *out,
                struct mcfs_error *err);
/* Restores the newest snapshot that can be; out->id is "" when there is none.  watch may be NULL.
 * -1 when there is no list of them, or with EINTR when the watch stopped it. */
int restore_newest(struct directory *d, struct mcfs_object_store *store, const char *cluster,
                   const struct restore_watch *watch, struct restore_result *out,
                   struct mcfs_error *err);

#endif
