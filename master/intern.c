/* SPDX-License-Identifier: Apache-2.0 */
#include "master/intern.h"

#include "common/cleanup.h"
#include "common/hash.h"
#include "common/table.h"

#include <stdatomic.h>
#include <sys/mman.h>

struct entry {
    uint32_t number, len;
    char bytes[];
};

struct intern {
    pthread_rwlock_t lock; /* guards table and growth */
    struct mcfs_table table;
    struct entry **entries; /* address space for all; touched as used */
    uint32_t limit;
    atomic_uint count;
    atomic_uint recent; /* found last, most likely asked for next; entries stay where they are */
};

static uint64_t entry_hash(const void *e)
{
    const struct entry *entry = e;
    return mcfs_hash(entry->bytes, entry->len);
}

static bool entry_eq(const void *e, const void *key)
{
    const struct entry *entry = e;
    return mcfs_slice_eq(mcfs_slice(entry->bytes, entry->len), *(const struct mcfs_slice *)key);
}

struct intern *intern_new(uint32_t limit)
{
    struct intern *t = calloc(1, sizeof(*t));
    if (!t)
        return NULL;
    t->entries = mmap(NULL, ((size_t)limit + 1) * sizeof(*t->entries), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (t->entries == MAP_FAILED) {
        free(t);
        return NULL;
    }
    t->limit = limit;
    t->table = (struct mcfs_table)MCFS_TABLE_INIT(entry_hash);
    pthread_rwlock_init(&t->lock, NULL);
    return t;
}

void intern_free(struct intern *t)
{
    if (!t)
        return;
    for (uint32_t i = 1; i <= atomic_load(&t->count); i++)
        free(t->entries[i]);
    munmap(t->entries, ((size_t)t->limit + 1) * sizeof(*t->entries));
    mcfs_table_free(&t->table);
    pthread_rwlock_destroy(&t->lock);
    free(t);
}

uint32_t intern_find(struct intern *t, struct mcfs_slice s)
{
    uint32_t recent = atomic_load(&t->recent);
    if (recent && entry_eq(t->entries[recent], &s))
        return recent;
    pthread_rwlock_rdlock(&t->lock);
    struct entry *e = mcfs_table_find(&t->table, mcfs_hash(s.data, s.len), entry_eq, &s);
    pthread_rwlock_unlock(&t->lock);
    if (e)
        atomic_store(&t->recent, e->number);
    return e ? e->number : 0;
}

uint32_t intern_put(struct intern *t, struct mcfs_slice s)
{
    uint32_t number = intern_find(t, s);
    if (number)
        return number;
    pthread_rwlock_wrlock(&t->lock);
    struct entry *e = mcfs_table_find(&t->table, mcfs_hash(s.data, s.len), entry_eq, &s);
    if (!e && atomic_load(&t->count) < t->limit && (e = malloc(sizeof(*e) + s.len))) {
        e->number = atomic_load(&t->count) + 1;
        e->len = (uint32_t)s.len;
        memcpy(e->bytes, s.data, s.len);
        if (mcfs_table_add(&t->table, e)) {
            free(e);
            e = NULL;
        } else {
            t->entries[e->number] = e;
            atomic_store(&t->count, e->number);
        }
    }
    pthread_rwlock_unlock(&t->lock);
    return e ? e->number : 0;
}

struct mcfs_slice intern_get(const struct intern *t, uint32_t number)
{
    if (number == 0 || number > atomic_load(&t->count))
        return (struct mcfs_slice){NULL, 0};
    const struct entry *e = t->entries[number];
    return mcfs_slice(e->bytes, e->len);
}

uint32_t intern_count(const struct intern *t)
{
    return atomic_load(&t->count);
}
