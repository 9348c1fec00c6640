/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_MASTER_INTERN_H
#define MCFS_MASTER_INTERN_H

/*
 * Byte strings that many objects share (tenant names, node ids, mode-uid-gid triples), kept once
 * and named by small numbers.  Numbers start at 1 and are never given back.  Any thread; looking a
 * number up takes no lock.
 */

#include <mooncakefs/object.h>
#include <stdint.h>

struct intern;

struct intern *intern_new(uint32_t limit);
void intern_free(struct intern *t);

/* Number of a string, made when it is new; 0 when the table is full or memory is short. */
uint32_t intern_put(struct intern *t, struct mcfs_slice s);

/* Number of a string that is there; 0 when it is not. */
uint32_t intern_find(struct intern *t, struct mcfs_slice s);

/* The string of a number that intern_put returned; valid until intern_free. */
struct mcfs_slice intern_get(const struct intern *t, uint32_t number);

uint32_t intern_count(const struct intern *t);

#endif
