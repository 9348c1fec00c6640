/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The checkpoint: kv_cache.index and kv_cache.meta as the store stands at one position of its
 * journal, after which the journal begins there.
 *
 * What is stored is copied while nothing changes; writing it down takes place beside puts.  The
 * allocator's state for Mooncake is a copy, too, in which only ranges of stored objects are in use:
 * what is being written is not known to it, and what waits to be free is free.
 */
#include "backends/offset/offset_store.h"

#include "backends/offset/offset.h"
#include "backends/offset/offset_meta.h"
#include "common/cleanup.h"
#include "common/clock.h"
#include "common/file.h"

#include <limits.h>
#include <sys/stat.h>

struct cut {
    struct offset_log_head head;
    struct mcfs_buf records, fifo;
    struct mcfs_offset_allocator *allocator;
};

static void cut_free(struct cut *c)
{
    mcfs_buf_free(&c->records);
    mcfs_buf_free(&c->fifo);
    mcfs_offset_allocator_free(c->allocator);
}

static void free_in_copy(struct cut *c, const struct offset_entry *e)
{
    mcfs_offset_release(c->allocator, e->node, offset_entry_length(e));
}

/* A copy of the allocator with no ranges but those of stored objects in use. */
static int copy_allocator(struct offset_store *s, struct cut *c, struct mcfs_error *err)
{
    c->allocator = mcfs_offset_allocator_restore(mcfs_offset_allocator_state(s->allocator), err);
    if (!c->allocator)
        return mcfs_error_prefix(err, "%s", s->dir);
    for (const struct offset_entry *e = s->in_flight.first; e; e = e->after)
        free_in_copy(c, e);
    for (const struct offset_entry *e = s->waiting; e; e = e->waits)
        free_in_copy(c, e);
    for (const struct offset_entry *e = s->releasing; e; e = e->waits)
        free_in_copy(c, e);
    return 0;
}

static int take_cut(struct offset_store *s, struct cut *c, struct mcfs_error *err)
{
    bool fifo = s->order.active;
    MCFS_LOCK_SCOPE(&s->lock);
    if (copy_allocator(s, c, err))
        return -1;
    for (struct offset_entry *e = s->all.first; e; e = e->after) {
        if (e->dead)
            continue;
        /* Whether the journal's record of the new name is durable does not matter: a head that is
         * another one than expected makes recovery go by the value's checksum. */
        if (e->head_stale && offset_write_head(s, e, err))
            return -1;
        e->head_stale = false;
        struct offset_log_record r = offset_entry_record(e);
        offset_log_put_record(&c->records, &r);
        if (fifo)
            offset_meta_put_fifo(&c->fifo, e->seq, offset_entry_disk_key(e));
        c->head.count++;
    }
    c->head.kind = OFFSET_LOG_INDEX;
    c->head.epoch = s->epoch;
    c->head.position = s->journal_end;
    c->head.insert_seq = s->insert_seq;
    return c->records.failed || c->fifo.failed ? mcfs_fail_errno(err, ENOMEM, "%s", s->dir) : 0;
}

/* Everything that the cut names is durable in the data file. */
static int flush_data(struct offset_store *s, struct cut *c, struct mcfs_error *err)
{
    struct stat st;
    MCFS_LOCK_SCOPE(&s->sync_lock);
    if (offset_flush_data(s, err))
        return -1;
    if (fstat(s->data_fd, &st))
        return mcfs_fail_errno(err, errno, "%s/" OFFSET_DATA, s->dir);
    c->head.data_size = (uint64_t)st.st_size;
    c->head.data_mtime_ns = mcfs_timespec_ns(st.st_mtim);
    return 0;
}

static int write_index(const struct offset_store *s, const struct cut *c, struct mcfs_error *err)
{
    char path[PATH_MAX];
    _cleanup_buf_ struct mcfs_buf index = MCFS_BUF_INIT;
    snprintf(path, sizeof(path), "%s/" OFFSET_INDEX, s->dir);
    offset_log_put_head(&index, &c->head);
    mcfs_buf_append(&index, c->records.data, c->records.len);
    if (index.failed)
        return mcfs_fail_errno(err, ENOMEM, "%s", path);
    return mcfs_write_file(path, index.data, index.len, 0644, true, err);
}

static int write_files(struct offset_store *s, struct cut *c, struct mcfs_error *err)
{
    char path[PATH_MAX];
    _cleanup_buf_ struct mcfs_buf meta = MCFS_BUF_INIT;
    snprintf(path, sizeof(path), "%s/" OFFSET_META, s->dir);
    offset_meta_put(&meta, mcfs_offset_allocator_state(c->allocator), c->head.insert_seq);
    mcfs_buf_append(&meta, c->fifo.data, c->fifo.len);
    if (meta.failed)
        return mcfs_fail_errno(err, ENOMEM, "%s", path);
    c->head.meta = offset_digest(meta.data, meta.len);
    c->head.meta_before = s->meta;
    if (write_index(s, c, err) || mcfs_write_file(path, meta.data, meta.len, 0644, true, err))
        return -1;
    s->meta = c->head.meta;
    return 0;
}

int offset_checkpoint(struct offset_store *s, struct mcfs_error *err)
{
    _cleanup_(cut_free) struct cut c = {.head = {.count = 0}};
    MCFS_LOCK_SCOPE(&s->checkpoint_lock);
    if (take_cut(s, &c, err) || flush_data(s, &c, err) || write_files(s, &c, err))
        return -1;
    {
        MCFS_LOCK_SCOPE(&s->sync_lock);
        MCFS_LOCK_SCOPE(&s->lock);
        s->checkpointed = c.head.position;
        s->synced = MCFS_MAX(s->synced, c.head.position);
        if (offset_journal_renew(s, c.head.position, err))
            return -1;
        if (s->journal_end == s->journal_base)
            s->quiet = s->journal_end;
    }
    offset_release(s);
    return 0;
}

int offset_write_nothing_kept(struct offset_store *s, struct mcfs_error *err)
{
    struct cut c = {.head = {.kind = OFFSET_LOG_INDEX,
                             .flags = OFFSET_LOG_NOTHING_KEPT,
                             .epoch = s->epoch,
                             .position = 1,
                             .insert_seq = s->insert_seq}};
    return write_index(s, &c, err);
}
