/* SPDX-License-Identifier: Apache-2.0 */
#include "common/hash.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

uint64_t mcfs_hash(const void *data, size_t len)
{
    return XXH3_64bits(data, len);
}

uint64_t mcfs_hash_seed(const void *data, size_t len, uint64_t seed)
{
    return XXH3_64bits_withSeed(data, len, seed);
}

/* The hash works on 8-byte blocks of its input, so that parts can be hashed in turn only when they
 * are joined; short names are joined on the stack. */
#define MURMUR_MUL 0xc6a4a7935bd1e995ULL
#define MURMUR_SEED 0xc70f6907ULL

static uint64_t shift_mix(uint64_t v)
{
    return v ^ (v >> 47);
}

uint64_t mcfs_hash_libstdcxx(const void *data, size_t len)
{
    const uint8_t *p = data, *end = p + (len & ~(size_t)7);
    uint64_t hash = MURMUR_SEED ^ (len * MURMUR_MUL);
    for (; p != end; p += 8) {
        uint64_t block;
        memcpy(&block, p, 8);
        hash ^= shift_mix(block * MURMUR_MUL) * MURMUR_MUL;
        hash *= MURMUR_MUL;
    }
    if (len & 7) {
        uint64_t tail = 0;
        for (size_t i = len & 7; i-- > 0;)
            tail = tail << 8 | p[i];
        hash ^= tail;
        hash *= MURMUR_MUL;
    }
    hash = shift_mix(hash) * MURMUR_MUL;
    return shift_mix(hash);
}

uint64_t mcfs_hash_tenant(struct mcfs_slice tenant, struct mcfs_slice key)
{
    char joined[MCFS_TENANT_MAX + 1 + MCFS_KEY_MAX];
    size_t tenant_len = tenant.len < MCFS_TENANT_MAX ? tenant.len : MCFS_TENANT_MAX;
    size_t key_len = key.len < MCFS_KEY_MAX ? key.len : MCFS_KEY_MAX;
    memcpy(joined, tenant.data, tenant_len);
    joined[tenant_len] = 0;
    memcpy(joined + tenant_len + 1, key.data, key_len);
    return mcfs_hash_libstdcxx(joined, tenant_len + 1 + key_len);
}

uint32_t mcfs_shard_of(struct mcfs_slice tenant, struct mcfs_slice key)
{
    if (mcfs_slice_eq(tenant, MCFS_SLICE_LITERAL(MCFS_DEFAULT_TENANT)))
        return mcfs_hash_libstdcxx(key.data, key.len) % MCFS_SHARD_COUNT;
    return mcfs_hash_tenant(tenant, key) % MCFS_SHARD_COUNT;
}
