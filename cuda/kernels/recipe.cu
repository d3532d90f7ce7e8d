// The recipe's exponential over an array, for checks of recipe.h: a machine's bits against kernels/testdata/exp.golden.
//
// CPU reference: kernels.Exp; equal bit for bit. No forward pass runs it.
#include "recipe.h"

extern "C" __global__ void recipe_exp(float *y, const float *x, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = sluice_exp(x[i]);
}
