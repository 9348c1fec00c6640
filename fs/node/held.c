/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/node/hold.h"

#include "common/cleanup.h"
#include "common/clock.h"
#include "common/hash.h"
#include "common/id.h"
#include "common/table.h"

#define HELD_MAX 65536
#define HOLDERS_MAX 1024 /* of one version */
#define HOLD_MAX_MS 600000

struct holder {
    char id[MCFS_ID_TEXT_MAX];
    int64_t until_ms;
};

/* One version. */
struct held {
    struct held_set *set;
    struct replica_reader *reader;
    uint64_t version;
    struct holder *holders;
    unsigned holder_count;
    unsigned users; /* reads under way */
    bool gone;      /* not in the table any more: freed by the last user */
    size_t tenant_len, key_len;
    char names[];
};

struct held_set {
    struct node *node;
    pthread_mutex_t lock; /* guards what follows, and what is in the table */
    struct mcfs_table table;
};

struct wanted {
    struct mcfs_slice tenant, key;
    uint64_t version;
};

static uint64_t version_hash(uint64_t version)
{
    return mcfs_hash(&version, sizeof(version));
}

static uint64_t held_hash(const void *e)
{
    return version_hash(((const struct held *)e)->version);
}

static bool held_eq(const void *e, const void *arg)
{
    const struct held *h = e;
    const struct wanted *w = arg;
    return h->version == w->version &&
           mcfs_slice_eq(mcfs_slice(h->names, h->tenant_len), w->tenant) &&
           mcfs_slice_eq(mcfs_slice(h->names + h->tenant_len, h->key_len), w->key);
}

static struct held *find(struct held_set *s, const struct wanted *w)
{
    return mcfs_table_find(&s->table, version_hash(w->version), held_eq, w);
}

struct held_set *held_set_new(struct node *n, struct mcfs_error *err)
{
    struct held_set *s = calloc(1, sizeof(*s));
    if (!s) {
        mcfs_fail_errno(err, ENOMEM, "held replicas");
        return NULL;
    }
    s->node = n;
    s->table = (struct mcfs_table)MCFS_TABLE_INIT(held_hash);
    pthread_mutex_init(&s->lock, NULL);
    return s;
}

static void destroy(struct held *h)
{
    node_reader_close(h->reader);
    free(h->holders);
    free(h);
}

void held_set_free(struct held_set *s)
{
    struct held *h;
    if (!s)
        return;
    for (size_t i = 0; (h = mcfs_table_next(&s->table, &i));)
        destroy(h);
    mcfs_table_free(&s->table);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

/* ---- who holds; under the lock ---- */

/* Drops the holders whose time is over, and this one (or NULL). */
static void drop_holders(struct held *h, int64_t now, const char *id)
{
    for (unsigned i = 0; i < h->holder_count;) {
        struct holder *o = &h->holders[i];
        if (o->until_ms <= now || (id && strcmp(o->id, id) == 0))
            *o = h->holders[--h->holder_count];
        else
            i++;
    }
}

static int add_holder(struct held *h, const char *id, int64_t until_ms, struct mcfs_error *err)
{
    for (unsigned i = 0; i < h->holder_count; i++) {
        if (strcmp(h->holders[i].id, id) == 0) {
            h->holders[i].until_ms = MCFS_MAX(h->holders[i].until_ms, until_ms);
            return 0;
        }
    }
    if (h->holder_count == HOLDERS_MAX)
        return mcfs_fail(err, MCFS_NO_AVAILABLE_HANDLE, "too many nodes hold one object");
    struct holder *more = realloc(h->holders, (h->holder_count + 1) * sizeof(*more));
    if (!more)
        return mcfs_fail_errno(err, ENOMEM, "held replica");
    h->holders = more;
    snprintf(more[h->holder_count].id, sizeof(more->id), "%s", id);
    more[h->holder_count++].until_ms = until_ms;
    return 0;
}

/* Whether it was the last one's, and the caller is to destroy it. */
static bool take_out_unheld(struct held_set *s, struct held *h)
{
    if (h->holder_count)
        return false;
    mcfs_table_del(&s->table, h);
    h->gone = true;
    return h->users == 0;
}

/* ---- holding ---- */

static void let_go(struct held_set *s, const struct wanted *w, const char *id)
{
    struct held *h;
    bool last = false;
    {
        MCFS_LOCK_SCOPE(&s->lock);
        h = find(s, w);
        if (h) {
            drop_holders(h, mcfs_mono_ms(), id);
            last = take_out_unheld(s, h);
        }
    }
    if (last)
        destroy(h);
}

static struct held *make(struct held_set *s, const struct wanted *w, struct mcfs_error *err)
{
    struct held *h = malloc(sizeof(*h) + w->tenant.len + w->key.len);
    if (!h) {
        mcfs_fail_errno(err, ENOMEM, "held replica");
        return NULL;
    }
    *h = (struct held){
        .set = s, .version = w->version, .tenant_len = w->tenant.len, .key_len = w->key.len};
    memcpy(h->names, w->tenant.data, w->tenant.len);
    memcpy(h->names + w->tenant.len, w->key.data, w->key.len);
    h->reader = node_reader_open_stored(s->node, w->tenant, w->key, w->version, err);
    if (h->reader)
        return h;
    free(h);
    return NULL;
}

/* Adds a holder to a version that is held; *found: it is. */
static int hold_again(struct held_set *s, const struct wanted *w, const char *id, int64_t until_ms,
                      bool *found, struct mcfs_error *err)
{
    MCFS_LOCK_SCOPE(&s->lock);
    struct held *h = find(s, w);
    *found = h;
    return h ? add_holder(h, id, until_ms, err) : 0;
}

/* Takes in a version that was not held a moment ago. */
static int hold_new(struct held_set *s, struct held *made, struct mcfs_error *err)
{
    MCFS_LOCK_SCOPE(&s->lock);
    if (s->table.count >= HELD_MAX)
        return mcfs_fail(err, MCFS_NO_AVAILABLE_HANDLE, "too many replaced objects are held");
    return mcfs_table_add(&s->table, made) ? mcfs_fail_errno(err, ENOMEM, "held replica") : 0;
}

int held_set_hold(struct held_set *s, struct mcfs_slice holder, struct mcfs_slice tenant,
                  struct mcfs_slice key, uint64_t version, uint64_t ms, struct mcfs_error *err)
{
    struct wanted w = {tenant, key, version};
    int64_t until_ms = mcfs_mono_ms() + (int64_t)MCFS_MIN(ms, HOLD_MAX_MS);
    char id[MCFS_ID_TEXT_MAX];
    bool found;
    snprintf(id, sizeof(id), "%.*s", MCFS_SLICE_ARG(holder));
    if (ms == 0) {
        let_go(s, &w, id);
        return 0;
    }
    int rc = hold_again(s, &w, id, until_ms, &found, err);
    if (found)
        return rc;
    /* Two that come at once make one each: either serves. */
    struct held *h = make(s, &w, err);
    if (!h)
        return -1;
    if (add_holder(h, id, until_ms, err) == 0 && hold_new(s, h, err) == 0)
        return 0;
    destroy(h);
    return -1;
}

void held_set_keep(struct held_set *s, struct mcfs_slice tenant, struct mcfs_slice key,
                   uint64_t version)
{
    held_set_hold(s, mcfs_slice("", 0), tenant, key, version, HOLD_MAX_MS, NULL);
}

void held_set_done(struct held_set *s, struct mcfs_slice tenant, struct mcfs_slice key,
                   uint64_t version)
{
    held_set_hold(s, mcfs_slice("", 0), tenant, key, version, 0, NULL);
}

/* ---- reading ---- */

struct held *held_find(struct held_set *s, struct mcfs_slice tenant, struct mcfs_slice key,
                       uint64_t version, struct replica_reader **reader)
{
    struct wanted w = {tenant, key, version};
    MCFS_LOCK_SCOPE(&s->lock);
    struct held *h = find(s, &w);
    if (h) {
        h->users++;
        *reader = h->reader;
    }
    return h;
}

void held_release(void *held)
{
    struct held *h = held;
    struct held_set *s = h->set;
    bool last;
    {
        MCFS_LOCK_SCOPE(&s->lock);
        last = --h->users == 0 && h->gone;
    }
    if (last)
        destroy(h);
}

/* Takes out one that nobody asks for any more, from place *at in the table on; false when there is
 * none. */
static bool sweep_one(struct held_set *s, size_t *at)
{
    struct held *h, *unheld = NULL;
    int64_t now = mcfs_mono_ms();
    bool last = false;
    {
        MCFS_LOCK_SCOPE(&s->lock);
        while (!unheld && (h = mcfs_table_next(&s->table, at))) {
            drop_holders(h, now, NULL);
            unheld = h->holder_count ? NULL : h;
        }
        if (unheld) {
            last = take_out_unheld(s, unheld);
            --*at; /* another may have moved up into its place */
        }
    }
    if (last)
        destroy(unheld);
    return unheld;
}

void held_set_sweep(struct held_set *s)
{
    size_t at = 0;
    while (sweep_one(s, &at))
        ;
}

uint64_t held_set_count(struct held_set *s)
{
    MCFS_LOCK_SCOPE(&s->lock);
    return s->table.count;
}
