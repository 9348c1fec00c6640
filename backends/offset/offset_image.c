/* SPDX-License-Identifier: Apache-2.0 */
#include "backends/offset/offset_image.h"

#include "backends/offset/offset.h"
#include "backends/offset/offset_meta.h"
#include "backends/offset/offset_record.h"
#include "backends/value.h"
#include "common/cleanup.h"
#include "common/clock.h"
#include "common/crc32c.h"
#include "common/file.h"
#include "common/hash.h"
#include "common/table.h"

#include <limits.h>
#include <sys/stat.h>

#define TRIES 10 /* to read three files that their owner replaces meanwhile */

struct loading {
    struct offset_image *image;
    const struct finding_sink *sink;
    struct mcfs_table by_seq;
    uint64_t synced_to; /* data of PUTs before this position is durable */
    bool check_all;     /* nothing vouches for the data */
};

static void report(const struct loading *l, enum finding_kind kind, const char *file,
                   uint64_t offset, struct mcfs_slice key, const char *what)
{
    finding_report(l->sink, &(struct finding){.kind = kind,
                                              .repair = REPAIR_RECOVER,
                                              .file = file,
                                              .offset = offset,
                                              .key = key,
                                              .what = what});
}

static const struct mcfs_slice no_key = {"", 0};

struct offset_digest offset_digest(const void *data, size_t len)
{
    return (struct offset_digest){len, mcfs_crc32c(0, data, len)};
}

static bool digest_eq(struct offset_digest a, struct offset_digest b)
{
    return a.size == b.size && (a.size == 0 || a.crc32c == b.crc32c);
}

/* ---- replay ---- */

static uint64_t entry_hash(const void *e)
{
    const struct offset_entry *entry = e;
    return mcfs_hash(&entry->seq, sizeof(entry->seq));
}

static bool entry_eq(const void *e, const void *seq)
{
    return ((const struct offset_entry *)e)->seq == *(const uint64_t *)seq;
}

static struct offset_entry *find_seq(const struct loading *l, uint64_t seq)
{
    return mcfs_table_find(&l->by_seq, mcfs_hash(&seq, sizeof(seq)), entry_eq, &seq);
}

static void forget(struct loading *l, struct offset_entry *e)
{
    mcfs_table_del(&l->by_seq, e);
    offset_list_del(&l->image->entries, e);
    l->image->count--;
    offset_entry_free(e);
}

static int replay_put(struct loading *l, const struct offset_log_record *r, uint64_t position)
{
    struct offset_entry *old = find_seq(l, r->seq), *e = offset_entry_new(r->key);
    if (!e)
        return -1;
    if (old)
        forget(l, old);
    old = r->replaces == OFFSET_SEQ_NONE ? NULL : find_seq(l, r->replaces);
    if (old)
        forget(l, old);
    e->version = r->version;
    e->seq = r->seq;
    e->offset = r->offset;
    e->attr = r->attr;
    e->size = r->size;
    e->crc32c = r->crc32c;
    e->data_type = r->data_type;
    e->has_crc = r->has_crc;
    e->record_crc = r->record_crc;
    e->bare = r->bare;
    e->position = position;
    offset_list_add(&l->image->entries, e);
    l->image->count++;
    return mcfs_table_add(&l->by_seq, e);
}

static int replay_rekey(struct loading *l, const struct offset_log_record *r)
{
    struct offset_entry *e = find_seq(l, r->seq);
    /* Another name that needs more or less room before the value is written as a new record. */
    if (!e || find_seq(l, r->new_seq) ||
        offset_record_value_at((uint32_t)offset_entry_disk_key(e).len) !=
            offset_record_value_at((uint32_t)r->key.len))
        return 0;
    char *key = malloc(r->key.len);
    if (!key)
        return -1;
    memcpy(key, r->key.data, r->key.len);
    free(e->key);
    e->key = key;
    e->key_len = (uint32_t)r->key.len;
    e->version = r->version;
    e->bare = false;
    e->head_stale = true;
    mcfs_table_del(&l->by_seq, e);
    e->seq = r->new_seq;
    return mcfs_table_add(&l->by_seq, e);
}

static int replay_record(struct loading *l, const struct offset_log_record *r, uint64_t position)
{
    struct offset_image *i = l->image;
    struct offset_entry *e;
    uint64_t seq = r->type == OFFSET_LOG_REKEY ? r->new_seq : r->seq;
    if (r->type != OFFSET_LOG_SYNC && seq >= i->insert_seq && seq != OFFSET_SEQ_NONE)
        i->insert_seq = seq + 1;
    switch (r->type) {
    case OFFSET_LOG_PUT:
        return replay_put(l, r, position);
    case OFFSET_LOG_REKEY:
        return replay_rekey(l, r);
    case OFFSET_LOG_DELETE:
        if ((e = find_seq(l, r->seq)))
            forget(l, e);
        return 0;
    case OFFSET_LOG_ATTR:
        if ((e = find_seq(l, r->seq)))
            e->attr = r->attr;
        return 0;
    case OFFSET_LOG_SYNC:
        if (r->position <= position && r->position > l->synced_to)
            l->synced_to = r->position;
        return 0;
    }
    return 0;
}

/* The next place from `at` on where a whole record lies; len: there is none. */
static size_t next_record(struct mcfs_slice bytes, size_t at)
{
    struct offset_log_record r;
    while (at < bytes.len && !offset_log_parse_record(bytes.data + at, bytes.len - at, &r))
        at++;
    return at;
}

/* Replays records from position `from` on; base: of the first.  Returns where the last one ends in
 * bytes. */
static size_t replay_records(struct loading *l, const char *file, struct mcfs_slice bytes,
                             uint64_t base, uint64_t from, bool *damaged, bool *failed)
{
    size_t at = OFFSET_LOG_HEAD;
    while (at < bytes.len) {
        struct offset_log_record r;
        size_t n = offset_log_parse_record(bytes.data + at, bytes.len - at, &r);
        if (n == 0) {
            size_t next = next_record(bytes, at + 1);
            if (next >= bytes.len)
                return at;
            report(l, FINDING_RECORD, file, at, no_key, "what should be a record is none");
            *damaged = true;
            at = next;
            continue;
        }
        uint64_t position = base + (at - OFFSET_LOG_HEAD);
        if (position >= from && replay_record(l, &r, base ? position : 0)) {
            *failed = true;
            return at;
        }
        at += n;
    }
    return at;
}

static int replay_index(struct loading *l, struct mcfs_slice bytes, struct mcfs_error *err)
{
    struct offset_image *i = l->image;
    struct mcfs_error bad = MCFS_ERROR_INIT;
    bool failed = false;
    if (offset_log_parse_head(bytes.data, bytes.len, OFFSET_LOG_INDEX, &i->head, &bad)) {
        if (bad.code == MCFS_INVALID_VERSION) {
            if (err)
                *err = bad;
            return mcfs_error_prefix(err, OFFSET_INDEX);
        }
        report(l, FINDING_INDEX, OFFSET_INDEX, 0, no_key, bad.msg);
        i->index_damaged = true;
        i->head = (struct offset_log_head){0};
        return 0;
    }
    i->insert_seq = i->head.insert_seq;
    i->journal_end = i->head.position;
    i->state =
        i->head.flags & OFFSET_LOG_NOTHING_KEPT ? OFFSET_IMAGE_NOTHING_KEPT : OFFSET_IMAGE_OURS;
    size_t end = replay_records(l, OFFSET_INDEX, bytes, 0, 0, &i->index_damaged, &failed);
    if (failed)
        return mcfs_fail_errno(err, ENOMEM, OFFSET_INDEX);
    if (end < bytes.len || i->count != i->head.count) {
        report(l, FINDING_INDEX, OFFSET_INDEX, end, no_key, "it does not list all that it should");
        i->index_damaged = true;
    }
    return 0;
}

static int replay_journal(struct loading *l, struct mcfs_slice bytes, bool *other,
                          struct mcfs_error *err)
{
    struct offset_image *i = l->image;
    struct offset_log_head head;
    struct mcfs_error bad = MCFS_ERROR_INIT;
    bool failed = false;
    *other = offset_log_parse_head(bytes.data, bytes.len, OFFSET_LOG_JOURNAL, &head, &bad) != 0;
    if (bad.code == MCFS_INVALID_VERSION) {
        if (err)
            *err = bad;
        return mcfs_error_prefix(err, OFFSET_JOURNAL);
    }
    *other = *other || head.epoch != i->head.epoch || head.position > i->head.position ||
             head.position == 0;
    if (*other)
        return 0;
    i->has_journal = true;
    size_t end = replay_records(l, OFFSET_JOURNAL, bytes, head.position, i->head.position,
                                &i->journal_damaged, &failed);
    if (failed)
        return mcfs_fail_errno(err, ENOMEM, OFFSET_JOURNAL);
    i->journal_end = MCFS_MAX(i->journal_end, head.position + (end - OFFSET_LOG_HEAD));
    if (end < bytes.len && !i->journal_damaged)
        report(l, FINDING_STALE, OFFSET_JOURNAL, end, no_key, "a record that was not finished");
    i->clean =
        head.position == i->head.position && bytes.len == OFFSET_LOG_HEAD && !i->index_damaged;
    return 0;
}

int offset_image_replay(struct mcfs_slice index, struct mcfs_slice journal,
                        const struct finding_sink *sink, struct offset_image *out,
                        struct mcfs_error *err)
{
    struct loading l = {.image = out, .sink = sink, .by_seq = MCFS_TABLE_INIT(entry_hash)};
    bool other = false;
    *out = (struct offset_image){.state = OFFSET_IMAGE_NONE};
    int rc = replay_index(&l, index, err);
    if (rc == 0 && out->state == OFFSET_IMAGE_OURS)
        rc = replay_journal(&l, journal, &other, err);
    mcfs_table_free(&l.by_seq);
    return rc;
}

/* ---- against the data ---- */

struct checking {
    struct loading *l;
    int fd;
    uint64_t data_size;
    bool untouched; /* the data file is what the checkpoint left */
    char *head;     /* a record's head and key */
};

/* Whether the record's head is what it should be. */
static bool head_is_right(const struct checking *c, const struct offset_entry *e)
{
    uint8_t want[OFFSET_RECORD_HEAD];
    struct mcfs_slice key = offset_entry_disk_key(e);
    offset_record_build(want, key.data, (uint32_t)key.len, e->size, e->seq, e->record_crc,
                        e->crc32c);
    return mcfs_pread_full(c->fd, c->head, sizeof(want) + key.len, e->offset) ==
               (ssize_t)(sizeof(want) + key.len) &&
           memcmp(c->head, want, sizeof(want)) == 0 &&
           memcmp(c->head + sizeof(want), key.data, key.len) == 0;
}

/* 1: its bytes are right as far as can be told, 0: they are not, -1: error. */
static int check_entry(const struct checking *c, struct offset_entry *e, struct mcfs_error *err)
{
    struct loading *l = c->l;
    uint64_t length = offset_entry_length(e);
    struct value_place v = {c->fd, offset_entry_value(e), e->size};
    struct mcfs_error bad = MCFS_ERROR_INIT;
    bool unsure = l->check_all || e->position >= MCFS_MAX(l->synced_to, 1);
    if (e->offset > c->data_size || length > c->data_size - e->offset) {
        report(l, unsure ? FINDING_STALE : FINDING_RANGE, OFFSET_DATA, e->offset,
               offset_entry_key(e), "an object that reaches beyond the file's end");
        return 0;
    }
    if (!unsure && !e->head_stale && (c->untouched || head_is_right(c, e)))
        return 1;
    /* A head that is another one may be that of a name which it had: the value decides. */
    bool head = head_is_right(c, e);
    if (!e->has_crc ? head : value_verify(&v, e->crc32c, &bad) == 0) {
        e->head_stale |= !head;
        e->checked = e->has_crc ? OFFSET_GOOD : OFFSET_UNCHECKED;
        finding_read(l->sink, e->has_crc ? e->size : 0);
        return 1;
    }
    if (bad.code && bad.code != MCFS_CHECKSUM_MISMATCH) {
        if (err)
            *err = bad;
        return mcfs_error_prefix(err, OFFSET_DATA);
    }
    report(l, unsure ? FINDING_STALE : FINDING_CHECKSUM, OFFSET_DATA, e->offset,
           offset_entry_key(e),
           unsure ? "an object that was not on disk yet when the machine stopped"
                  : "an object's place holds something else");
    return 0;
}

static int check_entries(struct loading *l, int fd, struct mcfs_error *err)
{
    struct offset_image *i = l->image;
    struct stat st = {0};
    struct checking c = {.l = l, .fd = fd, .head = malloc(OFFSET_RECORD_HEAD + OFFSET_KEY_MAX)};
    int rc = 0;
    if (!c.head)
        return mcfs_fail_errno(err, ENOMEM, OFFSET_DATA);
    if (fd >= 0 && fstat(fd, &st))
        rc = mcfs_fail_errno(err, errno, OFFSET_DATA);
    c.data_size = (uint64_t)st.st_size;
    c.untouched =
        c.data_size == i->head.data_size && mcfs_timespec_ns(st.st_mtim) == i->head.data_mtime_ns;
    for (struct offset_entry *e = i->entries.first, *next; e && rc == 0; e = next) {
        next = e->after;
        int right = check_entry(&c, e, err);
        rc = right < 0 ? -1 : 0;
        if (right)
            continue;
        i->dropped++;
        i->clean = false;
        forget(l, e);
    }
    free(c.head);
    return rc;
}

/* Two objects that share bytes: a journal has lost the record that says that the older one is gone.
 */
static int drop_overlaps(struct loading *l, struct mcfs_error *err)
{
    struct offset_image *i = l->image;
    struct offset_by_place all;
    if (offset_list_by_place(&i->entries, &all, err))
        return -1;
    struct offset_entry *last = NULL;
    for (size_t k = 0; k < all.n; k++) {
        struct offset_entry *e = all.v[k];
        if (!last || e->offset >= last->offset + offset_entry_length(last)) {
            last = e;
            continue;
        }
        struct offset_entry *loser = e->seq > last->seq ? last : e;
        if (loser == last)
            last = e;
        report(l, FINDING_OVERLAP, OFFSET_DATA, loser->offset, offset_entry_key(loser),
               "an object whose place was given to another");
        i->dropped++;
        i->clean = false;
        forget(l, loser);
    }
    free(all.v);
    return 0;
}

/* ---- the three files ---- */

static int read_file(const char *dir, const char *name, char **bytes, ssize_t *len,
                     struct mcfs_error *err)
{
    char path[PATH_MAX];
    struct mcfs_error bad = MCFS_ERROR_INIT;
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    *len = mcfs_read_file_alloc(path, OFFSET_FILE_MAX, bytes, &bad);
    if (*len >= 0)
        return 0;
    if (bad.errnum == ENOENT)
        return 0;
    if (err)
        *err = bad;
    return -1;
}

static bool is_checkpoint(const char *bytes, ssize_t len)
{
    struct offset_meta meta;
    bool is = len > 0 && offset_meta_parse(bytes, (size_t)len, &meta, NULL) == 0 &&
              meta.version == OFFSET_META_VERSION;
    if (len > 0)
        offset_meta_free(&meta);
    return is;
}

/* One try; *torn: the files do not belong together, as when they are replaced just now. */
static int load_once(struct loading *l, const char *dir, bool *torn, struct mcfs_error *err)
{
    struct offset_image *i = l->image;
    _cleanup_free_ char *index = NULL, *meta = NULL, *journal = NULL;
    ssize_t index_len, meta_len, journal_len;
    bool other = true;
    if (read_file(dir, OFFSET_INDEX, &index, &index_len, err) ||
        read_file(dir, OFFSET_META, &meta, &meta_len, err) ||
        read_file(dir, OFFSET_JOURNAL, &journal, &journal_len, err))
        return -1;
    i->meta = offset_digest(meta, meta_len > 0 ? (size_t)meta_len : 0);
    if (index_len < 0)
        return 0;
    if (replay_index(l, mcfs_slice(index, (size_t)index_len), err))
        return -1;
    if (i->state != OFFSET_IMAGE_OURS)
        return 0;
    if (!digest_eq(i->meta, i->head.meta) && !digest_eq(i->meta, i->head.meta_before)) {
        *torn = true;
        if (is_checkpoint(meta, meta_len)) {
            i->state = OFFSET_IMAGE_STALE;
            return 0;
        }
        report(l, FINDING_INDEX, OFFSET_META, 0, no_key,
               meta_len < 0 ? "the checkpoint is gone (the index is there)"
                            : "the checkpoint is damaged (the index is whole)");
        l->check_all = true;
    }
    if (journal_len >= 0 &&
        replay_journal(l, mcfs_slice(journal, (size_t)journal_len), &other, err))
        return -1;
    if (other) {
        *torn = true;
        report(l, FINDING_INDEX, OFFSET_JOURNAL, 0, no_key,
               journal_len < 0 ? "the journal is gone" : "the journal is not the index's");
        i->journal_damaged = journal_len >= 0;
        l->check_all = true;
    }
    i->clean &= digest_eq(i->meta, i->head.meta) && !l->check_all;
    return 0;
}

int offset_image_load(const char *dir, int data_fd, const struct finding_sink *sink,
                      struct offset_image *out, struct mcfs_error *err)
{
    struct loading l;
    int rc;
    bool torn;
    struct timespec pause = {.tv_nsec = 5000000};
    *out = (struct offset_image){.state = OFFSET_IMAGE_NONE};
    for (int tries = 1;; tries++) {
        offset_list_free(&out->entries);
        *out = (struct offset_image){.state = OFFSET_IMAGE_NONE};
        l = (struct loading){.image = out,
                             .sink = tries < TRIES ? NULL : sink,
                             .by_seq = MCFS_TABLE_INIT(entry_hash)};
        torn = false;
        rc = load_once(&l, dir, &torn, err);
        if (rc || tries == TRIES || (!torn && !out->index_damaged && !out->journal_damaged))
            break;
        mcfs_table_free(&l.by_seq);
        nanosleep(&pause, NULL);
    }
    l.sink = sink;
    if (rc == 0 && out->state == OFFSET_IMAGE_OURS)
        rc = check_entries(&l, data_fd, err) || drop_overlaps(&l, err) ? -1 : 0;
    mcfs_table_free(&l.by_seq);
    return rc ? mcfs_error_prefix(err, "%s", dir) : 0;
}
