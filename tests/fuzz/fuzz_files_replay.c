/* SPDX-License-Identifier: Apache-2.0 */
/* The log of a file-per-key store's shard, and what it makes of files and objects. */
#include "backends/file_per_key/files_replay.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct replay r;
    uint64_t last = 0;
    if (files_replay(data, size, 3, &r, NULL) == 0) {
        if (r.end > size || r.stepped_over > size)
            abort();
        for (size_t i = 0; i < r.count; i++) {
            const struct file_entry *e = r.v[i].entry;
            if (r.v[i].id <= last || r.v[i].id >= r.next_id ||
                replay_find(&r, r.v[i].id) != &r.v[i])
                abort();
            last = r.v[i].id;
            if (e && (e->id != last || file_find(&r.table, file_key(e), e->version) != e))
                abort();
        }
    }
    replay_free(&r);
    return 0;
}
