/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_BENCH_DATA_H
#define MCFS_BENCH_DATA_H

/* Values that say which key they belong to, and orders in which keys are chosen. */

#include <mooncakefs/error.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The bytes of a key's value, and whether a value is that; seed tells a key's values apart. */
void bench_data_fill(void *to, size_t len, uint64_t seed);
bool bench_data_is(const void *value, size_t len, uint64_t seed);

/* A number from 0 to below n, of a sequence that its state decides. */
uint64_t bench_random_below(uint64_t *state, uint64_t n);

/* The same from 0 to below 1. */
double bench_random_share(uint64_t *state);

enum bench_pattern { BENCH_SEQUENTIAL, BENCH_UNIFORM, BENCH_ZIPF };

/* The order in which one thread chooses keys. */
struct bench_chooser {
    enum bench_pattern pattern;
    uint64_t keys, state, next;
    const double *shares; /* zipf: what falls to this key and those before it */
};

uint64_t bench_choose(struct bench_chooser *c);

/* For zipf: shares of n keys, malloc'ed. */
double *bench_zipf_shares(uint64_t n, double skew, struct mcfs_error *err);

#endif
