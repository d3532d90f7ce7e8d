// atomic_emu.h: the atomics of the device language. Blocks of one launch run on several threads of the machine, and the
// host looks at mapped memory meanwhile, so these are real atomics.
#ifndef SLUICE_ATOMIC_EMU_H
#define SLUICE_ATOMIC_EMU_H

// Each returns the value before, as on the device.
#define SLUICE_ATOMICS(T)                                                                                      \
    inline T atomicAdd(T *p, T v) { return __atomic_fetch_add(p, v, __ATOMIC_SEQ_CST); }                       \
    inline T atomicSub(T *p, T v) { return __atomic_fetch_sub(p, v, __ATOMIC_SEQ_CST); }                       \
    inline T atomicOr(T *p, T v) { return __atomic_fetch_or(p, v, __ATOMIC_SEQ_CST); }                         \
    inline T atomicAnd(T *p, T v) { return __atomic_fetch_and(p, v, __ATOMIC_SEQ_CST); }                       \
    inline T atomicXor(T *p, T v) { return __atomic_fetch_xor(p, v, __ATOMIC_SEQ_CST); }                       \
    inline T atomicExch(T *p, T v) { return __atomic_exchange_n(p, v, __ATOMIC_SEQ_CST); }                     \
    inline T atomicCAS(T *p, T old, T v) {                                                                     \
        __atomic_compare_exchange_n(p, &old, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);                    \
        return old;                                                                                            \
    }                                                                                                          \
    inline T atomicMax(T *p, T v) {                                                                            \
        T old = __atomic_load_n(p, __ATOMIC_SEQ_CST);                                                          \
        while (old < v && !__atomic_compare_exchange_n(p, &old, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) \
            ;                                                                                                  \
        return old;                                                                                            \
    }                                                                                                          \
    inline T atomicMin(T *p, T v) {                                                                            \
        T old = __atomic_load_n(p, __ATOMIC_SEQ_CST);                                                          \
        while (v < old && !__atomic_compare_exchange_n(p, &old, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) \
            ;                                                                                                  \
        return old;                                                                                            \
    }

SLUICE_ATOMICS(int)
SLUICE_ATOMICS(unsigned)
SLUICE_ATOMICS(unsigned long long)
#undef SLUICE_ATOMICS

inline float atomicAdd(float *p, float v) {
    uint32_t *cell = (uint32_t *)p, old = __atomic_load_n(cell, __ATOMIC_SEQ_CST);
    while (!__atomic_compare_exchange_n(cell, &old, sluice_emu::bits<uint32_t>(sluice_emu::bits<float>(old) + v), false,
                                        __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
        ;
    return sluice_emu::bits<float>(old);
}

inline void __threadfence_block() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence_system() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

#endif
