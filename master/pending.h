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
    uint64_t reserved; /* bytes set aside of the tenant's quota */
    int64_t start_wall_ms, start_mono_ms;
    uint32_t client;
    uint32_t tenant; /* interned */
    uint32_t key_len;
    bool discarded; /* given up; waits for the release time */
    bool in_memory; /* its ranges are in put_spaces (object_memory.h) */
    /* What the object gets, see struct put_start. */
    bool hard_pin, has_soft_pin, has_group;
    uint8_t group_len;
    char group[255];
    uint64_t soft_pin_ms;
    char key[];
};

struct pending_table *pending_new(void);
void pending_free(struct pending_table *t);

/* Takes the put over; 0 or -1 without memory. */
int pending_add(struct pending_table *t, struct pending_put *p);

/* A copy of the fixed part of a pending put; false when there is none. */
bool pending_get(struct pending_table *t, uint64_t version, struct pending_put *out);

/* Whether a put of this key began after oldest_mono_ms, has not ended and is not given up. */
bool pending_has_key(struct pending_table *t, uint32_t tenant, struct mcfs_slice key,
                     int64_t oldest_mono_ms);

/* Forgets one; returns whether it was there. */
bool pending_drop(struct pending_table *t, uint64_t version);

/* Marks those that began before discard_mono_ms as given up, and forgets those that began before
 * release_mono_ms, after it has called fn (which may be NULL) for each; returns how many it forgot.
 */
uint32_t pending_expire(struct pending_table *t, int64_t discard_mono_ms, int64_t release_mono_ms,
                        void (*fn)(const struct pending_put *p, void *arg), void *arg);

/* How many there are: given up, or still awaited. */
uint64_t pending_count(struct pending_table *t, bool discarded);

#endif
