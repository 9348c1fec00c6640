/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Putting objects: a range, the record in it, a PUT in the journal for the whole batch.
 *
 * Records are written side by side, through the page cache: the file is shared, and direct writes
 * into a file whose neighbouring bytes are written through the cache may leave the kernel with a
 * dirty page that it cannot drop, which it reports as a failed flush of the whole file.
 */
#include "backends/offset/offset_store.h"

#include "backends/offset/offset.h"
#include "backends/offset/offset_record.h"
#include "backends/room.h"
#include "backends/value.h"
#include "common/cleanup.h"
#include "common/crc32c.h"
#include "common/file.h"

#include <fcntl.h>
#include <inttypes.h>
#include <sys/stat.h>

#define RING_MIN (1u << 20) /* bytes of the average value from which a ring is worth while */
#define HEAD_ROOM (3 * OFFSET_BLOCK) /* head and key of a record that we write, and zeros */

/* ---- room ---- */

uint64_t offset_room(const struct offset_store *s, const struct offset_entry *e)
{
    uint64_t unit = 1ull << mcfs_offset_allocator_state(s->allocator)->multiplier_bits;
    return (offset_entry_length(e) + unit - 1) & ~(unit - 1);
}

static bool allocate(struct offset_store *s, struct offset_entry *e, bool *waits)
{
    struct mcfs_alloc_range range;
    uint64_t length = offset_entry_length(e), limit = s->config.capacity_bytes;
    MCFS_LOCK_SCOPE(&s->lock);
    *waits = s->waiting != NULL;
    if ((limit && (length > limit || s->used_bytes > limit - length)) ||
        !mcfs_offset_allocate(s->allocator, length, &range))
        return false;
    e->offset = range.address;
    e->node = range.node;
    e->seq = s->insert_seq++;
    s->used_bytes += offset_room(s, e);
    offset_list_add(&s->in_flight, e);
    return true;
}

/* Makes what was removed free, as far as readers let it. */
static void reclaim(struct offset_store *s)
{
    if (s->mode == OFFSET_DISABLED)
        offset_release(s);
    else if (s->config.offset_without_record_crc)
        offset_checkpoint(s, NULL);
    else
        offset_store_sync(&s->base, NULL);
}

int offset_take_room(struct offset_store *s, struct offset_entry *e, struct mcfs_error *err)
{
    bool waits;
    if (!room_on_disk(s->dir_fd, e->size))
        return mcfs_fail(err, MCFS_NO_AVAILABLE_HANDLE, "%s: the disk is full", s->dir);
    if (allocate(s, e, &waits))
        return 0;
    if (waits) {
        reclaim(s);
        if (allocate(s, e, &waits))
            return 0;
    }
    uint64_t used, capacity;
    {
        MCFS_LOCK_SCOPE(&s->lock);
        used = s->used_bytes;
        capacity = mcfs_offset_allocator_state(s->allocator)->capacity;
    }
    return mcfs_fail(err, MCFS_NO_AVAILABLE_HANDLE,
                     "%s: the tier is full (%" PRIu64 " of %" PRIu64
                     " bytes used; no range of %" PRIu64 " bytes is free)",
                     s->dir, used, s->config.capacity_bytes ? s->config.capacity_bytes : capacity,
                     offset_entry_length(e));
}

void offset_give_up(struct offset_store *s, struct offset_entry *e)
{
    {
        MCFS_LOCK_SCOPE(&s->lock);
        offset_list_del(&s->in_flight, e);
        mcfs_offset_release(s->allocator, e->node, offset_entry_length(e));
        s->used_bytes -= offset_room(s, e);
    }
    offset_entry_free(e);
}

/* ---- the record ---- */

static int data_failed(const struct offset_store *s, struct mcfs_error *err)
{
    return mcfs_fail_errno(err, errno, "%s/" OFFSET_DATA, s->dir);
}

/* Head, key and zeros; returns their length.  buf: HEAD_ROOM. */
static size_t make_head(const struct offset_entry *e, char *buf)
{
    struct mcfs_slice key = offset_entry_disk_key(e);
    size_t length = (size_t)(offset_entry_value(e) - e->offset);
    memset(buf, 0, length);
    offset_record_build(buf, key.data, (uint32_t)key.len, e->size, e->seq, e->record_crc,
                        e->crc32c);
    memcpy(buf + OFFSET_RECORD_HEAD, key.data, key.len);
    return length;
}

int offset_write_head(struct offset_store *s, const struct offset_entry *e, struct mcfs_error *err)
{
    char head[HEAD_ROOM];
    size_t length = make_head(e, head);
    return mcfs_pwrite_full(s->data_fd, head, length, e->offset) ? data_failed(s, err) : 0;
}

static int copy_record(struct offset_store *s, const struct offset_entry *e, int from,
                       struct mcfs_error *err)
{
    if (offset_write_head(s, e, err))
        return -1;
    return mcfs_copy_range(from, 0, s->data_fd, offset_entry_value(e), e->size)
               ? data_failed(s, err)
               : 0;
}

/* ---- one item ---- */

static const char *staging_of(const struct mcfs_backend_put *item)
{
    return item->data ? NULL : item->staging_path;
}

static int open_staging(const struct mcfs_backend_put *item, int *fd, struct mcfs_error *err)
{
    struct stat st;
    _cleanup_fd_ int from = open(item->staging_path, O_RDONLY | O_CLOEXEC);
    if (from < 0 || fstat(from, &st))
        return mcfs_fail_errno(err, errno, "%s", item->staging_path);
    if (!S_ISREG(st.st_mode) || (uint64_t)st.st_size != item->object.size)
        return mcfs_fail(err, MCFS_INVALID_PARAMS, "%s: not a file of %" PRIu64 " bytes",
                         item->staging_path, item->object.size);
    *fd = mcfs_steal_fd(&from);
    return 0;
}

static int fill(struct offset_store *s, struct offset_entry *e, const struct mcfs_backend_put *item,
                int from, struct mcfs_error *err)
{
    const struct mcfs_object *o = &item->object;
    const void *data = item->data ? item->data : "";
    struct value_place v = {from, 0, e->size};
    e->version = o->version;
    e->attr = o->attr;
    e->crc32c = o->crc32c;
    e->data_type = o->data_type;
    e->record_crc = !s->config.offset_without_record_crc;
    e->checked = OFFSET_GOOD;
    if (!o->has_crc) {
        e->crc32c = from < 0 ? mcfs_crc32c(0, data, e->size) : 0;
        if (from >= 0 && value_checksum(&v, &e->crc32c, err))
            return mcfs_error_prefix(err, "%s", item->staging_path);
    }
    e->has_crc = true;
    return 0;
}

/* ---- the batch ---- */

/* One item on its way. */
struct flight {
    struct offset_entry *written; /* in flight; NULL: none */
    struct offset_entry *stored;  /* entered by this batch */
    char *head;
    struct io_item io[2]; /* head and value */
};

struct batch {
    struct flight *flights;
    struct mcfs_backend_put *items;
    size_t n;
    struct io_batch io;
    bool flushed; /* the data is durable before it is entered */
    uint64_t end; /* of the journal behind it */
};

/* Hands the record over to the batch. */
static int write_record(struct offset_store *s, struct batch *b, struct flight *f,
                        const struct offset_entry *e, const void *data, struct mcfs_error *err)
{
    uint64_t value = offset_entry_value(e);
    size_t length = (size_t)(value - e->offset);
    f->head = malloc(length);
    if (!f->head)
        return mcfs_fail_errno(err, ENOMEM, "put");
    make_head(e, f->head);
    f->io[0] = io_item(IO_WRITE, s->data_fd, f->head, length, e->offset);
    f->io[1] = io_item(IO_WRITE, s->data_fd, data, e->size, value);
    io_add(&b->io, &f->io[0]);
    io_add(&b->io, &f->io[1]);
    return 0;
}

/* Begins to write the record of an item; NULL when that failed (err), or when it is stored already.
 */
static struct offset_entry *begin(struct offset_store *s, struct batch *b, struct flight *f,
                                  struct mcfs_backend_put *item, struct mcfs_error *err)
{
    const struct mcfs_object *o = &item->object;
    _cleanup_buf_ struct mcfs_buf key = MCFS_BUF_INIT;
    _cleanup_fd_ int from = -1;
    if (storage_key(o->tenant, o->key, &key, err))
        return NULL;
    struct mcfs_slice k = mcfs_slice(key.data, key.len);
    struct offset_stripe *stripe = offset_stripe(s, k);
    {
        MCFS_LOCK_SCOPE(&stripe->lock);
        if (offset_index_find(stripe, k, o->version))
            return NULL;
    }
    if (o->size > UINT32_MAX) {
        mcfs_fail_errno(err, EFBIG, "%" PRIu64 " bytes: the offset store's objects are below 4 GiB",
                        o->size);
        return NULL;
    }
    if (!item->data && !item->staging_path && o->size > 0) {
        mcfs_fail(err, MCFS_INVALID_PARAMS, "a put without data");
        return NULL;
    }
    if (staging_of(item) && open_staging(item, &from, err))
        return NULL;
    struct offset_entry *e = offset_entry_new(k);
    if (!e) {
        mcfs_fail_errno(err, ENOMEM, "index");
        return NULL;
    }
    e->size = (uint32_t)o->size;
    e->refs = 1; /* the batch's, which looks at it again */
    if (fill(s, e, item, from, err) || offset_take_room(s, e, err)) {
        offset_entry_free(e);
        return NULL;
    }
    if (from >= 0 ? copy_record(s, e, from, err)
                  : write_record(s, b, f, e, item->data ? item->data : "", err)) {
        offset_give_up(s, e);
        return NULL;
    }
    return e;
}

/* A flush that fails leaves nothing to be sure of. */
static int end_flushed(struct offset_store *s, struct batch *b)
{
    int errnum = io_end_synced(&b->io, s->data_fd);
    if (errnum) {
        MCFS_LOCK_SCOPE(&s->sync_lock);
        s->never_sure = true;
    }
    return errnum;
}

static bool is_any_written(const struct batch *b)
{
    for (size_t i = 0; i < b->n; i++)
        if (b->flights[i].written)
            return true;
    return false;
}

/* Waits for the records; what is not written is not in flight any more. */
static void finish(struct offset_store *s, struct batch *b)
{
    int unsure = 0;
    if (b->flushed && is_any_written(b))
        unsure = end_flushed(s, b);
    else
        io_end(&b->io);
    for (size_t i = 0; i < b->n; i++) {
        struct flight *f = &b->flights[i];
        int errnum = f->io[0].errnum ? f->io[0].errnum : f->io[1].errnum;
        free(f->head);
        if (!f->written || !(errnum = errnum ? errnum : unsure))
            continue;
        offset_give_up(s, f->written);
        f->written = NULL;
        mcfs_fail_errno(&b->items[i].err, errnum, "%s/" OFFSET_DATA, s->dir);
    }
}

/* Small records are written before a ring's worker has woken up. */
static enum io_engine engine_for(const struct offset_store *s, const struct batch *b)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < b->n; i++)
        bytes += b->items[i].data ? b->items[i].object.size : 0;
    return bytes / b->n >= RING_MIN ? s->io : IO_PLAIN;
}

/* A strict put that is alone is flushed with its records; several at a time share a flush. */
static void write_all(struct offset_store *s, struct batch *b)
{
    bool strict = s->mode == OFFSET_STRICT;
    b->flushed = strict && atomic_fetch_add(&s->strict_puts, 1) == 0;
    if (b->flushed && b->n == 1)
        io_begin_linked(&b->io, engine_for(s, b));
    else
        io_begin(&b->io, engine_for(s, b));
    for (size_t i = 0; i < b->n; i++)
        b->flights[i].written = begin(s, b, &b->flights[i], &b->items[i], &b->items[i].err);
    finish(s, b);
    if (strict)
        atomic_fetch_sub(&s->strict_puts, 1);
}

static void fail_all(struct batch *b, const struct mcfs_error *err)
{
    for (size_t i = 0; i < b->n; i++)
        if (b->flights[i].stored)
            b->items[i].err = *err;
}

/* What was entered is out again.  The caller holds the store's lock. */
static void take_back(struct offset_store *s, struct batch *b)
{
    for (size_t i = 0; i < b->n; i++)
        if (b->flights[i].stored && !b->flights[i].stored->dead)
            offset_index_kill(s, b->flights[i].stored);
}

/* Enters what is written; of two puts of a version the second one stays in flight. */
static void publish(struct offset_store *s, struct batch *b)
{
    _cleanup_buf_ struct mcfs_buf records = MCFS_BUF_INIT;
    struct mcfs_error err = MCFS_ERROR_INIT;
    MCFS_LOCK_SCOPE(&s->lock);
    for (size_t i = 0; i < b->n; i++) {
        struct offset_entry *e = b->flights[i].written;
        struct mcfs_slice key = e ? offset_entry_key(e) : mcfs_slice("", 0);
        if (!e || offset_index_find(offset_stripe(s, key), key, e->version))
            continue;
        if (offset_index_add(s, e)) {
            mcfs_fail_errno(&b->items[i].err, ENOMEM, "index");
            continue;
        }
        struct offset_log_record r = offset_entry_record(e);
        offset_log_put_record(&records, &r);
        offset_list_del(&s->in_flight, e);
        offset_list_add(&s->all, e);
        b->flights[i].stored = e;
        b->flights[i].written = NULL;
    }
    if (records.len && offset_journal_append(s, &records, &err)) {
        take_back(s, b);
        fail_all(b, &err);
    }
    b->end = s->journal_end;
    s->data_unflushed |= !b->flushed;
}

/* Each batch of a strict store is durable before it is acknowledged. */
static void make_durable(struct offset_store *s, struct batch *b)
{
    _cleanup_buf_ struct mcfs_buf records = MCFS_BUF_INIT;
    struct mcfs_error err = MCFS_ERROR_INIT;
    if (offset_sync_to(s, b->end, &err) == 0)
        return;
    fail_all(b, &err);
    MCFS_LOCK_SCOPE(&s->lock);
    for (size_t i = 0; i < b->n; i++) {
        if (!b->flights[i].stored || b->flights[i].stored->dead)
            continue;
        struct offset_log_record r = {.type = OFFSET_LOG_DELETE, .seq = b->flights[i].stored->seq};
        offset_log_put_record(&records, &r);
    }
    offset_journal_append(s, &records, NULL); /* as far as that goes */
    take_back(s, b);
}

static void put_batch(struct offset_store *s, struct batch *b)
{
    write_all(s, b);
    publish(s, b);
    bool any = false;
    for (size_t i = 0; i < b->n; i++) {
        if (b->flights[i].written)
            offset_give_up(s, b->flights[i].written);
        any |= b->flights[i].stored && !b->items[i].err.code;
    }
    if (any && s->mode == OFFSET_STRICT)
        make_durable(s, b);
    for (size_t i = 0; i < b->n; i++) {
        if (b->flights[i].stored)
            atomic_fetch_sub(&b->flights[i].stored->refs, 1);
        if (b->items[i].err.code)
            continue;
        if (staging_of(&b->items[i]))
            unlink(b->items[i].staging_path);
        if (b->flights[i].stored)
            atomic_fetch_add_explicit(&s->puts, 1, memory_order_relaxed);
    }
}

size_t offset_store_put(struct mcfs_backend *base, struct mcfs_backend_put *items, size_t n)
{
    struct offset_store *s = (struct offset_store *)base;
    size_t failed = 0;
    _cleanup_free_ struct flight *flights = calloc(n + 1, sizeof(*flights));
    struct batch b = {.flights = flights, .items = items, .n = n};
    for (size_t i = 0; i < n; i++)
        items[i].err = (struct mcfs_error)MCFS_ERROR_INIT;
    if (flights && n)
        put_batch(s, &b);
    for (size_t i = 0; i < n; i++) {
        if (!flights)
            mcfs_fail_errno(&items[i].err, ENOMEM, "put");
        failed += items[i].err.code != MCFS_OK;
    }
    return failed;
}
