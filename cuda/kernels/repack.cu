// Repack: a matrix as in the file to planes whose loads are 16 bytes wide (repack.go has the layouts). A thread moves 2
// bytes, the most that the file's blocks of 34, 18 and 210 bytes are aligned to; it runs once per upload and waits for the
// bus anyway. It moves bytes and computes nothing, so its reference is the layout itself.
#include "device.h"

// repack_halves is for blocks of a scale (2 bytes) and then Words*2 bytes of codes.
template <int Words>
static __device__ __forceinline__ void repack_halves(uint16_t *dst, const uint16_t *src, int64_t blocks) {
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, codes = blocks * Words;
    if (i < codes) {
        dst[i] = src[i / Words * (Words + 1) + 1 + i % Words];
    } else if (i < codes + blocks) {
        dst[i] = src[(i - codes) * (Words + 1)];
    }
}

extern "C" __global__ void repack_q8_0(uint16_t *dst, const uint16_t *src, int64_t blocks) {
    repack_halves<16>(dst, src, blocks);
}

extern "C" __global__ void repack_q4_0(uint16_t *dst, const uint16_t *src, int64_t blocks) {
    repack_halves<8>(dst, src, blocks);
}

extern "C" __global__ void repack_q6_k(uint16_t *dst, const uint16_t *src, int64_t blocks) {
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    uint16_t *to = dst + i;
    if (i < blocks * 64) { // low nibbles
        *to = src[i / 64 * 105 + i % 64];
        return;
    }
    i -= blocks * 64;
    if (i < blocks * 32) { // upper pairs
        *to = src[i / 32 * 105 + 64 + i % 32];
        return;
    }
    i -= blocks * 32;
    if (i < blocks * 8) { // scales j and j+4 of each half
        const uint8_t *sc = (const uint8_t *)(src + i / 8 * 105 + 96);
        const int j = (int)(i % 8), at = j / 4 * 8 + j % 4;
        *to = (uint16_t)(sc[at] | sc[at + 4] << 8);
        return;
    }
    i -= blocks * 8;
    if (i < blocks) *to = src[i * 105 + 104];
}
