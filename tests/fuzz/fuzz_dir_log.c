/* SPDX-License-Identifier: Apache-2.0 */
#include "common/buf.h"
#include "fs/dir_log.h"

#include <stdint.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int put_again(const struct dir_record *r, void *arg)
{
    dir_record_put(arg, r);
    return 0;
}

static int count(const struct dir_record *r, void *arg)
{
    (void)r;
    ++*(size_t *)arg;
    return 0;
}

/* What is read can be written, and is then read as many times. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mcfs_buf again = MCFS_BUF_INIT;
    size_t first = 0, second = 0;
    if (dir_records_read(data, size, count, &first) > size)
        abort();
    dir_records_read(data, size, put_again, &again);
    if (again.len && dir_records_read(again.data, again.len, count, &second) != again.len)
        abort();
    if (first != second)
        abort();
    mcfs_buf_free(&again);
    return 0;
}
