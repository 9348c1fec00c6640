/* SPDX-License-Identifier: Apache-2.0 */
#include "common/file.h"
#include "fs/staging.h"
#include "fs/staging_area.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char dir[64], files[PATH_MAX], labels[PATH_MAX];

static void make(void)
{
    strcpy(dir, "/tmp/mcfs-staging-XXXXXX");
    cr_assert(mkdtemp(dir));
    snprintf(files, sizeof(files), "%s/files", dir);
    snprintf(labels, sizeof(labels), "%s/labels", dir);
    cr_assert_eq(mkdir(files, 0700), 0);
}

static void clean(void)
{
    char command[PATH_MAX + 16];
    snprintf(command, sizeof(command), "rm -rf %s", dir);
    cr_assert_eq(system(command), 0);
}

TestSuite(staging_area, .init = make, .fini = clean);
TestSuite(staging, .init = make, .fini = clean);

static struct staging_area *area(void)
{
    struct mcfs_error err = MCFS_ERROR_INIT;
    struct staging_area *a = staging_area_open(files, labels, &err);
    cr_assert(a, "%s", err.msg);
    return a;
}

static void label(struct staging_area *a, struct staging_file *f, const char *text)
{
    struct mcfs_buf b = MCFS_BUF_INIT;
    mcfs_buf_append_str(&b, text);
    struct staging_sum sum;
    cr_assert_eq(staging_sum_of(f->fd, &sum, NULL), 0);
    cr_assert_eq(staging_area_label(a, f, &b, &sum, NULL), 0);
    mcfs_buf_free(&b);
}

/* Takes a file, writes the text to it and labels it, unless the label is NULL. */
static struct staging_file take(struct staging_area *a, const char *text, const char *its_label)
{
    struct staging_file f;
    cr_assert_eq(staging_area_take(a, &f, NULL), 0);
    cr_assert_eq(mcfs_pwrite_full(f.fd, text, strlen(text), 0), 0);
    if (f.length > strlen(text))
        cr_assert_eq(ftruncate(f.fd, (off_t)strlen(text)), 0);
    if (its_label)
        label(a, &f, its_label);
    return f;
}

static void gather(const char *path, struct mcfs_slice its_label, void *arg)
{
    char text[64], line[256];
    ssize_t n = mcfs_read_file(path, text, sizeof(text), NULL);
    cr_assert(n >= 0, "%s", path);
    snprintf(line, sizeof(line), "%.*s=%.*s;", (int)its_label.len, its_label.data, (int)n, text);
    strcat(arg, line);
}

/* "label=content;" of each file that a start finds. */
static const char *found(void)
{
    static char all[4096];
    struct staging_area *a = area();
    all[0] = 0;
    cr_assert_eq(staging_area_recover(a, gather, all, NULL), 0);
    staging_area_close(a);
    return all;
}

/* Does something in a process that ends without any cleaning up. */
static void in_killed_process(void (*fn)(struct staging_area *a))
{
    pid_t pid = fork();
    if (pid == 0) {
        fn(area());
        raise(SIGKILL);
    }
    waitpid(pid, NULL, 0);
}

static void label_one_of_two(struct staging_area *a)
{
    take(a, "one", "first");
    take(a, "two", NULL);
}

/* A labelled file is found by every later start; one without a label never is. */
Test(staging_area, labels_survive)
{
    in_killed_process(label_one_of_two);
    cr_assert_str_eq(found(), "first=one;");
    cr_assert_str_eq(found(), "first=one;");
}

static void label_again(struct staging_area *a)
{
    struct staging_file f = take(a, "text", "old");
    label(a, &f, "new");
}

Test(staging_area, the_last_label_counts)
{
    in_killed_process(label_again);
    cr_assert_str_eq(found(), "new=text;");
}

static void use_again(struct staging_area *a)
{
    struct staging_file f = take(a, "published", "before");
    char *path = strdup(f.path);
    staging_area_give(a, &f, true, false, strlen("published"));
    f = take(a, "unfinished", NULL);
    cr_assert_str_eq(f.path, path);
    free(path);
}

/* What is in a file that is used again is not taken for what was in it before. */
Test(staging_area, a_file_given_back_has_no_label)
{
    in_killed_process(use_again);
    cr_assert_str_eq(found(), "");
}

static void damage(struct staging_area *a)
{
    struct staging_file kept = take(a, "changed", "changing"), lost = take(a, "whole", "damaged");
    cr_assert_eq(staging_area_changes(a, &kept, NULL), 0);
    cr_assert_eq(mcfs_pwrite_full(kept.fd, "X", 1, 0), 0);
    cr_assert_eq(mcfs_pwrite_full(lost.fd, "X", 1, 0), 0); /* as a power cut leaves it */
}

/* A file that does not hold what its label says is dropped, unless it was being changed. */
Test(staging_area, a_label_knows_the_content)
{
    in_killed_process(damage);
    cr_assert_str_eq(found(), "changing=Xhanged;");
}

static void publish(struct staging_area *a)
{
    struct staging_file f = take(a, "large", "published");
    unlink(f.path); /* by the store */
    staging_area_give(a, &f, true, true, 5);
}

Test(staging_area, what_a_store_took_is_forgotten)
{
    in_killed_process(publish);
    cr_assert_str_eq(found(), "");
    struct stat st;
    cr_assert(stat(labels, &st) == 0 && st.st_size == 0, "its label is out of the log");
}

static void unlabel_without_room(struct staging_area *a)
{
    struct stat st;
    struct staging_file f = take(a, "old", "label");
    stat(labels, &st);
    struct rlimit limit = {(rlim_t)st.st_size, (rlim_t)st.st_size};
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &limit);
    staging_area_give(a, &f, true, false, 3);
    take(a, "new", NULL);
}

/* Where the log cannot be written, the file goes with its label. */
Test(staging_area, a_label_that_cannot_be_taken_off)
{
    in_killed_process(unlabel_without_room);
    cr_assert_str_eq(found(), "");
}

/* In a container every daemon has the same pid: its files are others than those it finds. */
Test(staging_area, a_process_of_the_same_pid)
{
    for (int i = 0; i < 3; i++) {
        char text[32];
        struct staging_area *a = area();
        snprintf(text, sizeof(text), "%d", i);
        struct staging_file f = take(a, text, text);
        staging_area_leave(&f);
        staging_area_close(a);
    }
    char all[64];
    snprintf(all, sizeof(all), "%s", found());
    cr_assert(strstr(all, "0=0;") && strstr(all, "1=1;") && strstr(all, "2=2;"), "%s", all);
}

/* As many as have been given away are made ahead, and empty. */
Test(staging_area, files_are_ready_when_they_are_needed)
{
    struct staging_area *a = area();
    for (int i = 0; i < 3; i++) {
        struct staging_file f = take(a, "x", NULL);
        unlink(f.path);
        staging_area_give(a, &f, false, true, 1);
    }
    staging_area_tidy(a);
    struct stat before, after;
    cr_assert_eq(stat(files, &before), 0);
    for (int i = 0; i < 3; i++) {
        struct staging_file f;
        cr_assert_eq(staging_area_take(a, &f, NULL), 0);
        cr_assert(f.length == 0 && !f.labelled);
        staging_area_leave(&f);
    }
    cr_assert_eq(stat(files, &after), 0);
    cr_assert(before.st_mtim.tv_nsec == after.st_mtim.tv_nsec &&
                  before.st_mtim.tv_sec == after.st_mtim.tv_sec,
              "none was made by who needed it");
    staging_area_close(a);
}

/* The log does not grow for ever. */
Test(staging_area, the_log_is_written_anew)
{
    struct staging_area *a = area();
    struct staging_file stays = take(a, "stays", "stays");
    struct stat st;
    for (int i = 0; i < 5000; i++) {
        struct staging_file f = take(a, "x", "label");
        staging_area_give(a, &f, true, false, 1);
    }
    staging_area_tidy(a);
    cr_assert(stat(labels, &st) == 0 && st.st_size < 200, "%lld bytes", (long long)st.st_size);
    staging_area_leave(&stays);
    staging_area_close(a);
    cr_assert_str_eq(found(), "stays=stays;");
}

/* ---- writes that are acknowledged first ---- */

#define MIB (1u << 20)

static struct staging *staged(struct staging_area *a)
{
    struct staging *s = staging_new(a, MIB, NULL);
    cr_assert(s);
    return s;
}

static void limit_files(rlim_t bytes)
{
    struct rlimit limit = {bytes, RLIM_INFINITY};
    signal(SIGXFSZ, SIG_IGN);
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

/* Only what goes into a file, is long, and waits for nobody else. */
Test(staging, which_writes_are_acknowledged_first)
{
    struct staging_area *a = area();
    struct staging *s = staged(a);
    cr_assert_not(staging_writes_behind(s, 4096, 0));
    cr_assert_not(staging_writes_behind(s, 500000, 0), "stays in memory");
    cr_assert(staging_writes_behind(s, MIB, 0));
    cr_assert(staging_writes_behind(s, 500000, MIB));
    cr_assert_not(staging_writes_behind(s, MIB, UINT64_MAX - 10), "too large, and says so");
    staging_free(s);
    staging_area_close(a);
}

/* A write that failed after it was acknowledged fails whatever would make the content count, again
 * and again, until there is no content. */
Test(staging, a_failed_write_is_not_forgotten)
{
    static char data[MIB];
    struct staging_area *a = area();
    struct staging *s = staged(a);
    struct mcfs_error err = MCFS_ERROR_INIT;
    struct mcfs_buf text = MCFS_BUF_INIT;
    struct node_put put = {0};
    char byte;
    mcfs_buf_append_str(&text, "label");
    limit_files(MIB + MIB / 2);
    staging_write_behind(s, data, MIB, 0);
    cr_assert_eq(staging_label(s, &text, &err), 0, "%s", err.msg);
    staging_write_behind(s, data, MIB, MIB);
    limit_files(RLIM_INFINITY);
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(staging_label(s, &text, &err), -1);
        cr_assert_eq(err.errnum, EFBIG);
        cr_assert_eq(staging_describe(s, &put, NULL, &err), -1);
        cr_assert_eq(staging_write(s, data, 10, 0, NULL, &err), -1);
        cr_assert_eq(staging_truncate(s, 10, NULL, &err), -1);
    }
    cr_assert_eq(staging_truncate(s, 0, NULL, &err), 0);
    cr_assert_eq(staging_write(s, "x", 1, 0, NULL, &err), 0);
    cr_assert_eq(staging_describe(s, &put, NULL, &err), 0);
    cr_assert(put.size == 1 && staging_read(s, &byte, 1, 0, NULL, &err) == 1 && byte == 'x');
    staging_free(s);
    mcfs_buf_free(&text);
    staging_area_close(a);
    cr_assert_str_eq(found(), "", "the file that holds a part is gone");
}
