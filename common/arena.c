/* SPDX-License-Identifier: Apache-2.0 */
#include "common/arena.h"

#include "common/cleanup.h"
#include "common/huge_pages.h"

#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

#define STEP (2u << 20)
#define CLASSES 192
#define NONE UINT32_MAX
#define STRIPES_MAX 256u

/* Size classes in units: every number up to 64, then four steps per doubling. */
static uint32_t class_of(uint32_t units)
{
    if (units <= 64)
        return units;
    uint32_t log = 31u - (uint32_t)__builtin_clz(units - 1);
    uint32_t step = (units - 1) >> (log - 2); /* 4..7 */
    return 64 + (log - 6) * 4 + (step - 4) + 1;
}

static uint32_t class_units(uint32_t class)
{
    if (class <= 64)
        return class;
    uint32_t log = (class - 65) / 4 + 6, step = (class - 65) % 4 + 4;
    return (step + 1) << (log - 2);
}

struct slab {
    uint32_t next, prev;  /* among the partly used slabs of stripe and class, or the free ones */
    uint32_t free_head;   /* first free block: offset in units from the slab's start, or NONE */
    uint16_t count, live; /* blocks: that it has; that are in use */
    uint16_t fresh;       /* blocks that have never been handed out start here */
    uint8_t class;
    uint8_t stripe; /* whose it is; as long as a block of it is in use */
};

struct stripe {
    pthread_mutex_t lock;
    uint32_t partial[CLASSES]; /* slab with a free block, by class */
};

struct arena {
    uint8_t *base;
    uint64_t reserve_bytes;
    uint32_t unit_bytes, slab_bytes, slab_units, slabs_per_step, stripe_count;
    unsigned slab_shift; /* a slab has 2^this units */
    bool lazy;
    struct slab *slabs; /* one per slab of the reservation, untouched until used */
    size_t slabs_bytes;
    struct stripe *stripes;

    pthread_mutex_t lock; /* guards what follows; inside a stripe's lock */
    uint32_t free_slabs;  /* list */
    uint32_t next_slab;   /* never used from here on */
    uint32_t slab_count;
    uint16_t *step_live; /* slabs in use, by step */
    _Atomic uint64_t resident;
};

static int get_memory(struct arena *a)
{
    a->base = mcfs_huge_reserve(a->reserve_bytes);
    void *slabs = mmap(NULL, a->slabs_bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    a->slabs = slabs == MAP_FAILED ? NULL : slabs;
    a->stripes = calloc(a->stripe_count, sizeof(*a->stripes));
    a->step_live = calloc(a->reserve_bytes / STEP, sizeof(*a->step_live));
    return a->base && a->slabs && a->stripes && a->step_live ? 0 : -1;
}

struct arena *arena_new(const struct arena_config *config, struct mcfs_error *err)
{
    struct arena *a = calloc(1, sizeof(*a));
    if (!a) {
        mcfs_fail_errno(err, ENOMEM, "arena");
        return NULL;
    }
    a->reserve_bytes = config->reserve_bytes & ~(uint64_t)(STEP - 1);
    a->unit_bytes = config->unit_bytes;
    a->slab_bytes = config->slab_bytes;
    a->lazy = config->lazy;
    a->slab_units = config->slab_bytes / config->unit_bytes;
    a->slab_shift = (unsigned)__builtin_ctz(a->slab_units);
    a->slabs_per_step = STEP / config->slab_bytes;
    a->stripe_count = config->stripes < STRIPES_MAX ? config->stripes : STRIPES_MAX;
    a->slab_count = (uint32_t)(a->reserve_bytes / config->slab_bytes);
    a->slabs_bytes = (size_t)a->slab_count * sizeof(struct slab);
    a->free_slabs = NONE;
    pthread_mutex_init(&a->lock, NULL);
    int rc = get_memory(a);
    for (uint32_t i = 0; a->stripes && i < a->stripe_count; i++) {
        pthread_mutex_init(&a->stripes[i].lock, NULL);
        for (uint32_t c = 0; c < CLASSES; c++)
            a->stripes[i].partial[c] = NONE;
    }
    if (rc == 0)
        return a;
    mcfs_fail_errno(err, ENOMEM, "cannot reserve %llu bytes of address space",
                    (unsigned long long)a->reserve_bytes);
    arena_free_all(a);
    return NULL;
}

void arena_free_all(struct arena *a)
{
    if (!a)
        return;
    if (a->base)
        munmap(a->base, a->reserve_bytes);
    if (a->slabs)
        munmap(a->slabs, a->slabs_bytes);
    for (uint32_t i = 0; a->stripes && i < a->stripe_count; i++)
        pthread_mutex_destroy(&a->stripes[i].lock);
    free(a->stripes);
    free(a->step_live);
    pthread_mutex_destroy(&a->lock);
    free(a);
}

/* A slab from the pool; NONE when there is no more. */
static uint32_t take_slab(struct arena *a)
{
    MCFS_LOCK_SCOPE(&a->lock);
    uint32_t s = a->free_slabs;
    if (s != NONE) {
        a->free_slabs = a->slabs[s].next;
        if (a->free_slabs != NONE)
            a->slabs[a->free_slabs].prev = NONE;
    } else if (a->next_slab < a->slab_count) {
        s = a->next_slab;
        if (s % a->slabs_per_step == 0) {
            void *step = a->base + (uint64_t)s * a->slab_bytes;
            if (mprotect(step, STEP, PROT_READ | PROT_WRITE))
                return NONE;
            madvise(step, STEP, MADV_HUGEPAGE); /* a kernel without it works, slower */
        }
        a->next_slab++;
    } else {
        return NONE;
    }
    if (a->step_live[s / a->slabs_per_step]++ == 0)
        atomic_fetch_add(&a->resident, STEP);
    return s;
}

static void give_slab(struct arena *a, uint32_t s)
{
    MCFS_LOCK_SCOPE(&a->lock);
    a->slabs[s].next = a->free_slabs;
    a->slabs[s].prev = NONE;
    if (a->free_slabs != NONE)
        a->slabs[a->free_slabs].prev = s;
    a->free_slabs = s;
    uint32_t step = s / a->slabs_per_step;
    if (--a->step_live[step] == 0) {
        madvise(a->base + (uint64_t)step * STEP, STEP, a->lazy ? MADV_FREE : MADV_DONTNEED);
        atomic_fetch_sub(&a->resident, STEP);
    }
}

static void list_add(struct arena *a, uint32_t *head, uint32_t s)
{
    a->slabs[s].next = *head;
    a->slabs[s].prev = NONE;
    if (*head != NONE)
        a->slabs[*head].prev = s;
    *head = s;
}

static void list_del(struct arena *a, uint32_t *head, uint32_t s)
{
    struct slab *slab = &a->slabs[s];
    if (slab->prev != NONE)
        a->slabs[slab->prev].next = slab->next;
    else
        *head = slab->next;
    if (slab->next != NONE)
        a->slabs[slab->next].prev = slab->prev;
}

static uint32_t *block_link(struct arena *a, uint32_t block)
{
    return (uint32_t *)(void *)(a->base + (uint64_t)block * a->unit_bytes);
}

uint32_t arena_alloc(struct arena *a, uint32_t stripe_index, uint32_t bytes)
{
    uint32_t units = (bytes + a->unit_bytes - 1) / a->unit_bytes;
    uint32_t class = class_of(units ? units : 1), size = class_units(class);
    if (class >= CLASSES || size > a->slab_units)
        return 0;
    stripe_index %= a->stripe_count;
    struct stripe *st = &a->stripes[stripe_index];
    MCFS_LOCK_SCOPE(&st->lock);
    uint32_t s = st->partial[class];
    if (s == NONE) {
        s = take_slab(a);
        if (s == 0 && size > a->slab_units / 2)
            s = take_slab(a); /* the first slab has no second block: it stays unused */
        if (s == NONE)
            return 0;
        a->slabs[s] = (struct slab){.free_head = NONE,
                                    .count = (uint16_t)(a->slab_units / size),
                                    .class = (uint8_t) class,
                                    .stripe = (uint8_t)stripe_index};
        /* Block 0 stands for "none". */
        if (s == 0)
            a->slabs[s].fresh = a->slabs[s].live = 1;
        list_add(a, &st->partial[class], s);
    }
    struct slab *slab = &a->slabs[s];
    uint32_t first = s << a->slab_shift, block;
    if (slab->free_head != NONE) {
        block = first + slab->free_head;
        slab->free_head = *block_link(a, block);
    } else {
        block = first + slab->fresh++ * size;
    }
    slab->live++;
    if (slab->free_head == NONE && slab->fresh == slab->count)
        list_del(a, &st->partial[class], s);
    return block;
}

uint32_t arena_block_bytes(const struct arena *a, uint32_t block)
{
    return class_units(a->slabs[block >> a->slab_shift].class) * a->unit_bytes;
}

void arena_free(struct arena *a, uint32_t block)
{
    uint32_t s = block >> a->slab_shift;
    struct slab *slab = &a->slabs[s];
    /* A slab's stripe stays for as long as one of its blocks is in use, as this one is: it is read
     * without a lock. */
    struct stripe *st = &a->stripes[slab->stripe];
    MCFS_LOCK_SCOPE(&st->lock);
    uint8_t class = slab->class;
    bool was_full = slab->free_head == NONE && slab->fresh == slab->count;
    *block_link(a, block) = slab->free_head;
    slab->free_head = block - (s << a->slab_shift);
    slab->live--;
    if (was_full)
        list_add(a, &st->partial[class], s);
    if (slab->live == 0) {
        list_del(a, &st->partial[class], s);
        give_slab(a, s);
    }
}

void *arena_base(const struct arena *a)
{
    return a->base;
}

bool arena_holds(const struct arena *a, const void *p)
{
    return (const uint8_t *)p >= a->base && (const uint8_t *)p < a->base + a->reserve_bytes;
}

uint64_t arena_resident_bytes(const struct arena *a)
{
    return atomic_load(&a->resident);
}

void arena_collapse(struct arena *a)
{
    uint32_t steps;
    {
        MCFS_LOCK_SCOPE(&a->lock);
        steps = (a->next_slab + a->slabs_per_step - 1) / a->slabs_per_step;
    }
    for (uint32_t i = 0; i < steps; i++) {
        bool used;
        {
            MCFS_LOCK_SCOPE(&a->lock);
            used = a->step_live[i];
        }
        /* Not under the lock, which every request may need: collapsing a step that has just become
         * free costs 2 MiB until it is used again. */
        if (used)
            madvise(a->base + (uint64_t)i * STEP, STEP, MADV_COLLAPSE);
    }
}
