/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_MASTER_SOFT_PIN_H
#define MCFS_MASTER_SOFT_PIN_H

/*
 * Soft pins: until when an object is to be kept if anything else can go.  They are few and die with
 * the master (no snapshot holds them), so they lie beside the records, by slot.  Own lock,
 * innermost.
 */

#include <stdbool.h>
#include <stdint.h>

struct soft_pins;

struct soft_pins *soft_pins_new(void);
void soft_pins_free(struct soft_pins *t);

/* Pins a slot for so long from now; 0 or -1 without memory. */
int soft_pin_set(struct soft_pins *t, uint32_t slot, uint64_t ms);

/* Milliseconds that are left; 0: not pinned. */
uint64_t soft_pin_left_ms(struct soft_pins *t, uint32_t slot);

void soft_pin_drop(struct soft_pins *t, uint32_t slot);

#endif
