/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What recovery has read of a bucket is entered in the store's index, a stripe at a time: each
 * stripe's lock is taken twice, and the places of all its newcomers are fetched side by side while
 * the stripe before it is being entered.  One after the other each would wait for memory, and
 * threads for each other.
 */
#include "backends/bucket/bucket_recover.h"

#include "common/cleanup.h"

struct newcomer {
    struct entry *e;
    uint64_t hash;
};

struct publication {
    struct recovery *r;
    struct newcomer *all; /* in the order of their records */
    uint32_t *by_stripe;  /* places in `all` */
    uint32_t ends[INDEX_STRIPES];
    size_t count;
    struct index_counts counts;
};

/* Enters one; takes it out of the list when it is to be in no bucket either. */
static int enter(struct publication *p, struct index_stripe *stripe, struct newcomer *n)
{
    struct recovery *r = p->r;
    struct entry *e = n->e;
    /* Not valid: it is kept with its bucket, for Mooncake; nobody can ask us for it. */
    if (!storage_key_is_valid(entry_key(e)))
        return 0;
    struct entry *other = index_find_hashed(stripe, n->hash, entry_key(e), e->version);
    if (other && entry_bucket(other) == entry_bucket(e)) {
        entry_free(e); /* of two records of one put the first counts */
        n->e = NULL;
        return 0;
    }
    if (other && entry_bucket(other)->id > entry_bucket(e)->id)
        return recovery_add_loser(r, e);
    if (other) {
        index_del(r->s, stripe, other);
        if (recovery_add_loser(r, other))
            return -1;
    }
    return index_enter(r->s, stripe, e, n->hash, &p->counts);
}

static size_t start_of(const struct publication *p, unsigned i)
{
    return i ? p->ends[i - 1] : 0;
}

/* Has the places of a stripe's newcomers fetched, which takes about as long as entering those of
 * the stripe before it. */
static void fetch_stripe(struct publication *p, unsigned i)
{
    struct index_stripe *stripe = &p->r->s->stripes[i];
    MCFS_LOCK_SCOPE(&stripe->lock);
    for (size_t k = start_of(p, i); k < p->ends[i]; k++)
        mcfs_id_table_prefetch(&stripe->table, p->all[p->by_stripe[k]].hash);
}

static int enter_stripe(struct publication *p, unsigned i)
{
    struct index_stripe *stripe = &p->r->s->stripes[i];
    MCFS_LOCK_SCOPE(&stripe->lock);
    for (size_t k = start_of(p, i); k < p->ends[i]; k++)
        if (enter(p, stripe, &p->all[p->by_stripe[k]]))
            return -1;
    return 0;
}

/* Each stripe's newcomers one after the other, in their order. */
static void sort_by_stripe(struct publication *p)
{
    uint32_t at = 0, n;
    for (size_t k = 0; k < p->count; k++)
        p->ends[index_stripe_of(p->all[k].hash)]++;
    for (unsigned i = 0; i < INDEX_STRIPES; i++) {
        n = p->ends[i];
        p->ends[i] = at;
        at += n;
    }
    for (uint32_t k = 0; k < p->count; k++)
        p->by_stripe[p->ends[index_stripe_of(p->all[k].hash)]++] = k;
}

int recovery_publish(struct recovery *r, struct bucket *b, struct entry *first, size_t count)
{
    _cleanup_free_ struct newcomer *all = calloc(count ? count : 1, sizeof(*all));
    _cleanup_free_ uint32_t *by_stripe = calloc(count ? count : 1, sizeof(*by_stripe));
    struct publication p = {.r = r, .all = all, .by_stripe = by_stripe};
    for (struct entry *e = first, *next; e; e = next) {
        next = entry_after(e);
        if (all && by_stripe)
            all[p.count++] = (struct newcomer){e, index_entry_hash(e)};
        else
            entry_free(e);
    }
    if (!all || !by_stripe)
        return -1;
    sort_by_stripe(&p);
    int rc = 0;
    fetch_stripe(&p, 0);
    for (unsigned i = 0; i < INDEX_STRIPES && rc == 0; i++) {
        if (i + 1 < INDEX_STRIPES)
            fetch_stripe(&p, i + 1);
        rc = enter_stripe(&p, i);
    }
    index_count(r->s, &p.counts);
    /* All of them, after an error too: what is in its bucket is freed with the store. */
    MCFS_LOCK_SCOPE(&b->lock);
    for (size_t k = 0; k < p.count; k++)
        if (all[k].e)
            bucket_link(r->s, b, all[k].e);
    return rc;
}
