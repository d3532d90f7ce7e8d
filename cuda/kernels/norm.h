// The steps of an RMS norm that its two users share: norm.cu (rows of the residual stream) and rope.cu (queries and keys).
#ifndef SLUICE_NORM_H
#define SLUICE_NORM_H

#include "device.h"

// The square of a float32 is exact in float64, so it makes no difference whether the compiler fuses the two.
static __device__ __forceinline__ double norm_square(double sum, float v) { return sum + (double)v * (double)v; }

static __device__ __forceinline__ double norm_warp_sum(double v) {
    for (int d = 16; d > 0; d >>= 1) v += __shfl_xor_sync(FULL_MASK, v, d);
    return v;
}

// The same bits in every thread of the block; once a kernel, for there is no barrier before its first write.
static __device__ __forceinline__ double norm_block_sum(double v) {
    __shared__ double part[32];
    const int warp = threadIdx.x / 32, warps = blockDim.x / 32;
    v = norm_warp_sum(v);
    if (warps == 1) return v;
    if (threadIdx.x % 32 == 0) part[warp] = v;
    __syncthreads();
    v = part[0];
    for (int i = 1; i < warps; i++) v += part[i];
    return v;
}

static __device__ __forceinline__ float norm_root(double sum, int n, float eps) {
    return (float)(1.0 / sqrt(sum / n + (double)eps));
}

static __device__ __forceinline__ float norm_scale(float v, float rms, float w) {
    return __fmul_rn(__fmul_rn(v, rms), w);
}

#endif
