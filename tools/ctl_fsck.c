/* SPDX-License-Identifier: Apache-2.0 */
/* mooncakefsctl fsck and scrub: an offload directory, by its files alone. */
#include "tools/ctl.h"
#include "tools/ctl_snapshot.h"

#include "backends/backends.h"
#include "backends/check.h"
#include "backends/storage_key.h"
#include "common/cleanup.h"
#include "common/clock.h"
#include "common/file.h"

#include <ftw.h>
#include <inttypes.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>

/* ---- what was found ---- */

struct findings {
    struct finding *v; /* with strings of their own */
    size_t count, cap;
    bool only_checksums, failed;
    struct pace *pace;
};

/* How fast, and how far: what a scrub reads. */
struct pace {
    uint64_t done, total;
    uint64_t bytes_per_second; /* 0: as fast as it goes */
    int64_t started_ns;
};

static void on_read(uint64_t bytes, void *arg)
{
    struct pace *p = ((struct findings *)arg)->pace;
    p->done += bytes;
    ctl_progress(p->done, MCFS_MAX(p->total, p->done + 1), NULL);
    if (!p->bytes_per_second)
        return;
    double due = (double)p->done / (double)p->bytes_per_second;
    int64_t wait = p->started_ns + (int64_t)(due * 1e9) - mcfs_mono_ns();
    if (wait > 0) {
        struct timespec t = mcfs_timespec(wait);
        nanosleep(&t, NULL);
    }
}

static void on_finding(const struct finding *f, void *arg)
{
    struct findings *all = arg;
    if (all->only_checksums && f->kind != FINDING_CHECKSUM)
        return;
    if (all->count == all->cap) {
        size_t cap = all->cap ? all->cap * 2 : 64;
        struct finding *v = realloc(all->v, cap * sizeof(*v));
        all->failed |= !v;
        if (!v)
            return;
        all->v = v;
        all->cap = cap;
    }
    char *key = malloc(f->key.len + 1);
    struct finding copy = *f;
    copy.file = strdup(f->file);
    copy.what = strdup(f->what);
    if (!key || !copy.file || !copy.what) {
        free(key);
        free((char *)(uintptr_t)copy.file);
        free((char *)(uintptr_t)copy.what);
        all->failed = true;
        return;
    }
    if (f->key.len)
        memcpy(key, f->key.data, f->key.len);
    copy.key = mcfs_slice(key, f->key.len);
    all->v[all->count++] = copy;
}

static void findings_clear(struct findings *all)
{
    for (size_t i = 0; i < all->count; i++) {
        free((char *)(uintptr_t)all->v[i].file);
        free((char *)(uintptr_t)all->v[i].what);
        free((char *)(uintptr_t)all->v[i].key.data);
    }
    free(all->v);
    all->v = NULL;
    all->count = all->cap = 0;
}

static size_t count_damage(const struct findings *all, bool repairable)
{
    size_t n = 0;
    for (size_t i = 0; i < all->count; i++)
        n += finding_is_damage(all->v[i].kind) && (!repairable || all->v[i].repair != REPAIR_NONE);
    return n;
}

/* ---- whose directory it is ---- */

/* A process that has a file of the directory open; Mooncake takes no lock.  0: none that we may
 * see.
 */
static long find_user(const char *dir)
{
    _cleanup_dir_ DIR *proc = opendir("/proc");
    struct dirent *p, *d;
    size_t len = strlen(dir);
    while (proc && (p = readdir(proc))) {
        char path[PATH_MAX], target[PATH_MAX];
        long pid = strtol(p->d_name, NULL, 10);
        snprintf(path, sizeof(path), "/proc/%s/fd", p->d_name);
        _cleanup_dir_ DIR *fds = pid > 0 && pid != (long)getpid() ? opendir(path) : NULL;
        while (fds && (d = readdir(fds))) {
            ssize_t n = readlinkat(dirfd(fds), d->d_name, target, sizeof(target) - 1);
            if (n > (ssize_t)len && strncmp(target, dir, len) == 0 && target[len] == '/')
                return pid;
        }
    }
    return 0;
}

/* ---- output ---- */

static void print_key(struct mcfs_slice on_disk)
{
    _cleanup_buf_ struct mcfs_buf whole = MCFS_BUF_INIT;
    struct mcfs_slice tenant, key;
    if (!on_disk.len)
        return;
    storage_key_complete(on_disk, &whole);
    if (whole.failed)
        return;
    storage_key_split(mcfs_slice(whole.data, whole.len), &tenant, &key);
    printf(" (%.*s ", MCFS_SLICE_ARG(tenant));
    for (size_t i = 0; i < key.len; i++) {
        unsigned char ch = (unsigned char)key.data[i];
        if (ch < 0x20 || ch == 0x7f || ch == '\\')
            printf("\\x%02x", ch);
        else
            putchar(ch);
    }
    putchar(')');
}

static const char *fate(const struct finding *f, const bool *done, size_t i)
{
    if (!finding_is_damage(f->kind))
        return "";
    if (done)
        return done[i] ? ": repaired" : ": left";
    return f->repair == REPAIR_NONE ? "" : ": --repair drops it";
}

static void print_findings(const struct findings *all, const bool *done)
{
    for (size_t i = 0; i < all->count; i++) {
        const struct finding *f = &all->v[i];
        printf("%s: %s", finding_is_damage(f->kind) ? finding_name(f->kind) : "note", f->file);
        if (f->offset)
            printf(", offset %" PRIu64, f->offset);
        printf(": %s", f->what);
        print_key(f->key);
        printf("%s\n", all->only_checksums ? "" : fate(f, done, i));
    }
}

static json_t *finding_json(const struct finding *f, const bool *done, size_t i)
{
    json_t *o = json_pack("{s:s, s:b, s:o, s:I, s:s, s:b}", "kind", finding_name(f->kind), "damage",
                          (int)finding_is_damage(f->kind), "file",
                          ctl_json_bytes(mcfs_slice_str(f->file)), "offset", (json_int_t)f->offset,
                          "what", f->what, "repaired", done ? (int)done[i] : 0);
    _cleanup_buf_ struct mcfs_buf whole = MCFS_BUF_INIT;
    struct mcfs_slice tenant, key;
    if (!f->key.len || !o)
        return o;
    storage_key_complete(f->key, &whole);
    if (whole.failed)
        return o;
    storage_key_split(mcfs_slice(whole.data, whole.len), &tenant, &key);
    json_object_set_new(o, "tenant", ctl_json_bytes(tenant));
    json_object_set_new(o, "key", ctl_json_bytes(key));
    return o;
}

static void print_result(const struct ctl *c, const struct store_check *k,
                         const struct findings *all, const bool *done, size_t left)
{
    if (!c->o.json) {
        print_findings(all, done);
        printf("%s: %s, %" PRIu64 " objects, %s; %s read, %" PRIu64
               " objects without a checksum; %zu damaged%s\n",
               k->dir, k->layout->name, k->objects, ctl_bytes(k->bytes), ctl_bytes(k->read_bytes),
               k->without_checksum, left, done ? " after the repair" : "");
        return;
    }
    json_t *list = json_array();
    for (size_t i = 0; i < all->count; i++)
        json_array_append_new(list, finding_json(&all->v[i], done, i));
    ctl_print_json(json_pack("{s:o, s:s, s:I, s:I, s:I, s:I, s:o, s:I, s:b}", "dir",
                             ctl_json_bytes(mcfs_slice_str(k->dir)), "layout", k->layout->name,
                             "objects", (json_int_t)k->objects, "bytes", (json_int_t)k->bytes,
                             "read_bytes", (json_int_t)k->read_bytes, "without_checksum",
                             (json_int_t)k->without_checksum, "findings", list, "damage",
                             (json_int_t)left, "clean", left == 0));
}

/* ---- the commands ---- */

static uint64_t total_bytes; /* nftw has no argument to pass */

static int add_size(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)path;
    (void)ftw;
    total_bytes += type == FTW_F ? (uint64_t)st->st_size : 0;
    return 0;
}

static int check(struct store_check *k, struct findings *all, struct mcfs_error *err)
{
    all->pace->started_ns = mcfs_mono_ns();
    all->pace->done = 0;
    int rc = store_check(k, err);
    ctl_progress(1, 1, NULL); /* takes the bar away */
    return all->failed ? mcfs_fail_errno(err, ENOMEM, "%s", k->dir) : rc;
}

/* Finds the store; its directory is the caller's to free. */
static char *open_place(struct ctl *c, const char *word, struct store_check *k,
                        struct mcfs_error *err)
{
    char *dir = mcfs_backend_dir(word, err);
    if (!dir)
        return NULL;
    *k = (struct store_check){.dir = dir, .fsdir = c->o.fsdir};
    if (!c->o.backend)
        k->layout = mcfs_backend_recognise(dir, c->o.fsdir, err);
    else if (!(k->layout = mcfs_backend_find(c->o.backend)))
        mcfs_fail(err, MCFS_INVALID_PARAMS, "no such storage backend: '%s'", c->o.backend);
    if (k->layout)
        return dir;
    free(dir);
    return NULL;
}

static void prepare(struct ctl *c, struct store_check *k, struct findings *all, struct pace *pace)
{
    total_bytes = 0;
    nftw(k->dir, add_size, 16, FTW_PHYS);
    *pace = (struct pace){.total = total_bytes, .bytes_per_second = c->o.bandwidth};
    all->pace = pace;
    k->sink = (struct finding_sink){.report = on_finding, .read = on_read, .arg = all};
}

static int own(const char *dir, int *lock, struct mcfs_error *err)
{
    long user = find_user(dir);
    if (user)
        return mcfs_fail(err, MCFS_FILE_LOCK_FAIL, "%s is in use by process %ld", dir, user);
    *lock = mcfs_own_dir(dir, err);
    return *lock < 0 ? -1 : 0;
}

/* Drops what can be dropped, and looks again: *left is the damage that there is then. */
static int repair(struct store_check *k, struct findings *all, bool *done, size_t *left, int *lock,
                  struct mcfs_error *err)
{
    struct findings after = {.pace = all->pace};
    if (store_repair_opens(k)) {
        close(*lock); /* opening the store takes it */
        *lock = -1;
    }
    if (store_repair(k, all->v, all->count, done, err))
        return -1;
    k->sink.arg = &after;
    int rc = check(k, &after, err);
    *left = count_damage(&after, false);
    findings_clear(&after);
    return rc;
}

static int finish(struct ctl *c, const struct store_check *k, const struct findings *all,
                  const bool *done, size_t left, struct mcfs_error *err)
{
    print_result(c, k, all, done, left);
    if (left == 0)
        return EXIT_DONE;
    mcfs_fail(err, MCFS_CHECKSUM_MISMATCH, "%s is damaged (%zu)", k->dir, left);
    return EXIT_FAILED;
}

int ctl_fsck(struct ctl *c, int argc, char **argv, struct mcfs_error *err)
{
    struct findings all = {0};
    struct store_check k;
    struct pace pace;
    char lock_path[PATH_MAX];
    _cleanup_free_ bool *done = NULL;
    _cleanup_fd_ int lock = -1;
    if (argc != 1)
        return EXIT_USAGE;
    _cleanup_free_ char *dir = open_place(c, argv[0], &k, err);
    if (!dir)
        return EXIT_FAILED;
    snprintf(lock_path, sizeof(lock_path), "%s/lock", dir);
    bool had_lock = access(lock_path, F_OK) == 0;
    prepare(c, &k, &all, &pace);
    int rc = c->o.repair ? own(dir, &lock, err) : 0;
    if (rc == 0)
        rc = check(&k, &all, err);
    size_t left = count_damage(&all, false);
    if (rc == 0 && c->o.repair && count_damage(&all, true)) {
        done = calloc(all.count, sizeof(*done));
        rc = done ? repair(&k, &all, done, &left, &lock, err)
                  : mcfs_fail_errno(err, ENOMEM, "%s", dir);
    }
    if (lock >= 0 && !had_lock)
        unlink(lock_path);
    int status = rc ? EXIT_FAILED : finish(c, &k, &all, done, left, err);
    findings_clear(&all);
    return status;
}

int ctl_scrub(struct ctl *c, int argc, char **argv, struct mcfs_error *err)
{
    struct findings all = {.only_checksums = true};
    struct store_check k;
    struct pace pace;
    if (argc != 1)
        return EXIT_USAGE;
    _cleanup_free_ char *dir = open_place(c, argv[0], &k, err);
    if (!dir)
        return EXIT_FAILED;
    prepare(c, &k, &all, &pace);
    k.read_all = true;
    int status = EXIT_FAILED;
    if (check(&k, &all, err) == 0)
        status = finish(c, &k, &all, NULL, count_damage(&all, false), err);
    findings_clear(&all);
    return status;
}
