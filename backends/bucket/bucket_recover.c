/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finding again what is stored.  A bucket with a log is what its log says: puts in order, then what
 * happened to them. Objects after the last SYNC record are held against their checksums, since a
 * power cut may have taken their bytes; a record that is no record is stepped over, and what cannot
 * be read at a log's end is kept in lost+found/.  A bucket with a .meta alone was written by
 * Mooncake and is what the .meta says; its objects get version 1, and of two copies of a key the
 * one in the younger bucket (the greater id) counts.  Everything else is set aside.
 */
#include "backends/bucket/bucket.h"

#include "backends/bucket/bucket_meta.h"
#include "common/cleanup.h"
#include "common/crc32c.h"
#include "common/file.h"
#include "common/log.h"

#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <sys/stat.h>

#define THREADS 4
#define FOREIGN_VERSION 1 /* of objects that Mooncake wrote */

enum { HAS_DATA = 1, HAS_META = 2, HAS_JOURNAL = 4, HAS_SUM = 8 };

struct found {
    uint64_t id;
    unsigned parts;
};

struct recovery {
    struct store *s;
    struct found *list;
    size_t count, cap;
    atomic_size_t next;
    _Atomic uint64_t dropped, set_aside;
    pthread_mutex_t lock; /* guards err */
    struct mcfs_error err;
    atomic_bool failed;
};

static void fail(struct recovery *r, const struct mcfs_error *err)
{
    MCFS_LOCK_SCOPE(&r->lock);
    if (!atomic_exchange(&r->failed, true))
        r->err = *err;
}

static void aside(struct recovery *r, uint64_t id, const char *suffix, const char *why)
{
    char name[64];
    snprintf(name, sizeof(name), "%" PRIu64 ".%s", id, suffix);
    set_aside(r->s, name, why);
    atomic_fetch_add(&r->set_aside, 1);
}

/* ---- a bucket with a log ---- */

struct replay {
    struct recovery *r;
    struct bucket *b;
    struct mcfs_table entries; /* by storage key and version, of this bucket */
    struct entry **unsynced;
    size_t unsynced_count, unsynced_cap;
    uint64_t data_size;
};

struct name {
    struct mcfs_slice key;
    uint64_t version;
};

static bool entry_eq(const void *e, const void *key)
{
    const struct entry *entry = e;
    const struct name *n = key;
    return entry->version == n->version && mcfs_slice_eq(entry_key(entry), n->key);
}

static struct entry *find(struct replay *p, struct mcfs_slice key, uint64_t version)
{
    struct name n = {key, version};
    return mcfs_table_find(&p->entries, index_hash(key), entry_eq, &n);
}

static void forget(struct replay *p, struct entry *e)
{
    mcfs_table_del(&p->entries, e);
    for (size_t i = 0; i < p->unsynced_count; i++)
        if (p->unsynced[i] == e)
            p->unsynced[i--] = p->unsynced[--p->unsynced_count];
    entry_free(e);
}

static int replay_put(struct replay *p, const struct log_record *rec)
{
    if (find(p, rec->key, rec->version))
        return 0;
    if (rec->offset > p->data_size || rec->size > p->data_size - rec->offset ||
        !memchr(rec->key.data, 0, rec->key.len)) {
        atomic_fetch_add(&p->r->dropped, 1);
        return 0;
    }
    struct entry *e = entry_new(rec->key);
    if (!e || mcfs_table_add(&p->entries, e)) {
        entry_free(e);
        return -1;
    }
    /* The table was entered by key; the version is part of its equality only. */
    e->version = rec->version;
    e->offset = rec->offset;
    e->size = rec->size;
    e->attr = rec->attr;
    e->crc32c = rec->crc32c;
    e->has_crc = rec->has_crc;
    e->data_type = rec->data_type;
    e->bucket = p->b;
    e->key_inline = !p->b->single && rec->offset >= rec->key.len;
    if (p->unsynced_count == p->unsynced_cap) {
        size_t cap = p->unsynced_cap ? p->unsynced_cap * 2 : 64;
        struct entry **list = realloc(p->unsynced, cap * sizeof(struct entry *));
        if (!list)
            return -1;
        p->unsynced = list;
        p->unsynced_cap = cap;
    }
    p->unsynced[p->unsynced_count++] = e;
    return 0;
}

static int replay_rekey(struct replay *p, const struct log_record *rec)
{
    struct entry *e = find(p, rec->key, rec->version);
    if (!e || !memchr(rec->new_key.data, 0, rec->new_key.len))
        return 0;
    char *key = malloc(rec->new_key.len);
    if (!key)
        return -1;
    memcpy(key, rec->new_key.data, rec->new_key.len);
    mcfs_table_del(&p->entries, e);
    if (e->key_inline && e->key_len != rec->new_key.len)
        e->key_inline = false;
    free(e->key);
    e->key = key;
    e->key_len = (uint32_t)rec->new_key.len;
    e->version = rec->new_version;
    p->b->meta_stale = true;
    return mcfs_table_add(&p->entries, e);
}

static int replay_record(struct replay *p, const struct log_record *rec)
{
    struct entry *e;
    switch (rec->type) {
    case LOG_PUT:
        p->b->keys++;
        return replay_put(p, rec);
    case LOG_DELETE:
        if ((e = find(p, rec->key, rec->version)))
            forget(p, e);
        p->b->meta_stale = true;
        return 0;
    case LOG_ATTR:
        if ((e = find(p, rec->key, rec->version)))
            e->attr = rec->attr;
        return 0;
    case LOG_REKEY:
        return replay_rekey(p, rec);
    case LOG_SYNC:
        p->unsynced_count = 0;
        return 0;
    }
    return 0;
}

/* Bytes of a log that are no records: kept, unless they are only the beginning of one. */
static void keep_rest(struct recovery *r, uint64_t id, const uint8_t *data, size_t len)
{
    char name[64], path[PATH_MAX], dir[PATH_MAX];
    if (r->s->config.read_only)
        return;
    snprintf(dir, sizeof(dir), "%s/lost+found", r->s->dir);
    snprintf(name, sizeof(name), "%" PRIu64 ".log-rest", id);
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    if ((mkdir(dir, 0755) && errno != EEXIST) || mcfs_write_file(path, data, len, 0644, true, NULL))
        mcfs_warning("%s: %s", path, strerror(errno));
    else
        mcfs_warning("bucket %" PRIu64 ": %zu unreadable bytes of its log are kept as %s", id, len,
                     path);
    atomic_fetch_add(&r->set_aside, 1);
}

/* Where the next whole record begins behind a bad place; len when there is none. */
static size_t resync(const uint8_t *data, size_t len, size_t at)
{
    struct log_record rec;
    for (at++; at + LOG_RECORD_MIN <= len; at++) {
        uint32_t size;
        memcpy(&size, data + at + 4, sizeof(size));
        if (size >= LOG_RECORD_MIN && size <= len - at && data[at + 8] >= LOG_PUT &&
            data[at + 8] <= LOG_SYNC && log_parse_record(data + at, len - at, &rec))
            return at;
    }
    return len;
}

static int replay_log(struct replay *p, const uint8_t *data, size_t len, size_t *end)
{
    struct recovery *r = p->r;
    size_t at = LOG_HEADER_SIZE;
    *end = at;
    while (at < len) {
        struct log_record rec;
        size_t n = log_parse_record(data + at, len - at, &rec);
        if (n == 0) {
            size_t next = resync(data, len, at);
            uint32_t size = 0;
            if (len - at >= 8)
                memcpy(&size, data + at + 4, sizeof(size));
            /* A record cut short at the very end is a write that never finished. */
            bool unfinished = next == len && (len - at < LOG_RECORD_MIN || size > len - at);
            if (!unfinished)
                keep_rest(r, p->b->id, data + at, next - at);
            if (next == len)
                return 0;
            at = next;
            continue;
        }
        if (replay_record(p, &rec))
            return -1;
        at += n;
        *end = at;
    }
    return 0;
}

static bool checksum_matches(int fd, const struct entry *e)
{
    char buf[1 << 16];
    uint32_t crc = 0;
    for (uint64_t done = 0; done < e->size;) {
        size_t want = (size_t)MCFS_MIN(sizeof(buf), e->size - done);
        if (mcfs_pread_full(fd, buf, want, e->offset + done) != (ssize_t)want)
            return false;
        crc = mcfs_crc32c(crc, buf, want);
        done += want;
    }
    return crc == e->crc32c;
}

/* Drops what the log promised and the data does not hold. */
static void check_unsynced(struct replay *p)
{
    char path[PATH_MAX];
    bucket_path(p->r->s, p->b->id, "bucket", path, sizeof(path));
    _cleanup_fd_ int fd = open(path, O_RDONLY | O_CLOEXEC);
    for (size_t i = 0; i < p->unsynced_count;) {
        struct entry *e = p->unsynced[i];
        if (!e->has_crc || (fd >= 0 && checksum_matches(fd, e))) {
            i++;
            continue;
        }
        mcfs_warning("bucket %" PRIu64 ", offset %" PRIu64
                     ": an object written just before the end was not complete and is dropped",
                     p->b->id, e->offset);
        atomic_fetch_add(&p->r->dropped, 1);
        p->b->meta_stale = true;
        p->unsynced[i] = p->unsynced[--p->unsynced_count];
        mcfs_table_del(&p->entries, e);
        entry_free(e);
    }
}

/* Into the store's index; of a key that is there already, the younger bucket's copy stays. */
static int publish(struct recovery *r, struct entry *e)
{
    struct store *s = r->s;
    struct mcfs_slice key = entry_key(e);
    struct index_stripe *stripe = index_stripe(s, key);
    struct entry *loser = NULL;
    int rc = 0;
    {
        MCFS_LOCK_SCOPE(&stripe->lock);
        struct entry *other = index_find(stripe, key, e->version);
        if (other && other->bucket->id > e->bucket->id) {
            loser = e;
        } else {
            if (other)
                index_del(s, stripe, other);
            loser = other;
            rc = index_add(s, stripe, e);
        }
        MCFS_LOCK_SCOPE(&e->bucket->lock);
        if (loser != e)
            bucket_link(e->bucket, e);
    }
    if (loser) {
        if (loser == e) {
            MCFS_LOCK_SCOPE(&e->bucket->lock);
            bucket_link(e->bucket, e);
        }
        MCFS_LOCK_SCOPE(&loser->bucket->lock);
        loser->dead = true; /* its bytes stay: the bucket is Mooncake's, or a copy */
    }
    return rc;
}

static int recover_logged(struct recovery *r, struct bucket *b, const struct found *f)
{
    struct store *s = r->s;
    struct mcfs_error err = MCFS_ERROR_INIT;
    char log[PATH_MAX], data_path[PATH_MAX];
    const char *suffix = f->parts & HAS_JOURNAL ? "journal" : "sum";
    _cleanup_free_ char *bytes = NULL;
    struct stat st;
    uint64_t id;
    bucket_path(s, b->id, suffix, log, sizeof(log));
    bucket_path(s, b->id, "bucket", data_path, sizeof(data_path));
    ssize_t len = mcfs_read_file_alloc(log, META_MAX, &bytes, &err);
    if (len < 0) {
        fail(r, &err);
        return -1;
    }
    if (log_parse_header(bytes, (size_t)len, &id, &err)) {
        mcfs_error_prefix(&err, "%s", log);
        if (err.code == MCFS_INVALID_VERSION) {
            fail(r, &err);
            return -1;
        }
        aside(r, b->id, suffix, "not a readable log");
        return 1; /* what the .meta says is left */
    }
    if (stat(data_path, &st)) {
        /* The log of a large object is written before its file gets its name. */
        if (unlink(log))
            mcfs_warning("%s: %s", log, strerror(errno));
        atomic_fetch_add(&r->dropped, 1);
        return 0;
    }
    struct replay p = {.r = r, .b = b, .data_size = (uint64_t)st.st_size};
    p.entries = (struct mcfs_table)MCFS_TABLE_INIT(index_entry_hash);
    size_t end;
    b->has_log = true;
    b->is_open = f->parts & HAS_JOURNAL;
    b->data_end = (uint64_t)st.st_size;
    int rc = replay_log(&p, (const uint8_t *)bytes, (size_t)len, &end);
    b->log_end = end;
    if (rc == 0)
        check_unsynced(&p);
    if (!s->config.read_only && end < (size_t)len && truncate(log, (off_t)end))
        mcfs_warning("%s: %s", log, strerror(errno));
    b->single = p.entries.count == 1 && b->keys == 1;
    struct entry *e;
    for (size_t i = 0; rc == 0 && (e = mcfs_table_next(&p.entries, &i));) {
        if (b->single && e->offset == 0)
            e->key_inline = false;
        else
            b->single = false;
        rc = publish(r, e);
    }
    mcfs_table_free(&p.entries);
    free(p.unsynced);
    if (rc) {
        mcfs_fail_errno(&err, ENOMEM, "%s", log);
        fail(r, &err);
        return -1;
    }
    b->meta_missing = !(f->parts & HAS_META);
    return 0;
}

/* ---- a bucket that Mooncake wrote ---- */

struct foreign {
    struct recovery *r;
    struct bucket *b;
    uint64_t data_size;
    int64_t mtime_ns;
    bool failed;
};

/* Before tenants, Mooncake's storage keys were the keys alone: the default tenant's. */
static struct entry *foreign_entry(struct mcfs_slice key)
{
    if (key.len && memchr(key.data, 0, key.len))
        return entry_new(key);
    _cleanup_buf_ struct mcfs_buf whole = MCFS_BUF_INIT;
    mcfs_buf_append(&whole, MCFS_DEFAULT_TENANT, sizeof(MCFS_DEFAULT_TENANT));
    mcfs_buf_append(&whole, key.data, key.len);
    return whole.failed ? NULL : entry_new(mcfs_slice(whole.data, whole.len));
}

static void foreign_one(struct mcfs_slice key, const struct meta_place *place, void *arg)
{
    struct foreign *f = arg;
    uint64_t at;
    f->b->keys++;
    if (__builtin_add_overflow(place->offset, place->key_size, &at) || at > f->data_size ||
        place->data_size > f->data_size - at) {
        atomic_fetch_add(&f->r->dropped, 1);
        mcfs_warning("bucket %" PRIu64 ": an object lies outside of the file and is dropped",
                     f->b->id);
        return;
    }
    struct entry *e = foreign_entry(key);
    if (!e) {
        f->failed = true;
        return;
    }
    e->version = FOREIGN_VERSION;
    e->offset = at;
    e->size = place->data_size;
    e->attr = (struct mcfs_attr){MCFS_ATTR_DEFAULT_MODE, 0, 0, f->mtime_ns};
    e->bucket = f->b;
    e->key_inline = place->key_size == e->key_len;
    f->failed |= publish(f->r, e) != 0;
}

static int recover_foreign(struct recovery *r, struct bucket *b, const struct found *f)
{
    struct store *s = r->s;
    struct mcfs_error err = MCFS_ERROR_INIT;
    char meta[PATH_MAX], data_path[PATH_MAX];
    _cleanup_free_ char *bytes = NULL;
    struct stat st;
    uint64_t data_size;
    if (!(f->parts & HAS_META)) {
        aside(r, b->id, "bucket", "a bucket without .meta and log");
        return 0;
    }
    if (!(f->parts & HAS_DATA)) {
        aside(r, b->id, "meta", "a .meta without its bucket");
        return 0;
    }
    bucket_path(s, b->id, "meta", meta, sizeof(meta));
    bucket_path(s, b->id, "bucket", data_path, sizeof(data_path));
    ssize_t len = mcfs_read_file_alloc(meta, META_MAX, &bytes, &err);
    if (len < 0 || stat(data_path, &st)) {
        if (len >= 0)
            mcfs_fail_errno(&err, errno, "%s", data_path);
        fail(r, &err);
        return -1;
    }
    if (len == 0 || meta_parse(bytes, (size_t)len, &data_size, NULL, NULL) < 0) {
        aside(r, b->id, "meta", "a corrupt .meta");
        aside(r, b->id, "bucket", "a bucket with a corrupt .meta");
        return 0;
    }
    b->data_end = (uint64_t)st.st_size;
    struct foreign walk = {r, b, (uint64_t)st.st_size, (int64_t)st.st_mtime * 1000000000, false};
    if (meta_parse(bytes, (size_t)len, &data_size, foreign_one, &walk) < 0 || walk.failed) {
        mcfs_fail_errno(&err, ENOMEM, "%s", meta);
        fail(r, &err);
        return -1;
    }
    return 0;
}

static void recover_one(struct recovery *r, const struct found *f)
{
    struct store *s = r->s;
    struct mcfs_error err = MCFS_ERROR_INIT;
    struct bucket *b = bucket_add(s, f->id);
    if (!b) {
        mcfs_fail_errno(&err, ENOMEM, "%s", s->dir);
        fail(r, &err);
        return;
    }
    int rc = f->parts & (HAS_JOURNAL | HAS_SUM) ? recover_logged(r, b, f) : 1;
    if (rc == 1)
        rc = recover_foreign(r, b, f);
    if (rc)
        return;
    atomic_fetch_add(&s->used_bytes, b->live_bytes);
    MCFS_LOCK_SCOPE(&b->lock);
    if (s->config.read_only)
        b->is_open = false;
    else if (b->is_open)
        bucket_seal(s, b);
    else if (!b->entries && b->has_log)
        bucket_remove_files(s, b);
    else if (b->meta_missing && b->entries)
        bucket_mark_dirty(s, b, false, true);
}

static void *recover_main(void *arg)
{
    struct recovery *r = arg;
    for (;;) {
        size_t i = atomic_fetch_add(&r->next, 1);
        if (i >= r->count || atomic_load(&r->failed))
            return NULL;
        recover_one(r, &r->list[i]);
    }
}

/* ---- the directory ---- */

static bool is_ours(const char *name)
{
    static const char *const known[] = {"lock", "lost+found"};
    for (size_t i = 0; i < MCFS_ARRAY_SIZE(known); i++)
        if (strcmp(name, known[i]) == 0)
            return true;
    return name[0] == '.';
}

/* "<decimal id>.<suffix>": its part, 0 when it is something else. */
static unsigned parse_name(const char *name, uint64_t *id)
{
    static const struct {
        const char *suffix;
        unsigned part;
    } parts[] = {
        {"bucket", HAS_DATA}, {"meta", HAS_META}, {"journal", HAS_JOURNAL}, {"sum", HAS_SUM}};
    char *end;
    errno = 0;
    *id = strtoull(name, &end, 10);
    if (errno || end == name || *end != '.' || *id > INT64_MAX ||
        (name[0] == '0' && end > name + 1))
        return 0;
    for (size_t i = 0; i < MCFS_ARRAY_SIZE(parts); i++)
        if (strcmp(end + 1, parts[i].suffix) == 0)
            return parts[i].part;
    return 0;
}

static int note(struct recovery *r, uint64_t id, unsigned part)
{
    if (r->count == r->cap) {
        size_t cap = r->cap ? r->cap * 2 : 256;
        struct found *list = realloc(r->list, cap * sizeof(*list));
        if (!list)
            return -1;
        r->list = list;
        r->cap = cap;
    }
    r->list[r->count++] = (struct found){id, part};
    return 0;
}

static int by_id(const void *a, const void *b)
{
    uint64_t x = ((const struct found *)a)->id, y = ((const struct found *)b)->id;
    return (x > y) - (x < y);
}

static int read_names(struct recovery *r, struct mcfs_error *err)
{
    struct store *s = r->s;
    _cleanup_dir_ DIR *dir = opendir(s->dir);
    struct dirent *e;
    if (!dir)
        return mcfs_fail_errno(err, errno, "%s", s->dir);
    while ((e = readdir(dir))) {
        uint64_t id;
        unsigned part = parse_name(e->d_name, &id);
        if (part && note(r, id, part))
            return mcfs_fail_errno(err, ENOMEM, "%s", s->dir);
        if (part || is_ours(e->d_name))
            continue;
        if (strstr(e->d_name, ".meta.tmp.")) { /* our own, never finished */
            if (!s->config.read_only)
                unlinkat(dirfd(dir), e->d_name, 0);
            continue;
        }
        set_aside(s, e->d_name, "not a file of this store");
        atomic_fetch_add(&r->set_aside, 1);
    }
    if (r->count == 0)
        return 0;
    qsort(r->list, r->count, sizeof(*r->list), by_id);
    size_t kept = 0;
    for (size_t i = 1; i < r->count; i++) {
        if (r->list[i].id == r->list[kept].id)
            r->list[kept].parts |= r->list[i].parts;
        else
            r->list[++kept] = r->list[i];
    }
    r->count = kept + 1;
    return 0;
}

int store_recover(struct store *s, struct mcfs_backend_recovery *out, struct mcfs_error *err)
{
    struct recovery r = {.s = s};
    pthread_t threads[THREADS];
    unsigned started = 0;
    pthread_mutex_init(&r.lock, NULL);
    int rc = read_names(&r, err);
    if (rc == 0) {
        while (started < THREADS - 1 && started + 1 < r.count &&
               pthread_create(&threads[started], NULL, recover_main, &r) == 0)
            started++;
        recover_main(&r);
        while (started > 0)
            pthread_join(threads[--started], NULL);
    }
    if (rc == 0 && atomic_load(&r.failed)) {
        if (err)
            *err = r.err;
        rc = -1;
    }
    *out = (struct mcfs_backend_recovery){.objects = atomic_load(&s->objects),
                                          .bytes = atomic_load(&s->object_bytes),
                                          .dropped_objects = atomic_load(&r.dropped),
                                          .set_aside_files = atomic_load(&r.set_aside),
                                          .buckets = atomic_load(&s->bucket_count)};
    free(r.list);
    pthread_mutex_destroy(&r.lock);
    return rc;
}
