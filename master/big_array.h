/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_MASTER_BIG_ARRAY_H
#define MCFS_MASTER_BIG_ARRAY_H

/*
 * Memory for an array that may become large: from 2 MiB on it lies in huge pages, of which a fork
 * copies one entry where it would copy 512, and growing moves those entries, not the bytes.
 */

#include <stddef.h>

/* An array of `bytes` that begins with what `old` (NULL: nothing), of old_bytes, holds; the rest is
 * undefined.  Both sizes tell how the memory was got, so they must be those of the calls before.
 * NULL without memory; `old` is as it was then, else gone.  Free it with big_array_free. */
void *big_array_grow(void *old, size_t old_bytes, size_t bytes);

void big_array_free(void *array, size_t bytes);

#endif
