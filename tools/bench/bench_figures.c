/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/bench/bench_figures.h"

#include "common/cleanup.h"

#include <inttypes.h>
#include <string.h>

const char *const bench_timed_names[] = {"ops_per_s", "mb_per_s", "backend_s", "wall_s",
                                         "min_ms",    "mean_ms",  "p50_ms",    "p90_ms",
                                         "p99_ms",    "p999_ms",  "max_ms",    NULL};

int bench_samples_init(struct bench_samples *s, uint64_t operations, struct mcfs_error *err)
{
    *s = (struct bench_samples){.cap = operations, .ms = calloc(operations + 1, sizeof(*s->ms))};
    return s->ms ? 0 : mcfs_fail_errno(err, ENOMEM, "%" PRIu64 " samples", operations);
}

void bench_samples_free(struct bench_samples *s)
{
    free(s->ms);
    s->ms = NULL;
}

void bench_samples_add(struct bench_samples *s, int64_t ns, uint64_t bytes,
                       const struct mcfs_error *failure)
{
    if (s->count < s->cap)
        s->ms[s->count++] = (double)ns / 1e6;
    if (!failure->code)
        s->bytes += bytes;
    else if (!s->errors++)
        s->err = *failure;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double bench_quantile(const double *sorted, size_t n, double share)
{
    double place = share * (double)(n - 1);
    size_t below = (size_t)place;
    if (below + 1 >= n)
        return sorted[n - 1];
    return sorted[below] + (sorted[below + 1] - sorted[below]) * (place - (double)below);
}

double bench_median(double *v, size_t n)
{
    qsort(v, n, sizeof(*v), by_value);
    return bench_quantile(v, n, 0.5);
}

int bench_outcome_make(struct bench_outcome *out, const struct bench_samples *threads, size_t n,
                       double wall_s, struct mcfs_error *err)
{
    size_t count = 0;
    double sum = 0;
    *out = (struct bench_outcome){.names = bench_timed_names};
    for (size_t t = 0; t < n; t++)
        count += threads[t].count;
    _cleanup_free_ double *all = malloc((count + 1) * sizeof(*all));
    if (!all)
        return mcfs_fail_errno(err, ENOMEM, "%zu samples", count);
    count = 0;
    for (size_t t = 0; t < n; t++) {
        for (uint64_t i = 0; i < threads[t].count; i++)
            sum += all[count++] = threads[t].ms[i];
        out->bytes += threads[t].bytes;
        out->errors += threads[t].errors;
        out->wrong += threads[t].wrong;
    }
    out->operations = count;
    out->figures[BENCH_WALL_S] = wall_s;
    if (!count)
        return 0;
    qsort(all, count, sizeof(*all), by_value);
    double *f = out->figures, seconds = sum / 1e3;
    f[BENCH_BACKEND_S] = seconds;
    if (seconds > 0) {
        f[BENCH_OPS_PER_S] = (double)count / seconds;
        f[BENCH_MB_PER_S] = (double)out->bytes / (1 << 20) / seconds;
    }
    f[BENCH_MIN_MS] = all[0];
    f[BENCH_MEAN_MS] = sum / (double)count;
    f[BENCH_P50_MS] = bench_quantile(all, count, 0.5);
    f[BENCH_P90_MS] = bench_quantile(all, count, 0.9);
    f[BENCH_P99_MS] = bench_quantile(all, count, 0.99);
    f[BENCH_P999_MS] = bench_quantile(all, count, 0.999);
    f[BENCH_MAX_MS] = all[count - 1];
    return 0;
}

void bench_outcome_median(struct bench_outcome *out, const struct bench_outcome *rounds, size_t n)
{
    double v[64];
    *out = rounds[0];
    out->errors = out->wrong = 0;
    for (size_t r = 0; r < n; r++) {
        out->errors += rounds[r].errors;
        out->wrong += rounds[r].wrong;
    }
    for (size_t f = 0; out->names[f]; f++) {
        for (size_t r = 0; r < n; r++)
            v[r] = rounds[r].figures[f];
        out->figures[f] = bench_median(v, n);
    }
}

json_t *bench_outcome_json(const struct bench_outcome *o)
{
    json_t *to = json_pack("{s:I,s:I,s:I,s:I}", "operations", (json_int_t)o->operations, "bytes",
                           (json_int_t)o->bytes, "errors", (json_int_t)o->errors,
                           "checksum_failures", (json_int_t)o->wrong);
    for (size_t f = 0; o->names[f]; f++)
        json_object_set_new(to, o->names[f], json_real(o->figures[f]));
    return to;
}

void bench_outcome_print(const struct bench_outcome *o, FILE *to)
{
    const double *f = o->figures;
    if (o->names == bench_timed_names)
        fprintf(to,
                "%9.2f MB/s %9.1f ops/s   ms: p50 %.3f  p90 %.3f  p99 %.3f  p99.9 %.3f  max %.3f\n",
                f[BENCH_MB_PER_S], f[BENCH_OPS_PER_S], f[BENCH_P50_MS], f[BENCH_P90_MS],
                f[BENCH_P99_MS], f[BENCH_P999_MS], f[BENCH_MAX_MS]);
    else
        for (size_t i = 0; o->names[i]; i++)
            fprintf(to, "%s %.3f%s", o->names[i], f[i], o->names[i + 1] ? "  " : "\n");
    if (o->errors || o->wrong)
        fprintf(to, "    %" PRIu64 " operations failed, %" PRIu64 " values were wrong\n", o->errors,
                o->wrong);
}
