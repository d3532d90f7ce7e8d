// ArgMax: the greedy choice from rows of logits, and what the next step needs of it, written where a captured graph finds
// it.
//
// CPU reference: kernels.ArgMax: the first largest value, -1 where a NaN is anywhere.
//
// Two stages: blocks over stretches of a row, then one block over their results. Values travel as keys whose unsigned
// order is the order wanted (recipe.h), so that the maximum is one comparison and does not depend on who makes it.
#include "recipe.h"
#include "rows.h"

#define ARGMAX_NAN 0xffffffffffffffffull  // above every number's key

static __device__ __forceinline__ unsigned long long argmax_key(float v, int i) {
    return v != v ? ARGMAX_NAN : sluice_slot_key(sluice_ordered(v), i);
}

// The largest key of the block, in thread 0.
static __device__ __forceinline__ unsigned long long argmax_block(unsigned long long best) {
    __shared__ unsigned long long part[32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    for (int d = 16; d > 0; d >>= 1) {
        const unsigned long long other = __shfl_xor_sync(FULL_MASK, best, d);
        if (other > best) best = other;
    }
    if (lane == 0) part[warp] = best;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int i = 1; i < warps; i++)
            if (part[i] > best) best = part[i];
    }
    return best;
}

// Grid: stretches, rows of n values. Block (b, r) takes row r's values from b*stretch on.
extern "C" __global__ void argmax_part(unsigned long long *part, const float *x, int n, int stretch) {
    const int from = blockIdx.x * stretch, to = n - from < stretch ? n : from + stretch;
    x += (long long)blockIdx.y * n;
    unsigned long long best = 0;
    for (int i = from + threadIdx.x; i < to; i += blockDim.x) {
        const unsigned long long key = argmax_key(x[i], i);
        if (key > best) best = key;
    }
    best = argmax_block(best);
    if (threadIdx.x == 0) part[(long long)blockIdx.y * gridDim.x + blockIdx.x] = best;
}

// One block a row. rows may be null.
extern "C" __global__ void argmax_step(const unsigned long long *part, int parts, int *next, Row *rows) {
    const int row = blockIdx.x;
    part += (long long)row * parts;
    unsigned long long best = 0;
    for (int i = threadIdx.x; i < parts; i += blockDim.x)
        if (part[i] > best) best = part[i];
    best = argmax_block(best);
    if (threadIdx.x != 0) return;
    const int id = best == ARGMAX_NAN ? -1 : sluice_key_id(best);
    next[row] = id;
    if (rows) {
        rows[row].pos++;
        rows[row].token = id;
    }
}
