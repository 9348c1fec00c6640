/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finding again what is stored: reading (bucket_replay.c for buckets with a log, bucket_foreign.c
 * for Mooncake's), and then setting right.  What is not understood is set aside, not deleted.
 */
#include "backends/bucket/bucket_recover.h"

#include "common/cleanup.h"
#include "common/file.h"
#include "common/log.h"

#include <inttypes.h>
#include <limits.h>
#include <sys/stat.h>

#define LOGS_SAMPLED 100
#define THREADS 4
#define LOG_PUT_TYPICAL 120 /* bytes of a PUT record */

void recovery_fail(struct recovery *r, const struct mcfs_error *err)
{
    MCFS_LOCK_SCOPE(&r->lock);
    if (!atomic_exchange(&r->failed, true))
        r->err = *err;
}

/* ---- reading ---- */

int recovery_add_loser(struct recovery *r, struct entry *e)
{
    MCFS_LOCK_SCOPE(&r->lock);
    if (r->loser_count == r->loser_cap) {
        size_t cap = r->loser_cap ? r->loser_cap * 2 : 64;
        struct entry **list = realloc(r->losers, cap * sizeof(struct entry *));
        if (!list)
            return -1;
        r->losers = list;
        r->loser_cap = cap;
    }
    r->losers[r->loser_count++] = e;
    return 0;
}

static void *read_main(void *arg)
{
    struct recovery *r = arg;
    for (;;) {
        size_t i = atomic_fetch_add(&r->next, 1);
        if (i >= r->count || atomic_load(&r->failed))
            return NULL;
        struct found *f = &r->list[i];
        if (f->parts & (HAS_JOURNAL | HAS_SUM) && recover_logged(r, f) != 1)
            continue;
        recover_foreign(r, f);
    }
}

static void read_all(struct recovery *r)
{
    pthread_t threads[THREADS];
    unsigned started = 0;
    while (started < THREADS - 1 && started + 1 < r->count &&
           pthread_create(&threads[started], NULL, read_main, r) == 0)
        started++;
    read_main(r);
    while (started > 0)
        pthread_join(threads[--started], NULL);
}

/* Room in the index for what the logs can tell, so that it is not made anew again and again; a
 * sample of them says how large they are. */
static void reserve_index(struct recovery *r)
{
    struct store *s = r->s;
    uint64_t bytes = 0, seen = 0;
    for (size_t i = 0, step = r->count / LOGS_SAMPLED + 1; i < r->count; i += step) {
        char path[PATH_MAX];
        struct stat st;
        seen++;
        if (!(r->list[i].parts & (HAS_JOURNAL | HAS_SUM)))
            continue;
        bucket_path(s, r->list[i].id, r->list[i].parts & HAS_JOURNAL ? "journal" : "sum", path,
                    sizeof(path));
        bytes += stat(path, &st) ? 0 : (uint64_t)st.st_size;
    }
    uint64_t all = seen ? bytes / seen * r->count : 0;
    for (unsigned i = 0; i < INDEX_STRIPES; i++)
        index_reserve(s, &s->stripes[i], all / LOG_PUT_TYPICAL / INDEX_STRIPES);
}

/* ---- setting right ---- */

static void aside(struct recovery *r, const struct found *f, unsigned parts, const char *why)
{
    static const char *const suffixes[] = {"bucket", "meta", "journal", "sum"};
    for (unsigned i = 0; i < MCFS_ARRAY_SIZE(suffixes); i++) {
        char name[64];
        if (!(parts & f->parts & 1u << i))
            continue;
        snprintf(name, sizeof(name), "%" PRIu64 ".%s", f->id, suffixes[i]);
        set_aside(r->s, name, why);
        r->set_aside++;
    }
}

/* Keeps the bytes of a log that are no records. */
static void keep_rest(struct recovery *r, const struct found *f)
{
    struct store *s = r->s;
    char path[PATH_MAX];
    struct mcfs_error err = MCFS_ERROR_INIT;
    snprintf(path, sizeof(path), "%s/lost+found", s->dir);
    if (mkdir(path, 0755) && errno != EEXIST)
        mcfs_warning("%s: %s", path, strerror(errno));
    for (size_t i = 0; i < f->rest_count; i++) {
        struct stat st;
        snprintf(path, sizeof(path), "%s/lost+found/%" PRIu64 ".log-%zu", s->dir, f->id,
                 f->rest[i].at);
        if (stat(path, &st) == 0) /* kept by an earlier start; logs only grow */
            continue;
        r->set_aside++;
        if (mcfs_write_file(path, f->log + f->rest[i].at, f->rest[i].len, 0644, true, &err))
            mcfs_warning("%s", err.msg);
        else
            mcfs_warning("bucket %" PRIu64 ": %zu unreadable bytes of its log are kept as %s",
                         f->id, f->rest[i].len, path);
    }
}

/* What was dropped as incomplete is written down as removed, durably, before any SYNC record could
 * say that all puts before it are whole. */
static void forget_torn(struct store *s, const struct found *f)
{
    struct bucket *b = f->bucket;
    struct mcfs_error err = MCFS_ERROR_INIT;
    MCFS_LOCK_SCOPE(&b->lock);
    int rc = f->torn.failed ? mcfs_fail_errno(&err, ENOMEM, "log of bucket %" PRIu64, b->id)
                            : bucket_append_log(s, b, f->torn.data, f->torn.len, &err);
    if (rc == 0 && fdatasync(b->log_fd))
        rc = mcfs_fail_errno(&err, errno, "log of bucket %" PRIu64, b->id);
    if (rc == 0)
        return;
    mcfs_warning("%s", err.msg);
    b->never_sure = true;
}

static void mend_log(struct recovery *r, const struct found *f)
{
    struct store *s = r->s;
    char path[PATH_MAX];
    bucket_path(s, f->id, f->parts & HAS_JOURNAL ? "journal" : "sum", path, sizeof(path));
    if (f->rest_count)
        keep_rest(r, f);
    if (f->unlink_log && unlink(path))
        mcfs_warning("%s: %s", path, strerror(errno));
    if (f->cut_log && truncate(path, (off_t)f->cut_log))
        mcfs_warning("%s: %s", path, strerror(errno));
    if (f->bucket && (f->torn.len || f->torn.failed))
        forget_torn(s, f);
    if (f->unlink_log || f->cut_log)
        store_names_changed(s);
}

static void account(struct store *s, struct bucket *b)
{
    char path[PATH_MAX];
    struct stat st;
    bucket_path(s, b->id, "bucket", path, sizeof(path));
    uint64_t used = stat(path, &st) ? b->data_end : (uint64_t)st.st_blocks * 512;
    used = MCFS_MAX(MCFS_MIN(used, b->data_end), b->live_bytes);
    b->used_bytes = used;
    atomic_fetch_add(&s->used_bytes, used);
    b->has_gaps = b->has_log && !b->keep_gaps && used - b->live_bytes >= 4096;
}

static void settle_bucket(struct recovery *r, const struct found *f)
{
    struct store *s = r->s;
    struct bucket *b = f->bucket;
    MCFS_LOCK_SCOPE(&b->lock);
    account(s, b);
    if (s->config.read_only) {
        b->is_open = false;
        return;
    }
    if (b->objects == 0 && b->keep_gaps) {
        aside(r, f, f->parts, "none of its objects can be read");
        b->removed = true;
        atomic_fetch_sub(&s->bucket_count, 1);
        space_return(s, b->used_bytes);
        b->used_bytes = 0;
        bucket_mark_dirty(s, b, false, false);
    } else if (b->is_open) {
        bucket_seal(s, b);
    } else if (b->objects == 0 && b->has_log) {
        bucket_remove_files(s, b);
    } else if (b->has_log && (b->meta_stale || b->data_dirty || b->has_gaps)) {
        bucket_mark_dirty(s, b, false, b->data_dirty);
    }
    if (!b->removed)
        compact_consider(s, b);
}

static void report_loser(const struct store *s, const struct entry *e)
{
    char file[64];
    snprintf(file, sizeof(file), "%" PRIu64 ".bucket", entry_bucket(e)->id);
    store_report(s, &(struct finding){.kind = FINDING_DUPLICATE,
                                      .repair = REPAIR_RECOVER,
                                      .file = file,
                                      .offset = entry_offset(e),
                                      .key = entry_key(e),
                                      .version = e->version,
                                      .what = "an older copy of an object that is stored elsewhere "
                                              "too"});
}

static void report_rest(const struct store *s, const struct found *f)
{
    char file[64];
    snprintf(file, sizeof(file), "%" PRIu64 ".%s", f->id,
             f->parts & HAS_JOURNAL ? "journal" : "sum");
    for (size_t i = 0; i < f->rest_count; i++)
        store_report(s, &(struct finding){.kind = FINDING_RECORD,
                                          .repair = REPAIR_RECOVER,
                                          .file = file,
                                          .offset = f->rest[i].at,
                                          .key = {"", 0},
                                          .what = "bytes of the log that are no record"});
}

/* Old places of objects that were moved, and then removed or given another name, are losers, too.
 */
static int find_left_behind(struct recovery *r, const struct found *f)
{
    struct store *s = r->s;
    for (size_t i = 0; i < f->left_count; i++) {
        const struct left_behind *l = &f->left[i];
        struct mcfs_slice key = mcfs_slice(l->key, l->key_len);
        struct index_stripe *stripe = index_stripe(s, key);
        MCFS_LOCK_SCOPE(&stripe->lock);
        struct entry *e = index_find(stripe, key, l->version);
        if (!e || entry_bucket(e)->id >= f->id || entry_size(e) != l->size ||
            e->crc32c != l->crc32c)
            continue;
        index_del(s, stripe, e);
        if (recovery_add_loser(r, e))
            return -1;
    }
    return 0;
}

/* Of two copies of an object one is served; the other is forgotten for good, so that it does not
 * come back when the first is removed.  What is served has to be durable before that, and that
 * before anything is taken out of the log of the one that is served. */
static void settle_losers(struct recovery *r)
{
    struct store *s = r->s;
    if (!r->loser_count)
        return;
    bool durable = !s->config.read_only && syncfs(s->dir_fd) == 0;
    for (size_t i = 0; i < r->loser_count; i++) {
        struct entry *e = r->losers[i];
        struct mcfs_error err = MCFS_ERROR_INIT;
        report_loser(s, e);
        MCFS_LOCK_SCOPE(&entry_bucket(e)->lock);
        if (durable && bucket_log_delete(s, e, &err)) {
            mcfs_warning("%s", err.msg);
            r->losers[i] = NULL;
        }
        entry_kill(s, e);
    }
    if (!s->config.read_only && (!durable || syncfs(s->dir_fd)))
        mcfs_warning("%s: %s", s->dir, strerror(errno));
    for (size_t i = 0; durable && i < r->loser_count; i++)
        if (r->losers[i])
            entry_reclaim(s, r->losers[i]);
}

static int set_right(struct recovery *r, struct mcfs_error *err)
{
    for (size_t i = 0; i < r->stranger_count; i++) {
        set_aside(r->s, r->strangers[i], "not a file of this store");
        r->set_aside++;
    }
    for (size_t i = 0; i < r->count; i++) {
        struct found *f = &r->list[i];
        if (f->set_aside)
            aside(r, f, f->set_aside, f->why);
        if (!r->s->config.read_only)
            mend_log(r, f);
        else
            report_rest(r->s, f);
        free(f->log);
        f->log = NULL;
    }
    for (size_t i = 0; i < r->count; i++)
        if (find_left_behind(r, &r->list[i]))
            return mcfs_fail_errno(err, ENOMEM, "%s", r->s->dir);
    settle_losers(r);
    for (size_t i = 0; i < r->count; i++)
        if (r->list[i].bucket)
            settle_bucket(r, &r->list[i]);
    return 0;
}

static void recovery_free(struct recovery *r)
{
    for (size_t i = 0; i < r->count; i++) {
        free(r->list[i].log);
        free(r->list[i].rest);
        mcfs_buf_free(&r->list[i].torn);
        recovery_forget_left(&r->list[i]);
    }
    for (size_t i = 0; i < r->stranger_count; i++)
        free(r->strangers[i]);
    free(r->strangers);
    free(r->list);
    free(r->losers);
    pthread_mutex_destroy(&r->lock);
}

int store_recover(struct store *s, struct mcfs_backend_recovery *out, struct mcfs_error *err)
{
    struct recovery r = {.s = s};
    pthread_mutex_init(&r.lock, NULL);
    int rc = recovery_list(&r, err);
    if (rc == 0) {
        reserve_index(&r);
        read_all(&r);
        if (atomic_load(&r.failed)) {
            if (err)
                *err = r.err;
            rc = -1;
        }
    }
    if (rc == 0)
        rc = set_right(&r, err);
    if (out)
        *out = (struct mcfs_backend_recovery){.objects = atomic_load(&s->objects),
                                              .bytes = atomic_load(&s->object_bytes),
                                              .dropped_objects = atomic_load(&r.dropped),
                                              .set_aside_files = r.set_aside,
                                              .buckets = atomic_load(&s->bucket_count)};
    recovery_free(&r);
    return rc;
}
