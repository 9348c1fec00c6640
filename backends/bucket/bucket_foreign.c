/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A bucket that Mooncake wrote: a .bucket and a .meta and no log.  Its objects get version 1 and
 * the file's time.  Of two copies of a key the one in the younger bucket (the greater id) counts.
 */
#include "backends/bucket/bucket_recover.h"

#include "backends/bucket/bucket_meta.h"
#include "common/cleanup.h"
#include "common/clock.h"
#include "common/file.h"
#include "common/log.h"

#include <inttypes.h>
#include <limits.h>
#include <sys/stat.h>

#define FOREIGN_VERSION 1

struct walk {
    struct recovery *r;
    struct bucket *b;
    uint64_t data_size;
    int64_t mtime_ns;
    uint64_t outside;
    uint32_t first, *end; /* chained by `after` */
    size_t count;
    bool failed;
};

/* Before tenants, Mooncake's storage keys were the keys alone: the default tenant's. */
static struct entry *foreign_entry(const struct walk *w, struct mcfs_slice key)
{
    _cleanup_buf_ struct mcfs_buf whole = MCFS_BUF_INIT;
    bool bare = storage_key_complete(key, &whole);
    struct mcfs_attr attr = {MCFS_ATTR_DEFAULT_MODE, 0, 0, w->mtime_ns};
    struct entry *e =
        whole.failed ? NULL
                     : entry_new(mcfs_slice(whole.data, whole.len), &attr, w->r->s->order.active);
    if (e)
        e->bare = bare;
    return e;
}

static void take_object(struct mcfs_slice key, const struct meta_place *place, void *arg)
{
    struct walk *w = arg;
    uint64_t at;
    w->b->keys++;
    if (__builtin_add_overflow(place->offset, place->key_size, &at) || at > w->data_size ||
        place->data_size > w->data_size - at || at + place->data_size > ENTRY_PLACE_MAX) {
        char file[64];
        snprintf(file, sizeof(file), "%" PRIu64 ".meta", w->b->id);
        store_report(w->r->s, &(struct finding){.kind = FINDING_RANGE,
                                                .repair = REPAIR_ENTRIES,
                                                .file = file,
                                                .offset = place->offset,
                                                .key = key,
                                                .version = FOREIGN_VERSION,
                                                .what = "an object that lies outside of its "
                                                        "bucket's file"});
        w->outside++;
        return;
    }
    struct entry *e = foreign_entry(w, key);
    if (!e) {
        w->failed = true;
        return;
    }
    e->version = w->r->s->config.versions_by_bucket ? w->b->id : FOREIGN_VERSION;
    entry_set_offset(e, at);
    entry_set_size(e, place->data_size);
    entry_set_bucket(e, w->b);
    e->key_inline = place->key_size == key.len;
    w->b->single = at == 0 && entry_size(e) == w->data_size && w->b->keys == 1;
    *w->end = entry_number(e);
    w->end = &e->after;
    w->count++;
}

static void give_up(struct found *f, const char *why)
{
    f->set_aside |= f->parts & (HAS_DATA | HAS_META);
    if (!f->why)
        f->why = why;
}

int recover_foreign(struct recovery *r, struct found *f)
{
    struct store *s = r->s;
    struct mcfs_error err = MCFS_ERROR_INIT;
    char meta[PATH_MAX], data_path[PATH_MAX];
    _cleanup_free_ char *bytes = NULL;
    struct stat st;
    uint64_t data_size;
    if (!(f->parts & HAS_META) || !(f->parts & HAS_DATA)) {
        give_up(f, f->parts & HAS_META ? "a .meta without its bucket"
                                       : "a bucket without .meta and log");
        return 0;
    }
    bucket_path(s, f->id, "meta", meta, sizeof(meta));
    bucket_path(s, f->id, "bucket", data_path, sizeof(data_path));
    ssize_t len = mcfs_read_file_alloc(meta, META_MAX, &bytes, &err);
    if (len >= 0 && stat(data_path, &st)) {
        mcfs_fail_errno(&err, errno, "%s", data_path);
        len = -1;
    }
    if (len < 0 && err.errnum == ENOENT && s->config.read_only)
        return 0; /* its owner removed it just now */
    if (len < 0 && err.errnum != EFBIG) {
        recovery_fail(r, &err);
        return -1;
    }
    if (len <= 0 || meta_parse(bytes, (size_t)len, &data_size, NULL, NULL) < 0) {
        give_up(f, "its .meta is corrupt");
        return 0;
    }
    struct bucket *b = f->bucket = bucket_add(s, f->id);
    struct walk w = {.r = r,
                     .b = b,
                     .data_size = (uint64_t)st.st_size,
                     .mtime_ns = mcfs_timespec_ns(st.st_mtim)};
    if (b) {
        b->foreign = b->has_meta = true;
        b->data_end = (uint64_t)st.st_size;
    }
    w.end = &w.first;
    if (!b || meta_parse(bytes, (size_t)len, &data_size, take_object, &w) < 0 ||
        recovery_publish(r, b, entry_at(w.first), w.count) || w.failed) {
        mcfs_fail_errno(&err, ENOMEM, "%s", meta);
        recovery_fail(r, &err);
        return -1;
    }
    b->keep_gaps = w.outside > 0;
    atomic_fetch_add(&r->dropped, w.outside);
    if (w.outside && !s->sink)
        mcfs_warning("%s: %" PRIu64 " of %" PRIu32
                     " objects lie outside of the file and are "
                     "dropped",
                     data_path, w.outside, b->keys);
    return 0;
}
