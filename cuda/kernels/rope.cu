// QKNormRopeKV: what stands between the query, key and value products and attention: biases, the norms of queries and keys,
// the rotary embedding, and the cache.
//
// CPU reference: engine's placeJob (kernels.Add, RMSNorm, Rope, RowToF16) in this order. The rotation has the reference's
// bits; the norm is as close as norm.cu says.
//
// One warp a head. It stages the head in shared memory, because the two values of a pair are in different lanes. Two
// variants, by how far the norm reaches:
//   rope_heads  no norm, or a norm of each head: a warp needs nothing from its neighbours
//   rope_rows   a norm over all heads of a row: one block takes all queries of a row, one all keys, one all values
#include "fault.h"
#include "norm.h"
#include "rows.h"

#define ROPE_MAX_HEAD 256
#define ROPE_HEAD_WARPS 4
#define ROPE_ROW_WARPS 8

// What one kernel is told; q, k and v are float32 rows without gaps. Biases and norm weights may be null, and a norm
// without weights is none. The angles of position p are half cosines, then half sines, at table + p*2*half.
struct RopeArgs {
    float *q;
    const float *k, *v;
    const float *bq, *bk, *bv, *wq, *wk;
    const float *table;
    uint16_t *kCache, *vCache;  // pools of tiles
    const int *tiles;           // the sequences' tables
    int nHead, nKV, headDim, half, neox;
    float eps;
};

// Which head of which of the three a unit is.
struct RopeHead {
    const float *x, *bias, *norm;  // the head's own stretch of each; x of the row
    float *out;                    // float32 result, null: to cache
    uint16_t *cache;
    bool turn;
};

// row is the row of the pass, of which is how it is described.
static __device__ __forceinline__ RopeHead rope_find(const RopeArgs &a, int part, int head, int row, const Row &of, bool normPerRow) {
    RopeHead h;
    const int at = head * a.headDim, n = (part == 0 ? a.nHead : a.nKV) * a.headDim;
    const float *x = part == 0 ? a.q : part == 1 ? a.k : a.v;
    const float *bias = part == 0 ? a.bq : part == 1 ? a.bk : a.bv;
    const float *norm = part == 0 ? a.wq : part == 1 ? a.wk : nullptr;
    h.x = x + (long long)row * n + at;
    h.bias = bias ? bias + at : nullptr;
    h.norm = norm ? (normPerRow ? norm + at : norm) : nullptr;
    h.out = part == 0 ? a.q + (long long)row * n + at : nullptr;
    h.cache = part == 0 ? nullptr
                        : (part == 1 ? a.kCache : a.vCache) + kv_place(a.tiles[of.table + of.pos / KV_TILE], a.nKV, head, a.headDim) +
                              of.pos % KV_TILE * a.headDim;
    h.turn = part < 2;
    return h;
}

static __device__ __forceinline__ float rope_load(const float *x, const float *bias, int i) {
    return bias ? __fadd_rn(x[i], bias[i]) : x[i];
}

static __device__ __forceinline__ void rope_store(const RopeHead &h, int i, float v) {
    if (h.out) h.out[i] = v;
    else h.cache[i] = f2h(v);
}

// One warp finishes the head staged in s, which its lanes wrote at their own elements.
static __device__ __forceinline__ void rope_finish(const RopeHead &h, const RopeArgs &a, float *s, float rms, const float *angles) {
    const int lane = threadIdx.x % 32, turned = h.turn ? 2 * a.half : 0;
    if (h.norm)
        for (int i = lane; i < a.headDim; i += 32) s[i] = norm_scale(s[i], rms, h.norm[i]);
    __syncwarp();
    for (int j = lane; 2 * j < turned; j += 32) {
        const int iu = a.neox ? j : 2 * j, iv = a.neox ? j + a.half : 2 * j + 1;
        const float c = angles[j], d = angles[a.half + j], u = s[iu], v = s[iv];
        rope_store(h, iu, __fadd_rn(__fmul_rn(u, c), -__fmul_rn(v, d)));
        rope_store(h, iv, __fadd_rn(__fmul_rn(u, d), __fmul_rn(v, c)));
    }
    for (int i = turned + lane; i < a.headDim; i += 32) rope_store(h, i, s[i]);
    __syncwarp();
}

// Whether the cache has a place for a row; raises the fault where not.
static __device__ __forceinline__ bool rope_fits(const Row &of, int row, int ctx, unsigned long long *fault, unsigned order) {
    if (of.pos >= 0 && of.pos < ctx) return true;
    if (threadIdx.x == 0) fault_raise(fault, order, row);
    return false;
}

// Grid: heads of q, k and v by ROPE_HEAD_WARPS, rows.
extern "C" __global__ void rope_heads(float *q, const float *k, const float *v, const float *bq, const float *bk,
                                      const float *bv, const float *wq, const float *wk, const float *table, uint16_t *kCache,
                                      uint16_t *vCache, const Row *rows, const int *tiles, int nHead, int nKV, int headDim,
                                      int half, int neox, float eps, int ctx, unsigned long long *fault, unsigned order) {
    __shared__ float stage[ROPE_HEAD_WARPS][ROPE_MAX_HEAD];
    const RopeArgs a = {q, k, v, bq, bk, bv, wq, wk, table, kCache, vCache, tiles, nHead, nKV, headDim, half, neox, eps};
    const int row = blockIdx.y, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const Row of = rows[row];
    int head = blockIdx.x * ROPE_HEAD_WARPS + warp;
    if (!rope_fits(of, row, ctx, fault, order) || head >= nHead + 2 * nKV) return;
    int part = 0;
    if (head >= nHead) {
        part = 1 + (head - nHead) / nKV;
        head = (head - nHead) % nKV;
    }
    const RopeHead h = rope_find(a, part, head, row, of, false);
    float *s = stage[warp];
    double sum = 0.0;
    for (int i = lane; i < headDim; i += 32) {
        const float x = rope_load(h.x, h.bias, i);
        s[i] = x;
        sum = norm_square(sum, x);
    }
    float rms = 0.0f;
    if (h.norm) rms = norm_root(norm_warp_sum(sum), headDim, eps);
    rope_finish(h, a, s, rms, table + (long long)of.pos * 2 * half);
}

// Grid: 3 (q, k, v), rows.
extern "C" __global__ void rope_rows(float *q, const float *k, const float *v, const float *bq, const float *bk, const float *bv,
                                     const float *wq, const float *wk, const float *table, uint16_t *kCache, uint16_t *vCache,
                                     const Row *rows, const int *tiles, int nHead, int nKV, int headDim, int half, int neox,
                                     float eps, int ctx, unsigned long long *fault, unsigned order) {
    __shared__ float stage[ROPE_ROW_WARPS][ROPE_MAX_HEAD];
    const RopeArgs a = {q, k, v, bq, bk, bv, wq, wk, table, kCache, vCache, tiles, nHead, nKV, headDim, half, neox, eps};
    const int part = blockIdx.x, row = blockIdx.y, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const Row of = rows[row];
    if (!rope_fits(of, row, ctx, fault, order)) return;
    const int heads = part == 0 ? nHead : nKV, n = heads * headDim;
    const RopeHead all = rope_find(a, part, 0, row, of, true);
    float rms = 0.0f;
    if (all.norm) {
        double sum = 0.0;
        for (int i = threadIdx.x; i < n; i += blockDim.x) sum = norm_square(sum, rope_load(all.x, all.bias, i));
        rms = norm_root(norm_block_sum(sum), n, eps);
    }
    // The sum above has read all of q, and each head below is written by the warp that reads it.
    for (int head = warp; head < heads; head += ROPE_ROW_WARPS) {
        const RopeHead h = rope_find(a, part, head, row, of, true);
        for (int i = lane; i < headDim; i += 32) stage[warp][i] = rope_load(h.x, h.bias, i);
        rope_finish(h, a, stage[warp], rms, table + (long long)of.pos * 2 * half);
    }
}
