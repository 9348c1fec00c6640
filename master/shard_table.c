/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The shards' hash tables: open addressing with linear probing over 32-bit entries, a slot number
 * and four bits of the hash that spare most look-ups a second cache miss.  Filled to 70 % at most.
 *
 * All tables lie in one reservation, laid out by doublings: the first 256 entries of every shard
 * side by side, then the next 256 of every shard, then the next 512, and so on.  A table grows in
 * place, without waste, and since shards grow at about the same time the memory is dense: 5 to 8
 * bytes per object, in huge pages.
 */
#include "master/record.h"

#include "common/hash.h"

#include <stdlib.h>
#include <sys/mman.h>

#define FIRST 256u
#define LARGEST (1u << 18) /* entries of one shard */
#define MAX_FILL_TENTHS 7
#define FIRST_TRIES 16 /* entries of a cache line */

static uint32_t *entry(const struct directory *d, uint32_t shard, uint32_t i)
{
    if (i < FIRST)
        return &d->table[shard * FIRST + i];
    uint64_t start = 1ull << (31 - __builtin_clz(i));
    return &d->table[start * (MCFS_SHARD_COUNT + shard) + (i - start)];
}

/* Look-ahead reads entries and sizes without the lock, as hints: so they are written in one piece.
 */
static void set(const struct directory *d, uint32_t shard, uint32_t i, uint32_t e)
{
    __atomic_store_n(entry(d, shard, i), e, __ATOMIC_RELAXED);
}

static uint32_t mask_now(const struct directory *d, uint32_t shard)
{
    return __atomic_load_n(&d->shards[shard].mask, __ATOMIC_RELAXED);
}

static uint32_t tag(uint64_t hash)
{
    return (uint32_t)(hash >> 50 & 0xf) << SLOT_BITS;
}

int shard_tables_new(struct directory *d, struct mcfs_error *err)
{
    d->table_bytes = (uint64_t)LARGEST * MCFS_SHARD_COUNT * sizeof(uint32_t);
    d->table = mmap(NULL, d->table_bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (d->table == MAP_FAILED) {
        d->table = NULL;
        return mcfs_fail_errno(err, errno, "hash tables of the directory");
    }
    madvise(d->table, d->table_bytes, MADV_HUGEPAGE);
    for (uint32_t s = 0; s < MCFS_SHARD_COUNT; s++)
        d->shards[s].mask = FIRST - 1;
    return 0;
}

void shard_tables_free(struct directory *d)
{
    if (d->table)
        munmap(d->table, d->table_bytes);
}

struct key_hash key_hash(struct mcfs_slice tenant, struct mcfs_slice key)
{
    uint64_t h;
    if (mcfs_slice_eq(tenant, MCFS_SLICE_LITERAL(MCFS_DEFAULT_TENANT)))
        h = mcfs_hash_libstdcxx(key.data, key.len);
    else
        h = mcfs_hash_tenant(tenant, key);
    return (struct key_hash){(uint32_t)(h % MCFS_SHARD_COUNT), h / MCFS_SHARD_COUNT};
}

uint32_t shard_find(struct directory *d, struct key_hash h, uint32_t tenant, struct mcfs_slice key)
{
    const struct shard *s = &d->shards[h.shard];
    for (uint32_t i = (uint32_t)h.hash & s->mask;; i = (i + 1) & s->mask) {
        uint32_t e = *entry(d, h.shard, i);
        if (!e)
            return 0;
        if ((e & ~SLOT_MAX) != tag(h.hash))
            continue;
        const struct record *r = record_at(d, e & SLOT_MAX);
        if (r->tenant == tenant && mcfs_slice_eq(record_key(d, r), key))
            return e & SLOT_MAX;
    }
}

static void place(struct directory *d, uint32_t shard, uint64_t hash, uint32_t e)
{
    uint32_t mask = d->shards[shard].mask, i = (uint32_t)hash & mask;
    while (*entry(d, shard, i))
        i = (i + 1) & mask;
    set(d, shard, i, e);
}

/* A stored entry's hash, as far as the table's size needs it. */
static uint64_t hash_of(const struct directory *d, uint32_t slot, uint32_t mask)
{
    const struct record *r = record_at(d, slot);
    if (mask <= UINT16_MAX)
        return r->hash;
    return key_hash(intern_get(d->tenants, r->tenant), record_key(d, r)).hash;
}

static int grow(struct directory *d, uint32_t shard)
{
    struct shard *s = &d->shards[shard];
    uint32_t size = s->mask + 1;
    if (size >= LARGEST)
        return -1;
    uint32_t *old = malloc(size * sizeof(*old));
    if (!old)
        return -1;
    for (uint32_t i = 0; i < size; i++) {
        old[i] = *entry(d, shard, i);
        set(d, shard, i, 0);
    }
    __atomic_store_n(&s->mask, size * 2 - 1, __ATOMIC_RELAXED);
    for (uint32_t i = 0; i < size; i++) {
        if (i + 8 < size && old[i + 8])
            __builtin_prefetch(record_at(d, old[i + 8] & SLOT_MAX));
        if (old[i])
            place(d, shard, hash_of(d, old[i] & SLOT_MAX, s->mask), old[i]);
    }
    free(old);
    return 0;
}

int shard_add(struct directory *d, struct key_hash h, uint32_t slot)
{
    struct shard *s = &d->shards[h.shard];
    if ((uint64_t)(s->count + 1) * 10 > (uint64_t)(s->mask + 1) * MAX_FILL_TENTHS &&
        grow(d, h.shard) && s->count + 1 > s->mask)
        return -1;
    place(d, h.shard, h.hash, tag(h.hash) | slot);
    s->count++;
    return 0;
}

void shard_del(struct directory *d, struct key_hash h, uint32_t slot)
{
    struct shard *s = &d->shards[h.shard];
    uint32_t mask = s->mask, i = (uint32_t)h.hash & mask;
    while ((*entry(d, h.shard, i) & SLOT_MAX) != slot)
        i = (i + 1) & mask;
    /* Entries behind the hole move up where they would not be found past it. */
    for (uint32_t j = (i + 1) & mask;; j = (j + 1) & mask) {
        uint32_t e = *entry(d, h.shard, j);
        if (!e)
            break;
        uint32_t home = (uint32_t)hash_of(d, e & SLOT_MAX, mask) & mask;
        if (((j - home) & mask) >= ((j - i) & mask)) {
            set(d, h.shard, i, e);
            i = j;
        }
    }
    set(d, h.shard, i, 0);
    s->count--;
}

uint32_t shard_slot_at(struct directory *d, uint32_t shard, uint32_t i)
{
    return *entry(d, shard, i) & SLOT_MAX;
}

void shard_prefetch(struct directory *d, struct key_hash h)
{
    __builtin_prefetch(entry(d, h.shard, (uint32_t)h.hash & mask_now(d, h.shard)));
}

uint32_t shard_first(struct directory *d, struct key_hash h)
{
    uint32_t mask = mask_now(d, h.shard), i = (uint32_t)h.hash & mask, e;
    for (unsigned tries = 0; tries < FIRST_TRIES; tries++, i = (i + 1) & mask) {
        e = __atomic_load_n(entry(d, h.shard, i), __ATOMIC_RELAXED);
        if (!e || (e & ~SLOT_MAX) == tag(h.hash))
            return e & SLOT_MAX;
    }
    return 0;
}
