// device_emu.h: the device language for g++. Read before a kernel source with -include; kernels see it through
// cuda/kernels/device.h. What takes part of other threads (barriers, warp functions) is in block.cc.
#ifndef SLUICE_DEVICE_EMU_H
#define SLUICE_DEVICE_EMU_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#define __host__
#define __device__
#define __constant__ static
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __align__(n) __attribute__((aligned(n)))
// A block runs on one thread of the machine from beginning to end, so thread storage is storage of the block.
#define __shared__ static __thread
// The scan for kernels reads these two words in the preprocessed source.
#ifndef SLUICE_EMU_SCAN
#define __global__
#define __launch_bounds__(...)
#endif

struct uint3 { unsigned x, y, z; };
struct dim3 { unsigned x, y, z; };

#include "vector_emu.h"

namespace sluice_emu {

struct Block;
struct Warp;

// What a kernel can ask of the thread that runs it. block.cc extends it.
struct Thread {
    uint3 index;
    unsigned rank, lane;  // in the block, in the warp
    uint3 block;     // index of the block
    dim3 blockSize;  // threads
    dim3 gridSize;   // blocks
    unsigned char *dynamic;  // dynamic shared memory
};
extern __thread Thread *current __attribute__((tls_model("initial-exec")));

void barrier();
int barrierCount(int predicate);
enum WarpOp { kShuffle, kBallot, kSync };
// Gives value to the lanes of mask and takes that of lane source (kShuffle), or the bits of the lanes whose value is not
// zero (kBallot). Returns when all lanes of the mask have called it.
uint64_t warp(WarpOp op, unsigned mask, uint64_t value, unsigned source);

inline unsigned char *dynamicShared() { return current->dynamic; }

template <typename To, typename From>
inline To bits(From v) {
    static_assert(sizeof(To) == sizeof(From), "sizes differ");
    To r;
    memcpy(&r, &v, sizeof r);
    return r;
}

template <typename T>
inline T shuffle(unsigned mask, T v, unsigned source) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "shuffles move 4 or 8 bytes");
    uint64_t cell = 0;
    memcpy(&cell, &v, sizeof v);
    cell = warp(kShuffle, mask, cell, source);
    memcpy(&v, &cell, sizeof v);
    return v;
}

inline float halfToFloat(uint16_t h) {
    const uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 31, fraction = h & 1023;
    if (exponent == 0) {
        const float v = (float)(int)fraction * 0x1p-24f;  // exact
        return sign ? -v : v;
    }
    if (exponent == 31) return bits<float>(sign | 0x7f800000 | fraction << 13);
    return bits<float>(sign | (exponent + 112) << 23 | fraction << 13);
}

inline uint16_t floatToHalf(float f) {
    const uint32_t u = bits<uint32_t>(f), sign = u >> 16 & 0x8000, magnitude = u & 0x7fffffff;
    if (magnitude > 0x7f800000) return 0x7fff;                    // NaN, as the device writes it
    if (magnitude >= 0x477ff000) return (uint16_t)(sign | 0x7c00);  // rounds beyond 65504
    if (magnitude < 0x38800000) {  // below 2^-14: a multiple of 2^-24; the sum rounds to even at that place
        const float r = bits<float>(magnitude) + 0.5f;
        return (uint16_t)(sign | (bits<uint32_t>(r) - 0x3f000000));
    }
    const uint32_t odd = magnitude >> 13 & 1;
    return (uint16_t)(sign | ((magnitude + 0xfff + odd - 0x38000000) >> 13));
}

}  // namespace sluice_emu

#define threadIdx (sluice_emu::current->index)
#define blockIdx (sluice_emu::current->block)
#define blockDim (sluice_emu::current->blockSize)
#define gridDim (sluice_emu::current->gridSize)
enum { warpSize = 32 };

inline void __syncthreads() { sluice_emu::barrier(); }
inline int __syncthreads_count(int p) { return sluice_emu::barrierCount(p); }
inline int __syncthreads_or(int p) { return sluice_emu::barrierCount(p) != 0; }
inline int __syncthreads_and(int p) { return sluice_emu::barrierCount(!p) == 0; }
inline void __syncwarp(unsigned mask = 0xffffffffu) { sluice_emu::warp(sluice_emu::kSync, mask, 0, 0); }

// A lane whose source lies outside its segment of width lanes keeps its own value.
template <typename T>
inline T __shfl_sync(unsigned mask, T v, int source, int width = 32) {
    const unsigned lane = sluice_emu::current->lane;
    return sluice_emu::shuffle(mask, v, (lane & ~(width - 1u)) | ((unsigned)source & (width - 1u)));
}
template <typename T>
inline T __shfl_xor_sync(unsigned mask, T v, int bits, int width = 32) {
    const unsigned lane = sluice_emu::current->lane, source = lane ^ (unsigned)bits;
    return sluice_emu::shuffle(mask, v, source >= ((lane & ~(width - 1u)) + width) ? lane : source);
}
template <typename T>
inline T __shfl_down_sync(unsigned mask, T v, unsigned delta, int width = 32) {
    const unsigned lane = sluice_emu::current->lane;
    return sluice_emu::shuffle(mask, v, (lane & (width - 1u)) + delta >= (unsigned)width ? lane : lane + delta);
}
template <typename T>
inline T __shfl_up_sync(unsigned mask, T v, unsigned delta, int width = 32) {
    const unsigned lane = sluice_emu::current->lane;
    return sluice_emu::shuffle(mask, v, (lane & (width - 1u)) < delta ? lane : lane - delta);
}
inline unsigned __ballot_sync(unsigned mask, int p) { return (unsigned)sluice_emu::warp(sluice_emu::kBallot, mask, p != 0, 0); }
inline int __any_sync(unsigned mask, int p) { return __ballot_sync(mask, p) != 0; }
inline int __all_sync(unsigned mask, int p) { return __ballot_sync(mask, p) == mask; }

#include "atomic_emu.h"
#include "math_emu.h"

#endif
