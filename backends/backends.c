/* SPDX-License-Identifier: Apache-2.0 */
#include "backends/backends.h"

#include <string.h>

static const struct mcfs_backend_ops *const backends[] = {
    &mcfs_bucket_ops,
};

const struct mcfs_backend_ops *mcfs_backend_find(const char *descriptor)
{
    for (size_t i = 0; i < sizeof(backends) / sizeof(backends[0]); i++)
        if (strcmp(backends[i]->name, descriptor) == 0)
            return backends[i];
    return NULL;
}
