/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_BACKENDS_EVICT_ORDER_H
#define MCFS_BACKENDS_EVICT_ORDER_H

/*
 * Eviction, a store's half: who goes next, and holding back what is about to go.  A victim stays in
 * the index, marked, until the master has answered: so that taking it back cannot fail.
 *
 * Each stripe of a store's index threads its objects in the order in which they go, so that
 * choosing costs what is chosen, however much is stored.  fifo goes by version, which is the order
 * of puts and survives a restart; lru by a count of puts and opens kept in memory, after a restart
 * by version until objects are opened again.  Versions of objects that Mooncake stored may all be
 * the same, so a hash of the key tells those apart.
 */

#include <mooncakefs/backend.h>

#include <pthread.h>
#include <stdatomic.h>

/* An object's place; part of its store's entry.  Under the lock of its stripe. */
struct evict_link {
    struct evict_link *older, *newer;
    uint64_t used : 63;   /* lru: the clock when it was put or opened last */
    uint64_t leaving : 1; /* held back: it cannot be opened, nor get another name */
};

/* The objects of a stripe. */
struct evict_line {
    struct evict_link *oldest, *newest; /* NULL where nothing evicts */
};

/* What an object is; the key is its storage key, borrowed. */
struct evict_item {
    struct mcfs_slice key;
    uint64_t version, size;
    uint64_t bytes; /* that its going gives back, as far as can be told */
};

/* How the order reaches into a store. */
struct evict_store_ops {
    unsigned stripes;
    struct evict_item (*item)(const struct evict_link *l);
    /* Stripe i and its lock. */
    struct evict_line *(*line)(void *store, unsigned i, pthread_mutex_t **lock);
    unsigned (*stripe_of)(void *store, struct mcfs_slice key);
    /* The object in stripe i, whose lock is held; NULL when it is not there. */
    struct evict_link *(*find)(void *store, unsigned i, struct mcfs_slice key, uint64_t version);
};

struct evict_order {
    const struct evict_store_ops *ops;
    void *store;
    bool active, lru;
    bool sorted;            /* recovery is over */
    _Atomic uint64_t clock; /* lru: counts puts and opens */
    _Atomic uint64_t evictions, evicted_bytes;
};

/* policy: "none" or NULL, "fifo", "lru"; else INVALID_PARAMS. */
int evict_order_init(struct evict_order *o, const struct evict_store_ops *ops, void *store,
                     const char *policy, struct mcfs_error *err);

/* Takes an object of the index into its stripe's order, or out of it; nothing where the store does
 * not evict.  The caller holds the stripe's lock. */
void evict_order_add(struct evict_order *o, struct evict_line *line, struct evict_link *l);
void evict_order_del(struct evict_order *o, struct evict_line *line, struct evict_link *l);

/* Puts n, which is in no order, where l is, which is in none then.  The caller holds the stripe's
 * lock. */
void evict_order_replace(struct evict_order *o, struct evict_line *line, struct evict_link *l,
                         struct evict_link *n);

/* Notes for lru that an object was opened.  The caller holds its stripe's lock. */
void evict_order_used(struct evict_order *o, struct evict_line *line, struct evict_link *l);

/* Sorts what recovery has found; before that objects are taken in as they come. */
int evict_order_begin(struct evict_order *o, struct mcfs_error *err);

/* As evict_choose, evict_hold and evict_end of the table.  name: of the store, for messages. */
int64_t evict_order_choose(struct evict_order *o, const char *name, struct mcfs_backend_cursor *at,
                           uint64_t bytes, struct mcfs_backend_victim *out, size_t max,
                           struct mcfs_error *err);
size_t evict_order_hold(struct evict_order *o, struct mcfs_backend_victim *victims, size_t n);
size_t evict_order_end(struct evict_order *o, struct mcfs_backend_victim *victims, size_t n);

/* A victim that owns a copy of its storage key; -1 without memory. */
int evict_victim_init(struct mcfs_backend_victim *v, struct mcfs_slice key, uint64_t version,
                      uint64_t size);

/* The storage key of a victim, borrowed. */
struct mcfs_slice evict_victim_key(const struct mcfs_backend_victim *v);

#endif
