/* SPDX-License-Identifier: Apache-2.0 */
/* Reading an object from the best of its replicas: this node's store, else the peers that store it,
 * one after the other. */
#include "fs/node/evict.h"
#include "fs/node/hold.h"
#include "fs/node/known.h"
#include "fs/node/node_private.h"
#include "fs/node/remote.h"

#include "common/cleanup.h"
#include "common/id.h"

#include <sys/uio.h>

#define VERIFY_NOW_MAX (1u << 20) /* bytes of a value */
#define LOOKUPS_MAX 20            /* times a key may change while it is being opened */

struct replica_reader {
    struct node *node;
    struct mcfs_backend_reader *local; /* or: */
    struct remote *remote;
};

static bool is_here(struct node *n, const struct mcfs_master_replica *r)
{
    char id[MCFS_ID_TEXT_MAX];
    return r->type == MCFS_REPLICA_LOCAL_DISK &&
           strcmp(r->node_id, mcfs_id_format(n->config.state->node_id, id)) == 0;
}

static bool readable(const struct mcfs_master_replica *r)
{
    return r->type == MCFS_REPLICA_LOCAL_DISK && r->connected && r->endpoint[0];
}

bool node_replica_is_remote(struct node *n, const struct mcfs_master_replica *r)
{
    return readable(r) && !is_here(n, r);
}

bool node_is_in_memory_alone(const struct mcfs_master_object *o)
{
    bool memory = false;
    for (uint32_t i = 0; i < o->replica_count; i++) {
        if (o->replicas[i].type != MCFS_REPLICA_MEMORY)
            return false;
        memory |= o->replicas[i].status == MCFS_REPLICA_COMPLETE;
    }
    return memory;
}

/* Whether reading the value needs no disk, as far as its ends tell. */
static bool is_cached(int fd, uint64_t offset, uint64_t length)
{
    char byte;
    struct iovec iov = {&byte, 1};
    return fd >= 0 && length && preadv2(fd, &iov, 1, (off_t)offset, RWF_NOWAIT) == 1 &&
           preadv2(fd, &iov, 1, (off_t)(offset + length - 1), RWF_NOWAIT) == 1;
}

/* Small values are checked before their first reader gets them, large ones soon after, because
 * nobody should wait for a gigabyte to be read twice. */
static int check(struct node *n, struct mcfs_backend_reader *local, struct mcfs_slice tenant,
                 struct mcfs_slice key, uint64_t version, struct mcfs_error *err)
{
    uint64_t offset, length;
    if (!n->ops->reader_is_verified || n->ops->reader_is_verified(local))
        return 0;
    int fd = n->ops->reader_fd(local, &offset, &length);
    if (length > VERIFY_NOW_MAX && !n->config.verify_strict) {
        verifier_add(n->verifier, tenant, key, version);
        return 0;
    }
    if (!is_cached(fd, offset, length))
        may_wait(n, NULL);
    return n->ops->reader_verify(local, err);
}

static struct mcfs_backend_reader *open_stored(struct node *n, struct mcfs_slice tenant,
                                               struct mcfs_slice key, uint64_t version,
                                               struct mcfs_error *err)
{
    struct mcfs_error local_err = MCFS_ERROR_INIT;
    struct mcfs_backend_reader *local =
        n->ops->reader_open(n->store, tenant, key, version, &local_err);
    /* It may be about to be evicted, or taken back. */
    if (!local && local_err.code == MCFS_REPLICA_IS_GONE && n->evictor &&
        evictor_settle(n->evictor, version))
        local = n->ops->reader_open(n->store, tenant, key, version, &local_err);
    if (!local && err)
        *err = local_err;
    if (!local || check(n, local, tenant, key, version, err) == 0)
        return local;
    n->ops->reader_close(local);
    return NULL;
}

struct replica_reader *node_reader_open_stored(struct node *n, struct mcfs_slice tenant,
                                               struct mcfs_slice key, uint64_t version,
                                               struct mcfs_error *err)
{
    struct mcfs_backend_reader *local = open_stored(n, tenant, key, version, err);
    if (!local)
        return NULL;
    struct replica_reader *r = calloc(1, sizeof(*r));
    if (!r) {
        n->ops->reader_close(local);
        mcfs_fail_errno(err, ENOMEM, "reader");
        return NULL;
    }
    r->node = n;
    r->local = local;
    return r;
}

static struct replica_reader *open_remote(struct node *n, struct mcfs_slice tenant,
                                          struct mcfs_slice key,
                                          const struct mcfs_master_object *object,
                                          struct mcfs_error *err)
{
    struct replica_reader *r = calloc(1, sizeof(*r));
    if (!r) {
        mcfs_fail_errno(err, ENOMEM, "reader");
        return NULL;
    }
    r->node = n;
    r->remote = remote_open(n, tenant, key, object, err);
    if (r->remote)
        return r;
    free(r);
    return NULL;
}

struct replica_reader *node_reader_open(struct node *n, struct mcfs_slice tenant,
                                        struct mcfs_slice key,
                                        const struct mcfs_master_object *object,
                                        struct mcfs_error *err)
{
    bool here = false, remote = false;
    for (uint32_t i = 0; i < object->replica_count; i++) {
        here |= is_here(n, &object->replicas[i]);
        remote |= node_replica_is_remote(n, &object->replicas[i]);
    }
    if (here) {
        struct replica_reader *r = node_reader_open_stored(n, tenant, key, object->version, err);
        if (r || !remote)
            return r;
    }
    if (!remote) {
        mcfs_fail(err, MCFS_REPLICA_IS_NOT_READY, "%.*s: no node that stores it answers",
                  (int)MCFS_MIN(key.len, 200), key.data);
        return NULL;
    }
    return open_remote(n, tenant, key, object, err);
}

void node_reader_close(struct replica_reader *r)
{
    if (!r)
        return;
    if (r->local)
        r->node->ops->reader_close(r->local);
    remote_close(r->remote);
    free(r);
}

int node_reader_fd(struct replica_reader *r, uint64_t *offset, uint64_t *length)
{
    return r->local ? r->node->ops->reader_fd(r->local, offset, length) : -1;
}

int64_t node_reader_read(struct replica_reader *r, void *buf, size_t len, uint64_t off,
                         const struct mcfs_cancel *cancel, struct mcfs_error *err)
{
    if (!r->local)
        return remote_read(r->remote, buf, len, off, cancel, err);
    atomic_fetch_add_explicit(&r->node->local_reads, 1, memory_order_relaxed);
    return r->node->ops->reader_read(r->local, buf, len, off, err);
}

struct replica_reader *node_open(struct node *n, struct mcfs_slice tenant, struct mcfs_slice key,
                                 struct mcfs_master_object *object,
                                 const struct mcfs_cancel *cancel, struct mcfs_error *err)
{
    struct known_mark mark;
    may_wait(n, cancel);
    for (int i = 0; i < LOOKUPS_MAX; i++) {
        known_begin(n->known, &mark);
        if (mcfs_master_get(n->master, tenant, key, object, cancel, err))
            return NULL;
        struct node_lease lease = known_lease(n->known, &mark, tenant, key, object->lease_ms);
        struct replica_reader *r = node_reader_open(n, tenant, key, object, err);
        if (r && r->remote && !known_lease_holds(n->known, tenant, key, &lease) &&
            !remote_hold(r->remote)) {
            node_reader_close(r);
            mcfs_fail(err, MCFS_REPLICA_IS_GONE, "%.*s changes again and again",
                      (int)MCFS_MIN(key.len, 200), key.data);
            continue;
        }
        if (r || !err || err->code != MCFS_REPLICA_IS_GONE)
            return r;
    }
    return NULL;
}
