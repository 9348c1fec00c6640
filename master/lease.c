/* SPDX-License-Identifier: Apache-2.0 */
#include "master/lease.h"

#include "common/cleanup.h"
#include "common/clock.h"
#include "common/hash.h"
#include "common/table.h"

#include <stdatomic.h>
#include <sys/mman.h>

#define UNIT_MS 16 /* a 32-bit deadline in these lasts two years of uptime */
#define FLAG_RECALL 1u
#define FLAG_GIVEN_BACK 2u /* the group's lease does not count before the next look-up */
#define FLAG_AWAITED 4u    /* given back for somebody who asks again soon: not granted until then */
#define AWAITED_MS 112     /* and clients that wait for a lease ask at least every 50 ms */

/* Changed under the shard's lock, read by the checkpoint's child without. */
struct word {
    uint32_t deadline; /* in units since the table was made; 0: never */
    uint16_t holder;
    uint16_t flags;
};

/* A recall that waits for several nodes. */
struct recall {
    uint32_t slot, count;
    uint32_t nodes[64];
};

struct lease_table {
    _Atomic uint64_t *words;
    size_t bytes;
    int64_t start_mono_ms, start_wall_ms;
    pthread_mutex_t lock; /* guards recalls */
    struct mcfs_table recalls;
    _Atomic uint64_t granted, recalled;
};

static uint64_t recall_hash(const void *e)
{
    uint32_t slot = ((const struct recall *)e)->slot;
    return mcfs_hash(&slot, sizeof(slot));
}

static bool recall_eq(const void *e, const void *key)
{
    return ((const struct recall *)e)->slot == *(const uint32_t *)key;
}

static struct recall *recall_find(struct lease_table *t, uint32_t slot)
{
    return mcfs_table_find(&t->recalls, mcfs_hash(&slot, sizeof(slot)), recall_eq, &slot);
}

static struct word load(const struct lease_table *t, uint32_t slot)
{
    uint64_t raw = atomic_load_explicit(&t->words[slot], memory_order_relaxed);
    struct word w;
    memcpy(&w, &raw, sizeof(w));
    return w;
}

static void store(struct lease_table *t, uint32_t slot, struct word w)
{
    uint64_t raw;
    memcpy(&raw, &w, sizeof(raw));
    atomic_store_explicit(&t->words[slot], raw, memory_order_relaxed);
}

uint32_t lease_now(const struct lease_table *t)
{
    return (uint32_t)((mcfs_mono_ms() - t->start_mono_ms) / UNIT_MS) + 1;
}

struct lease_table *lease_table_new(uint32_t slots, struct mcfs_error *err)
{
    struct lease_table *t = calloc(1, sizeof(*t));
    if (!t) {
        mcfs_fail_errno(err, ENOMEM, "lease table");
        return NULL;
    }
    t->bytes = (size_t)slots * sizeof(uint64_t);
    /* Shared, so that fork copies no page tables and writes after it copy no page. */
    t->words = mmap(NULL, t->bytes, PROT_READ | PROT_WRITE,
                    MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (t->words == MAP_FAILED) {
        mcfs_fail_errno(err, errno, "lease table");
        free(t);
        return NULL;
    }
    t->start_mono_ms = mcfs_mono_ms();
    t->start_wall_ms = mcfs_wall_ms();
    t->recalls = (struct mcfs_table)MCFS_TABLE_INIT(recall_hash);
    pthread_mutex_init(&t->lock, NULL);
    return t;
}

void lease_table_free(struct lease_table *t)
{
    if (!t)
        return;
    struct recall *r;
    for (size_t i = 0; (r = mcfs_table_next(&t->recalls, &i));)
        free(r);
    mcfs_table_free(&t->recalls);
    munmap(t->words, t->bytes);
    pthread_mutex_destroy(&t->lock);
    free(t);
}

static void drop_recall(struct lease_table *t, uint32_t slot)
{
    MCFS_LOCK_SCOPE(&t->lock);
    struct recall *r = recall_find(t, slot);
    if (r && mcfs_table_del(&t->recalls, r))
        free(r);
}

/* Whether the lease in w still counts at `now`. */
static bool alive(const struct word *w, uint32_t now)
{
    return w->holder && w->deadline > now;
}

uint32_t lease_grant(struct lease_table *t, uint32_t slot, uint32_t node, uint32_t ms, uint32_t now)
{
    struct word w = load(t, slot);
    bool live = alive(&w, now);
    if (w.flags & FLAG_RECALL) {
        if (live)
            return 0;
        drop_recall(t, slot);
        w.flags &= (uint16_t)~FLAG_RECALL;
    }
    if (w.flags & FLAG_AWAITED) { /* who looks up again and again must not keep the change out */
        if (w.deadline > now)
            return 0;
        w.deadline = 0;
    }
    w.flags &= (uint16_t) ~(FLAG_GIVEN_BACK | FLAG_AWAITED);
    w.holder = (uint16_t)(!live || w.holder == node ? node : LEASE_SEVERAL);
    uint32_t deadline = now + ms / UNIT_MS;
    if (deadline > w.deadline)
        w.deadline = deadline;
    store(t, slot, w);
    /* The holder counts from when it asked; half a unit less keeps rounding on the safe side. */
    return ms > UNIT_MS ? ms - UNIT_MS : 0;
}

void lease_count_granted(struct lease_table *t, uint32_t n)
{
    atomic_fetch_add_explicit(&t->granted, n, memory_order_relaxed);
}

void lease_prefetch(const struct lease_table *t, uint32_t slot)
{
    __builtin_prefetch((const void *)&t->words[slot], 1);
}

uint32_t lease_held_by_others(struct lease_table *t, uint32_t slot, uint32_t node)
{
    struct word w = load(t, slot);
    uint32_t now = lease_now(t);
    if (!alive(&w, now) || w.holder == node)
        return 0;
    return (w.deadline - now) * UNIT_MS;
}

uint32_t lease_holder(struct lease_table *t, uint32_t slot)
{
    struct word w = load(t, slot);
    return alive(&w, lease_now(t)) ? w.holder : 0;
}

int64_t lease_deadline_wall_ms(struct lease_table *t, uint32_t slot)
{
    struct word w = load(t, slot);
    return w.deadline ? t->start_wall_ms + (int64_t)w.deadline * UNIT_MS : 0;
}

bool lease_recall_begin(struct lease_table *t, uint32_t slot)
{
    struct word w = load(t, slot);
    if (w.flags & FLAG_RECALL)
        return false;
    w.flags |= FLAG_RECALL;
    store(t, slot, w);
    atomic_fetch_add_explicit(&t->recalled, 1, memory_order_relaxed);
    return true;
}

void lease_recall_expect(struct lease_table *t, uint32_t slot, uint32_t node)
{
    MCFS_LOCK_SCOPE(&t->lock);
    struct recall *r = recall_find(t, slot);
    if (!r) {
        r = calloc(1, sizeof(*r));
        if (!r)
            return; /* waited out */
        r->slot = slot;
        if (mcfs_table_add(&t->recalls, r)) {
            free(r);
            return;
        }
    }
    if (r->count < MCFS_ARRAY_SIZE(r->nodes))
        r->nodes[r->count] = node;
    r->count++; /* more than fit: never complete by answers, so waited out */
}

void lease_returned(struct lease_table *t, uint32_t slot, uint32_t node)
{
    struct word w = load(t, slot);
    bool clear = w.holder == node;
    if (w.holder == LEASE_SEVERAL && w.flags & FLAG_RECALL) {
        MCFS_LOCK_SCOPE(&t->lock);
        struct recall *r = recall_find(t, slot);
        if (r && r->count <= MCFS_ARRAY_SIZE(r->nodes)) {
            for (uint32_t i = 0; i < r->count; i++)
                if (r->nodes[i] == node)
                    r->nodes[i--] = r->nodes[--r->count];
            clear = r->count == 0;
        }
    }
    if (!clear)
        return;
    if (w.flags & FLAG_RECALL)
        drop_recall(t, slot);
    bool awaited = w.flags & FLAG_RECALL;
    w.flags = awaited ? FLAG_GIVEN_BACK | FLAG_AWAITED : 0;
    w.holder = 0;
    if (awaited)
        w.deadline = lease_now(t) + AWAITED_MS / UNIT_MS;
    store(t, slot, w);
}

void lease_from_group(struct lease_table *t, uint32_t slot, uint32_t holder, uint32_t ms)
{
    struct word w = load(t, slot);
    uint32_t now = lease_now(t), deadline = now + ms / UNIT_MS;
    if (w.flags & (FLAG_RECALL | FLAG_GIVEN_BACK))
        return;
    w.holder = (uint16_t)(!alive(&w, now) || w.holder == holder ? holder : LEASE_SEVERAL);
    if (deadline > w.deadline)
        w.deadline = deadline;
    store(t, slot, w);
}

void lease_forget(struct lease_table *t, uint32_t slot)
{
    struct word w = load(t, slot);
    if (w.flags & FLAG_RECALL)
        drop_recall(t, slot);
    store(t, slot, (struct word){0});
}

uint64_t lease_granted_count(const struct lease_table *t)
{
    return atomic_load(&t->granted);
}

uint64_t lease_recall_count(const struct lease_table *t)
{
    return atomic_load(&t->recalled);
}
