/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Room in the tier.  A put claims its bytes before it writes them; a bucket gives back what it
 * holds no more by punching holes over whole blocks that no entry needs.
 */
#include "backends/bucket/bucket.h"

#include "backends/room.h"
#include "common/cleanup.h"
#include "common/log.h"

#include <fcntl.h>
#include <inttypes.h>
#include <sys/stat.h>

#define BLOCK 4096ull

static int make_room(void *store, struct mcfs_error *err)
{
    compact_yield(store);
    return store_flush(store, err);
}

int space_claim(struct store *s, uint64_t bytes, struct mcfs_error *err)
{
    struct room r = {.dir = s->dir,
                     .dir_fd = s->dir_fd,
                     .capacity_bytes = s->config.capacity_bytes,
                     .used = &s->used_bytes,
                     .needed = atomic_load(&s->live_bytes),
                     .flush = make_room,
                     .store = s};
    return room_claim(&r, bytes, err);
}

void space_return(struct store *s, uint64_t bytes)
{
    atomic_fetch_sub(&s->used_bytes, bytes);
}

static int by_start(const void *a, const void *b)
{
    uint64_t x = ((const struct range *)a)->from, y = ((const struct range *)b)->from;
    return (x > y) - (x < y);
}

struct range *bucket_gaps(const struct bucket *b, size_t *n)
{
    *n = 0;
    /* A writer's place is reserved and in no entry yet. */
    if (b->keep_gaps || b->writers || b->removed)
        return NULL;
    struct range *r = malloc(((size_t)b->objects + 1) * 2 * sizeof(*r));
    if (!r)
        return NULL;
    struct range *gaps = r + b->objects + 1;
    size_t count = 0;
    for (const struct entry *e = b->entries; e; e = entry_after(e))
        r[count++] = (struct range){entry_start(e), entry_offset(e) + entry_size(e)};
    qsort(r, count, sizeof(*r), by_start);
    r[count++] = (struct range){b->data_end, b->data_end};
    uint64_t at = 0;
    for (size_t i = 0; i < count; i++) {
        uint64_t from = (at + BLOCK - 1) & ~(BLOCK - 1), to = r[i].from & ~(BLOCK - 1);
        if (from < to)
            gaps[(*n)++] = (struct range){from, to};
        at = MCFS_MAX(at, r[i].to);
    }
    memmove(r, gaps, *n * sizeof(*r));
    return r;
}

void bucket_punch(struct store *s, struct bucket *b, const struct range *gaps, size_t n)
{
    struct stat st;
    MCFS_LOCK_SCOPE(&b->lock);
    if (b->removed || n == 0 || bucket_hold_data(s, b, NULL))
        return;
    for (size_t i = 0; i < n; i++) {
        if (fallocate(b->data_fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)gaps[i].from,
                      (off_t)(gaps[i].to - gaps[i].from)) == 0)
            continue;
        if (errno != EOPNOTSUPP && errno != ENOSYS)
            mcfs_warning("bucket %" PRIu64 ": space cannot be given back: %s", b->id,
                         strerror(errno));
        break;
    }
    if (fstat(b->data_fd, &st) == 0) {
        uint64_t used = MCFS_MAX((uint64_t)st.st_blocks * 512, b->live_bytes);
        if (used < b->used_bytes) {
            space_return(s, b->used_bytes - used);
            b->used_bytes = used;
        }
    }
    bucket_release_data(b);
}
