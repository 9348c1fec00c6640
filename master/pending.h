/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_MASTER_PENDING_H
#define MCFS_MASTER_PENDING_H

/* Puts between PutStart and PutEnd, by version.  Own locks, innermost. */

#include <mooncakefs/object.h>
#include <stdbool.h>
#include <stdint.h>

struct pending_table;

struct pending_put {
    uint64_t version, size;
    int64_t start_wall_ms, start_mono_ms;
    uint32_t client;
    uint32_t tenant; /* interned */
    uint32_t key_len;
    char key[];
};

struct pending_table *pending_new(void);
void pending_free(struct pending_table *t);

/* Takes the put over; 0 or -1 without memory. */
int pending_add(struct pending_table *t, struct pending_put *p);

/* A copy of the fixed part of a pending put; false when there is none. */
bool pending_get(struct pending_table *t, uint64_t version, struct pending_put *out);

/* Whether another client's put of this key began after oldest_mono_ms and has not ended. */
bool pending_has_key(struct pending_table *t, uint32_t tenant, struct mcfs_slice key,
                     int64_t oldest_mono_ms);

/* Forgets one; returns whether it was there. */
bool pending_drop(struct pending_table *t, uint64_t version);

/* Forgets those that began before a time; returns how many. */
uint32_t pending_expire(struct pending_table *t, int64_t before_mono_ms);

uint64_t pending_count(struct pending_table *t);

#endif
