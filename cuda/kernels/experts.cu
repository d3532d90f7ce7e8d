// The experts of an MoE layer, over the work table: ExpertGateUp (both products of an entry and silu(gate)*up, in one
// kernel) and ExpertProduct (the down projection). CPU reference: kernels.MulRows and kernels.SiluMul, as the host's arm
// calls them; dot.h has the order of the sums, the same as Product's.
//
// Weights come through a table of addresses, three an expert (gate, up, down); an expert without one, which no kept
// entry should name, gives NaN and never a number.
//
// Each is there twice, with the same bits:
//   entries  for decode: the grid's second extent numbers entries, a block has one. 2 rows of weights a warp. The number of
//            entries comes from the table, so that a captured graph serves every step.
//   tiles    for prompts: the grid's second extent numbers tiles, up to 8 entries of one expert, so that weights are
//            loaded and unpacked once for them. 4 rows of weights a warp.
#include "dot.h"
#include "silu.h"

// ExpertWork is the part of a block: entries first to first+count-1 of one expert.
struct ExpertWork {
    int expert, first, count;
};

// expert_work is false for a block past the end. With C == 1 blockIdx.y is an entry, else a tile.
template <int C>
static __device__ __forceinline__ bool expert_work(ExpertWork &at, const int *expertOf, const int *tiles, const int *many) {
    const int i = (int)blockIdx.y;
    if (i >= *many) return false;
    if (C == 1) {
        at.expert = expertOf[i], at.first = i, at.count = 1;
    } else {
        at.expert = tiles[3 * i], at.first = tiles[3 * i + 1], at.count = tiles[3 * i + 2];
    }
    return true;
}

// expert_rows finds the rows of activations of the entries: by the entry's token, or the entry's own where token is null.
template <int C>
static __device__ __forceinline__ void expert_rows(int (&off)[C], const ExpertWork &at, const int *token, int stride16) {
#pragma unroll
    for (int c = 0; c < C; c++) {
        const int e = at.first + min(c, at.count - 1);
        off[c] = (token != nullptr ? token[e] : e) * stride16;
    }
}

// expert_gate_up has M rows of gate and the same rows of up a warp: products 0 to M*C-1 are the gates', and the lane 16
// further holds the up's.
template <class T, int C, int M>
static __device__ __forceinline__ void expert_gate_up(float *hidden, const uint64_t *ptrs, const uint8_t *act, const int *token,
                                                      const int *expertOf, const int *tiles, const int *many, int rows, int k,
                                                      int stride16) {
    __shared__ float part[kDotThreads];
    ExpertWork at;
    if (!expert_work<C>(at, expertOf, tiles, many)) return;
    const int lane = threadIdx.x & 31, r0 = dot_first_row<T, M>((int)blockIdx.x), perRow = k / T::kBlock;
    const uint8_t *gate = (const uint8_t *)ptrs[3 * at.expert], *up = (const uint8_t *)ptrs[3 * at.expert + 1];

    float sum = __uint_as_float(0x7fc00000u);
    if (gate != nullptr && up != nullptr) {
        const uint8_t *ws[2 * M];
        int b0[2 * M], off[C];
#pragma unroll
        for (int i = 0; i < M; i++) {
            ws[i] = gate, ws[M + i] = up;
            b0[i] = b0[M + i] = min(r0 + i, rows - 1) * perRow;
        }
        expert_rows<C>(off, at, token, stride16);
        sum = dot_rows<T, C, 2 * M>(ws, b0, rows * perRow, act, off, at.count, k, part);
    }
    const float other = __shfl_xor_sync(FULL_MASK, sum, 16);
    const int v = dot_index<2 * M * C>(lane), r = r0 + v / C, c = v % C;
    if (!dot_stores<T>() || !dot_writer<2 * M * C>(lane) || lane >= 16 || r >= rows || c >= at.count) return;
    hidden[(int64_t)(at.first + c) * rows + r] = silu_mul_one(sum, other);
}

// expert_product has N rows of matrix number `which` a warp.
template <class T, int C, int N>
static __device__ __forceinline__ void expert_product(float *y, const uint64_t *ptrs, int which, const uint8_t *act,
                                                      const int *token, const int *expertOf, const int *tiles, const int *many,
                                                      int rows, int k, int stride16) {
    __shared__ float part[kDotThreads];
    ExpertWork at;
    if (!expert_work<C>(at, expertOf, tiles, many)) return;
    const int lane = threadIdx.x & 31, r0 = dot_first_row<T, N>((int)blockIdx.x), perRow = k / T::kBlock;
    const uint8_t *w = (const uint8_t *)ptrs[3 * at.expert + which];

    float sum = __uint_as_float(0x7fc00000u);
    if (w != nullptr) {
        const uint8_t *ws[N];
        int b0[N], off[C];
#pragma unroll
        for (int i = 0; i < N; i++) {
            ws[i] = w;
            b0[i] = min(r0 + i, rows - 1) * perRow;
        }
        expert_rows<C>(off, at, token, stride16);
        sum = dot_rows<T, C, N>(ws, b0, rows * perRow, act, off, at.count, k, part);
    }
    const int v = dot_index<N * C>(lane), r = r0 + v / C, c = v % C;
    if (!dot_stores<T>() || !dot_writer<N * C>(lane) || r >= rows || c >= at.count) return;
    y[(int64_t)(at.first + c) * rows + r] = sum;
}

// The last number of an instance is the blocks a multiprocessor should hold, as in product.cu.
#define EXPERT_GATE_UP(name, T, C, M, blocks)                                                                              \
    extern "C" __global__ void __launch_bounds__(128, blocks)                                                              \
        name(float *hidden, const uint64_t *ptrs, const uint8_t *act, const int *token, const int *expertOf,               \
             const int *tiles, const int *many, int rows, int k, int stride16) {                                           \
        expert_gate_up<T, C, M>(hidden, ptrs, act, token, expertOf, tiles, many, rows, k, stride16);                       \
    }

#define EXPERT_PRODUCT(name, T, C, N, blocks)                                                                              \
    extern "C" __global__ void __launch_bounds__(128, blocks)                                                              \
        name(float *y, const uint64_t *ptrs, int which, const uint8_t *act, const int *token, const int *expertOf,         \
             const int *tiles, const int *many, int rows, int k, int stride16) {                                           \
        expert_product<T, C, N>(y, ptrs, which, act, token, expertOf, tiles, many, rows, k, stride16);                     \
    }

EXPERT_GATE_UP(expert_gate_up_f32_entries, DotF32, 1, 1, 6)
EXPERT_GATE_UP(expert_gate_up_f16_entries, DotF16, 1, 1, 6)
EXPERT_GATE_UP(expert_gate_up_bf16_entries, DotBF16, 1, 1, 6)
EXPERT_GATE_UP(expert_gate_up_q8_0_entries, DotQ8_0, 1, 1, 6)
EXPERT_GATE_UP(expert_gate_up_q4_0_entries, DotQ4_0, 1, 1, 6)
EXPERT_GATE_UP(expert_gate_up_q4_k_entries, DotQ4_K, 1, 1, 6)
EXPERT_GATE_UP(expert_gate_up_q5_k_entries, DotQ5_K, 1, 1, 5)
EXPERT_GATE_UP(expert_gate_up_q6_k_entries, DotQ6_K, 1, 1, 6)

EXPERT_GATE_UP(expert_gate_up_f32_tiles, DotF32, 8, 2, 3)
EXPERT_GATE_UP(expert_gate_up_f16_tiles, DotF16, 8, 2, 3)
EXPERT_GATE_UP(expert_gate_up_bf16_tiles, DotBF16, 8, 2, 3)
EXPERT_GATE_UP(expert_gate_up_q8_0_tiles, DotQ8_0, 8, 2, 3)
EXPERT_GATE_UP(expert_gate_up_q4_0_tiles, DotQ4_0, 8, 2, 3)
EXPERT_GATE_UP(expert_gate_up_q4_k_tiles, DotQ4_K, 8, 2, 3)
EXPERT_GATE_UP(expert_gate_up_q5_k_tiles, DotQ5_K, 8, 2, 3)
EXPERT_GATE_UP(expert_gate_up_q6_k_tiles, DotQ6_K, 8, 2, 3)

EXPERT_PRODUCT(expert_product_f32_entries, DotF32, 1, 2, 6)
EXPERT_PRODUCT(expert_product_f16_entries, DotF16, 1, 2, 6)
EXPERT_PRODUCT(expert_product_bf16_entries, DotBF16, 1, 2, 6)
EXPERT_PRODUCT(expert_product_q8_0_entries, DotQ8_0, 1, 2, 6)
EXPERT_PRODUCT(expert_product_q4_0_entries, DotQ4_0, 1, 2, 6)
EXPERT_PRODUCT(expert_product_q4_k_entries, DotQ4_K, 1, 2, 6)
EXPERT_PRODUCT(expert_product_q5_k_entries, DotQ5_K, 1, 2, 5)
EXPERT_PRODUCT(expert_product_q6_k_entries, DotQ6_K, 1, 2, 6)

EXPERT_PRODUCT(expert_product_f32_tiles, DotF32, 8, 4, 3)
EXPERT_PRODUCT(expert_product_f16_tiles, DotF16, 8, 4, 3)
EXPERT_PRODUCT(expert_product_bf16_tiles, DotBF16, 8, 4, 3)
EXPERT_PRODUCT(expert_product_q8_0_tiles, DotQ8_0, 8, 4, 3)
EXPERT_PRODUCT(expert_product_q4_0_tiles, DotQ4_0, 8, 4, 3)
EXPERT_PRODUCT(expert_product_q4_k_tiles, DotQ4_K, 8, 4, 3)
EXPERT_PRODUCT(expert_product_q5_k_tiles, DotQ5_K, 8, 4, 3)
EXPERT_PRODUCT(expert_product_q6_k_tiles, DotQ6_K, 8, 4, 3)
