/* SPDX-License-Identifier: Apache-2.0 */
/* The message in a file of the file-per-key layout. */
#include "backends/file_per_key/message.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct input {
    const uint8_t *data;
    size_t size;
};

static ssize_t read_input(void *arg, void *buf, size_t len, uint64_t off)
{
    const struct input *in = arg;
    size_t n = off < in->size ? in->size - off : 0;
    n = n < len ? n : len;
    if (n)
        memcpy(buf, in->data + off, n);
    return (ssize_t)n;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input in = {data, size};
    struct message m;
    if (message_parse(read_input, &in, size, &m, NULL) == 0 &&
        (m.value_at > size || m.value_size > size - m.value_at || m.key.len > size))
        abort();
    message_free(&m);
    /* A file that shrinks while it is read. */
    message_parse(read_input, &in, size + 100, &m, NULL);
    message_free(&m);
    return 0;
}
