/* SPDX-License-Identifier: Apache-2.0 */
#include "master/object_change.h"

#include "common/cleanup.h"
#include "common/clock.h"

/* Asks every holder; several holders are not known by name, so every node that may be one is asked
 * (and waited for, when it cannot hear). */
static void recall(struct directory *d, uint32_t slot, uint32_t client)
{
    const struct record *r = record_at(d, slot);
    struct mcfs_slice tenant = intern_get(d->tenants, r->tenant), key = record_key(d, r);
    uint32_t holder = lease_holder(d->leases, slot);
    if (holder != LEASE_SEVERAL) {
        lease_recall_expect(d->leases, slot, holder);
        d->config.recall(d->config.arg, holder, tenant, key, r->version);
        return;
    }
    for (uint32_t node = 1; node <= intern_count(d->clients) && node < LEASE_SEVERAL; node++) {
        if (node == client || !d->config.may_hold_lease(d->config.arg, node))
            continue;
        lease_recall_expect(d->leases, slot, node);
        d->config.recall(d->config.arg, node, tenant, key, r->version);
    }
}

uint32_t old_lease_left_ms(struct directory *d, const struct record *r)
{
    if (!(r->flags & RECORD_ADOPTED) || d->config.leases_known(d->config.arg))
        return 0;
    int64_t since_ms = mcfs_mono_ms() - d->started_mono_ms;
    return since_ms < d->config.lease_ms ? (uint32_t)(d->config.lease_ms - since_ms) : 0;
}

int change_must_wait(struct directory *d, uint32_t slot, uint32_t client, struct mcfs_error *err)
{
    const struct record *r = record_at(d, slot);
    struct mcfs_slice group = record_group(d, r);
    uint32_t holder, group_ms;
    if (group.len && (group_ms = group_lease_left_ms(d->groups, r->tenant, group, &holder)) &&
        holder != client)
        lease_from_group(d->leases, slot, holder, group_ms);
    uint32_t left_ms = lease_held_by_others(d->leases, slot, client);
    if (!left_ms)
        left_ms = old_lease_left_ms(d, r);
    else if (lease_recall_begin(d->leases, slot))
        recall(d, slot, client);
    if (!left_ms)
        return 0;
    struct mcfs_slice key = record_key(d, r);
    return mcfs_fail(err, MCFS_OBJECT_HAS_LEASE, "%.*s is leased for another %u ms",
                     (int)MCFS_MIN(key.len, 160), key.data, left_ms);
}

int directory_remove(struct directory *d, struct mcfs_slice tenant, struct mcfs_slice key,
                     uint64_t version, uint32_t client, bool force, uint64_t *removed,
                     struct mcfs_error *err)
{
    *removed = 0;
    if (check_key(tenant, key, err))
        return -1;
    uint32_t number = intern_find(d->tenants, tenant);
    struct key_hash h = key_hash(tenant, key);
    MCFS_LOCK_SCOPE(&d->shards[h.shard].lock);
    uint32_t slot = number ? shard_find(d, h, number, key) : 0;
    if (!slot || (version && record_at(d, slot)->version != version))
        return mcfs_fail(err, MCFS_OBJECT_NOT_FOUND, "%.*s: no such object",
                         (int)MCFS_MIN(key.len, 200), key.data);
    struct record *r = record_at(d, slot);
    if (r->flags & RECORD_HARD_PIN && !force)
        return mcfs_fail(err, MCFS_ILLEGAL_CLIENT, "%.*s is pinned", (int)MCFS_MIN(key.len, 200),
                         key.data);
    if (change_must_wait(d, slot, client, force ? NULL : err) && !force)
        return -1;
    if (record_discard_elsewhere(d, r, client))
        *removed = r->version;
    record_delete(d, h, slot);
    atomic_fetch_add_explicit(&d->removes, 1, memory_order_relaxed);
    return 0;
}

/* Finds an object to be changed in place; its shard is locked on success. */
static struct record *lock_object(struct directory *d, struct mcfs_slice tenant,
                                  struct mcfs_slice key, struct key_hash *h, uint32_t *slot,
                                  struct mcfs_error *err)
{
    if (check_key(tenant, key, err))
        return NULL;
    uint32_t number = intern_find(d->tenants, tenant);
    *h = key_hash(tenant, key);
    pthread_mutex_lock(&d->shards[h->shard].lock);
    *slot = number ? shard_find(d, *h, number, key) : 0;
    if (*slot)
        return record_at(d, *slot);
    pthread_mutex_unlock(&d->shards[h->shard].lock);
    mcfs_fail(err, MCFS_OBJECT_NOT_FOUND, "%.*s: no such object", (int)MCFS_MIN(key.len, 200),
              key.data);
    return NULL;
}

int directory_set_attr(struct directory *d, struct mcfs_slice tenant, struct mcfs_slice key,
                       uint64_t version, uint32_t client, uint32_t valid, struct mcfs_attr *attr,
                       struct mcfs_error *err)
{
    struct key_hash h;
    uint32_t slot;
    struct record *r = lock_object(d, tenant, key, &h, &slot, err);
    if (!r)
        return -1;
    int rc = 0;
    struct mcfs_attr new = record_attr(d, r);
    if (version && r->version != version)
        rc = mcfs_fail(err, MCFS_REPLICA_IS_GONE, "%.*s has been replaced",
                       (int)MCFS_MIN(key.len, 200), key.data);
    else
        rc = change_must_wait(d, slot, client, err);
    if (rc == 0) {
        new.mode = valid &SET_MODE ? attr->mode : new.mode;
        new.uid = valid &SET_UID ? attr->uid : new.uid;
        new.gid = valid &SET_GID ? attr->gid : new.gid;
        new.mtime_ns = valid &SET_MTIME ? attr->mtime_ns : new.mtime_ns;
        if (record_set_attr(d, r, &new))
            rc = mcfs_fail(err, MCFS_NO_AVAILABLE_HANDLE, "the master is out of memory");
        *attr = new;
    }
    pthread_mutex_unlock(&d->shards[h.shard].lock);
    return rc;
}

int directory_set_soft_pin(struct directory *d, struct mcfs_slice tenant, struct mcfs_slice key,
                           uint64_t *ms, struct mcfs_error *err)
{
    struct key_hash h;
    uint32_t slot;
    if (*ms == SOFT_PIN_DEFAULT)
        *ms = d->config.soft_pin_ms;
    if (*ms > SOFT_PIN_MAX_MS)
        return mcfs_fail(err, MCFS_INVALID_PARAMS, "a soft pin lasts a year at most");
    struct record *r = lock_object(d, tenant, key, &h, &slot, err);
    if (!r)
        return -1;
    int rc = record_set_soft_pin(d, slot, *ms)
                 ? mcfs_fail(err, MCFS_NO_AVAILABLE_HANDLE, "the master is out of memory")
                 : 0;
    pthread_mutex_unlock(&d->shards[h.shard].lock);
    return rc;
}

int directory_set_hard_pin(struct directory *d, struct mcfs_slice tenant, struct mcfs_slice key,
                           bool pin, struct mcfs_error *err)
{
    struct key_hash h;
    uint32_t slot;
    struct record *r = lock_object(d, tenant, key, &h, &slot, err);
    if (!r)
        return -1;
    r->flags = (uint16_t)(pin ? r->flags | RECORD_HARD_PIN : r->flags & ~RECORD_HARD_PIN);
    pthread_mutex_unlock(&d->shards[h.shard].lock);
    return 0;
}

void directory_lease_returned(struct directory *d, struct mcfs_slice tenant, struct mcfs_slice key,
                              uint64_t version, uint32_t node)
{
    struct key_hash h;
    uint32_t slot;
    struct record *r = lock_object(d, tenant, key, &h, &slot, NULL);
    if (!r)
        return;
    if (r->version == version)
        lease_returned(d->leases, slot, node);
    pthread_mutex_unlock(&d->shards[h.shard].lock);
}
