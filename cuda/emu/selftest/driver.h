// driver.h: what the tests call of the library, and the words they check with.
#pragma once
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "../api.h"

using emu::DevicePtr;

extern "C" {
int cuInit(unsigned);
int cuDriverGetVersion(int *);
int cuDeviceGetCount(int *);
int cuDeviceGetAttribute(int *, int, int);
int cuCtxCreate_v2(void **, unsigned, int);
int cuCtxDestroy_v2(void *);
int cuCtxSetCurrent(void *);
int cuCtxSynchronize(void);
int cuModuleLoadData(void **, const void *);
int cuModuleUnload(void *);
int cuModuleGetFunction(void **, void *, const char *);
int cuFuncSetAttribute(void *, int, int);
int cuFuncGetAttribute(int *, int, void *);
int cuFuncGetParamInfo(void *, std::size_t, std::size_t *, std::size_t *);
int cuMemAlloc_v2(DevicePtr *, std::size_t);
int cuMemFree_v2(DevicePtr);
int cuMemGetInfo_v2(std::size_t *, std::size_t *);
int cuMemHostAlloc(void **, std::size_t, unsigned);
int cuMemHostGetDevicePointer_v2(DevicePtr *, void *, unsigned);
int cuMemFreeHost(void *);
int cuMemcpyHtoD_v2(DevicePtr, const void *, std::size_t);
int cuMemcpyDtoH_v2(void *, DevicePtr, std::size_t);
int cuMemcpyHtoDAsync_v2(DevicePtr, const void *, std::size_t, void *);
int cuMemcpyDtoHAsync_v2(void *, DevicePtr, std::size_t, void *);
int cuMemcpyDtoDAsync_v2(DevicePtr, DevicePtr, std::size_t, void *);
int cuMemsetD8Async(DevicePtr, unsigned char, std::size_t, void *);
int cuMemsetD32_v2(DevicePtr, unsigned, std::size_t);
int cuStreamCreate(void **, unsigned);
int cuStreamDestroy_v2(void *);
int cuStreamSynchronize(void *);
int cuStreamQuery(void *);
int cuStreamWaitEvent(void *, void *, unsigned);
int cuStreamWaitValue32_v2(void *, DevicePtr, unsigned, unsigned);
int cuStreamWriteValue32_v2(void *, DevicePtr, unsigned, unsigned);
int cuEventCreate(void **, unsigned);
int cuEventDestroy_v2(void *);
int cuEventRecord(void *, void *);
int cuEventSynchronize(void *);
int cuEventElapsedTime(float *, void *, void *);
int cuLaunchKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
int cuStreamBeginCapture_v2(void *, int);
int cuStreamEndCapture(void *, void **);
int cuGraphInstantiateWithFlags(void **, void *, unsigned long long);
int cuGraphLaunch(void *, void *);
int cuGraphDestroy(void *);
int cuGraphExecDestroy(void *);
int cuMemcpy3D_v2(void *);
int sluice_emu_counters(std::uint64_t *, int);
int sluice_emu_report(int);
int sluice_emu_fail(const char *);
void sluice_emu_forgive(void);
}

[[noreturn]] inline void failed(const char *file, int line, const char *what, long have, long want) {
    fprintf(stderr, "%s:%d: %s: have %ld, want %ld\n", file, line, what, have, want);
    std::exit(1);
}
#define WANT(have, want)                                                                          \
    do {                                                                                          \
        const long h_ = (long)(have), w_ = (long)(want);                                          \
        if (h_ != w_) failed(__FILE__, __LINE__, #have, h_, w_);                                  \
    } while (0)
#define OK(call) WANT(call, 0)

// A context with the kernels, and a launch whose arguments are given by value.
struct Fixture {
    void *context = nullptr, *module = nullptr;
    Fixture() {
        OK(cuInit(0));
        OK(cuCtxCreate_v2(&context, 0, 0));
        OK(cuModuleLoadData(&module, "a stand-in"));
    }
    void close() {
        OK(cuModuleUnload(module));
        OK(cuCtxDestroy_v2(context));
    }
    void *function(const char *name) {
        void *f = nullptr;
        OK(cuModuleGetFunction(&f, module, name));
        return f;
    }
    template <typename... A>
    int launch(const char *name, unsigned grid, unsigned block, unsigned dynamic, void *stream, A... a) {
        void *params[] = {&a..., nullptr};
        return cuLaunchKernel(function(name), grid, 1, 1, block, 1, 1, dynamic, stream, params, nullptr);
    }
};

template <typename T>
struct Array {
    DevicePtr p = 0;
    std::size_t n;
    explicit Array(std::size_t count) : n(count) { OK(cuMemAlloc_v2(&p, n * sizeof(T))); }
    explicit Array(const std::vector<T> &v) : Array(v.size()) { put(v); }
    void put(const std::vector<T> &v) { OK(cuMemcpyHtoD_v2(p, v.data(), n * sizeof(T))); }
    std::vector<T> get() const {
        std::vector<T> v(n);
        OK(cuMemcpyDtoH_v2(v.data(), p, n * sizeof(T)));
        return v;
    }
    void free() { OK(cuMemFree_v2(p)); }
};

// The position of a counter; as report.h orders them.
inline std::uint64_t counter(unsigned i) {
    std::uint64_t c[64] = {};
    sluice_emu_counters(c, 64);
    return c[i];
}

struct Case {
    const char *name;
    void (*run)();
};
extern const Case kRight[], kWrong[];
