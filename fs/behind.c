/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/behind.h"

#include "common/cleanup.h"

#define MORE_MAX (64u << 10) /* bytes kept for one run */

void behind_init(struct behind *b)
{
    pthread_mutex_init(&b->lock, NULL);
    b->runs = NULL;
}

void behind_begin(struct behind *b, struct behind_run *run, const void *handle, uint64_t end)
{
    MCFS_LOCK_SCOPE(&b->lock);
    *run = (struct behind_run){b->runs, handle, end, MCFS_BUF_INIT};
    b->runs = run;
}

bool behind_add(struct behind *b, const void *handle, const void *data, size_t len, uint64_t off)
{
    if (len > MORE_MAX)
        return false;
    MCFS_LOCK_SCOPE(&b->lock);
    struct behind_run *run = b->runs;
    while (run && run->handle != handle)
        run = run->next;
    if (!run || off != run->end || run->more.len + len > MORE_MAX)
        return false;
    uint8_t *to = mcfs_buf_reserve(&run->more, len);
    if (!to) { /* it is written as others are */
        run->more.failed = false;
        return false;
    }
    memcpy(to, data, len);
    run->more.len += len;
    run->end += len;
    return true;
}

bool behind_next(struct behind *b, struct behind_run *run, struct mcfs_buf *more, uint64_t *off)
{
    MCFS_LOCK_SCOPE(&b->lock);
    *more = run->more;
    *off = run->end - more->len;
    run->more = (struct mcfs_buf)MCFS_BUF_INIT;
    if (more->len)
        return true;
    mcfs_buf_free(more);
    struct behind_run **at = &b->runs;
    while (*at != run)
        at = &(*at)->next;
    *at = run->next;
    return false;
}
