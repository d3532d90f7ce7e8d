// DropTable: a call's routed slots, the residency of its experts and the drop policy to the work table. One block.
//
// CPU reference: moe.Drop (rules 1 to 3), moe.Table and moe.Call (Routed, Dropped, Mass, MassDropped), as
// moe/arm_host.go has them in plain steps and moe/arm_table.go in this shape; equal bit for bit.
//
// No place in the table comes from the order in which threads arrive. Experts are distinct within a row, so a bit for each
// (expert, row) is a complete picture of who selected whom: its count is the expert's number of slots, and the count of
// the bits below a row is the row's place among the expert's entries. A prefix sum over the experts does the rest, and
// tokens ascend by themselves. Bits are set by atomicOr, whose result does not depend on the order either.
//
// The bits lie in shared memory where they fit, else in the table's scratch (bits).
#include "rows.h"

#define TABLE_TILE_COLS 8  // TileCols

// table_scan is the inclusive prefix sum of v over the warp.
static __device__ __forceinline__ unsigned long long table_scan(unsigned long long v) {
    const int lane = threadIdx.x % 32;
    for (int d = 1; d < 32; d <<= 1) {
        const unsigned long long o = __shfl_sync(FULL_MASK, v, lane < d ? lane : lane - d);
        if (lane >= d) v += o;
    }
    return v;
}

static __device__ __forceinline__ int table_count(const unsigned *bits, int words) {
    int c = 0;
    for (int i = 0; i < words; i++) c += __popc(bits[i]);
    return c;
}

// table_chain adds the call's weights up in (row, slot) order, one warp: the lanes load, and every lane runs the chain.
static __device__ void table_chain(const int *ids, const float *weights, const int *at, int slots, double *mass, double *lost) {
    const int lane = threadIdx.x % 32;
    double all = 0.0, fallen = 0.0;
    for (int i = 0; i < slots; i += 32) {
        float w = 0.0f, f = 0.0f;  // adding 0 changes no sum
        if (i + lane < slots) {
            w = weights[i + lane];
            f = at[ids[i + lane]] < 0 ? w : 0.0f;
        }
#pragma unroll 8
        for (int j = 0; j < 32; j++) {
            all += __shfl_sync(FULL_MASK, w, j);
            fallen += __shfl_sync(FULL_MASK, f, j);
        }
    }
    *mass = all;
    *lost = fallen;
}

// table_sums writes the call's record, the whole block: its sums (4 words), the totals with it and those without. before
// are the totals of the call before. The sums in double have to be those of
// one chain in (row, slot) order, which a prefill would wait for. But if every weight is below 4 and a multiple of a
// quantum that 2^53 of are enough for all slots at that bound, no order rounds anywhere: then everybody counts quanta.
static __device__ void table_sums(const int *ids, const float *weights, const int *at, int slots, const long long *before,
                                  long long *sums) {
    __shared__ unsigned long long quanta[3];  // of all slots, of the dropped; number of the dropped
    const int tid = threadIdx.x;
    int bits = 0;  // slots <= 2^bits
    while (bits < 31 && 1ll << bits < slots) bits++;
    const float unit = __int_as_float((127 + 51 - bits) << 23);      // quanta in 1
    const double quantum = __int_as_float((127 - 51 + bits) << 23);  // 1/unit

    if (tid < 3) quanta[tid] = 0;
    unsigned long long all = 0, fallen = 0, dropped = 0;
    bool exact = true;
    for (int i = tid; i < slots; i += blockDim.x) {
        const float w = weights[i];
        const bool fell = at[ids[i]] < 0;
        dropped += fell;
        if (!(w >= 0.0f && w < 4.0f)) {
            exact = false;
            continue;
        }
        const float q = __fmul_rn(w, unit);
        const long long n = (long long)q;
        exact = exact && (float)n == q;
        all += n;
        if (fell) fallen += n;
    }
    exact = __syncthreads_and(exact);
    for (int d = 16; d > 0; d >>= 1) {
        all += __shfl_xor_sync(FULL_MASK, all, d);
        fallen += __shfl_xor_sync(FULL_MASK, fallen, d);
        dropped += __shfl_xor_sync(FULL_MASK, dropped, d);
    }
    if (tid % 32 == 0) {
        atomicAdd(&quanta[0], all);
        atomicAdd(&quanta[1], fallen);
        atomicAdd(&quanta[2], dropped);
    }
    __syncthreads();
    if (tid >= 32) return;

    double mass = (double)quanta[0] * quantum, lost = (double)quanta[1] * quantum;
    if (!exact) table_chain(ids, weights, at, slots, &mass, &lost);
    if (tid != 0) return;
    double *d = (double *)sums;
    const long long routed = before[0], fell = before[1];  // read before they are written: they may be this record's
    const double massBefore = ((const double *)before)[2], lostBefore = ((const double *)before)[3];
    sums[0] = slots;
    sums[1] = quanta[2];
    d[2] = mass;
    d[3] = lost;
    sums[4] = routed + slots;
    sums[5] = fell + (long long)quanta[2];
    d[6] = massBefore + mass;
    d[7] = lostBefore + lost;
    sums[8] = routed;
    sums[9] = fell;
    d[10] = massBefore;
    d[11] = lostBefore;
}

// of: the call's rows, null where none is exempt. Shared memory in words: at n; n*words more if bits is 0. words = rows/32
// rounded up.
extern "C" __global__ void table_build(const int *ids, const float *weights, const unsigned char *resident, float threshold,
                                       int renorm, const Row *of, int rows, int n, int k, int *offsets, int *token, float *applied,
                                       int *expertOf, int *entryOf, int *tiles, int *nTiles, unsigned char *dropped,
                                       const long long *totals, long long *sums, unsigned *bits) {
    SHARED_DYN(int, at);  // by expert: whether a slot wants the read, then the first entry, -1 if the expert falls
    __shared__ unsigned long long partial[32];
    const int tid = threadIdx.x, threads = blockDim.x, warps = threads / 32;
    const int words = (rows + 31) / 32, slots = rows * k;
    if (bits == nullptr) bits = (unsigned *)(at + n);

    for (int e = tid; e < n; e += threads) at[e] = 0;
    for (int i = tid; i < n * words; i += threads) bits[i] = 0;
    __syncthreads();

    // Who selected whom, and rule 1: what would not fall wants the read. Threads that want the same write the same.
    for (int i = tid; i < slots; i += threads) {
        const int row = i / k, e = ids[i];
        atomicOr(&bits[e * words + row / 32], 1u << row % 32);
        bool wants = resident == nullptr || resident[e] != 0 || !(weights[i] < threshold);
        wants = wants || (of && (of[row].flags & ROW_EXEMPT));
        if (!wants) {
            int top = row * k;
            for (int j = top + 1; j < row * k + k; j++) {
                if (weights[j] > weights[top]) top = j;
            }
            wants = i == top;
        }
        if (wants) at[e] = 1;
    }
    __syncthreads();

    // Rule 2 and the prefix sum, entries in the low half, tiles in the high one. An expert that nobody selected has no
    // slots to lose and falls as well.
    unsigned long long before = 0;
    for (int e0 = 0; e0 < n; e0 += threads) {
        const int e = e0 + tid;
        const int count = e < n && at[e] ? table_count(bits + e * words, words) : 0;
        const int tile = (count + TABLE_TILE_COLS - 1) / TABLE_TILE_COLS;
        const unsigned long long own = (unsigned long long)tile << 32 | (unsigned)count;
        const unsigned long long upTo = table_scan(own);
        if (tid % 32 == 31) partial[tid / 32] = upTo;
        __syncthreads();
        unsigned long long here = before + upTo - own;
        for (int i = 0; i < warps; i++) {
            if (i < tid / 32) here += partial[i];
            before += partial[i];
        }
        __syncthreads();
        if (e >= n) continue;
        const int first = (int)(unsigned)here;
        offsets[e] = first;
        at[e] = count > 0 ? first : -1;
        int *t = tiles + 3 * (here >> 32);
        for (int c = 0; c < count; c += TABLE_TILE_COLS, t += 3) {
            t[0] = e;
            t[1] = first + c;
            t[2] = count - c < TABLE_TILE_COLS ? count - c : TABLE_TILE_COLS;
        }
    }
    const int kept = (int)(unsigned)before;
    if (tid == 0) {
        offsets[n] = kept;
        *nTiles = (int)(before >> 32);
    }
    for (int i = kept + tid; i < slots; i += threads) expertOf[i] = -1;
    __syncthreads();

    // Scatter, with rule 3. One walk over a slot's row gives the factor, the row's number of kept slots, and how many of
    // them stand before this one.
    for (int i = tid; i < slots; i += threads) {
        const int row = i / k, slot = i % k, e = ids[i];
        float mass = 0.0f, left = 0.0f;
        int stay = 0, lower = 0;
        for (int j = row * k; j < row * k + k; j++) {
            const int other = ids[j];
            const float w = weights[j];
            mass = __fadd_rn(mass, w);
            if (at[other] < 0) continue;
            left = __fadd_rn(left, w);
            stay++;
            lower += other < e;
        }
        const bool fell = at[e] < 0;
        dropped[i] = fell;
        if (slot >= stay) entryOf[i] = -1;
        if (fell) continue;

        const unsigned *own = bits + e * words;
        const int entry = at[e] + table_count(own, row / 32) + __popc(own[row / 32] & ((1u << row % 32) - 1));
        float w = weights[i];
        if (renorm && stay < k && left > 0.0f) w = __fmul_rn(w, __fdiv_rn(mass, left));
        token[entry] = row;
        applied[entry] = w;
        expertOf[entry] = e;
        entryOf[row * k + lower] = entry;
    }
    table_sums(ids, weights, at, slots, totals, sums);
}
