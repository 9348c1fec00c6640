/* SPDX-License-Identifier: Apache-2.0 */
#include "common/huge_pages.h"

#include <stdint.h>
#include <sys/mman.h>

void *mcfs_huge_reserve(size_t bytes)
{
    char *raw = mmap(NULL, bytes + MCFS_HUGE_PAGE, PROT_NONE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (raw == MAP_FAILED)
        return NULL;
    size_t before = -(uintptr_t)raw & (MCFS_HUGE_PAGE - 1);
    if (before)
        munmap(raw, before);
    munmap(raw + before + bytes, MCFS_HUGE_PAGE - before);
    return raw + before;
}
