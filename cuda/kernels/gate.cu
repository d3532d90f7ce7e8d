// Gate: the sigmoid gate of a shared expert, one number a row. combine_rows applies it.
//
// CPU reference: 1 / (1 + Exp(-Dot(w, row))) in engine's normJob; the dot product is summed in another order.
#include "recipe.h"

// One block a row: gate[row] = sigmoid(w . x[row]).
extern "C" __global__ void gate_sigmoid(float *gate, const float *x, const float *w, int n) {
    const int row = blockIdx.x;
    x += (long long)row * n;
    float sum = 0.0f;
    for (int i = threadIdx.x; i < n; i += blockDim.x) sum = fmaf(w[i], x[i], sum);
    sum = block_sum(sum);
    if (threadIdx.x == 0) gate[row] = sluice_sigmoid(sum);
}
