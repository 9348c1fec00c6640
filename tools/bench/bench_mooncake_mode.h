/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_BENCH_MOONCAKE_MODE_H
#define MCFS_BENCH_MOONCAKE_MODE_H

/* `bench backend mooncake`: argv[0] is that word.  Returns the exit status. */
int bench_mooncake(int argc, char **argv);

#endif
