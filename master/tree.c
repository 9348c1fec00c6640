/* SPDX-License-Identifier: Apache-2.0 */
#include "master/tree.h"

#include "common/cleanup.h"
#include "common/hash.h"
#include "master/big_array.h"

#define DIR_UNIT 16
#define TABLES 256
#define HOLE 0x40000000u /* entry of an unused place; low bits: the next one + 1 */
#define INLINE_CHILDREN 2

struct dir {
    uint32_t parent; /* 0 for a tenant's root */
    uint32_t tenant;
    uint32_t place; /* in the parent's array */
    uint32_t count; /* children there are */
    uint32_t used;  /* places used so far, holes included */
    uint32_t cap;
    uint32_t hole; /* first unused place + 1, or 0 */
    uint32_t name_len;
    uint32_t subdirs; /* children that are directories */
    int64_t mtime_ns;
    union {
        uint32_t few[INLINE_CHILDREN];
        uint32_t *many;
    };
    char name[];
};

/* Buckets of directory numbers by hash of (parent, name): open addressing, doubling. */
struct dir_table {
    uint32_t *slots;
    uint32_t mask, count;
};

struct tree {
    pthread_mutex_t lock;
    struct arena *arena;
    uint8_t *base;
    struct dir_table tables[TABLES];
    uint64_t count;
    struct {
        uint32_t dir, tenant; /* dir 0: none */
        size_t len;
        char path[256];
    } recent; /* what tree_dir found last: names come in the order of their directories */
};

static struct dir *at(const struct tree *t, uint32_t dir)
{
    return (struct dir *)(void *)(t->base + (uint64_t)dir * DIR_UNIT);
}

static uint32_t *children(struct dir *d)
{
    return d->cap > INLINE_CHILDREN ? d->many : d->few;
}

static size_t bytes_of(uint32_t children)
{
    return (size_t)children * sizeof(uint32_t);
}

static void free_children(struct dir *d)
{
    if (d->cap > INLINE_CHILDREN)
        big_array_free(d->many, bytes_of(d->cap));
}

static uint64_t name_hash(uint32_t parent, uint32_t tenant, struct mcfs_slice name)
{
    return mcfs_hash_seed(name.data, name.len, parent ? parent : (uint64_t)tenant << 32);
}

static uint64_t dir_hash(const struct dir *d)
{
    return name_hash(d->parent, d->tenant, mcfs_slice(d->name, d->name_len));
}

struct tree *tree_new(struct mcfs_error *err)
{
    struct tree *t = calloc(1, sizeof(*t));
    struct arena_config config = {
        .reserve_bytes = 32ull << 30, .unit_bytes = DIR_UNIT, .slab_bytes = 64 << 10, .stripes = 1};
    if (!t || !(t->arena = arena_new(&config, err))) {
        free(t);
        return NULL;
    }
    t->base = arena_base(t->arena);
    pthread_mutex_init(&t->lock, NULL);
    return t;
}

void tree_free(struct tree *t)
{
    if (!t)
        return;
    for (unsigned i = 0; i < TABLES; i++) {
        struct dir_table *table = &t->tables[i];
        for (uint32_t k = 0; table->slots && k <= table->mask; k++)
            if (table->slots[k])
                free_children(at(t, table->slots[k]));
        free(table->slots);
    }
    arena_free_all(t->arena);
    pthread_mutex_destroy(&t->lock);
    free(t);
}

void tree_lock(struct tree *t)
{
    pthread_mutex_lock(&t->lock);
}

void tree_unlock(struct tree *t)
{
    pthread_mutex_unlock(&t->lock);
}

static struct dir_table *table_of(struct tree *t, uint64_t hash)
{
    return &t->tables[hash >> 56];
}

static uint32_t find(struct tree *t, uint32_t parent, uint32_t tenant, struct mcfs_slice name)
{
    uint64_t hash = name_hash(parent, tenant, name);
    struct dir_table *table = table_of(t, hash);
    if (!table->slots)
        return 0;
    for (uint32_t i = (uint32_t)hash & table->mask; table->slots[i]; i = (i + 1) & table->mask) {
        struct dir *d = at(t, table->slots[i]);
        if (d->parent == parent && d->tenant == tenant &&
            mcfs_slice_eq(mcfs_slice(d->name, d->name_len), name))
            return table->slots[i];
    }
    return 0;
}

static void table_place(struct tree *t, struct dir_table *table, uint32_t dir)
{
    uint32_t i = (uint32_t)dir_hash(at(t, dir)) & table->mask;
    while (table->slots[i])
        i = (i + 1) & table->mask;
    table->slots[i] = dir;
}

static int table_add(struct tree *t, uint32_t dir)
{
    struct dir_table *table = table_of(t, dir_hash(at(t, dir)));
    if (!table->slots || (table->count + 1) * 4 > (table->mask + 1) * 3) {
        uint32_t size = table->slots ? (table->mask + 1) * 2 : 8;
        struct dir_table bigger = {calloc(size, sizeof(uint32_t)), size - 1, table->count};
        if (!bigger.slots)
            return -1;
        for (uint32_t i = 0; table->slots && i <= table->mask; i++)
            if (table->slots[i])
                table_place(t, &bigger, table->slots[i]);
        free(table->slots);
        *table = bigger;
    }
    table_place(t, table, dir);
    table->count++;
    return 0;
}

static void table_del(struct tree *t, uint32_t dir)
{
    uint64_t hash = dir_hash(at(t, dir));
    struct dir_table *table = table_of(t, hash);
    uint32_t i = (uint32_t)hash & table->mask;
    while (table->slots[i] != dir)
        i = (i + 1) & table->mask;
    for (uint32_t j = (i + 1) & table->mask; table->slots[j]; j = (j + 1) & table->mask) {
        uint32_t home = (uint32_t)dir_hash(at(t, table->slots[j])) & table->mask;
        if (((j - home) & table->mask) >= ((j - i) & table->mask)) {
            table->slots[i] = table->slots[j];
            i = j;
        }
    }
    table->slots[i] = 0;
    table->count--;
}

static uint32_t add_child(struct dir *d, uint32_t child)
{
    uint32_t place;
    if (d->hole) {
        place = d->hole - 1;
        d->hole = children(d)[place] & ~HOLE;
    } else {
        if (d->used == d->cap) {
            uint32_t cap = d->cap ? d->cap * 2 : INLINE_CHILDREN;
            if (cap > INLINE_CHILDREN) {
                uint32_t *old = d->cap > INLINE_CHILDREN ? d->many : NULL;
                uint32_t *many = big_array_grow(old, bytes_of(d->cap), bytes_of(cap));
                if (!many)
                    return UINT32_MAX;
                if (!old)
                    memcpy(many, d->few, sizeof(d->few));
                d->many = many;
            }
            d->cap = cap;
        }
        place = d->used++;
    }
    children(d)[place] = child;
    d->count++;
    d->subdirs += child >> 31;
    return place;
}

static uint32_t make_dir(struct tree *t, uint32_t parent, uint32_t tenant, struct mcfs_slice name)
{
    uint32_t dir = arena_alloc(t->arena, 0, (uint32_t)(sizeof(struct dir) + name.len));
    if (!dir)
        return 0;
    struct dir *d = at(t, dir);
    *d = (struct dir){.parent = parent, .tenant = tenant, .name_len = (uint32_t)name.len};
    memcpy(d->name, name.data, name.len);
    if (parent) {
        d->place = add_child(at(t, parent), dir | TREE_CHILD_DIR);
        if (d->place == UINT32_MAX) {
            arena_free(t->arena, dir);
            return 0;
        }
    }
    if (table_add(t, dir)) {
        if (parent) {
            at(t, parent)->subdirs--;
            tree_del(t, parent, d->place, at(t, parent)->mtime_ns);
        }
        arena_free(t->arena, dir);
        return 0;
    }
    t->count++;
    return dir;
}

uint32_t tree_root(struct tree *t, uint32_t tenant)
{
    struct mcfs_slice none = {"", 0};
    uint32_t dir = find(t, 0, tenant, none);
    return dir ? dir : make_dir(t, 0, tenant, none);
}

static bool is_recent(const struct tree *t, uint32_t tenant, struct mcfs_slice prefix)
{
    return t->recent.dir && t->recent.tenant == tenant &&
           mcfs_slice_eq(mcfs_slice(t->recent.path, t->recent.len), prefix);
}

static void note_recent(struct tree *t, uint32_t tenant, struct mcfs_slice prefix, uint32_t dir)
{
    if (prefix.len > sizeof(t->recent.path))
        return;
    t->recent.dir = dir;
    t->recent.tenant = tenant;
    t->recent.len = prefix.len;
    memcpy(t->recent.path, prefix.data, prefix.len);
}

uint32_t tree_dir(struct tree *t, uint32_t tenant, struct mcfs_slice path, bool make)
{
    const char *slash = path.len ? memrchr(path.data, '/', path.len) : NULL;
    struct mcfs_slice prefix =
        mcfs_slice(path.data, slash ? (size_t)(slash + 1 - (const char *)path.data) : 0);
    if (is_recent(t, tenant, prefix))
        return t->recent.dir;
    uint32_t dir = tree_root(t, tenant);
    const char *p = path.data, *end = path.data + path.len;
    while (dir && p < end && (slash = memchr(p, '/', (size_t)(end - p)))) {
        struct mcfs_slice name = mcfs_slice(p, (size_t)(slash - p));
        uint32_t parent = dir;
        dir = find(t, parent, tenant, name);
        if (!dir && make)
            dir = make_dir(t, parent, tenant, name);
        if (!dir && make)
            tree_prune(t, parent);
        p = slash + 1;
    }
    if (dir)
        note_recent(t, tenant, prefix, dir);
    return dir;
}

uint32_t tree_subdir(struct tree *t, uint32_t parent, struct mcfs_slice name)
{
    return find(t, parent, at(t, parent)->tenant, name);
}

uint32_t tree_add(struct tree *t, uint32_t dir, uint32_t slot, int64_t now_ns)
{
    struct dir *d = at(t, dir);
    uint32_t place = add_child(d, slot);
    if (place != UINT32_MAX)
        d->mtime_ns = now_ns;
    return place;
}

void tree_prune(struct tree *t, uint32_t dir)
{
    while (dir) {
        struct dir *d = at(t, dir);
        uint32_t parent = d->parent, place = d->place;
        if (d->count || !parent)
            return;
        table_del(t, dir);
        free_children(d);
        if (t->recent.dir == dir)
            t->recent.dir = 0;
        arena_free(t->arena, dir);
        t->count--;
        struct dir *up = at(t, parent);
        children(up)[place] = HOLE | up->hole;
        up->hole = place + 1;
        up->count--;
        up->subdirs--;
        dir = parent;
    }
}

void tree_del(struct tree *t, uint32_t dir, uint32_t place, int64_t now_ns)
{
    struct dir *d = at(t, dir);
    children(d)[place] = HOLE | d->hole;
    d->hole = place + 1;
    d->count--;
    d->mtime_ns = now_ns;
    tree_prune(t, dir);
}

bool tree_has_subdirs(struct tree *t, uint32_t dir)
{
    return at(t, dir)->subdirs > 0;
}

uint32_t tree_peek(struct tree *t, uint32_t dir, uint32_t place)
{
    struct dir *d = at(t, dir);
    uint32_t child = place < d->used ? children(d)[place] : 0;
    return child & TREE_CHILD_DIR || !(child & HOLE) ? child : 0;
}

uint32_t tree_next(struct tree *t, uint32_t dir, uint32_t *place)
{
    struct dir *d = at(t, dir);
    while (*place < d->used) {
        uint32_t child = children(d)[(*place)++];
        if (child & TREE_CHILD_DIR || !(child & HOLE))
            return child;
    }
    return 0;
}

struct mcfs_slice tree_name(struct tree *t, uint32_t dir)
{
    struct dir *d = at(t, dir);
    return mcfs_slice(d->name, d->name_len);
}

int64_t tree_mtime_ns(struct tree *t, uint32_t dir)
{
    return at(t, dir)->mtime_ns;
}

uint32_t tree_children(struct tree *t, uint32_t dir)
{
    return at(t, dir)->count;
}

uint64_t tree_count(struct tree *t)
{
    return t->count;
}
