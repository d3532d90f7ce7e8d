// The dot products of rows of weights with rows of activations, for every weight type: what product.cu and experts.cu are
// made of. CPU reference: kernels.MulRows (mul_generic.go) and the block layouts of kernels/quant_k.go, quant_legacy.go;
// the planes of Q8_0, Q4_0 and Q6_K are those of repack.go, Q8_1 activations those of quantize.go.
//
// A type is a struct that cuts a row into units, each a 16-byte load of codes. Unit u of a row always falls to lane
// u mod 32 (F32: thread u mod 128), a lane adds its units in ascending order by fused multiply-adds that are written out,
// and the lanes are added by one tree. So the bits of a result depend on its two rows alone: not on how many columns or
// rows a warp takes at a time, nor on which kernel asks. Neighbouring lanes load neighbouring 16 bytes.
//
// A NaN or Inf in 32 activations makes d NaN, which every product here carries into the sum.
#ifndef SLUICE_DOT_H
#define SLUICE_DOT_H

#include "device.h"

static __device__ __forceinline__ uint4 dot_load16(const uint8_t *p) { return __ldg((const uint4 *)p); }

static __device__ __forceinline__ unsigned short dot_load2(const uint8_t *p) { return __ldg((const unsigned short *)p); }

static __device__ __forceinline__ float dot_float(const uint8_t *p) { return __ldg((const float *)p); }

// dot_int16 is the exact product of 16 codes.
static __device__ __forceinline__ int dot_int16(const uint4 &w, const uint4 &a) {
    int s = __dp4a((int)w.x, (int)a.x, 0);
    s = __dp4a((int)w.y, (int)a.y, s);
    s = __dp4a((int)w.z, (int)a.z, s);
    return __dp4a((int)w.w, (int)a.w, s);
}

// Four codes at a time. The biased ones: c + 128 - bias does not carry into the next byte, and flipping the top bit
// takes 128 off again.
static __device__ __forceinline__ unsigned dot_nibbles(unsigned q, int shift) { return q >> shift & 0x0f0f0f0fu; }
static __device__ __forceinline__ unsigned dot_less8(unsigned c) { return (c + 0x78787878u) ^ 0x80808080u; }
static __device__ __forceinline__ unsigned dot_less32(unsigned c) { return (c + 0x60606060u) ^ 0x80808080u; }

static __device__ __forceinline__ uint4 dot_nibbles16(const uint4 &q, int shift) {
    return make_uint4(dot_nibbles(q.x, shift), dot_nibbles(q.y, shift), dot_nibbles(q.z, shift), dot_nibbles(q.w, shift));
}

// Each type has
//   kValues  values a unit; kBlock values a block (the step of the block number b); kWarps warps that share a row;
//   kAhead   units that a matrix-vector product loads before it uses the first
//   Raw      a unit of weights as loaded, from raw(w, all, b0, u): matrix, its number of blocks, first block of the row,
//            unit of the row
//   Unit     the unit as multiplied, from unit(raw, u)
//   Act      what a unit multiplies, from act(a, k, u): row of activations, its length, unit
//   mac      acc + weights * activations

// DotFloats is common to the types whose activations are float32 rows; kValues weights stand in 16 bytes.
template <int Values> struct DotFloats {
    enum { kValues = Values, kBlock = Values };
    typedef uint4 Raw;
    struct Unit { float w[Values]; };
    struct Act { float x[Values]; };

    static __device__ __forceinline__ Raw raw(const uint8_t *w, int, int b0, int u) {
        return dot_load16(w + ((int64_t)b0 + u) * 16);
    }
    static __device__ __forceinline__ Act act(const uint8_t *a, int, int u) {
        Act r;
#pragma unroll
        for (int i = 0; i < Values; i += 4) {
            const float4 v = __ldg((const float4 *)(a + (int64_t)u * (Values * 4) + i * 4));
            r.x[i] = v.x, r.x[i + 1] = v.y, r.x[i + 2] = v.z, r.x[i + 3] = v.w;
        }
        return r;
    }
    static __device__ __forceinline__ float mac(const Unit &w, const Act &a, float acc) {
#pragma unroll
        for (int i = 0; i < Values; i++) acc = fmaf(w.w[i], a.x[i], acc);
        return acc;
    }
};

// Routers are F32 and have few rows: four warps to a row keep enough loads in flight.
struct DotF32 : DotFloats<4> {
    enum { kWarps = 4, kAhead = 4 };
    static __device__ __forceinline__ Unit unit(const Raw &q, int) {
        Unit r;
        r.w[0] = __uint_as_float(q.x), r.w[1] = __uint_as_float(q.y);
        r.w[2] = __uint_as_float(q.z), r.w[3] = __uint_as_float(q.w);
        return r;
    }
};

struct DotF16 : DotFloats<8> {
    enum { kWarps = 1, kAhead = 2 };
    static __device__ __forceinline__ Unit unit(const Raw &q, int) {
        const unsigned v[4] = {q.x, q.y, q.z, q.w};
        Unit r;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            r.w[2 * i] = h2f((unsigned short)(v[i] & 0xffff));
            r.w[2 * i + 1] = h2f((unsigned short)(v[i] >> 16));
        }
        return r;
    }
};

struct DotBF16 : DotFloats<8> {
    enum { kWarps = 1, kAhead = 2 };
    static __device__ __forceinline__ Unit unit(const Raw &q, int) {
        const unsigned v[4] = {q.x, q.y, q.z, q.w};
        Unit r;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            r.w[2 * i] = __uint_as_float(v[i] << 16);
            r.w[2 * i + 1] = __uint_as_float(v[i] & 0xffff0000u);
        }
        return r;
    }
};

// Q8_0: half a block a unit, 16 codes.
struct DotQ8_0 {
    enum { kValues = 16, kBlock = 32, kWarps = 1, kAhead = 2 };
    struct Raw { uint4 q; unsigned short s; };
    struct Unit { uint4 q; float s; };
    struct Act { uint4 q; float d; };

    static __device__ __forceinline__ Raw raw(const uint8_t *w, int all, int b0, int u) {
        const int64_t b = (int64_t)b0 + (u >> 1);
        Raw r;
        r.q = dot_load16(w + b * 32 + (u & 1) * 16);
        r.s = dot_load2(w + (int64_t)all * 32 + b * 2);
        return r;
    }
    static __device__ __forceinline__ Unit unit(const Raw &w, int) {
        Unit r;
        r.q = w.q;
        r.s = h2f(w.s);
        return r;
    }
    static __device__ __forceinline__ Act act(const uint8_t *a, int k, int u) {
        Act r;
        r.q = dot_load16(a + u * 16);
        r.d = dot_float(a + k + (u >> 1) * 8);
        return r;
    }
    static __device__ __forceinline__ float mac(const Unit &w, const Act &a, float acc) {
        return fmaf(__fmul_rn(w.s, a.d), (float)dot_int16(w.q, a.q), acc);
    }
};

// Q4_0: a block a unit, 16 low nibbles and 16 high ones, with bias 8.
struct DotQ4_0 {
    enum { kValues = 32, kBlock = 32, kWarps = 1, kAhead = 2 };
    struct Raw { uint4 q; unsigned short s; };
    struct Unit { uint4 lo, hi; float s; };
    struct Act { uint4 lo, hi; float d; };

    static __device__ __forceinline__ uint4 signs(const uint4 &c) {
        return make_uint4(dot_less8(c.x), dot_less8(c.y), dot_less8(c.z), dot_less8(c.w));
    }
    static __device__ __forceinline__ Raw raw(const uint8_t *w, int all, int b0, int u) {
        const int64_t b = (int64_t)b0 + u;
        Raw r;
        r.q = dot_load16(w + b * 16);
        r.s = dot_load2(w + (int64_t)all * 16 + b * 2);
        return r;
    }
    static __device__ __forceinline__ Unit unit(const Raw &w, int) {
        Unit r;
        r.lo = signs(dot_nibbles16(w.q, 0));
        r.hi = signs(dot_nibbles16(w.q, 4));
        r.s = h2f(w.s);
        return r;
    }
    static __device__ __forceinline__ Act act(const uint8_t *a, int k, int u) {
        Act r;
        r.lo = dot_load16(a + u * 32);
        r.hi = dot_load16(a + u * 32 + 16);
        r.d = dot_float(a + k + u * 8);
        return r;
    }
    static __device__ __forceinline__ float mac(const Unit &w, const Act &a, float acc) {
        return fmaf(__fmul_rn(w.s, a.d), (float)(dot_int16(w.lo, a.lo) + dot_int16(w.hi, a.hi)), acc);
    }
};

// The K types have 8 units a super-block: 32 codes whose low and high nibbles belong to two groups of one scale each.
struct DotSuper {
    enum { kValues = 32, kBlock = 256, kWarps = 1, kAhead = 2 };
};

// Q4_K and Q5_K: unit u has 16 values of the sub-blocks 2j and 2j+1, j = u/2 mod 4. Even units take the first halves and
// subtract the minimum of sub-block 2j, odd ones that of 2j+1, so that each minimum counts once.
struct DotMins : DotSuper {
    struct Unit { uint4 lo, hi; float s0, s1, m; };
    struct Act { uint4 lo, hi; float d0, d1, s; };

    // scales fills in what the first 16 bytes of a super-block say; scales4K in kernels/quant_k.go has the layout. The
    // pairs of bytes that sub-blocks 2j and 2j+1 need are 16 bits each. The products are exact: 11 bits by 6.
    static __device__ __forceinline__ void scales(Unit &r, const uint4 &h, int u) {
        const int pair = u >> 1 & 1, shift = pair * 16;
        const unsigned y = h.y >> shift & 0xffff, z = h.z >> shift & 0xffff, w = h.w >> shift & 0xffff;
        const bool upper = u & 4;
        const unsigned sc = upper ? (w & 0x0f0f) | (y >> 2 & 0x3030) : y & 0x3f3f;
        const unsigned mn = upper ? (w >> 4 & 0x0f0f) | (z >> 2 & 0x3030) : z & 0x3f3f;
        const float d = h2f((unsigned short)(h.x & 0xffff)), dmin = h2f((unsigned short)(h.x >> 16));
        r.s0 = __fmul_rn(d, (float)(sc & 0xff));
        r.s1 = __fmul_rn(d, (float)(sc >> 8));
        r.m = -__fmul_rn(dmin, (float)((u & 1) ? mn >> 8 : mn & 0xff));
    }
    static __device__ __forceinline__ Act act(const uint8_t *a, int k, int u) {
        const uint8_t *p = a + (u >> 1) * 64 + (u & 1) * 16;
        const float4 ds = __ldg((const float4 *)(a + k + (u >> 1) * 16)); // {d, d*sum} of both sub-blocks
        Act r;
        r.lo = dot_load16(p);
        r.hi = dot_load16(p + 32);
        r.d0 = ds.x, r.d1 = ds.z;
        r.s = (u & 1) ? ds.w : ds.y;
        return r;
    }
    static __device__ __forceinline__ float mac(const Unit &w, const Act &a, float acc) {
        acc = fmaf(__fmul_rn(w.s0, a.d0), (float)dot_int16(w.lo, a.lo), acc);
        acc = fmaf(__fmul_rn(w.s1, a.d1), (float)dot_int16(w.hi, a.hi), acc);
        return fmaf(w.m, a.s, acc);
    }
};

struct DotQ4_K : DotMins {
    struct Raw { uint4 head, q; };

    static __device__ __forceinline__ Raw raw(const uint8_t *w, int, int b0, int u) {
        const uint8_t *p = w + ((int64_t)b0 + (u >> 3)) * 144;
        Raw r;
        r.head = dot_load16(p);
        r.q = dot_load16(p + 16 + (u & 7) * 16);
        return r;
    }
    static __device__ __forceinline__ Unit unit(const Raw &w, int u) {
        Unit r;
        r.lo = dot_nibbles16(w.q, 0);
        r.hi = dot_nibbles16(w.q, 4);
        scales(r, w.head, u);
        return r;
    }
};

struct DotQ5_K : DotMins {
    struct Raw { uint4 head, high, q; };

    static __device__ __forceinline__ Raw raw(const uint8_t *w, int, int b0, int u) {
        const uint8_t *p = w + ((int64_t)b0 + (u >> 3)) * 176;
        Raw r;
        r.head = dot_load16(p);
        r.high = dot_load16(p + 16 + (u & 1) * 16);
        r.q = dot_load16(p + 48 + (u & 7) * 16);
        return r;
    }
    static __device__ __forceinline__ uint4 fifth(const uint4 &c, const uint4 &h, int bit) {
        return make_uint4(c.x | (h.x >> bit & 0x01010101u) << 4, c.y | (h.y >> bit & 0x01010101u) << 4,
                          c.z | (h.z >> bit & 0x01010101u) << 4, c.w | (h.w >> bit & 0x01010101u) << 4);
    }
    static __device__ __forceinline__ Unit unit(const Raw &w, int u) {
        const int bit = u & 6; // 2j
        Unit r;
        r.lo = fifth(dot_nibbles16(w.q, 0), w.high, bit);
        r.hi = fifth(dot_nibbles16(w.q, 4), w.high, bit + 1);
        scales(r, w.head, u);
        return r;
    }
};

// Q6_K: unit u = 4*h+i of a super-block has elements 128*h+16*i (low nibbles) and 64 further (high), 16 each; its upper
// pairs are in bytes that unit u^2 reads too.
struct DotQ6_K : DotSuper {
    struct Raw { uint4 q, high; unsigned short sc, d; };
    struct Unit { uint4 lo, hi; float s0, s1; };
    struct Act { uint4 lo, hi; float d0, d1; };

    static __device__ __forceinline__ Raw raw(const uint8_t *w, int all, int b0, int u) {
        const int64_t b = (int64_t)b0 + (u >> 3), n = all;
        const int t = u & 7;
        Raw r;
        r.q = dot_load16(w + b * 128 + t * 16);
        r.high = dot_load16(w + n * 128 + b * 64 + (t & 4) * 8 + (t & 1) * 16);
        r.sc = dot_load2(w + n * 192 + b * 16 + t * 2);
        r.d = dot_load2(w + n * 208 + b * 2);
        return r;
    }
    static __device__ __forceinline__ unsigned code(unsigned c, unsigned h, int shift) {
        return dot_less32(c | (h >> shift & 0x03030303u) << 4);
    }
    static __device__ __forceinline__ uint4 codes(const uint4 &c, const uint4 &h, int shift) {
        return make_uint4(code(c.x, h.x, shift), code(c.y, h.y, shift), code(c.z, h.z, shift), code(c.w, h.w, shift));
    }
    static __device__ __forceinline__ Unit unit(const Raw &w, int u) {
        const int shift = u & 2;
        const float d = h2f(w.d);
        Unit r;
        r.lo = codes(dot_nibbles16(w.q, 0), w.high, shift);
        r.hi = codes(dot_nibbles16(w.q, 4), w.high, shift + 4);
        r.s0 = __fmul_rn(d, (float)(signed char)(w.sc & 0xff));
        r.s1 = __fmul_rn(d, (float)(signed char)(w.sc >> 8));
        return r;
    }
    static __device__ __forceinline__ Act act(const uint8_t *a, int k, int u) {
        const uint8_t *p = a + (u >> 2) * 128 + (u & 3) * 16;
        const uint8_t *d = a + k + (u >> 2) * 32 + (u & 2) * 4;
        Act r;
        r.lo = dot_load16(p);
        r.hi = dot_load16(p + 64);
        r.d0 = dot_float(d);
        r.d1 = dot_float(d + 16);
        return r;
    }
    static __device__ __forceinline__ float mac(const Unit &w, const Act &a, float acc) {
        acc = fmaf(__fmul_rn(w.s0, a.d0), (float)dot_int16(w.lo, a.lo), acc);
        return fmaf(__fmul_rn(w.s1, a.d1), (float)dot_int16(w.hi, a.hi), acc);
    }
};

// DotFold adds v over lanes that are Mask, Mask/2, ... 1 apart: while there is more than one value, a lane keeps half of
// them and hands its partner the other half. The recursion is over constants, so that v stays in registers.
template <int V, int Mask> struct DotFold {
    template <int All> static __device__ __forceinline__ void fold(float (&v)[All], int lane) {
        const bool upper = lane & Mask;
#pragma unroll
        for (int i = 0; i < V / 2; i++) {
            const float keep = upper ? v[i + V / 2] : v[i], give = upper ? v[i] : v[i + V / 2];
            v[i] = __fadd_rn(keep, __shfl_xor_sync(FULL_MASK, give, Mask));
        }
        if (V == 1) v[0] = __fadd_rn(v[0], __shfl_xor_sync(FULL_MASK, v[0], Mask));
        DotFold<(V > 1 ? V / 2 : 1), Mask / 2>::fold(v, lane);
    }
};
template <int V> struct DotFold<V, 0> {
    template <int All> static __device__ __forceinline__ void fold(float (&)[All], int) {}
};

// dot_fold adds each of v[0..V-1] over the lanes of a warp, V a power of two up to 32, and returns to each lane the sum
// of value dot_index<V>(lane): 31 shuffles for 32 values, not 160. Each sum is the tree of warp_sum.
template <int V> static __device__ __forceinline__ float dot_fold(float (&v)[V], int lane) {
    DotFold<V, 16>::fold(v, lane);
    return v[0];
}

template <int V> static __device__ __forceinline__ int dot_index(int lane) { return lane / (32 / V); }

// dot_writer says whether this lane is the one to store the sum that several lanes hold.
template <int V> static __device__ __forceinline__ bool dot_writer(int lane) { return (lane & (32 / V - 1)) == 0; }

enum { kDotThreads = 128, kDotWarps = kDotThreads / 32 };

// dot_rows multiplies N rows of weights (row i: matrix w[i] of `all` blocks, first block b0[i]) by `cols` of at most C
// rows of activations (row c at act + 16*off[c]), all of k values. It returns to each lane the product number
// dot_index<N*C>(lane), row i and column c being number i*C+c; that of a column past cols is 0. Where kWarps is 4 the
// whole block has the same rows, calls it together and once, and `part` is shared memory of kDotThreads floats.
template <class T, int C, int N>
static __device__ __forceinline__ float dot_rows(const uint8_t *const (&w)[N], const int (&b0)[N], int all, const uint8_t *act,
                                                 const int (&off)[C], int cols, int k, float *part) {
    const int lane = threadIdx.x & 31;
    const int units = k / T::kValues, step = 32 * T::kWarps, first = T::kWarps > 1 ? (int)threadIdx.x : lane;
    float acc[N * C];
#pragma unroll
    for (int i = 0; i < N * C; i++) acc[i] = 0.0f;

    int base = 0;
    if (C == 1) { // the same sums, with more loads under way
        for (; base + (T::kAhead - 1) * step < units; base += T::kAhead * step) {
            typename T::Raw raw[T::kAhead][N];
            typename T::Act au[T::kAhead];
#pragma unroll
            for (int j = 0; j < T::kAhead; j++) {
                const int u = min(base + j * step + first, units - 1); // only the last of them can be past the end
#pragma unroll
                for (int i = 0; i < N; i++) raw[j][i] = T::raw(w[i], all, b0[i], u);
                au[j] = T::act(act + (int64_t)off[0] * 16, k, u);
            }
#pragma unroll
            for (int j = 0; j < T::kAhead; j++) {
                const int u = base + j * step + first;
#pragma unroll
                for (int i = 0; i < N; i++) { // a choice, not a branch, behind which the compiler would move the loads
                    const float next = T::mac(T::unit(raw[j][i], u), au[j], acc[i]);
                    acc[i] = j < T::kAhead - 1 || u < units ? next : acc[i];
                }
            }
        }
    }
    for (int u = base + first; u < units; u += step) {
        typename T::Unit wu[N];
#pragma unroll
        for (int i = 0; i < N; i++) wu[i] = T::unit(T::raw(w[i], all, b0[i], u), u);
#pragma unroll
        for (int c = 0; c < C; c++) {
            if (C > 1 && c >= cols) continue;
            const typename T::Act au = T::act(act + (int64_t)off[c] * 16, k, u);
#pragma unroll
            for (int i = 0; i < N; i++) acc[i * C + c] = T::mac(wu[i], au, acc[i * C + c]);
        }
    }

    float sum = dot_fold<N * C>(acc, lane);
    if (T::kWarps > 1) {
        part[threadIdx.x] = sum;
        __syncthreads();
        sum = part[lane];
#pragma unroll
        for (int i = 1; i < kDotWarps; i++) sum = __fadd_rn(sum, part[i * 32 + lane]);
    }
    return sum;
}

// dot_first_row is the first of the N rows that this warp computes in block number `block` of the blocks over rows.
template <class T, int N> static __device__ __forceinline__ int dot_first_row(int block) {
    return (T::kWarps > 1 ? block : block * kDotWarps + (int)threadIdx.x / 32) * N;
}

// dot_stores says whether this warp stores what dot_rows gave it: where a block shares rows, its first warp does.
template <class T> static __device__ __forceinline__ bool dot_stores() { return T::kWarps == 1 || threadIdx.x < 32; }

#endif
