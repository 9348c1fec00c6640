/* SPDX-License-Identifier: Apache-2.0 */
#include "backends/room.h"

#include <inttypes.h>
#include <stddef.h>
#include <sys/statvfs.h>

#define DISK_RESERVE (16ull << 20) /* bytes left free for logs and indexes */

static bool claim(const struct room *r, uint64_t bytes)
{
    uint64_t limit = r->capacity_bytes, used = atomic_load(r->used);
    do {
        if (limit && (bytes > limit || used > limit - bytes))
            return false;
    } while (!atomic_compare_exchange_weak(r->used, &used, used + bytes));
    return true;
}

bool room_on_disk(int dir_fd, uint64_t bytes)
{
    struct statvfs v;
    if (bytes < DISK_RESERVE || fstatvfs(dir_fd, &v))
        return true; /* a write will tell */
    uint64_t free_bytes = (uint64_t)v.f_bavail * v.f_frsize;
    return free_bytes >= DISK_RESERVE && bytes <= free_bytes - DISK_RESERVE;
}

int room_claim(const struct room *r, uint64_t bytes, struct mcfs_error *err)
{
    for (int round = 0;; round++) {
        bool room = room_on_disk(r->dir_fd, bytes);
        if (room && claim(r, bytes))
            return 0;
        uint64_t used = atomic_load(r->used);
        /* Removed objects give their room back with a flush; now it is worth waiting for. */
        if (round == 0 && used > r->needed && r->flush(r->store, NULL) == 0)
            continue;
        if (!room)
            return mcfs_fail(err, MCFS_NO_AVAILABLE_HANDLE, "%s: the disk is full", r->dir);
        return mcfs_fail(err, MCFS_NO_AVAILABLE_HANDLE,
                         "%s: the tier is full (%" PRIu64 " of %" PRIu64 " bytes used)", r->dir,
                         used, r->capacity_bytes);
    }
}
