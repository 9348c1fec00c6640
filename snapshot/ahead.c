/* SPDX-License-Identifier: Apache-2.0 */
#include "snapshot/ahead.h"

#include "common/cleanup.h"

#define BLOCKS 8

struct block {
    int file;
    uint64_t number; /* offset / size of a block */
    struct mcfs_buf data;
    bool ready, fetching;
    uint32_t users;
    uint64_t used; /* for the least recently used to go */
};

struct ahead {
    struct mcfs_object_store *store;
    uint32_t block_bytes;
    pthread_mutex_t lock; /* guards the rest but for the data of blocks in use */
    pthread_cond_t changed;
    struct block blocks[BLOCKS];
    uint64_t clock;
};

struct ahead *ahead_new(struct mcfs_object_store *store)
{
    struct ahead *a = store->ops->read_ahead_bytes ? calloc(1, sizeof(*a)) : NULL;
    if (!a)
        return NULL;
    a->store = store;
    a->block_bytes = store->ops->read_ahead_bytes;
    pthread_mutex_init(&a->lock, NULL);
    pthread_cond_init(&a->changed, NULL);
    return a;
}

void ahead_free(struct ahead *a)
{
    if (!a)
        return;
    for (int i = 0; i < BLOCKS; i++)
        mcfs_buf_free(&a->blocks[i].data);
    pthread_mutex_destroy(&a->lock);
    pthread_cond_destroy(&a->changed);
    free(a);
}

/* The block, or the one that it may take the place of; NULL when all are in use. */
static struct block *choose(struct ahead *a, int file, uint64_t number)
{
    struct block *oldest = NULL;
    for (int i = 0; i < BLOCKS; i++) {
        struct block *b = &a->blocks[i];
        if ((b->ready || b->fetching) && b->file == file && b->number == number)
            return b;
        if (!b->fetching && !b->users && (!oldest || b->used < oldest->used))
            oldest = b;
    }
    return oldest;
}

/* Called and returns with the lock held; fetches without it. */
static int fetch(struct ahead *a, struct block *b, const char *path, struct mcfs_error *err)
{
    b->ready = false;
    b->fetching = true;
    pthread_mutex_unlock(&a->lock);
    mcfs_buf_reset(&b->data);
    uint8_t *to = mcfs_buf_reserve(&b->data, a->block_bytes);
    ssize_t n = to ? a->store->ops->read(a->store, path, b->number * a->block_bytes, to,
                                         a->block_bytes, err)
                   : mcfs_fail_errno(err, ENOMEM, "%s", path);
    b->data.len = n > 0 ? (size_t)n : 0;
    pthread_mutex_lock(&a->lock);
    b->fetching = false;
    b->ready = n >= 0;
    pthread_cond_broadcast(&a->changed);
    return n < 0 ? -1 : 0;
}

/* A block to be read from, until release; NULL with err set. */
static struct block *acquire(struct ahead *a, int file, const char *path, uint64_t number,
                             struct mcfs_error *err)
{
    struct block *b;
    MCFS_LOCK_SCOPE(&a->lock);
    while (!(b = choose(a, file, number)) || b->fetching)
        pthread_cond_wait(&a->changed, &a->lock);
    if (!b->ready || b->file != file || b->number != number) {
        b->file = file;
        b->number = number;
        if (fetch(a, b, path, err))
            return NULL;
    }
    b->users++;
    b->used = ++a->clock;
    return b;
}

static void release(struct ahead *a, struct block *b)
{
    MCFS_LOCK_SCOPE(&a->lock);
    if (--b->users == 0)
        pthread_cond_broadcast(&a->changed);
}

int ahead_read(struct ahead *a, int file, const char *path, const char *name, uint64_t off,
               uint64_t len, struct mcfs_buf *out, struct mcfs_error *err)
{
    while (len > 0) {
        struct block *b = acquire(a, file, path, off / a->block_bytes, err);
        if (!b)
            return -1;
        uint64_t from = off % a->block_bytes;
        uint64_t n = b->data.len > from ? MCFS_MIN(len, b->data.len - from) : 0;
        if (n)
            mcfs_buf_append(out, b->data.data + from, (size_t)n);
        release(a, b);
        if (n == 0)
            return mcfs_fail(err, MCFS_FILE_READ_FAIL, "%s: cut short", name);
        if (out->failed)
            return mcfs_fail_errno(err, ENOMEM, "%s", name);
        off += n;
        len -= n;
    }
    return 0;
}
