/* SPDX-License-Identifier: Apache-2.0 */
#include "backends/offset/offset.h"

#include "backends/offset/offset_meta.h"
#include "backends/offset/offset_record.h"
#include "backends/offset/offset_store.h"
#include "backends/value.h"
#include "common/cleanup.h"
#include "common/clock.h"
#include "common/crc32c.h"
#include "common/file.h"

#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <sys/stat.h>

#define CHECKPOINT_MAX (2ull << 30)
#define CHUNK (128u << 10) /* fits the processor's cache */

struct reading {
    struct catalog *c;
    struct offset_meta meta;
    const struct catalog *previous;
    const struct finding_sink *sink;
    uint64_t data_size, dropped;
    bool is_there;
    int64_t mtime_ns;
    char *key;   /* of the record at hand */
    char *chunk; /* of its value */
    struct mcfs_error err;
};

static void drop(struct reading *r, enum finding_kind kind, uint64_t at, struct mcfs_slice key,
                 const char *what)
{
    r->dropped++;
    finding_report(r->sink,
                   &(struct finding){.kind = kind,
                                     .repair = kind == FINDING_STALE ? REPAIR_NONE : REPAIR_RECORD,
                                     .file = OFFSET_DATA,
                                     .offset = at,
                                     .key = key,
                                     .what = what});
}

/* Checks the record's sum, and takes the value's own along.  1: right, 0: wrong, -1: error. */
static int sum_record(struct reading *r, const uint8_t *head, const struct offset_record *rec,
                      uint64_t at, uint32_t *value_crc)
{
    struct value_place v = {r->c->fd, at + rec->value_at, rec->value_len};
    struct mcfs_error err = MCFS_ERROR_INIT;
    uint32_t sum = mcfs_crc32c(0, head, OFFSET_RECORD_SUMMED);
    sum = mcfs_crc32c(sum, r->key, rec->key_len);
    *value_crc = 0;
    for (uint64_t done = 0; done < rec->value_len;) {
        int64_t n = value_read(&v, r->chunk, CHUNK, done, &err);
        if (n <= 0 && err.code == MCFS_CHECKSUM_MISMATCH)
            return 0; /* the file became shorter */
        if (n <= 0) {
            r->err = err;
            return mcfs_error_prefix(&r->err, "%s/%s", r->c->dir, OFFSET_DATA);
        }
        sum = mcfs_crc32c(sum, r->chunk, (size_t)n);
        *value_crc = mcfs_crc32c(*value_crc, r->chunk, (size_t)n);
        done += (uint64_t)n;
        finding_read(r->sink, (uint64_t)n);
    }
    return sum == rec->crc32c;
}

/* Marks head and key, so that a later record in their place is noticed. */
static uint32_t mark_of(const uint8_t *head, const char *key, uint32_t key_len)
{
    return mcfs_crc32c(mcfs_crc32c(0, head, OFFSET_RECORD_HEAD), key, key_len);
}

static bool still_there(const struct catalog_entry *e, int fd)
{
    uint8_t head[OFFSET_RECORD_HEAD];
    struct offset_record rec;
    if (mcfs_pread_full(fd, head, sizeof(head), e->record) != sizeof(head) ||
        offset_record_parse(head, sizeof(head), &rec))
        return false;
    _cleanup_free_ char *key = malloc(rec.key_len);
    return key &&
           mcfs_pread_full(fd, key, rec.key_len, e->record + sizeof(head)) ==
               (ssize_t)rec.key_len &&
           mark_of(head, key, rec.key_len) == e->mark;
}

static int take_record(struct reading *r, const uint8_t *head, const struct offset_record *rec,
                       uint64_t at)
{
    uint32_t crc = 0;
    struct mcfs_slice key = mcfs_slice(r->key, rec->key_len);
    if (rec->seq >= r->meta.insert_seq) {
        drop(r, FINDING_STALE, at, key, "a record that was written after the checkpoint");
        return 0;
    }
    if (offset_meta_was_evicted(&r->meta, key)) {
        drop(r, FINDING_STALE, at, key, "a record that was evicted with the checkpoint");
        return 0;
    }
    uint32_t mark = mark_of(head, r->key, rec->key_len);
    const struct catalog_entry *was = r->previous ? catalog_find(r->previous, key) : NULL;
    if (rec->has_crc && was && was->record == at && was->mark == mark) {
        crc = was->crc32c;
    } else if (rec->has_crc) {
        int rc = sum_record(r, head, rec, at, &crc);
        if (rc == 0)
            drop(r, FINDING_CHECKSUM, at, key, "the record's checksum is wrong");
        if (rc <= 0)
            return rc;
    }
    struct catalog_entry e = {.key = r->key,
                              .key_len = rec->key_len,
                              .file = OFFSET_DATA,
                              .version = rec->seq + 1,
                              .offset = at + rec->value_at,
                              .size = rec->value_len,
                              .record = at,
                              .mtime_ns = r->mtime_ns,
                              .crc32c = crc,
                              .has_crc = rec->has_crc,
                              .mark = mark};
    return catalog_add(r->c, &e) ? mcfs_fail_errno(&r->err, ENOMEM, "%s", r->c->dir) : 0;
}

static int read_node(struct reading *r, const struct offset_node *node)
{
    uint8_t head[OFFSET_RECORD_HEAD];
    struct offset_record rec;
    const struct mcfs_slice none = {"", 0};
    uint64_t at = node->offset;
    if (at > r->data_size || r->data_size - at < sizeof(head)) {
        drop(r, FINDING_RANGE, at, none, "a record that lies outside of the file");
        return 0;
    }
    ssize_t n = mcfs_pread_full(r->c->fd, head, sizeof(head), at);
    if (n < 0)
        return mcfs_fail_errno(&r->err, errno, "%s/%s, offset %" PRIu64, r->c->dir, OFFSET_DATA,
                               at);
    const char *wrong = offset_record_parse(head, (size_t)n, &rec);
    /* A head of zeros is a place that was never written, or that fsck has emptied. */
    static const uint8_t zeros[OFFSET_RECORD_HEAD];
    if (wrong) {
        bool empty = memcmp(head, zeros, sizeof(head)) == 0;
        drop(r, empty ? FINDING_STALE : FINDING_RECORD, at, none, wrong);
        return 0;
    }
    if (rec.length > node->length || rec.length > r->data_size - at) {
        /* What was written after the checkpoint may be of another size than what was here. */
        bool younger = rec.seq >= r->meta.insert_seq;
        drop(r, younger ? FINDING_STALE : FINDING_RANGE, at, none,
             younger                     ? "a record that was written after the checkpoint"
             : rec.length > node->length ? "a record that is larger than the room it was given"
                                         : "a record that reaches beyond the file's end");
        return 0;
    }
    n = mcfs_pread_full(r->c->fd, r->key, rec.key_len, at + sizeof(head));
    if (n < 0)
        return mcfs_fail_errno(&r->err, errno, "%s/%s, offset %" PRIu64, r->c->dir, OFFSET_DATA,
                               at);
    if ((size_t)n < rec.key_len) {
        drop(r, FINDING_RANGE, at, none, "a record that reaches beyond the file's end");
        return 0;
    }
    return take_record(r, head, &rec, at);
}

/* ---- records that share bytes ---- */

static int by_offset(const void *a, const void *b)
{
    const struct offset_node *x = a, *y = b;
    return (x->offset > y->offset) - (x->offset < y->offset);
}

/* The allocator gives no byte away twice.  When its checkpoint says that it did, one of the two
 * records is wrong, and only a checksum could tell which: this is for fsck to report. */
static void report_overlaps(struct reading *r, struct offset_node *used, size_t n)
{
    uint64_t end = 0;
    if (n)
        qsort(used, n, sizeof(*used), by_offset);
    for (size_t i = 0; i < n; i++) {
        if (used[i].offset < end)
            finding_report(r->sink, &(struct finding){.kind = FINDING_OVERLAP,
                                                      .file = OFFSET_META,
                                                      .offset = used[i].offset,
                                                      .key = {"", 0},
                                                      .what = "two records were given the same "
                                                              "room of " OFFSET_DATA});
        end = MCFS_MAX(end, used[i].offset + used[i].length);
    }
}

static int read_nodes(struct reading *r)
{
    size_t n = 0;
    _cleanup_free_ struct offset_node *used =
        calloc(r->meta.node_count ? r->meta.node_count : 1, sizeof(*used));
    r->key = malloc(OFFSET_KEY_MAX);
    r->chunk = malloc(CHUNK);
    if (!r->key || !r->chunk || !used)
        return mcfs_fail_errno(&r->err, ENOMEM, "%s", r->c->dir);
    for (uint32_t i = 0; i < r->meta.node_count; i++) {
        struct offset_node node = offset_meta_node(&r->meta, i);
        if (!node.used)
            continue;
        if (node.length == 0) {
            finding_report(r->sink, &(struct finding){.kind = FINDING_INDEX,
                                                      .file = OFFSET_META,
                                                      .offset = node.offset,
                                                      .key = {"", 0},
                                                      .what = "a record that was given no room"});
            continue;
        }
        used[n++] = node;
        if (read_node(r, &node))
            return -1;
    }
    report_overlaps(r, used, n);
    return 0;
}

/* ---- opening ---- */

static void report_index(struct reading *r, enum finding_kind kind, const char *file,
                         const char *what)
{
    finding_report(r->sink,
                   &(struct finding){.kind = kind, .file = file, .key = {"", 0}, .what = what});
}

/* 1: there is a checkpoint to go by, 0: nothing is stored, -1: error. */
static int read_checkpoint(struct reading *r, bool tolerant, char **bytes)
{
    char path[PATH_MAX];
    snprintf(path, sizeof(path), "%s/%s", r->c->dir, OFFSET_META);
    ssize_t len = mcfs_read_file_alloc(path, CHECKPOINT_MAX, bytes, &r->err);
    if (len < 0 && r->err.errnum == ENOENT) {
        report_index(r, FINDING_STALE, OFFSET_META, "there is no checkpoint: nothing is stored");
        return 0;
    }
    if (len < 0)
        return -1;
    if (offset_meta_parse(*bytes, (size_t)len, &r->meta, &r->err)) {
        if (!tolerant || r->err.code != MCFS_INVALID_PARAMS)
            return mcfs_error_prefix(&r->err, "%s", path);
        report_index(r, FINDING_INDEX, OFFSET_META, r->err.msg);
        return 0;
    }
    if (r->meta.version != OFFSET_META_VERSION) {
        report_index(r, FINDING_STALE, OFFSET_META,
                     "a checkpoint of another version than 3: Mooncake starts afresh");
        return 0;
    }
    return 1;
}

static int read_all(struct reading *r, bool tolerant)
{
    _cleanup_free_ char *bytes = NULL;
    struct stat st = {0};
    struct catalog *c = r->c;
    c->fd = openat(c->dir_fd, OFFSET_DATA, O_RDONLY | O_CLOEXEC);
    if (c->fd < 0 && errno != ENOENT)
        return mcfs_fail_errno(&r->err, errno, "%s/%s", c->dir, OFFSET_DATA);
    if (c->fd >= 0 && fstat(c->fd, &st))
        return mcfs_fail_errno(&r->err, errno, "%s/%s", c->dir, OFFSET_DATA);
    int rc = read_checkpoint(r, tolerant, &bytes);
    if (rc > 0 && c->fd < 0) {
        report_index(r, FINDING_INDEX, OFFSET_DATA, "the data file is missing");
        rc = 0;
    }
    if (rc > 0) {
        r->data_size = (uint64_t)st.st_size;
        r->mtime_ns = mcfs_timespec_ns(st.st_mtim);
        c->used_bytes = (uint64_t)st.st_blocks * 512;
        rc = read_nodes(r);
        r->is_there = true;
    }
    free(r->key);
    free(r->chunk);
    offset_meta_free(&r->meta);
    return rc < 0 ? -1 : 0;
}

struct catalog *offset_read_checkpoint(const char *dir, bool tolerant,
                                       const struct catalog *previous,
                                       const struct finding_sink *sink,
                                       struct offset_checkpoint_found *found,
                                       struct mcfs_error *err)
{
    struct reading r = {
        .previous = previous, .sink = sink, .c = catalog_new(&mcfs_offset_ops, dir, sink, err)};
    if (!r.c)
        return NULL;
    r.c->still_there = still_there;
    if (read_all(&r, tolerant)) {
        if (err)
            *err = r.err;
        catalog_free(r.c);
        return NULL;
    }
    catalog_seal(r.c);
    *found = (struct offset_checkpoint_found){r.is_there, r.meta.insert_seq, r.dropped};
    return r.c;
}

/* ---- a directory that we wrote ---- */

/* What is on disk in front of the value, marked; 0 when it cannot be read. */
static uint32_t mark_on_disk(int fd, uint64_t at)
{
    uint8_t head[OFFSET_RECORD_HEAD];
    struct offset_record rec;
    if (mcfs_pread_full(fd, head, sizeof(head), at) != sizeof(head) ||
        offset_record_parse(head, sizeof(head), &rec))
        return 0;
    _cleanup_free_ char *key = malloc(rec.key_len);
    if (!key || mcfs_pread_full(fd, key, rec.key_len, at + sizeof(head)) != (ssize_t)rec.key_len)
        return 0;
    return mark_of(head, key, rec.key_len);
}

static uint32_t mark_of_entry(const struct catalog *c, const struct offset_entry *e)
{
    uint8_t head[OFFSET_RECORD_HEAD];
    struct mcfs_slice key = offset_entry_disk_key(e);
    if (e->head_stale)
        return mark_on_disk(c->fd, e->offset);
    offset_record_build(head, key.data, (uint32_t)key.len, e->size, e->seq, e->record_crc,
                        e->crc32c);
    return mark_of(head, key.data, (uint32_t)key.len);
}

static int newest_last(const void *a, const void *b)
{
    const struct offset_entry *x = *(struct offset_entry *const *)a,
                              *y = *(struct offset_entry *const *)b;
    int key = mcfs_slice_cmp(offset_entry_key(x), offset_entry_key(y));
    return key ? key : (x->version > y->version) - (x->version < y->version);
}

static int take_entry(struct catalog *c, const struct offset_entry *e, struct mcfs_error *err)
{
    struct catalog_entry entry = {.key = e->key,
                                  .key_len = e->key_len,
                                  .file = OFFSET_DATA,
                                  .version = e->version,
                                  .offset = offset_entry_value(e),
                                  .size = e->size,
                                  .record = e->offset,
                                  .mtime_ns = e->attr.mtime_ns,
                                  .crc32c = e->crc32c,
                                  .has_crc = e->has_crc,
                                  .mark = mark_of_entry(c, e)};
    return catalog_add(c, &entry) ? mcfs_fail_errno(err, ENOMEM, "%s", c->dir) : 0;
}

/* Of two versions of an object the newer one is shown; the older is on its way out. */
static int take_image(struct catalog *c, const struct offset_image *image, struct mcfs_error *err)
{
    size_t n = 0;
    int rc = 0;
    _cleanup_free_ struct offset_entry **all = malloc((image->count + 1) * sizeof(*all));
    if (!all)
        return mcfs_fail_errno(err, ENOMEM, "%s", c->dir);
    for (struct offset_entry *e = image->entries.first; e; e = e->after)
        all[n++] = e;
    qsort(all, n, sizeof(*all), newest_last);
    for (size_t i = 0; i < n && rc == 0; i++)
        if (i + 1 == n || !mcfs_slice_eq(offset_entry_key(all[i]), offset_entry_key(all[i + 1])))
            rc = take_entry(c, all[i], err);
    return rc;
}

static struct catalog *read_image(const char *dir, const struct finding_sink *sink,
                                  struct offset_image *image, struct mcfs_error *err)
{
    struct stat st;
    struct catalog *c = catalog_new(&mcfs_offset_ops, dir, sink, err);
    if (!c)
        return NULL;
    c->still_there = still_there;
    c->fd = openat(c->dir_fd, OFFSET_DATA, O_RDONLY | O_CLOEXEC);
    int rc = 0;
    if (c->fd < 0 && errno != ENOENT)
        rc = mcfs_fail_errno(err, errno, "%s/" OFFSET_DATA, dir);
    if (c->fd >= 0 && fstat(c->fd, &st) == 0)
        c->used_bytes = (uint64_t)st.st_blocks * 512;
    if (rc == 0)
        rc = offset_image_load(dir, c->fd, sink, image, err);
    if (rc == 0 && image->state == OFFSET_IMAGE_OURS)
        rc = take_image(c, image, err);
    if (rc == 0) {
        catalog_seal(c);
        return c;
    }
    catalog_free(c);
    return NULL;
}

struct catalog *offset_read(const char *dir, bool tolerant, const struct catalog *previous,
                            const struct finding_sink *sink, uint64_t *dropped,
                            struct mcfs_error *err)
{
    struct offset_checkpoint_found found;
    struct offset_image image = {0};
    struct catalog *c = read_image(dir, sink, &image, err);
    bool ours = image.state == OFFSET_IMAGE_OURS || image.state == OFFSET_IMAGE_NOTHING_KEPT;
    *dropped = image.dropped;
    offset_list_free(&image.entries);
    if (!c || ours)
        return c;
    catalog_free(c);
    c = offset_read_checkpoint(dir, tolerant, previous, sink, &found, err);
    *dropped = c ? found.dropped : 0;
    return c;
}

static struct mcfs_backend *offset_open(const struct mcfs_backend_config *config,
                                        struct mcfs_backend_recovery *recovery,
                                        struct mcfs_error *err)
{
    uint64_t dropped = 0;
    struct finding_sink log = {.report = finding_log, .arg = (void *)(uintptr_t)config->dir};
    if (!config->read_only)
        return offset_store_open(config, recovery, err);
    struct catalog *c =
        offset_read(config->dir, false, (struct catalog *)config->previous, &log, &dropped, err);
    return catalog_opened(c, dropped, recovery);
}

static bool is_verified(const struct mcfs_backend_reader *r)
{
    (void)r; /* all records that have a checksum were held against it when the store was opened */
    return true;
}

const struct mcfs_backend_ops mcfs_offset_ops = {
    .name = "offset_allocator_storage_backend",
    .open = offset_open,
    .reader_is_verified = is_verified,
    CATALOG_OPS,
};
