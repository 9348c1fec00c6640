/* SPDX-License-Identifier: Apache-2.0 */
#include "common/id.h"

#include "common/file.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>

struct mcfs_id mcfs_id_random(void)
{
    struct mcfs_id id;
    /* Requests of up to 256 bytes are never cut short once the pool is ready. */
    if (getrandom(&id, sizeof(id), 0) != sizeof(id))
        abort();
    return id;
}

const char *mcfs_id_format(struct mcfs_id id, char *text)
{
    snprintf(text, MCFS_ID_TEXT_MAX, "%" PRIu64 "-%" PRIu64, id.hi, id.lo);
    return text;
}

static int parse_u64(const char **p, const char *end, uint64_t *v)
{
    const char *start = *p;
    *v = 0;
    for (; *p < end && **p >= '0' && **p <= '9'; ++*p) {
        if (__builtin_mul_overflow(*v, 10, v) ||
            __builtin_add_overflow(*v, (uint64_t)(**p - '0'), v))
            return -1;
    }
    return *p > start ? 0 : -1;
}

int mcfs_id_parse(struct mcfs_slice text, struct mcfs_id *id)
{
    const char *p = text.data, *end = text.data + text.len;
    if (text.len == 0 || parse_u64(&p, end, &id->hi) || p == end || *p != '-')
        return -1;
    p++;
    return parse_u64(&p, end, &id->lo) || p != end ? -1 : 0;
}

int mcfs_id_load_or_create(const char *path, struct mcfs_id *id, struct mcfs_error *err)
{
    char text[MCFS_ID_TEXT_MAX + 1];
    struct mcfs_error absent;
    ssize_t n = mcfs_read_file(path, text, sizeof(text) - 1, &absent);
    if (n < 0 && absent.errnum != ENOENT) {
        if (err)
            *err = absent;
        return -1;
    }
    if (n < 0) {
        *id = mcfs_id_random();
        mcfs_id_format(*id, text);
        return mcfs_write_file(path, text, strlen(text), 0644, true, err);
    }
    while (n > 0 && (text[n - 1] == '\n' || text[n - 1] == ' '))
        n--;
    if (mcfs_id_parse(mcfs_slice(text, (size_t)n), id))
        return mcfs_fail(err, MCFS_INVALID_PARAMS, "%s does not hold an id of the form N-N", path);
    return 0;
}
