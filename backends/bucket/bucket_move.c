/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Moving objects from thin buckets into the open one, in batches.  At each moment a crash leaves
 * every object exactly once, whatever the disk has kept of what was not flushed:
 *
 *   copy    value, checked against its checksum, into a place of the open bucket; flush it
 *   names   flush the old bucket's log: an object may have been renamed there just now, and that
 *           its new name is in one bucket must not be durable before that its old name is in none
 *   enter   PUT record, marked as moved, in the open bucket's log; there the object is from now on
 *   flush   that log, and the names in the directory
 *   give up DELETE record in the old bucket's log; flush it; then the old bytes may go
 *
 * While both logs have the object the younger bucket's counts, whatever happens to the object there
 * (bucket_log.h): so nobody who removes it, renames it or sets its attributes has to wait for this,
 * or to write into two logs.  A PUT record marked so is never without its bytes, so recovery
 * can believe it.  Until the old place is given up durably, no log that takes part is shortened:
 * the old one would forget too early, the new one what it says about the old.
 */
#include "backends/bucket/bucket_compact.h"

#include "backends/value.h"
#include "common/cleanup.h"
#include "common/crc32c.h"
#include "common/file.h"
#include "common/log.h"

#include <inttypes.h>

#define PIECE ((size_t)256 << 10)

/* ---- what is to be moved ---- */

static int make_space(struct moves *m, size_t more, struct mcfs_error *err)
{
    if (m->count + more <= m->cap)
        return 0;
    size_t cap = m->cap * 2 + more;
    struct move *v = realloc(m->v, cap * sizeof(*v));
    if (!v)
        return mcfs_fail_errno(err, ENOMEM, "compaction");
    m->v = v;
    m->cap = cap;
    return 0;
}

int moves_add(struct store *s, struct moves *m, struct bucket *b, struct mcfs_error *err)
{
    MCFS_LOCK_SCOPE(&b->lock);
    if (b->removed)
        return 0;
    if (make_space(m, b->objects, err))
        return -1;
    for (struct entry *e = b->entries; e; e = entry_after(e)) {
        if (!entry_is_movable(e))
            continue;
        if (bucket_hold_data(s, b, err))
            return m->count ? 0 : -1;
        e->readers++;
        m->v[m->count++] = (struct move){.from = e, .bytes = entry_key(e).len + entry_size(e)};
        m->bytes += entry_key(e).len + entry_size(e);
    }
    return 0;
}

/* Unpins an entry; whoever was removed meanwhile is freed. */
static void unpin(struct store *s, struct entry *e, bool data, bool moving)
{
    bool reclaim;
    {
        MCFS_LOCK_SCOPE(&entry_bucket(e)->lock);
        if (data)
            bucket_release_data(entry_bucket(e));
        entry_bucket(e)->moving -= moving;
        reclaim = --e->readers == 0 && e->dead;
    }
    if (reclaim)
        entry_reclaim(s, e);
}

void moves_drop(struct store *s, struct moves *m)
{
    for (size_t i = 0; i < m->count; i++)
        unpin(s, m->v[i].from, true, false);
    m->count = 0;
    m->bytes = 0;
}

/* ---- copying ---- */

/* It stays where it is.  Gives back its new place. */
static void stay(struct store *s, struct move *v)
{
    struct entry *to = MCFS_STEAL(v->to);
    if (to->bucket && v->writing) {
        struct bucket *b = entry_bucket(to);
        MCFS_LOCK_SCOPE(&b->lock);
        bucket_give_up_place(s, b, entry_start(to), v->bytes);
        bucket_end_writing(s, b);
        v->writing = false;
    } else {
        space_return(s, v->bytes);
    }
    entry_free(to);
}

/* What the copy is called is what the object is called now; when that has changed in the end, it
 * stays. */
static struct entry *new_entry(const struct store *s, const struct move *v)
{
    const struct entry *e = v->from;
    MCFS_LOCK_SCOPE(&entry_bucket(e)->lock);
    struct mcfs_slice key = entry_key(e);
    struct mcfs_attr attr = entry_attr(e);
    bool changed = e->dead || key.len + entry_size(e) != v->bytes;
    struct entry *n = changed ? NULL : entry_new(key, &attr, s->order.active);
    if (!n)
        return NULL;
    n->version = e->version;
    entry_set_size(n, entry_size(e));
    n->crc32c = e->crc32c;
    n->has_crc = e->has_crc;
    n->data_type = e->data_type;
    n->key_inline = true;
    n->moved = true;
    return n;
}

static void found_bad(struct store *s, struct entry *e, const struct mcfs_error *why)
{
    struct mcfs_slice key = mcfs_slice(NULL, 0), tenant;
    MCFS_LOCK_SCOPE(&entry_bucket(e)->lock);
    atomic_store(&e->checked, BAD);
    atomic_fetch_add(&s->checksum_errors, 1);
    storage_key_split(entry_key(e), &tenant, &key);
    mcfs_error("%s/%" PRIu64 ".bucket: %.*s is damaged, and stays where it is: %s", s->dir,
               entry_bucket(e)->id, (int)MCFS_MIN(key.len, 120), key.data, why->msg);
}

/* Copies key and value, and holds what was read against the checksum. */
static int copy_bytes(const struct entry *from, const struct entry *to, char *piece,
                      struct mcfs_error *err)
{
    struct value_place v = {entry_bucket(from)->data_fd, entry_offset(from), entry_size(from)};
    int fd = entry_bucket(to)->data_fd;
    uint32_t crc = 0;
    struct mcfs_slice key = entry_key(to);
    if (mcfs_pwrite_full(fd, key.data, key.len, entry_start(to)))
        return mcfs_fail_errno(err, errno, "bucket %" PRIu64, entry_bucket(to)->id);
    for (uint64_t done = 0; done < entry_size(to);) {
        int64_t n = value_read(&v, piece, PIECE, done, err);
        if (n <= 0)
            return n ? -1 : mcfs_fail(err, MCFS_CHECKSUM_MISMATCH, "the file ends inside it");
        crc = mcfs_crc32c(crc, piece, (size_t)n);
        if (mcfs_pwrite_full(fd, piece, (size_t)n, entry_offset(to) + done))
            return mcfs_fail_errno(err, errno, "bucket %" PRIu64, entry_bucket(to)->id);
        done += (uint64_t)n;
    }
    if (from->has_crc && crc != from->crc32c)
        return mcfs_fail(err, MCFS_CHECKSUM_MISMATCH, "checksum %08x, not %08x", crc, from->crc32c);
    return 0;
}

static void copy_one(struct store *s, struct move *v, char *piece)
{
    struct mcfs_error err = MCFS_ERROR_INIT;
    uint64_t offset;
    v->to = new_entry(s, v);
    if (!v->to) {
        space_return(s, v->bytes);
        return;
    }
    struct bucket *b = bucket_reserve(s, v->bytes, &offset, &err);
    entry_set_bucket(v->to, b);
    if (!b) {
        mcfs_warning("compaction: %s", err.msg);
        stay(s, v);
        return;
    }
    v->writing = true;
    entry_set_offset(v->to, offset + entry_key(v->to).len);
    /* Of two copies recovery takes the younger bucket's. */
    if (b->id <= entry_bucket(v->from)->id) {
        stay(s, v);
    } else if (copy_bytes(v->from, v->to, piece, &err)) {
        if (err.code == MCFS_CHECKSUM_MISMATCH)
            found_bad(s, v->from, &err);
        else
            mcfs_warning("compaction: %s", err.msg);
        stay(s, v);
    } else {
        v->to->checked = v->to->has_crc ? GOOD : atomic_load(&v->from->checked);
    }
}

/* Whether the data written to a bucket so far is durable. */
static bool flush_data(struct store *s, struct bucket *b)
{
    bool sure = fdatasync(b->data_fd) == 0;
    if (!sure)
        mcfs_warning("compaction: bucket %" PRIu64 ": %s", b->id, strerror(errno));
    MCFS_LOCK_SCOPE(&b->lock);
    if (!sure) { /* as in a sync: the kernel does not say so twice */
        b->never_sure = true;
        bucket_mark_dirty(s, b, true, false);
    }
    return !b->never_sure;
}

/* Whether the names that the copies were given, and none before them, are those of the old log. */
static bool flush_names(struct store *s, const struct bucket *b)
{
    if (bucket_sync_log(s, b) == 0)
        return true;
    mcfs_warning("compaction: log of bucket %" PRIu64 ": %s", b->id, strerror(errno));
    return false;
}

void moves_copy(struct store *s, struct moves *m)
{
    _cleanup_free_ char *piece = malloc(PIECE);
    const struct bucket *to = NULL, *from = NULL;
    bool durable = false, named = false;
    for (size_t i = 0; i < m->count; i++)
        if (piece)
            copy_one(s, &m->v[i], piece);
        else
            space_return(s, m->v[i].bytes);
    /* A bucket that is full is followed by another, and does not come again. */
    for (size_t i = 0; i < m->count; i++) {
        struct move *v = &m->v[i];
        if (!v->to)
            continue;
        if (!to || entry_bucket(v->to) != to) {
            to = entry_bucket(v->to);
            durable = flush_data(s, entry_bucket(v->to));
        }
        if (!from || entry_bucket(v->from) != from) {
            from = entry_bucket(v->from);
            named = flush_names(s, from);
        }
        if (!durable || !named)
            stay(s, v);
    }
}

/* ---- entering ---- */

/* The stripe's lock is held.  False: the object is not what was copied, or has another name. */
static bool enter_locked(struct store *s, struct index_stripe *stripe, struct move *v)
{
    struct entry *e = v->from, *n = v->to;
    struct mcfs_error err = MCFS_ERROR_INIT;
    _cleanup_buf_ struct mcfs_buf record = MCFS_BUF_INIT;
    if (index_find(stripe, entry_key(n), n->version) != e || entry_is_leaving(e))
        return false;
    struct mcfs_attr attr = entry_attr(e);
    if (entry_set_attr(n, &attr)) {
        mcfs_warning("compaction: no memory");
        return false;
    }
    entry_record(n, &record);
    {
        struct bucket *b = entry_bucket(n);
        MCFS_LOCK_SCOPE(&b->lock);
        if (record.failed || bucket_append_log(s, b, record.data, record.len, &err)) {
            mcfs_warning("compaction: %s", err.msg);
            return false;
        }
        b->used_bytes += v->bytes;
        b->moving++;
        n->readers = 1;
        bucket_link(s, b, n);
    }
    index_replace(s, stripe, e, n);
    MCFS_LOCK_SCOPE(&entry_bucket(e)->lock);
    entry_bucket(e)->moving++;
    entry_kill(s, e);
    return true;
}

static void enter(struct store *s, struct move *v)
{
    struct index_stripe *stripe = index_stripe(s, entry_key(v->to));
    {
        MCFS_LOCK_SCOPE(&stripe->lock);
        v->entered = enter_locked(s, stripe, v);
    }
    if (!v->entered)
        stay(s, v);
}

static bool is_entered(const struct move *v)
{
    return v->to && v->entered;
}

/* As one of its writers: it is open, and its log's descriptor stays. */
static bool flush_log(struct bucket *b)
{
    int fd;
    {
        MCFS_LOCK_SCOPE(&b->lock);
        fd = b->log_fd;
    }
    if (fdatasync(fd) == 0)
        return true;
    mcfs_error("log of bucket %" PRIu64 ": %s; nothing is compacted any more", b->id,
               strerror(errno));
    return false;
}

bool moves_enter(struct store *s, struct moves *m)
{
    bool durable = true, any = false;
    struct bucket *last = NULL;
    bool free_to = pthread_rwlock_trywrlock(&s->scan_lock) == 0;
    for (size_t i = 0; i < m->count; i++)
        if (m->v[i].to && free_to)
            enter(s, &m->v[i]);
        else if (m->v[i].to)
            stay(s, &m->v[i]);
    if (free_to)
        pthread_rwlock_unlock(&s->scan_lock);
    for (size_t i = 0; i < m->count; i++) {
        struct move *v = &m->v[i];
        if (!is_entered(v))
            continue;
        any = true;
        if (!last || entry_bucket(v->to) != last)
            durable &= flush_log(last = entry_bucket(v->to));
    }
    if (any && durable && fsync(s->dir_fd)) {
        mcfs_error("%s: %s; nothing is compacted any more", s->dir, strerror(errno));
        durable = false;
    }
    for (size_t i = 0; i < m->count; i++) {
        struct move *v = &m->v[i];
        if (!is_entered(v))
            continue;
        MCFS_LOCK_SCOPE(&entry_bucket(v->to)->lock);
        bucket_end_writing(s, entry_bucket(v->to));
        v->writing = false;
    }
    return durable;
}

/* ---- giving up the old places ---- */

static int give_up(struct store *s, struct move *v)
{
    struct mcfs_error err = MCFS_ERROR_INIT;
    if (!is_entered(v) || v->given_up)
        return 0;
    MCFS_LOCK_SCOPE(&entry_bucket(v->from)->lock);
    if (bucket_log_delete(s, v->from, &err)) {
        mcfs_warning("compaction: %s", err.msg);
        return -1;
    }
    v->given_up = true;
    return 0;
}

/* The copy is an object like any other from now on. */
static void let_go(struct store *s, struct move *v)
{
    unpin(s, v->from, true, v->entered);
    if (!is_entered(v))
        return;
    atomic_fetch_add(&s->compacted_bytes, entry_size(v->to));
    {
        MCFS_LOCK_SCOPE(&entry_bucket(v->to)->lock);
        v->to->moved = false;
    }
    unpin(s, v->to, false, true);
}

enum settled moves_settle(struct store *s, struct moves *m)
{
    const struct move *last = NULL;
    for (size_t i = 0; i < m->count; i++)
        if (give_up(s, &m->v[i]))
            return NOT_YET;
    for (size_t i = 0; i < m->count; i++) {
        const struct bucket *b = entry_bucket(m->v[i].from);
        if (!is_entered(&m->v[i]) || (last && entry_bucket(last->from) == b))
            continue;
        last = &m->v[i];
        if (bucket_sync_log(s, b)) {
            mcfs_error("log of bucket %" PRIu64 ": %s; nothing is compacted any more", b->id,
                       strerror(errno));
            return NEVER;
        }
    }
    for (size_t i = 0; i < m->count; i++)
        let_go(s, &m->v[i]);
    m->count = 0;
    m->bytes = 0;
    return SETTLED;
}
