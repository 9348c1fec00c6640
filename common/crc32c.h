/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_COMMON_CRC32C_H
#define MCFS_COMMON_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* CRC-32C (Castagnoli, reflected, as in RFC 3720) of `data`, going on from `crc`; start with 0.
 * mcfs_crc32c(mcfs_crc32c(0, a), b) is the checksum of a followed by b.  ISA-L underneath. */
uint32_t mcfs_crc32c(uint32_t crc, const void *data, size_t len);

/* The checksum of a followed by b from theirs, in a time that grows with the logarithm of b's
 * length: what has been summed once is not read again to be summed with something before it. */
uint32_t mcfs_crc32c_combine(uint32_t a, uint32_t b, uint64_t b_len);

#endif
