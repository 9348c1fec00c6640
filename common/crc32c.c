/* SPDX-License-Identifier: Apache-2.0 */
#include "common/crc32c.h"

#include <isa-l/crc.h>
#include <limits.h>

uint32_t mcfs_crc32c(uint32_t crc, const void *data, size_t len)
{
    /* ISA-L's crc32_iscsi takes an int length and leaves both inversions to the caller. */
    const unsigned char *p = data;
    crc = ~crc;
    while (len > 0) {
        int n = len > INT_MAX ? INT_MAX : (int)len;
        crc = crc32_iscsi((unsigned char *)(uintptr_t)p, n, crc);
        p += n;
        len -= (size_t)n;
    }
    return ~crc;
}
