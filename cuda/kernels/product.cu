// Product: the dense products of a layer, y[column][row] = weights[row] . activations[column]. CPU reference:
// kernels.MulRows; dot.h has the order of the sums.
//
// A block is four warps, each with its own N rows of weights against C columns (F32: one set of N rows for all four). For
// each type there are four instances, the smallest that takes the columns is launched:
//   C=1, N=2  decode: both rows share the loads of activations, which a matrix-vector product asks of L1 2.5 times as
//             often as weights of memory
//   C=2, N=2; C=4, N=4; C=8, N=4
//             prompts: weights are unpacked once for C columns, activations loaded once for N rows. Beyond 8 columns
//             there is a block for each group of 8; those of the same rows of weights are neighbours, so that weights
//             come from memory once and the activations, which are few, stay in L2.
// The last number of an instance is the blocks a multiprocessor should hold. It bounds the registers, and without it the
// compiler saves registers by loading late.
#include "dot.h"

template <class T, int C, int N>
static __device__ __forceinline__ void product(float *y, const uint8_t *w, const uint8_t *act, const float *bias, int rows, int k,
                                               int n, int ld, int add, int stride16) {
    __shared__ float part[kDotThreads];
    const int groups = (n + C - 1) / C, c0 = (int)blockIdx.x % groups * C, cols = min(C, n - c0);
    const int lane = threadIdx.x & 31, r0 = dot_first_row<T, N>((int)blockIdx.x / groups), perRow = k / T::kBlock;

    const uint8_t *ws[N];
    int b0[N], off[C];
#pragma unroll
    for (int i = 0; i < N; i++) {
        ws[i] = w;
        b0[i] = min(r0 + i, rows - 1) * perRow; // a row past the end is computed and not stored
    }
#pragma unroll
    for (int c = 0; c < C; c++) off[c] = (c0 + c) * stride16;

    const float sum = dot_rows<T, C, N>(ws, b0, rows * perRow, act, off, cols, k, part);
    const int v = dot_index<N * C>(lane), r = r0 + v / C, c = v % C;
    if (!dot_stores<T>() || !dot_writer<N * C>(lane) || r >= rows || c >= cols) return;
    float *at = y + (int64_t)(c0 + c) * ld + r;
    float out = sum;
    if (bias != nullptr) out = __fadd_rn(out, bias[r]);
    if (add) out = __fadd_rn(*at, out);
    *at = out;
}

#define PRODUCT(name, T, C, N, blocks)                                                                                     \
    extern "C" __global__ void __launch_bounds__(128, blocks)                                                              \
        name(float *y, const uint8_t *w, const uint8_t *act, const float *bias, int rows, int k, int n, int ld, int add,   \
             int stride16) {                                                                                               \
        product<T, C, N>(y, w, act, bias, rows, k, n, ld, add, stride16);                                                  \
    }

PRODUCT(product_f32_1, DotF32, 1, 2, 6)
PRODUCT(product_f32_2, DotF32, 2, 2, 5)
PRODUCT(product_f32_4, DotF32, 4, 4, 3)
PRODUCT(product_f32_8, DotF32, 8, 4, 3)

PRODUCT(product_f16_1, DotF16, 1, 2, 6)
PRODUCT(product_f16_2, DotF16, 2, 2, 5)
PRODUCT(product_f16_4, DotF16, 4, 4, 3)
PRODUCT(product_f16_8, DotF16, 8, 4, 3)

PRODUCT(product_bf16_1, DotBF16, 1, 2, 6)
PRODUCT(product_bf16_2, DotBF16, 2, 2, 5)
PRODUCT(product_bf16_4, DotBF16, 4, 4, 3)
PRODUCT(product_bf16_8, DotBF16, 8, 4, 3)

PRODUCT(product_q8_0_1, DotQ8_0, 1, 2, 6)
PRODUCT(product_q8_0_2, DotQ8_0, 2, 2, 5)
PRODUCT(product_q8_0_4, DotQ8_0, 4, 4, 3)
PRODUCT(product_q8_0_8, DotQ8_0, 8, 4, 3)

PRODUCT(product_q4_0_1, DotQ4_0, 1, 2, 6)
PRODUCT(product_q4_0_2, DotQ4_0, 2, 2, 5)
PRODUCT(product_q4_0_4, DotQ4_0, 4, 4, 3)
PRODUCT(product_q4_0_8, DotQ4_0, 8, 4, 3)

PRODUCT(product_q4_k_1, DotQ4_K, 1, 2, 6)
PRODUCT(product_q4_k_2, DotQ4_K, 2, 2, 5)
PRODUCT(product_q4_k_4, DotQ4_K, 4, 4, 3)
PRODUCT(product_q4_k_8, DotQ4_K, 8, 4, 3)

PRODUCT(product_q5_k_1, DotQ5_K, 1, 2, 5)
PRODUCT(product_q5_k_2, DotQ5_K, 2, 2, 5)
PRODUCT(product_q5_k_4, DotQ5_K, 4, 4, 3)
PRODUCT(product_q5_k_8, DotQ5_K, 8, 4, 3)

PRODUCT(product_q6_k_1, DotQ6_K, 1, 2, 6)
PRODUCT(product_q6_k_2, DotQ6_K, 2, 2, 5)
PRODUCT(product_q6_k_4, DotQ6_K, 4, 4, 3)
PRODUCT(product_q6_k_8, DotQ6_K, 8, 4, 3)
