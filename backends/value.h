/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_BACKENDS_VALUE_H
#define MCFS_BACKENDS_VALUE_H

/* Reading a value that is a part of a file. Errors do not name the file; the caller prefixes it. */

#include <mooncakefs/error.h>
#include <stddef.h>
#include <stdint.h>

struct value_place {
    int fd;
    uint64_t offset, size;
};

/* Reads up to len bytes at off within the value; returns the count, 0 at its end.  A file that ends
 * inside it is CHECKSUM_MISMATCH. */
int64_t value_read(const struct value_place *v, void *buf, size_t len, uint64_t off,
                   struct mcfs_error *err);

/* CRC-32C of all of it, going on from *crc. */
int value_checksum(const struct value_place *v, uint32_t *crc, struct mcfs_error *err);

/* CHECKSUM_MISMATCH unless it has this CRC-32C. */
int value_verify(const struct value_place *v, uint32_t crc, struct mcfs_error *err);

#endif
