/* SPDX-License-Identifier: Apache-2.0 */
#include "master/group_lease.h"

#include "common/cleanup.h"
#include "common/clock.h"
#include "common/hash.h"
#include "common/table.h"
#include "master/lease.h"

#include <pthread.h>

struct group {
    int64_t until_ms; /* mcfs_mono_ms() time */
    uint32_t tenant, holder, len;
    char name[];
};

struct group_leases {
    pthread_mutex_t lock;
    struct mcfs_table table;
};

struct group_key {
    uint32_t tenant;
    struct mcfs_slice name;
};

static uint64_t key_hash_of(uint32_t tenant, struct mcfs_slice name)
{
    return mcfs_hash(name.data, name.len) ^ tenant * 0x9e3779b97f4a7c15ULL;
}

static uint64_t group_hash(const void *e)
{
    const struct group *g = e;
    return key_hash_of(g->tenant, mcfs_slice(g->name, g->len));
}

static bool group_eq(const void *e, const void *key)
{
    const struct group *g = e;
    const struct group_key *k = key;
    return g->tenant == k->tenant && mcfs_slice_eq(mcfs_slice(g->name, g->len), k->name);
}

static struct group *find(struct group_leases *t, uint32_t tenant, struct mcfs_slice name)
{
    struct group_key key = {tenant, name};
    return mcfs_table_find(&t->table, key_hash_of(tenant, name), group_eq, &key);
}

struct group_leases *group_leases_new(void)
{
    struct group_leases *t = calloc(1, sizeof(*t));
    if (t) {
        pthread_mutex_init(&t->lock, NULL);
        t->table = (struct mcfs_table)MCFS_TABLE_INIT(group_hash);
    }
    return t;
}

void group_leases_free(struct group_leases *t)
{
    if (!t)
        return;
    struct group *g;
    for (size_t i = 0; (g = mcfs_table_next(&t->table, &i));)
        free(g);
    mcfs_table_free(&t->table);
    pthread_mutex_destroy(&t->lock);
    free(t);
}

void group_lease_grant(struct group_leases *t, uint32_t tenant, struct mcfs_slice name,
                       uint32_t node, uint32_t ms)
{
    int64_t now = mcfs_mono_ms();
    MCFS_LOCK_SCOPE(&t->lock);
    struct group *g = find(t, tenant, name);
    if (!g) {
        if (!(g = malloc(sizeof(*g) + name.len)))
            return;
        *g = (struct group){.tenant = tenant, .len = (uint32_t)name.len};
        memcpy(g->name, name.data, name.len);
        if (mcfs_table_add(&t->table, g)) {
            free(g);
            return;
        }
    }
    g->holder = g->until_ms <= now || g->holder == node ? node : LEASE_SEVERAL;
    g->until_ms = MCFS_MAX(g->until_ms, now + ms);
}

uint32_t group_lease_left_ms(struct group_leases *t, uint32_t tenant, struct mcfs_slice name,
                             uint32_t *holder)
{
    MCFS_LOCK_SCOPE(&t->lock);
    const struct group *g = find(t, tenant, name);
    int64_t left = g ? g->until_ms - mcfs_mono_ms() : 0;
    *holder = left > 0 ? g->holder : 0;
    return left > 0 ? (uint32_t)left : 0;
}

void group_lease_sweep(struct group_leases *t)
{
    int64_t now = mcfs_mono_ms();
    MCFS_LOCK_SCOPE(&t->lock);
    struct group *g;
    for (size_t i = 0; (g = mcfs_table_next(&t->table, &i));)
        if (g->until_ms <= now) {
            mcfs_table_del(&t->table, g);
            free(g);
            i--; /* deletion may have moved another entry here */
        }
}
