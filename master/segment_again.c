/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that is mounted where a segment of the same node was that has gone.  Whoever was given a
 * range there may still be writing to its address: nobody tells the writer of a put that its
 * segment is gone before it ends the put, and what moves the bytes knows addresses, not segments.
 * So such ranges are held in the new segment from the start, until their time.  A node is its id:
 * memory of another one is other memory, whatever its addresses.
 */
#include "master/segment_table.h"

#include "common/cleanup.h"
#include "common/log.h"

#include <inttypes.h>
#include <stdlib.h>

/* [from, to) in the new segment, in whole units of its allocator. */
struct busy {
    uint64_t from, to;
    int64_t until_mono_ms;
};

struct busy_list {
    struct busy *v;
    uint32_t count;
    uint64_t base, end, unit;
};

/* Adds the part of a range that lies in the new segment; there is room for it. */
static void add(struct segments *s, const struct segment *g, struct busy_list *l,
                const struct segment_range *r, int64_t until_mono_ms)
{
    const struct segment *old = segment_at(s, r->segment);
    uint64_t size = r->size ? r->size : 1;
    if (!old || old == g || old->info.node != g->info.node || r->address >= l->end ||
        r->address + size <= l->base)
        return;
    uint64_t from = MCFS_MAX(r->address, l->base) - l->base;
    uint64_t to = MCFS_MIN(r->address + size, l->end) - l->base;
    from = from / l->unit * l->unit;
    to = (to + l->unit - 1) / l->unit * l->unit; /* the end is at a whole unit, too */
    l->v[l->count++] = (struct busy){l->base + from, l->base + to, until_mono_ms};
}

static int by_address(const void *a, const void *b)
{
    uint64_t x = ((const struct busy *)a)->from, y = ((const struct busy *)b)->from;
    return (x > y) - (x < y);
}

/* One range may have been held, or given to a put, in several segments one after the other. */
static void merge(struct busy_list *l)
{
    uint32_t kept = 0;
    qsort(l->v, l->count, sizeof(*l->v), by_address);
    for (uint32_t i = 0; i < l->count; i++) {
        struct busy *last = kept ? &l->v[kept - 1] : NULL;
        if (last && l->v[i].from < last->to) {
            last->to = MCFS_MAX(last->to, l->v[i].to);
            last->until_mono_ms = MCFS_MAX(last->until_mono_ms, l->v[i].until_mono_ms);
        } else {
            l->v[kept++] = l->v[i];
        }
    }
    l->count = kept;
}

/* Without memory to remember it nothing is allocated in the segment before the time is over. */
static void hold_one(struct segments *s, struct segment *g, const struct busy *b)
{
    struct mcfs_alloc_range at;
    if (mcfs_offset_reserve(g->allocator, b->from, b->to - b->from, &at)) {
        struct segment_range r = {at.address, b->to - b->from, g->info.number, at.node};
        MCFS_LOCK_SCOPE(&s->held_lock);
        g->holders++;
        if (segment_hold(s, &r, b->until_mono_ms, false) == 0)
            return;
    }
    g->usable_mono_ms = MCFS_MAX(g->usable_mono_ms, b->until_mono_ms);
}

void segment_hold_busy(struct segments *s, struct segment *g, const struct segment_busy *busy,
                       uint32_t n)
{
    MCFS_LOCK_SCOPE(&g->lock);
    const struct mcfs_alloc_state *a = mcfs_offset_allocator_state(g->allocator);
    struct busy_list l = {.base = g->info.base,
                          .unit = 1ull << a->multiplier_bits,
                          .end = g->info.base + ((uint64_t)a->size << a->multiplier_bits)};
    int64_t latest = g->usable_mono_ms;
    {
        MCFS_LOCK_SCOPE(&s->held_lock);
        l.v = malloc(((size_t)n + s->held_count + 1) * sizeof(*l.v));
        for (uint32_t i = 0; i < s->held_count; i++) {
            latest = MCFS_MAX(latest, s->held[i].until_mono_ms);
            if (l.v)
                add(s, g, &l, &s->held[i].range, s->held[i].until_mono_ms);
        }
    }
    for (uint32_t i = 0; i < n; i++) {
        latest = MCFS_MAX(latest, busy[i].until_mono_ms);
        if (l.v)
            add(s, g, &l, &busy[i].range, busy[i].until_mono_ms);
    }
    if (!l.v) {
        g->usable_mono_ms = latest;
        return;
    }
    merge(&l);
    for (uint32_t i = 0; i < l.count; i++)
        hold_one(s, g, &l.v[i]);
    if (l.count)
        mcfs_info(
            "segment %.*s: %u ranges are held, as those may still be busy there who were "
            "given them before",
            g->info.name_len, g->info.name, l.count);
    segment_count(s, g);
    free(l.v);
}
