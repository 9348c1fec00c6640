/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_BACKENDS_GET_H
#define MCFS_BACKENDS_GET_H

/* Reading many values at once, for every layout. */

#include "backends/io/io.h"
#include <mooncakefs/backend.h>

/* As `get` in the table: opens a reader for each item, reads in one batch where readers have a
 * descriptor, and leaves the rest, and what went wrong, to reader_read. */
size_t backend_get(struct mcfs_backend *b, enum io_engine engine, struct mcfs_backend_get *items,
                   size_t n);

#endif
