/* SPDX-License-Identifier: Apache-2.0 */
/* What is special about the file-per-key store: files that are objects, death after any call,
 * damage anywhere, Mooncake's own files beside ours, fsck. */
#include "backends/backends.h"
#include "backends/check.h"
#include "backends/file_per_key/files_marker.h"
#include "common/file.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define TENANT MCFS_SLICE_LITERAL("default")
#define SLICE(text) mcfs_slice_str(text)
#define OWN "mooncakefs_files"

static char dir[64];
static const struct mcfs_backend_ops *ops;

/* ---- calls that change files: a child can be made to die after any of them ---- */

static int die_after; /* of so many; 0: never */
static bool die_half; /* in the middle of it, when it is a write */
static int made;

static void die(void)
{
    syscall(SYS_kill, syscall(SYS_getpid), SIGKILL);
    for (;;)
        pause();
}

static long counted(long rc)
{
    if (die_after && ++made == die_after)
        die();
    return rc;
}

static void count_write(int fd, const void *data, size_t len, off64_t off)
{
    if (die_after && die_half && made + 1 == die_after) {
        syscall(SYS_pwrite64, fd, data, len / 2, off);
        die();
    }
}

ssize_t pwrite64(int fd, const void *data, size_t len, off64_t off)
{
    count_write(fd, data, len, off);
    return counted(syscall(SYS_pwrite64, fd, data, len, off));
}

int openat64(int at, const char *path, int flags, ...)
{
    va_list list;
    va_start(list, flags);
    mode_t mode = flags & O_CREAT ? va_arg(list, mode_t) : 0;
    va_end(list);
    long rc = syscall(SYS_openat, at, path, flags, mode);
    return (int)(flags & (O_CREAT | O_TRUNC) ? counted(rc) : rc);
}

int renameat2(int from, const char *old, int to, const char *new, unsigned flags)
{
    return (int)counted(syscall(SYS_renameat2, from, old, to, new, flags));
}

int renameat(int from, const char *old, int to, const char *new)
{
    return (int)counted(syscall(SYS_renameat2, from, old, to, new, 0));
}

int rename(const char *old, const char *new)
{
    return (int)counted(syscall(SYS_renameat2, AT_FDCWD, old, AT_FDCWD, new, 0));
}

int unlinkat(int at, const char *path, int flags)
{
    return (int)counted(syscall(SYS_unlinkat, at, path, flags));
}

int unlink(const char *path)
{
    return (int)counted(syscall(SYS_unlinkat, AT_FDCWD, path, 0));
}

int mkdirat(int at, const char *path, mode_t mode)
{
    return (int)counted(syscall(SYS_mkdirat, at, path, mode));
}

int ftruncate64(int fd, off64_t len)
{
    return (int)counted(syscall(SYS_ftruncate, fd, len));
}

/* ---- helpers ---- */

static void shell(const char *fmt, const char *arg)
{
    char command[600];
    snprintf(command, sizeof(command), fmt, arg, dir, dir);
    cr_assert_eq(system(command), 0, "%s", command);
}

static void setup(void)
{
    ops = mcfs_backend_find("file_per_key_storage_backend");
    strcpy(dir, "/tmp/mcfs-files-XXXXXX");
    cr_assert_not_null(mkdtemp(dir));
}

static void teardown(void)
{
    shell("rm -rf %2$s", "");
}

TestSuite(files, .init = setup, .fini = teardown, .timeout = 300);

static struct mcfs_backend_recovery found;

static struct mcfs_backend *try_open(bool read_only, struct mcfs_error *err)
{
    struct mcfs_backend_config config = {
        .dir = dir, .read_only = read_only, .flush_interval_ms = UINT32_MAX};
    return ops->open(&config, &found, err);
}

static struct mcfs_backend *open_store(void)
{
    struct mcfs_error err = MCFS_ERROR_INIT;
    struct mcfs_backend *b = try_open(false, &err);
    cr_assert_not_null(b, "%s", err.msg);
    return b;
}

static void close_store(struct mcfs_backend *b)
{
    struct mcfs_error err = MCFS_ERROR_INIT;
    cr_assert_eq(ops->close(b, &err), 0, "%s", err.msg);
}

static void content(uint64_t seed, char *out, size_t size)
{
    for (size_t i = 0; i < size; i++)
        out[i] = (char)(seed * 31 + i * (seed + 7));
}

#define SIZE 3000

static int put_as(struct mcfs_backend *b, const char *key, uint64_t version, uint64_t seed)
{
    char data[SIZE];
    content(seed, data, SIZE);
    struct mcfs_backend_put item = {
        .object = {.tenant = TENANT, .key = SLICE(key), .version = version, .size = SIZE},
        .data = data};
    ops->put(b, &item, 1);
    return item.err.code;
}

static int read_as(struct mcfs_backend *b, const char *key, uint64_t version, uint64_t seed)
{
    char want[SIZE], got[SIZE + 1];
    struct mcfs_error err = MCFS_ERROR_INIT;
    struct mcfs_backend_reader *r = ops->reader_open(b, TENANT, SLICE(key), version, &err);
    if (!r)
        return err.code;
    content(seed, want, SIZE);
    int64_t n = ops->reader_read(r, got, sizeof(got), 0, &err);
    int code = n < 0 ? err.code : 0;
    if (code == 0 && ops->reader_verify(r, &err))
        code = err.code;
    if (code == 0)
        cr_assert(n == SIZE && memcmp(want, got, SIZE) == 0, "%s has other bytes", key);
    ops->reader_close(r);
    return code;
}

static int remove_key(struct mcfs_backend *b, const char *key, uint64_t version)
{
    struct mcfs_backend_name n = {.tenant = TENANT, .key = SLICE(key), .version = version};
    ops->remove(b, &n, 1);
    return n.err.code;
}

static bool count_one(const struct mcfs_object *o, void *arg)
{
    (void)o;
    ++*(int *)arg;
    return true;
}

static int objects(struct mcfs_backend *b)
{
    int n = 0;
    cr_assert_eq(ops->scan(b, count_one, &n, NULL), 0);
    return n;
}

static struct mcfs_backend_place place_of(struct mcfs_backend *b, const char *key, uint64_t version)
{
    struct mcfs_backend_place p;
    cr_assert_eq(ops->locate(b, TENANT, SLICE(key), version, &p, NULL), 0);
    return p;
}

static int seen, logs_aside; /* nftw has no argument to pass */

static int see(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st, (void)ftw;
    seen += type == FTW_F;
    logs_aside += type == FTW_F && strstr(path, ".log");
    return 0;
}

/* Files below a folder of the store; logs_aside: so many of them are logs. */
static int files_below(const char *folder)
{
    char path[200];
    snprintf(path, sizeof(path), "%s/%s", dir, folder);
    seen = logs_aside = 0;
    nftw(path, see, 16, FTW_PHYS);
    return seen;
}

/* ---- fsck ---- */

struct findings {
    struct finding v[64];
    char files[64][128], keys[64][64];
    size_t count, damage;
};

static void note(const struct finding *f, void *arg)
{
    struct findings *all = arg;
    all->damage += finding_is_damage(f->kind);
    if (all->count == 64)
        return;
    size_t i = all->count++;
    all->v[i] = *f;
    snprintf(all->files[i], sizeof(all->files[i]), "%s", f->file);
    memcpy(all->keys[i], f->key.data, f->key.len < 64 ? f->key.len : 64);
    all->v[i].file = all->files[i];
    all->v[i].key.data = all->keys[i];
}

static struct store_check check_of(struct findings *all)
{
    *all = (struct findings){.count = 0};
    return (struct store_check){.layout = ops, .dir = dir, .sink = {.report = note, .arg = all}};
}

static struct findings fsck(void)
{
    struct findings all;
    struct store_check c = check_of(&all);
    struct mcfs_error err = MCFS_ERROR_INIT;
    cr_assert_eq(store_check(&c, &err), 0, "%s", err.msg);
    return all;
}

static void expect_clean(const char *when)
{
    struct findings all = fsck();
    (void)when; /* not every runner prints it */
    cr_assert_eq(all.count, 0, "%s: %s: %s", when, all.files[0], all.v[0].what);
}

static void repair(const struct findings *all)
{
    struct findings ignored, f = *all;
    struct store_check c = check_of(&ignored);
    struct mcfs_error err = MCFS_ERROR_INIT;
    bool done[64];
    for (size_t i = 0; i < f.count; i++) { /* they were copied */
        f.v[i].file = f.files[i];
        f.v[i].key.data = f.keys[i];
    }
    cr_assert(store_repair_opens(&c));
    cr_assert_eq(store_repair(&c, f.v, f.count, done, &err), 0, "%s", err.msg);
}

/* ---- the file is the object ---- */

Test(files, a_file_is_its_object)
{
    struct mcfs_backend *b = open_store();
    char path[700], data[SIZE], want[SIZE];
    cr_assert_eq(put_as(b, "k", 1, 5), 0);
    struct mcfs_backend_place p = place_of(b, "k", 1);
    cr_assert(p.whole_file && p.offset == 0 && p.length == SIZE && p.has_crc);
    snprintf(path, sizeof(path), "%s/%s", dir, p.file);
    content(5, want, SIZE);
    struct stat st;
    cr_assert(stat(path, &st) == 0 && st.st_size == SIZE);
    cr_assert_eq(mcfs_read_file(path, data, SIZE, NULL), SIZE);
    cr_assert_eq(memcmp(data, want, SIZE), 0);
    struct mcfs_backend_reader *r = ops->reader_open(b, TENANT, SLICE("k"), 1, NULL);
    uint64_t offset, length;
    cr_assert_geq(ops->reader_fd(r, &offset, &length), 0);
    cr_assert(offset == 0 && length == SIZE);
    ops->reader_close(r);
    /* A rename leaves the file where it is. */
    cr_assert_eq(ops->rekey(b, TENANT, SLICE("k"), 1, SLICE("other"), 2, NULL), 0);
    struct mcfs_backend_place q = place_of(b, "other", 2);
    cr_assert_str_eq(p.file, q.file);
    close_store(b);
}

Test(files, a_staging_file_becomes_the_object)
{
    struct mcfs_backend *b = open_store();
    char path[128], other[700], data[SIZE];
    struct stat before, after;
    content(5, data, SIZE);
    snprintf(path, sizeof(path), "%s.staging", dir);
    cr_assert_eq(mcfs_write_file(path, data, SIZE, 0600, false, NULL), 0);
    cr_assert_eq(stat(path, &before), 0);
    struct mcfs_backend_put item = {
        .object = {.tenant = TENANT, .key = SLICE("k"), .version = 1, .size = SIZE},
        .staging_path = path};
    cr_assert_eq(ops->put(b, &item, 1), 0, "%s", item.err.msg);
    struct mcfs_backend_place p = place_of(b, "k", 1);
    snprintf(other, sizeof(other), "%s/%s", dir, p.file);
    cr_assert(stat(other, &after) == 0 && after.st_ino == before.st_ino);
    cr_assert_eq(read_as(b, "k", 1, 5), 0);
    close_store(b);
}

Test(files, removed_files_go_and_logs_stay_short)
{
    struct mcfs_backend *b = open_store();
    struct mcfs_attr attr = {0600, 1, 2, 3};
    cr_assert_eq(put_as(b, "stays", 1, 1), 0);
    for (uint64_t v = 1; v <= 50; v++) {
        cr_assert_eq(put_as(b, "k", v, v), 0);
        cr_assert_eq(remove_key(b, "k", v), 0);
    }
    for (int i = 0; i < 40000; i++)
        cr_assert_eq(ops->set_attr(b, TENANT, SLICE("stays"), 1, &attr, NULL), 0);
    struct mcfs_backend_stats stats;
    ops->stats(b, &stats);
    cr_assert(stats.objects == 1 && stats.object_bytes == SIZE && stats.index_bytes > 0);
    cr_assert_eq(stats.dead_bytes, 50 * SIZE);
    close_store(b);
    cr_assert_eq(files_below(OWN "/values"), 1);
    shell("test $(cat %2$s/" OWN "/*.log | wc -c) -lt 20000%1$s", "");
    b = open_store();
    ops->stats(b, &stats);
    cr_assert(stats.used_bytes == SIZE && stats.dead_bytes == 0);
    cr_assert_eq(read_as(b, "stays", 1, 1), 0);
    close_store(b);
    expect_clean("at the end");
}

/* ---- death after any call ---- */

#define STEPS 14

/* What the store holds after so many steps: the seed of each key, 0 for none. */
static const char *const keys[] = {"a", "b", "c", "s"};
static const uint64_t states[STEPS + 1][4] = {
    {0, 0, 0, 0}, {1, 0, 0, 0}, {1, 2, 0, 0}, {1, 2, 0, 0}, {0, 2, 1, 0},
    {0, 2, 1, 4}, {0, 2, 1, 4}, {0, 0, 1, 4}, {0, 0, 1, 4}, {3, 0, 1, 4},
    {3, 0, 1, 4}, {3, 0, 0, 4}, {3, 0, 0, 4}, {3, 0, 0, 4}, {3, 0, 0, 4},
};

static void put_staging(struct mcfs_backend *b)
{
    char path[128], data[SIZE];
    content(4, data, SIZE);
    snprintf(path, sizeof(path), "%s.staging", dir);
    int fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    syscall(SYS_write, fd, data, SIZE);
    syscall(SYS_close, fd);
    struct mcfs_backend_put item = {
        .object = {.tenant = TENANT, .key = SLICE("s"), .version = 1, .size = SIZE},
        .staging_path = path};
    ops->put(b, &item, 1);
}

static void run_steps(int *done)
{
    struct mcfs_attr attr = {0700, 1, 2, 3};
    struct mcfs_error err = MCFS_ERROR_INIT;
    struct mcfs_backend *b = try_open(false, &err);
    if (!b)
        _exit(1);
    for (int i = 1; i <= STEPS; i++) {
        int rc = 0;
        switch (i) {
        case 1:
            rc = put_as(b, "a", 1, 1);
            break;
        case 2:
            rc = put_as(b, "b", 1, 2);
            break;
        case 4:
            rc = ops->rekey(b, TENANT, SLICE("a"), 1, SLICE("c"), 1, NULL);
            break;
        case 5:
            put_staging(b);
            break;
        case 6:
            rc = ops->set_attr(b, TENANT, SLICE("s"), 1, &attr, NULL);
            break;
        case 7:
            rc = remove_key(b, "b", 1);
            break;
        case 9:
            rc = put_as(b, "a", 1, 3);
            break;
        case 11:
            rc = remove_key(b, "c", 1);
            break;
        case 13: /* opens another time: logs are read, removed files go */
            rc = ops->close(b, NULL);
            b = try_open(false, &err);
            break;
        case 14:
            rc = ops->close(b, NULL);
            break;
        default:
            rc = ops->sync(b, NULL);
        }
        if (rc)
            _exit(2);
        *done = i;
    }
    _exit(0);
}

static bool is_state(struct mcfs_backend *b, int state)
{
    int n = 0;
    for (int k = 0; k < 4; k++) {
        uint64_t seed = states[state][k];
        int code = 0;
        struct mcfs_backend_place p;
        bool there = ops->locate(b, TENANT, SLICE(keys[k]), 1, &p, NULL) == 0;
        if (there != (seed != 0))
            return false;
        if (seed)
            code = read_as(b, keys[k], 1, seed);
        cr_assert_eq(code, 0, "%s: %s", keys[k], mcfs_code_name(code));
        n += there;
    }
    return objects(b) == n;
}

static void check_after_death(int done, int call)
{
    struct mcfs_error err = MCFS_ERROR_INIT;
    char path[128];
    (void)call;
    snprintf(path, sizeof(path), "%s/" OWN, dir);
    if (access(path, F_OK) == 0) {
        struct findings all = fsck();
        cr_assert_eq(all.damage, 0, "call %d: %s: %s", call, all.files[0], all.v[0].what);
    }
    int next = done < STEPS ? done + 1 : done;
    struct mcfs_backend *b = try_open(true, &err);
    cr_assert(b || err.code == MCFS_FILE_NOT_FOUND, "%s", err.msg);
    if (b) {
        cr_assert(is_state(b, done) || is_state(b, next), "call %d, read only", call);
        close_store(b);
    }
    b = open_store();
    cr_assert(is_state(b, done) || is_state(b, next), "call %d, step %d", call, done);
    cr_assert_eq(found.set_aside_files, 0, "call %d", call);
    cr_assert_eq(found.dropped_objects, 0, "call %d", call);
    close_store(b);
    expect_clean("after recovery");
    cr_assert_eq(files_below("lost+found"), 0);
}

static void die_after_each(bool half)
{
    int *done = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int status = 0;
    for (int call = 1;; call++) {
        shell("rm -rf %2$s && mkdir %2$s && rm -f %2$s.staging%1$s", "");
        *done = 0;
        pid_t pid = fork();
        if (pid == 0) {
            die_after = call;
            die_half = half;
            run_steps(done);
        }
        waitpid(pid, &status, 0);
        if (WIFEXITED(status))
            break;
        cr_assert_eq(WTERMSIG(status), SIGKILL);
        check_after_death(*done, call);
    }
    cr_assert_eq(WEXITSTATUS(status), 0, "step %d", *done + 1);
    cr_assert_eq(*done, STEPS);
    munmap(done, 4096);
}

Test(files, death_after_any_call)
{
    die_after_each(false);
}

Test(files, death_in_the_middle_of_any_write)
{
    die_after_each(true);
}

/* ---- damage to what says what there is ---- */

#define FEW 6

static void make_few(void)
{
    struct mcfs_backend *b = open_store();
    char key[16];
    for (uint64_t i = 1; i <= FEW; i++) {
        sprintf(key, "k%d", (int)i);
        cr_assert_eq(put_as(b, key, i, i), 0);
    }
    cr_assert_eq(ops->rekey(b, TENANT, SLICE("k1"), 1, SLICE("l1"), 1, NULL), 0);
    cr_assert_eq(ops->rekey(b, TENANT, SLICE("l1"), 1, SLICE("k1"), 1, NULL), 0);
    close_store(b);
}

/* Everything that can be found is whole; the number of it. */
static int found_whole(struct mcfs_backend *b)
{
    int n = 0;
    char key[16];
    for (uint64_t i = 1; i <= FEW; i++) {
        sprintf(key, "k%d", (int)i);
        int code = read_as(b, key, i, i);
        cr_assert(code == 0 || code == MCFS_REPLICA_IS_GONE, "%s: %s", key, mcfs_code_name(code));
        n += code == 0;
    }
    if (n < FEW)
        n += read_as(b, "l1", 1, 1) == 0;
    return n;
}

/* Damages one log and looks at what is left of the store, then puts everything back. */
static void damage_log(const char *name, size_t at, bool cut)
{
    char path[200];
    struct mcfs_error err = MCFS_ERROR_INIT;
    struct stat st;
    snprintf(path, sizeof(path), "%s/" OWN "/%s", dir, name);
    int fd = open(path, O_RDWR);
    unsigned char c;
    cr_assert(fd >= 0 && fstat(fd, &st) == 0 && pread(fd, &c, 1, (off_t)at) == 1);
    c ^= 0x10;
    cr_assert_eq(cut ? ftruncate(fd, (off_t)at) : pwrite(fd, &c, 1, (off_t)at) - 1, 0);
    close(fd);
    fsck();
    struct mcfs_backend *b = try_open(true, &err);
    cr_assert_not_null(b, "%s", err.msg);
    int there = found_whole(b);
    close_store(b);
    b = open_store();
    cr_assert_eq(found_whole(b), there, "%s, byte %d", name, (int)at);
    cr_assert_eq(objects(b), there);
    cr_assert_eq(put_as(b, "new", 1, 9), 0);
    close_store(b);
    expect_clean("after damage");
    b = open_store();
    cr_assert_eq(found_whole(b), there);
    cr_assert_eq(read_as(b, "new", 1, 9), 0);
    close_store(b);
    /* No value is lost: it is in the store or set aside.  (One that the end of a log named cannot
     * be told from a put that was not finished.) */
    int aside = files_below("lost+found");
    cr_assert_geq(there + aside - logs_aside, cut ? FEW - 1 : FEW, "%s, byte %d", name, (int)at);
    cr_assert_geq(there, FEW - 6);
}

static void damage_every_byte(bool cut)
{
    make_few();
    shell("cp -a %2$s %2$s.copy%1$s", "");
    size_t tried = 0;
    for (int log = 0; log < 16; log++) {
        char name[16], path[200];
        struct stat st;
        snprintf(name, sizeof(name), "%x.log", log);
        snprintf(path, sizeof(path), "%s.copy/" OWN "/%s", dir, name);
        cr_assert_eq(stat(path, &st), 0);
        /* Of the many logs without an object one is as good as another. */
        size_t step = st.st_size < 60 ? 17 : 1;
        for (size_t at = 0; at < (size_t)st.st_size; at += step, tried++) {
            shell("rm -rf %2$s && cp -a %2$s.copy %2$s%1$s", "");
            damage_log(name, at, cut);
        }
    }
    shell("rm -rf %2$s.copy%1$s", "");
    cr_assert_gt(tried, 300);
}

Test(files, a_log_with_any_byte_flipped)
{
    damage_every_byte(false);
}

Test(files, a_log_cut_at_any_byte)
{
    damage_every_byte(true);
}

Test(files, one_flipped_byte_costs_one_object)
{
    struct mcfs_backend *b = open_store();
    char key[16];
    for (uint64_t i = 1; i <= 100; i++) {
        sprintf(key, "k%d", (int)i);
        cr_assert_eq(put_as(b, key, 1, i), 0);
    }
    close_store(b);
    shell("printf '\\377' | dd of=%2$s/" OWN "/3.log bs=1 seek=90 conv=notrunc status=none%1$s",
          "");
    struct findings all = fsck();
    cr_assert_eq(all.damage, 1);
    cr_assert(all.v[0].kind == FINDING_INDEX && all.v[0].repair == REPAIR_RECOVER);
    repair(&all);
    expect_clean("after the repair");
    b = open_store();
    cr_assert_eq(objects(b), 99);
    close_store(b);
    cr_assert_eq(files_below("lost+found"), 2); /* the log as it was, and the value */
}

Test(files, a_missing_log)
{
    make_few();
    shell("rm %2$s/" OWN "/*.log%1$s", "");
    struct findings all = fsck();
    cr_assert_eq(all.damage, 16);
    repair(&all);
    expect_clean("after the repair");
    cr_assert_eq(files_below("lost+found"), FEW);
}

Test(files, a_damaged_marker)
{
    char path[128];
    snprintf(path, sizeof(path), "%s/" OWN "/format", dir);
    make_few();
    shell("printf x >> %2$s/" OWN "/format%1$s", "");
    struct findings all = fsck();
    cr_assert(all.damage == 1 && all.v[0].repair == REPAIR_RECOVER);
    repair(&all);
    expect_clean("after the repair");
    cr_assert_eq(unlink(path), 0);
    all = fsck();
    cr_assert_eq(all.damage, 1);
    repair(&all);
    expect_clean("after the repair");
    struct mcfs_backend *b = open_store();
    cr_assert_eq(found_whole(b), FEW);
    close_store(b);
    /* One of a later format is not touched. */
    const char later[] = "mooncakefs file per key, format 2";
    char text[128];
    extern uint32_t mcfs_crc32c(uint32_t crc, const void *data, size_t len);
    int n = snprintf(text, sizeof(text), "%s, crc32c %08x\n", later,
                     mcfs_crc32c(0, later, strlen(later)));
    cr_assert_eq(mcfs_write_file(path, text, (size_t)n, 0644, false, NULL), 0);
    struct mcfs_error err = MCFS_ERROR_INIT;
    cr_assert_null(try_open(false, &err));
    cr_assert_eq(err.code, MCFS_INVALID_VERSION);
    cr_assert_not_null(strstr(err.msg, "format"), "%s", err.msg);
}

/* ---- damage to values ---- */

Test(files, damaged_values_are_found_and_dropped)
{
    make_few();
    struct mcfs_backend *b = open_store();
    struct mcfs_backend_place flipped = place_of(b, "k1", 1), cut = place_of(b, "k2", 2),
                              missing = place_of(b, "k3", 3), longer = place_of(b, "k4", 4);
    close_store(b);
    expect_clean("before");
    shell("printf '\\377\\376' | dd of=%2$s/%1$s bs=1 seek=9 conv=notrunc status=none",
          flipped.file);
    shell("truncate -s 100 %2$s/%1$s", cut.file);
    shell("rm %2$s/%1$s", missing.file);
    shell("echo more >> %2$s/%1$s", longer.file);
    shell("echo what > %2$s/" OWN "/values/what%1$s && echo what > %2$s/what", "");
    struct findings all = fsck();
    cr_assert_eq(all.damage, 3);
    repair(&all);
    all = fsck();
    cr_assert_eq(all.damage, 0, "%s: %s", all.files[0], all.v[0].what);
    cr_assert_eq(all.count, 1); /* the longer one */
    cr_assert_eq(files_below("lost+found"), 2);
    b = open_store();
    cr_assert_eq(objects(b), FEW - 3);
    cr_assert_eq(found_whole(b), FEW - 3);
    close_store(b);
}

Test(files, a_missing_file_is_damage_to_a_reader)
{
    make_few();
    struct mcfs_backend *b = open_store();
    struct mcfs_backend_place p = place_of(b, "k3", 3);
    shell("rm %2$s/%1$s", p.file);
    cr_assert_eq(read_as(b, "k3", 3, 3), MCFS_CHECKSUM_MISMATCH);
    cr_assert_eq(remove_key(b, "k3", 3), 0);
    close_store(b);
    expect_clean("after the removal");
}

/* ---- looking while the owner writes ---- */

static atomic_bool stop;
/* Versions put and removed so far; the objects between the two are there. */
static _Atomic uint64_t put_begun, put_done, removal_begun, removal_done;

static void *keep_writing(void *arg)
{
    struct mcfs_backend *b = arg;
    for (uint64_t i = 1; !atomic_load(&stop); i++) {
        char key[16];
        sprintf(key, "k%d", (int)(i % 50));
        atomic_store(&put_begun, i);
        cr_assert_eq(put_as(b, key, i, 1), 0);
        atomic_store(&put_done, i);
        if (i > 30) {
            sprintf(key, "k%d", (int)((i - 30) % 50));
            atomic_store(&removal_begun, i - 30);
            cr_assert_eq(remove_key(b, key, i - 30), 0);
            atomic_store(&removal_done, i - 30);
        }
        if (i % 7 == 0)
            cr_assert_eq(ops->sync(b, NULL), 0);
    }
    return NULL;
}

struct look {
    uint64_t first, last; /* versions that can be met */
    uint64_t from, to;    /* versions that were there all the time */
    uint64_t met;         /* of the latter */
};

static bool look_at(const struct mcfs_object *o, void *arg)
{
    struct look *l = arg;
    cr_assert(o->version >= l->first && o->version <= l->last);
    l->met += o->version >= l->from && o->version <= l->to;
    return true;
}

/* A look is no view of one moment: what is put or removed meanwhile may be met or not. */
Test(files, looking_while_the_owner_writes)
{
    struct mcfs_backend_config config = {.dir = dir, .flush_interval_ms = 5};
    struct mcfs_backend *b = ops->open(&config, &found, NULL);
    cr_assert_not_null(b);
    pthread_t writer;
    atomic_store(&stop, false);
    cr_assert_eq(pthread_create(&writer, NULL, keep_writing, b), 0);
    for (int i = 0; i < 100; i++) {
        struct mcfs_error err = MCFS_ERROR_INIT;
        struct findings all = fsck();
        cr_assert_eq(all.damage, 0, "%s: %s", all.files[0], all.v[0].what);
        struct look look = {.first = atomic_load(&removal_done) + 1, .to = atomic_load(&put_done)};
        struct mcfs_backend *looks = try_open(true, &err);
        cr_assert_not_null(looks, "%s", err.msg);
        look.last = atomic_load(&put_begun);
        look.from = atomic_load(&removal_begun) + 1;
        cr_assert_eq(ops->scan(looks, look_at, &look, NULL), 0);
        cr_assert_eq(look.met, look.to >= look.from ? look.to - look.from + 1 : 0);
        close_store(looks);
    }
    atomic_store(&stop, true);
    pthread_join(writer, NULL);
    close_store(b);
    expect_clean("at the end");
}

/* ---- Mooncake's own files ---- */

struct pick {
    char key[300], tenant[64];
    uint64_t version, size;
    int count;
};

static bool pick_one(const struct mcfs_object *o, void *arg)
{
    struct pick *p = arg;
    if (p->count++ == 0) {
        snprintf(p->key, sizeof(p->key), "%.*s", (int)o->key.len, o->key.data);
        snprintf(p->tenant, sizeof(p->tenant), "%.*s", (int)o->tenant.len, o->tenant.data);
        p->version = o->version;
        p->size = o->size;
    }
    return true;
}

static struct pick pick(struct mcfs_backend *b)
{
    struct pick p = {.count = 0};
    cr_assert_eq(ops->scan(b, pick_one, &p, NULL), 0);
    return p;
}

static char *bytes_of(struct mcfs_backend *b, const struct pick *p, const char *key,
                      uint64_t version)
{
    char *data = malloc(p->size + 1);
    struct mcfs_error err = MCFS_ERROR_INIT;
    struct mcfs_backend_reader *r =
        ops->reader_open(b, SLICE(p->tenant), SLICE(key), version, &err);
    cr_assert_not_null(r, "%s", err.msg);
    cr_assert_eq(ops->reader_read(r, data, p->size + 1, 0, NULL), (int64_t)p->size);
    cr_assert_eq(ops->reader_verify(r, NULL), 0);
    ops->reader_close(r);
    return data;
}

Test(files, mooncakes_files_are_served_beside_ours)
{
    shell("cp -r " TEST_DATA_DIR "/file_per_key/. %2$s && chmod -R u+w %2$s%1$s", "");
    struct mcfs_backend *b = open_store();
    cr_assert_eq(found.objects, 200);
    cr_assert_eq(put_as(b, "ours", 1, 1), 0);
    cr_assert_eq(objects(b), 201);
    int before = files_below("file_per_key_dir");

    /* Removed: the file goes. */
    cr_assert_eq(remove_key(b, "ours", 1), 0);
    struct pick p = pick(b);
    struct mcfs_backend_name n = {
        .tenant = SLICE(p.tenant), .key = SLICE(p.key), .version = p.version};
    cr_assert_eq(ops->remove(b, &n, 1), 0);
    cr_assert_eq(objects(b), 199);
    cr_assert_eq(files_below("file_per_key_dir"), before - 1);
    cr_assert_null(ops->reader_open(b, SLICE(p.tenant), SLICE(p.key), p.version, NULL));

    /* Renamed, or given attributes: it becomes ours. */
    p = pick(b);
    char *want = bytes_of(b, &p, p.key, p.version);
    struct mcfs_attr attr = {0700, 5, 6, 7};
    cr_assert_eq(ops->set_attr(b, SLICE(p.tenant), SLICE(p.key), p.version, &attr, NULL), 0);
    cr_assert_eq(files_below("file_per_key_dir"), before - 2);
    cr_assert_eq(ops->rekey(b, SLICE(p.tenant), SLICE(p.key), p.version, SLICE("renamed"),
                            p.version + 1, NULL),
                 0);
    struct pick q = pick(b);
    cr_assert_str_eq(q.key, "renamed");
    cr_assert_eq(objects(b), 199);
    for (int round = 0; round < 2; round++) {
        char *got = bytes_of(b, &p, "renamed", p.version + 1);
        cr_assert_eq(memcmp(want, got, p.size), 0);
        free(got);
        close_store(b);
        expect_clean("beside Mooncake's");
        b = open_store();
        cr_assert_eq(objects(b), 199);
    }
    free(want);
    close_store(b);

    /* Looking at both. */
    struct mcfs_error err = MCFS_ERROR_INIT;
    b = try_open(true, &err);
    cr_assert_not_null(b, "%s", err.msg);
    cr_assert_eq(objects(b), 199);
    close_store(b);
}

Test(files, mooncakes_files_are_evicted_first)
{
    shell("cp -r " TEST_DATA_DIR "/file_per_key/. %2$s && chmod -R u+w %2$s%1$s", "");
    struct mcfs_backend_config config = {.dir = dir, .eviction_policy = "lru"};
    struct mcfs_error err = MCFS_ERROR_INIT;
    struct mcfs_backend *b = ops->open(&config, &found, &err);
    cr_assert_not_null(b, "%s", err.msg);
    cr_assert_eq(put_as(b, "ours", 1, 1), 0);
    int before = files_below("file_per_key_dir"), theirs = 0, ours = 0;
    struct mcfs_backend_victim v[64];
    struct mcfs_backend_cursor at = {0};
    struct pick kept = {.count = 0};
    for (int64_t n; (n = ops->evict_choose(b, &at, UINT64_MAX, v, 64, &err)) > 0;) {
        cr_assert_eq(ours, 0, "ours is the last");
        cr_assert_eq(ops->evict_hold(b, v, (size_t)n), (size_t)n);
        for (int64_t i = 0; i < n; i++) {
            bool is_ours = mcfs_slice_eq(v[i].key, SLICE("ours"));
            cr_assert_null(ops->reader_open(b, v[i].tenant, v[i].key, v[i].version, NULL));
            struct mcfs_attr attr = {0700, 5, 6, 7};
            cr_assert(is_ours ||
                      ops->set_attr(b, v[i].tenant, v[i].key, v[i].version, &attr, NULL));
            v[i].gone = theirs + i > 0 && !is_ours; /* the first one is refused */
            if (theirs + i == 0) {
                snprintf(kept.key, sizeof(kept.key), "%.*s", (int)v[i].key.len, v[i].key.data);
                snprintf(kept.tenant, sizeof(kept.tenant), "%.*s", (int)v[i].tenant.len,
                         v[i].tenant.data);
                kept.version = v[i].version;
                kept.size = v[i].size;
            }
            ours += is_ours;
        }
        theirs += (int)n;
        cr_assert_eq(ops->evict_end(b, v, (size_t)n), 0);
    }
    cr_assert_eq(theirs, 201);
    cr_assert_eq(ours, 1);
    cr_assert_eq(objects(b), 2);
    cr_assert_eq(files_below("file_per_key_dir"), before - 199);
    free(bytes_of(b, &kept, kept.key, kept.version));
    struct mcfs_backend_stats stats;
    ops->stats(b, &stats);
    cr_assert_eq(stats.evictions, 199);
    close_store(b);
    expect_clean("after evictions");
}

Test(files, a_directory_of_another_layout_is_refused)
{
    struct mcfs_error err = MCFS_ERROR_INIT;
    shell("cp -r " TEST_DATA_DIR "/bucket/. %2$s && chmod -R u+w %2$s%1$s", "");
    cr_assert_null(try_open(false, &err));
    cr_assert(err.code == MCFS_INVALID_PARAMS && strstr(err.msg, "bucket_storage_backend"), "%s",
              err.msg);
    cr_assert_eq(files_below("lost+found"), 0);
}

Test(files, fsdir_cannot_be_our_own_folder)
{
    struct mcfs_backend_config config = {.dir = dir, .fsdir = OWN};
    struct mcfs_error err = MCFS_ERROR_INIT;
    cr_assert_null(ops->open(&config, &found, &err));
    cr_assert_eq(err.code, MCFS_INVALID_PARAMS);
}
