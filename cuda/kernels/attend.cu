// Attention over the f16 key/value cache: out[h] = sum over p <= position of softmax_p(scale * q[h].k[p]) * v[p].
//
// CPU reference: kernels.AttendF16 (and AttendBlockF16), to a bound; between the variants here, and between the emulated
// and a real device, bit for bit.
//
// Keys and values of a sequence lie in the tiles of a pool that its table names (rows.h), headDim a multiple of 8 up to 256.
// Its positions are cut into stretches of 256 anchored at 0, which are four tiles. A (query, stretch) pair has a partial
// result (m, l, o): the largest score, the sum of the exponentials relative to it, and the values weighted by them. Partials
// are merged in ascending order by attend_merge. Each sum has one order, which no launch can change:
//
//	score   four accumulators, accumulator j over the 8-value chunks j, j+4, ... of the head by fused multiply-adds; then
//	        (a0 + a2) + (a1 + a3), times scale
//	l       of each 32 positions by warp_sum, then those ascending
//	o       of each 16 positions ascending by fused multiply-adds, then those ascending
//
// so a query has the same bits whether it comes alone, with others or as part of a prompt. Variants:
//
//	attend_decode_1/2/4  a block is some stretches of a row and 1, 2 or 4 query heads that share a KV head; partials go to
//	                     memory. Rows may be of as many sequences
//	attend_combine       merges them, one block a query head
//	attend_prefill_8/4   a block is 8 or 4 queries (a query head of a row) that share a KV head, from a piece: rows of one
//	                     sequence that follow one another. It walks over their stretches with the merged result in
//	                     registers, so that keys and values are read once for all of them
//
// The grid of the decode variants depends on the context and the number of rows alone, and positions come from the rows in
// memory, so a captured launch stays right as they move on; blocks past the end return at once. Keys and values are read 16
// bytes at a time: 4 lanes a position for keys, headDim/8 lanes a position for values.
#include "recipe.h"
#include "rows.h"

#define ATTEND_TILE 256
#define ATTEND_GROUP 16                              // positions whose weighted values one thread sums
#define ATTEND_GROUPS (ATTEND_TILE / ATTEND_GROUP)
#define ATTEND_SEGMENT 32                            // positions whose exponentials one warp sums
#define ATTEND_SEGMENTS (ATTEND_TILE / ATTEND_SEGMENT)
#define ATTEND_STRIDE (ATTEND_TILE + 8)              // of a row of scores: four rows then lie in different banks

static_assert(ATTEND_TILE == 4 * KV_TILE && KV_TILE % ATTEND_GROUP == 0, "a stretch is four tiles, a group lies in one");

// A block has 2*headDim threads, rounded up to warps: ATTEND_GROUPS times the chunks of a head. Its dynamic shared memory,
// in floats: the queries, ROWS x headDim; the exponentials, ROWS x ATTEND_STRIDE; then scores (ROWS x ATTEND_STRIDE) and,
// after them in the same place, the groups' sums of two rows (ATTEND_GROUPS x min(2, ROWS) x headDim).
template <int ROWS>
struct AttendBlock {
    float *q, *e, *work;
    float (*segment)[ATTEND_SEGMENTS];  // ROWS: sums of exponentials
    float *top;                         // ROWS: largest score of the tile
    int *limit;                         // ROWS: positions that the row sees, ascending
    int headDim;
    int nKV, kvHead;
    const int4 *table;  // of the sequence, a stretch's four tiles together
};

// A layer's pool, as one block sees a stretch of it: the numbers of its tiles, of which only those of positions that are
// there mean anything.
struct AttendTiles {
    int4 at;
    __device__ __forceinline__ int of(int p) const {
        const int i = p / KV_TILE;
        return i < 2 ? (i == 0 ? at.x : at.y) : (i == 2 ? at.z : at.w);
    }
};

// How many positions of the tile that begins at p0 a row sees.
static __device__ __forceinline__ int attend_count(int limit, int p0) {
    const int n = limit - p0;
    return n < 0 ? 0 : n > ATTEND_TILE ? ATTEND_TILE : n;
}

static __device__ __forceinline__ void attend_widen(float *x, uint4 v) {
    x[0] = h2f((uint16_t)v.x);
    x[1] = h2f((uint16_t)(v.x >> 16));
    x[2] = h2f((uint16_t)v.y);
    x[3] = h2f((uint16_t)(v.y >> 16));
    x[4] = h2f((uint16_t)v.z);
    x[5] = h2f((uint16_t)(v.z >> 16));
    x[6] = h2f((uint16_t)v.w);
    x[7] = h2f((uint16_t)(v.w >> 16));
}

// Not NaN where m is not: a NaN score shows in the exponentials.
static __device__ __forceinline__ float attend_larger(float m, float x) { return x > m ? x : m; }

// What exponentials are taken relative to: -Inf - -Inf would poison finite scores that may still come.
static __device__ __forceinline__ float attend_base(float m) { return m == -INFINITY ? 0.0f : m; }

// The factors by which a merged result with maximum *m and a partial one with maximum t are added up; *m moves on.
static __device__ __forceinline__ void attend_merge(float *m, float t, float *keep, float *take) {
    const float largest = attend_larger(*m, t), base = attend_base(largest);
    *keep = sluice_exp(__fadd_rn(*m, -base));
    *take = sluice_exp(__fadd_rn(t, -base));
    *m = largest;
}

static __device__ __forceinline__ float attend_add(float sum, float keep, float part, float take) {
    return __fadd_rn(__fmul_rn(sum, keep), __fmul_rn(part, take));
}

// Scores of the tile's first most positions, to b.work.
template <int ROWS>
static __device__ __forceinline__ void attend_scores(const AttendBlock<ROWS> &b, const uint16_t *k, const AttendTiles &tiles,
                                                     int most, float scale) {
    const int chunks = b.headDim / 8, j = threadIdx.x % 4, step = blockDim.x / 4;
    for (int p0 = 0; p0 < most; p0 += step) {
        const int p = p0 + threadIdx.x / 4;
        float s[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; r++) s[r] = 0.0f;
        if (p < most) {
            const uint4 *row = (const uint4 *)(k + kv_place(tiles.of(p), b.nKV, b.kvHead, b.headDim) + p % KV_TILE * b.headDim);
#pragma unroll 4
            for (int c = j; c < chunks; c += 4) {
                float x[8];
                attend_widen(x, row[c]);
#pragma unroll
                for (int r = 0; r < ROWS; r++) {
                    const float4 *q = (const float4 *)(b.q + r * b.headDim + 8 * c);
                    const float4 lo = q[0], hi = q[1];
                    s[r] = fmaf(lo.x, x[0], s[r]);
                    s[r] = fmaf(lo.y, x[1], s[r]);
                    s[r] = fmaf(lo.z, x[2], s[r]);
                    s[r] = fmaf(lo.w, x[3], s[r]);
                    s[r] = fmaf(hi.x, x[4], s[r]);
                    s[r] = fmaf(hi.y, x[5], s[r]);
                    s[r] = fmaf(hi.z, x[6], s[r]);
                    s[r] = fmaf(hi.w, x[7], s[r]);
                }
            }
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            s[r] = __fadd_rn(s[r], __shfl_xor_sync(FULL_MASK, s[r], 2));
            s[r] = __fadd_rn(s[r], __shfl_xor_sync(FULL_MASK, s[r], 1));
            if (p < most && r % 4 == j) b.work[r * ATTEND_STRIDE + p] = __fmul_rn(s[r], scale);
        }
    }
}

// Exponentials of the scores, to b.e, with b.top and b.segment. A warp takes the segments of a row, or several of them.
template <int ROWS>
static __device__ __forceinline__ void attend_exponentials(const AttendBlock<ROWS> &b, int p0) {
    const int warps = blockDim.x / 32, lane = threadIdx.x % 32, each = (ROWS * ATTEND_SEGMENTS + warps - 1) / warps;
    const int from = threadIdx.x / 32 * each, to = from + each < ROWS * ATTEND_SEGMENTS ? from + each : ROWS * ATTEND_SEGMENTS;
    float m = 0.0f;
    int known = -1;  // the row that m belongs to
    for (int u = from; u < to; u++) {
        const int r = u / ATTEND_SEGMENTS, g = u % ATTEND_SEGMENTS, count = attend_count(b.limit[r], p0);
        if (g * ATTEND_SEGMENT >= count) continue;
        const float *score = b.work + r * ATTEND_STRIDE;
        if (known != r) {
            known = r;
            m = -INFINITY;
            for (int p = lane; p < count; p += 32) m = attend_larger(m, score[p]);
            for (int d = 16; d > 0; d >>= 1) m = attend_larger(m, __shfl_xor_sync(FULL_MASK, m, d));
        }
        const int p = g * ATTEND_SEGMENT + lane;
        float v = 0.0f;
        if (p < count) {
            v = sluice_exp(__fadd_rn(score[p], -attend_base(m)));
            b.e[r * ATTEND_STRIDE + p] = v;
        }
        v = warp_sum(v);
        if (lane == 0) {
            b.segment[r][g] = v;
            if (g == 0) b.top[r] = m;
        }
    }
}

// The sum of a row's exponentials, count > 0.
template <int ROWS>
static __device__ __forceinline__ float attend_length(const AttendBlock<ROWS> &b, int r, int count) {
    float l = b.segment[r][0];
    for (int g = 1; g * ATTEND_SEGMENT < count; g++) l = __fadd_rn(l, b.segment[r][g]);
    return l;
}

// The weighted values of this thread's group of positions and chunk of the head.
template <int ROWS>
static __device__ __forceinline__ void attend_values(const AttendBlock<ROWS> &b, const uint16_t *v, const AttendTiles &tiles, int p0,
                                                     int group, int chunk, int most, int least, float (&acc)[ROWS][8]) {
    const int first = group * ATTEND_GROUP, stride = b.headDim;
    const uint16_t *row = v + kv_place(tiles.of(first), b.nKV, b.kvHead, stride) + first % KV_TILE * stride + 8 * chunk;
    const float *e = b.e + first;
    constexpr int LOADS = ROWS < 8 ? 4 : 2;  // under way together; with 8 rows the registers are few
    if (first + ATTEND_GROUP <= least) {
#pragma unroll 1
        for (int i = 0; i < ATTEND_GROUP; i += LOADS) {
            uint4 raw[LOADS];
#pragma unroll
            for (int p = 0; p < LOADS; p++) raw[p] = *(const uint4 *)(row + (i + p) * stride);
#pragma unroll
            for (int p = 0; p < LOADS; p++) {
                float x[8];
                attend_widen(x, raw[p]);
#pragma unroll
                for (int r = 0; r < ROWS; r++) {
                    const float w = e[r * ATTEND_STRIDE + i + p];
#pragma unroll
                    for (int d = 0; d < 8; d++) acc[r][d] = fmaf(w, x[d], acc[r][d]);
                }
            }
        }
        return;
    }
    // Rows end inside the group. What lies behind a row's end must not be touched with a weight of 0: it may be no number.
    const int end = most - first < ATTEND_GROUP ? most - first : ATTEND_GROUP;
#pragma unroll 1
    for (int i = 0; i < end; i++) {
        float x[8];
        attend_widen(x, *(const uint4 *)(row + i * stride));
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            if (first + i < attend_count(b.limit[r], p0)) {
                const float w = e[r * ATTEND_STRIDE + i];
#pragma unroll
                for (int d = 0; d < 8; d++) acc[r][d] = fmaf(w, x[d], acc[r][d]);
            }
        }
    }
}

// One stretch, which begins at p0. k and v are the layer's pools. sink.length(r, m, l) is called by thread r, and before the
// values: sink.value(i, r, d, o) by the thread that owns value d of row r, which is its i-th row. Rows that see nothing of
// the stretch are left out. The block's shared memory may be written again after a barrier.
template <int ROWS, typename Sink>
static __device__ __forceinline__ void attend_tile(const AttendBlock<ROWS> &b, const uint16_t *k, const uint16_t *v, int p0,
                                                   float scale, Sink &sink) {
    const int tid = threadIdx.x, hd = b.headDim, chunks = hd / 8;
    const int most = attend_count(b.limit[ROWS - 1], p0), least = attend_count(b.limit[0], p0);
    const AttendTiles tiles = {b.table[p0 / ATTEND_TILE]};
    attend_scores<ROWS>(b, k, tiles, most, scale);
    __syncthreads();
    attend_exponentials<ROWS>(b, p0);
    __syncthreads();
    if (tid < ROWS) {
        const int count = attend_count(b.limit[tid], p0);
        if (count > 0) sink.length(tid, b.top[tid], attend_length<ROWS>(b, tid, count));
    }

    const int group = tid / chunks, chunk = tid % chunks;
    const bool active = group * ATTEND_GROUP < most && group < ATTEND_GROUPS;
    float acc[ROWS][8];
#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
        for (int d = 0; d < 8; d++) acc[r][d] = 0.0f;
    if (active) attend_values<ROWS>(b, v, tiles, p0, group, chunk, most, least, acc);

    constexpr int PAIR = ROWS < 2 ? ROWS : 2;
    const int mine = tid / hd, d = tid % hd;
#pragma unroll
    for (int r0 = 0; r0 < ROWS; r0 += PAIR) {
        if (r0) __syncthreads();
        if (active) {
#pragma unroll
            for (int i = 0; i < PAIR; i++) {
                float4 *to = (float4 *)(b.work + (group * PAIR + i) * hd + 8 * chunk);
                const float *a = acc[r0 + i];
                to[0] = make_float4(a[0], a[1], a[2], a[3]);
                to[1] = make_float4(a[4], a[5], a[6], a[7]);
            }
        }
        __syncthreads();
        if (mine < PAIR) {
            const int count = attend_count(b.limit[r0 + mine], p0);
            if (count > 0) {
                const float *from = b.work + mine * hd + d;
                float o = from[0];
                for (int g = 1; g * ATTEND_GROUP < count; g++) o = __fadd_rn(o, from[g * PAIR * hd]);
                sink.value(r0 / PAIR, r0 + mine, d, o);
            }
        }
    }
}

// Partials of one query head and tile, in memory: values [row][head][tile][headDim], and (m, l) [row][head][tile].
template <int ROWS>
struct AttendPartial {
    float *values;   // of the block's first head and the current tile
    float2 *lengths;
    long long perHead;  // tiles
    int heads, headDim;
    __device__ __forceinline__ void length(int r, float m, float l) {
        if (r < heads) lengths[r * perHead] = make_float2(m, l);
    }
    __device__ __forceinline__ void value(int, int r, int d, float o) {
        if (r < heads) values[r * perHead * headDim + d] = o;
    }
};

// The positions that a row sees.
static __device__ __forceinline__ int attend_limit(const Row &row, int ctx) { return row.pos + 1 < ctx ? row.pos + 1 : ctx; }

// Grid: stretches, KV heads x groups of ROWS query heads, rows. list has the numbers of the rows in the pass, null where
// they are all of them. The partials of the i-th one are the i-th.
template <int ROWS>
static __device__ __forceinline__ void attend_decode(float *values, float2 *lengths, const float *q, const uint16_t *k,
                                                     const uint16_t *v, const Row *rows, const int *tables, const int *list,
                                                     int nHead, int nKV, int headDim, int ctx, int tiles, float scale) {
    SHARED_DYN(float, shared);
    __shared__ float segment[ROWS][ATTEND_SEGMENTS], top[ROWS];
    __shared__ int limits[ROWS];
    const int tid = threadIdx.x, share = nHead / nKV, parts = (share + ROWS - 1) / ROWS;
    const int kvHead = blockIdx.y / parts, inGroup = blockIdx.y % parts * ROWS, head = kvHead * share + inGroup;
    const int heads = share - inGroup < ROWS ? share - inGroup : ROWS;
    const int at = list ? list[blockIdx.z] : (int)blockIdx.z;
    const Row row = rows[at];
    const int limit = attend_limit(row, ctx);
    if ((int)blockIdx.x * ATTEND_TILE >= limit) return;

    AttendBlock<ROWS> b = {shared, shared + ROWS * headDim, shared + ROWS * (headDim + ATTEND_STRIDE), segment, top, limits, headDim,
                           nKV,    kvHead,                  (const int4 *)(tables + row.table)};
    if (tid < ROWS) limits[tid] = limit;
    q += ((long long)at * nHead + head) * headDim;
    for (int i = tid; i < ROWS * headDim; i += blockDim.x) b.q[i] = i < heads * headDim ? q[i] : 0.0f;
    __syncthreads();

    for (int t = blockIdx.x; t * ATTEND_TILE < limit; t += gridDim.x) {
        const long long to = ((long long)blockIdx.z * nHead + head) * tiles + t;
        AttendPartial<ROWS> sink = {values + to * headDim, lengths + to, tiles, heads, headDim};
        attend_tile<ROWS>(b, k, v, t * ATTEND_TILE, scale, sink);
        __syncthreads();
    }
}

// The bounds are the largest block's, so that the registers of all of them fit.
#define ATTEND_DECODE(name, ROWS)                                                                                          \
    extern "C" __global__ void __launch_bounds__(512)                                                                      \
        name(float *values, float2 *lengths, const float *q, const uint16_t *k, const uint16_t *v, const Row *rows,        \
             const int *tables, const int *list, int nHead, int nKV, int headDim, int ctx, int tiles, float scale) {       \
        attend_decode<ROWS>(values, lengths, q, k, v, rows, tables, list, nHead, nKV, headDim, ctx, tiles, scale);         \
    }

ATTEND_DECODE(attend_decode_1, 1)
ATTEND_DECODE(attend_decode_2, 2)
ATTEND_DECODE(attend_decode_4, 4)

#define ATTEND_COMBINE 256  // threads: at least headDim; and tiles whose factors are computed together

// Grid: query heads, rows. list as above.
extern "C" __global__ void attend_combine(float *out, const float *values, const float2 *lengths, const Row *rows, const int *list,
                                          int headDim, int ctx, int tiles) {
    __shared__ float top[ATTEND_COMBINE], length[ATTEND_COMBINE], keep[ATTEND_COMBINE], take[ATTEND_COMBINE];
    const int tid = threadIdx.x, at = list ? list[blockIdx.y] : (int)blockIdx.y, limit = attend_limit(rows[at], ctx);
    const int used = (limit + ATTEND_TILE - 1) / ATTEND_TILE;
    const long long head = (long long)blockIdx.y * gridDim.x + blockIdx.x;
    values += head * tiles * headDim;
    lengths += head * tiles;
    float m = -INFINITY, l = 0.0f, o = 0.0f;
    for (int t0 = 0; t0 < used; t0 += ATTEND_COMBINE) {
        const int n = used - t0 < ATTEND_COMBINE ? used - t0 : ATTEND_COMBINE;
        __syncthreads();
        if (tid < n) {
            const float2 part = lengths[t0 + tid];
            top[tid] = part.x;
            length[tid] = part.y;
        }
        __syncthreads();
        float before = m;  // of the tiles before this thread's; a maximum has no order
        for (int i = 0; i < n; i++) {
            if (i < tid) before = attend_larger(before, top[i]);
            m = attend_larger(m, top[i]);
        }
        if (tid < n) attend_merge(&before, top[tid], &keep[tid], &take[tid]);
        __syncthreads();
#pragma unroll 4
        for (int i = 0; i < n; i++) {
            l = attend_add(l, keep[i], length[i], take[i]);
            if (tid < headDim) o = attend_add(o, keep[i], values[(long long)(t0 + i) * headDim + tid], take[i]);
        }
    }
    if (tid < headDim) out[((long long)at * gridDim.x + blockIdx.x) * headDim + tid] = used > 0 ? __fdiv_rn(o, l) : 0.0f;
}

// The merged result: values in registers, two rows' worth of threads each; maximum and sum of row r with thread r.
template <int ROWS>
struct AttendMerged {
    float o[ROWS / 2];
    float m, l;
    float *keep, *take;  // ROWS, shared
    __device__ __forceinline__ void length(int r, float t, float part) {
        attend_merge(&m, t, &keep[r], &take[r]);
        l = attend_add(l, keep[r], part, take[r]);
    }
    __device__ __forceinline__ void value(int i, int r, int, float part) { o[i] = attend_add(o[i], keep[r], part, take[r]); }
};

// Grid: pieces x perPiece, KV heads. A piece is (first row of the pass, rows), of one sequence and ascending positions; its
// queries are by row, within a row by query head of the KV head's, and each of its perPiece blocks has ROWS of them.
template <int ROWS>
static __device__ __forceinline__ void attend_prefill(float *out, const float *q, const uint16_t *k, const uint16_t *v,
                                                      const Row *rows, const int *tables, const int2 *pieces, int perPiece,
                                                      int nHead, int nKV, int headDim, int ctx, float scale) {
    SHARED_DYN(float, shared);
    __shared__ float segment[ROWS][ATTEND_SEGMENTS], top[ROWS], keep[ROWS], take[ROWS];
    __shared__ int limits[ROWS];
    const int tid = threadIdx.x, share = nHead / nKV, kvHead = blockIdx.y;
    const int block = gridDim.x - 1 - blockIdx.x;  // those that see most begin first
    const int2 piece = pieces[block / perPiece];
    const int queries = piece.y * share, first = block % perPiece * ROWS;
    if (first >= queries) return;
    AttendBlock<ROWS> b = {shared, shared + ROWS * headDim, shared + ROWS * (headDim + ATTEND_STRIDE), segment, top, limits, headDim,
                           nKV,    kvHead,                  (const int4 *)(tables + rows[piece.x].table)};
    // Where the query i of the block lies in q and out.
    const auto place = [=](int i) {
        const int r = first + i;
        return ((long long)(piece.x + r / share) * nHead + kvHead * share + r % share) * headDim;
    };
    if (tid < ROWS) {
        // Queries past the end see what the last one does, and are not written.
        const int r = first + tid < queries ? first + tid : queries - 1;
        limits[tid] = attend_limit(rows[piece.x + r / share], ctx);
    }
    for (int i = tid; i < ROWS * headDim; i += blockDim.x) {
        const int r = i / headDim;
        b.q[i] = first + r < queries ? q[place(r) + i % headDim] : 0.0f;
    }
    __syncthreads();

    AttendMerged<ROWS> sink = {};
    sink.m = -INFINITY;
    sink.keep = keep;
    sink.take = take;
    for (int p0 = 0; p0 < limits[ROWS - 1]; p0 += ATTEND_TILE) {
        attend_tile<ROWS>(b, k, v, p0, scale, sink);
        __syncthreads();
    }

    if (tid < ROWS) keep[tid] = sink.l;
    __syncthreads();
    const int mine = tid / headDim, d = tid % headDim;
#pragma unroll
    for (int i = 0; i < ROWS / 2; i++) {
        const int r = 2 * i + mine;
        if (mine < 2 && first + r < queries) out[place(r) + d] = limits[r] > 0 ? __fdiv_rn(sink.o[i], keep[r]) : 0.0f;
    }
}

#define ATTEND_PREFILL(name, ROWS, ...)                                                                                    \
    extern "C" __global__ void __launch_bounds__(__VA_ARGS__)                                                              \
        name(float *out, const float *q, const uint16_t *k, const uint16_t *v, const Row *rows, const int *tables,         \
             const int2 *pieces, int perPiece, int nHead, int nKV, int headDim, int ctx, float scale) {                    \
        attend_prefill<ROWS>(out, q, k, v, rows, tables, pieces, perPiece, nHead, nKV, headDim, ctx, scale);               \
    }

ATTEND_PREFILL(attend_prefill_8, 8, 256, 2)
ATTEND_PREFILL(attend_prefill_4, 4, 512)
