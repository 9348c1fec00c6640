/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fsck of a file-per-key store.  Checking is a recovery that only looks, with its findings told
 * instead of logged, and then every value.  Repairing is a recovery that writes (it sets aside and
 * renews logs), and the removal of what is proven bad.
 */
#include "backends/check.h"

#include "backends/file_per_key/files.h"
#include "common/cleanup.h"

#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>

/* More bytes than were stored: whoever reads the object does not see them. */
static bool check_length(const struct mcfs_object *o, void *arg)
{
    struct files *s = arg;
    struct mcfs_backend_place place;
    struct stat st;
    if (s->base.ops->locate(&s->base, o->tenant, o->key, o->version, &place, NULL) ||
        !place.whole_file || fstatat(s->dir_fd, place.file, &st, AT_SYMLINK_NOFOLLOW) ||
        (uint64_t)st.st_size <= o->size)
        return true;
    _cleanup_buf_ struct mcfs_buf key = MCFS_BUF_INIT;
    storage_key(o->tenant, o->key, &key, NULL);
    finding_report(s->sink, &(struct finding){.kind = FINDING_STALE,
                                              .file = place.file,
                                              .offset = o->size,
                                              .key = mcfs_slice(key.data, key.len),
                                              .version = o->version,
                                              .what = "bytes behind the object's end"});
    return true;
}

int files_check(struct store_check *c, struct mcfs_error *err)
{
    struct mcfs_backend_config config = {.dir = c->dir, .fsdir = c->fsdir, .read_only = true};
    struct files *s = files_open_checked(&config, &c->sink, NULL, err);
    if (!s)
        return -1;
    int rc = check_values(c, &s->base, false, err);
    if (rc == 0)
        rc = s->base.ops->scan(&s->base, check_length, s, err);
    s->base.ops->close(&s->base, NULL);
    return rc;
}

bool files_are_ours(const char *dir)
{
    char path[PATH_MAX];
    struct stat st;
    snprintf(path, sizeof(path), "%s/" FILES_DIR, dir);
    return lstat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

static int remove_file(struct files *s, const char *file, struct mcfs_error *err)
{
    if (unlinkat(s->dir_fd, file, 0) && errno != ENOENT)
        return mcfs_fail_errno(err, errno, "%s/%s", s->dir, file);
    atomic_store(&s->mooncake_dirty, true);
    return 0;
}

static int remove_object(struct files *s, const struct finding *f, struct mcfs_error *err)
{
    struct mcfs_backend_name name = {.version = f->version};
    storage_key_split(f->key, &name.tenant, &name.key);
    if (files_remove(&s->base, &name, 1) == 0)
        return 0;
    if (err)
        *err = name.err;
    return -1;
}

int files_repair(const struct store_check *c, const struct finding *findings, size_t n, bool *done,
                 struct mcfs_error *err)
{
    struct mcfs_backend_config config = {
        .dir = c->dir, .fsdir = c->fsdir, .flush_interval_ms = UINT32_MAX};
    struct files *s = files_open_checked(&config, NULL, NULL, err);
    int rc = s ? 0 : -1;
    for (size_t i = 0; i < n && rc == 0; i++) {
        if (findings[i].repair == REPAIR_OBJECT)
            rc = remove_object(s, &findings[i], err);
        else if (findings[i].repair == REPAIR_FILE) /* one of Mooncake's */
            rc = remove_file(s, findings[i].file, err);
        done[i] |= rc == 0 && findings[i].repair != REPAIR_NONE;
    }
    if (s && s->base.ops->close(&s->base, rc ? NULL : err))
        rc = -1;
    return rc;
}
