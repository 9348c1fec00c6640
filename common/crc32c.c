/* SPDX-License-Identifier: Apache-2.0 */
#include "common/crc32c.h"

#include <isa-l/crc.h>
#include <limits.h>

uint32_t mcfs_crc32c(uint32_t crc, const void *data, size_t len)
{
    /* ISA-L's crc32_iscsi takes an int length and leaves both inversions to the caller. */
    const unsigned char *p = data;
    crc = ~crc;
    while (len > 0) {
        int n = len > INT_MAX ? INT_MAX : (int)len;
        crc = crc32_iscsi((unsigned char *)(uintptr_t)p, n, crc);
        p += n;
        len -= (size_t)n;
    }
    return ~crc;
}

/* Polynomials over GF(2) modulo the Castagnoli polynomial, reflected: bit 31 is x^0. */
#define POLYNOMIAL 0x82f63b78u
#define ONE 0x80000000u

static uint32_t times(uint32_t a, uint32_t b)
{
    uint32_t product = 0;
    for (uint32_t bit = ONE; bit; bit >>= 1) {
        if (a & bit)
            product ^= b;
        b = b & 1 ? b >> 1 ^ POLYNOMIAL : b >> 1;
    }
    return product;
}

/* Appending n bytes multiplies what was summed before by x^(8n); the inversions at both ends cancel
 * out. */
uint32_t mcfs_crc32c_combine(uint32_t a, uint32_t b, uint64_t b_len)
{
    uint32_t power = ONE, square = ONE >> 8; /* x^8 */
    for (; b_len; b_len >>= 1) {
        if (b_len & 1)
            power = times(power, square);
        square = times(square, square);
    }
    return times(power, a) ^ b;
}
