/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_COMMON_HASH_H
#define MCFS_COMMON_HASH_H

#include <mooncakefs/object.h>
#include <stddef.h>
#include <stdint.h>

/* Fast 64-bit hash for our own tables (XXH3); never written to disk. */
uint64_t mcfs_hash(const void *data, size_t len);
uint64_t mcfs_hash_seed(const void *data, size_t len, uint64_t seed);

/* What libstdc++'s std::hash<std::string> yields on 64-bit little-endian machines (MurmurHash64A as
 * in libsupc++/hash_bytes.cc, seed 0xc70f6907).  Mooncake places objects in shards, and files in
 * directories, by it. */
uint64_t mcfs_hash_libstdcxx(const void *data, size_t len);

/* The same over tenant, 0x00, key: a storage key's hash. */
uint64_t mcfs_hash_tenant(struct mcfs_slice tenant, struct mcfs_slice key);

/* Shard of an object in the master's directory: Mooncake's rule for the default tenant; for other
 * tenants any stable choice is allowed, ours is the same hash over tenant, 0x00, key. */
uint32_t mcfs_shard_of(struct mcfs_slice tenant, struct mcfs_slice key);

#endif
