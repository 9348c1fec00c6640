/* SPDX-License-Identifier: Apache-2.0 */
#include "master/big_array.h"

#include "common/huge_pages.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static size_t whole(size_t bytes)
{
    return (bytes + MCFS_HUGE_PAGE - 1) & ~(MCFS_HUGE_PAGE - 1);
}

void *big_array_grow(void *old, size_t old_bytes, size_t bytes)
{
    if (bytes < MCFS_HUGE_PAGE)
        return realloc(old, bytes);
    bytes = whole(bytes);
    void *new = mcfs_huge_reserve(bytes);
    if (!new)
        return NULL;
    bool moves = old && old_bytes >= MCFS_HUGE_PAGE;
    void *got = moves ? mremap(old, whole(old_bytes), bytes, MREMAP_MAYMOVE | MREMAP_FIXED, new)
                      : mmap(new, bytes, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    if (got == MAP_FAILED) {
        munmap(new, bytes);
        return NULL;
    }
    madvise(new, bytes, MADV_HUGEPAGE); /* a kernel without it works, slower */
    if (old && !moves) {
        memcpy(new, old, old_bytes);
        free(old);
    }
    return new;
}

void big_array_free(void *array, size_t bytes)
{
    if (array && bytes >= MCFS_HUGE_PAGE)
        munmap(array, whole(bytes));
    else
        free(array);
}
