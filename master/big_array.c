/* SPDX-License-Identifier: Apache-2.0 */
#include "master/big_array.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define HUGE ((size_t)2 << 20)

static size_t whole(size_t bytes)
{
    return (bytes + HUGE - 1) & ~(HUGE - 1);
}

/* Address space at a multiple of a huge page; NULL when there is none. */
static void *reserve(size_t bytes)
{
    char *raw =
        mmap(NULL, bytes + HUGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (raw == MAP_FAILED)
        return NULL;
    size_t before = -(uintptr_t)raw & (HUGE - 1);
    if (before)
        munmap(raw, before);
    munmap(raw + before + bytes, HUGE - before);
    return raw + before;
}

void *big_array_grow(void *old, size_t old_bytes, size_t bytes)
{
    if (bytes < HUGE)
        return realloc(old, bytes);
    bytes = whole(bytes);
    void *new = reserve(bytes);
    if (!new)
        return NULL;
    bool moves = old && old_bytes >= HUGE;
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
    if (array && bytes >= HUGE)
        munmap(array, whole(bytes));
    else
        free(array);
}
