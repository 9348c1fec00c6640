/* SPDX-License-Identifier: Apache-2.0 */
/* Sealing: the open bucket becomes one that Mooncake understands.  And logs made short again. */
#include "backends/bucket/bucket.h"

#include "backends/bucket/bucket_meta.h"
#include "common/cleanup.h"
#include "common/file.h"
#include "common/log.h"

#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>

#define LOG_SLACK 65536u /* bytes appended to a log before shortening it is considered */
#define LOG_LONG (64u << 20)

void bucket_stop_writing(struct store *s, struct bucket *b)
{
    b->sealing = true;
    {
        MCFS_LOCK_SCOPE(&s->lock);
        if (s->current == b)
            s->current = NULL;
    }
    if (b->writers == 0)
        bucket_seal(s, b);
}

void bucket_seal(struct store *s, struct bucket *b)
{
    char journal[PATH_MAX], sum[PATH_MAX];
    bucket_path(s, b->id, "journal", journal, sizeof(journal));
    bucket_path(s, b->id, "sum", sum, sizeof(sum));
    b->is_open = b->sealing = false;
    if (b->log_fd >= 0)
        close(b->log_fd);
    b->log_fd = -1;
    if (b->objects == 0) {
        bucket_remove_files(s, b);
        return;
    }
    if (renameat2(AT_FDCWD, journal, AT_FDCWD, sum, RENAME_NOREPLACE))
        mcfs_warning("%s: %s", journal, strerror(errno)); /* it serves under this name too */
    else
        b->log_is_journal = false;
    /* The .meta follows with the next flush: it is Mooncake's, and the log is what we recover from.
     */
    b->meta_stale = true;
    b->log_base = b->log_end;
    bucket_mark_dirty(s, b, true, true);
    store_names_changed(s);
    compact_consider(s, b);
}

void bucket_make_meta(const struct bucket *b, struct mcfs_buf *out)
{
    _cleanup_buf_ struct mcfs_buf places = MCFS_BUF_INIT;
    meta_put_size(out, b->data_end);
    for (const struct entry *e = b->entries; e; e = entry_after(e)) {
        struct mcfs_slice key = entry_disk_key(e);
        struct meta_place place = {entry_start(e), e->key_inline ? key.len : 0, entry_size(e)};
        if (e->dead)
            continue;
        meta_put_key(out, key);
        meta_put_place(&places, &place);
    }
    mcfs_buf_append(out, places.data, places.len);
    out->failed |= places.failed;
}

bool bucket_log_is_long(const struct bucket *b)
{
    /* A log with unreadable parts is left alone as long as that is possible; one from which
     * something is being moved, or to which, says more than the index does. */
    return !b->moving && b->log_end / 2 > b->log_base + (b->keep_gaps ? LOG_LONG : LOG_SLACK) / 2;
}

/* What recovery would make of the log, as a log. */
static void make_log(const struct bucket *b, struct mcfs_buf *out)
{
    log_put_header(out, b->id);
    for (const struct entry *e = b->entries; e; e = entry_after(e))
        if (!e->dead)
            entry_record(e, out);
    if (!b->data_dirty && !b->never_sure)
        log_put_record(out, &(struct log_record){.type = LOG_SYNC});
}

int bucket_rewrite_log(struct store *s, struct bucket *b, struct mcfs_error *err)
{
    _cleanup_buf_ struct mcfs_buf log = MCFS_BUF_INIT;
    char temporary[PATH_MAX], path[PATH_MAX];
    make_log(b, &log);
    if (log.failed)
        return mcfs_fail_errno(err, ENOMEM, "log of bucket %" PRIu64, b->id);
    bucket_path(s, b->id, "sum.tmp", temporary, sizeof(temporary));
    bucket_path(s, b->id, b->log_is_journal ? "journal" : "sum", path, sizeof(path));
    _cleanup_fd_ int fd = open(temporary, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    /* Durable before it has its name: a beginning of a log would hide the rest of the objects. */
    if (fd < 0 || mcfs_pwrite_full(fd, log.data, log.len, 0) || fdatasync(fd) ||
        rename(temporary, path)) {
        mcfs_fail_errno(err, errno, "%s", temporary);
        if (fd >= 0)
            unlink(temporary);
        return -1;
    }
    if (b->log_fd >= 0)
        close(b->log_fd);
    b->log_fd = mcfs_steal_fd(&fd);
    b->has_log = true;
    b->log_end = b->log_base = log.len;
    store_names_changed(s);
    return 0;
}
