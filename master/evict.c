/* SPDX-License-Identifier: Apache-2.0 */
#include "master/evict.h"

#include "common/cleanup.h"
#include "common/clock.h"
#include "common/cond.h"
#include "common/hash.h"
#include "common/log.h"
#include "common/table.h"
#include "master/object_memory.h"

#include <inttypes.h>

/* ---- what may go, and how long ago it was last leased ---- */

struct group {
    uint32_t tenant, len;
    uint64_t members; /* that have memory replicas */
    int64_t deadline_ms;
    bool blocked, soft; /* a member may not go; is softly pinned */
    bool decided, goes;
    char name[];
};

struct group_key {
    uint32_t tenant;
    struct mcfs_slice name;
};

/* Those of one kind that may go, and which of them do: below the bound all, at it so many. */
struct pool {
    int64_t *v;
    size_t count, cap;
    int64_t bound;
    uint64_t at_bound;
};

struct eviction {
    struct directory *d;
    bool failed; /* no memory */
    uint64_t with_memory;
    struct pool pools[2]; /* not pinned; softly pinned */
    struct mcfs_table groups;
    struct evict_counts *counts;
};

static uint64_t hash_group(uint32_t tenant, struct mcfs_slice name)
{
    return mcfs_hash(name.data, name.len) ^ tenant * 0x9e3779b97f4a7c15ULL;
}

static uint64_t group_hash(const void *e)
{
    const struct group *g = e;
    return hash_group(g->tenant, mcfs_slice(g->name, g->len));
}

static bool group_eq(const void *e, const void *key)
{
    const struct group *g = e;
    const struct group_key *k = key;
    return g->tenant == k->tenant && mcfs_slice_eq(mcfs_slice(g->name, g->len), k->name);
}

static struct group *find_group(struct eviction *ev, uint32_t tenant, struct mcfs_slice name)
{
    struct group_key key = {tenant, name};
    return mcfs_table_find(&ev->groups, hash_group(tenant, name), group_eq, &key);
}

static struct group *make_group(struct eviction *ev, uint32_t tenant, struct mcfs_slice name)
{
    struct group *g = find_group(ev, tenant, name);
    if (g)
        return g;
    if (!(g = malloc(sizeof(*g) + name.len)))
        return NULL;
    *g = (struct group){.tenant = tenant, .len = (uint32_t)name.len, .deadline_ms = INT64_MIN};
    memcpy(g->name, name.data, name.len);
    if (mcfs_table_add(&ev->groups, g)) {
        free(g);
        return NULL;
    }
    return g;
}

static void add(struct eviction *ev, bool soft, int64_t deadline_ms)
{
    struct pool *p = &ev->pools[soft];
    if (p->count == p->cap) {
        size_t cap = p->cap ? p->cap * 2 : 4096;
        int64_t *more = realloc(p->v, cap * sizeof(*more));
        if (!more) {
            ev->failed = true;
            return;
        }
        p->v = more;
        p->cap = cap;
    }
    p->v[p->count++] = deadline_ms;
}

/* What the decision about one object rests on. */
struct look {
    int64_t deadline_ms; /* of its last lease, an earlier master's included; 0: never leased */
    bool blocked, soft;
    struct mcfs_slice group;
};

static struct look look_at(struct directory *d, const struct record *r)
{
    uint32_t slot = (uint32_t)(r - d->record_base);
    return (struct look){.deadline_ms = MCFS_MAX(lease_deadline_wall_ms(d->leases, slot),
                                                 record_side(d, r)->lease_ms),
                         .blocked = r->flags & RECORD_HARD_PIN || object_lease_left_ms(d, r),
                         .soft = r->flags & RECORD_SOFT_PIN && soft_pin_left_ms(d->soft_pins, slot),
                         .group = record_group(d, r)};
}

static void note(struct eviction *ev, const struct record *r)
{
    struct look l = look_at(ev->d, r);
    ev->with_memory++;
    if (!l.group.len) {
        if (!l.blocked)
            add(ev, l.soft, l.deadline_ms);
        return;
    }
    struct group *g = make_group(ev, r->tenant, l.group);
    if (!g) {
        ev->failed = true;
        return;
    }
    g->members++;
    g->deadline_ms = MCFS_MAX(g->deadline_ms, l.deadline_ms);
    g->blocked |= l.blocked;
    g->soft |= l.soft;
}

/* ---- where the line is ---- */

/* The k-th smallest (from 0 on), in time proportional to their number. */
static int64_t kth(int64_t *v, size_t count, size_t k)
{
    size_t low = 0, high = count - 1;
    uint64_t seed = 88172645463325252ULL;
    while (low < high) {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        int64_t pivot = v[low + seed % (high - low + 1)];
        size_t less = low, i = low, more = high + 1; /* [low, less) < pivot = [less, i) */
        while (i < more) {
            int64_t x = v[i];
            if (x < pivot) {
                v[i++] = v[less];
                v[less++] = x;
            } else if (x > pivot) {
                v[i] = v[--more];
                v[more] = x;
            } else {
                i++;
            }
        }
        if (k < less)
            high = less - 1;
        else if (k < more)
            return pivot;
        else
            low = more;
    }
    return v[low];
}

/* Sets the line so that `want` are on this side of it; returns how many there are. */
static uint64_t draw_line(struct pool *p, uint64_t want)
{
    p->bound = INT64_MIN;
    p->at_bound = 0;
    if (!want || !p->count)
        return 0;
    p->at_bound = want = MCFS_MIN(want, (uint64_t)p->count);
    p->bound = kth(p->v, p->count, want - 1);
    for (size_t i = 0; i < p->count; i++)
        p->at_bound -= p->v[i] < p->bound;
    return want;
}

static void draw_lines(struct eviction *ev, double share, bool soft_pinned)
{
    const struct group *g;
    for (size_t i = 0; (g = mcfs_table_next(&ev->groups, &i));)
        for (uint64_t n = 0; n < g->members && !g->blocked; n++)
            add(ev, g->soft, g->deadline_ms);
    double exact = share * (double)ev->with_memory;
    uint64_t want = (uint64_t)exact;
    want += (double)want < exact;
    want -= draw_line(&ev->pools[0], want);
    draw_line(&ev->pools[1], soft_pinned ? want : 0);
}

/* Whether so many objects of this deadline are to go, and takes them off what is to go. */
static bool is_over(struct pool *p, int64_t deadline_ms, uint64_t count)
{
    if (deadline_ms != p->bound)
        return deadline_ms < p->bound;
    if (!p->at_bound)
        return false;
    p->at_bound -= MCFS_MIN(p->at_bound, count);
    return true;
}

static bool goes(struct eviction *ev, const struct record *r)
{
    struct look l = look_at(ev->d, r);
    if (l.blocked)
        return false;
    if (!l.group.len)
        return is_over(&ev->pools[l.soft], l.deadline_ms, 1);
    struct group *g = find_group(ev, r->tenant, l.group);
    if (!g || g->blocked)
        return false;
    if (!g->decided)
        g->goes = is_over(&ev->pools[g->soft], g->deadline_ms, g->members);
    g->decided = true;
    return g->goes;
}

/* ---- the two walks ---- */

static void note_shard(struct eviction *ev, uint32_t shard)
{
    struct directory *d = ev->d;
    MCFS_LOCK_SCOPE(&d->shards[shard].lock);
    for (uint32_t i = 0; i <= d->shards[shard].mask; i++) {
        uint32_t slot = shard_slot_at(d, shard, i);
        const struct record *r = slot ? record_at(d, slot) : NULL;
        record_walk_prefetch(d, shard, i);
        if (r && r->side && record_has_memory(d, r))
            note(ev, r);
    }
}

static void evict_shard(struct eviction *ev, uint32_t shard)
{
    struct directory *d = ev->d;
    MCFS_LOCK_SCOPE(&d->shards[shard].lock);
    for (uint32_t i = 0; i <= d->shards[shard].mask;) {
        uint32_t slot = shard_slot_at(d, shard, i);
        struct record *r = slot ? record_at(d, slot) : NULL;
        record_walk_prefetch(d, shard, i);
        if (!r || !r->side || !record_has_memory(d, r) || !goes(ev, r)) {
            i++;
            continue;
        }
        ev->counts->objects++;
        if (record_drop_memory(d, r, true, &ev->counts->bytes)) {
            i++;
            continue;
        }
        record_delete(d, key_hash(intern_get(d->tenants, r->tenant), record_key(d, r)), slot);
        ev->counts->gone++; /* and look at this place again: another may have moved up */
    }
}

static void walk(struct eviction *ev, void (*fn)(struct eviction *ev, uint32_t shard))
{
    for (uint32_t shard = 0; shard < MCFS_SHARD_COUNT && !ev->failed; shard++) {
        unsigned slot = directory_enter(ev->d);
        fn(ev, shard);
        directory_leave(ev->d, slot);
    }
}

int directory_evict(struct directory *d, double share, bool soft_pinned,
                    struct evict_counts *counts)
{
    struct eviction ev = {.d = d, .groups = MCFS_TABLE_INIT(group_hash), .counts = counts};
    *counts = (struct evict_counts){0};
    walk(&ev, note_shard);
    if (!ev.failed)
        draw_lines(&ev, MCFS_MIN(share, 1.0), soft_pinned);
    walk(&ev, evict_shard);
    struct group *g;
    for (size_t i = 0; (g = mcfs_table_next(&ev.groups, &i));)
        free(g);
    mcfs_table_free(&ev.groups);
    free(ev.pools[0].v);
    free(ev.pools[1].v);
    return ev.failed ? -1 : 0;
}

/* ---- the thread ---- */

#define CHECK_NS 1000000000ll
#define REST_NS 100000000ll /* after a walk that found nothing to evict */
#define SERVE_NS 5000000ll  /* between looks for room that others have given back */

struct evictor {
    struct evict_config config;
    pthread_t thread;
    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t changed;
    bool stopping, wanted;
    struct evict_counts counts;
};

static bool beyond(const struct evictor *e)
{
    return segments_use(directory_segments(e->config.directory)) > e->config.high_watermark;
}

/* One round, of so many times the ratio; returns whether anything went. */
static bool evict_once(struct evictor *e, double times)
{
    struct evict_counts c;
    double use = segments_use(directory_segments(e->config.directory));
    double share = times * e->config.ratio + MCFS_MAX(use - e->config.high_watermark, 0.0);
    if (directory_evict(e->config.directory, share, e->config.soft_pinned, &c))
        mcfs_error("eviction: no memory to choose what goes");
    if (c.objects)
        mcfs_info("evicted %" PRIu64 " objects' memory replicas, %" PRIu64 " bytes; %" PRIu64
                  " objects had no other",
                  c.objects, c.bytes, c.gone);
    MCFS_LOCK_SCOPE(&e->lock);
    e->counts.objects += c.objects;
    e->counts.bytes += c.bytes;
    e->counts.gone += c.gone;
    return c.objects != 0;
}

/* Under the lock, which it lets go of meanwhile; returns whether somebody is left who waits. */
static bool serve(struct evictor *e, int64_t *until_ms, bool *some)
{
    const struct evict_waiters *w = &e->config.waiters;
    if (!w->any || !w->any(w->arg))
        return false;
    pthread_mutex_unlock(&e->lock);
    *until_ms = w->serve(w->arg, some);
    pthread_mutex_lock(&e->lock);
    return w->any(w->arg);
}

/* The same: sends away whom no eviction helps, so that nothing is evicted for them.  Who has come
 * since the look at what there is waits for the next one. */
static bool refuse(struct evictor *e, int64_t until_ms)
{
    const struct evict_waiters *w = &e->config.waiters;
    int64_t left_ms = until_ms - mcfs_mono_ms();
    pthread_mutex_unlock(&e->lock);
    bool left = w->refuse(w->arg, until_ms,
                          directory_room_within(e->config.directory,
                                                (uint64_t)MCFS_MAX(left_ms, (int64_t)0),
                                                e->config.soft_pinned));
    pthread_mutex_lock(&e->lock);
    return left;
}

static void *evictor_main(void *arg)
{
    struct evictor *e = arg;
    int64_t next = 0;
    double times = 1; /* doubles from round to round that brought nobody his room */
    pthread_mutex_lock(&e->lock);
    while (!e->stopping) {
        int64_t until_ms = 0;
        bool served = false, waiting = serve(e, &until_ms, &served);
        if (served || !waiting)
            times = 1;
        int64_t now = mcfs_mono_ns();
        if (now < next || (!e->wanted && !waiting && !beyond(e))) {
            int64_t until = now < next ? next : now + CHECK_NS;
            mcfs_cond_wait_until(&e->changed, &e->lock,
                                 waiting ? MCFS_MIN(until, now + SERVE_NS) : until);
            continue;
        }
        if (waiting && !refuse(e, until_ms))
            continue;
        e->wanted = false;
        pthread_mutex_unlock(&e->lock);
        bool some = evict_once(e, times);
        pthread_mutex_lock(&e->lock);
        if (some && waiting)
            times = MCFS_MIN(times * 2, 1 / e->config.ratio);
        next = some ? 0 : mcfs_mono_ns() + REST_NS;
    }
    pthread_mutex_unlock(&e->lock);
    return NULL;
}

struct evictor *evictor_start(const struct evict_config *config, struct mcfs_error *err)
{
    struct evictor *e = calloc(1, sizeof(*e));
    if (!e) {
        mcfs_fail_errno(err, ENOMEM, "eviction");
        return NULL;
    }
    e->config = *config;
    pthread_mutex_init(&e->lock, NULL);
    mcfs_cond_init(&e->changed);
    int rc = pthread_create(&e->thread, NULL, evictor_main, e);
    if (rc) {
        mcfs_fail_errno(err, rc, "eviction thread");
        free(e);
        return NULL;
    }
    return e;
}

void evictor_stop(struct evictor *e)
{
    if (!e)
        return;
    {
        MCFS_LOCK_SCOPE(&e->lock);
        e->stopping = true;
        pthread_cond_broadcast(&e->changed);
    }
    pthread_join(e->thread, NULL);
    pthread_mutex_destroy(&e->lock);
    pthread_cond_destroy(&e->changed);
    free(e);
}

void evictor_wake(struct evictor *e, bool full)
{
    if (!e || (!full && !beyond(e)))
        return;
    MCFS_LOCK_SCOPE(&e->lock);
    if (e->wanted)
        return;
    e->wanted = true;
    pthread_cond_broadcast(&e->changed);
}

void evictor_serve(struct evictor *e)
{
    MCFS_LOCK_SCOPE(&e->lock);
    pthread_cond_broadcast(&e->changed);
}

void evictor_counts(struct evictor *e, struct evict_counts *out)
{
    *out = (struct evict_counts){0};
    if (!e)
        return;
    MCFS_LOCK_SCOPE(&e->lock);
    *out = e->counts;
}
