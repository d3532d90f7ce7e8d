// silu(gate) * up. CPU reference: kernels.SiluMul (siluMulGeneric), equal bit for bit: kernels.Sigmoid takes the
// exponential of -|x| only, and no step is fused.
#ifndef SLUICE_SILU_H
#define SLUICE_SILU_H

#include "recipe.h"

static __device__ __forceinline__ float silu_mul_one(float gate, float up) {
    const bool below = gate < 0.0f;
    const float e = sluice_exp(below ? gate : -gate);
    const float sigmoid = __fdiv_rn(below ? e : 1.0f, __fadd_rn(1.0f, e));
    return __fmul_rn(__fmul_rn(gate, sigmoid), up);
}

#endif
