/* SPDX-License-Identifier: Apache-2.0 */
/* Changing objects: the node's store and the master's directory, in an order in which a crash never
 * leaves a visible name without its bytes. */
#include "fs/node/evict.h"
#include "fs/node/hold.h"
#include "fs/node/node_private.h"

#include "common/cleanup.h"
#include "common/clock.h"
#include "common/hash.h"
#include "common/log.h"

#include <poll.h>

#define LEASE_POLL_MAX_MS 50
#define LEASE_SLACK_MS 500 /* a lease as long as the wait ends just behind it */

static pthread_mutex_t *commit_lock(struct node *n, struct mcfs_slice key)
{
    return &n->commit_locks[mcfs_hash(key.data, key.len) % COMMIT_LOCKS];
}

/* Locks one or two keys in a fixed order. */
void node_lock_keys(struct node *n, struct mcfs_slice a, struct mcfs_slice b)
{
    mcfs_lock_two(commit_lock(n, a), commit_lock(n, b));
}

void node_unlock_keys(struct node *n, struct mcfs_slice a, struct mcfs_slice b)
{
    mcfs_unlock_two(commit_lock(n, a), commit_lock(n, b));
}

bool node_try_lock_key(struct node *n, struct mcfs_slice key, bool locked[COMMIT_LOCKS])
{
    pthread_mutex_t *lock = commit_lock(n, key);
    bool *mine = &locked[lock - n->commit_locks];
    if (!*mine)
        *mine = pthread_mutex_trylock(lock) == 0;
    return *mine;
}

void node_unlock_locked(struct node *n, const bool locked[COMMIT_LOCKS])
{
    for (unsigned i = 0; i < COMMIT_LOCKS; i++)
        if (locked[i])
            pthread_mutex_unlock(&n->commit_locks[i]);
}

static void drop(struct node *n, struct mcfs_slice tenant, struct mcfs_slice key, uint64_t version)
{
    if (version)
        node_drop(n, tenant, key, version);
}

bool node_wait_for_lease(struct node *n, int64_t began_ms, int64_t *pause_ms,
                         const struct mcfs_cancel *cancel, struct mcfs_error *err)
{
    if (err->code != MCFS_OBJECT_HAS_LEASE ||
        mcfs_mono_ms() - began_ms >= (int64_t)n->config.lease_wait_ms + LEASE_SLACK_MS)
        return false;
    struct pollfd p = {.fd = cancel ? cancel->fd : -1, .events = POLLIN};
    if (poll(&p, 1, (int)*pause_ms) > 0) {
        mcfs_fail_errno(err, EINTR, "waiting for a lease");
        return false;
    }
    *pause_ms = MCFS_MIN(*pause_ms * 2, LEASE_POLL_MAX_MS);
    return true;
}

static int put_end(struct node *n, const struct mcfs_master_put_end *end,
                   struct mcfs_master_put_result *out, const struct mcfs_cancel *cancel,
                   struct mcfs_error *err)
{
    int64_t began = mcfs_mono_ms(), pause_ms = LEASE_POLL_FIRST_MS;
    while (mcfs_master_put_end(n->master, end, out, cancel, err))
        if (!node_wait_for_lease(n, began, &pause_ms, cancel, err))
            return -1;
    return 0;
}

/* Ends a put whose bytes are in the store under end->version, unless it renames an object that the
 * store does not have.  `session`: in which it was started;
 * when the master was restarted since, its successor is told of the put first, and the bytes get
 * the version that it gives. */
static int publish(struct node *n, struct mcfs_master_put_end *end, uint64_t session, bool stored,
                   struct mcfs_master_put_result *out, const struct mcfs_cancel *cancel,
                   struct mcfs_error *err)
{
    while (put_end(n, end, out, cancel, err)) {
        uint64_t version, now = mcfs_master_session(n->master);
        if (err->code != MCFS_OBJECT_NOT_FOUND || now == session)
            return -1;
        session = now;
        if (mcfs_master_put_start(n->master, end->tenant, end->key,
                                  end->from_version ? 0 : end->size, true, &version, cancel, err))
            return -1;
        if (stored &&
            n->ops->rekey(n->store, end->tenant, end->key, end->version, end->key, version, err)) {
            mcfs_master_put_revoke(n->master, version, NULL);
            return -1;
        }
        end->version = version;
    }
    return 0;
}

static int put_locked(struct node *n, const struct node_put *p, struct node_put_result *out,
                      const struct mcfs_cancel *cancel, struct mcfs_error *err)
{
    uint64_t version, session = mcfs_master_session(n->master);
    if (mcfs_master_put_start(n->master, p->tenant, p->key, p->size, true, &version, cancel, err))
        return -1;
    struct mcfs_backend_put item = {.object = {.tenant = p->tenant,
                                               .key = p->key,
                                               .version = version,
                                               .size = p->size,
                                               .attr = p->attr,
                                               .crc32c = p->crc32c,
                                               .has_crc = p->has_crc},
                                    .data = p->data,
                                    .staging_path = p->data ? NULL : p->staging_path};
    if (n->evictor ? evictor_put(n->evictor, &item, cancel) != 0
                   : n->ops->put(n->store, &item, 1) != 0) {
        *err = item.err;
        mcfs_master_put_revoke(n->master, version, NULL);
        return -1;
    }
    if (p->sync && n->ops->sync(n->store, err)) {
        drop(n, p->tenant, p->key, version);
        mcfs_master_put_revoke(n->master, version, NULL);
        return -1;
    }
    struct mcfs_master_put_end end = {.tenant = p->tenant,
                                      .key = p->key,
                                      .version = version,
                                      .size = p->size,
                                      .attr = p->attr,
                                      .no_replace = p->no_replace};
    struct mcfs_master_put_result result;
    hold_cover(n->holds, p->tenant, p->key);
    if (publish(n, &end, session, true, &result, cancel, err)) {
        /* An interrupted or unanswered PutEnd may have been carried out: the bytes stay until the
         * next inventory says whose they are. */
        if (err->errnum != EINTR && err->code != MCFS_RPC_FAIL) {
            drop(n, p->tenant, p->key, end.version);
            mcfs_master_put_revoke(n->master, end.version, NULL);
        }
        return -1;
    }
    drop(n, p->tenant, p->key, result.superseded ? end.version : result.replaced_version);
    out->version = result.superseded ? 0 : end.version;
    out->lease_ms = result.lease_ms;
    return 0;
}

int node_put(struct node *n, const struct node_put *p, struct node_put_result *out,
             const struct mcfs_cancel *cancel, struct mcfs_error *err)
{
    MCFS_LOCK_SCOPE(commit_lock(n, p->key));
    int rc = put_locked(n, p, out, cancel, err);
    node_forget(n, p->tenant, p->key);
    return rc;
}

/* Removes a version from the directory, which waits for the leases of others; the version is named,
 * so that a repeated request removes nothing that came after it. */
static int remove_version(struct node *n, struct mcfs_slice tenant, struct mcfs_slice key,
                          uint64_t version, bool force, uint64_t *removed,
                          const struct mcfs_cancel *cancel, struct mcfs_error *err)
{
    int64_t began = mcfs_mono_ms(), pause_ms = LEASE_POLL_FIRST_MS;
    hold_cover(n->holds, tenant, key);
    while (mcfs_master_remove(n->master, tenant, key, version, force, removed, cancel, err))
        if (!node_wait_for_lease(n, began, &pause_ms, cancel, err))
            return -1;
    return 0;
}

static int remove_locked(struct node *n, struct mcfs_slice tenant, struct mcfs_slice key,
                         bool force, const struct mcfs_cancel *cancel, struct mcfs_error *err)
{
    struct mcfs_master_object object;
    uint64_t removed;
    if (mcfs_master_get(n->master, tenant, key, &object, cancel, err) ||
        remove_version(n, tenant, key, object.version, force, &removed, cancel, err))
        return -1;
    drop(n, tenant, key, removed);
    return 0;
}

int node_remove(struct node *n, struct mcfs_slice tenant, struct mcfs_slice key, bool force,
                const struct mcfs_cancel *cancel, struct mcfs_error *err)
{
    MCFS_LOCK_SCOPE(commit_lock(n, key));
    int rc = remove_locked(n, tenant, key, force, cancel, err);
    node_forget(n, tenant, key);
    return rc;
}

int node_copy_here(struct node *n, struct mcfs_slice tenant, struct mcfs_slice from,
                   const struct mcfs_master_object *object, struct mcfs_slice to, bool no_replace,
                   struct node_put_result *out, const struct mcfs_cancel *cancel,
                   struct mcfs_error *err)
{
    struct replica_reader *r = node_reader_open(n, tenant, from, object, err);
    if (!r)
        return -1;
    _cleanup_free_ char *data = malloc(object->size ? object->size : 1);
    uint64_t done = 0;
    if (!data)
        mcfs_fail_errno(err, ENOMEM, "copy of an object");
    while (data && done < object->size) {
        int64_t got = node_reader_read(r, data + done, object->size - done, done, cancel, err);
        if (got == 0)
            mcfs_fail(err, MCFS_INVALID_READ, "the object is shorter than it should be");
        if (got <= 0)
            break;
        done += (uint64_t)got;
    }
    node_reader_close(r);
    if (!data || done < object->size)
        return -1;
    struct node_put put = {.tenant = tenant,
                           .key = to,
                           .attr = object->attr,
                           .size = object->size,
                           .data = data,
                           .no_replace = no_replace};
    return put_locked(n, &put, out, cancel, err);
}

/* Copies an object that other nodes store: there is nothing here to be given another name. */
static int rename_by_copy(struct node *n, struct mcfs_slice tenant, struct mcfs_slice from,
                          struct mcfs_slice to, const struct mcfs_master_object *object,
                          bool no_replace, struct node_put_result *out,
                          const struct mcfs_cancel *cancel, struct mcfs_error *err)
{
    uint64_t removed;
    if (node_copy_here(n, tenant, from, object, to, no_replace, out, cancel, err))
        return -1;
    return remove_version(n, tenant, from, object->version, false, &removed, cancel, err);
}

static int rename_object(struct node *n, struct mcfs_slice tenant, struct mcfs_slice from,
                         const struct mcfs_master_object *object, struct mcfs_slice to,
                         bool no_replace, struct node_put_result *out,
                         const struct mcfs_cancel *cancel, struct mcfs_error *err)
{
    uint64_t version, session = mcfs_master_session(n->master);
    /* No bytes are added: the master makes the room that they take out of what goes. */
    if (mcfs_master_put_start(n->master, tenant, to, 0, true, &version, cancel, err))
        return -1;
    bool stored = n->ops->rekey(n->store, tenant, from, object->version, to, version, err) == 0;
    /* What lies in memory segments alone is no node's to be given another name. */
    if (!stored && (err->code != MCFS_REPLICA_IS_GONE || !node_is_in_memory_alone(object))) {
        mcfs_master_put_revoke(n->master, version, NULL);
        if (err->code != MCFS_REPLICA_IS_GONE)
            return -1;
        return rename_by_copy(n, tenant, from, to, object, no_replace, out, cancel, err);
    }
    struct mcfs_master_put_end end = {.tenant = tenant,
                                      .key = to,
                                      .version = version,
                                      .size = object->size,
                                      .attr = object->attr,
                                      .data_type = object->data_type,
                                      .no_replace = no_replace,
                                      .from = from,
                                      .from_version = object->version};
    struct mcfs_master_put_result result;
    hold_cover(n->holds, tenant, to);
    if (publish(n, &end, session, stored, &result, cancel, err)) {
        if (err->errnum != EINTR && err->code != MCFS_RPC_FAIL) {
            if (stored &&
                n->ops->rekey(n->store, tenant, to, end.version, from, object->version, NULL))
                mcfs_warning("%.*s: cannot take a rename back", (int)MCFS_MIN(from.len, 200),
                             from.data);
            mcfs_master_put_revoke(n->master, end.version, NULL);
        }
        return -1;
    }
    drop(n, tenant, to, result.replaced_version);
    out->version = end.version;
    out->lease_ms = result.lease_ms;
    return 0;
}

static int rename_locked(struct node *n, struct mcfs_slice tenant, struct mcfs_slice from,
                         struct mcfs_slice to, bool no_replace, struct node_put_result *out,
                         const struct mcfs_cancel *cancel, struct mcfs_error *err)
{
    struct mcfs_master_object object;
    if (mcfs_master_get(n->master, tenant, from, &object, cancel, err))
        return -1;
    out->from_version = object.version;
    held_set_keep(n->held, tenant, from, object.version);
    int rc = rename_object(n, tenant, from, &object, to, no_replace, out, cancel, err);
    held_set_done(n->held, tenant, from, object.version);
    return rc;
}

int node_rename(struct node *n, struct mcfs_slice tenant, struct mcfs_slice from,
                struct mcfs_slice to, bool no_replace, struct node_put_result *out,
                const struct mcfs_cancel *cancel, struct mcfs_error *err)
{
    node_lock_keys(n, from, to);
    int rc = rename_locked(n, tenant, from, to, no_replace, out, cancel, err);
    node_forget(n, tenant, from);
    node_forget(n, tenant, to);
    node_unlock_keys(n, from, to);
    return rc;
}

static int set_attr_at_master(struct node *n, struct mcfs_slice tenant, struct mcfs_slice key,
                              uint64_t version, uint32_t valid, struct mcfs_attr *attr,
                              const struct mcfs_cancel *cancel, struct mcfs_error *err)
{
    int64_t began = mcfs_mono_ms(), pause_ms = LEASE_POLL_FIRST_MS;
    while (mcfs_master_set_attr(n->master, tenant, key, version, valid, attr, cancel, err))
        if (!node_wait_for_lease(n, began, &pause_ms, cancel, err))
            return -1;
    return 0;
}

int node_set_attr(struct node *n, struct mcfs_slice tenant, struct mcfs_slice key, uint64_t version,
                  uint32_t valid, struct mcfs_attr *attr, const struct mcfs_cancel *cancel,
                  struct mcfs_error *err)
{
    MCFS_LOCK_SCOPE(commit_lock(n, key));
    int rc = set_attr_at_master(n, tenant, key, version, valid, attr, cancel, err);
    node_forget(n, tenant, key);
    if (rc)
        return -1;
    /* Kept with the bytes too, for a master that has to learn everything from its nodes. */
    struct mcfs_error store = MCFS_ERROR_INIT;
    if (n->ops->set_attr(n->store, tenant, key, version, attr, &store) &&
        store.code != MCFS_REPLICA_IS_GONE)
        mcfs_warning("%s", store.msg);
    return 0;
}
