/* SPDX-License-Identifier: Apache-2.0 */
#include "master/gate.h"

#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

static atomic_uint next_slot;

static unsigned my_slot(void)
{
    static _Thread_local unsigned slot = UINT_MAX;
    if (slot == UINT_MAX)
        slot = atomic_fetch_add(&next_slot, 1) % GATE_SLOTS;
    return slot;
}

unsigned gate_enter(struct gate *g)
{
    unsigned slot = my_slot();
    for (;;) {
        atomic_fetch_add(&g->slots[slot].inside, 1);
        if (!atomic_load(&g->closed))
            return slot;
        atomic_fetch_sub(&g->slots[slot].inside, 1);
        syscall(SYS_futex, &g->closed, FUTEX_WAIT_PRIVATE, 1, NULL, NULL, 0);
    }
}

void gate_leave(struct gate *g, unsigned slot)
{
    atomic_fetch_sub(&g->slots[slot].inside, 1);
}

void gate_close(struct gate *g)
{
    atomic_store(&g->closed, 1);
    for (unsigned i = 0; i < GATE_SLOTS; i++)
        while (atomic_load(&g->slots[i].inside))
            sched_yield(); /* requests inside are microseconds from their end */
}

void gate_open(struct gate *g)
{
    atomic_store(&g->closed, 0);
    syscall(SYS_futex, &g->closed, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}
