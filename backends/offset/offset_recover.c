/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opening a directory for writing: by our index and journal when they are there and nobody else has
 * taken a checkpoint since; else by Mooncake's rules (offset.c), and then with our index for what
 * it knows of the same records.  What neither explains is set aside in lost+found/.
 */
#include "backends/offset/offset_store.h"

#include "backends/aside.h"
#include "backends/offset/offset.h"
#include "common/cleanup.h"
#include "common/file.h"
#include "common/id.h"
#include "common/log.h"

#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

struct recovering {
    struct offset_store *s;
    struct offset_image image;
    struct finding_sink sink;
    uint64_t set_aside;
    bool begin_anew; /* the data file holds nothing that is of value */
};

/* ---- strangers ---- */

static int set_aside(struct recovering *r, const char *name, const char *why,
                     struct mcfs_error *err)
{
    if (!set_file_aside(r->s->dir, name, why))
        return mcfs_fail(err, MCFS_FILE_WRITE_FAIL, "%s/%s: it cannot be set aside in lost+found",
                         r->s->dir, name);
    r->set_aside++;
    return 0;
}

static bool is_ours(const char *name)
{
    static const char *const ours[] = {".",         "..",        "lock",       "lost+found",
                                       OFFSET_DATA, OFFSET_META, OFFSET_INDEX, OFFSET_JOURNAL};
    for (size_t i = 0; i < MCFS_ARRAY_SIZE(ours); i++)
        if (strcmp(name, ours[i]) == 0)
            return true;
    return false;
}

/* Of the files that are replaced, one whose replacing was not finished. */
static bool is_unfinished(const char *name)
{
    static const char *const replaced[] = {OFFSET_META ".tmp", OFFSET_INDEX ".tmp",
                                           OFFSET_JOURNAL ".tmp"};
    for (size_t i = 0; i < MCFS_ARRAY_SIZE(replaced); i++)
        if (strncmp(name, replaced[i], strlen(replaced[i])) == 0)
            return true;
    return false;
}

static int clear_strangers(struct recovering *r, struct mcfs_error *err)
{
    _cleanup_dir_ DIR *dir = opendir(r->s->dir);
    struct dirent *d;
    if (!dir)
        return mcfs_fail_errno(err, errno, "%s", r->s->dir);
    while ((errno = 0, d = readdir(dir))) {
        if (is_ours(d->d_name))
            continue;
        if (is_unfinished(d->d_name))
            unlinkat(dirfd(dir), d->d_name, 0);
        else if (set_aside(r, d->d_name, "it is not a file of this store", err))
            return -1;
    }
    return errno ? mcfs_fail_errno(err, errno, "%s", r->s->dir) : 0;
}

/* ---- what Mooncake left ---- */

/* A key that stands there without a tenant is of the default tenant's. */
static bool stands_bare(const struct offset_store *s, const struct catalog_entry *e)
{
    uint32_t len = 0;
    return mcfs_pread_full(s->data_fd, &len, sizeof(len), e->record) == sizeof(len) &&
           (uint64_t)len + sizeof(MCFS_DEFAULT_TENANT) == e->key_len;
}

static struct offset_entry *adopt(const struct offset_store *s, const struct catalog_entry *e)
{
    struct offset_entry *a = offset_entry_new(mcfs_slice(e->key, e->key_len));
    if (!a)
        return NULL;
    a->version = e->version;
    a->seq = e->version - 1;
    a->offset = e->record;
    a->size = (uint32_t)e->size;
    a->crc32c = e->crc32c;
    a->has_crc = a->record_crc = e->has_crc;
    a->attr = (struct mcfs_attr){.mode = MCFS_ATTR_DEFAULT_MODE, .mtime_ns = e->mtime_ns};
    a->checked = e->has_crc ? OFFSET_GOOD : OFFSET_UNCHECKED;
    a->bare = stands_bare(s, e);
    return a;
}

/* What our index says of the record that Mooncake has kept: its version and attributes. */
static void remember(const struct offset_by_place *known, struct offset_entry *e)
{
    struct offset_entry *at = offset_at_place(known, e->offset);
    if (!at || at->seq != e->seq || at->size != e->size ||
        !mcfs_slice_eq(offset_entry_key(at), offset_entry_key(e)))
        return;
    e->version = at->version;
    e->attr = at->attr;
    e->data_type = at->data_type;
}

/* By Mooncake's rules. */
static int recover_foreign(struct recovering *r, struct mcfs_error *err)
{
    struct offset_list entries = {NULL, NULL};
    struct offset_by_place known = {NULL, 0};
    struct offset_checkpoint_found found;
    struct catalog *c = offset_read_checkpoint(r->s->dir, true, NULL, &r->sink, &found, err);
    if (!c)
        return -1;
    int rc = offset_list_by_place(&r->image.entries, &known, err);
    for (size_t i = 0; i < c->count && rc == 0; i++) {
        struct offset_entry *e = adopt(r->s, c->all[i]);
        if (!e) {
            rc = mcfs_fail_errno(err, ENOMEM, "index");
            break;
        }
        remember(&known, e);
        offset_list_add(&entries, e);
    }
    r->image.insert_seq = MCFS_MAX(r->image.insert_seq, found.insert_seq);
    r->image.count = c->count;
    r->image.dropped = found.dropped;
    r->begin_anew = !found.is_there;
    catalog_free(c);
    free(known.v);
    offset_list_free(&r->image.entries);
    r->image.entries = entries;
    r->image.clean = false;
    return rc;
}

/* ---- beginning with an empty data file ---- */

static int remove_file(struct offset_store *s, const char *name, struct mcfs_error *err)
{
    return unlinkat(s->dir_fd, name, 0) && errno != ENOENT
               ? mcfs_fail_errno(err, errno, "%s/%s", s->dir, name)
               : 0;
}

/* What leads to the data goes first, durably: no checkpoint may outlive the bytes it speaks of. */
static int forget_all(struct recovering *r, struct mcfs_error *err)
{
    struct offset_store *s = r->s;
    struct mcfs_id id = mcfs_id_random();
    s->epoch = id.hi;
    s->insert_seq = r->image.insert_seq;
    if (offset_write_nothing_kept(s, err) || remove_file(s, OFFSET_META, err) ||
        remove_file(s, OFFSET_JOURNAL, err) || mcfs_sync_dir(s->dir, err))
        return -1;
    offset_list_free(&r->image.entries);
    r->image.meta = (struct offset_digest){0, 0};
    r->image.journal_end = 1;
    r->image.clean = false;
    r->image.count = 0;
    return ftruncate(s->data_fd, 0) ? mcfs_fail_errno(err, errno, "%s/" OFFSET_DATA, s->dir) : 0;
}

static int open_data(struct offset_store *s, struct mcfs_error *err)
{
    if (s->data_fd >= 0)
        close(s->data_fd);
    s->data_fd = openat(s->dir_fd, OFFSET_DATA, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    return s->data_fd < 0 ? mcfs_fail_errno(err, errno, "%s/" OFFSET_DATA, s->dir) : 0;
}

/* Data that nothing explains. */
static int keep_unexplained(struct recovering *r, struct mcfs_error *err)
{
    struct stat st;
    if (fstat(r->s->data_fd, &st))
        return mcfs_fail_errno(err, errno, "%s/" OFFSET_DATA, r->s->dir);
    if (st.st_blocks &&
        set_aside(r, OFFSET_DATA, "there is no checkpoint or index that explains it", err))
        return -1;
    if (r->image.meta.size && set_aside(r, OFFSET_META, "it is no checkpoint of ours", err))
        return -1;
    return open_data(r->s, err);
}

/* ---- the allocator ---- */

/* Every record lies at a multiple of it. */
static unsigned unit_bits(const struct offset_by_place *all)
{
    uint64_t bits = 1ull << OFFSET_UNIT_BITS;
    for (size_t i = 0; i < all->n; i++)
        bits |= all->v[i]->offset;
    return (unsigned)__builtin_ctzll(bits);
}

/* The file is as long as its capacity, as Mooncake's; the disk may be larger than a file can be. */
static int size_data(struct offset_store *s, uint64_t *capacity, struct mcfs_error *err)
{
    struct stat st;
    if (fstat(s->data_fd, &st))
        return mcfs_fail_errno(err, errno, "%s/" OFFSET_DATA, s->dir);
    while (*capacity > (uint64_t)st.st_size && ftruncate(s->data_fd, (off_t)*capacity)) {
        if (errno != EFBIG || *capacity / 2 <= (uint64_t)st.st_size)
            return mcfs_fail_errno(err, errno, "%s/" OFFSET_DATA ": %" PRIu64 " bytes", s->dir,
                                   *capacity);
        *capacity = (*capacity / 2) & ~(OFFSET_BLOCK - 1);
    }
    return 0;
}

static int choose_capacity(struct offset_store *s, const struct offset_by_place *all,
                           uint64_t *capacity, struct mcfs_error *err)
{
    struct statvfs v;
    uint64_t end = OFFSET_BLOCK, unit = OFFSET_BLOCK;
    if (all->n)
        end = all->v[all->n - 1]->offset + offset_entry_length(all->v[all->n - 1]);
    *capacity = s->config.capacity_bytes;
    if (!*capacity && fstatvfs(s->dir_fd, &v))
        return mcfs_fail_errno(err, errno, "%s", s->dir);
    if (!*capacity)
        *capacity = (uint64_t)v.f_blocks * v.f_frsize;
    end = (end + unit - 1) & ~(unit - 1);
    *capacity = MCFS_MAX(*capacity & ~(unit - 1), end);
    return size_data(s, capacity, err);
}

static int reserve(struct offset_store *s, uint64_t from, uint64_t to, uint32_t *node,
                   struct mcfs_error *err)
{
    struct mcfs_alloc_range range;
    if (!mcfs_offset_reserve(s->allocator, from, to - from, &range))
        return mcfs_fail(err, MCFS_INTERNAL_ERROR,
                         "%s/" OFFSET_DATA ": %" PRIu64 " to %" PRIu64 " cannot be reserved",
                         s->dir, from, to);
    *node = range.node;
    return 0;
}

/* Takes what is in use out of an empty allocator, in order, and the gaps with it: so each is cut
 * off the front of the one free range that is left, in constant time. */
static int reserve_all(struct offset_store *s, const struct offset_by_place *all,
                       struct mcfs_error *err)
{
    uint64_t at = 0, unit = 1ull << mcfs_offset_allocator_state(s->allocator)->multiplier_bits;
    size_t gaps = 0;
    _cleanup_free_ uint32_t *gap = malloc((all->n + 1) * sizeof(*gap));
    _cleanup_free_ uint64_t *gap_size = malloc((all->n + 1) * sizeof(*gap_size));
    if (!gap || !gap_size)
        return mcfs_fail_errno(err, ENOMEM, "allocator");
    for (size_t i = 0; i < all->n; i++) {
        struct offset_entry *e = all->v[i];
        uint64_t length = offset_entry_length(e);
        if (e->offset > at) {
            gap_size[gaps] = e->offset - at;
            if (reserve(s, at, e->offset, &gap[gaps], err))
                return -1;
            gaps++;
        }
        if (reserve(s, e->offset, e->offset + length, &e->node, err))
            return -1;
        s->used_bytes += offset_room(s, e);
        at = (e->offset + length + unit - 1) & ~(unit - 1);
    }
    for (size_t i = 0; i < gaps; i++)
        mcfs_offset_release(s->allocator, gap[i], gap_size[i]);
    return 0;
}

static int make_allocator(struct recovering *r, struct mcfs_error *err)
{
    struct offset_store *s = r->s;
    struct offset_by_place all;
    uint64_t capacity;
    if (offset_list_by_place(&r->image.entries, &all, err))
        return -1;
    uint64_t nodes = s->config.offset_nodes_max;
    nodes = nodes ? MCFS_MIN(MCFS_MAX(nodes, 2 * all.n + 2), MCFS_ALLOC_NODES_MAX) : 0;
    unsigned bits = unit_bits(&all);
    int rc = choose_capacity(s, &all, &capacity, err);
    if (rc == 0) {
        capacity = MCFS_MIN(capacity, (uint64_t)UINT32_MAX << bits);
        s->allocator = mcfs_offset_allocator_new(0, capacity, bits, (uint32_t)nodes, err);
        rc = s->allocator ? reserve_all(s, &all, err) : -1;
    }
    free(all.v);
    return rc;
}

/* ---- all of it ---- */

static int load(struct recovering *r, struct mcfs_error *err)
{
    struct offset_store *s = r->s;
    if (offset_image_load(s->dir, s->data_fd, &r->sink, &r->image, err))
        return -1;
    if (r->image.state == OFFSET_IMAGE_OURS && !r->image.index_damaged)
        return 0;
    if (r->image.state == OFFSET_IMAGE_NOTHING_KEPT || s->mode == OFFSET_DISABLED) {
        r->begin_anew = true;
        return 0;
    }
    /* What is left of a damaged index tells what it can of what Mooncake's checkpoint has. */
    if (recover_foreign(r, err))
        return -1;
    return r->begin_anew ? keep_unexplained(r, err) : 0;
}

/* They stay where they are until they are replaced. */
static int keep_damaged(struct recovering *r, struct mcfs_error *err)
{
    const char *dir = r->s->dir;
    bool index = r->image.index_damaged, journal = r->image.journal_damaged;
    if ((index && !keep_file_aside(dir, OFFSET_INDEX, "the index is damaged")) ||
        (journal && !keep_file_aside(dir, OFFSET_JOURNAL, "the journal is damaged")))
        return mcfs_fail(err, MCFS_FILE_WRITE_FAIL, "%s: lost+found cannot be written", dir);
    r->set_aside += (uint64_t)index + journal;
    return 0;
}

/* Enters what was found, which the store owns from then on. */
static int enter(struct recovering *r, struct mcfs_error *err)
{
    struct offset_store *s = r->s;
    s->all = r->image.entries;
    r->image.entries = (struct offset_list){NULL, NULL};
    for (struct offset_entry *e = s->all.first; e; e = e->after) {
        e->position = 0;
        if (offset_index_add(s, e))
            return mcfs_fail_errno(err, ENOMEM, "index");
    }
    return 0;
}

static int recover(struct recovering *r, struct mcfs_error *err)
{
    struct offset_store *s = r->s;
    if (open_data(s, err) || load(r, err))
        return -1;
    s->epoch = r->image.head.epoch;
    if (!s->epoch)
        s->epoch = mcfs_id_random().hi;
    if ((s->mode == OFFSET_DISABLED || r->begin_anew) && forget_all(r, err))
        return -1;
    s->insert_seq = r->image.insert_seq;
    s->meta = r->image.meta;
    s->journal_end = MCFS_MAX(r->image.journal_end, 1);
    s->journal_base = s->checkpointed = s->synced = s->quiet = s->journal_end;
    if (make_allocator(r, err) || enter(r, err) || clear_strangers(r, err) || keep_damaged(r, err))
        return -1;
    if (s->mode == OFFSET_DISABLED)
        return 0;
    if (r->image.clean)
        return offset_journal_open(s, err);
    /* An index is never without a journal that goes on from it. */
    if (!r->image.has_journal || r->begin_anew) {
        MCFS_LOCK_SCOPE(&s->sync_lock);
        MCFS_LOCK_SCOPE(&s->lock);
        if (offset_journal_renew(s, s->journal_end, err))
            return -1;
    }
    return offset_checkpoint(s, err);
}

int offset_recover(struct offset_store *s, struct mcfs_backend_recovery *out,
                   struct mcfs_error *err)
{
    struct recovering r = {.s = s,
                           .sink = {.report = finding_log, .arg = (void *)(uintptr_t)s->dir}};
    int rc = recover(&r, err);
    offset_list_free(&r.image.entries);
    if (out)
        *out = (struct mcfs_backend_recovery){.objects = atomic_load(&s->objects),
                                              .bytes = atomic_load(&s->object_bytes),
                                              .dropped_objects = r.image.dropped,
                                              .set_aside_files = r.set_aside};
    return rc;
}
