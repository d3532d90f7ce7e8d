// math_emu.h: arithmetic of the device language. What the device rounds correctly is correctly rounded here (the build
// contracts nothing); the transcendental functions are the C library's, whose last bits differ from a device's.
#ifndef SLUICE_MATH_EMU_H
#define SLUICE_MATH_EMU_H

inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fsqrt_rn(float a) { return sqrtf(a); }
inline float __frcp_rn(float a) { return 1.0f / a; }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __fma_rn(double a, double b, double c) { return fma(a, b, c); }
inline float rsqrtf(float a) { return 1.0f / sqrtf(a); }
inline float __expf(float a) { return expf(a); }
inline float __logf(float a) { return logf(a); }
inline float __sinf(float a) { return sinf(a); }
inline float __cosf(float a) { return cosf(a); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __saturatef(float a) { return a > 0 ? (a < 1 ? a : 1) : 0; }
inline void sincospif(float a, float *s, float *c) {
    *s = (float)sin((double)a * 3.14159265358979323846);
    *c = (float)cos((double)a * 3.14159265358979323846);
}

inline unsigned __float_as_uint(float f) { return sluice_emu::bits<unsigned>(f); }
inline int __float_as_int(float f) { return sluice_emu::bits<int>(f); }
inline float __uint_as_float(unsigned u) { return sluice_emu::bits<float>(u); }
inline float __int_as_float(int i) { return sluice_emu::bits<float>(i); }
inline long long __double_as_longlong(double d) { return sluice_emu::bits<long long>(d); }
inline double __longlong_as_double(long long v) { return sluice_emu::bits<double>(v); }

// Conversions saturate and take a NaN to zero, as the device's do.
inline int sluice_toInt(float f) { return f >= 0x1p31f ? 0x7fffffff : f <= -0x1p31f ? -0x7fffffff - 1 : f == f ? (int)f : 0; }
inline int __float2int_rn(float f) { return sluice_toInt(nearbyintf(f)); }
inline int __float2int_rz(float f) { return sluice_toInt(f); }
inline int __float2int_rd(float f) { return sluice_toInt(floorf(f)); }
inline int __float2int_ru(float f) { return sluice_toInt(ceilf(f)); }
inline float __int2float_rn(int i) { return (float)i; }
inline float __uint2float_rn(unsigned u) { return (float)u; }

inline int __popc(unsigned v) { return __builtin_popcount(v); }
inline int __popcll(unsigned long long v) { return __builtin_popcountll(v); }
inline int __ffs(int v) { return __builtin_ffs(v); }
inline int __ffsll(long long v) { return __builtin_ffsll(v); }
inline int __clz(int v) { return v ? __builtin_clz((unsigned)v) : 32; }
inline int __clzll(long long v) { return v ? __builtin_clzll((unsigned long long)v) : 64; }
inline unsigned __brev(unsigned v) {
    unsigned r = 0;
    for (int i = 0; i < 32; i++) r |= (v >> i & 1) << (31 - i);
    return r;
}
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
    const uint64_t v = (uint64_t)b << 32 | a;
    unsigned r = 0;
    for (int i = 0; i < 4; i++) {
        const unsigned s = selector >> 4 * i & 15;
        unsigned byte = (unsigned)(v >> 8 * (s & 7)) & 255;
        if (s & 8) byte = byte & 128 ? 255 : 0;
        r |= byte << 8 * i;
    }
    return r;
}
inline unsigned __funnelshift_r(unsigned lo, unsigned hi, unsigned n) { return (unsigned)(((uint64_t)hi << 32 | lo) >> (n & 31)); }
inline unsigned __funnelshift_l(unsigned lo, unsigned hi, unsigned n) { return (unsigned)(((uint64_t)hi << 32 | lo) << (n & 31) >> 32); }
inline int __mulhi(int a, int b) { return (int)((int64_t)a * b >> 32); }
inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((uint64_t)a * b >> 32); }

// Sums of four products of bytes; the sum wraps as the device's does.
inline int __dp4a(int a, int b, int c) {
    const int s = (int8_t)a * (int8_t)b + (int8_t)(a >> 8) * (int8_t)(b >> 8) + (int8_t)(a >> 16) * (int8_t)(b >> 16) +
                  (a >> 24) * (b >> 24);
    return (int)((unsigned)c + (unsigned)s);
}
inline unsigned __dp4a(unsigned a, unsigned b, unsigned c) {
    return c + (a & 255) * (b & 255) + (a >> 8 & 255) * (b >> 8 & 255) + (a >> 16 & 255) * (b >> 16 & 255) + (a >> 24) * (b >> 24);
}
// Four differences of bytes, wrapping.
inline unsigned __vsub4(unsigned a, unsigned b) {
    return ((a | 0x80808080u) - (b & 0x7f7f7f7fu)) ^ ((a ^ ~b) & 0x80808080u);
}
inline unsigned __vadd4(unsigned a, unsigned b) { return ((a & 0x7f7f7f7fu) + (b & 0x7f7f7f7fu)) ^ ((a ^ b) & 0x80808080u); }

template <typename T> inline T __ldg(const T *p) { return *p; }

#define SLUICE_MINMAX(T)                               \
    inline T min(T a, T b) { return a < b ? a : b; }   \
    inline T max(T a, T b) { return a > b ? a : b; }
SLUICE_MINMAX(int)
SLUICE_MINMAX(unsigned)
SLUICE_MINMAX(long)
SLUICE_MINMAX(unsigned long)
SLUICE_MINMAX(long long)
SLUICE_MINMAX(unsigned long long)
#undef SLUICE_MINMAX
inline float min(float a, float b) { return fminf(a, b); }
inline float max(float a, float b) { return fmaxf(a, b); }

#endif
