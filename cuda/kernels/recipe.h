// The router's recipe on the device: the exponential and the order of scores that moe.Router's recipe is written in. Every
// bit has to be the CPU's, so each step is one float32 operation rounded to nearest even: the intrinsics below are never
// contracted into fused multiply-adds, whatever the flags. -ftz=true and -use_fast_math would break it (denormals).
//
// CPU reference: kernels/exp.go (Exp, its constants and numbered steps) and moe/arm_table.go (ordered, slotKey).
#ifndef SLUICE_RECIPE_H
#define SLUICE_RECIPE_H

#include "device.h"

// sluice_exp is kernels.Exp: same bits for every argument. A subtraction is the addition of the negated number.
static __device__ __forceinline__ float sluice_exp(float x) {
    const float magic = 0x1.8p+23f;
    if (x != x) return __uint_as_float(0x7fc00000u);
    if (x > 89.0f) return __uint_as_float(0x7f800000u);
    if (x < -104.0f) return 0.0f;

    const float t = __fadd_rn(__fmul_rn(x, 0x1.715476p+0f), magic);
    const float n = __fadd_rn(t, -magic);
    const int k = __float_as_int(t) - __float_as_int(magic);

    float r = __fadd_rn(x, -__fmul_rn(n, 0x1.63p-1f));
    r = __fadd_rn(r, -__fmul_rn(n, -0x1.bd0106p-13f));

    float q = 0x1.6a4b34p-10f;
    q = __fadd_rn(__fmul_rn(q, r), 0x1.12398ep-7f);
    q = __fadd_rn(__fmul_rn(q, r), 0x1.5558b2p-5f);
    q = __fadd_rn(__fmul_rn(q, r), 0x1.555492p-3f);
    q = __fadd_rn(__fmul_rn(q, r), 0x1.fffffcp-2f);
    float p = __fadd_rn(__fmul_rn(q, __fmul_rn(r, r)), r);
    p = __fadd_rn(p, 1.0f);

    const int k1 = k >> 1;
    p = __fmul_rn(p, __int_as_float((k1 + 127) << 23));
    return __fmul_rn(p, __int_as_float((k - k1 + 127) << 23));
}

// sluice_sigmoid is the recipe's 1 / (1 + Exp(-x)).
static __device__ __forceinline__ float sluice_sigmoid(float x) {
    return __fdiv_rn(1.0f, __fadd_rn(1.0f, sluice_exp(-x)));
}

// sluice_ordered maps a float to a number whose unsigned order is the float's, with -0 taken for +0. NaN orders above +Inf
// or, with the sign set, below -Inf.
static __device__ __forceinline__ unsigned sluice_ordered(float x) {
    const unsigned b = __float_as_uint(x);
    if ((b << 1) == 0) return 0x80000000u;
    return (b >> 31) ? ~b : (b | 0x80000000u);
}

// sluice_unordered is its inverse, up to the sign of 0.
static __device__ __forceinline__ float sluice_unordered(unsigned o) {
    return __uint_as_float((o >> 31) ? (o & 0x7fffffffu) : ~o);
}

#define SLUICE_ORDERED_POS_INF 0xff800000u
#define SLUICE_ORDERED_NEG_INF 0x007fffffu

// sluice_slot_key orders by descending score first, then by ascending id, and is never 0. Keys of one row are distinct.
static __device__ __forceinline__ unsigned long long sluice_slot_key(unsigned ordered, int id) {
    return ((unsigned long long)ordered << 32) | (unsigned)~id;
}

static __device__ __forceinline__ int sluice_key_id(unsigned long long key) { return (int)~(unsigned)key; }

#endif
