/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/fs.h"

#include <unistd.h>

struct worker {
    char *buffer;
    size_t size;
    struct mcfs_cancel event;
};

static pthread_key_t key;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void end_worker(void *arg)
{
    struct worker *w = arg;
    mcfs_cancel_free(&w->event);
    free(w->buffer);
    free(w);
}

static void make_key(void)
{
    if (pthread_key_create(&key, end_worker))
        abort();
}

static struct worker *self(void)
{
    pthread_once(&once, make_key);
    struct worker *w = pthread_getspecific(key);
    if (w || !(w = calloc(1, sizeof(*w))))
        return w;
    if (mcfs_cancel_init(&w->event) || pthread_setspecific(key, w)) {
        end_worker(w);
        return NULL;
    }
    return w;
}

char *worker_buffer(size_t size)
{
    struct worker *w = self();
    if (w && size > w->size) {
        free(w->buffer);
        w->buffer = malloc(size);
        w->size = w->buffer ? size : 0;
    }
    return w ? w->buffer : NULL;
}

int worker_event(void)
{
    struct worker *w = self();
    return w ? w->event.fd : -1;
}

void worker_event_empty(void)
{
    struct worker *w = self();
    uint64_t drained;
    if (w && read(w->event.fd, &drained, sizeof(drained)) < 0 && errno != EAGAIN)
        abort(); /* an eventfd that cannot be read */
}
