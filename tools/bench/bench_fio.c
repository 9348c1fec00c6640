/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/bench/bench_fio.h"

#include "common/cleanup.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static _Noreturn void die(const char *what)
{
    fprintf(stderr, "bench-backend: %s: %s\n", what, strerror(errno));
    exit(1);
}

static void remove_files(const char *path)
{
    _cleanup_dir_ DIR *d = opendir(path);
    for (struct dirent *e; d && (e = readdir(d));)
        if (e->d_name[0] != '.' && unlinkat(dirfd(d), e->d_name, 0))
            die(e->d_name);
}

static char *output_of(const char *command)
{
    char part[4096];
    char *text = NULL;
    size_t len = 0, n;
    FILE *f = popen(command, "re");
    while (f && (n = fread(part, 1, sizeof(part), f)) > 0) {
        char *more = realloc(text, len + n + 1);
        if (!more)
            die("memory");
        text = more;
        memcpy(text + len, part, n);
        text[len += n] = 0;
    }
    if (!f || pclose(f) || !text || !strchr(text, '{'))
        die("fio (is it installed?)");
    return text;
}

static double run(const struct bench_fio *f, const char *how)
{
    char command[1024];
    bool uring = strcmp(f->engine, "uring") == 0;
    snprintf(command, sizeof(command),
             "fio --name=b --directory='%s' --nrfiles=%" PRIu32 " --openfiles=%" PRIu32
             " --size=%" PRIu64 " --bs=%" PRIu64
             " --iodepth=%d --ioengine=%s --direct=%d "
             "--file_service_type=sequential --output-format=json %s",
             f->dir, f->files, f->files, f->bytes,
             uring ? MCFS_MIN((uint64_t)1 << 20, f->bytes / f->files) : f->request, uring ? 32 : 1,
             uring ? "io_uring" : "psync", f->direct, how);
    _cleanup_free_ char *text = output_of(command);
    json_t *o = json_loads(strchr(text, '{'), 0, NULL);
    const json_t *job = json_array_get(json_object_get(o, "jobs"), 0);
    const json_t *runtime = json_object_get(job, "job_runtime");
    bool found = json_is_number(runtime);
    double ms = json_number_value(runtime);
    json_decref(o);
    if (!found) {
        errno = EIO;
        die("fio's result");
    }
    return ms / 1000;
}

double bench_fio_write(const struct bench_fio *f)
{
    if (mkdir(f->dir, 0755) && errno != EEXIST)
        die(f->dir);
    remove_files(f->dir);
    return run(f, "--rw=write --fallocate=none --create_on_open=1 --end_fsync=1");
}

double bench_fio_read(const struct bench_fio *f)
{
    return run(f, "--rw=read --invalidate=1");
}
