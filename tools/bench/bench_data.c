/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/bench/bench_data.h"

#include "common/cleanup.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* splitmix64 */
static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

static uint64_t word(uint64_t start, size_t i)
{
    return (start ^ i) * 0x9e3779b97f4a7c15ull;
}

void bench_data_fill(void *to, size_t len, uint64_t seed)
{
    uint64_t start = mix(seed + 1);
    for (size_t i = 0; i * 8 < len; i++) {
        uint64_t w = word(start, i);
        memcpy((char *)to + i * 8, &w, MCFS_MIN(len - i * 8, 8));
    }
}

bool bench_data_is(const void *value, size_t len, uint64_t seed)
{
    uint64_t start = mix(seed + 1);
    for (size_t i = 0; i * 8 < len; i++) {
        uint64_t w = word(start, i);
        if (memcmp((const char *)value + i * 8, &w, MCFS_MIN(len - i * 8, 8)) != 0)
            return false;
    }
    return true;
}

static uint64_t next_random(uint64_t *state)
{
    return mix(*state += 0x9e3779b97f4a7c15ull);
}

uint64_t bench_random_below(uint64_t *state, uint64_t n)
{
    return (uint64_t)(((unsigned __int128)next_random(state) * n) >> 64);
}

double bench_random_share(uint64_t *state)
{
    return (double)(next_random(state) >> 11) / 9007199254740992.0;
}

uint64_t bench_choose(struct bench_chooser *c)
{
    if (c->pattern == BENCH_SEQUENTIAL)
        return c->next++ % c->keys;
    if (c->pattern == BENCH_UNIFORM)
        return bench_random_below(&c->state, c->keys);
    double share = bench_random_share(&c->state);
    uint64_t low = 0, high = c->keys - 1;
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        if (c->shares[middle] <= share)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

double *bench_zipf_shares(uint64_t n, double skew, struct mcfs_error *err)
{
    double *shares = malloc(n * sizeof(*shares)), sum = 0;
    if (!shares) {
        mcfs_fail_errno(err, ENOMEM, "shares of %" PRIu64 " keys", n);
        return NULL;
    }
    for (uint64_t i = 0; i < n; i++)
        shares[i] = sum += pow((double)(i + 1), -skew);
    for (uint64_t i = 0; i < n; i++)
        shares[i] /= sum;
    return shares;
}
