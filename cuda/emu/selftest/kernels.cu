// Kernels of the emulator's own tests: right ones that use the device language, and wrong ones, one a mistake.
#include "device.h"

extern "C" __global__ void t_scale(float *y, const float *x, float by, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = by * x[i];
}

// out[0..7] of each thread: one value a function.
extern "C" __global__ void t_warp(unsigned *out) {
    const unsigned lane = threadIdx.x % 32, rank = thread_rank();
    unsigned *o = out + 8 * (blockIdx.x * block_threads() + rank);
    o[0] = __shfl_sync(FULL_MASK, rank, 5);
    o[1] = __shfl_xor_sync(FULL_MASK, rank, 3);
    o[2] = __shfl_down_sync(FULL_MASK, rank, 4);
    o[3] = __shfl_up_sync(FULL_MASK, rank, 4, 8);
    o[4] = __ballot_sync(FULL_MASK, rank % 3 == 0);
    o[5] = (unsigned)(__shfl_sync(FULL_MASK, (unsigned long long)rank << 33, 7) >> 33);
    o[6] = __any_sync(FULL_MASK, lane == 9) + 2 * __all_sync(FULL_MASK, lane != 9);
    __syncwarp();
    o[7] = (unsigned)warp_sum((int)rank);
}

extern "C" __global__ void __launch_bounds__(256) t_block(float *sum, float *max, int *count, const float *x, int n) {
    __shared__ float tile[256];
    const unsigned r = thread_rank();
    tile[r] = (int)r < n ? x[blockIdx.x * n + r] : 0.0f;
    const int c = __syncthreads_count(tile[r] > 0);
    const float back = tile[block_threads() - 1 - r];
    const float s = block_sum(back), m = block_max(back);
    if (r == 0) {
        sum[blockIdx.x] = s;
        max[blockIdx.x] = m;
        count[blockIdx.x] = c;
    }
}

extern "C" __global__ void t_dynamic(int *y, int n) {
    SHARED_DYN(int, buffer);
    for (int i = threadIdx.x; i < n; i += blockDim.x) buffer[i] = i;
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += blockDim.x) y[i] = buffer[n - 1 - i];
}

extern "C" __global__ void t_atomic(int *sum, unsigned *most, unsigned long long *wide, int *plain) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    atomicAdd(sum, i % 7);
    atomicMax(most, (unsigned)i);
    atomicAdd(wide, 1ull << 32);
    if (atomicCAS(plain, 0, 1) == 0) atomicOr(plain, 2);
}

// Exhaustive: thread i of a grid of 65536 converts the half i.
extern "C" __global__ void t_half(float *out, uint16_t *back) {
    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    out[i] = h2f((uint16_t)i);
    back[i] = f2h(out[i]);
}

extern "C" __global__ void t_round(uint16_t *out, const float *x, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = f2h(x[i]);
}

extern "C" __global__ void t_dot(int *out, const int *a, const int *b) {
    const unsigned i = threadIdx.x;
    out[i] = __dp4a(a[i], b[i], 1000);
}

extern "C" __global__ void t_word(unsigned *p, unsigned v) { *p = v; }

// Waits long enough that a missing order would show.
extern "C" __global__ void t_slow(int *p, int v, int rounds) {
    volatile int sink = 0;
    for (int i = 0; i < rounds; i++) sink = sink + i;
    *p = v;
}

#define STAMP(name, plus) \
    extern "C" __global__ void name(int *y) { y[threadIdx.x] = (int)threadIdx.x plus; }
STAMP(t_stamped_one, +1)
STAMP(t_stamped_two, +2)

// A block does not find zeroes in its static shared memory. (The store is what keeps the compiler from knowing better.)
extern "C" __global__ void t_stale(unsigned *out) {
    __shared__ unsigned a[4];
    if (gridDim.x > 1) a[threadIdx.x] = gridDim.x;
    out[threadIdx.x] = a[threadIdx.x];
}

// ---- wrong ----

extern "C" __global__ void w_write(unsigned char *p, long long at) { p[at] = 1; }
extern "C" __global__ void w_read(unsigned char *p, long long at, unsigned char *to) { *to = p[at]; }
extern "C" __global__ void w_through(unsigned long long *table) { *(int *)table[0] = 1; }

extern "C" __global__ void w_barrier_if(int *p) {
    if (threadIdx.x < 40) __syncthreads();
    p[threadIdx.x] = 1;
}
extern "C" __global__ void w_barrier_loop(int *p) {
    for (unsigned i = 0; i <= threadIdx.x / 32; i++) __syncthreads();
    p[threadIdx.x] = 1;
}
extern "C" __global__ void w_lanes(int *p) {
    if (threadIdx.x % 32 < 20) p[threadIdx.x] = __shfl_xor_sync(FULL_MASK, p[threadIdx.x], 1);
}
extern "C" __global__ void w_mixed(int *p) {
    if (threadIdx.x % 2)
        p[threadIdx.x] = __shfl_sync(FULL_MASK, p[threadIdx.x], 0);
    else
        p[threadIdx.x] = (int)__ballot_sync(FULL_MASK, 1);
}
extern "C" __global__ void w_mask(int *p) { p[threadIdx.x] = __shfl_sync(0xffffu, p[threadIdx.x], 0); }
extern "C" __global__ void w_align(float *p, int at) {
    const float4 v = *(const float4 *)(p + at);
    p[0] = v.x + v.w;
}
extern "C" __global__ void w_index(int *p, int at) {
    __shared__ int a[32];
    a[threadIdx.x] = 1;
    __syncthreads();
    p[0] = a[at];
}
extern "C" __global__ void w_dynamic(int *p, int at) {
    SHARED_DYN(int, buffer);
    buffer[at] = 1;
    p[0] = buffer[0];
}
extern "C" __global__ void w_divide(int *p, int by) { p[0] = 7 / by; }
extern "C" __global__ void w_shift(int *p, int by) { p[0] = 1 << by; }
__device__ __noinline__ int w_deeper(volatile int *p, int n) {
    volatile int frame[512];
    frame[n % 512] = *p;
    return n == 0 ? frame[0] : w_deeper(frame, n - 1) + frame[n % 512];
}
extern "C" __global__ void w_stack(int *p, int n) { p[0] = w_deeper(p, n); }
extern "C" __global__ void w_endless(volatile int *p) {
    while (*p == 0) {
    }
}
