/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_MASTER_COPIED_H
#define MCFS_MASTER_COPIED_H

/*
 * What a checkpoint costs in memory: of a directory that has been forked, the bytes that this
 * process has to itself, because the other one has changed its copy since (/proc/PID/smaps,
 * proc(5)).  0 where the kernel does not say.
 */

#include "master/directory.h"

uint64_t copied_bytes(const struct directory *d);

#endif
