/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/staging_area.h"

#include "common/cleanup.h"
#include "common/crc32c.h"
#include "common/file.h"
#include "common/hash.h"
#include "common/log.h"
#include "common/record_log.h"
#include "common/table.h"

#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#define PIECE ((size_t)256 << 10)
#define SPARES_MAX 64
#define READY_MAX 48
#define LOG_SLACK 4096 /* outdated records that are not worth a rewriting */

/* A file's label as the log has it. */
struct labelled {
    struct mcfs_slice name, label;
    struct staging_sum sum;
    bool summed;
    char bytes[];
};

struct staging_area {
    char *dir;
    pthread_mutex_t lock; /* guards what follows */
    unsigned long long next;
    struct staging_file spares[SPARES_MAX];
    unsigned spare_count;
    unsigned lost, ready_max; /* files given away since the last tidying; to be had ready */
    struct mcfs_table labels;
    struct record_log *log;
};

static uint64_t label_hash(const void *e)
{
    const struct labelled *l = e;
    return mcfs_hash(l->name.data, l->name.len);
}

static bool label_eq(const void *e, const void *key)
{
    const struct labelled *l = e;
    return mcfs_slice_eq(l->name, *(const struct mcfs_slice *)key);
}

static struct mcfs_slice name_of(const char *path)
{
    return mcfs_slice_str(strrchr(path, '/') + 1);
}

int staging_sum_of(int fd, struct staging_sum *sum, struct mcfs_error *err)
{
    _cleanup_free_ char *piece = malloc(PIECE);
    ssize_t n;
    *sum = (struct staging_sum){0};
    if (!piece)
        return mcfs_fail_errno(err, ENOMEM, "staging");
    while ((n = mcfs_pread_full(fd, piece, PIECE, sum->size)) > 0) {
        sum->crc32c = mcfs_crc32c(sum->crc32c, piece, (size_t)n);
        sum->size += (uint64_t)n;
    }
    return n < 0 ? mcfs_fail_errno(err, errno, "staging") : 0;
}

/* ---- labels; the caller holds the lock ---- */

static struct labelled *find(struct staging_area *a, struct mcfs_slice name)
{
    return mcfs_table_find(&a->labels, mcfs_hash(name.data, name.len), label_eq, &name);
}

static void forget(struct staging_area *a, struct mcfs_slice name)
{
    struct labelled *l = find(a, name);
    if (l)
        mcfs_table_del(&a->labels, l);
    free(l);
}

/* sum NULL: not known.  The label may be that of the entry that goes. */
static int note(struct staging_area *a, struct mcfs_slice name, struct mcfs_slice label,
                const struct staging_sum *sum)
{
    struct labelled *l = malloc(sizeof(*l) + name.len + label.len);
    if (!l)
        return -1;
    memcpy(l->bytes, name.data, name.len);
    memcpy(l->bytes + name.len, label.data, label.len);
    l->name = mcfs_slice(l->bytes, name.len);
    l->label = mcfs_slice(l->bytes + name.len, label.len);
    l->summed = sum;
    l->sum = sum ? *sum : (struct staging_sum){0};
    forget(a, name);
    if (mcfs_table_add(&a->labels, l) == 0)
        return 0;
    free(l);
    return -1;
}

static void put_record(struct mcfs_buf *b, struct mcfs_slice name, struct mcfs_slice label,
                       const struct staging_sum *sum)
{
    size_t at = mcfs_record_begin(b);
    mp_put_array(b, 4);
    mp_put_str(b, name);
    if (label.data)
        mp_put_bin(b, label.data, label.len);
    else
        mp_put_nil(b);
    if (sum)
        mp_put_uint(b, sum->size);
    else
        mp_put_nil(b);
    mp_put_uint(b, sum ? sum->crc32c : 0);
    mcfs_record_end(b, at);
}

static bool read_sum(struct mp_reader *p, struct staging_sum *sum, bool *known)
{
    *known = mp_peek(p) != MP_NIL;
    return (*known ? mp_read_uint(p, &sum->size) : mp_read_nil(p)) &&
           mp_read_u32_max(p, UINT32_MAX, &sum->crc32c) && mp_done(p);
}

static bool read_record(struct mp_reader *p, void *arg)
{
    struct staging_area *a = arg;
    struct mcfs_slice name, label = {NULL, 0};
    struct staging_sum sum;
    bool known;
    if (!mp_read_array_of(p, 4) || !mp_read_str(p, &name) || name.len == 0 ||
        memchr(name.data, '/', name.len) || memchr(name.data, 0, name.len))
        return false;
    bool labelled = mp_peek(p) != MP_NIL;
    if (!(labelled ? mp_read_bin(p, &label) : mp_read_nil(p)) || !read_sum(p, &sum, &known))
        return false;
    if (labelled)
        return note(a, name, label, known ? &sum : NULL) == 0;
    forget(a, name);
    return true;
}

static int rewrite_log(struct staging_area *a, struct mcfs_error *err)
{
    _cleanup_buf_ struct mcfs_buf b = MCFS_BUF_INIT;
    struct labelled *l;
    for (size_t i = 0; (l = mcfs_table_next(&a->labels, &i));)
        put_record(&b, l->name, l->label, l->summed ? &l->sum : NULL);
    return record_log_rewrite(a->log, &b, a->labels.count, false, err);
}

/* ---- the area ---- */

struct staging_area *staging_area_open(const char *dir, const char *log_path,
                                       struct mcfs_error *err)
{
    struct staging_area *a = calloc(1, sizeof(*a));
    if (a) {
        pthread_mutex_init(&a->lock, NULL);
        a->labels = (struct mcfs_table)MCFS_TABLE_INIT(label_hash);
        a->dir = strdup(dir);
    }
    if (!a || !a->dir)
        mcfs_fail_errno(err, ENOMEM, "%s", dir);
    else if ((a->log = record_log_open(log_path, read_record, a, err)))
        return a;
    staging_area_close(a);
    return NULL;
}

static void remove_file(struct staging_file *f, bool gone)
{
    if (f->fd >= 0)
        close(f->fd);
    if (f->path && !gone)
        unlink(f->path);
    free(f->path);
    *f = (struct staging_file)STAGING_FILE_NONE;
}

void staging_area_close(struct staging_area *a)
{
    struct labelled *l;
    if (!a)
        return;
    while (a->spare_count)
        remove_file(&a->spares[--a->spare_count], false);
    for (size_t i = 0; (l = mcfs_table_next(&a->labels, &i));)
        free(l);
    mcfs_table_free(&a->labels);
    record_log_close(a->log);
    pthread_mutex_destroy(&a->lock);
    free(a->dir);
    free(a);
}

/* Forgets the labels of files that are not there: they were published just before the end. */
static void forget_absent(struct staging_area *a)
{
    struct mcfs_table old = a->labels;
    struct labelled *l;
    a->labels = (struct mcfs_table)MCFS_TABLE_INIT(label_hash);
    for (size_t i = 0; (l = mcfs_table_next(&old, &i));) {
        char path[PATH_MAX];
        snprintf(path, sizeof(path), "%s/%.*s", a->dir, MCFS_SLICE_ARG(l->name));
        if (access(path, F_OK) || mcfs_table_add(&a->labels, l))
            free(l);
    }
    mcfs_table_free(&old);
}

/* Whether a file's content is what its label says. */
static bool holds(const char *path, const struct staging_sum *sum)
{
    struct staging_sum found;
    _cleanup_fd_ int fd = open(path, O_RDONLY | O_CLOEXEC);
    return fd >= 0 && staging_sum_of(fd, &found, NULL) == 0 && found.size == sum->size &&
           found.crc32c == sum->crc32c;
}

int staging_area_recover(struct staging_area *a,
                         void (*fn)(const char *path, struct mcfs_slice label, void *arg),
                         void *arg, struct mcfs_error *err)
{
    _cleanup_dir_ DIR *dir = opendir(a->dir);
    struct dirent *e;
    if (!dir)
        return mcfs_fail_errno(err, errno, "%s", a->dir);
    while ((e = readdir(dir))) {
        char path[PATH_MAX];
        if (e->d_name[0] == '.')
            continue;
        snprintf(path, sizeof(path), "%s/%s", a->dir, e->d_name);
        MCFS_LOCK_SCOPE(&a->lock);
        struct labelled *l = find(a, mcfs_slice_str(e->d_name));
        if (l && l->summed && !holds(path, &l->sum)) {
            mcfs_warning("%s: not all of what was written before a power cut is there; dropped",
                         path);
            forget(a, l->name);
            l = NULL;
        }
        if (l)
            fn(path, l->label, arg);
        else
            unlink(path);
    }
    MCFS_LOCK_SCOPE(&a->lock);
    forget_absent(a);
    return record_log_count(a->log) > a->labels.count ? rewrite_log(a, err) : 0;
}

/* ---- files ---- */

/* A new file.  The number is a new one for this process, but not for the directory: a process
 * before may have had this pid, as in a container, and left a file. */
static int make_file(struct staging_area *a, struct staging_file *f, struct mcfs_error *err)
{
    for (;;) {
        unsigned long long n;
        {
            MCFS_LOCK_SCOPE(&a->lock);
            n = a->next++;
        }
        if (asprintf(&f->path, "%s/w-%d-%llu", a->dir, (int)getpid(), n) < 0) {
            f->path = NULL;
            return mcfs_fail_errno(err, ENOMEM, "staging");
        }
        f->fd = open(f->path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        if (f->fd >= 0)
            return 0;
        int errnum = errno;
        mcfs_fail_errno(err, errnum, "%s", f->path);
        free(f->path);
        f->path = NULL;
        if (errnum != EEXIST)
            return -1;
    }
}

int staging_area_take(struct staging_area *a, struct staging_file *f, struct mcfs_error *err)
{
    *f = (struct staging_file)STAGING_FILE_NONE;
    {
        MCFS_LOCK_SCOPE(&a->lock);
        if (a->spare_count) {
            *f = a->spares[--a->spare_count];
            return 0;
        }
    }
    return make_file(a, f, err);
}

int staging_area_adopt(const char *path, struct staging_file *f, struct mcfs_error *err)
{
    struct stat st;
    *f = (struct staging_file)STAGING_FILE_NONE;
    f->fd = open(path, O_RDWR | O_CLOEXEC);
    f->path = strdup(path);
    f->labelled = f->summed = true;
    if (f->fd >= 0 && f->path && fstat(f->fd, &st) == 0) {
        f->length = (uint64_t)st.st_size;
        return 0;
    }
    mcfs_fail_errno(err, errno, "%s", path);
    staging_area_leave(f);
    return -1;
}

int staging_area_label(struct staging_area *a, struct staging_file *f, const struct mcfs_buf *label,
                       const struct staging_sum *sum, struct mcfs_error *err)
{
    _cleanup_buf_ struct mcfs_buf b = MCFS_BUF_INIT;
    struct mcfs_slice name = name_of(f->path), bytes = mcfs_slice(label->data, label->len);
    if (label->failed || f->removed)
        return mcfs_fail_errno(err, label->failed ? ENOMEM : ESTALE, "%s", f->path);
    put_record(&b, name, bytes, sum);
    MCFS_LOCK_SCOPE(&a->lock);
    if (record_log_append(a->log, &b, err))
        return -1;
    f->labelled = true;
    f->summed = sum;
    return note(a, name, bytes, sum) ? mcfs_fail_errno(err, ENOMEM, "%s", f->path) : 0;
}

int staging_area_changes(struct staging_area *a, struct staging_file *f, struct mcfs_error *err)
{
    _cleanup_buf_ struct mcfs_buf b = MCFS_BUF_INIT;
    if (!f->summed)
        return 0;
    MCFS_LOCK_SCOPE(&a->lock);
    struct labelled *l = find(a, name_of(f->path));
    if (l)
        put_record(&b, l->name, l->label, NULL);
    if (l && record_log_append(a->log, &b, err))
        return -1;
    if (l)
        l->summed = false;
    f->summed = false;
    return 0;
}

int staging_area_sync(struct staging_area *a, const struct staging_file *f, struct mcfs_error *err)
{
    if (fdatasync(f->fd))
        return mcfs_fail_errno(err, errno, "%s", f->path);
    if (mcfs_sync_dir(a->dir, err))
        return -1;
    MCFS_LOCK_SCOPE(&a->lock);
    return record_log_sync(a->log, err);
}

void staging_area_unlabel(struct staging_area *a, struct staging_file *f)
{
    _cleanup_buf_ struct mcfs_buf b = MCFS_BUF_INIT;
    struct mcfs_error err = MCFS_ERROR_INIT;
    if (!f->labelled)
        return;
    struct mcfs_slice name = name_of(f->path);
    put_record(&b, name, mcfs_slice(NULL, 0), NULL);
    MCFS_LOCK_SCOPE(&a->lock);
    forget(a, name);
    f->labelled = f->summed = false;
    if (record_log_append(a->log, &b, &err) == 0)
        return;
    mcfs_warning("%s: the file is removed instead", err.msg);
    unlink(f->path);
    f->removed = true;
}

void staging_area_give(struct staging_area *a, struct staging_file *f, bool again, bool gone,
                       uint64_t length)
{
    if (!f->path)
        return;
    if (!gone)
        staging_area_unlabel(a, f);
    {
        MCFS_LOCK_SCOPE(&a->lock);
        if (again && !gone && !f->removed && a->spare_count < SPARES_MAX) {
            f->length = length;
            a->spares[a->spare_count++] = *f;
            *f = (struct staging_file)STAGING_FILE_NONE;
            return;
        }
        a->lost++;
        if (gone && f->labelled) /* no file will have this name again */
            forget(a, name_of(f->path));
    }
    remove_file(f, gone);
}

void staging_area_leave(struct staging_file *f)
{
    remove_file(f, true);
}

/* How many files to make. */
static unsigned missing(struct staging_area *a)
{
    MCFS_LOCK_SCOPE(&a->lock);
    unsigned fewer = a->ready_max ? a->ready_max - 1 : 0;
    a->ready_max = MCFS_MIN(MCFS_MAX(2 * a->lost, fewer), READY_MAX);
    a->lost = 0;
    return a->ready_max > a->spare_count ? a->ready_max - a->spare_count : 0;
}

void staging_area_tidy(struct staging_area *a)
{
    struct mcfs_error err = MCFS_ERROR_INIT;
    for (unsigned n = missing(a); n > 0; n--) {
        struct staging_file f = STAGING_FILE_NONE;
        if (make_file(a, &f, NULL))
            break;
        MCFS_LOCK_SCOPE(&a->lock);
        if (a->spare_count == SPARES_MAX) {
            remove_file(&f, false);
            break;
        }
        a->spares[a->spare_count++] = f;
    }
    MCFS_LOCK_SCOPE(&a->lock);
    if (record_log_count(a->log) > 2 * a->labels.count + LOG_SLACK && rewrite_log(a, &err))
        mcfs_warning("%s", err.msg);
}
