/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/opened.h"

#include "common/cleanup.h"

#include <stdint.h>

static struct opened_list *list_of(struct opened_lists *l, const struct opened *o)
{
    return &l->lists[(uintptr_t)o / 64 % OPENED_LISTS];
}

void opened_init(struct opened_lists *l)
{
    for (unsigned i = 0; i < OPENED_LISTS; i++)
        pthread_mutex_init(&l->lists[i].lock, NULL);
}

void opened_add(struct opened_lists *l, struct opened *o)
{
    struct opened_list *list = list_of(l, o);
    MCFS_LOCK_SCOPE(&list->lock);
    o->prev = NULL;
    o->next = list->first;
    if (o->next)
        o->next->prev = o;
    list->first = o;
}

void opened_remove(struct opened_lists *l, struct opened *o)
{
    struct opened_list *list = list_of(l, o);
    MCFS_LOCK_SCOPE(&list->lock);
    if (o->next)
        o->next->prev = o->prev;
    *(o->prev ? &o->prev->next : &list->first) = o->next;
}

void opened_release_all(struct opened_lists *l, struct fs *fs)
{
    for (unsigned i = 0; i < OPENED_LISTS; i++)
        while (l->lists[i].first)
            l->lists[i].first->release(fs, l->lists[i].first);
}
