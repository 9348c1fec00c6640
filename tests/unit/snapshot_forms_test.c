/* SPDX-License-Identifier: Apache-2.0 */
/* Proves that older forms are read, that replicas of every kind go round unchanged, and that what
 * claims more than it holds is refused before it costs memory. */
#include "common/id.h"
#include "common/mp.h"
#include "snapshot/frame.h"
#include "snapshot/snapshot.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <zstd.h>

TestSuite(snapshot_forms, .timeout = 200);

static struct mcfs_error err;

#define TEXT(s) mcfs_slice_str(s)

static struct mcfs_slice bytes(const struct mcfs_buf *b)
{
    return mcfs_slice(b->data, b->len);
}

/* ---- one entry, in any form ---- */

struct copy {
    struct snap_object o;
    struct snap_replica replicas[8];
    uint32_t n;
};

static int keep(const struct snap_object *o, void *arg, struct mcfs_error *e)
{
    struct copy *c = arg;
    (void)e;
    c->o = *o;
    for (uint32_t i = 0; i < o->replica_count && i < 8; i++)
        c->replicas[i] = o->replicas[i];
    c->n++;
    return 0;
}

static void begin(struct mcfs_buf *b, uint32_t entries)
{
    mp_put_map(b, 1);
    mp_put_cstr(b, "metadata");
    mp_put_array(b, entries);
}

/* Elements 0 to 6. */
static void put_head(struct mcfs_buf *b, uint32_t len, const char *client, uint64_t replicas)
{
    mp_put_array(b, len);
    mp_put_cstr(b, client);
    mp_put_int(b, 1000);
    mp_put_uint(b, 42);
    mp_put_int(b, 2000);
    mp_put_bool(b, false);
    mp_put_uint(b, 0);
    mp_put_uint(b, replicas);
}

static void put_local(struct mcfs_buf *b, uint64_t id)
{
    mp_put_array(b, 4);
    mp_put_uint(b, id);
    mp_put_int(b, 3);
    mp_put_int(b, 2);
    mp_put_array(b, 3);
    mp_put_cstr(b, "1-2");
    mp_put_uint(b, 42);
    mp_put_cstr(b, "host:1");
}

static int decode(const struct mcfs_buf *b, struct copy *c)
{
    *c = (struct copy){.n = 0};
    cr_assert_not(b->failed);
    return snap_decode_shard(bytes(b), mcfs_slice(NULL, 0), keep, c, &err);
}

Test(snapshot_forms, older_entries)
{
    struct copy c;
    /* Every subset of what older writers left out, with 0 to 2 replicas. */
    for (unsigned form = 0; form < 16; form++) {
        for (uint32_t n = 0; n < 3; n++) {
            struct mcfs_buf b = MCFS_BUF_INIT;
            bool type = form & 1, pin = form & 2, group = form & 4, sum = form & 8;
            begin(&b, 1);
            mp_put_array(&b, form & 1 ? 3 : 2);
            if (form & 1)
                mp_put_cstr(&b, "t");
            mp_put_str(&b, mcfs_slice("k\0\xff", 3));
            put_head(&b, 7 + n + type + pin + group + sum, "18446744073709551615-7", n);
            if (type)
                mp_put_uint(&b, 9);
            for (uint32_t i = 0; i < n; i++)
                put_local(&b, 10 + i);
            if (pin)
                mp_put_bool(&b, true);
            if (group)
                mp_put_cstr(&b, "g");
            if (sum)
                mp_put_uint(&b, UINT64_MAX);
            if (n == 0 && !type && sum && !pin && !group) {
                mcfs_buf_free(&b); /* an integer at 7 is the data type: not what a writer wrote */
                continue;
            }
            cr_assert_eq(decode(&b, &c), 0, "form %u, %u replicas: %s", form, n, err.msg);
            cr_assert_eq(c.n, 1u);
            cr_assert_eq(c.o.put_client.hi, UINT64_MAX);
            cr_assert(mcfs_slice_eq(c.o.tenant, TEXT(form & 1 ? "t" : "default")));
            cr_assert(mcfs_slice_eq(c.o.key, mcfs_slice("k\0\xff", 3)));
            cr_assert_eq(c.o.data_type, type ? 9 : 0);
            cr_assert_eq(c.o.hard_pin, pin);
            cr_assert_eq(c.o.group.len, group);
            cr_assert_eq(c.o.has_checksum, sum);
            cr_assert_eq(c.o.replica_count, n);
            cr_assert(n == 0 || c.replicas[n - 1].id == 9 + n);
            mcfs_buf_free(&b);
        }
    }
}

Test(snapshot_forms, a_strange_client_costs_nothing_but_its_name)
{
    static const char *const strange[] = {
        "", "abc", "1", "1-", "-1", "1-2-3", "99999999999999999999-1"};
    for (size_t i = 0; i < sizeof(strange) / sizeof(*strange); i++) {
        struct mcfs_buf b = MCFS_BUF_INIT;
        struct copy c;
        begin(&b, 1);
        mp_put_array(&b, 3);
        mp_put_cstr(&b, "default");
        mp_put_cstr(&b, "k");
        put_head(&b, 12, strange[i], 1);
        mp_put_uint(&b, 1);
        put_local(&b, 5);
        mp_put_bool(&b, false);
        mp_put_cstr(&b, "");
        cr_assert_neq(decode(&b, &c), 0, "one element is missing");
        mp_put_uint(&b, 77);
        cr_assert_eq(decode(&b, &c), 0, "%s: %s", strange[i], err.msg);
        cr_assert(c.o.put_client.hi == 0 && c.o.put_client.lo == 0);
        cr_assert_eq(c.o.checksum, 77u);
        mcfs_buf_free(&b);
    }
}

Test(snapshot_forms, wrong_lengths_and_counts_are_refused)
{
    struct copy c;
    static const uint64_t counts[] = {2,         3, 4, 100, UINT32_MAX, 1ull << 32, UINT64_MAX - 6,
                                      UINT64_MAX};
    for (size_t i = 0; i < sizeof(counts) / sizeof(*counts); i++) {
        struct mcfs_buf b = MCFS_BUF_INIT;
        begin(&b, 1);
        mp_put_array(&b, 3);
        mp_put_cstr(&b, "default");
        mp_put_cstr(&b, "k");
        put_head(&b, 10, "1-2", counts[i]);
        mp_put_uint(&b, 1);
        put_local(&b, 5);
        mp_put_bool(&b, false);
        cr_assert_eq(decode(&b, &c), -1);
        cr_assert_neq(err.msg[0], 0);
        mcfs_buf_free(&b);
    }
    /* Longer than 11 + n, shorter than 7 + n. */
    for (int extra = -1; extra <= 5; extra += 6) {
        struct mcfs_buf b = MCFS_BUF_INIT;
        begin(&b, 1);
        mp_put_array(&b, 2);
        mp_put_cstr(&b, "k");
        put_head(&b, (uint32_t)(8 + extra), "1-2", 1);
        for (int i = 0; i < extra + 1; i++)
            mp_put_uint(&b, 1);
        cr_assert_eq(decode(&b, &c), -1);
        mcfs_buf_free(&b);
    }
}

/* ---- what claims more than it holds ---- */

static long peak_kib(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss;
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define assert_small(before) ((void)(before))
#else
#define assert_small(before) cr_assert_lt(peak_kib() - (before), 96 << 10)
#endif

Test(snapshot_forms, an_array_of_2_to_the_32)
{
    long before = peak_kib();
    struct copy c;
    for (int which = 0; which < 4; which++) {
        struct mcfs_buf b = MCFS_BUF_INIT;
        if (which == 0) { /* entries */
            begin(&b, UINT32_MAX);
        } else if (which == 1) { /* an entry */
            begin(&b, 1);
            mp_put_array(&b, UINT32_MAX);
        } else if (which == 2) { /* an object, with as many replicas */
            begin(&b, 1);
            mp_put_array(&b, 2);
            mp_put_cstr(&b, "k");
            put_head(&b, UINT32_MAX, "1-2", UINT32_MAX - 7);
        } else { /* a key */
            begin(&b, 1);
            mp_put_array(&b, 2);
            mcfs_buf_append(&b, "\xdb\xff\xff\xff\xff", 5);
        }
        for (int i = 0; i < 1000; i++)
            mp_put_nil(&b);
        cr_assert_eq(decode(&b, &c), -1);
        mcfs_buf_free(&b);
    }
    assert_small(before);
}

Test(snapshot_forms, more_replicas_than_any_object_has)
{
    struct mcfs_buf b = MCFS_BUF_INIT;
    struct copy c;
    uint32_t n = 2000000;
    begin(&b, 1);
    mp_put_array(&b, 2);
    mp_put_cstr(&b, "k");
    put_head(&b, 10 + n, "1-2", n);
    mp_put_uint(&b, 1);
    for (uint32_t i = 0; i < n; i++)
        mcfs_buf_append(&b, "\x94\x01\x03\xff\xc0", 5);
    mp_put_bool(&b, false);
    mp_put_cstr(&b, "");
    long before = peak_kib();
    cr_assert_eq(decode(&b, &c), -1);
    assert_small(before);
    mcfs_buf_free(&b);
}

Test(snapshot_forms, nesting_of_any_depth)
{
    struct mcfs_buf b = MCFS_BUF_INIT;
    struct copy c;
    uint32_t depth = 4000000;
    begin(&b, 1);
    mp_put_array(&b, 2);
    mp_put_cstr(&b, "k");
    put_head(&b, 8, "1-2", 1);
    mp_put_array(&b, 4);
    mp_put_uint(&b, 1);
    mp_put_uint(&b, 3);
    mp_put_uint(&b, 77);
    for (uint32_t i = 0; i < depth; i++)
        mp_put_array(&b, 1);
    cr_assert_eq(decode(&b, &c), -1);
    /* Whole, it is a payload of a kind that is not known here, and is carried through. */
    mp_put_nil(&b);
    cr_assert_eq(decode(&b, &c), 0, "%s", err.msg);
    cr_assert_eq(c.replicas[0].payload.len, depth + 1);
    mcfs_buf_free(&b);
}

/* A frame of zeros, with or without its size in the head. */
static struct mcfs_buf bomb(size_t size, bool sized)
{
    struct mcfs_buf b = MCFS_BUF_INIT;
    ZSTD_CCtx *ctx = ZSTD_createCCtx();
    static const char zeros[1 << 20];
    ZSTD_CCtx_setParameter(ctx, ZSTD_c_contentSizeFlag, sized);
    if (sized)
        ZSTD_CCtx_setPledgedSrcSize(ctx, size);
    for (size_t at = 0; at < size; at += sizeof(zeros)) {
        ZSTD_inBuffer in = {zeros, sizeof(zeros), 0};
        bool last = at + sizeof(zeros) >= size;
        size_t left = 1;
        while (last ? left != 0 : in.pos < in.size) {
            ZSTD_outBuffer out = {mcfs_buf_reserve(&b, 1 << 17), 1 << 17, 0};
            left = ZSTD_compressStream2(ctx, &out, &in, last ? ZSTD_e_end : ZSTD_e_continue);
            cr_assert_not(ZSTD_isError(left));
            b.len += out.pos;
        }
    }
    ZSTD_freeCCtx(ctx);
    return b;
}

Test(snapshot_forms, bombs)
{
    for (int sized = 0; sized < 2; sized++) {
        struct mcfs_buf out = MCFS_BUF_INIT, b = bomb(1u << 30, sized);
        cr_assert_lt(b.len, 200u << 10);
        long before = peak_kib();
        cr_assert_eq(frame_unpack(bytes(&b), &out, &err), -1);
        if (sized) /* refused at its word */
            assert_small(before);
        else /* at 64 MiB and a thousandfold */
            cr_assert_lt(out.len, 300u << 20);
        mcfs_buf_free(&out);
        cr_assert_eq(frame_unpack_exact(bytes(&b), 4096, &out, &err), -1);
        cr_assert(out.len <= 1u << 20);
        mcfs_buf_free(&out);
        mcfs_buf_free(&b);
    }
}

Test(snapshot_forms, frames_cut_or_followed_by_something)
{
    struct mcfs_buf b = MCFS_BUF_INIT, out = MCFS_BUF_INIT;
    char text[3000];
    for (size_t i = 0; i < sizeof(text); i++)
        text[i] = (char)(i * i >> 3);
    cr_assert_eq(frame_pack(NULL, mcfs_slice(text, sizeof(text)), &b, &err), 0);
    cr_assert_eq(ZSTD_getFrameContentSize(b.data, b.len), sizeof(text));
    for (size_t cut = 0; cut < b.len; cut++)
        cr_assert_eq(frame_unpack(mcfs_slice(b.data, cut), &out, &err), -1);
    cr_assert_eq(frame_unpack(bytes(&b), &out, &err), 0);
    cr_assert(mcfs_slice_eq(bytes(&out), mcfs_slice(text, sizeof(text))));
    mcfs_buf_append(&b, "x", 1);
    cr_assert_eq(frame_unpack(bytes(&b), &out, &err), -1);
    mcfs_buf_free(&b);
    mcfs_buf_free(&out);
}

/* ---- replicas of every kind ---- */

Test(snapshot_forms, every_kind_of_replica_goes_round)
{
    struct snap_encoder *e = snap_encoder_new();
    struct mcfs_buf payloads[5] = {MCFS_BUF_INIT}, shard = MCFS_BUF_INIT;
    struct snap_memory m = {.size = 1ull << 40, .address = UINT64_MAX, .segment = {7, 8}}, m2;
    struct snap_disk d = {TEXT("/some/path"), 4096}, d2;
    struct snap_dfs f = {TEXT("dfs/path"), 1, 2, 4096, -5}, f2;
    snap_memory_encode(&m, &payloads[0]);
    m.has_handle = true;
    m.real_base = 5, m.requested_size = 6, m.offset = UINT32_MAX, m.node = 7;
    snap_memory_encode(&m, &payloads[1]);
    snap_disk_encode(&d, &payloads[2]);
    snap_dfs_encode(&f, &payloads[3]);
    mp_put_map(&payloads[4], 1); /* a form of the future */
    mp_put_cstr(&payloads[4], "x");
    mp_put_double(&payloads[4], 1.5);
    struct snap_replica r[] = {
        {.id = 1, .status = 3, .type = MCFS_REPLICA_MEMORY, .payload = bytes(&payloads[0])},
        {.id = 2, .status = -1, .type = MCFS_REPLICA_MEMORY, .payload = bytes(&payloads[1])},
        {.id = 3, .status = 0, .type = MCFS_REPLICA_DISK, .payload = bytes(&payloads[2])},
        {.id = UINT64_MAX, .status = 5, .type = MCFS_REPLICA_DFS, .payload = bytes(&payloads[3])},
        {.id = 5, .status = 300, .type = 3, .payload = bytes(&payloads[4])},
        {.id = 6, .status = 3, .type = MCFS_REPLICA_UNSUPPORTED},
        {.id = 7,
         .status = 3,
         .type = MCFS_REPLICA_LOCAL_DISK,
         .client = {1, UINT64_MAX},
         .endpoint = TEXT("unix:/x"),
         .size = 9},
    };
    const uint32_t n = sizeof(r) / sizeof(*r);
    struct snap_object o = {
        .tenant = TEXT("t"), .key = TEXT("k"), .replica_count = n, .replicas = r, .size = 9};
    struct mcfs_slice metadata, extra;
    struct copy c = {.n = 0};
    snap_encode_begin(e);
    cr_assert_eq(snap_encode_object(e, &o, &err), 0);
    cr_assert_eq(snap_encode_end(e, &metadata, &extra, &err), 0);
    cr_assert_eq(frame_unpack(metadata, &shard, &err), 0);
    cr_assert_eq(decode(&shard, &c), 0, "%s", err.msg);
    cr_assert_eq(c.o.replica_count, n);
    for (uint32_t i = 0; i < n; i++) {
        cr_assert(c.replicas[i].id == r[i].id && c.replicas[i].status == r[i].status &&
                  c.replicas[i].type == r[i].type);
        if (r[i].type == MCFS_REPLICA_UNSUPPORTED) /* nil, as an int8 of -1 in front of it */
            cr_assert(c.replicas[i].payload.len == 1 && c.replicas[i].payload.data[0] == '\xc0');
        else
            cr_assert(mcfs_slice_eq(c.replicas[i].payload, r[i].payload));
    }
    cr_assert(mcfs_id_eq(c.replicas[6].client, r[6].client) && c.replicas[6].size == 9);
    cr_assert(mcfs_slice_eq(c.replicas[6].endpoint, r[6].endpoint));
    cr_assert(c.replicas[0].size == 1ull << 40 && c.replicas[2].size == 4096 &&
              c.replicas[3].size == 2 && c.replicas[4].size == 0);
    cr_assert(snap_memory_decode(c.replicas[0].payload, &m2) && !m2.has_handle);
    cr_assert(snap_memory_decode(c.replicas[1].payload, &m2));
    cr_assert_eq(memcmp(&m, &m2, sizeof(m)), 0);
    cr_assert(snap_disk_decode(c.replicas[2].payload, &d2) && mcfs_slice_eq(d.path, d2.path));
    cr_assert(snap_dfs_decode(c.replicas[3].payload, &f2) && f2.shard == -5 &&
              f2.aligned_size == 4096);
    for (int i = 0; i < 5; i++)
        mcfs_buf_free(&payloads[i]);
    mcfs_buf_free(&shard);
    snap_encoder_free(e);
}

/* ---- segments ---- */

static struct snap_allocator small_allocator(struct mcfs_alloc_node nodes[4],
                                             uint32_t free_nodes[4])
{
    struct snap_allocator a = {.segment_name = TEXT("s"),
                               .total_bytes = 1 << 20,
                               .endpoint = TEXT("e"),
                               .state = {.capacity = 1 << 20,
                                         .size = 1 << 20,
                                         .current_capacity = 4,
                                         .max_capacity = 8,
                                         .free_offset = 1}};
    for (uint32_t i = 0; i < 256; i++)
        a.state.bin_heads[i] = MCFS_ALLOC_NONE;
    for (uint32_t i = 0; i < 4; i++) {
        nodes[i] = (struct mcfs_alloc_node){i, i, MCFS_ALLOC_NONE, 3, 0, MCFS_ALLOC_NONE, i == 0};
        free_nodes[i] = i;
    }
    return a;
}

Test(snapshot_forms, an_older_allocator_is_an_array_of_small_integers)
{
    struct mcfs_alloc_node nodes[4], *nodes2;
    uint32_t free_nodes[4], *free2;
    struct mcfs_buf packed = MCFS_BUF_INIT, older = MCFS_BUF_INIT;
    struct snap_allocator a = small_allocator(nodes, free_nodes);
    cr_assert_eq(snap_allocator_pack(&a, nodes, free_nodes, &packed, &err), 0);
    struct mp_reader p = mp_reader(a.packed_nodes.data, a.packed_nodes.len);
    struct mcfs_slice frame;
    cr_assert(mp_read_bin(&p, &frame));
    mp_put_array(&older, (uint32_t)frame.len);
    for (size_t i = 0; i < frame.len; i++)
        mp_put_uint(&older, (uint8_t)frame.data[i]);
    a.packed_nodes = bytes(&older);
    cr_assert_eq(snap_allocator_unpack(&a, &nodes2, &free2, &err), 0, "%s", err.msg);
    cr_assert(nodes2[0].used && nodes2[3].data_offset == 3 && free2[2] == 2);
    free(nodes2);
    free(free2);
    mcfs_buf_free(&packed);
    mcfs_buf_free(&older);
}

Test(snapshot_forms, allocators_with_impossible_indexes)
{
    struct mcfs_alloc_node nodes[4], *nodes2;
    uint32_t free_nodes[4], *free2;
    for (int which = 0; which < 4; which++) {
        struct mcfs_buf packed = MCFS_BUF_INIT;
        struct snap_allocator a = small_allocator(nodes, free_nodes);
        if (which == 0)
            nodes[2].bin_next = 4;
        else if (which == 1)
            nodes[3].neighbour_prev = 0x7fffffff;
        else if (which == 2)
            free_nodes[0] = 4;
        cr_assert_eq(snap_allocator_pack(&a, nodes, free_nodes, &packed, &err), 0);
        if (which == 3)
            a.state.current_capacity = 5;
        cr_assert_eq(snap_allocator_unpack(&a, &nodes2, &free2, &err), -1);
        cr_assert(nodes2 == NULL && free2 == NULL && err.msg[0]);
        mcfs_buf_free(&packed);
    }
}

Test(snapshot_forms, segments_out_of_bounds)
{
    struct mcfs_alloc_node nodes[4];
    uint32_t free_nodes[4];
    for (int which = 0; which < 6; which++) {
        struct mcfs_buf packed = MCFS_BUF_INIT, content = MCFS_BUF_INIT;
        struct snap_allocator a = small_allocator(nodes, free_nodes);
        cr_assert_eq(snap_allocator_pack(&a, nodes, free_nodes, &packed, &err), 0);
        if (which == 1)
            a.state.multiplier_bits = 32;
        else if (which == 2)
            a.state.free_offset = 5;
        else if (which == 3)
            a.state.max_capacity = (1 << 24) + 1;
        else if (which == 4)
            a.state.bin_heads[255] = 4;
        else if (which == 5)
            a.state.max_capacity = 3;
        struct mcfs_id ids[] = {{1, 1}, {1, 2}};
        struct mcfs_slice name = TEXT("s");
        struct snap_segment s[] = {{.id = ids[0], .name = name, .status = 1, .allocator = &a},
                                   {.id = ids[1], .name = name, .status = 4}};
        struct snap_client_segments c = {{9, 9}, ids, 2};
        struct snap_offload_task t = {mcfs_slice("t\0k", 3), TEXT("t"), TEXT("k"), 5};
        struct snap_local_disk l = {{9, 9}, true, &t, 1, 1 << 30};
        struct snap_segments all = {1, &name, 1, s, 2, &c, 1, &l, 1}, *again;
        cr_assert_eq(snap_segments_encode(&all, &content, &err), 0);
        again = snap_segments_decode(bytes(&content), &err);
        cr_assert_eq(again != NULL, which == 0, "case %d", which);
        if (again) {
            cr_assert(again->segments[0].allocator && !again->segments[1].allocator);
            cr_assert(mcfs_slice_eq(again->local_disks[0].tasks[0].key, TEXT("k")));
            snap_segments_free(again);
            for (size_t cut = 0; cut < content.len; cut++)
                cr_assert_null(snap_segments_decode(mcfs_slice(content.data, cut), &err));
        }
        mcfs_buf_free(&packed);
        mcfs_buf_free(&content);
    }
}

Test(snapshot_forms, an_older_offload_task_is_a_size)
{
    struct mcfs_buf b = MCFS_BUF_INIT;
    mp_put_map(&b, 5);
    mp_put_cstr(&b, "ma");
    mp_put_uint(&b, 1);
    mp_put_cstr(&b, "an");
    mp_put_array(&b, 0);
    mp_put_cstr(&b, "ms");
    mp_put_map(&b, 0);
    mp_put_cstr(&b, "cs");
    mp_put_map(&b, 0);
    mp_put_cstr(&b, "ld");
    mp_put_map(&b, 1);
    mp_put_cstr(&b, "3-4");
    mp_put_array(&b, 7);
    mp_put_bool(&b, false);
    mp_put_uint(&b, 2);
    mp_put_str(&b, mcfs_slice("ten\0key", 7));
    mp_put_uint(&b, 500);
    mp_put_cstr(&b, "bare");
    mp_put_uint(&b, 600);
    mp_put_int(&b, 1000);
    struct snap_segments *s = snap_segments_decode(bytes(&b), &err);
    cr_assert_not_null(s, "%s", err.msg);
    const struct snap_offload_task *t = s->local_disks[0].tasks;
    cr_assert(mcfs_slice_eq(t[0].tenant, TEXT("ten")) && mcfs_slice_eq(t[0].key, TEXT("key")));
    cr_assert(mcfs_slice_eq(t[1].tenant, TEXT("default")) && mcfs_slice_eq(t[1].key, TEXT("bare")));
    cr_assert(t[0].size == 500 && t[1].size == 600);
    snap_segments_free(s);
    mcfs_buf_free(&b);
}
