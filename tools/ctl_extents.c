/* SPDX-License-Identifier: Apache-2.0 */
/* Where on the disk a range of a file lies (FIEMAP). */
#include "tools/ctl.h"

#include "common/cleanup.h"

#include <fcntl.h>
#include <linux/fiemap.h>
#include <linux/fs.h>
#include <sys/ioctl.h>

#define EXTENTS_MAX 256

json_t *ctl_extents(const char *file, uint64_t offset, uint64_t length)
{
    json_t *list = json_array();
    _cleanup_fd_ int fd = open(file, O_RDONLY | O_CLOEXEC);
    _cleanup_free_ struct fiemap *map =
        calloc(1, sizeof(*map) + EXTENTS_MAX * sizeof(struct fiemap_extent));
    if (fd < 0 || !map)
        return list;
    map->fm_start = offset;
    map->fm_length = length;
    map->fm_flags = FIEMAP_FLAG_SYNC;
    map->fm_extent_count = EXTENTS_MAX;
    if (ioctl(fd, FS_IOC_FIEMAP, map))
        return list;
    for (uint32_t i = 0; i < map->fm_mapped_extents; i++) {
        const struct fiemap_extent *e = &map->fm_extents[i];
        json_array_append_new(list,
                              json_pack("{s:I, s:I, s:I}", "file_offset", (json_int_t)e->fe_logical,
                                        "disk_offset", (json_int_t)e->fe_physical, "length",
                                        (json_int_t)e->fe_length));
    }
    return list;
}
