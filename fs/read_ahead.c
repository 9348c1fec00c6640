/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/fs.h"

#include "common/cleanup.h"
#include "common/log.h"

#include <fcntl.h>
#include <limits.h>
#include <string.h>

#define READ_AHEAD_KIB                                                                             \
    "512" /* measured: less is more round trips, more leaves the processor's cache */

/* The device of a mount point, without asking the mount itself: "MAJOR:MINOR". */
static bool find_device(const char *mountpoint, char device[32])
{
    _cleanup_file_ FILE *f = fopen("/proc/self/mountinfo", "re");
    char *line = NULL, path[PATH_MAX];
    size_t cap = 0;
    bool found = false;
    /* The last line wins: it is the mount on top. */
    while (f && getline(&line, &cap, f) > 0) {
        char dev[32];
        if (sscanf(line, "%*s %*s %31s %*s %4095s", dev, path) == 2 &&
            strcmp(path, mountpoint) == 0) {
            memcpy(device, dev, sizeof(dev));
            found = true;
        }
    }
    free(line);
    return found;
}

void fs_widen_read_ahead(const struct fs *fs)
{
    char device[32], path[96];
    if (!find_device(fs->options->mountpoint, device))
        return;
    snprintf(path, sizeof(path), "/sys/class/bdi/%s/read_ahead_kb", device);
    _cleanup_fd_ int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0 || write(fd, READ_AHEAD_KIB, strlen(READ_AHEAD_KIB)) < 0)
        mcfs_debug("%s: %s", path, strerror(errno)); /* for root alone */
}
