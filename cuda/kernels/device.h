// device.h: the one header of the device sources. It gives the same names to two compilers: nvcc, which makes the code
// of a real device, and g++, which makes the code of the emulated device in cuda/emu (SLUICE_EMU is defined and
// device_emu.h has been read already).
//
// Rules that both compilers can hold us to:
//   - kernels are `extern "C" __global__ void name(...)`, with parameters of pointer, int, unsigned, 64-bit or float type
//     (each travels in a cell of 8 bytes);
//   - warp functions always take the full mask, in blocks whose size is a multiple of 32, reached by all 32 lanes;
//   - every thread of a block reaches every __syncthreads, and none returns before the last of them;
//   - dynamic shared memory comes from SHARED_DYN, static from `__shared__ T a[N];` without initialiser.
#ifndef SLUICE_DEVICE_H
#define SLUICE_DEVICE_H

#ifdef SLUICE_EMU

#ifndef SLUICE_DEVICE_EMU_H
#error "device.h under SLUICE_EMU needs -include device_emu.h"
#endif

// One pointer into the block's dynamic shared memory, 16-byte aligned; every use in a kernel names the same bytes.
#define SHARED_DYN(T, name) T *name = reinterpret_cast<T *>(sluice_emu::dynamicShared())

#else  // nvcc

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <math.h>
#include <stdint.h>

// Through one untyped array: two kernels of a file may not declare one extern array with two types.
#define SHARED_DYN(T, name)                                          \
    extern __shared__ __align__(16) unsigned char sluice_dynamic[]; \
    T *name = reinterpret_cast<T *>(sluice_dynamic)

#endif

#define FULL_MASK 0xffffffffu

// The value of an IEEE half, given by its bits.
static __device__ __forceinline__ float h2f(uint16_t h) {
#ifdef SLUICE_EMU
    return sluice_emu::halfToFloat(h);
#else
    return __half2float(__ushort_as_half(h));
#endif
}

// The bits of the IEEE half nearest to f, ties to even; beyond the range infinity.
static __device__ __forceinline__ uint16_t f2h(float f) {
#ifdef SLUICE_EMU
    return sluice_emu::floatToHalf(f);
#else
    return __half_as_ushort(__float2half_rn(f));
#endif
}

// The value of a bfloat16, given by its bits.
static __device__ __forceinline__ float bf2f(uint16_t b) { return __uint_as_float((unsigned)b << 16); }

// The index of this thread in its block, and the number of threads of the block, for blocks of any shape.
static __device__ __forceinline__ unsigned thread_rank() {
    return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
}
static __device__ __forceinline__ unsigned block_threads() { return blockDim.x * blockDim.y * blockDim.z; }

// The sum over the lanes of a warp, the same bits in all of them. The order is a tree of lanes that differ in bit 4,
// then 3, 2, 1, 0: addition commutes, so both partners of a step hold the same sum.
static __device__ __forceinline__ float warp_sum(float v) {
    for (int d = 16; d > 0; d >>= 1) v = __fadd_rn(v, __shfl_xor_sync(FULL_MASK, v, d));
    return v;
}

// The same tree for integers.
static __device__ __forceinline__ int warp_sum(int v) {
    for (int d = 16; d > 0; d >>= 1) v += __shfl_xor_sync(FULL_MASK, v, d);
    return v;
}

// The maximum over the lanes of a warp, in all of them; a NaN loses against any number.
static __device__ __forceinline__ float warp_max(float v) {
    for (int d = 16; d > 0; d >>= 1) v = fmaxf(v, __shfl_xor_sync(FULL_MASK, v, d));
    return v;
}

// The sum over the threads of a block, the same bits in all of them: warp_sum, then the warps in ascending order. Every
// thread of the block calls it. The first barrier lets the array be used again by a second call.
static __device__ __forceinline__ float block_sum(float v) {
    __shared__ float part[32];
    const unsigned rank = thread_rank(), warps = block_threads() / 32;
    v = warp_sum(v);
    __syncthreads();
    if (rank % 32 == 0) part[rank / 32] = v;
    __syncthreads();
    float sum = part[0];
    for (unsigned w = 1; w < warps; w++) sum = __fadd_rn(sum, part[w]);
    return sum;
}

// The maximum over the threads of a block, in all of them.
static __device__ __forceinline__ float block_max(float v) {
    __shared__ float part[32];
    const unsigned rank = thread_rank(), warps = block_threads() / 32;
    v = warp_max(v);
    __syncthreads();
    if (rank % 32 == 0) part[rank / 32] = v;
    __syncthreads();
    float best = part[0];
    for (unsigned w = 1; w < warps; w++) best = fmaxf(best, part[w]);
    return best;
}

#endif
