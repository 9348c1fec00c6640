/* SPDX-License-Identifier: Apache-2.0 */
#include "master/pending.h"

#include "common/cleanup.h"
#include "common/hash.h"
#include "common/table.h"

#define STRIPES 64

struct stripe {
    pthread_mutex_t lock;
    struct mcfs_table table;
} __attribute__((aligned(64)));

struct pending_table {
    struct stripe stripes[STRIPES];
};

static uint64_t version_hash(uint64_t version)
{
    return version * 0x9e3779b97f4a7c15ULL >> 16;
}

static uint64_t put_hash(const void *e)
{
    return version_hash(((const struct pending_put *)e)->version);
}

static bool put_eq(const void *e, const void *key)
{
    return ((const struct pending_put *)e)->version == *(const uint64_t *)key;
}

static struct stripe *stripe_of(struct pending_table *t, uint64_t version)
{
    return &t->stripes[version_hash(version) >> 32 & (STRIPES - 1)];
}

struct pending_table *pending_new(void)
{
    struct pending_table *t = aligned_alloc(64, sizeof(*t));
    for (unsigned i = 0; t && i < STRIPES; i++) {
        pthread_mutex_init(&t->stripes[i].lock, NULL);
        t->stripes[i].table = (struct mcfs_table)MCFS_TABLE_INIT(put_hash);
    }
    return t;
}

void pending_free(struct pending_table *t)
{
    for (unsigned i = 0; t && i < STRIPES; i++) {
        struct pending_put *p;
        for (size_t k = 0; (p = mcfs_table_next(&t->stripes[i].table, &k));)
            free(p);
        mcfs_table_free(&t->stripes[i].table);
        pthread_mutex_destroy(&t->stripes[i].lock);
    }
    free(t);
}

int pending_add(struct pending_table *t, struct pending_put *p)
{
    struct stripe *s = stripe_of(t, p->version);
    MCFS_LOCK_SCOPE(&s->lock);
    return mcfs_table_add(&s->table, p);
}

bool pending_get(struct pending_table *t, uint64_t version, struct pending_put *out)
{
    struct stripe *s = stripe_of(t, version);
    MCFS_LOCK_SCOPE(&s->lock);
    struct pending_put *p = mcfs_table_find(&s->table, version_hash(version), put_eq, &version);
    if (p)
        *out = *p;
    return p != NULL;
}

bool pending_has_key(struct pending_table *t, uint32_t tenant, struct mcfs_slice key,
                     int64_t oldest_mono_ms)
{
    for (unsigned i = 0; i < STRIPES; i++) {
        struct stripe *s = &t->stripes[i];
        MCFS_LOCK_SCOPE(&s->lock);
        struct pending_put *p;
        for (size_t k = 0; s->table.count && (p = mcfs_table_next(&s->table, &k));)
            if (p->tenant == tenant && !p->discarded && p->start_mono_ms >= oldest_mono_ms &&
                mcfs_slice_eq(mcfs_slice(p->key, p->key_len), key))
                return true;
    }
    return false;
}

bool pending_drop(struct pending_table *t, uint64_t version)
{
    struct stripe *s = stripe_of(t, version);
    MCFS_LOCK_SCOPE(&s->lock);
    struct pending_put *p = mcfs_table_find(&s->table, version_hash(version), put_eq, &version);
    if (!p)
        return false;
    mcfs_table_del(&s->table, p);
    free(p);
    return true;
}

uint32_t pending_expire(struct pending_table *t, int64_t discard_mono_ms, int64_t release_mono_ms,
                        void (*fn)(const struct pending_put *p, void *arg), void *arg)
{
    uint32_t dropped = 0;
    for (unsigned i = 0; i < STRIPES; i++) {
        struct stripe *s = &t->stripes[i];
        MCFS_LOCK_SCOPE(&s->lock);
        struct pending_put *p;
        for (size_t k = 0; (p = mcfs_table_next(&s->table, &k));) {
            p->discarded |= p->start_mono_ms < discard_mono_ms;
            if (p->start_mono_ms >= release_mono_ms)
                continue;
            if (fn)
                fn(p, arg);
            mcfs_table_del(&s->table, p);
            free(p);
            dropped++;
            k--; /* deletion may have moved another entry here */
        }
    }
    return dropped;
}

uint64_t pending_count(struct pending_table *t, bool discarded)
{
    uint64_t count = 0;
    for (unsigned i = 0; i < STRIPES; i++) {
        MCFS_LOCK_SCOPE(&t->stripes[i].lock);
        const struct pending_put *p;
        for (size_t k = 0; (p = mcfs_table_next(&t->stripes[i].table, &k));)
            count += p->discarded == discarded;
    }
    return count;
}
