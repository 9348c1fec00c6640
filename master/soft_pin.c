/* SPDX-License-Identifier: Apache-2.0 */
#include "master/soft_pin.h"

#include "common/cleanup.h"
#include "common/clock.h"
#include "common/hash.h"
#include "common/table.h"

#include <pthread.h>

struct pin {
    uint32_t slot;
    int64_t until_ms; /* mcfs_mono_ms() time */
};

struct soft_pins {
    pthread_mutex_t lock;
    struct mcfs_table table;
};

static uint64_t pin_hash(const void *e)
{
    return mcfs_hash(&((const struct pin *)e)->slot, sizeof(uint32_t));
}

static bool pin_eq(const void *e, const void *key)
{
    return ((const struct pin *)e)->slot == *(const uint32_t *)key;
}

static struct pin *find(struct soft_pins *t, uint32_t slot)
{
    return mcfs_table_find(&t->table, mcfs_hash(&slot, sizeof(slot)), pin_eq, &slot);
}

struct soft_pins *soft_pins_new(void)
{
    struct soft_pins *t = calloc(1, sizeof(*t));
    if (t) {
        pthread_mutex_init(&t->lock, NULL);
        t->table = (struct mcfs_table)MCFS_TABLE_INIT(pin_hash);
    }
    return t;
}

void soft_pins_free(struct soft_pins *t)
{
    if (!t)
        return;
    struct pin *p;
    for (size_t i = 0; (p = mcfs_table_next(&t->table, &i));)
        free(p);
    mcfs_table_free(&t->table);
    pthread_mutex_destroy(&t->lock);
    free(t);
}

int soft_pin_set(struct soft_pins *t, uint32_t slot, uint64_t ms)
{
    MCFS_LOCK_SCOPE(&t->lock);
    struct pin *p = find(t, slot);
    bool is_new = !p;
    if (is_new && !(p = malloc(sizeof(*p))))
        return -1;
    *p = (struct pin){slot, mcfs_mono_ms() + (int64_t)ms};
    if (is_new && mcfs_table_add(&t->table, p)) {
        free(p);
        return -1;
    }
    return 0;
}

uint64_t soft_pin_left_ms(struct soft_pins *t, uint32_t slot)
{
    MCFS_LOCK_SCOPE(&t->lock);
    const struct pin *p = find(t, slot);
    int64_t left = p ? p->until_ms - mcfs_mono_ms() : 0;
    return left > 0 ? (uint64_t)left : 0;
}

void soft_pin_drop(struct soft_pins *t, uint32_t slot)
{
    MCFS_LOCK_SCOPE(&t->lock);
    struct pin *p = find(t, slot);
    if (p && mcfs_table_del(&t->table, p))
        free(p);
}
