/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs a fuzz target over every file of a corpus folder, and over truncations and random mutations
 * of each, with a fixed seed: the part of fuzzing that every test run can afford.
 */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static uint64_t state = 0x9e3779b97f4a7c15ULL;

static uint32_t next_random(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)(state >> 32);
}

/* A copy of exactly `size` bytes, so that the sanitizer sees a read past the end. */
static void run(const uint8_t *data, size_t size)
{
    uint8_t *copy = calloc(1, size ? size : 1);
    if (!copy)
        abort();
    memcpy(copy, data, size);
    LLVMFuzzerTestOneInput(copy, size);
    free(copy);
}

static void mutate_and_run(const uint8_t *data, size_t size)
{
    static const uint8_t interesting[] = {0x00, 0x01, 0x7f, 0x80, 0xff, 0xdd, 0xdf, 0xc6, 0xcf};
    uint8_t *copy = malloc(size);
    if (!copy)
        abort();
    memcpy(copy, data, size);
    unsigned edits = 1 + next_random() % 8;
    for (unsigned i = 0; i < edits; i++) {
        size_t at = next_random() % size;
        switch (next_random() % 3) {
        case 0:
            copy[at] ^= (uint8_t)(1u << (next_random() % 8));
            break;
        case 1:
            copy[at] = interesting[next_random() % sizeof(interesting)];
            break;
        default:
            copy[at] = (uint8_t)next_random();
            break;
        }
    }
    run(copy, size - next_random() % (size / 8 + 1));
    free(copy);
}

static void replay(const char *path)
{
    FILE *f = fopen(path, "rb");
    if (!f)
        return;
    static uint8_t data[1 << 20];
    size_t size = fread(data, 1, sizeof(data), f);
    fclose(f);
    run(data, size);
    if (size == 0)
        return;
    size_t step = size / 256 + 1;
    for (size_t cut = 0; cut < size; cut += step)
        run(data, cut);
    unsigned rounds = size > 65536 ? 50 : 500;
    for (unsigned i = 0; i < rounds; i++)
        mutate_and_run(data, size);
}

int main(int argc, char **argv)
{
    unsigned files = 0;
    run((const uint8_t *)"", 0);
    for (int i = 1; i < argc; i++) {
        DIR *dir = opendir(argv[i]);
        if (!dir) {
            perror(argv[i]);
            return 1;
        }
        struct dirent *entry;
        while ((entry = readdir(dir))) {
            char path[4096];
            if (entry->d_name[0] == '.')
                continue;
            snprintf(path, sizeof(path), "%s/%s", argv[i], entry->d_name);
            replay(path);
            files++;
        }
        closedir(dir);
    }
    printf("%u corpus files\n", files);
    return files ? 0 : 1;
}
