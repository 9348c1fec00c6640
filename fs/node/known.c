/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/node/known.h"

#include "common/cleanup.h"
#include "common/clock.h"
#include "common/hash.h"

#include <pthread.h>
#include <stdatomic.h>

#define SETS 64 /* of a stripe */
#define WAYS 4
#define DIRS 64
#define AHEAD_FIRST 2
#define AHEAD_MAX 256
#define PROBE_EVERY 16 /* look-ups after which a directory without luck is tried again */

struct entry {
    uint64_t hash;
    char *names; /* tenant, key */
    uint32_t tenant_len, key_len;
    uint64_t version, size;
    struct mcfs_attr attr;
    int64_t until_ms;
};

struct stripe {
    pthread_mutex_t lock;
    _Atomic uint64_t changes;
    _Atomic uint32_t blocked;
    struct entry entries[SETS][WAYS];
} __attribute__((aligned(64)));

/* What look-ahead has brought in a directory. */
struct dir {
    uint64_t hash;
    uint32_t ahead, taken, used, misses;
};

struct known {
    struct stripe stripes[KNOWN_STRIPES];
    pthread_mutex_t dirs_lock;
    struct dir dirs[DIRS];
    _Atomic uint64_t hits;
};

static uint64_t hash_of(struct mcfs_slice tenant, struct mcfs_slice key)
{
    return mcfs_hash_seed(key.data, key.len, mcfs_hash(tenant.data, tenant.len));
}

static struct stripe *stripe_of(struct known *k, uint64_t hash)
{
    return &k->stripes[hash >> 58];
}

static struct mcfs_slice dir_of(struct mcfs_slice key)
{
    const char *slash = key.len ? memrchr(key.data, '/', key.len) : NULL;
    return mcfs_slice(key.data, slash ? (size_t)(slash + 1 - key.data) : 0);
}

struct known *known_new(void)
{
    struct known *k = aligned_alloc(64, sizeof(*k));
    if (!k)
        return NULL;
    memset(k, 0, sizeof(*k));
    for (unsigned i = 0; i < KNOWN_STRIPES; i++)
        pthread_mutex_init(&k->stripes[i].lock, NULL);
    pthread_mutex_init(&k->dirs_lock, NULL);
    return k;
}

static void drop(struct entry *e)
{
    free(e->names);
    *e = (struct entry){0};
}

/* The caller holds the stripe's lock. */
static void drop_all(struct stripe *s)
{
    for (unsigned i = 0; i < SETS; i++)
        for (unsigned w = 0; w < WAYS; w++)
            drop(&s->entries[i][w]);
}

void known_free(struct known *k)
{
    if (!k)
        return;
    for (unsigned i = 0; i < KNOWN_STRIPES; i++) {
        drop_all(&k->stripes[i]);
        pthread_mutex_destroy(&k->stripes[i].lock);
    }
    pthread_mutex_destroy(&k->dirs_lock);
    free(k);
}

/* The caller holds the stripe's lock. */
static struct entry *find(struct stripe *s, uint64_t hash, struct mcfs_slice tenant,
                          struct mcfs_slice key)
{
    for (unsigned w = 0; w < WAYS; w++) {
        struct entry *e = &s->entries[hash % SETS][w];
        if (e->names && e->hash == hash && e->tenant_len == tenant.len && e->key_len == key.len &&
            memcmp(e->names, tenant.data, tenant.len) == 0 &&
            memcmp(e->names + tenant.len, key.data, key.len) == 0)
            return e;
    }
    return NULL;
}

/* ---- how far to look ahead ---- */

/* The caller holds dirs_lock. */
static struct dir *find_dir(struct known *k, uint64_t hash)
{
    struct dir *d = &k->dirs[hash % DIRS];
    if (d->hash != hash)
        *d = (struct dir){.hash = hash, .ahead = AHEAD_FIRST};
    return d;
}

uint32_t known_ahead(struct known *k, struct mcfs_slice tenant, struct mcfs_slice dir)
{
    MCFS_LOCK_SCOPE(&k->dirs_lock);
    struct dir *d = find_dir(k, hash_of(tenant, dir));
    if (d->taken) {
        d->ahead = d->used * 2 >= d->taken ? MCFS_MIN(d->ahead * 2, AHEAD_MAX) : d->ahead / 4;
        d->taken = d->used = d->misses = 0;
    }
    if (d->ahead)
        return d->ahead;
    if (++d->misses < PROBE_EVERY)
        return 0;
    d->ahead = AHEAD_FIRST;
    return d->ahead;
}

static void count_taken(struct known *k, uint64_t dir_hash)
{
    MCFS_LOCK_SCOPE(&k->dirs_lock);
    find_dir(k, dir_hash)->taken++;
}

static void count_used(struct known *k, uint64_t dir_hash)
{
    MCFS_LOCK_SCOPE(&k->dirs_lock);
    find_dir(k, dir_hash)->used++;
}

/* ---- what is known ---- */

bool known_find(struct known *k, struct mcfs_slice tenant, struct mcfs_slice key,
                struct mcfs_master_object *out, struct node_lease *lease)
{
    uint64_t hash = hash_of(tenant, key);
    struct stripe *s = stripe_of(k, hash);
    {
        MCFS_LOCK_SCOPE(&s->lock);
        struct entry *e = find(s, hash, tenant, key);
        if (!e)
            return false;
        if (e->until_ms <= mcfs_mono_ms()) {
            drop(e);
            return false;
        }
        *lease = (struct node_lease){e->until_ms, atomic_load(&s->changes)};
        out->version = e->version;
        out->size = e->size;
        out->attr = e->attr;
        out->replica_count = 0;
    }
    atomic_fetch_add_explicit(&k->hits, 1, memory_order_relaxed);
    count_used(k, hash_of(tenant, dir_of(key)));
    return true;
}

void known_begin(struct known *k, struct known_mark *mark)
{
    mark->asked_ms = mcfs_mono_ms();
    for (unsigned i = 0; i < KNOWN_STRIPES; i++)
        mark->changes[i] = atomic_load(&k->stripes[i].changes);
}

struct node_lease known_lease(struct known *k, const struct known_mark *mark,
                              struct mcfs_slice tenant, struct mcfs_slice key, uint32_t lease_ms)
{
    struct stripe *s = stripe_of(k, hash_of(tenant, key));
    return (struct node_lease){mark->asked_ms + lease_ms, mark->changes[s - k->stripes]};
}

bool known_lease_holds(struct known *k, struct mcfs_slice tenant, struct mcfs_slice key,
                       const struct node_lease *lease)
{
    struct stripe *s = stripe_of(k, hash_of(tenant, key));
    return !atomic_load(&s->blocked) && atomic_load(&s->changes) == lease->mark &&
           lease->until_ms > mcfs_mono_ms();
}

void known_add(struct known *k, const struct known_mark *mark, struct mcfs_slice tenant,
               struct mcfs_slice dir, const struct mcfs_master_neighbour *n)
{
    size_t key_len = dir.len + n->name.len;
    char *names = malloc(tenant.len + key_len);
    if (!names)
        return;
    memcpy(names, tenant.data, tenant.len);
    memcpy(names + tenant.len, dir.data, dir.len);
    memcpy(names + tenant.len + dir.len, n->name.data, n->name.len);
    struct mcfs_slice key = mcfs_slice(names + tenant.len, key_len);
    uint64_t hash = hash_of(tenant, key);
    struct stripe *s = stripe_of(k, hash);
    {
        MCFS_LOCK_SCOPE(&s->lock);
        if (!n->lease_ms || atomic_load(&s->blocked) ||
            atomic_load(&s->changes) != mark->changes[s - k->stripes]) {
            free(names);
            return;
        }
        struct entry *e = find(s, hash, tenant, key);
        for (unsigned w = 0; w < WAYS && !e; w++)
            if (!s->entries[hash % SETS][w].names)
                e = &s->entries[hash % SETS][w];
        if (!e) { /* the one that ends first makes room */
            e = &s->entries[hash % SETS][0];
            for (unsigned w = 1; w < WAYS; w++)
                if (s->entries[hash % SETS][w].until_ms < e->until_ms)
                    e = &s->entries[hash % SETS][w];
        }
        free(e->names);
        *e = (struct entry){.hash = hash,
                            .names = names,
                            .tenant_len = (uint32_t)tenant.len,
                            .key_len = (uint32_t)key_len,
                            .version = n->version,
                            .size = n->size,
                            .attr = n->attr,
                            .until_ms = mark->asked_ms + n->lease_ms};
    }
    count_taken(k, hash_of(tenant, dir));
}

void known_forget(struct known *k, struct mcfs_slice tenant, struct mcfs_slice key)
{
    uint64_t hash = hash_of(tenant, key);
    struct stripe *s = stripe_of(k, hash);
    MCFS_LOCK_SCOPE(&s->lock);
    atomic_fetch_add(&s->changes, 1);
    struct entry *e = find(s, hash, tenant, key);
    if (e)
        drop(e);
}

void known_block(struct known *k, struct mcfs_slice tenant, struct mcfs_slice key)
{
    struct stripe *s = stripe_of(k, hash_of(tenant, key));
    {
        MCFS_LOCK_SCOPE(&s->lock);
        atomic_fetch_add(&s->blocked, 1);
    }
    known_forget(k, tenant, key);
}

void known_unblock(struct known *k, struct mcfs_slice tenant, struct mcfs_slice key)
{
    struct stripe *s = stripe_of(k, hash_of(tenant, key));
    /* What was asked for meanwhile does not count later either: changed first, then allowed. */
    known_forget(k, tenant, key);
    MCFS_LOCK_SCOPE(&s->lock);
    atomic_fetch_sub(&s->blocked, 1);
}

void known_forget_all(struct known *k)
{
    for (unsigned i = 0; i < KNOWN_STRIPES; i++) {
        struct stripe *s = &k->stripes[i];
        MCFS_LOCK_SCOPE(&s->lock);
        atomic_fetch_add(&s->changes, 1);
        drop_all(s);
    }
}

uint64_t known_hits(struct known *k)
{
    return atomic_load(&k->hits);
}
