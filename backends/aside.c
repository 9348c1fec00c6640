/* SPDX-License-Identifier: Apache-2.0 */
#include "backends/aside.h"

#include "common/cleanup.h"
#include "common/log.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>

#define NAMES_MAX 100000

static bool put_aside(const char *dir, const char *file, const char *why, bool keep)
{
    char from[PATH_MAX], to[PATH_MAX];
    const char *slash = strrchr(file, '/'), *name = slash ? slash + 1 : file;
    snprintf(from, sizeof(from), "%s/%s", dir, file);
    snprintf(to, sizeof(to), "%s/lost+found", dir);
    if (mkdir(to, 0755) && errno != EEXIST)
        mcfs_warning("%s: %s", to, strerror(errno));
    for (int i = 0; i < NAMES_MAX; i++) {
        if (i == 0)
            snprintf(to, sizeof(to), "%s/lost+found/%s", dir, name);
        else
            snprintf(to, sizeof(to), "%s/lost+found/%s.%d", dir, name, i);
        int rc = keep ? link(from, to) : renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE);
        if (rc == 0) {
            mcfs_warning("%s: %s; it is set aside in lost+found", from, why);
            return true;
        }
        if (errno != EEXIST)
            break;
    }
    mcfs_warning("%s: %s; it cannot be set aside: %s", from, why, strerror(errno));
    return false;
}

bool set_file_aside(const char *dir, const char *file, const char *why)
{
    return put_aside(dir, file, why, false);
}

bool keep_file_aside(const char *dir, const char *file, const char *why)
{
    return put_aside(dir, file, why, true);
}
