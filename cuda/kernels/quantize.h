// How 8 threads turn 32 activations into a group of a Q8_1 row; quantize.cu and silu.cu differ in where the values come
// from. CPU reference: kernels.Acts.SetRow with ActQ8_0 (quantiseGeneric), equal bit for bit.
#ifndef SLUICE_QUANTIZE_H
#define SLUICE_QUANTIZE_H

#include "device.h"

// Where a thread's four values lie: group of 32 in all rows, row, group of the row, four of the group.
struct QuantizeAt {
    int64_t group;
    int row, of, four;
    bool live;
};

static __device__ __forceinline__ QuantizeAt quantize_at(int rows, int k) {
    QuantizeAt at;
    const int perRow = k / 32;
    at.group = (int64_t)blockIdx.x * (blockDim.x / 8) + threadIdx.x / 8;
    at.row = (int)(at.group / perRow);
    at.of = (int)(at.group % perRow);
    at.four = threadIdx.x & 7;
    at.live = at.row < rows;
    return at;
}

// quantize_store is reached by all lanes of a warp; those that are not live give zeros and store nothing.
static __device__ __forceinline__ void quantize_store(uint8_t *q, const QuantizeAt &at, int k, int64_t stride, const float4 &v) {
    const float x[4] = {v.x, v.y, v.z, v.w};
    unsigned peak = 0; // magnitudes order as integers do, NaN above Inf
#pragma unroll
    for (int i = 0; i < 4; i++) peak = max(peak, __float_as_uint(x[i]) & 0x7fffffffu);
#pragma unroll
    for (int d = 4; d > 0; d >>= 1) peak = max(peak, __shfl_xor_sync(FULL_MASK, peak, d));

    const bool finite = peak < 0x7f800000u;
    const float scale = __fdiv_rn(__uint_as_float(peak), 127.0f), inv = __fdiv_rn(1.0f, scale);
    const bool zero = peak == 0 || __float_as_uint(inv) >= 0x7f800000u; // the inverse of a tiny scale overflows
    const bool codes = finite && !zero;

    unsigned packed = 0;
    int sum = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int c = codes ? (int)roundf(__fmul_rn(x[i], inv)) : 0; // roundf takes halves away from zero
        packed |= (unsigned)(c & 0xff) << (8 * i);
        sum += c;
    }
#pragma unroll
    for (int d = 4; d > 0; d >>= 1) sum += __shfl_xor_sync(FULL_MASK, sum, d);

    if (!at.live) return;
    uint8_t *row = q + at.row * stride;
    ((unsigned *)row)[at.of * 8 + at.four] = packed;
    if (at.four == 0) {
        const float d = finite ? (zero ? 0.0f : scale) : __uint_as_float(0x7fc00000u);
        ((float2 *)(row + k))[at.of] = make_float2(d, __fmul_rn(d, (float)sum));
    }
}

#endif
