/* SPDX-License-Identifier: Apache-2.0 */
#include "common/buf.h"
#include "fs/dir_log.h"

#include <stdint.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static bool put_again(struct mp_reader *content, void *arg)
{
    struct dir_record r;
    if (!dir_record_read(content, &r))
        return false;
    dir_record_put(arg, &r);
    return true;
}

static bool count(struct mp_reader *content, void *arg)
{
    struct dir_record r;
    bool is_one = dir_record_read(content, &r);
    *(size_t *)arg += is_one;
    return is_one;
}

/* What is read can be written, and is then read as many times. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mcfs_buf again = MCFS_BUF_INIT;
    size_t first = 0, second = 0;
    if (records_read(data, size, count, &first) > size)
        abort();
    records_read(data, size, put_again, &again);
    if (again.len && records_read(again.data, again.len, count, &second) != again.len)
        abort();
    if (first != second)
        abort();
    mcfs_buf_free(&again);
    return 0;
}
