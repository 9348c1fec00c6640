/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/staging.h"

#include "common/cleanup.h"
#include "common/crc32c.h"
#include "common/file.h"
#include "fs/staging_area.h"

#include <fcntl.h>

#define COPY_CHUNK (1u << 20)
#define SIZE_MAX_BYTES (1ull << 47)
#define LARGE_WRITE (960u << 10) /* who begins like this goes on: straight into a file */
#define BEHIND_MIN (128u << 10)  /* less is written sooner than somebody else is woken */

struct staging {
    struct staging_area *area;
    struct staging_file file;
    uint64_t memory_max, size;
    struct mcfs_buf memory; /* content while there is no file; its len may be less than size: zeros
                               follow */
    struct replica_reader *base; /* not yet copied in; size is its size */
    uint32_t crc;
    uint64_t crc_upto; /* crc covers bytes 0..crc_upto, as long as writes come in order */
    bool crc_valid;
    bool used_up;             /* the file has been given away, or is about to be */
    struct mcfs_error failed; /* of a write that had been acknowledged; MCFS_OK: none has */
};

struct staging *staging_new(struct staging_area *area, uint64_t memory_max, struct mcfs_error *err)
{
    struct staging *s = calloc(1, sizeof(*s));
    if (!s) {
        mcfs_fail_errno(err, ENOMEM, "staging");
        return NULL;
    }
    s->area = area;
    s->file = (struct staging_file)STAGING_FILE_NONE;
    s->memory_max = memory_max;
    s->crc_valid = true;
    return s;
}

/* A small file can be used again. */
static void drop_file(struct staging *s, bool gone)
{
    staging_area_give(s->area, &s->file, !s->used_up && s->size <= s->memory_max, gone, s->size);
}

/* What was acknowledged and is not there makes the content useless, whoever asks. */
static int check(const struct staging *s, struct mcfs_error *err)
{
    if (s->failed.code == MCFS_OK)
        return 0;
    if (err)
        *err = s->failed;
    return -1;
}

static void free_parts(struct staging *s)
{
    node_reader_close(s->base);
    mcfs_buf_free(&s->memory);
    free(s);
}

void staging_free(struct staging *s)
{
    if (!s)
        return;
    drop_file(s, false);
    free_parts(s);
}

void staging_leave(struct staging *s)
{
    if (!s)
        return;
    staging_area_leave(&s->file);
    free_parts(s);
}

struct staging *staging_adopt(struct staging_area *area, const char *path, uint64_t memory_max,
                              struct mcfs_error *err)
{
    struct staging *s = staging_new(area, memory_max, err);
    if (!s)
        return NULL;
    if (staging_area_adopt(path, &s->file, err)) {
        free_parts(s);
        return NULL;
    }
    s->size = s->file.length;
    s->crc_valid = false;
    return s;
}

void staging_set_base(struct staging *s, struct replica_reader *base, uint64_t size)
{
    node_reader_close(s->base);
    s->base = base;
    s->size = size;
    s->crc_valid = false;
}

uint64_t staging_size(const struct staging *s)
{
    return s->size;
}

/* Moves the content into a file, which it needs from `memory_max` bytes on. */
static int spill(struct staging *s, struct mcfs_error *err)
{
    struct staging_file *f = &s->file;
    uint64_t have = s->memory.len;
    if (f->path)
        return 0;
    if (staging_area_take(s->area, f, err))
        return -1;
    s->used_up = false;
    /* Nothing of what the file held before may stay; a tail that is zeros has to be made.  Not more
     * than that: ext4 writes a file that was ever truncated to nothing when it is closed. */
    if (mcfs_pwrite_full(f->fd, s->memory.data, have, 0) ||
        (f->length > have && ftruncate(f->fd, (off_t)have)) ||
        (s->size > have && ftruncate(f->fd, (off_t)s->size))) {
        mcfs_fail_errno(err, errno, "%s", f->path);
        s->used_up = true;
        drop_file(s, false);
        return -1;
    }
    mcfs_buf_free(&s->memory);
    return 0;
}

static bool goes_into_file(const struct staging *s, size_t len, uint64_t off)
{
    return s->file.path || off + len > s->memory_max || (off == 0 && len >= LARGE_WRITE);
}

static int write_raw(struct staging *s, const void *data, size_t len, uint64_t off,
                     struct mcfs_error *err)
{
    uint64_t end = off + len;
    if (goes_into_file(s, len, off) && spill(s, err))
        return -1;
    if (s->file.path) {
        if (mcfs_pwrite_full(s->file.fd, data, len, off))
            return mcfs_fail_errno(err, errno, "%s", s->file.path);
    } else {
        if (end > s->memory.len) {
            size_t more = (size_t)(end - s->memory.len);
            uint8_t *to = mcfs_buf_reserve(&s->memory, more);
            if (!to)
                return mcfs_fail_errno(err, ENOMEM, "staging");
            memset(to, 0, more);
            s->memory.len += more;
        }
        if (s->memory.data && len)
            memcpy(s->memory.data + off, data, len);
    }
    s->size = MCFS_MAX(s->size, end);
    return 0;
}

/* Copies what the object started from, up to `keep` bytes of it. */
static int copy_base(struct staging *s, uint64_t keep, const struct mcfs_cancel *cancel,
                     struct mcfs_error *err)
{
    struct replica_reader *base = s->base;
    uint64_t size = MCFS_MIN(s->size, keep), done = 0;
    if (!base)
        return 0;
    _cleanup_free_ char *chunk = malloc(COPY_CHUNK);
    if (!chunk)
        return mcfs_fail_errno(err, ENOMEM, "staging");
    uint64_t whole = s->size;
    s->size = 0;
    while (done < size) {
        int64_t n = node_reader_read(base, chunk, (size_t)MCFS_MIN(COPY_CHUNK, size - done), done,
                                     cancel, err);
        if (n == 0)
            mcfs_fail(err, MCFS_INVALID_READ, "the object is shorter than it should be");
        if (n <= 0 || write_raw(s, chunk, (size_t)n, done, err)) {
            s->size = whole;
            drop_file(s, false);
            mcfs_buf_free(&s->memory);
            return -1;
        }
        done += (uint64_t)n;
    }
    s->base = NULL;
    node_reader_close(base);
    return 0;
}

/* Before the content changes. */
static int begin_change(struct staging *s, struct mcfs_error *err)
{
    return s->file.summed ? staging_area_changes(s->area, &s->file, err) : 0;
}

int64_t staging_read(struct staging *s, void *buf, size_t len, uint64_t off,
                     const struct mcfs_cancel *cancel, struct mcfs_error *err)
{
    if (off >= s->size)
        return 0;
    len = (size_t)MCFS_MIN(len, s->size - off);
    if (s->base)
        return node_reader_read(s->base, buf, len, off, cancel, err);
    if (s->file.path) {
        ssize_t n = mcfs_pread_full(s->file.fd, buf, len, off);
        return n < 0 ? mcfs_fail_errno(err, errno, "%s", s->file.path) : n;
    }
    size_t have = off < s->memory.len ? MCFS_MIN(len, s->memory.len - (size_t)off) : 0;
    if (have)
        memcpy(buf, s->memory.data + off, have);
    memset((char *)buf + have, 0, len - have);
    return (int64_t)len;
}

int staging_write(struct staging *s, const void *data, size_t len, uint64_t off,
                  const struct mcfs_cancel *cancel, struct mcfs_error *err)
{
    if (off > SIZE_MAX_BYTES || len > SIZE_MAX_BYTES - off)
        return mcfs_fail_errno(err, EFBIG, "object");
    if (check(s, err) || copy_base(s, UINT64_MAX, cancel, err) || begin_change(s, err))
        return -1;
    if (s->crc_valid && off == s->crc_upto) {
        s->crc = mcfs_crc32c(s->crc, data, len);
        s->crc_upto += len;
    } else {
        s->crc_valid = false;
    }
    return write_raw(s, data, len, off, err);
}

bool staging_stays_in_memory(const struct staging *s, size_t len, uint64_t off)
{
    return !s->base && off <= SIZE_MAX_BYTES && len <= SIZE_MAX_BYTES - off &&
           !goes_into_file(s, len, off);
}

bool staging_writes_behind(const struct staging *s, size_t len, uint64_t off)
{
    return !s->base && s->failed.code == MCFS_OK && len >= BEHIND_MIN && off <= SIZE_MAX_BYTES &&
           len <= SIZE_MAX_BYTES - off && goes_into_file(s, len, off);
}

void staging_write_behind(struct staging *s, const void *data, size_t len, uint64_t off)
{
    if (staging_write(s, data, len, off, NULL, &s->failed))
        s->used_up = true; /* nobody knows how much of the file is there */
}

int staging_truncate(struct staging *s, uint64_t size, const struct mcfs_cancel *cancel,
                     struct mcfs_error *err)
{
    if (size > SIZE_MAX_BYTES)
        return mcfs_fail_errno(err, EFBIG, "object");
    if (size == s->size && s->failed.code == MCFS_OK)
        return 0;
    if (size == 0) {
        drop_file(s, false);
        s->failed = (struct mcfs_error)MCFS_ERROR_INIT;
        node_reader_close(s->base);
        s->base = NULL;
        mcfs_buf_reset(&s->memory);
        s->size = 0;
        s->crc = 0;
        s->crc_upto = 0;
        s->crc_valid = true;
        return 0;
    }
    if (check(s, err) || copy_base(s, size, cancel, err) || begin_change(s, err))
        return -1;
    s->crc_valid = false;
    if (!s->file.path && size > s->memory_max && spill(s, err))
        return -1;
    if (s->file.path) {
        if (ftruncate(s->file.fd, (off_t)size))
            return mcfs_fail_errno(err, errno, "%s", s->file.path);
    } else if (size < s->memory.len) {
        s->memory.len = (size_t)size;
    }
    s->size = size;
    return 0;
}

/* Zeros in a file; a hole where the file system can. */
static int zero_file(struct staging *s, uint64_t off, uint64_t len, struct mcfs_error *err)
{
    static const char zeros[65536];
    if (fallocate(s->file.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)off, (off_t)len) ==
        0)
        return 0;
    for (uint64_t done = 0; done < len; done += sizeof(zeros))
        if (mcfs_pwrite_full(s->file.fd, zeros, MCFS_MIN(len - done, sizeof(zeros)), off + done))
            return mcfs_fail_errno(err, errno, "%s", s->file.path);
    return 0;
}

int staging_zero(struct staging *s, uint64_t off, uint64_t len, const struct mcfs_cancel *cancel,
                 struct mcfs_error *err)
{
    if (off >= s->size)
        return 0;
    if (copy_base(s, UINT64_MAX, cancel, err) || begin_change(s, err))
        return -1;
    s->crc_valid = false;
    len = MCFS_MIN(len, s->size - off);
    if (s->file.path)
        return zero_file(s, off, len, err);
    if (off < s->memory.len)
        memset(s->memory.data + off, 0, MCFS_MIN(len, s->memory.len - off));
    return 0;
}

int64_t staging_seek(struct staging *s, uint64_t off, bool hole, struct mcfs_error *err)
{
    if (off >= s->size)
        return mcfs_fail_errno(err, ENXIO, "seek");
    if (s->file.path) {
        off_t at = lseek(s->file.fd, (off_t)off, hole ? SEEK_HOLE : SEEK_DATA);
        return at < 0 ? mcfs_fail_errno(err, errno, "seek") : at;
    }
    return hole ? (int64_t)s->size : (int64_t)off;
}

/* Content of a small file into memory, from which it is stored; the file stays. */
static int read_back(struct staging *s, struct mcfs_error *err)
{
    mcfs_buf_reset(&s->memory);
    uint8_t *to = mcfs_buf_reserve(&s->memory, s->size ? s->size : 1);
    ssize_t n = to ? mcfs_pread_full(s->file.fd, to, s->size, 0) : -1;
    if (n < 0 || (uint64_t)n != s->size)
        return mcfs_fail_errno(err, to ? EIO : ENOMEM, "%s", s->file.path);
    s->memory.len = s->size;
    return 0;
}

int staging_describe(struct staging *s, struct node_put *put, const struct mcfs_cancel *cancel,
                     struct mcfs_error *err)
{
    if (check(s, err) || copy_base(s, UINT64_MAX, cancel, err))
        return -1;
    put->size = s->size;
    put->has_crc = s->crc_valid && s->crc_upto == s->size;
    put->crc32c = s->crc;
    /* A small object goes into a bucket with others, and its file can be used again. */
    if (s->file.path && s->size < s->memory_max && read_back(s, err))
        return -1;
    if (s->file.path && s->size >= s->memory_max) {
        put->staging_path = s->file.path;
        s->used_up = true; /* or will be; a file that was not is dropped all the same */
        return 0;
    }
    if (s->memory.len < s->size) { /* a tail that truncation made: zeros */
        size_t more = (size_t)(s->size - s->memory.len);
        uint8_t *to = mcfs_buf_reserve(&s->memory, more);
        if (!to)
            return mcfs_fail_errno(err, ENOMEM, "staging");
        memset(to, 0, more);
        s->memory.len += more;
    }
    put->data = s->memory.data ? (const void *)s->memory.data : "";
    return 0;
}

void staging_published(struct staging *s, struct replica_reader *base)
{
    uint64_t size = s->size;
    drop_file(s, s->used_up);
    mcfs_buf_free(&s->memory);
    staging_set_base(s, base, size);
}

int staging_label(struct staging *s, const struct mcfs_buf *label, struct mcfs_error *err)
{
    struct staging_sum sum;
    if (check(s, err) || copy_base(s, UINT64_MAX, NULL, err) || spill(s, err))
        return -1;
    if (s->crc_valid && s->crc_upto == s->size)
        sum = (struct staging_sum){s->size, s->crc};
    else if (staging_sum_of(s->file.fd, &sum, err)) /* it was not written in order */
        return -1;
    return staging_area_label(s->area, &s->file, label, &sum, err);
}

int staging_sync(struct staging *s, struct mcfs_error *err)
{
    return check(s, err) ? -1 : staging_area_sync(s->area, &s->file, err);
}

void staging_unlabel(struct staging *s)
{
    if (s->file.path)
        staging_area_unlabel(s->area, &s->file);
}
