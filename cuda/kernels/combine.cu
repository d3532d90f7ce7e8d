// Combine: the weighted outputs of the experts, and of the shared expert, added to the residual stream.
//
// CPU reference: the plain sum x + w0*y0 + w1*y1 + ..., kept experts ascending, each product and each sum rounded to
// float32, the shared expert last. Two tables with the same entries give the same bits, and a row's result does not
// depend on the rows beside it.
//
// One thread a value; neighbours read neighbouring floats. The row's entries come to shared memory first, so that the
// loads of several experts are under way together: a thread that found each entry by itself would wait three times in a
// row for each expert.
#include "device.h"

#define COMBINE_ENTRIES 64  // entries of a row in shared memory at a time

// shared: rows x width, null without a shared expert; gate: rows, null for 1.
extern "C" __global__ void combine_rows(float *x, const float *y, const int *entryOf, const float *applied, int k, int width,
                                        const float *shared, const float *gate) {
    __shared__ int entry[COMBINE_ENTRIES];
    __shared__ float weight[COMBINE_ENTRIES];
    const int row = blockIdx.y, tid = threadIdx.x, i = blockIdx.x * blockDim.x + tid;
    const long long at = (long long)row * width + i;
    entryOf += (long long)row * k;

    float sum = i < width ? x[at] : 0.0f;
    for (int j0 = 0; j0 < k; j0 += COMBINE_ENTRIES) {
        int m = k - j0 < COMBINE_ENTRIES ? k - j0 : COMBINE_ENTRIES;
        __syncthreads();
        for (int j = tid; j < m; j += blockDim.x) {
            const int e = entryOf[j0 + j];
            entry[j] = e;
            weight[j] = e < 0 ? 0.0f : applied[e];
        }
        __syncthreads();
        if (i >= width) continue;
        while (m > 0 && entry[m - 1] < 0) m--;  // -1 only after the last: no test in the loop that loads
#pragma unroll 4
        for (int j = 0; j < m; j++) sum = __fadd_rn(sum, __fmul_rn(weight[j], y[(long long)entry[j] * width + i]));
    }
    if (i >= width) return;
    if (shared) {
        const float s = shared[at];
        sum = __fadd_rn(sum, gate ? __fmul_rn(gate[row], s) : s);
    }
    x[at] = sum;
}
