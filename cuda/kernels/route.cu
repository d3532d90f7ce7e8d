// Route: router logits to the selected experts and their weights, one block a row.
//
// CPU reference: moe.Router (the recipe, steps 1 to 8), moe/arm_host.go and moe/arm_table.go; equal bit for bit.
//
// Everything but two things of a row is spread over the block: the sum of the softmax is one chain of additions, ids
// ascending, and so one thread's; the selection is one warp's, which needs no barrier between slots. Each lane keeps the
// best key of its own experts, a slot is the maximum over the lanes, and only the lane that lost its best looks again.
//
// A row without an answer raises *err and gets the ids 0 to k-1 with NaN weights: in range for whatever reads them, and
// loud in the residual stream even where nobody looks at the error before the token is out.
#include "recipe.h"

enum { ROUTE_SOFTMAX, ROUTE_SOFTMAX_TOPK, ROUTE_SIGMOID };  // moe.Gating
enum { ROUTE_NAN = 1, ROUTE_INF = 2, ROUTE_ALL_NEG_INF = 3 };

#define ROUTE_MIN_WEIGHT_SUM 6.103515625e-5f  // moe.MinWeightSum

static __device__ __forceinline__ unsigned route_warp_max(unsigned v) {
    for (int d = 16; d > 0; d >>= 1) {
        const unsigned o = __shfl_xor_sync(FULL_MASK, v, d);
        v = o > v ? o : v;
    }
    return v;
}

static __device__ __forceinline__ unsigned long long route_warp_max(unsigned long long v) {
    for (int d = 16; d > 0; d >>= 1) {
        const unsigned long long o = __shfl_xor_sync(FULL_MASK, v, d);
        v = o > v ? o : v;
    }
    return v;
}

// route_sum adds x[0] to x[n-1] in this order. x is aligned to 16 bytes.
static __device__ float route_sum(const float *x, int n) {
    float sum = 0.0f;
    int i = 0;
    for (; i + 4 <= n; i += 4) {
        const float4 v = *(const float4 *)(x + i);
        sum = __fadd_rn(__fadd_rn(__fadd_rn(__fadd_rn(sum, v.x), v.y), v.z), v.w);
    }
    for (; i < n; i++) sum = __fadd_rn(sum, x[i]);
    return sum;
}

// route_raise reports the first bad logit of a row. The word that stays is that of the lowest row of the lowest layer,
// whatever the order the blocks run in; routing.go (LogitError) takes it apart.
static __device__ void route_raise(unsigned long long *err, const float *logits, int n, int layer, int row) {
    int expert = -1, kind = ROUTE_ALL_NEG_INF;
    for (int i = 0; i < n; i++) {
        if (logits[i] <= 3.402823466e+38f) continue;  // false for NaN and +Inf
        expert = i;
        kind = logits[i] != logits[i] ? ROUTE_NAN : ROUTE_INF;
        break;
    }
    const unsigned long long place = (unsigned long long)layer << 32 | (unsigned)row;
    const unsigned long long first = ~place & ((1ull << 44) - 1);
    atomicMax(err, first << 20 | (unsigned long long)(expert + 1) << 4 | (unsigned)kind);
}

// route_limit_groups excludes the scores of the groups that are not among the best. A group's rank is the number of groups
// that beat it, so every group decides alone. group, rank: nGroup.
static __device__ void route_limit_groups(unsigned *score, unsigned *group, unsigned *rank, int n, int nGroup, int nGroupUsed, bool pair) {
    const int size = n / nGroup;
    for (int g = threadIdx.x; g < nGroup; g += blockDim.x) {
        unsigned best = SLUICE_ORDERED_NEG_INF, second = SLUICE_ORDERED_NEG_INF;
        for (int i = g * size; i < g * size + size; i++) {
            const unsigned s = score[i];
            if (s > best) {
                second = best;
                best = s;
            } else if (s > second) {
                second = s;
            }
        }
        if (pair && size > 1) best = sluice_ordered(__fadd_rn(sluice_unordered(best), sluice_unordered(second)));
        group[g] = best;
    }
    __syncthreads();
    for (int g = threadIdx.x; g < nGroup; g += blockDim.x) {
        const unsigned s = group[g];
        int r = 0;
        for (int h = 0; h < nGroup; h++) r += group[h] > s || (group[h] == s && h < g);
        rank[g] = r;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        if (rank[i / size] >= (unsigned)nGroupUsed) score[i] = SLUICE_ORDERED_NEG_INF;
    }
}

// route_best is the greatest key below last among the experts of this lane, 0 if there is none.
static __device__ unsigned long long route_best(const unsigned *score, int n, unsigned long long last) {
    unsigned long long best = 0;
    for (int i = threadIdx.x; i < n; i += 32) {
        const unsigned long long key = sluice_slot_key(score[i], i);
        if (key < last && key > best) best = key;
    }
    return best;
}

// Shared memory in words: prob n rounded up to 4, score n, w k; with nGroup > 1 also group and rank, nGroup each.
extern "C" __global__ void route_rows(const float *logits, const float *bias, int *ids, float *weights, unsigned long long *err,
                                      int n, int k, int gating, int norm, float scale, int nGroup, int nGroupUsed, int layer) {
    SHARED_DYN(float, mem);
    __shared__ unsigned partial[2][32];
    __shared__ float total;
    float *prob = mem;
    unsigned *score = (unsigned *)(mem + (n + 3) / 4 * 4);
    float *w = (float *)(score + n);
    unsigned *group = (unsigned *)(w + k);

    const int row = blockIdx.x, tid = threadIdx.x, threads = blockDim.x;
    logits += (long long)row * n;
    ids += (long long)row * k;
    weights += (long long)row * k;

    // Step 1, and the maximum, in one reduction: NaN of either sign and +Inf lie outside the order of legal logits.
    unsigned high = 0, low = 0;  // low: of the inverted order
    for (int i = tid; i < n; i += threads) {
        const float l = logits[i];
        const unsigned o = sluice_ordered(l);
        prob[i] = l;
        high = o > high ? o : high;
        low = ~o > low ? ~o : low;
    }
    high = route_warp_max(high);
    low = route_warp_max(low);
    if (tid % 32 == 0) {
        partial[0][tid / 32] = high;
        partial[1][tid / 32] = low;
    }
    __syncthreads();
    for (int i = 0; i < threads / 32; i++) {
        high = partial[0][i] > high ? partial[0][i] : high;
        low = partial[1][i] > low ? partial[1][i] : low;
    }
    if (high >= SLUICE_ORDERED_POS_INF || ~low < SLUICE_ORDERED_NEG_INF || high == SLUICE_ORDERED_NEG_INF) {
        if (tid == 0) route_raise(err, logits, n, layer, row);
        for (int j = tid; j < k; j += threads) {
            ids[j] = j;
            weights[j] = __uint_as_float(0x7fc00000u);
        }
        return;
    }

    // Steps 2 and 3.
    if (gating == ROUTE_SOFTMAX) {
        const float top = sluice_unordered(high);
        for (int i = tid; i < n; i += threads) prob[i] = sluice_exp(__fadd_rn(prob[i], -top));
        __syncthreads();
        if (tid == 0) total = route_sum(prob, n);
        __syncthreads();
    }
    for (int i = tid; i < n; i += threads) {
        float p = prob[i];
        if (gating == ROUTE_SOFTMAX) p = __fdiv_rn(p, total);
        if (gating == ROUTE_SIGMOID) p = sluice_sigmoid(p);
        prob[i] = p;
        score[i] = sluice_ordered(bias ? __fadd_rn(p, bias[i]) : p);
    }
    __syncthreads();

    // Step 4.
    if (nGroup > 1) {
        route_limit_groups(score, group, group + nGroup, n, nGroup, nGroupUsed, bias != nullptr);
        __syncthreads();
    }

    // Step 5, and 6 without the softmax over the selected. From here on there is one warp.
    if (tid >= 32) return;
    unsigned long long best = route_best(score, n, ~0ull);
    for (int j = 0; j < k; j++) {
        const unsigned long long last = route_warp_max(best);
        if (best == last) best = route_best(score, n, last);  // keys are distinct: one lane
        if (tid == 0) {
            const int id = sluice_key_id(last);
            ids[j] = id;
            w[j] = prob[id];
        }
    }
    __syncwarp();

    if (gating == ROUTE_SOFTMAX_TOPK) {
        const float top = w[0];
        __syncwarp();
        for (int j = tid; j < k; j += 32) w[j] = sluice_exp(__fadd_rn(w[j], -top));
        __syncwarp();
        float sum = 0.0f;
        for (int j = 0; j < k; j++) sum = __fadd_rn(sum, w[j]);
        __syncwarp();
        for (int j = tid; j < k; j += 32) w[j] = __fdiv_rn(w[j], sum);
        __syncwarp();
    }

    // Steps 7 and 8.
    float sum = 1.0f;  // x/1 is x
    if (norm) {
        sum = 0.0f;
        for (int j = 0; j < k; j++) sum = __fadd_rn(sum, w[j]);
        if (sum < ROUTE_MIN_WEIGHT_SUM) sum = ROUTE_MIN_WEIGHT_SUM;
    }
    for (int j = tid; j < k; j += 32) weights[j] = __fmul_rn(__fdiv_rn(w[j], sum), scale);
}
