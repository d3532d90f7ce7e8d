// RMSNorm of rows, where asked with an addition to the residual stream before it and with a look at whether the stream is
// still finite.
//
// CPU reference: kernels.RMSNorm. As there the squares are summed in float64, where each is exact: the result differs from
// the reference only where the order of that sum moves the float32 root by one unit in its last place. Overflow and NaN
// are the reference's too. Devices with few float64 units pay about a microsecond a row for it.
//
// One block a row; a thread keeps to its own elements, so the second pass finds them in its first level of cache.
#include "fault.h"
#include "norm.h"

// list: which rows of x they are, null for all of them; out has them one after the other. delta: rows x n, null for none,
// added to x first. w: n, null for ones. out may be x where list is null.
extern "C" __global__ void norm_rms(float *out, float *x, const int *list, const float *delta, const float *w, int n, float eps,
                                    unsigned long long *fault, unsigned order) {
    const int row = list ? list[blockIdx.x] : (int)blockIdx.x, tid = threadIdx.x, threads = blockDim.x;
    const long long at = (long long)row * n;
    out += (long long)blockIdx.x * n;
    x += at;
    if (delta) delta += at;

    double sum = 0.0;
    if (n % 4 == 0) {
        float4 *x4 = (float4 *)x;
        const float4 *d4 = (const float4 *)delta;
        for (int i = tid; i < n / 4; i += threads) {
            float4 v = x4[i];
            if (delta) {
                const float4 d = d4[i];
                v = make_float4(__fadd_rn(v.x, d.x), __fadd_rn(v.y, d.y), __fadd_rn(v.z, d.z), __fadd_rn(v.w, d.w));
                x4[i] = v;
            }
            sum = norm_square(norm_square(norm_square(norm_square(sum, v.x), v.y), v.z), v.w);
        }
    } else {
        for (int i = tid; i < n; i += threads) {
            float v = x[i];
            if (delta) x[i] = v = __fadd_rn(v, delta[i]);
            sum = norm_square(sum, v);
        }
    }
    sum = norm_block_sum(sum);
    // Squares of finite float32 values cannot overflow a float64.
    if (tid == 0 && !(sum < 1e300)) fault_raise(fault, order, row);
    const float rms = norm_root(sum, n, eps);

    if (n % 4 == 0) {
        const float4 *x4 = (const float4 *)x, *w4 = (const float4 *)w;
        for (int i = tid; i < n / 4; i += threads) {
            const float4 v = x4[i], u = w ? w4[i] : make_float4(1.0f, 1.0f, 1.0f, 1.0f);
            ((float4 *)out)[i] = make_float4(norm_scale(v.x, rms, u.x), norm_scale(v.y, rms, u.y),
                                             norm_scale(v.z, rms, u.z), norm_scale(v.w, rms, u.w));
        }
    } else {
        for (int i = tid; i < n; i += threads) out[i] = norm_scale(x[i], rms, w ? w[i] : 1.0f);
    }
}
