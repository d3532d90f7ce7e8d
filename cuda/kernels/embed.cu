// Embed: the embedding rows of tokens, decoded to float32.
//
// CPU reference: kernels.Dequantize, bit for bit: every product and sum is rounded to float32 by itself, in ggml's order.
//
// The matrix stays as it is in the file, blocks of 2-byte alignment included: a token reads one row of it, so its loads are
// too few to matter. One thread an element, one block 256 elements of a row.
#include "fault.h"
#include "rows.h"

#define EMBED_THREADS 256

static __device__ __forceinline__ float embed_half(const uint8_t *p) { return h2f(*(const uint16_t *)p); }

// The element i of a row, by type. Bit layouts: kernels/quant_legacy.go and quant_k.go.
struct EmbedF32 {
    static __device__ __forceinline__ float at(const uint8_t *row, int i) { return ((const float *)row)[i]; }
};
struct EmbedF16 {
    static __device__ __forceinline__ float at(const uint8_t *row, int i) { return h2f(((const uint16_t *)row)[i]); }
};
struct EmbedBF16 {
    static __device__ __forceinline__ float at(const uint8_t *row, int i) { return bf2f(((const uint16_t *)row)[i]); }
};
struct EmbedQ8_0 {
    static __device__ __forceinline__ float at(const uint8_t *row, int i) {
        const uint8_t *b = row + (long long)(i / 32) * 34;
        return __fmul_rn(embed_half(b), (float)(int8_t)b[2 + i % 32]);
    }
};
struct EmbedQ4_0 {
    static __device__ __forceinline__ float at(const uint8_t *row, int i) {
        const uint8_t *b = row + (long long)(i / 32) * 18;
        const int e = i % 32, code = b[2 + e % 16] >> (e / 16 * 4) & 15;
        return __fmul_rn(embed_half(b), (float)(code - 8));
    }
};

// The scale and the min of sub-block j (32 elements) in the 12 bytes that Q4_K and Q5_K share.
static __device__ __forceinline__ void embed_scales(const uint8_t *s, int j, int *scale, int *low) {
    if (j < 4) {
        *scale = s[j] & 63;
        *low = s[j + 4] & 63;
    } else {
        *scale = (s[j + 4] & 15) | (s[j - 4] >> 6 << 4);
        *low = (s[j + 4] >> 4) | (s[j] >> 6 << 4);
    }
}

static __device__ __forceinline__ float embed_with_min(const uint8_t *b, int j, int code) {
    int scale, low;
    embed_scales(b + 4, j, &scale, &low);
    const float d = __fmul_rn(embed_half(b), (float)scale), m = __fmul_rn(embed_half(b + 2), (float)low);
    return __fadd_rn(__fmul_rn(d, (float)code), -m);
}

struct EmbedQ4_K {
    static __device__ __forceinline__ float at(const uint8_t *row, int i) {
        const uint8_t *b = row + (long long)(i / 256) * 144;
        const int e = i % 256, j = e / 32;
        return embed_with_min(b, j, b[16 + 32 * (j / 2) + e % 32] >> (4 * (j % 2)) & 15);
    }
};
struct EmbedQ5_K {
    static __device__ __forceinline__ float at(const uint8_t *row, int i) {
        const uint8_t *b = row + (long long)(i / 256) * 176;
        const int e = i % 256, j = e / 32;
        const int code = b[48 + 32 * (j / 2) + e % 32] >> (4 * (j % 2)) & 15, fifth = b[16 + e % 32] >> j & 1;
        return embed_with_min(b, j, code | fifth << 4);
    }
};
struct EmbedQ6_K {
    static __device__ __forceinline__ float at(const uint8_t *row, int i) {
        const uint8_t *b = row + (long long)(i / 256) * 210;
        const int e = i % 256, half = e / 128, l = e % 128;
        const int code = b[64 * half + l % 64] >> (l / 64 * 4) & 15, pair = b[128 + 32 * half + l % 32] >> (l / 32 * 2) & 3;
        const float d = __fmul_rn(embed_half(b + 208), (float)(int8_t)b[192 + e / 16]);
        return __fmul_rn(d, (float)((code | pair << 4) - 32));
    }
};

// A token id outside the vocabulary, which a graph finds on the device where an arg max failed, gives a row of zeros.
template <typename T>
static __device__ __forceinline__ void embed_row(float *out, const uint8_t *w, const Row *rows, int n, int vocab,
                                                 long long rowBytes, unsigned long long *fault, unsigned order) {
    const int row = blockIdx.y, i = blockIdx.x * EMBED_THREADS + threadIdx.x, id = rows[row].token;
    const bool known = id >= 0 && id < vocab;
    if (!known && i == 0) fault_raise(fault, order, row);
    if (i < n) out[(long long)row * n + i] = known ? T::at(w + id * rowBytes, i) : 0.0f;
}

#define EMBED(name, T)                                                                                                     \
    extern "C" __global__ void name(float *out, const uint8_t *w, const Row *rows, int n, int vocab, long long rowBytes,   \
                                    unsigned long long *fault, unsigned order) {                                           \
        embed_row<T>(out, w, rows, n, vocab, rowBytes, fault, order);                                                      \
    }

EMBED(embed_f32, EmbedF32)
EMBED(embed_f16, EmbedF16)
EMBED(embed_bf16, EmbedBF16)
EMBED(embed_q8_0, EmbedQ8_0)
EMBED(embed_q4_0, EmbedQ4_0)
EMBED(embed_q4_k, EmbedQ4_K)
EMBED(embed_q5_k, EmbedQ5_K)
EMBED(embed_q6_k, EmbedQ6_K)
