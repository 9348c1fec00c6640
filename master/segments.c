/* SPDX-License-Identifier: Apache-2.0 */
#include "master/segment_table.h"

#include "common/cleanup.h"
#include "common/clock.h"
#include "common/id.h"
#include "common/log.h"

#include <string.h>

struct segments *segments_new(void)
{
    struct segments *s = calloc(1, sizeof(*s));
    if (!s)
        return NULL;
    pthread_rwlock_init(&s->lock, NULL);
    pthread_mutex_init(&s->held_lock, NULL);
    return s;
}

void segments_free(struct segments *s)
{
    if (!s)
        return;
    for (uint32_t i = 1; i <= s->max; i++) {
        mcfs_offset_allocator_free(s->all[i]->allocator);
        pthread_mutex_destroy(&s->all[i]->lock);
        free(s->all[i]->claimed);
        free(s->all[i]);
    }
    free(s->held);
    pthread_rwlock_destroy(&s->lock);
    pthread_mutex_destroy(&s->held_lock);
    free(s);
}

void segment_count(struct segments *s, struct segment *g)
{
    uint64_t used = 0;
    if (g->allocator) {
        const struct mcfs_alloc_state *a = mcfs_offset_allocator_state(g->allocator);
        used = (uint64_t)(a->size - a->free_storage) << a->multiplier_bits;
    }
    if (g->counted)
        atomic_fetch_add_explicit(&s->used, used - g->used, memory_order_relaxed);
    atomic_store_explicit(&g->used, used, memory_order_relaxed);
}

/* Whether it counts as room that there is; the segment is locked. */
static void set_counted(struct segments *s, struct segment *g, bool counted)
{
    if (g->counted == counted)
        return;
    g->counted = counted;
    uint64_t sign = counted ? 1 : UINT64_MAX;
    atomic_fetch_add(&s->used, sign * g->used);
    atomic_fetch_add(&s->capacity, sign * g->info.size);
}

/* Under both locks: the allocator goes, and with it every range. */
static void kill_locked(struct segments *s, struct segment *g)
{
    set_counted(s, g, false);
    atomic_store(&g->state, SEGMENT_GONE);
    g->died_mono_ms = mcfs_mono_ms();
    g->kill = ++s->kills;
    mcfs_offset_allocator_free(g->allocator);
    g->allocator = NULL;
    free(g->claimed);
    g->claimed = NULL;
    segment_count(s, g);
}

/* ---- what is said of them ---- */

bool segment_set_text(char *to, uint8_t *len, struct mcfs_slice from)
{
    *len = (uint8_t)MCFS_MIN(from.len, SEGMENT_TEXT_MAX);
    if (*len)
        memcpy(to, from.data, *len);
    return from.len <= SEGMENT_TEXT_MAX;
}

bool segment_strategy_parse(struct mcfs_slice name, enum segment_strategy *to)
{
    *to = SEGMENT_RANDOM;
    if (mcfs_slice_eq(name, MCFS_SLICE_LITERAL("random")))
        return true;
    *to = SEGMENT_FREE_RATIO_FIRST;
    return mcfs_slice_eq(name, MCFS_SLICE_LITERAL("free_ratio_first"));
}

/* ---- mounting; the table is locked for writing ---- */

static struct segment *find_id(struct segments *s, struct mcfs_id id)
{
    for (uint32_t i = 1; i <= s->max; i++) {
        int state = atomic_load(&s->all[i]->state);
        if (state != SEGMENT_FREE && state != SEGMENT_GONE && mcfs_id_eq(s->all[i]->info.id, id))
            return s->all[i];
    }
    return NULL;
}

/* A place for one more: one whose segment is gone and of which nobody holds a range, or a new one.
 */
static struct segment *place_for(struct segments *s, struct mcfs_error *err)
{
    for (uint32_t i = 1; i <= s->max; i++) {
        struct segment *g = s->all[i];
        MCFS_LOCK_SCOPE(&g->lock);
        int state = atomic_load(&g->state);
        if (state == SEGMENT_FREE ||
            (state == SEGMENT_GONE && g->holders == 0 &&
             mcfs_mono_ms() > MCFS_MAX(g->died_mono_ms + SEGMENT_NUMBER_REST_MS, g->known_mono_ms)))
            return g;
    }
    struct segment *g = s->max + 1 < SEGMENTS_MAX ? calloc(1, sizeof(*g)) : NULL;
    if (!g) {
        mcfs_fail(err, MCFS_NO_AVAILABLE_HANDLE, "more segments than this master can count");
        return NULL;
    }
    pthread_mutex_init(&g->lock, NULL);
    g->info.number = s->max + 1;
    s->all[g->info.number] = g;
    __atomic_store_n(&s->max, g->info.number, __ATOMIC_RELEASE);
    return g;
}

static int check_place(const struct segment_info *info, struct mcfs_error *err)
{
    if (info->name_len == 0)
        return mcfs_fail(err, MCFS_INVALID_PARAMS, "a segment has a name");
    if (info->size == 0)
        return mcfs_fail(err, MCFS_INVALID_PARAMS, "segment %.*s: its size is 0", info->name_len,
                         info->name);
    if (info->base > UINT64_MAX - info->size)
        return mcfs_fail(err, MCFS_INVALID_PARAMS, "segment %.*s: it ends behind all addresses",
                         info->name_len, info->name);
    return 0;
}

static void occupy(struct segments *s, struct segment *g, const struct segment_info *info,
                   struct mcfs_offset_allocator *allocator, enum segment_state state)
{
    MCFS_LOCK_SCOPE(&g->lock);
    uint32_t number = g->info.number;
    g->info = *info;
    g->info.number = number;
    g->info.serial = ++s->serials;
    g->allocator = allocator;
    g->holders = 0;
    g->order = ++s->orders;
    g->deadline_mono_ms = g->usable_mono_ms = g->known_mono_ms = 0;
    g->kill = 0;
    segment_count(s, g);
    set_counted(s, g, true);
    atomic_store(&g->state, state);
}

static bool overlaps(const struct segment_info *a, const struct segment_info *b)
{
    return a->base < b->base + b->size && b->base < a->base + a->size;
}

/* Of the node's segments that lie where a new one is to lie, an awaited one gives way, and one that
 * is mounted does not.  *usable gets the time until when readers may know addresses there. */
static int make_room(struct segments *s, const struct segment_info *info, uint32_t hold_ms,
                     int64_t *usable, bool *gone, struct mcfs_error *err)
{
    int64_t now = mcfs_mono_ms();
    for (uint32_t i = 1; i <= s->max; i++) {
        struct segment *g = s->all[i];
        MCFS_LOCK_SCOPE(&g->lock);
        int state = atomic_load(&g->state);
        if (state == SEGMENT_FREE || g->info.node != info->node || !overlaps(&g->info, info))
            continue;
        if (state == SEGMENT_OK || state == SEGMENT_DRAINING)
            return mcfs_fail(err, MCFS_SEGMENT_ALREADY_EXISTS,
                             "segment %.*s lies where segment %.*s is mounted", info->name_len,
                             info->name, g->info.name_len, g->info.name);
        if (state == SEGMENT_AWAITED) {
            mcfs_warning("segment %.*s: its memory has been mounted as another one's",
                         g->info.name_len, g->info.name);
            kill_locked(s, g);
            *gone = true;
        }
        if (g->kill > atomic_load(&s->swept)) /* which replicas were there is not known yet */
            g->known_mono_ms = MCFS_MAX(g->known_mono_ms, now + hold_ms);
        *usable = MCFS_MAX(*usable, g->known_mono_ms);
    }
    return 0;
}

/* The id is there already: it is gone on with when everything is as it was.  1: it is not, and has
 * given way. */
static int mount_again(struct segments *s, struct segment *g, const struct segment_info *info,
                       bool *gone, struct mcfs_error *err)
{
    MCFS_LOCK_SCOPE(&g->lock);
    int state = atomic_load(&g->state);
    if (g->info.node && g->info.node != info->node)
        return mcfs_fail(err, MCFS_SEGMENT_ALREADY_EXISTS, "segment %.*s is another node's",
                         info->name_len, info->name);
    bool same = g->info.base == info->base && g->info.size == info->size &&
                mcfs_slice_eq(segment_name(&g->info), segment_name(info));
    if (same) {
        g->info.node = info->node;
        g->info.endpoint_len = info->endpoint_len;
        memcpy(g->info.endpoint, info->endpoint, info->endpoint_len);
        if (state == SEGMENT_AWAITED)
            atomic_store(&g->state, g->drains ? SEGMENT_DRAINING : SEGMENT_OK);
        return 0;
    }
    if (state != SEGMENT_AWAITED)
        return mcfs_fail(err, MCFS_SEGMENT_ALREADY_EXISTS,
                         "segment %.*s is mounted with another name, base or size", info->name_len,
                         info->name);
    mcfs_warning("segment %.*s comes back with another name, base or size: what it held is lost",
                 g->info.name_len, g->info.name);
    kill_locked(s, g);
    *gone = true;
    return 1;
}

uint64_t segments_sweep_begin(struct segments *s)
{
    pthread_rwlock_rdlock(&s->lock);
    uint64_t kills = s->kills;
    pthread_rwlock_unlock(&s->lock);
    return kills;
}

void segments_sweep_end(struct segments *s, uint64_t begun)
{
    uint64_t swept = atomic_load(&s->swept);
    while (swept < begun && !atomic_compare_exchange_weak(&s->swept, &swept, begun))
        ;
}

int segments_mount(struct segments *s, const struct segment_info *info, uint32_t hold_ms,
                   const struct segment_busy *busy, uint32_t busy_count, bool *gone,
                   struct mcfs_error *err)
{
    int64_t usable = 0;
    *gone = false;
    if (check_place(info, err))
        return -1;
    pthread_rwlock_wrlock(&s->lock);
    struct segment *g = find_id(s, info->id);
    int rc = g ? mount_again(s, g, info, gone, err) : 1;
    if (rc == 1) {
        struct mcfs_offset_allocator *allocator = NULL;
        if ((rc = make_room(s, info, hold_ms, &usable, gone, err)) == 0 &&
            (!(allocator =
                   mcfs_offset_allocator_new(info->base, info->size, SEGMENT_UNIT_BITS, 0, err)) ||
             !(g = place_for(s, err)))) {
            mcfs_offset_allocator_free(allocator);
            rc = -1;
        }
        if (rc == 0) {
            occupy(s, g, info, allocator, SEGMENT_OK);
            g->usable_mono_ms = usable;
            g->drains = false;
            segment_hold_busy(s, g, busy, busy_count);
        }
    }
    pthread_rwlock_unlock(&s->lock);
    return rc;
}

uint32_t segments_find(struct segments *s, struct mcfs_id id)
{
    pthread_rwlock_rdlock(&s->lock);
    const struct segment *g = find_id(s, id);
    pthread_rwlock_unlock(&s->lock);
    return g ? g->info.number : 0;
}

/* ---- going ---- */

static bool is_there(const struct segment *g)
{
    int state = atomic_load(&g->state);
    return state != SEGMENT_FREE && state != SEGMENT_GONE;
}

void segments_drain(struct segments *s, uint32_t number, uint64_t ms)
{
    pthread_rwlock_rdlock(&s->lock);
    struct segment *g = segment_at(s, number);
    if (g) {
        MCFS_LOCK_SCOPE(&g->lock);
        if (is_there(g)) {
            g->drains = true;
            g->deadline_mono_ms = mcfs_mono_ms() + (int64_t)ms;
            if (atomic_load(&g->state) == SEGMENT_OK)
                atomic_store(&g->state, SEGMENT_DRAINING);
        }
    }
    pthread_rwlock_unlock(&s->lock);
}

void segments_kill(struct segments *s, uint32_t number)
{
    pthread_rwlock_wrlock(&s->lock);
    struct segment *g = segment_at(s, number);
    if (g) {
        MCFS_LOCK_SCOPE(&g->lock);
        if (is_there(g))
            kill_locked(s, g);
    }
    pthread_rwlock_unlock(&s->lock);
}

static void await(struct segments *s, uint32_t node, bool all, uint64_t ms)
{
    pthread_rwlock_wrlock(&s->lock);
    for (uint32_t i = 1; i <= s->max; i++) {
        struct segment *g = s->all[i];
        MCFS_LOCK_SCOPE(&g->lock);
        if (!is_there(g) ||
            (all ? atomic_load(&g->state) != SEGMENT_AWAITED : g->info.node != node))
            continue;
        atomic_store(&g->state, SEGMENT_AWAITED);
        g->awaited_mono_ms = mcfs_mono_ms() + (int64_t)ms;
    }
    pthread_rwlock_unlock(&s->lock);
}

void segments_await(struct segments *s, uint32_t node, uint64_t ms)
{
    await(s, node, false, ms);
}

void segments_await_all(struct segments *s, uint64_t ms)
{
    await(s, 0, true, ms);
}

/* Why a segment is due; NULL: it is not. */
static const char *is_due(const struct segment *g, int64_t now,
                          bool (*alive)(void *arg, uint32_t node), void *arg)
{
    switch (atomic_load(&g->state)) {
    case SEGMENT_AWAITED:
        return g->awaited_mono_ms && now >= g->awaited_mono_ms ? "its node has not mounted it again"
                                                               : NULL;
    case SEGMENT_DRAINING:
        if (g->holders == 0)
            return "nothing is left in it";
        if (now >= g->deadline_mono_ms)
            return "its time to drain is over";
        break;
    case SEGMENT_OK:
        break;
    default:
        return NULL;
    }
    return alive(arg, g->info.node) ? NULL : "its node was silent for too long";
}

uint32_t segments_expire(struct segments *s, bool (*alive)(void *arg, uint32_t node), void *arg)
{
    uint32_t killed = 0;
    int64_t now = mcfs_mono_ms();
    pthread_rwlock_wrlock(&s->lock);
    for (uint32_t i = 1; i <= s->max; i++) {
        struct segment *g = s->all[i];
        MCFS_LOCK_SCOPE(&g->lock);
        const char *why = is_due(g, now, alive, arg);
        if (!why)
            continue;
        mcfs_info("memory segment %.*s is gone: %s", g->info.name_len, g->info.name, why);
        kill_locked(s, g);
        killed++;
    }
    pthread_rwlock_unlock(&s->lock);
    return killed;
}

/* ---- looking ---- */

struct segment *segment_at(struct segments *s, uint32_t number)
{
    uint32_t max = __atomic_load_n(&s->max, __ATOMIC_ACQUIRE);
    return number && number <= max ? s->all[number] : NULL;
}

bool segments_live(struct segments *s, uint32_t number, bool *connected)
{
    const struct segment *g = segment_at(s, number);
    int state = g ? atomic_load(&g->state) : SEGMENT_FREE;
    *connected = state == SEGMENT_OK || state == SEGMENT_DRAINING;
    return *connected || state == SEGMENT_AWAITED;
}

static bool get(struct segments *s, uint32_t number, uint32_t serial, bool largest_free,
                struct segment_info *out)
{
    struct segment *g = segment_at(s, number);
    if (!g)
        return false;
    MCFS_LOCK_SCOPE(&g->lock);
    if (!is_there(g) || (serial && g->info.serial != serial))
        return false;
    const struct mcfs_alloc_state *a = mcfs_offset_allocator_state(g->allocator);
    *out = g->info;
    out->state = (uint8_t)atomic_load(&g->state);
    out->used = g->used;
    out->ranges = a->allocated_count;
    out->largest_free = largest_free ? mcfs_offset_largest_free(g->allocator) : 0;
    return true;
}

bool segments_get(struct segments *s, uint32_t number, uint32_t serial, struct segment_info *out)
{
    return get(s, number, serial, false, out);
}

uint32_t segments_visit(struct segments *s, const struct mcfs_slice *which,
                        void (*fn)(const struct segment_info *g, void *arg), void *arg)
{
    struct segment_info g;
    struct mcfs_id id;
    bool is_id = which && mcfs_id_parse(*which, &id) == 0;
    uint32_t count = 0;
    for (uint32_t i = 1; i <= segments_max(s); i++) {
        if (!get(s, i, 0, true, &g) ||
            (which && !mcfs_slice_eq(segment_name(&g), *which) && !(is_id && mcfs_id_eq(g.id, id))))
            continue;
        fn(&g, arg);
        count++;
    }
    return count;
}

uint32_t segments_serial(struct segments *s, uint32_t number)
{
    struct segment *g = segment_at(s, number);
    if (!g)
        return 0;
    MCFS_LOCK_SCOPE(&g->lock);
    return g->info.serial;
}

uint32_t segments_max(struct segments *s)
{
    return __atomic_load_n(&s->max, __ATOMIC_ACQUIRE);
}

void segments_sum(struct segments *s, struct segments_sum *out)
{
    *out = (struct segments_sum){.capacity = atomic_load(&s->capacity),
                                 .used = atomic_load(&s->used),
                                 .failures = atomic_load(&s->failures)};
    for (uint32_t i = 1; i <= segments_max(s); i++)
        out->count += is_there(s->all[i]);
    MCFS_LOCK_SCOPE(&s->held_lock);
    out->held_ranges = s->held_count;
    out->held_bytes = s->held_bytes;
}

double segments_use(struct segments *s)
{
    uint64_t capacity = atomic_load_explicit(&s->capacity, memory_order_relaxed);
    uint64_t used = atomic_load_explicit(&s->used, memory_order_relaxed);
    return capacity ? (double)used / (double)capacity : 0;
}

bool segments_peek(struct segments *s, uint32_t number, struct segment_peek *out)
{
    struct segment *g = segment_at(s, number);
    if (!g || !is_there(g) || !g->allocator)
        return false;
    g->info.state = (uint8_t)(g->drains ? SEGMENT_DRAINING : SEGMENT_OK);
    *out = (struct segment_peek){&g->info, mcfs_offset_allocator_state(g->allocator), g->order};
    return true;
}

/* ---- restoring ---- */

int segments_restore(struct segments *s, const struct segment_info *info,
                     const struct mcfs_alloc_state *state, struct mcfs_error *err)
{
    struct mcfs_error bad = MCFS_ERROR_INIT;
    if (check_place(info, err))
        return -1;
    struct mcfs_offset_allocator *a = NULL;
    if (state && (state->base != info->base || state->capacity > info->size))
        mcfs_fail(&bad, MCFS_INVALID_PARAMS, "its allocator is one of another place");
    else if (state)
        a = mcfs_offset_allocator_restore(state, &bad);
    if (!a) {
        if (state)
            mcfs_warning("segment %.*s: %s; replicas are reserved one by one", info->name_len,
                         info->name, bad.msg);
        a = mcfs_offset_allocator_new(info->base, info->size, SEGMENT_UNIT_BITS, 0, err);
    }
    uint32_t nodes = a ? mcfs_offset_allocator_state(a)->current_capacity : 0;
    uint64_t *claimed = calloc(nodes / 64 + 1, sizeof(*claimed));
    struct segment *g = NULL;
    pthread_rwlock_wrlock(&s->lock);
    if (a && !claimed)
        mcfs_fail_errno(err, ENOMEM, "segments");
    else if (a && find_id(s, info->id))
        mcfs_fail(err, MCFS_INVALID_PARAMS, "segment %.*s is there twice", info->name_len,
                  info->name);
    else if (a)
        g = place_for(s, err);
    if (g) {
        occupy(s, g, info, a, SEGMENT_AWAITED);
        g->awaited_mono_ms = 0;
        g->drains = info->state == SEGMENT_DRAINING;
        g->claimed = claimed;
        g->claimed_nodes = nodes;
    } else {
        free(claimed);
        mcfs_offset_allocator_free(a);
    }
    pthread_rwlock_unlock(&s->lock);
    return g ? 0 : -1;
}

void segments_clear(struct segments *s)
{
    pthread_rwlock_wrlock(&s->lock);
    for (uint32_t i = 1; i <= s->max; i++) {
        struct segment *g = s->all[i];
        MCFS_LOCK_SCOPE(&g->lock);
        if (is_there(g))
            kill_locked(s, g);
        g->holders = 0;
        atomic_store(&g->state, SEGMENT_FREE);
    }
    s->orders = 0;
    atomic_store(&s->swept, s->kills); /* nobody holds anything */
    pthread_rwlock_unlock(&s->lock);
    MCFS_LOCK_SCOPE(&s->held_lock);
    s->held_count = 0;
    s->held_bytes = 0;
}
