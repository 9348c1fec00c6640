/* SPDX-License-Identifier: Apache-2.0 */
/* The journal, syncs, and the ranges that become free by them. */
#include "backends/offset/offset_store.h"

#include "backends/offset/offset.h"
#include "common/cleanup.h"
#include "common/file.h"
#include "common/log.h"

#include <fcntl.h>
#include <limits.h>

static void journal_path(const struct offset_store *s, const char *suffix, char out[PATH_MAX])
{
    snprintf(out, PATH_MAX, "%s/" OFFSET_JOURNAL "%s", s->dir, suffix);
}

/* Where a position lies in the file. */
static uint64_t place(const struct offset_store *s, uint64_t position)
{
    return OFFSET_LOG_HEAD + (position - s->journal_base);
}

int offset_journal_append(struct offset_store *s, const struct mcfs_buf *records,
                          struct mcfs_error *err)
{
    if (records->failed)
        return mcfs_fail_errno(err, ENOMEM, "%s/" OFFSET_JOURNAL, s->dir);
    if (s->journal_broken)
        return mcfs_fail(err, MCFS_WRITE_FAIL, "%s/" OFFSET_JOURNAL ": an earlier write failed",
                         s->dir);
    if (s->mode != OFFSET_DISABLED &&
        mcfs_pwrite_full(s->journal_fd, records->data, records->len, place(s, s->journal_end))) {
        mcfs_fail_errno(err, errno, "%s/" OFFSET_JOURNAL, s->dir);
        /* A part of it may be there: a later record must not stand behind that. */
        if (ftruncate(s->journal_fd, (off_t)place(s, s->journal_end)))
            s->journal_broken = true;
        return -1;
    }
    s->journal_end += records->len;
    return 0;
}

/* ---- beginning anew ---- */

/* Copies the records from position `from` on behind a new header. */
static int write_journal(const struct offset_store *s, const char *path, uint64_t from, int *fd,
                         struct mcfs_error *err)
{
    _cleanup_buf_ struct mcfs_buf head = MCFS_BUF_INIT;
    const struct offset_log_head h = {
        .kind = OFFSET_LOG_JOURNAL, .epoch = s->epoch, .position = from};
    offset_log_put_head(&head, &h);
    if (head.failed)
        return mcfs_fail_errno(err, ENOMEM, "%s", path);
    _cleanup_fd_ int to = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (to < 0 || mcfs_pwrite_full(to, head.data, head.len, 0) ||
        (s->journal_end > from &&
         mcfs_copy_range(s->journal_fd, place(s, from), to, head.len, s->journal_end - from)) ||
        fdatasync(to))
        return mcfs_fail_errno(err, errno, "%s", path);
    *fd = mcfs_steal_fd(&to);
    return 0;
}

int offset_journal_renew(struct offset_store *s, uint64_t from, struct mcfs_error *err)
{
    char path[PATH_MAX], temporary[PATH_MAX];
    int fd = -1;
    journal_path(s, "", path);
    journal_path(s, ".tmp", temporary);
    if (write_journal(s, temporary, from, &fd, err)) {
        unlink(temporary);
        return -1;
    }
    if (rename(temporary, path)) {
        mcfs_fail_errno(err, errno, "%s", path);
        close(fd);
        unlink(temporary);
        return -1;
    }
    if (s->journal_fd >= 0)
        close(s->journal_fd);
    s->journal_fd = fd;
    s->journal_base = from;
    s->journal_broken = false;
    return mcfs_sync_dir(s->dir, err);
}

int offset_journal_open(struct offset_store *s, struct mcfs_error *err)
{
    char path[PATH_MAX];
    journal_path(s, "", path);
    s->journal_fd = open(path, O_RDWR | O_CLOEXEC);
    return s->journal_fd < 0 ? mcfs_fail_errno(err, errno, "%s", path) : 0;
}

/* ---- what becomes free ---- */

/* With zeros for a head no program takes what comes there for the object that was. */
static void wipe(const struct offset_store *s, const struct offset_entry *e)
{
    static const char zeros[OFFSET_BLOCK];
    uint64_t length = offset_entry_length(e), from = e->offset;
    uint64_t first = (from + OFFSET_BLOCK - 1) & ~(OFFSET_BLOCK - 1);
    uint64_t last = (from + length) & ~(OFFSET_BLOCK - 1);
    /* The disk is shared with others: what is not needed goes back to it. */
    if (!s->config.capacity_bytes && last > first &&
        fallocate(s->data_fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)first,
                  (off_t)(last - first)) == 0 &&
        first == from)
        return;
    if (mcfs_pwrite_full(s->data_fd, zeros, sizeof(zeros), from))
        mcfs_warning("%s/" OFFSET_DATA ": %s", s->dir, strerror(errno));
}

/* Takes out of the list of dead ones what may be given out.  They stay where a checkpoint sees that
 * they are not stored. */
static struct offset_entry *take_releasable(struct offset_store *s, struct offset_entry **rest)
{
    struct offset_entry *free_ones = NULL;
    uint64_t to = s->mode == OFFSET_DISABLED            ? UINT64_MAX
                  : s->config.offset_without_record_crc ? s->checkpointed
                                                        : s->synced;
    *rest = NULL;
    for (struct offset_entry *e = s->waiting, *next; e; e = next) {
        next = e->waits;
        struct offset_entry **list =
            atomic_load(&e->refs) == 0 && e->gone_at <= to ? &free_ones : rest;
        e->waits = *list;
        *list = e;
    }
    return free_ones;
}

static void release_locked(struct offset_store *s)
{
    struct offset_entry *list, *rest, *next;
    {
        /* Only a release takes entries out of the list, and there is one at a time; new ones are
         * put before those that are there. */
        MCFS_LOCK_SCOPE(&s->lock);
        list = take_releasable(s, &rest);
        s->waiting = rest;
        s->releasing = list;
    }
    for (struct offset_entry *e = list; e; e = e->waits)
        wipe(s, e);
    MCFS_LOCK_SCOPE(&s->lock);
    s->data_unflushed |= list != NULL;
    s->releasing = NULL;
    for (struct offset_entry *e = list; e; e = next) {
        next = e->waits;
        mcfs_offset_release(s->allocator, e->node, offset_entry_length(e));
        s->used_bytes -= offset_room(s, e);
        offset_list_del(&s->all, e);
        offset_entry_free(e);
    }
}

void offset_release(struct offset_store *s)
{
    MCFS_LOCK_SCOPE(&s->sync_lock);
    release_locked(s);
}

/* ---- sync ---- */

static int append_sync(struct offset_store *s, uint64_t position, uint64_t *end,
                       struct mcfs_error *err)
{
    _cleanup_buf_ struct mcfs_buf record = MCFS_BUF_INIT;
    struct offset_log_record r = {.type = OFFSET_LOG_SYNC, .position = position};
    offset_log_put_record(&record, &r);
    MCFS_LOCK_SCOPE(&s->lock);
    if (offset_journal_append(s, &record, err))
        return -1;
    *end = s->journal_end;
    return 0;
}

static bool is_never_sure(const struct offset_store *s, struct mcfs_error *err)
{
    if (s->never_sure)
        mcfs_fail(err, MCFS_WRITE_FAIL, "%s: an earlier flush failed", s->dir);
    return s->never_sure;
}

int offset_flush_data(struct offset_store *s, struct mcfs_error *err)
{
    if (is_never_sure(s, err))
        return -1;
    /* After a failure the kernel may forget what was not written: no later flush proves anything.
     */
    if (fdatasync(s->data_fd)) {
        s->never_sure = true;
        return mcfs_fail_errno(err, errno, "%s/" OFFSET_DATA, s->dir);
    }
    return 0;
}

/* The caller holds the sync lock. */
static int flush(struct offset_store *s, struct mcfs_error *err)
{
    uint64_t upto, end = 0;
    bool unflushed;
    {
        MCFS_LOCK_SCOPE(&s->lock);
        upto = s->journal_end;
        if (upto == s->quiet)
            return 0;
        unflushed = s->data_unflushed;
        s->data_unflushed = false; /* when this fails, nothing is sure any more */
    }
    if (is_never_sure(s, err) || (unflushed && offset_flush_data(s, err)) ||
        append_sync(s, upto, &end, err))
        return -1;
    if (fdatasync(s->journal_fd)) {
        s->never_sure = true;
        return mcfs_fail_errno(err, errno, "%s/" OFFSET_JOURNAL, s->dir);
    }
    s->synced = upto;
    s->quiet = end;
    atomic_fetch_add_explicit(&s->syncs, 1, memory_order_relaxed);
    return 0;
}

int offset_sync_to(struct offset_store *s, uint64_t position, struct mcfs_error *err)
{
    MCFS_LOCK_SCOPE(&s->sync_lock);
    if (s->mode == OFFSET_DISABLED || s->synced >= position)
        return 0;
    return flush(s, err);
}

int offset_store_sync(struct mcfs_backend *b, struct mcfs_error *err)
{
    struct offset_store *s = (struct offset_store *)b;
    MCFS_LOCK_SCOPE(&s->sync_lock);
    if (s->mode == OFFSET_DISABLED)
        return 0;
    int rc = flush(s, err);
    if (rc == 0)
        release_locked(s);
    return rc;
}
