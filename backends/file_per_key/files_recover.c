/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opening: the logs say what there is, the folders whether it is there; values are read only when
 * they were put after the last sync.  Costs 150 bytes of log and one directory entry per object.
 *
 * A file that its log has never heard of is an unfinished put when it is the only one whose number
 * is greater than all in the log (and then goes), and else a stranger (and is set aside).  When it
 * is only looked at, nothing is changed, and an owner who writes meanwhile is no reason to see
 * damage: a file that is missing counts as missing only when its log has not changed since it was
 * read.
 */
#include "backends/aside.h"
#include "backends/file_per_key/files_replay.h"
#include "backends/value.h"
#include "common/cleanup.h"
#include "common/clock.h"
#include "common/file.h"
#include "common/log.h"

#include <fcntl.h>
#include <fnmatch.h>
#include <inttypes.h>
#include <limits.h>
#include <sys/stat.h>

#define LOG_MAX (4ull << 30)
#define LOOKS_MAX 10

struct recovery {
    struct files *s;
    struct replay shards[FILES_SHARDS];
    struct {
        uint64_t ino, size;
        int64_t mtime_ns;
    } logs[FILES_SHARDS];           /* as they were read */
    uint32_t unnamed[FILES_SHARDS]; /* files that are newer than their log */
    struct mcfs_buf strangers; /* names in the folders that are none of ours, each with a NUL */
    struct mcfs_backend_recovery out;
    struct mcfs_error *err;
};

/* ---- what is found ---- */

static void report(struct recovery *r, enum finding_kind kind, enum finding_repair repair,
                   const char *file, const struct file_entry *e, const char *what)
{
    struct files *s = r->s;
    struct finding f = {.kind = kind,
                        .repair = repair,
                        .file = file,
                        .key = e ? file_key(e) : mcfs_slice("", 0),
                        .version = e ? e->version : 0,
                        .what = what};
    if (s->sink)
        finding_report(s->sink, &f);
    else
        finding_log(&f, s->dir);
}

static void name_value(unsigned shard, uint64_t id, char out[FILES_NAME + 32])
{
    char path[FILES_NAME];
    file_path(shard, id, path);
    snprintf(out, FILES_NAME + 32, FILES_DIR "/%s", path);
}

/* An unfinished or removed object's file.  Its owner clears it away, others only note it. */
static void clear_file(struct recovery *r, unsigned shard, uint64_t id, const char *what)
{
    char file[FILES_NAME + 32];
    name_value(shard, id, file);
    report(r, FINDING_STALE, REPAIR_NONE, file, NULL, what);
    if (r->s->config.read_only)
        return;
    if (unlinkat(r->s->dir_fd, file, 0) && errno != ENOENT)
        mcfs_warning("%s/%s: %s", r->s->dir, file, strerror(errno));
    r->s->shards[shard].names_dirty |= 1u << (id & 15);
}

static void stranger(struct recovery *r, const char *file, const char *what)
{
    report(r, FINDING_UNKNOWN, REPAIR_NONE, file, NULL, what);
    if (!r->s->config.read_only)
        r->out.set_aside_files += set_file_aside(r->s->dir, file, what);
}

/* ---- logs ---- */

static int stat_log(struct recovery *r, unsigned shard, struct stat *st)
{
    char name[16];
    snprintf(name, sizeof(name), "%x.log", shard);
    return fstatat(r->s->own_fd, name, st, AT_SYMLINK_NOFOLLOW);
}

static int read_log(struct recovery *r, unsigned shard)
{
    struct files *s = r->s;
    char path[PATH_MAX];
    _cleanup_free_ char *data = NULL;
    struct mcfs_error err = MCFS_ERROR_INIT;
    struct stat st = {.st_ino = 0};
    ssize_t len = 0;
    if (stat_log(r, shard, &st) == 0) {
        snprintf(path, sizeof(path), "%s/" FILES_DIR "/%x.log", s->dir, shard);
        len = mcfs_read_file_alloc(path, LOG_MAX, &data, &err);
        if (len < 0) {
            if (r->err)
                *r->err = err;
            return -1;
        }
    }
    r->logs[shard].ino = st.st_ino;
    r->logs[shard].size = (uint64_t)st.st_size;
    r->logs[shard].mtime_ns = mcfs_timespec_ns(st.st_mtim);
    if (files_replay(data ? data : "", (size_t)len, shard, &r->shards[shard], r->err))
        return mcfs_error_prefix(r->err, "%s/" FILES_DIR "/%x.log", s->dir, shard);
    return 0;
}

static bool log_changed(struct recovery *r, unsigned shard)
{
    struct stat st = {.st_ino = 0};
    if (stat_log(r, shard, &st))
        st = (struct stat){.st_ino = 0};
    return r->logs[shard].ino != st.st_ino || r->logs[shard].size != (uint64_t)st.st_size ||
           r->logs[shard].mtime_ns != mcfs_timespec_ns(st.st_mtim);
}

static bool logs_changed(struct recovery *r)
{
    for (unsigned i = 0; i < FILES_SHARDS; i++)
        if (log_changed(r, i))
            return true;
    return false;
}

/* ---- folders ---- */

/* The number that a file's name stands for; 0: none. */
static uint64_t id_of(const char *name)
{
    uint64_t id = 0;
    for (int i = 0; i < 16; i++) {
        const char *digits = "0123456789abcdef", *d = name[i] ? strchr(digits, name[i]) : NULL;
        if (!d)
            return 0;
        id = id << 4 | (uint64_t)(d - digits);
    }
    return name[16] ? 0 : id;
}

static void note_stranger(struct recovery *r, const char *folder, const char *name)
{
    mcfs_buf_printf(&r->strangers, FILES_DIR "/%s/%s", folder, name);
    mcfs_buf_append(&r->strangers, "", 1);
}

static int list_folder(struct recovery *r, unsigned shard, unsigned folder)
{
    char path[FILES_NAME];
    snprintf(path, sizeof(path), "values/%x%x", shard, folder);
    _cleanup_dir_ DIR *dir = mcfs_open_dir(r->s->own_fd, path);
    struct dirent *d;
    if (!dir)
        return errno == ENOENT ? 0 : mcfs_fail_errno(r->err, errno, "%s/%s", r->s->dir, path);
    struct replay *p = &r->shards[shard];
    while ((errno = 0, d = readdir(dir))) {
        if (strcmp(d->d_name, ".") == 0 || strcmp(d->d_name, "..") == 0)
            continue;
        uint64_t id = id_of(d->d_name);
        struct replay_file *f = id && (id & 15) == folder ? replay_find(p, id) : NULL;
        bool regular = d->d_type == DT_REG || d->d_type == DT_UNKNOWN;
        r->unnamed[shard] += id && (id & 15) == folder && id >= p->next_id;
        if (f && regular)
            f->there = true;
        else
            note_stranger(r, path, d->d_name);
    }
    return errno ? mcfs_fail_errno(r->err, errno, "%s/" FILES_DIR "/%s", r->s->dir, path) : 0;
}

static bool something_missing(const struct recovery *r)
{
    for (unsigned i = 0; i < FILES_SHARDS; i++)
        for (size_t k = 0; k < r->shards[i].count; k++)
            if (r->shards[i].v[k].entry && !r->shards[i].v[k].there)
                return true;
    return false;
}

static void forget_all(struct recovery *r)
{
    for (unsigned i = 0; i < FILES_SHARDS; i++)
        replay_free(&r->shards[i]);
    memset(r->unnamed, 0, sizeof(r->unnamed));
    mcfs_buf_reset(&r->strangers);
}

static int look(struct recovery *r)
{
    for (int round = 0; round < LOOKS_MAX; round++) {
        forget_all(r);
        for (unsigned i = 0; i < FILES_SHARDS; i++)
            if (read_log(r, i))
                return -1;
        for (unsigned i = 0; i < FILES_SHARDS * FILES_FOLDERS; i++)
            if (list_folder(r, i / FILES_FOLDERS, i % FILES_FOLDERS))
                return -1;
        if (r->strangers.failed)
            return mcfs_fail_errno(r->err, ENOMEM, "%s", r->s->dir);
        if (!r->s->config.read_only || !something_missing(r) || !logs_changed(r))
            break;
    }
    return 0;
}

/* ---- what it means ---- */

/* Of a shard and a folder: "mooncakefs_files/values/<s><t>/<name>". */
static void judge_stranger(struct recovery *r, const char *file)
{
    const char *name = strrchr(file, '/') + 1;
    unsigned shard = 0, folder = 0;
    sscanf(name - 3, "%1x%1x", &shard, &folder);
    const struct replay *p = &r->shards[shard];
    uint64_t id = id_of(name);
    struct stat st;
    bool ours = id && (id & 15) == folder && id >= p->next_id && !p->stepped_over &&
                !p->no_header && (r->s->config.read_only || r->unnamed[shard] == 1) &&
                fstatat(r->s->dir_fd, file, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode);
    if (ours)
        clear_file(r, shard, id, "an object that was not put to its end");
    else
        stranger(r, file, "no log names this file");
}

/* Values put after the last sync may have been cut short by a power failure. */
static bool is_whole(struct recovery *r, const struct file_entry *e)
{
    char path[FILES_NAME];
    struct stat st;
    file_path(e->shard, e->id, path);
    _cleanup_fd_ int fd = openat(r->s->own_fd, path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    struct value_place v = {fd, 0, e->size};
    if (fd < 0 || fstat(fd, &st))
        return r->s->config.read_only && errno == ENOENT;
    if ((uint64_t)st.st_size < e->size)
        return false;
    bool check = e->has_crc && (!r->s->config.read_only || r->s->sink);
    return !check || value_verify(&v, e->crc32c, NULL) == 0;
}

static void take_entry(struct recovery *r, struct replay *p, struct replay_file *f, unsigned shard)
{
    struct files *s = r->s;
    struct file_entry *e = f->entry;
    struct file_stripe *stripe = file_stripe(s, file_key(e));
    struct file_entry *other = file_find(&stripe->table, file_key(e), e->version);
    char file[FILES_NAME + 32];
    name_value(shard, e->id, file);
    /* Its owner was quicker than each of our looks. */
    if (!f->there && s->config.read_only && log_changed(r, shard))
        return;
    if (!f->there) {
        if (f->record >= p->sure_to)
            report(r, FINDING_STALE, REPAIR_NONE, file, e, "an object that was not put to its end");
        else
            report(r, FINDING_INDEX, REPAIR_RECOVER, file, e, "the object's file is missing");
    } else if (f->record >= p->sure_to && !is_whole(r, e)) {
        clear_file(r, shard, e->id, "an object that was not put to its end");
    } else if (other) { /* its removal was lost in a power failure, and it was put again */
        clear_file(r, shard, e->id, "a second copy of an object");
    } else if (file_index_add(s, stripe, e) == 0) {
        file_link(&s->shards[shard], e);
        s->used_bytes += e->size;
        if (f->record >= p->sure_to && !s->config.read_only && e->has_crc)
            atomic_store_explicit(&e->checked, FILE_GOOD, memory_order_relaxed);
        f->entry = NULL;
        return;
    } else {
        mcfs_fail_errno(r->err, ENOMEM, "index");
    }
    r->out.dropped_objects++;
    s->shards[shard].renew = true;
}

static void judge_log(struct recovery *r, unsigned shard)
{
    const struct replay *p = &r->shards[shard];
    struct file_shard *h = &r->s->shards[shard];
    char file[64];
    snprintf(file, sizeof(file), FILES_DIR "/%x.log", shard);
    bool missing = r->logs[shard].ino == 0, damaged = p->stepped_over || p->no_header;
    if (missing && r->s->marker == MARKER_MISSING)
        ; /* the store was not made to its end */
    else if (missing)
        report(r, FINDING_INDEX, REPAIR_RECOVER, file, NULL, "the log is missing");
    else if (damaged)
        report(r, FINDING_INDEX, REPAIR_RECOVER, file, NULL,
               p->no_header ? "its header is damaged"
                            : "there are bytes in it that are no records");
    else if (p->end < r->logs[shard].size)
        report(r, FINDING_STALE, REPAIR_NONE, file, NULL, "its last record was not written");
    if (!missing && damaged && !r->s->config.read_only)
        r->out.set_aside_files += keep_file_aside(r->s->dir, file, "it is damaged");
    h->renew |= missing || damaged;
    h->log_end = p->end;
    /* Something was done since the last sync. */
    h->sync_all = h->log_dirty = p->end > p->sure_to + LOG_SYNC_SIZE;
}

static void judge_marker(struct recovery *r)
{
    enum files_marker m = r->s->marker;
    const char *what = m == MARKER_MISSING ? "the marker is missing" : "the marker is damaged";
    if (m == MARKER_GOOD || (m == MARKER_MISSING && !r->s->objects && !r->strangers.len))
        return;
    report(r, FINDING_INDEX, REPAIR_RECOVER, FILES_DIR "/format", NULL, what);
    if (m == MARKER_DAMAGED && !r->s->config.read_only)
        r->out.set_aside_files += set_file_aside(r->s->dir, FILES_DIR "/format", what);
}

static int take_all(struct recovery *r)
{
    struct files *s = r->s;
    struct mcfs_error err = MCFS_ERROR_INIT, *asked = r->err;
    r->err = &err;
    for (unsigned i = 0; i < FILES_SHARDS; i++) {
        struct replay *p = &r->shards[i];
        judge_log(r, i);
        for (size_t k = 0; k < p->count; k++) {
            struct replay_file *f = &p->v[k];
            if (f->entry)
                take_entry(r, p, f, i);
            else if (f->there)
                clear_file(r, i, f->id, "a removed object's file");
        }
        if (s->next_id < p->next_id)
            s->next_id = p->next_id;
    }
    judge_marker(r);
    const char *at = (const char *)r->strangers.data;
    for (size_t done = 0; done < r->strangers.len; done += strlen(at + done) + 1)
        judge_stranger(r, at + done);
    r->err = asked;
    if (err.code && r->err)
        *r->err = err;
    return err.code ? -1 : 0;
}

/* ---- names that are none of ours ---- */

static bool matches(const char *name, const char *const *patterns)
{
    for (size_t i = 0; patterns[i]; i++)
        if (fnmatch(patterns[i], name, 0) == 0)
            return true;
    return false;
}

/* path: relative to the store's directory, "" for itself. */
static int check_names(struct recovery *r, const char *path, const char *const *known)
{
    static const char *const temporary[] = {"?.log.tmp", "format.tmp.*", NULL};
    char file[600];
    snprintf(file, sizeof(file), "./%s/.", path); /* which may be a link to elsewhere */
    _cleanup_dir_ DIR *dir = mcfs_open_dir(r->s->dir_fd, file);
    struct dirent *d;
    if (!dir)
        return errno == ENOENT ? 0 : mcfs_fail_errno(r->err, errno, "%s/%s", r->s->dir, path);
    while ((errno = 0, d = readdir(dir))) {
        if (strcmp(d->d_name, ".") == 0 || strcmp(d->d_name, "..") == 0 ||
            matches(d->d_name, known))
            continue;
        snprintf(file, sizeof(file), "%s%s%s", path, *path ? "/" : "", d->d_name);
        if (!*path || !matches(d->d_name, temporary))
            stranger(r, file, "it is not a file of this store");
        else if (!r->s->config.read_only && unlinkat(dirfd(dir), d->d_name, 0))
            stranger(r, file, "it cannot be removed");
    }
    return errno ? mcfs_fail_errno(r->err, errno, "%s/%s", r->s->dir, path) : 0;
}

static int check_all_names(struct recovery *r)
{
    const char *const top[] = {"lock", "lost+found", FILES_DIR, r->s->config.fsdir, NULL};
    const char *const own[] = {"format", "[0-9a-f].log", "values", "new", NULL};
    const char *const values[] = {"[0-9a-f][0-9a-f]", NULL};
    if (check_names(r, "", top) || check_names(r, FILES_DIR, own))
        return -1;
    return check_names(r, FILES_DIR "/values", values);
}

/* ---- for writing ---- */

/* Whatever is in new/ was being written when its writer died. */
static int clear_new(struct recovery *r)
{
    _cleanup_dir_ DIR *dir = mcfs_open_dir(r->s->own_fd, "new");
    struct dirent *d;
    if (!dir)
        return mcfs_fail_errno(r->err, errno, "%s/" FILES_DIR "/new", r->s->dir);
    while ((d = readdir(dir))) {
        char file[600];
        if (strcmp(d->d_name, ".") == 0 || strcmp(d->d_name, "..") == 0)
            continue;
        snprintf(file, sizeof(file), FILES_DIR "/new/%s", d->d_name);
        if (id_of(d->d_name) == 0 || unlinkat(dirfd(dir), d->d_name, 0))
            stranger(r, file, "it is not a file of this store");
    }
    return 0;
}

static int make_folders(struct recovery *r)
{
    static const char *const folders[] = {"new", "values"};
    for (size_t i = 0; i < MCFS_ARRAY_SIZE(folders); i++)
        if (mkdirat(r->s->own_fd, folders[i], 0755) && errno != EEXIST)
            return mcfs_fail_errno(r->err, errno, "%s/" FILES_DIR "/%s", r->s->dir, folders[i]);
    return 0;
}

static int open_log(struct recovery *r, unsigned shard)
{
    struct files *s = r->s;
    struct file_shard *h = &s->shards[shard];
    char name[16];
    if (h->renew || h->log_end < LOG_HEADER_SIZE)
        return file_log_renew(s, shard, s->marker != MARKER_MISSING, r->err);
    snprintf(name, sizeof(name), "%x.log", shard);
    h->log_fd = openat(s->own_fd, name, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    /* A record that was not written to its end must not stand in front of the next. */
    if (h->log_fd < 0 || ftruncate(h->log_fd, (off_t)h->log_end))
        return mcfs_fail_errno(r->err, errno, "%s/" FILES_DIR "/%s", s->dir, name);
    for (const struct file_entry *e = h->first; e; e = e->after)
        h->log_base += 80 + e->key_len;
    return 0;
}

static int prepare_writing(struct recovery *r)
{
    struct files *s = r->s;
    if (clear_new(r))
        return -1;
    bool renew = false;
    for (unsigned i = 0; i < FILES_SHARDS; i++)
        renew |= s->shards[i].renew;
    /* A log that is renewed forgets whose files are gone: they have to be gone for good. */
    if (renew && syncfs(s->own_fd))
        return mcfs_fail_errno(r->err, errno, "%s", s->dir);
    for (unsigned i = 0; renew && i < FILES_SHARDS; i++)
        s->shards[i].sync_all &= !s->shards[i].renew;
    for (unsigned i = 0; i < FILES_SHARDS; i++)
        if (open_log(r, i))
            return -1;
    return 0;
}

int files_recover(struct files *s, struct mcfs_backend_recovery *out, struct mcfs_error *err)
{
    struct recovery *r = calloc(1, sizeof(*r));
    if (!r)
        return mcfs_fail_errno(err, ENOMEM, "%s", s->dir);
    r->s = s;
    r->err = err;
    s->next_id = 1;
    int rc = !s->config.read_only && make_folders(r) ? -1 : 0;
    if (rc == 0)
        rc = look(r) || take_all(r) || check_all_names(r) ||
                     (!s->config.read_only && prepare_writing(r))
                 ? -1
                 : 0;
    r->out.objects = s->objects;
    r->out.bytes = s->object_bytes;
    r->out.buckets = 0;
    *out = r->out;
    forget_all(r);
    mcfs_buf_free(&r->strangers);
    free(r);
    return rc;
}
