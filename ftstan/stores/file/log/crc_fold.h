/* CRC-32 (IEEE, reflected) by carry-less multiplication: four lanes of 16 bytes are folded over the
 * data, then over each other, and the rest is reduced. After Gopal and others, "Fast CRC
 * Computation for Generic Polynomials Using PCLMULQDQ Instruction" (Intel, 2009). crc.pyx asks
 * whether the processor has the instruction, and has tables where it has not.
 */
#ifndef FTSTAN_CRC_FOLD_H
#define FTSTAN_CRC_FOLD_H

#include <stddef.h>
#include <stdint.h>

#if defined(__x86_64__) && defined(__GNUC__)

#include <immintrin.h>

static int crc_can_fold(void)
{
    __builtin_cpu_init();
    return __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
}

__attribute__((target("pclmul,sse4.1")))
static inline __m128i crc_fold_step(__m128i lane, __m128i keys, __m128i data)
{
    __m128i low = _mm_clmulepi64_si128(lane, keys, 0x00);
    __m128i high = _mm_clmulepi64_si128(lane, keys, 0x11);
    return _mm_xor_si128(_mm_xor_si128(low, high), data);
}

/* The register after n more bytes; n is a multiple of 16 and at least 64. */
__attribute__((target("pclmul,sse4.1")))
static uint32_t crc_fold(uint32_t state, const char *p, size_t n)
{
    const __m128i by_64 = _mm_set_epi64x(0x01c6e41596, 0x0154442bd4);
    const __m128i by_16 = _mm_set_epi64x(0x00ccaa009e, 0x01751997d0);
    const __m128i by_8 = _mm_set_epi64x(0, 0x0163cd6124);
    const __m128i reduction = _mm_set_epi64x(0x01f7011641, 0x01db710641);
    const __m128i low_32 = _mm_set_epi32(0, -1, 0, -1);
    const __m128i *at = (const __m128i *)p;
    __m128i a = _mm_xor_si128(_mm_loadu_si128(at), _mm_cvtsi32_si128((int)state));
    __m128i b = _mm_loadu_si128(at + 1);
    __m128i c = _mm_loadu_si128(at + 2);
    __m128i d = _mm_loadu_si128(at + 3);
    __m128i rest;

    for (at += 4, n -= 64; n >= 64; at += 4, n -= 64) {
        a = crc_fold_step(a, by_64, _mm_loadu_si128(at));
        b = crc_fold_step(b, by_64, _mm_loadu_si128(at + 1));
        c = crc_fold_step(c, by_64, _mm_loadu_si128(at + 2));
        d = crc_fold_step(d, by_64, _mm_loadu_si128(at + 3));
    }
    a = crc_fold_step(a, by_16, b);
    a = crc_fold_step(a, by_16, c);
    a = crc_fold_step(a, by_16, d);
    for (; n >= 16; at += 1, n -= 16)
        a = crc_fold_step(a, by_16, _mm_loadu_si128(at));

    /* 128 bits to 64, with 32 zero bits behind, to 32. */
    a = _mm_xor_si128(_mm_srli_si128(a, 8), _mm_clmulepi64_si128(a, by_16, 0x10));
    rest = _mm_srli_si128(a, 4);
    a = _mm_xor_si128(_mm_clmulepi64_si128(_mm_and_si128(a, low_32), by_8, 0x00), rest);
    /* Barrett: the quotient, then what it leaves. */
    rest = _mm_clmulepi64_si128(_mm_and_si128(a, low_32), reduction, 0x10);
    rest = _mm_clmulepi64_si128(_mm_and_si128(rest, low_32), reduction, 0x00);
    return (uint32_t)_mm_extract_epi32(_mm_xor_si128(a, rest), 1);
}

#else

static int crc_can_fold(void)
{
    return 0;
}

static uint32_t crc_fold(uint32_t state, const char *p, size_t n)
{
    (void)p;
    (void)n;
    return state;
}

#endif
#endif
