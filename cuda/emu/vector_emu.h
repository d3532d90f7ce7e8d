// vector_emu.h: the vector types of the device language, with the device's alignment: a load of 16 bytes from an address
// that is not a multiple of 16 is an error there, and the alignment check of the build makes it one here.
#ifndef SLUICE_VECTOR_EMU_H
#define SLUICE_VECTOR_EMU_H

#define SLUICE_VECTOR(T, name)                                                                                         \
    struct alignas(2 * sizeof(T)) name##2 { T x, y; };                                                                 \
    struct alignas(4 * sizeof(T) > 16 ? 16 : 4 * sizeof(T)) name##4 { T x, y, z, w; };                                 \
    inline name##2 make_##name##2(T x, T y) { return {x, y}; }                                                         \
    inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }

SLUICE_VECTOR(signed char, char)
SLUICE_VECTOR(unsigned char, uchar)
SLUICE_VECTOR(short, short)
SLUICE_VECTOR(unsigned short, ushort)
SLUICE_VECTOR(int, int)
SLUICE_VECTOR(unsigned, uint)
SLUICE_VECTOR(float, float)
SLUICE_VECTOR(long long, longlong)
SLUICE_VECTOR(unsigned long long, ulonglong)
SLUICE_VECTOR(double, double)
#undef SLUICE_VECTOR

#endif
