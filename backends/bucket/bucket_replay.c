/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A bucket with a log is what its log says: puts in order, then what happened to them.  Objects
 * after the last SYNC record are held against their checksums, since a power cut may have taken
 * their bytes.  Bytes that are no record are stepped over; they are kept, unless they are the
 * beginning of a record that was never finished.
 */
#include "backends/bucket/bucket_recover.h"

#include "backends/value.h"
#include "common/cleanup.h"
#include "common/clock.h"
#include "common/file.h"
#include "common/log.h"
#include "common/table.h"

#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <sys/stat.h>

struct replay {
    struct found *f;
    uint64_t id;
    struct entry *first, *last; /* in the order of their records */
    size_t count;
    /* The same by storage key and version: from the first record on that says what happened to
     * one; most logs have none. */
    struct mcfs_table entries;
    bool indexed;
    bool evicts; /* the store does */
    uint64_t puts, synced_to;
    bool changed; /* objects were removed or renamed */
    uint64_t end; /* of the last whole record */
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

static void append(struct replay *p, struct entry *e)
{
    e->before = entry_number(p->last);
    e->after = 0;
    if (p->last)
        p->last->after = entry_number(e);
    else
        p->first = e;
    p->last = e;
    p->count++;
}

/* Out of the list, and freed. */
static void drop(struct replay *p, struct entry *e)
{
    struct entry *before = entry_at(e->before), *after = entry_after(e);
    if (before)
        before->after = e->after;
    else
        p->first = after;
    if (after)
        after->before = e->before;
    else
        p->last = before;
    p->count--;
    entry_free(e);
}

static void forget(struct replay *p, struct entry *e)
{
    mcfs_table_del(&p->entries, e);
    drop(p, e);
}

/* Of two records of one put the first counts.  0, or -1 without memory. */
static int index_entries(struct replay *p)
{
    for (struct entry *e = p->indexed ? NULL : p->first, *next; e; e = next) {
        next = entry_after(e);
        if (find(p, entry_key(e), e->version))
            drop(p, e);
        else if (mcfs_table_add(&p->entries, e))
            return -1;
    }
    p->indexed = true;
    return 0;
}

static void replay_free(struct replay *p)
{
    mcfs_table_free(&p->entries);
    while (p->first)
        drop(p, p->first);
}

/* ---- records ---- */

static bool is_default_tenants(struct mcfs_slice key)
{
    return key.len >= sizeof(MCFS_DEFAULT_TENANT) &&
           memcmp(key.data, MCFS_DEFAULT_TENANT, sizeof(MCFS_DEFAULT_TENANT)) == 0;
}

static int note_moved(struct found *f, const struct log_record *rec)
{
    struct left_behind *left = realloc(f->left, (f->left_count + 1) * sizeof(*left));
    if (!left)
        return -1;
    f->left = left;
    char *key = malloc(rec->key.len ? rec->key.len : 1);
    if (!key)
        return -1;
    memcpy(key, rec->key.data, rec->key.len);
    left[f->left_count++] =
        (struct left_behind){key, (uint32_t)rec->key.len, rec->crc32c, rec->version, rec->size};
    return 0;
}

/* What is still here under its name needs no rule of its own: of two copies the younger counts. */
static void keep_left_only(struct found *f, struct replay *p)
{
    size_t kept = 0;
    for (size_t i = 0; i < f->left_count; i++) {
        const struct left_behind *l = &f->left[i];
        if (find(p, mcfs_slice(l->key, l->key_len), l->version))
            free(l->key);
        else
            f->left[kept++] = *l;
    }
    f->left_count = kept;
}

void recovery_forget_left(struct found *f)
{
    for (size_t i = 0; i < f->left_count; i++)
        free(f->left[i].key);
    free(f->left);
    f->left = NULL;
    f->left_count = 0;
}

static int replay_put(struct replay *p, const struct log_record *rec, uint64_t at)
{
    uint64_t end;
    p->puts++;
    if (__builtin_add_overflow(rec->offset, rec->size, &end) ||
        (p->indexed && find(p, rec->key, rec->version)))
        return 0;
    if (rec->moved && note_moved(p->f, rec))
        return -1;
    struct entry *e = entry_new(rec->key, &rec->attr, p->evicts);
    if (!e)
        return -1;
    e->version = rec->version;
    /* No file is so long that these were not found outside of it. */
    entry_set_offset(e, MCFS_MIN(rec->offset, ENTRY_PLACE_MAX));
    entry_set_size(e, MCFS_MIN(rec->size, ENTRY_PLACE_MAX));
    e->crc32c = rec->crc32c;
    e->has_crc = rec->has_crc;
    e->data_type = rec->data_type;
    e->moved = rec->moved;
    e->bare = rec->bare && is_default_tenants(rec->key);
    e->key_inline = rec->key_inline && rec->offset >= entry_disk_key(e).len;
    e->put_at = (uint32_t)at; /* a log is shorter than 4 GiB */
    append(p, e);
    if (!p->indexed || mcfs_table_add(&p->entries, e) == 0)
        return 0;
    drop(p, e);
    return -1;
}

static int replay_rekey(struct replay *p, const struct log_record *rec)
{
    struct entry *e = find(p, rec->key, rec->version);
    struct mcfs_attr attr;
    struct entry_room room;
    if (!e)
        return 0;
    attr = entry_attr(e);
    if (entry_make_room(e, &attr, rec->new_key.len, &room))
        return -1;
    mcfs_table_del(&p->entries, e);
    e->key_inline = e->key_inline && entry_disk_key(e).len == rec->new_key.len;
    e->bare = false;
    entry_change(e, &attr, rec->new_key, &room);
    e->version = rec->new_version;
    p->changed = true;
    struct entry *there = find(p, rec->new_key, rec->new_version);
    if (there)
        forget(p, there);
    if (mcfs_table_add(&p->entries, e) == 0)
        return 0;
    drop(p, e);
    return -1;
}

static int replay_record(struct replay *p, const struct log_record *rec, uint64_t at)
{
    struct entry *e;
    bool of_one = rec->type == LOG_DELETE || rec->type == LOG_ATTR || rec->type == LOG_REKEY;
    if (of_one && index_entries(p))
        return -1;
    switch (rec->type) {
    case LOG_PUT:
        return replay_put(p, rec, at);
    case LOG_DELETE:
        if ((e = find(p, rec->key, rec->version)))
            forget(p, e);
        p->changed = true;
        return 0;
    case LOG_ATTR:
        if ((e = find(p, rec->key, rec->version)))
            return entry_set_attr(e, &rec->attr);
        return 0;
    case LOG_REKEY:
        return replay_rekey(p, rec);
    case LOG_SYNC: {
        uint64_t to = rec->synced_to ? MCFS_MIN(rec->synced_to, at) : at;
        p->synced_to = MCFS_MAX(p->synced_to, to);
        return 0;
    }
    }
    return 0;
}

/* ---- the log ---- */

/* Where the next whole record begins behind a bad place; len when there is none. */
static size_t resync(const uint8_t *data, size_t len, size_t at)
{
    struct log_record rec;
    for (at++; at + LOG_RECORD_MIN <= len; at++)
        if (data[at + 8] >= LOG_PUT && data[at + 8] <= LOG_SYNC &&
            log_parse_record(data + at, len - at, &rec))
            return at;
    return len;
}

static int note_rest(struct found *f, size_t at, size_t len)
{
    struct rest *rest = realloc(f->rest, (f->rest_count + 1) * sizeof(*rest));
    if (!rest)
        return -1;
    f->rest = rest;
    rest[f->rest_count++] = (struct rest){at, len};
    return 0;
}

/* A record cut short at the very end is a write that never finished; so are zeros, which a file
 * shows whose length reached the disk before its bytes. */
static bool is_unfinished(const uint8_t *data, size_t len)
{
    uint32_t size = 0;
    if (len >= 8)
        memcpy(&size, data + 4, sizeof(size));
    if (len < LOG_RECORD_MIN || size > len)
        return true;
    for (size_t i = 0; i < len; i++)
        if (data[i])
            return false;
    return true;
}

static int replay_log(struct replay *p, const uint8_t *data, size_t len)
{
    size_t at = LOG_HEADER_SIZE;
    p->end = at;
    while (at < len) {
        struct log_record rec;
        size_t n = log_parse_record(data + at, len - at, &rec);
        if (n == 0) {
            n = resync(data, len, at) - at;
            if ((at + n < len || !is_unfinished(data + at, n)) && note_rest(p->f, at, n))
                return -1;
        } else {
            if (replay_record(p, &rec, at))
                return -1;
            p->end = at + n;
        }
        at += n;
    }
    return 0;
}

int64_t replay_check(const void *log, size_t len, uint64_t data_size)
{
    struct found f = {0};
    struct replay p = {.f = &f, .entries = MCFS_TABLE_INIT(index_entry_hash)};
    uint64_t id;
    int64_t n = -1;
    if (entry_arena_init(NULL) == 0 && log_parse_header(log, len, &id, NULL) == 0 &&
        replay_log(&p, log, len) == 0) {
        n = 0;
        for (const struct entry *e = p.first; e; e = entry_after(e))
            n += entry_offset(e) + entry_size(e) <= data_size;
    }
    replay_free(&p);
    free(f.rest);
    recovery_forget_left(&f);
    return n;
}

/* ---- log against data ---- */

/* What was written just before a crash may be incomplete; what is known to have been whole may not.
 */
static void tell_dropped(const struct store *s, const struct bucket *b, const struct entry *e,
                         bool synced, const char *path)
{
    char file[64];
    snprintf(file, sizeof(file), "%" PRIu64 ".bucket", b->id);
    struct finding f = {.kind = synced ? FINDING_RANGE : FINDING_STALE,
                        .repair = REPAIR_RECOVER,
                        .file = file,
                        .offset = entry_offset(e),
                        .key = entry_key(e),
                        .version = e->version,
                        .what = synced ? "an object that lies outside of its bucket's file"
                                       : "an object that was written just before the end and is "
                                         "not complete"};
    if (!store_report(s, &f))
        mcfs_warning("%s, offset %" PRIu64 ": %s; it is dropped", path, entry_offset(e), f.what);
}

/* Whether the data bears an entry out; *fd, -1 at first, is the data file once that is read. */
static bool is_whole(const struct entry *e, bool synced, uint64_t data_size, const char *path,
                     int *fd, struct mcfs_error *err)
{
    if (entry_offset(e) + entry_size(e) > data_size)
        return false;
    if (synced || !e->has_crc)
        return true;
    if (*fd < 0 && (*fd = open(path, O_RDONLY | O_CLOEXEC)) < 0) {
        mcfs_fail_errno(err, errno, "%s", path);
        return false;
    }
    struct value_place v = {*fd, entry_offset(e), entry_size(e)};
    return value_verify(&v, e->crc32c, NULL) == 0;
}

/* Enters what the data bears out; takes every entry. */
static int publish_all(struct recovery *r, struct found *f, struct replay *p, struct bucket *b,
                       uint64_t data_size, struct mcfs_error *err)
{
    char path[PATH_MAX];
    bucket_path(r->s, b->id, "bucket", path, sizeof(path));
    _cleanup_fd_ int fd = -1;
    struct mcfs_error e_open = MCFS_ERROR_INIT;
    for (struct entry *e = p->first, *next; e; e = next) {
        next = entry_after(e);
        bool synced = e->put_at < p->synced_to || e->moved;
        b->data_dirty |= !synced;
        if (is_whole(e, synced, data_size, path, &fd, &e_open)) {
            entry_set_bucket(e, b);
            e->readers = 0;
            e->moved = false;
            continue;
        }
        if (e_open.code) {
            *err = e_open;
            return -1;
        }
        tell_dropped(r->s, b, e, synced, path);
        b->keep_gaps |= synced;
        if (!synced)
            log_put_record(&f->torn, &(struct log_record){.type = LOG_DELETE,
                                                          .version = e->version,
                                                          .key = entry_key(e)});
        p->changed = true;
        atomic_fetch_add(&r->dropped, 1);
        drop(p, e);
    }
    struct entry *first = p->first;
    p->first = p->last = NULL;
    if (recovery_publish(r, b, first, p->count))
        return mcfs_fail_errno(err, ENOMEM, "%s", path);
    return 0;
}

/* ---- a bucket ---- */

/* A log without data: what is left of a removal or of a large put, or a loss. */
static void log_alone(struct recovery *r, struct found *f, const struct replay *p)
{
    bool large_put = !(f->parts & HAS_JOURNAL) && p->puts == 1 && p->synced_to == 0;
    if (f->rest_count == 0 && (p->count == 0 || large_put)) {
        f->unlink_log = true;
        f->set_aside |= f->parts & HAS_META;
        f->why = "a .meta without its bucket";
    } else {
        f->set_aside = f->parts;
        f->why = "a log whose bucket is missing";
    }
    recovery_forget_left(f); /* nothing of it is here */
    atomic_fetch_add(&r->dropped, p->count);
}

static bool meta_is_older(struct store *s, uint64_t id, const struct stat *log)
{
    char path[PATH_MAX];
    struct stat meta;
    bucket_path(s, id, "meta", path, sizeof(path));
    return stat(path, &meta) || mcfs_timespec_ns(meta.st_mtim) <= mcfs_timespec_ns(log->st_mtim);
}

static int take_bucket(struct recovery *r, struct found *f, struct replay *p, const char *log_path,
                       uint64_t data_size, size_t log_len, struct mcfs_error *err)
{
    struct store *s = r->s;
    struct stat log;
    struct bucket *b = f->bucket = bucket_add(s, f->id);
    if (!b)
        return mcfs_fail_errno(err, ENOMEM, "%s", log_path);
    b->has_log = true;
    b->is_open = b->log_is_journal = f->parts & HAS_JOURNAL;
    b->has_meta = f->parts & HAS_META;
    b->keys = (uint32_t)MCFS_MIN(p->puts, UINT32_MAX);
    b->data_end = data_size;
    b->log_end = b->log_base = p->end;
    b->keep_gaps = f->rest_count > 0;
    f->cut_log = p->end < log_len ? p->end : 0;
    if (f->left_count && index_entries(p))
        return mcfs_fail_errno(err, ENOMEM, "%s", log_path);
    keep_left_only(f, p);
    if (publish_all(r, f, p, b, data_size, err))
        return -1;
    const struct entry *only = b->objects == 1 ? b->entries : NULL;
    b->single = only && entry_offset(only) == 0 && entry_size(only) == data_size;
    b->meta_stale = !b->has_meta ||
                    (p->changed && (stat(log_path, &log) != 0 || meta_is_older(s, b->id, &log)));
    return 0;
}

int recover_logged(struct recovery *r, struct found *f)
{
    struct store *s = r->s;
    struct mcfs_error err = MCFS_ERROR_INIT;
    char log[PATH_MAX], data_path[PATH_MAX];
    struct stat st;
    uint64_t id;
    unsigned part = f->parts & HAS_JOURNAL ? HAS_JOURNAL : HAS_SUM;
    bucket_path(s, f->id, part == HAS_JOURNAL ? "journal" : "sum", log, sizeof(log));
    bucket_path(s, f->id, "bucket", data_path, sizeof(data_path));
    ssize_t len = mcfs_read_file_alloc(log, META_MAX, &f->log, &err);
    if (len < 0 && err.errnum == ENOENT && s->config.read_only)
        return 0; /* its owner removed or sealed it just now */
    if (len < 0 && err.errnum != EFBIG) {
        recovery_fail(r, &err);
        return -1;
    }
    if (len < 0 || log_parse_header(f->log, (size_t)len, &id, &err) || id != f->id) {
        mcfs_error_prefix(&err, "%s", log);
        if (err.code == MCFS_INVALID_VERSION) {
            recovery_fail(r, &err);
            return -1;
        }
        if (len >= 0 && len < LOG_HEADER_SIZE && !(f->parts & HAS_DATA)) {
            f->unlink_log = true; /* a bucket that was hardly begun */
        } else {
            f->set_aside = part;
            f->why = "its log is not readable";
        }
        return 1;
    }
    if (part == HAS_JOURNAL && (f->parts & HAS_SUM)) {
        f->set_aside = HAS_SUM;
        f->why = "a bucket with two logs";
    }
    struct replay p = {.f = f,
                       .id = f->id,
                       .evicts = s->order.active,
                       .entries = MCFS_TABLE_INIT(index_entry_hash)};
    bool has_data = stat(data_path, &st) == 0;
    int rc = !has_data && errno != ENOENT ? -1 : 0;
    if (rc)
        mcfs_fail_errno(&err, errno, "%s", data_path);
    else if (replay_log(&p, (const uint8_t *)f->log, (size_t)len))
        rc = mcfs_fail_errno(&err, ENOMEM, "%s", log);
    else if (!has_data)
        log_alone(r, f, &p);
    else
        rc = take_bucket(r, f, &p, log, (uint64_t)st.st_size, (size_t)len, &err);
    if (rc == 0 && f->rest_count == 0) {
        free(f->log);
        f->log = NULL;
    }
    replay_free(&p);
    if (rc)
        recovery_fail(r, &err);
    return rc;
}
