/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_MASTER_CLIENT_RESTORE_CHECK_H
#define MCFS_MASTER_CLIENT_RESTORE_CHECK_H

/*
 * What a master would make of a snapshot: it is restored into a directory of this process, by the
 * master's own code, and thrown away.
 */

#include <mooncakefs/error.h>
#include <mooncakefs/object_store.h>
#include <stdint.h>

struct mcfs_restore_check {
    char id[32];                /* that was restored; "" when none could be */
    uint64_t kept, replicas;    /* objects that are kept, and their replicas */
    uint64_t incomplete, twice; /* objects that are dropped: without a complete replica, or there
                                   already, */
    uint64_t lost_memory;       /* or with memory replicas alone that cannot be kept */
    uint64_t failed_candidates;
    uint64_t memory_bytes; /* that the directory takes */
    double seconds;
};

struct mcfs_restore_check_watch {
    /* Shards; one call at a time, from any thread.  May be NULL. */
    void (*progress)(uint64_t done, uint64_t all, void *arg);
    /* A candidate that cannot be restored, and why.  May be NULL. */
    void (*failed)(const char *id, const char *why, void *arg);
    void *arg;
};

/* Tries the snapshot `id`, or, when it is "", those that a master would try, in its order.  -1 when
 * the store cannot be read, or the named snapshot cannot be restored.  Any thread. */
int mcfs_restore_check(struct mcfs_object_store *store, const char *cluster, const char *id,
                       const struct mcfs_restore_check_watch *watch, struct mcfs_restore_check *out,
                       struct mcfs_error *err);

#endif
