// SiluMul and SiluMulQuantize: the activation of a feed-forward layer whose two products are rows in memory, to float32
// and to Q8_1. CPU reference: kernels.SiluMul and kernels.Acts.SetRow, equal bit for bit.
#include "quantize.h"
#include "silu.h"

extern "C" __global__ void silu_mul(float *dst, const float *gate, const float *up, int64_t n) {
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) dst[i] = silu_mul_one(gate[i], up[i]);
}

extern "C" __global__ void silu_mul_quantize(uint8_t *q, const float *gate, const float *up, int rows, int k, int64_t stride) {
    const QuantizeAt at = quantize_at(rows, k);
    float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (at.live) {
        const float4 g = __ldg((const float4 *)gate + at.group * 8 + at.four);
        const float4 u = __ldg((const float4 *)up + at.group * 8 + at.four);
        v = make_float4(silu_mul_one(g.x, u.x), silu_mul_one(g.y, u.y), silu_mul_one(g.z, u.z), silu_mul_one(g.w, u.w));
    }
    quantize_store(q, at, k, stride, v);
}
