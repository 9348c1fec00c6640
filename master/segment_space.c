/* SPDX-License-Identifier: Apache-2.0 */
/* Where in the segments replicas go, and when their ranges come back. */
#include "master/segment_table.h"

#include "common/cleanup.h"
#include "common/clock.h"
#include "common/log.h"

#include <inttypes.h>
#include <string.h>
#include <sys/random.h>

#define RATIO_SAMPLE 64 /* segments compared by free_ratio_first where there are more */

/* ---- choosing; the table is locked for reading ---- */

static uint64_t random_number(void)
{
    static _Thread_local uint64_t x;
    if (!x && (getrandom(&x, sizeof(x), 0) != sizeof(x) || !x))
        x = (uint64_t)mcfs_mono_ns() | 1;
    x ^= x << 13; /* xorshift64 */
    x ^= x >> 7;
    x ^= x << 17;
    return x;
}

struct picking {
    struct segments *s;
    const struct space_request *q;
    int64_t now;
    uint32_t got;
    struct segment_range *out;
    uint64_t tried[SEGMENTS_MAX / 64 + 1];
};

static bool is_tried(const struct picking *p, uint32_t number)
{
    return p->tried[number / 64] >> number % 64 & 1;
}

/* Replicas of one object lie on segments of different names: a node may split its memory into
 * several segments of one name, which would be lost together. */
static bool may_take(const struct picking *p, const struct segment *g)
{
    if (is_tried(p, g->info.number) || atomic_load(&g->state) != SEGMENT_OK ||
        g->info.size < p->q->size)
        return false;
    for (uint32_t i = 0; i < p->got; i++) {
        const struct segment_info *o = &p->s->all[p->out[i].segment]->info;
        if (mcfs_slice_eq(segment_name(o), segment_name(&g->info)))
            return false;
    }
    return true;
}

static bool take(struct picking *p, struct segment *g)
{
    struct mcfs_alloc_range range;
    p->tried[g->info.number / 64] |= 1ull << g->info.number % 64;
    MCFS_LOCK_SCOPE(&g->lock);
    if (atomic_load(&g->state) != SEGMENT_OK || g->usable_mono_ms > p->now ||
        !mcfs_offset_allocate(g->allocator, p->q->size, &range))
        return false;
    g->holders++;
    segment_count(p->s, g);
    p->out[p->got++] =
        (struct segment_range){range.address, p->q->size, g->info.number, range.node};
    return true;
}

static void take_preferred(struct picking *p)
{
    for (uint32_t i = 0; i < p->q->preferred_count; i++)
        for (uint32_t n = 1; n <= p->s->max && p->got < p->q->replicas; n++) {
            struct segment *g = p->s->all[n];
            if (mcfs_slice_eq(segment_name(&g->info), p->q->preferred[i]) && may_take(p, g) &&
                take(p, g))
                break;
        }
}

static double free_ratio(const struct segment *g)
{
    return 1 - (double)atomic_load_explicit(&g->used, memory_order_relaxed) / (double)g->info.size;
}

/* The segment with the greatest share of free room, among at most so many from a random one on;
 * NULL: none that may be taken. */
static struct segment *best_ratio(const struct picking *p, uint32_t from)
{
    struct segment *best = NULL;
    uint32_t seen = 0;
    for (uint32_t i = 0; i < p->s->max && seen < RATIO_SAMPLE; i++) {
        struct segment *g = p->s->all[1 + (from + i) % p->s->max];
        if (!may_take(p, g))
            continue;
        seen++;
        if (!best || free_ratio(g) > free_ratio(best))
            best = g;
    }
    return best;
}

/* One of those that may be taken, each as likely as the others; NULL: none. */
static struct segment *any(const struct picking *p)
{
    struct segment *found = NULL;
    uint32_t seen = 0;
    for (uint32_t n = 1; n <= p->s->max; n++)
        if (may_take(p, p->s->all[n]) && random_number() % ++seen == 0)
            found = p->s->all[n];
    return found;
}

static void take_by_strategy(struct picking *p)
{
    while (p->got < p->q->replicas) {
        struct segment *g = p->q->strategy == SEGMENT_FREE_RATIO_FIRST
                                ? best_ratio(p, (uint32_t)(random_number() % p->s->max))
                                : any(p);
        if (!g)
            return;
        take(p, g);
    }
}

static void explain(struct segments *s, const struct space_request *q, bool *full,
                    struct mcfs_error *err)
{
    uint64_t largest = 0;
    uint32_t there = 0, usable = 0;
    for (uint32_t i = 1; i <= s->max; i++) {
        const struct segment *g = s->all[i];
        int state = atomic_load(&g->state);
        there += state == SEGMENT_OK || state == SEGMENT_AWAITED || state == SEGMENT_DRAINING;
        usable += state == SEGMENT_OK;
        if (state == SEGMENT_OK)
            largest = MCFS_MAX(largest, g->info.size);
    }
    *full = usable && q->size <= largest;
    if (!there)
        mcfs_fail(err, MCFS_NO_AVAILABLE_HANDLE, "no memory segment is mounted");
    else if (!usable)
        mcfs_fail(err, MCFS_NO_AVAILABLE_HANDLE,
                  "no memory segment takes new replicas: %u are draining or awaited", there);
    else if (!*full)
        mcfs_fail(err, MCFS_NO_AVAILABLE_HANDLE,
                  "%" PRIu64
                  " bytes are more than any memory segment has: the largest has %" PRIu64,
                  q->size, largest);
    else
        mcfs_fail(err, MCFS_NO_AVAILABLE_HANDLE,
                  "no memory segment has %" PRIu64 " bytes free in one piece", q->size);
}

static uint32_t allocate_once(struct segments *s, const struct space_request *q,
                              struct segment_range *out, bool *full, struct mcfs_error *err)
{
    struct picking p = {.s = s, .q = q, .now = mcfs_mono_ms(), .out = out};
    pthread_rwlock_rdlock(&s->lock);
    take_preferred(&p);
    take_by_strategy(&p);
    if (!p.got)
        explain(s, q, full, err);
    pthread_rwlock_unlock(&s->lock);
    return p.got;
}

uint32_t segments_allocate(struct segments *s, const struct space_request *q,
                           struct segment_range *out, bool *full, struct mcfs_error *err)
{
    *full = false;
    uint32_t got = allocate_once(s, q, out, full, err);
    if (!got && *full && segments_release_due(s))
        got = allocate_once(s, q, out, full, err);
    if (!got && !q->again)
        atomic_fetch_add(&s->failures, 1);
    return got;
}

/* ---- giving back ---- */

void segments_release(struct segments *s, const struct segment_range *r)
{
    struct segment *g = segment_at(s, r->segment);
    if (!g)
        return;
    MCFS_LOCK_SCOPE(&g->lock);
    if (g->holders)
        g->holders--;
    if (!g->allocator)
        return;
    if (g->claimed && r->node < g->claimed_nodes) /* the node may be another range's next */
        g->claimed[r->node / 64] &= ~(1ull << r->node % 64);
    if (!mcfs_offset_release(g->allocator, r->node, r->size))
        mcfs_error("segment %.*s: a range is given back that was not allocated", g->info.name_len,
                   g->info.name);
    segment_count(s, g);
}

static void swap(struct held *a, struct held *b)
{
    struct held t = *a;
    *a = *b;
    *b = t;
}

int segment_hold(struct segments *s, const struct segment_range *r, int64_t until, bool carried)
{
    if (s->held_count == s->held_cap) {
        uint32_t cap = s->held_cap ? s->held_cap * 2 : 1024;
        struct held *more = realloc(s->held, cap * sizeof(*more));
        if (!more)
            return -1;
        s->held = more;
        s->held_cap = cap;
    }
    uint32_t i = s->held_count++;
    s->held[i] = (struct held){until, *r, carried};
    s->held_bytes += r->size;
    for (; i && s->held[(i - 1) / 2].until_mono_ms > s->held[i].until_mono_ms; i = (i - 1) / 2)
        swap(&s->held[i], &s->held[(i - 1) / 2]);
    return 0;
}

/* Takes out the earliest, when it is due; the lock is held. */
static bool pop_due(struct segments *s, int64_t now, struct segment_range *out)
{
    if (!s->held_count || s->held[0].until_mono_ms > now)
        return false;
    *out = s->held[0].range;
    s->held_bytes -= out->size;
    s->held[0] = s->held[--s->held_count];
    for (uint32_t i = 0;;) {
        uint32_t least = i, left = 2 * i + 1, right = left + 1;
        if (left < s->held_count && s->held[left].until_mono_ms < s->held[least].until_mono_ms)
            least = left;
        if (right < s->held_count && s->held[right].until_mono_ms < s->held[least].until_mono_ms)
            least = right;
        if (least == i)
            return true;
        swap(&s->held[i], &s->held[least]);
        i = least;
    }
}

static void release_in(struct segments *s, const struct segment_range *r, uint64_t ms, bool carried)
{
    struct segment *g = segment_at(s, r->segment);
    int64_t until = mcfs_mono_ms() + (int64_t)ms;
    if (!ms || !g) {
        segments_release(s, r);
        return;
    }
    {
        MCFS_LOCK_SCOPE(&s->held_lock);
        if (segment_hold(s, r, until, carried) == 0)
            return;
    }
    /* Never handed out again, rather than too early; nor is what may be mounted there. */
    mcfs_error("%" PRIu64 " bytes of a memory segment are lost: no memory to remember them",
               r->size);
    MCFS_LOCK_SCOPE(&g->lock);
    g->known_mono_ms = MCFS_MAX(g->known_mono_ms, until);
}

void segments_release_in(struct segments *s, const struct segment_range *r, uint64_t ms)
{
    release_in(s, r, ms, false);
}

void segments_hold_carried(struct segments *s, const struct segment_range *r, uint64_t ms)
{
    release_in(s, r, ms, true);
}

uint32_t segments_release_due(struct segments *s)
{
    int64_t now = mcfs_mono_ms();
    struct segment_range range;
    for (uint32_t n = 0;; n++) {
        bool due;
        {
            MCFS_LOCK_SCOPE(&s->held_lock);
            due = pop_due(s, now, &range);
        }
        if (!due)
            return n;
        segments_release(s, &range);
    }
}

void segments_add_held(struct segments *s, int64_t beyond_mono_ms, uint64_t *bytes, uint32_t max)
{
    MCFS_LOCK_SCOPE(&s->held_lock);
    for (uint32_t i = 0; i < s->held_count; i++)
        if (s->held[i].until_mono_ms > beyond_mono_ms && s->held[i].range.segment <= max)
            bytes[s->held[i].range.segment] += s->held[i].range.size;
}

bool segments_peek_held(struct segments *s, uint32_t i, struct segment_range *out,
                        int64_t *until_mono_ms)
{
    if (i >= s->held_count)
        return false;
    *out = s->held[i].range;
    *until_mono_ms = s->held[i].carried ? 0 : s->held[i].until_mono_ms;
    return true;
}

/* ---- restoring ---- */

static bool mark(struct segment *g, uint32_t node)
{
    if (node >= g->claimed_nodes) {
        uint32_t nodes = mcfs_offset_allocator_state(g->allocator)->current_capacity;
        uint64_t *more = realloc(g->claimed, (nodes / 64 + 1) * sizeof(*more));
        if (!more)
            return false;
        uint32_t had = g->claimed_nodes / 64 + 1;
        memset(more + had, 0, (nodes / 64 + 1 - had) * sizeof(*more));
        g->claimed = more;
        g->claimed_nodes = nodes;
    }
    uint64_t bit = 1ull << node % 64;
    bool was = g->claimed[node / 64] & bit;
    g->claimed[node / 64] |= bit;
    return !was;
}

/* Whether the allocator has handed out just this. */
static bool is_allocated(const struct mcfs_alloc_state *a, uint64_t address, uint64_t size,
                         uint32_t node)
{
    if (node >= a->current_capacity || !a->nodes[node].used)
        return false;
    const struct mcfs_alloc_node *n = &a->nodes[node];
    return address == a->base + ((uint64_t)n->data_offset << a->multiplier_bits) &&
           size <= (uint64_t)n->data_size << a->multiplier_bits;
}

bool segments_claim(struct segments *s, struct mcfs_id id, uint64_t address, uint64_t size,
                    uint32_t node, struct segment_range *out)
{
    struct segment *g = segment_at(s, segments_find(s, id));
    struct mcfs_alloc_range range = {address, node};
    if (!g)
        return false;
    MCFS_LOCK_SCOPE(&g->lock);
    if (!g->allocator || !g->claimed)
        return false;
    const struct mcfs_alloc_state *a = mcfs_offset_allocator_state(g->allocator);
    if (!is_allocated(a, address, size, node) &&
        !mcfs_offset_reserve(g->allocator, address, size, &range))
        return false;
    if (!mark(g, range.node))
        return false;
    g->holders++;
    segment_count(s, g);
    *out = (struct segment_range){address, size, g->info.number, range.node};
    return true;
}

uint64_t segments_claims_end(struct segments *s, uint64_t ms)
{
    uint64_t found = 0;
    pthread_rwlock_rdlock(&s->lock);
    for (uint32_t i = 1; i <= s->max; i++) {
        struct segment *g = s->all[i];
        MCFS_LOCK_SCOPE(&g->lock);
        if (!g->allocator || !g->claimed)
            continue;
        const struct mcfs_alloc_state *a = mcfs_offset_allocator_state(g->allocator);
        for (uint32_t n = 0; n < a->current_capacity; n++) {
            if (!a->nodes[n].used || (n < g->claimed_nodes && g->claimed[n / 64] >> n % 64 & 1))
                continue;
            struct segment_range r = {a->base +
                                          ((uint64_t)a->nodes[n].data_offset << a->multiplier_bits),
                                      (uint64_t)a->nodes[n].data_size << a->multiplier_bits, i, n};
            g->holders++;
            found++;
            MCFS_LOCK_SCOPE(&s->held_lock);
            segment_hold(s, &r, mcfs_mono_ms() + (int64_t)ms, false);
        }
        free(g->claimed);
        g->claimed = NULL;
        g->claimed_nodes = 0;
    }
    pthread_rwlock_unlock(&s->lock);
    return found;
}
