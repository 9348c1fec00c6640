/* SPDX-License-Identifier: Apache-2.0 */
/* The engines alone: ends of files, nothing aligned, errors and short transfers within a batch, and
 * what is left when the kernel refuses io_uring, in whole or in part. */
#include "backends/backends.h"
#include "backends/io/io.h"
#include "common/log.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096u

static char dir[64];
static const enum io_engine engines[] = {IO_PLAIN, IO_URING};

static void setup(void)
{
    strcpy(dir, "/var/tmp/mcfs-io-XXXXXX"); /* a disk: O_DIRECT is wanted */
    cr_assert_not_null(mkdtemp(dir));
}

static void teardown(void)
{
    char command[128];
    snprintf(command, sizeof(command), "rm -rf %s", dir);
    cr_assert_eq(system(command), 0);
}

TestSuite(io, .init = setup, .fini = teardown, .timeout = 200);

static int new_file(const char *name)
{
    char path[128];
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    cr_assert_geq(fd, 0);
    return fd;
}

static void run(enum io_engine engine, struct io_item *items, size_t n)
{
    struct io_batch b;
    io_begin(&b, engine);
    for (size_t i = 0; i < n; i++)
        io_add(&b, &items[i]);
    io_end(&b);
}

/* In a process of its own, which must end well. */
static void in_child(void (*fn)(void))
{
    int status;
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        fn();
        fflush(NULL);
        _exit(0);
    }
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0, "status %d", status);
}

#define child_assert(c)                                                                            \
    do {                                                                                           \
        if (!(c)) {                                                                                \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #c);                                \
            _exit(1);                                                                              \
        }                                                                                          \
    } while (0)

Test(io, an_item_is_finished_or_fails_alone)
{
    char buf[3][9000];
    int fd = new_file("file"), closed = open("/dev/null", O_RDONLY);
    for (int e = 0; e < 2; e++) {
        struct io_batch b, inner;
        struct io_item w = io_item(IO_WRITE, fd, memset(buf[0], 'x', 9000), 9000, 0);
        run(engines[e], &w, 1);
        cr_assert_eq(w.errnum, 0);
        cr_assert_eq(w.done, 9000);
        struct io_item r[3] = {io_item(IO_READ, fd, buf[0], 9000, 100),
                               io_item(IO_WRITE, closed, buf[1], 10, 0),
                               io_item(IO_READ, fd, buf[2], 9000, 9000)};
        r[0].direct_fd = io_open_direct(fd, IO_READ);
        io_begin(&b, engines[e]);
        for (int i = 0; i < 3; i++)
            io_add(&b, &r[i]);
        io_begin(&inner, engines[e]); /* another one of the same thread */
        struct io_item within = io_item(IO_READ, fd, buf[1], 10, 0);
        io_add(&inner, &within);
        io_end(&inner);
        io_end(&b);
        cr_assert_eq(within.done, 10);
        cr_assert_eq(r[0].done, 8900);
        cr_assert_eq(r[0].errnum, 0);
        cr_assert_eq(buf[0][8899], 'x');
        cr_assert_eq(r[1].errnum, EBADF);
        cr_assert_eq(r[1].done, 0);
        cr_assert_eq(r[2].done, 0);
        cr_assert_eq(r[2].errnum, 0);
        close(r[0].direct_fd);
    }
    close(fd);
    close(closed);
}

/* A process's own memory as a file: reading where a mapped file has ended is EIO, and a read that
 * runs into that is short first. */
Test(io, eio_in_the_middle_of_a_batch_is_of_one_item)
{
    int fd = open("/proc/self/mem", O_RDONLY);
    int short_file = new_file("short");
    static char buf[40][3 * PAGE];
    cr_assert_eq(ftruncate(short_file, 2 * PAGE), 0);
    char *mapped = mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, short_file, 0);
    cr_assert(mapped != MAP_FAILED && fd >= 0);
    memset(mapped, 'm', 2 * PAGE);
    for (int e = 0; e < 2; e++) {
        struct io_item items[40];
        for (int i = 0; i < 40; i++) {
            bool bad = i % 7 == 3;
            items[i] = io_item(IO_READ, fd, memset(buf[i], 0, sizeof(buf[i])),
                               bad ? 3 * PAGE : 2 * PAGE, (uintptr_t)mapped);
        }
        run(engines[e], items, 40);
        for (int i = 0; i < 40; i++) {
            bool bad = i % 7 == 3;
            cr_assert_eq(items[i].errnum, bad ? EIO : 0, "item %d: %d", i, items[i].errnum);
            cr_assert_eq(items[i].done, bad ? 0 : 2 * PAGE);
            cr_assert(bad || buf[i][2 * PAGE - 1] == 'm');
        }
    }
    munmap(mapped, 4 * PAGE);
    close(short_file);
    close(fd);
}

/* A file may grow to 10,000 bytes: the write that crosses that is short, then fails, and so breaks
 * a chain in the middle; those behind it lie below the limit. */
static void write_past_the_limit(void)
{
    struct rlimit limit = {10000, 10000};
    signal(SIGXFSZ, SIG_IGN);
    child_assert(setrlimit(RLIMIT_FSIZE, &limit) == 0);
    for (int e = 0; e < 2; e++) {
        static char buf[4][8000], back[16000];
        int fd = new_file("limited");
        struct io_item items[4];
        struct io_batch b;
        io_begin_linked(&b, engines[e]);
        for (int i = 0; i < 4; i++) {
            static const uint64_t at[] = {4000, 8000, 0, 2000};
            size_t len = i == 1 ? 8000 : 2000;
            items[i] = io_item(IO_WRITE, fd, memset(buf[i], 'a' + i, len), len, at[i]);
            io_add(&b, &items[i]);
        }
        child_assert(io_end_synced(&b, fd) == 0);
        for (int i = 0; i < 4; i++) {
            child_assert(items[i].errnum == (i == 1 ? EFBIG : 0));
            child_assert(items[i].done == (i == 1 ? 0 : 2000));
        }
        child_assert(pread(fd, back, sizeof(back), 0) == 10000);
        child_assert(back[0] == 'c' && back[1999] == 'c' && back[2000] == 'd');
        child_assert(back[3999] == 'd' && back[4000] == 'a' && back[5999] == 'a');
        close(fd);
    }
}

Test(io, a_short_write_in_a_chain_keeps_nothing_behind_it_from_being_written)
{
    in_child(write_past_the_limit);
}

Test(io, a_flush_that_fails_says_so)
{
    static char byte = 'x';
    int fd = new_file("file"), pipes[2];
    cr_assert_eq(pipe(pipes), 0);
    for (int e = 0; e < 2; e++) {
        struct io_item w = io_item(IO_WRITE, fd, &byte, 1, 0);
        struct io_batch b;
        io_begin_linked(&b, engines[e]);
        io_add(&b, &w);
        cr_assert_eq(io_end_synced(&b, pipes[1]), EINVAL); /* a pipe has no flush */
        cr_assert_eq(w.done, 1);
        io_begin_linked(&b, engines[e]);
        cr_assert_eq(io_end_synced(&b, fd), 0);
    }
    close(fd);
    close(pipes[0]);
    close(pipes[1]);
}

/* More pieces than the ring has places, so that they are not linked, though that was wished. */
Test(io, a_large_batch_is_flushed)
{
    enum { N = 100, LEN = 70001 };
    char *out = malloc((size_t)N * LEN), *back = malloc((size_t)N * LEN);
    int fd = new_file("file");
    for (size_t i = 0; i < (size_t)N * LEN; i++)
        out[i] = (char)(i * 7 + i / 251);
    for (int e = 0; e < 2; e++) {
        struct io_item w[N], r[N];
        struct io_batch b;
        cr_assert_eq(ftruncate(fd, 0), 0);
        io_begin_linked(&b, engines[e]);
        for (size_t i = 0; i < N; i++) {
            w[i] = io_item(IO_WRITE, fd, out + i * LEN, LEN, i * LEN);
            io_add(&b, &w[i]);
        }
        cr_assert_eq(io_end_synced(&b, fd), 0);
        int direct = io_open_direct(fd, IO_READ);
        for (size_t i = 0; i < N; i++) {
            cr_assert_eq(w[i].done, LEN);
            r[i] = io_item(IO_READ, fd, back + i * LEN, LEN, i * LEN);
            r[i].direct_fd = i % 2 ? direct : -1;
        }
        memset(back, 0, (size_t)N * LEN);
        run(engines[e], r, N);
        cr_assert_arr_eq(out, back, (size_t)N * LEN);
        close(direct);
    }
    close(fd);
    free(out);
    free(back);
}

/* ---- what the kernel refuses ---- */

/* From now on the system call fails so, in this process. */
static void refuse(long number, int errnum)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)number, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (unsigned)errnum),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    struct sock_fprog program = {sizeof(filter) / sizeof(filter[0]), filter};
    child_assert(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    child_assert(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
}

static void log_to(const char *name, char path[128])
{
    snprintf(path, 128, "%s/%s", dir, name);
    child_assert(mcfs_log_to_file(path) == 0);
}

/* How many lines of the log say that, at that level. */
static int said(const char *path, const char *level, const char *text)
{
    char line[1024];
    int n = 0;
    FILE *f = fopen(path, "r");
    child_assert(f != NULL);
    while (fgets(line, sizeof(line), f))
        n += strstr(line, level) && strstr(line, text);
    fclose(f);
    return n;
}

/* Puts through a store of that engine, and gets them, unaligned and past the page cache. */
static void put_and_get(const char *engine, const char *in_use)
{
    enum { N = 6, SIZE = 3 << 20 };
    char path[128], key[N][8];
    struct mcfs_backend_put puts[N] = {0};
    struct mcfs_backend_get gets[N] = {0};
    struct mcfs_backend_recovery found;
    struct mcfs_backend_stats stats;
    struct mcfs_error err = MCFS_ERROR_INIT;
    char *data = aligned_alloc(PAGE, SIZE), *back = malloc((size_t)N * SIZE);
    for (size_t i = 0; i < SIZE; i++)
        data[i] = (char)(i * 31 + i / 4093);
    snprintf(path, sizeof(path), "%s/store", dir);
    struct mcfs_backend_config config = {.dir = path, .io_engine = engine};
    struct mcfs_backend *b =
        mcfs_backend_find("bucket_storage_backend")->open(&config, &found, &err);
    child_assert(b != NULL);
    b->ops->stats(b, &stats);
    child_assert(strcmp(stats.io_engine, in_use) == 0);
    for (int i = 0; i < N; i++) {
        snprintf(key[i], sizeof(key[i]), "k%d", i);
        struct mcfs_slice k = mcfs_slice_str(key[i]), tenant = MCFS_SLICE_LITERAL("default");
        puts[i].object =
            (struct mcfs_object){.tenant = tenant, .key = k, .version = 1, .size = SIZE};
        puts[i].data = data;
        gets[i] = (struct mcfs_backend_get){.tenant = tenant,
                                            .key = k,
                                            .version = 1,
                                            .offset = 1,
                                            .buf = back + (size_t)i * SIZE,
                                            .len = SIZE,
                                            .direct = true};
    }
    child_assert(b->ops->put(b, puts, N) == 0);
    child_assert(b->ops->get(b, gets, N) == 0);
    for (int i = 0; i < N; i++)
        child_assert(gets[i].got == SIZE - 1 && memcmp(gets[i].buf, data + 1, SIZE - 1) == 0);
    child_assert(b->ops->close(b, &err) == 0);
    free(data);
    free(back);
}

#define REFUSED "io_uring cannot be used: "

static void without_rings(void)
{
    char log[128];
    log_to("rings", log);
    refuse(SYS_io_uring_setup, EPERM);
    put_and_get("auto", "plain");
    child_assert(said(log, "info", REFUSED "Operation not permitted") == 1);
    put_and_get("plain", "plain");
}

static void without_rings_asked_for(void)
{
    char log[128];
    log_to("asked", log);
    refuse(SYS_io_uring_setup, ENOSYS);
    put_and_get("uring", "plain");
    put_and_get("uring", "plain");
    child_assert(said(log, "warning", REFUSED) == 1);
}

static void without_registering(void)
{
    char log[128];
    log_to("registering", log);
    refuse(SYS_io_uring_register, ENOMEM);
    put_and_get("uring", "uring");
    child_assert(said(log, "info", "buffers cannot be registered: Cannot allocate memory") == 1);
    child_assert(said(log, "warning", REFUSED) == 0);
}

/* io_uring is allowed, but this thread's ring does not come about. */
static void without_room_for_a_ring(void)
{
    char log[128];
    enum io_engine engine;
    struct mcfs_error err = MCFS_ERROR_INIT;
    log_to("room", log);
    child_assert(io_engine_choose("auto", &engine, &err) == 0 && engine == IO_URING);
    refuse(SYS_io_uring_setup, EMFILE);
    put_and_get("auto", "uring");
    child_assert(said(log, "warning", REFUSED "Too many open files") == 1);
}

static void with_everything(void)
{
    char log[128];
    log_to("all", log);
    put_and_get(NULL, "uring");
    child_assert(said(log, "", "io_uring") == 0);
}

Test(io, what_is_refused_is_done_without_and_said_once)
{
    in_child(without_rings);
    in_child(without_rings_asked_for);
    in_child(without_registering);
    in_child(without_room_for_a_ring);
    in_child(with_everything);
}

Test(io, an_engine_of_another_name_is_refused)
{
    struct mcfs_error err = MCFS_ERROR_INIT;
    enum io_engine e;
    cr_assert_eq(io_engine_choose("libaio", &e, &err), -1);
    cr_assert_eq(err.code, MCFS_INVALID_PARAMS);
    cr_assert_not_null(strstr(err.msg, "libaio"));
    cr_assert_eq(io_engine_choose("plain", &e, &err), 0);
    cr_assert_eq(e, IO_PLAIN);
}
