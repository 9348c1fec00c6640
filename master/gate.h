/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_MASTER_GATE_H
#define MCFS_MASTER_GATE_H

/*
 * The snapshot lock.  Requests pass through it shared, on a counter of their own thread's slot, so
 * that passing costs one uncontended atomic; a checkpoint closes it, waits for those inside, forks
 * and opens it.
 */

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define GATE_SLOTS 64

struct gate {
    struct {
        _Alignas(64) atomic_uint inside;
    } slots[GATE_SLOTS];
    _Alignas(64) atomic_uint closed; /* futex */
};

/* Both return or take the slot that was used. */
unsigned gate_enter(struct gate *g);
void gate_leave(struct gate *g, unsigned slot);

/* One closer at a time. */
void gate_close(struct gate *g);
void gate_open(struct gate *g);

#endif
