/* SPDX-License-Identifier: Apache-2.0 */
/* The store that a user's words mean. */
#include "snapshot/snapshot.h"

#include <string.h>

struct mcfs_object_store *snap_store_open(const char *where, struct mcfs_error *err)
{
    return strncmp(where, "s3://", 5) == 0 ? snap_store_s3_open(where + 5, err)
                                           : snap_store_local_open(where, err);
}
