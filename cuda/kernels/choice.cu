// Choice: takes back a choice of ArgMax whose logit is no finite number.
//
// CPU reference: model.Greatest: ArgMax, and an error where the greatest logit is infinite.
#include "rows.h"

// One thread a row of n logits, the blocks' last ones without. next and rows: argmax.cu.
extern "C" __global__ void choice_check(const float *logits, int *next, Row *rows, int count, int n) {
    const int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= count || next[row] < 0) return;
    if ((__float_as_uint(logits[(long long)row * n + next[row]]) & 0x7fffffffu) < 0x7f800000u) return;
    next[row] = -1;
    if (rows) rows[row].token = -1;
}
