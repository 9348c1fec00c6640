/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_COMMON_HUGE_PAGES_H
#define MCFS_COMMON_HUGE_PAGES_H

/* Memory that is to lie in huge pages (MADV_HUGEPAGE) begins at a multiple of one. */

#include <stddef.h>

#define MCFS_HUGE_PAGE ((size_t)2 << 20) /* bytes */

/* Reserves address space, not memory, without access: mprotect or mmap with MAP_FIXED gives it
 * that, munmap takes it back.  bytes: a multiple of a huge page.  It begins at one, too; NULL when
 * there is none.  Any thread. */
void *mcfs_huge_reserve(size_t bytes);

#endif
