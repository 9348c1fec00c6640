/* SPDX-License-Identifier: Apache-2.0 */
/* The file `task_manager`. */
#include "snapshot/snapshot.h"

#include "common/mp.h"

static bool read_i32(struct mp_reader *p, int32_t *v)
{
    int64_t wide;
    bool ok = mp_read_int(p, &wide) && wide >= INT32_MIN && wide <= INT32_MAX;
    *v = ok ? (int32_t)wide : 0;
    return ok;
}

static bool read_task(struct mp_reader *p, struct snap_task *t)
{
    *t = (struct snap_task){0};
    return mp_read_array_of(p, 8) && mp_read_raw(p, &t->id) && read_i32(p, &t->type) &&
           read_i32(p, &t->status) && mp_read_raw(p, &t->payload) &&
           mp_read_int(p, &t->created_ms) && mp_read_int(p, &t->updated_ms) &&
           mp_read_raw(p, &t->message) && mp_read_raw(p, &t->client);
}

int snap_tasks_decode(struct mcfs_slice content,
                      int (*fn)(const struct snap_task *t, void *arg, struct mcfs_error *err),
                      void *arg, struct mcfs_error *err)
{
    struct mp_reader p = mp_reader(content.data, content.len);
    struct snap_task task;
    uint32_t n;
    bool good = mp_read_array(&p, &n);
    for (uint32_t i = 0; good && i < n; i++) {
        good = read_task(&p, &task);
        if (good && fn(&task, arg, err))
            return -1;
    }
    return good && mp_done(&p)
               ? 0
               : mcfs_fail(err, MCFS_FILE_READ_FAIL, "tasks of another form than expected");
}

void snap_tasks_encode(const struct snap_task *tasks, uint32_t count, struct mcfs_buf *out)
{
    mp_put_array(out, count);
    for (uint32_t i = 0; i < count; i++) {
        const struct snap_task *t = &tasks[i];
        mp_put_array(out, 8);
        mp_put_str(out, t->id);
        mp_put_int(out, t->type);
        mp_put_int(out, t->status);
        mp_put_str(out, t->payload);
        mp_put_int(out, t->created_ms);
        mp_put_int(out, t->updated_ms);
        mp_put_str(out, t->message);
        mp_put_str(out, t->client);
    }
}
