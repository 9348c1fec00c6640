/* SPDX-License-Identifier: Apache-2.0 */
#include "master/copied.h"

#include "common/cleanup.h"

#include <stdio.h>

uint64_t copied_bytes(const struct directory *d)
{
    char line[4096];
    unsigned long start, end, kib;
    uint64_t sum = 0;
    bool ours = false;
    _cleanup_file_ FILE *f = fopen("/proc/self/smaps", "re");
    while (f && fgets(line, sizeof(line), f)) {
        if (sscanf(line, "%lx-%lx ", &start, &end) == 2)
            ours = directory_holds(d, (const void *)start);
        else if (ours && (sscanf(line, "Private_Dirty: %lu kB", &kib) == 1 ||
                          sscanf(line, "Private_Clean: %lu kB", &kib) == 1))
            sum += (uint64_t)kib * 1024;
    }
    return sum;
}
