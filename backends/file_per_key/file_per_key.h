/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_BACKENDS_FILE_PER_KEY_H
#define MCFS_BACKENDS_FILE_PER_KEY_H

/* Mooncake's own file_per_key_storage_backend, as it is read: `<fsdir>/<a>/<b>/<name>`, where a and
 * b are letters from 'a' to 'p' by the storage key's hash, and name is the storage key with some
 * bytes replaced by '_'.  Two keys can have one name: the key inside the file decides. What we
 * write ourselves is another layout, in a folder beside it: files.h. */

#include "backends/catalog.h"
#include "common/buf.h"

extern const struct mcfs_backend_ops mcfs_file_per_key_ops; /* as in backends.h */

#define FILE_PER_KEY_NAME "file_per_key_storage_backend"
#define FILE_PER_KEY_FSDIR "file_per_key_dir"

/* Reads the directory; fsdir: NULL for the default.  What is dropped, and why, goes to the sink
 * (may be NULL). */
struct catalog *file_per_key_read(const char *dir, const char *fsdir,
                                  const struct finding_sink *sink, uint64_t *dropped,
                                  struct mcfs_error *err);

/* Appends the path of a storage key, relative to fsdir. */
void file_per_key_path(struct mcfs_slice key, struct mcfs_buf *out);

#endif
