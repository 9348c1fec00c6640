/* SPDX-License-Identifier: Apache-2.0 */
#include "backends/bucket/bucket_entry.h"

#include "common/arena.h"
#include "common/cleanup.h"

#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* The address sanitizer sees one mapping; it is told which blocks of it are free. */
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#define MARK_USED(p, n) ASAN_UNPOISON_MEMORY_REGION(p, n)
#define MARK_FREE(p, n) ASAN_POISON_MEMORY_REGION(p, n)
#else
#define MARK_USED(p, n) ((void)(p), (void)(n))
#define MARK_FREE(p, n) ((void)(p), (void)(n))
#endif

#define RESERVE (32ull << 30) /* what numbers of 32 bits reach; address space, not memory */
#define RESERVE_MIN (64ull << 20)
#define SLAB (16u << 10)
#define STRIPES 4u        /* threads that rarely meet; each has slabs that are used in part */
#define FAR_KEY_MIN 8192u /* longer than any that can be asked for: Mooncake's, or nonsense */

/* ---- the arena ---- */

static struct arena *arena;
char *entry_arena_base;

int entry_arena_init(struct mcfs_error *err)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    MCFS_LOCK_SCOPE(&lock);
    if (arena)
        return 0;
    struct mcfs_error why = MCFS_ERROR_INIT;
    /* Less where the process is not allowed so much address space. */
    for (uint64_t bytes = RESERVE; !arena && bytes >= RESERVE_MIN; bytes /= 2)
        arena = arena_new(&(struct arena_config){bytes, ENTRY_UNIT, SLAB, STRIPES, true}, &why);
    if (arena)
        entry_arena_base = arena_base(arena);
    else if (err)
        *err = why;
    return arena ? 0 : -1;
}

/* Each thread takes from a stripe of its own, as long as they are few. */
static uint32_t my_stripe(void)
{
    static _Atomic uint32_t next;
    static _Thread_local uint32_t mine;
    if (!mine)
        mine = atomic_fetch_add_explicit(&next, 1, memory_order_relaxed) % STRIPES + 1;
    return mine - 1;
}

static void *take(size_t bytes)
{
    uint32_t block = arena_alloc(arena, my_stripe(), (uint32_t)bytes);
    if (block)
        MARK_USED(entry_arena_at(block), arena_block_bytes(arena, block));
    return entry_arena_at(block);
}

static void give(uint32_t block)
{
    /* But for the first unit, in which the arena links what is free. */
    MARK_FREE((char *)entry_arena_at(block) + ENTRY_UNIT,
              arena_block_bytes(arena, block) - ENTRY_UNIT);
    arena_free(arena, block);
}

struct bucket *bucket_alloc(size_t bytes)
{
    void *b = take(bytes);
    return b ? memset(b, 0, bytes) : NULL;
}

void bucket_dealloc(struct bucket *b)
{
    give(entry_arena_number(b));
}

/* ---- mode and owner ---- */

struct owner {
    uint32_t mode, uid, gid;
};

/* They only become more: what is below the count does not change any more, and is read without the
 * lock.  Who comes when all numbers are taken has its owner in the entry. */
static struct owner owners[256];
static _Atomic unsigned owner_count;

static int find_owner(const struct owner *o, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        if (owners[i].mode == o->mode && owners[i].uid == o->uid && owners[i].gid == o->gid)
            return (int)i;
    return -1;
}

/* -1: it has no number, and gets none. */
static int owner_number(const struct owner *o)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    unsigned count = atomic_load_explicit(&owner_count, memory_order_acquire);
    int i = find_owner(o, count);
    if (i >= 0 || count == MCFS_ARRAY_SIZE(owners))
        return i;
    MCFS_LOCK_SCOPE(&lock);
    count = atomic_load(&owner_count);
    if ((i = find_owner(o, count)) >= 0 || count == MCFS_ARRAY_SIZE(owners))
        return i;
    owners[count] = *o;
    atomic_store_explicit(&owner_count, count + 1, memory_order_release);
    return (int)count;
}

/* ---- what is behind the fixed part ---- */

/* As they are kept where their owner has no number. */
struct whole_attr {
    int64_t mtime_ns;
    struct owner owner;
} __attribute__((packed));

static const uint8_t attr_bytes[] = {
    [ATTR_NO_TIME] = 0, [ATTR_TIME] = ENTRY_TIME_BYTES, [ATTR_WHOLE] = sizeof(struct whole_attr)};

/* A key that is too long for the arena. */
struct far_key {
    char *data;
    size_t len;
};

struct shape {
    enum entry_attr_kind kind;
    uint8_t owner;
    size_t bytes; /* of attributes and key */
};

static struct shape shape_of(const struct mcfs_attr *attr, size_t key_len)
{
    int number = owner_number(&(struct owner){attr->mode, attr->uid, attr->gid});
    enum entry_attr_kind kind = number < 0 ? ATTR_WHOLE : attr->mtime_ns ? ATTR_TIME : ATTR_NO_TIME;
    return (struct shape){kind, number < 0 ? 0 : (uint8_t)number,
                          attr_bytes[kind] +
                              (key_len < FAR_KEY_MIN ? key_len : sizeof(struct far_key))};
}

static uint32_t outside_block(const struct entry *e)
{
    uint32_t block = 0;
    if (e->outside)
        memcpy(&block, e->tail, sizeof(block));
    return block;
}

static const char *body_of(const struct entry *e)
{
    return e->outside ? entry_arena_at(outside_block(e)) : e->tail;
}

static uint32_t block_of(const struct entry *e)
{
    const struct evict_link *l = entry_link(e);
    return entry_arena_number(l ? (const void *)l : e);
}

/* Bytes that `tail` has: at least 4, a number's, as blocks are whole units. */
static size_t tail_room(const struct entry *e)
{
    return arena_block_bytes(arena, block_of(e)) - (e->has_link ? sizeof(struct evict_link) : 0) -
           offsetof(struct entry, tail);
}
_Static_assert(offsetof(struct entry, tail) % ENTRY_UNIT <= ENTRY_UNIT - sizeof(uint32_t),
               "no room for a number");
_Static_assert(sizeof(struct evict_link) % ENTRY_UNIT == 0, "entries are no blocks' units");

static struct far_key far_key_of(const struct entry *e)
{
    struct far_key far = {0};
    if (e->key_len == ENTRY_FAR_KEY)
        memcpy(&far, body_of(e) + attr_bytes[e->attr_kind], sizeof(far));
    return far;
}

struct mcfs_slice entry_key_elsewhere(const struct entry *e)
{
    if (e->key_len != ENTRY_FAR_KEY)
        return mcfs_slice(body_of(e) + attr_bytes[e->attr_kind], e->key_len);
    struct far_key far = far_key_of(e);
    return mcfs_slice(far.data, far.len);
}

struct mcfs_attr entry_attr(const struct entry *e)
{
    struct whole_attr a = {0};
    if (e->attr_kind == ATTR_TIME)
        memcpy(&a.mtime_ns, body_of(e), sizeof(a.mtime_ns));
    if (e->attr_kind == ATTR_WHOLE)
        memcpy(&a, body_of(e), sizeof(a));
    else
        a.owner = owners[e->owner];
    return (struct mcfs_attr){a.owner.mode, a.owner.uid, a.owner.gid, a.mtime_ns};
}

uint64_t entry_memory(const struct entry *e)
{
    return arena_block_bytes(arena, block_of(e)) +
           (e->outside ? arena_block_bytes(arena, outside_block(e)) : 0);
}

/* ---- writing it ---- */

/* The key goes first: it may lie where the attributes go. */
static void write_body(struct entry *e, char *body, const struct mcfs_attr *attr,
                       struct mcfs_slice key, const struct shape *shape, char *far_key)
{
    char *at = body + attr_bytes[shape->kind];
    struct whole_attr a = {attr->mtime_ns, {attr->mode, attr->uid, attr->gid}};
    if (far_key && key.data) {
        struct far_key far = {memcpy(far_key, key.data, key.len), key.len};
        memcpy(at, &far, sizeof(far));
    } else if (key.data) {
        memmove(at, key.data, key.len);
    }
    memcpy(body, &a, attr_bytes[shape->kind]);
    e->key_len = far_key ? ENTRY_FAR_KEY : (uint16_t)key.len;
    e->attr_kind = shape->kind & 3u;
    e->owner = shape->owner;
}

static int make_far_key(size_t key_len, char **far_key)
{
    *far_key = key_len < FAR_KEY_MIN ? NULL : malloc(key_len);
    return key_len < FAR_KEY_MIN || *far_key ? 0 : -1;
}

struct entry *entry_new(struct mcfs_slice key, const struct mcfs_attr *attr, bool has_link)
{
    struct shape shape = shape_of(attr, key.len);
    size_t front = has_link ? sizeof(struct evict_link) : 0;
    char *far_key;
    if (make_far_key(key.len, &far_key))
        return NULL;
    char *block = take(front + offsetof(struct entry, tail) + shape.bytes);
    if (!block) {
        free(far_key);
        return NULL;
    }
    memset(block, 0, front + offsetof(struct entry, tail));
    struct entry *e = (struct entry *)(void *)(block + front);
    e->has_link = has_link;
    write_body(e, e->tail, attr, key, &shape, far_key);
    return e;
}

void entry_free(struct entry *e)
{
    if (!e)
        return;
    free(far_key_of(e).data);
    if (e->outside)
        give(outside_block(e));
    give(block_of(e));
}

int entry_make_room(const struct entry *e, const struct mcfs_attr *attr, size_t key_len,
                    struct entry_room *room)
{
    struct shape shape = shape_of(attr, key_len);
    *room = (struct entry_room){0};
    if (make_far_key(key_len, &room->far_key))
        return -1;
    if (shape.bytes <= tail_room(e))
        return 0;
    room->block = entry_arena_number(take(shape.bytes));
    if (room->block)
        return 0;
    entry_room_free(room);
    return -1;
}

void entry_room_free(struct entry_room *room)
{
    free(room->far_key);
    if (room->block)
        give(room->block);
    *room = (struct entry_room){0};
}

void entry_change(struct entry *e, const struct mcfs_attr *attr, struct mcfs_slice key,
                  struct entry_room *room)
{
    struct shape shape = shape_of(attr, key.len);
    char *old_far = far_key_of(e).data;
    uint32_t old = outside_block(e);
    write_body(e, room->block ? entry_arena_at(room->block) : e->tail, attr, key, &shape,
               room->far_key);
    e->outside = room->block != 0;
    if (e->outside)
        memcpy(e->tail, &room->block, sizeof(room->block));
    if (old)
        give(old);
    free(old_far);
    *room = (struct entry_room){0};
}

int entry_set_attr(struct entry *e, const struct mcfs_attr *attr)
{
    struct entry_room room;
    if (entry_make_room(e, attr, entry_key(e).len, &room))
        return -1;
    entry_change(e, attr, entry_key(e), &room);
    return 0;
}
