/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/node/state_dir.h"

#include "common/cleanup.h"
#include "common/file.h"
#include "common/id.h"

#include <limits.h>
#include <string.h>

char *state_dir_path(const struct state_dir *s, const char *entry)
{
    char *path;
    if (asprintf(&path, "%s/%s", s->path, entry) < 0)
        abort();
    return path;
}

char *state_dir_default(void)
{
    const char *data = getenv("XDG_DATA_HOME"), *home = getenv("HOME");
    char *path;
    int n;
    if (geteuid() == 0)
        n = asprintf(&path, "/var/lib/mooncakefs");
    else if (data && *data == '/')
        n = asprintf(&path, "%s/mooncakefs", data);
    else
        n = asprintf(&path, "%s/.local/share/mooncakefs", home ? home : "/tmp");
    if (n < 0)
        abort();
    return path;
}

/* Reads the format's number; absent means a new directory, which gets ours. */
static int check_format(const struct state_dir *s, struct mcfs_error *err)
{
    _cleanup_free_ char *path = state_dir_path(s, "format");
    char text[64] = "";
    struct mcfs_error read = MCFS_ERROR_INIT;
    ssize_t n = mcfs_read_file(path, text, sizeof(text) - 1, &read);
    if (n < 0 && read.errnum == ENOENT) {
        int len = snprintf(text, sizeof(text), "mooncakefs state %d\n", STATE_FORMAT);
        return mcfs_write_file(path, text, (size_t)len, 0644, true, err);
    }
    if (n < 0) {
        if (err)
            *err = read;
        return -1;
    }
    unsigned format;
    if (sscanf(text, "mooncakefs state %u", &format) != 1)
        return mcfs_fail(err, MCFS_INVALID_PARAMS, "%s: not a mooncakefs state directory", path);
    if (format > STATE_FORMAT)
        return mcfs_fail(err, MCFS_INVALID_VERSION,
                         "%s: written by a newer mooncakefs (state format %u; this one knows %d)",
                         s->path, format, STATE_FORMAT);
    return 0;
}

int state_dir_open(struct state_dir *s, const char *path, struct mcfs_error *err)
{
    *s = (struct state_dir){.lock_fd = -1};
    if (mcfs_make_dirs(path, 0755, err))
        return -1;
    s->path = realpath(path, NULL);
    if (!s->path)
        return mcfs_fail_errno(err, errno, "%s", path);
    _cleanup_free_ char *backend = state_dir_path(s, "backend");
    _cleanup_free_ char *staging = state_dir_path(s, "staging");
    _cleanup_free_ char *id = state_dir_path(s, "node_id");
    if ((s->lock_fd = mcfs_own_dir(s->path, err)) < 0 || check_format(s, err) ||
        mcfs_make_dirs(backend, 0755, err) || mcfs_make_dirs(staging, 0700, err) ||
        mcfs_id_load_or_create(id, &s->node_id, err)) {
        state_dir_close(s);
        return -1;
    }
    return 0;
}

void state_dir_close(struct state_dir *s)
{
    if (s->lock_fd >= 0)
        close(s->lock_fd);
    s->lock_fd = -1;
    free(s->path);
    s->path = NULL;
}
