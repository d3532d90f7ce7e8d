// Quantize: float32 rows to Q8_1 rows (quantize.go has the layout). CPU reference: kernels.Acts.SetRow, see quantize.h.
// Every thread loads 16 bytes and stores 4; groups of all rows are numbered through, so short rows fill blocks too.
#include "quantize.h"

extern "C" __global__ void quantize_q8_1(uint8_t *q, const float *x, const int *count, int rows, int k, int64_t stride) {
    if (count != nullptr) rows = min(rows, *count);
    const QuantizeAt at = quantize_at(rows, k);
    float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (at.live) v = __ldg((const float4 *)x + at.group * 8 + at.four);
    quantize_store(q, at, k, stride, v);
}
