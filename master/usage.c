/* SPDX-License-Identifier: Apache-2.0 */
/* What tenants store and have asked to store, held against their quotas. */
#include "master/usage.h"

#include "common/cleanup.h"

#include <inttypes.h>

void usage_lock(struct directory *d, uint32_t tenant)
{
    if (d->config.quota)
        pthread_mutex_lock(&d->usage_locks[tenant % USAGE_LOCKS]);
}

void usage_unlock(struct directory *d, uint32_t tenant)
{
    if (d->config.quota)
        pthread_mutex_unlock(&d->usage_locks[tenant % USAGE_LOCKS]);
}

int usage_fits(struct directory *d, struct mcfs_slice name, uint32_t tenant, uint64_t bytes,
               uint64_t freed, struct mcfs_error *err)
{
    uint64_t limit;
    if (!d->config.quota)
        return 0;
    if (d->config.quota(d->config.arg, name, &limit, err))
        return -1;
    uint64_t used =
        atomic_load(&d->tenant_bytes[tenant]) + atomic_load(&d->tenant_reserved[tenant]);
    used -= MCFS_MIN(used, freed);
    if (bytes && (used > limit || bytes > limit - used))
        return mcfs_fail(err, MCFS_TENANT_QUOTA_EXCEEDED,
                         "tenant '%.*s': %" PRIu64 " bytes more than the %" PRIu64
                         " that are taken do not fit into its quota of %" PRIu64,
                         (int)MCFS_MIN(name.len, 64), name.data, bytes, used, limit);
    return 0;
}

int usage_reserve(struct directory *d, struct mcfs_slice name, uint32_t tenant, uint64_t bytes,
                  struct mcfs_error *err)
{
    usage_lock(d, tenant);
    int rc = usage_fits(d, name, tenant, bytes, 0, err);
    if (rc == 0)
        atomic_fetch_add(&d->tenant_reserved[tenant], bytes);
    usage_unlock(d, tenant);
    return rc;
}

void usage_release(struct directory *d, uint32_t tenant, uint64_t bytes)
{
    atomic_fetch_sub(&d->tenant_reserved[tenant], bytes);
}
