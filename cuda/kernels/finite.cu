// Finite: raises the fault word for rows of the residual stream that hold a NaN or an infinity.
//
// CPU reference: engine's checkFinite. norm_rms has the same check built in, where a norm follows anyway; this kernel is
// for rows that none follows.
#include "fault.h"

// One block a row.
extern "C" __global__ void finite_rows(const float *x, int n, unsigned long long *fault, unsigned order) {
    const int row = blockIdx.x;
    x += (long long)row * n;
    int bad = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) bad |= (__float_as_uint(x[i]) & 0x7fffffffu) >= 0x7f800000u;
    if (__any_sync(FULL_MASK, bad) && threadIdx.x % 32 == 0) fault_raise(fault, order, row);
}
