/* SPDX-License-Identifier: Apache-2.0 */
/* Sealing: the open bucket becomes one that Mooncake understands. */
#include "backends/bucket/bucket.h"

#include "backends/bucket/bucket_meta.h"
#include "common/cleanup.h"
#include "common/file.h"
#include "common/log.h"

#include <inttypes.h>
#include <limits.h>

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
        bucket_mark_dirty(s, b, false, false); /* the next sync frees it */
        return;
    }
    if (rename(journal, sum))
        mcfs_warning("%s: %s", journal, strerror(errno)); /* recovery reads either */
    /* The .meta follows with the next sync: it is Mooncake's, and the log is what we recover from.
     */
    b->meta_missing = true;
    bucket_mark_dirty(s, b, true, true);
    MCFS_LOCK_SCOPE(&s->lock);
    s->names_dirty = true;
}

/* The caller holds the bucket's lock. */
int bucket_write_meta(struct store *s, struct bucket *b, struct mcfs_error *err)
{
    _cleanup_buf_ struct mcfs_buf meta = MCFS_BUF_INIT, places = MCFS_BUF_INIT;
    char path[PATH_MAX];
    meta_put_size(&meta, b->data_end);
    for (const struct entry *e = b->entries; e; e = e->after) {
        uint64_t key_size = e->key_inline ? e->key_len : 0;
        struct meta_place place = {e->offset - key_size, key_size, e->size};
        if (e->dead)
            continue;
        meta_put_key(&meta, entry_key(e));
        meta_put_place(&places, &place);
    }
    mcfs_buf_append(&meta, places.data, places.len);
    if (meta.failed || places.failed)
        return mcfs_fail_errno(err, ENOMEM, "meta of bucket %" PRIu64, b->id);
    bucket_path(s, b->id, "meta", path, sizeof(path));
    if (mcfs_write_file(path, meta.data, meta.len, 0644, false, err))
        return -1;
    b->meta_missing = b->meta_stale = false;
    MCFS_LOCK_SCOPE(&s->lock);
    s->names_dirty = true;
    return 0;
}
