/* SPDX-License-Identifier: Apache-2.0 */
/* The logs: what the files' names stand for. */
#include "backends/file_per_key/files.h"

#include "common/cleanup.h"
#include "common/file.h"
#include "common/log.h"

#include <fcntl.h>
#include <inttypes.h>

#define LOG_SLACK (1u << 20) /* bytes that a log may grow before it is worth shortening */

void file_path(unsigned shard, uint64_t id, char out[FILES_NAME])
{
    snprintf(out, FILES_NAME, "values/%x%x/%016" PRIx64, shard & 15, (unsigned)(id & 15), id);
}

struct log_record file_record(const struct file_entry *e)
{
    return (struct log_record){.type = LOG_PUT,
                               .version = e->version,
                               .offset = e->id,
                               .size = e->size,
                               .attr = e->attr,
                               .crc32c = e->crc32c,
                               .data_type = e->data_type,
                               .has_crc = e->has_crc,
                               .key = file_key(e)};
}

int file_log(struct files *s, unsigned shard, const struct log_record *r, struct mcfs_error *err)
{
    struct file_shard *h = &s->shards[shard];
    _cleanup_buf_ struct mcfs_buf record = MCFS_BUF_INIT;
    log_put_record(&record, r);
    if (record.failed)
        return mcfs_fail_errno(err, ENOMEM, "%s/" FILES_DIR "/%x.log", s->dir, shard);
    if (mcfs_pwrite_full(h->log_fd, record.data, record.len, h->log_end)) {
        mcfs_fail_errno(err, errno, "%s/" FILES_DIR "/%x.log", s->dir, shard);
        /* What was written of it must not end up in front of the next record. */
        if (ftruncate(h->log_fd, (off_t)h->log_end))
            mcfs_warning("%s/" FILES_DIR "/%x.log: %s", s->dir, shard, strerror(errno));
        return -1;
    }
    h->log_end += record.len;
    h->log_dirty = true;
    return 0;
}

bool file_log_is_long(const struct file_shard *h)
{
    return h->log_end > 2 * h->log_base + LOG_SLACK;
}

/* Everything in the log that is still true. */
static void put_all(struct files *s, const struct file_shard *h, struct mcfs_buf *out)
{
    log_put_header(out, atomic_load(&s->next_id));
    /* What has to be checked is said last, after the SYNC record. */
    uint64_t first_unsure = h->sync_all || h->never_sure ? 0
                            : h->unsynced.count          ? h->unsynced.v[0].id
                                                         : UINT64_MAX;
    bool said = false;
    for (const struct file_entry *e = h->first; e; e = e->after) {
        if (!said && e->id >= first_unsure) {
            log_put_record(out, &(struct log_record){.type = LOG_SYNC});
            said = true;
        }
        struct log_record r = file_record(e);
        log_put_record(out, &r);
    }
    if (!said)
        log_put_record(out, &(struct log_record){.type = LOG_SYNC});
}

int file_log_renew(struct files *s, unsigned shard, bool durable, struct mcfs_error *err)
{
    struct file_shard *h = &s->shards[shard];
    char name[16], temporary[16];
    _cleanup_buf_ struct mcfs_buf log = MCFS_BUF_INIT;
    snprintf(name, sizeof(name), "%x.log", shard);
    snprintf(temporary, sizeof(temporary), "%x.log.tmp", shard);
    put_all(s, h, &log);
    if (log.failed)
        return mcfs_fail_errno(err, ENOMEM, "%s/" FILES_DIR "/%s", s->dir, name);
    _cleanup_fd_ int fd =
        openat(s->own_fd, temporary, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (fd < 0 || mcfs_pwrite_full(fd, log.data, log.len, 0) || (durable && fdatasync(fd)) ||
        renameat(s->own_fd, temporary, s->own_fd, name)) {
        int errnum = errno;
        unlinkat(s->own_fd, temporary, 0);
        return mcfs_fail_errno(err, errnum, "%s/" FILES_DIR "/%s", s->dir, name);
    }
    if (h->log_fd >= 0)
        close(h->log_fd);
    h->log_fd = mcfs_steal_fd(&fd);
    h->log_end = h->log_base = log.len;
    h->log_dirty = h->renew = false;
    /* Whether its name is durable or not, this is the log from now on. */
    return durable && fsync(s->own_fd) ? mcfs_fail_errno(err, errno, "%s/" FILES_DIR, s->dir) : 0;
}
