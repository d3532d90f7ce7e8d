// What must work: the device language, copies, limits, refusals.
#include <cmath>
#include <random>

#include "../report.h"
#include "driver.h"

extern const Case kOrder[];

static void basics() {
    Fixture f;
    const std::size_t n = 1000;
    std::vector<float> v(n);
    for (std::size_t i = 0; i < n; i++) v[i] = (float)i;
    Array<float> x(v), y(n);
    OK(f.launch("t_scale", 8, 128, 0, nullptr, y.p, x.p, 2.0f, (int)n));
    OK(cuCtxSynchronize());
    const auto got = y.get();
    for (std::size_t i = 0; i < n; i++) WANT(got[i], 2 * i);
    Array<int> stamped(32);
    OK(f.launch("t_stamped_two", 1, 32, 0, nullptr, stamped.p));
    WANT(stamped.get()[3], 5);
    std::size_t free, total;
    OK(cuMemGetInfo_v2(&free, &total));
    WANT(total - free, 8000 + 128);
    WANT(cuMemcpy3D_v2(nullptr), emu::kNotSupported);
    std::size_t at, size;
    OK(cuFuncGetParamInfo(f.function("t_scale"), 3, &at, &size));
    WANT(at, 20);
    WANT(cuFuncGetParamInfo(f.function("t_scale"), 4, &at, &size), emu::kInvalidValue);
    x.free();
    y.free();
    stamped.free();
    f.close();
}

static void warps() {
    Fixture f;
    const unsigned blocks = 3, threads = 96;
    Array<unsigned> out(8 * blocks * threads);
    OK(f.launch("t_warp", blocks, threads, 0, nullptr, out.p));
    const auto got = out.get();
    for (unsigned i = 0; i < blocks * threads; i++) {
        const unsigned r = i % threads, lane = r % 32, first = r - lane;
        const unsigned *o = &got[8 * i];
        unsigned ballot = 0, sum = 0;
        for (unsigned l = 0; l < 32; l++) {
            ballot |= (first + l) % 3 == 0 ? 1u << l : 0;
            sum += first + l;
        }
        WANT(o[0], first + 5);
        WANT(o[1], first + (lane ^ 3));
        WANT(o[2], lane + 4 < 32 ? r + 4 : r);
        WANT(o[3], lane % 8 < 4 ? r : r - 4);
        WANT(o[4], ballot);
        WANT(o[5], first + 7);
        WANT(o[6], 1);
        WANT(o[7], sum);
    }
    out.free();
    f.close();
}

static void blocks() {
    Fixture f;
    for (unsigned threads : {32u, 64u, 256u}) {
        const int n = (int)threads - 3, grid = 9;
        std::vector<float> v(grid * n);
        for (std::size_t i = 0; i < v.size(); i++) v[i] = (float)((i * 37) % 101) - 30;
        Array<float> x(v), sum(grid), max(grid);
        Array<int> count(grid);
        OK(f.launch("t_block", grid, threads, 0, nullptr, sum.p, max.p, count.p, x.p, n));
        for (int b = 0; b < grid; b++) {
            float s = 0, m = -1e9f;
            int c = 0;
            for (int i = 0; i < n; i++) {
                s += v[b * n + i];
                m = std::fmax(m, v[b * n + i]);
                c += v[b * n + i] > 0;
            }
            WANT(sum.get()[b], s);  // whole numbers: exact in any order
            WANT(max.get()[b], m);
            WANT(count.get()[b], c);
        }
        x.free();
        sum.free();
        max.free();
        count.free();
    }
    f.close();
}

static void shared() {
    Fixture f;
    const int n = 20000;  // 80000 bytes: beyond what a block gets without asking
    Array<int> y(n);
    WANT(f.launch("t_dynamic", 1, 64, n * 4, nullptr, y.p, n), emu::kInvalidValue);
    OK(cuFuncSetAttribute(f.function("t_dynamic"), emu::kFuncMaxDynamicShared, n * 4));
    OK(f.launch("t_dynamic", 1, 64, n * 4, nullptr, y.p, n));
    WANT(y.get()[7], n - 8);
    WANT(cuFuncSetAttribute(f.function("t_dynamic"), emu::kFuncMaxDynamicShared, (227 << 10) + 1), emu::kInvalidValue);
    Array<unsigned> stale(4);
    OK(f.launch("t_stale", 1, 4, 0, nullptr, stale.p));
    WANT(stale.get()[2], 0xffffffff);
    stale.free();
    y.free();
    f.close();
}

static void atomics() {
    Fixture f;
    Array<int> sum(std::vector<int>{0}), plain(std::vector<int>{0});
    Array<unsigned> most(std::vector<unsigned>{0});
    Array<std::uint64_t> wide(std::vector<std::uint64_t>{0});
    OK(f.launch("t_atomic", 64, 128, 0, nullptr, sum.p, most.p, wide.p, plain.p));
    long want = 0;
    for (int i = 0; i < 64 * 128; i++) want += i % 7;
    WANT(sum.get()[0], want);
    WANT(most.get()[0], 64 * 128 - 1);
    WANT(wide.get()[0], std::uint64_t{64 * 128} << 32);
    WANT(plain.get()[0], 3);
    sum.free();
    most.free();
    wide.free();
    plain.free();
    f.close();
}

static void halves() {
    Fixture f;
    Array<float> out(65536);
    Array<std::uint16_t> back(65536);
    OK(f.launch("t_half", 256, 256, 0, nullptr, out.p, back.p));
    const auto o = out.get();
    const auto b = back.get();
    for (unsigned i = 0; i < 65536; i++) {
        const unsigned e = i >> 10 & 31, m = i & 1023;
        if (e == 31 && m) {
            WANT(std::isnan(o[i]), 1);
            continue;
        }
        const double v = e == 31 ? INFINITY : e ? std::ldexp(1024 + m, (int)e - 25) : std::ldexp(m, -24);
        WANT((double)o[i] == (i >> 15 ? -v : v), 1);
        WANT(b[i], i);
    }
    // Halfway between neighbours, and a little to each side of it.
    std::vector<float> x;
    std::vector<std::uint16_t> want;
    for (unsigned i = 0; i < 0x7bff; i++) {
        const float mid = (o[i] + o[i + 1]) / 2;
        x.push_back(std::nextafter(mid, 0.0f));
        want.push_back((std::uint16_t)i);
        x.push_back(mid);
        want.push_back((std::uint16_t)(i % 2 ? i + 1 : i));
        x.push_back(-std::nextafter(mid, 1e9f));
        want.push_back((std::uint16_t)(0x8000 | (i + 1)));
    }
    Array<float> dx(x);
    Array<std::uint16_t> dy(x.size());
    OK(f.launch("t_round", (unsigned)(x.size() + 255) / 256, 256, 0, nullptr, dy.p, dx.p, (int)x.size()));
    const auto y = dy.get();
    for (std::size_t i = 0; i < x.size(); i++) WANT(y[i], want[i]);
    out.free();
    back.free();
    dx.free();
    dy.free();
    f.close();
}

static void dots() {
    Fixture f;
    std::mt19937 r(1);
    std::vector<int> a(256), b(256);
    for (int i = 0; i < 256; i++) {
        a[i] = (int)r();
        b[i] = (int)r();
    }
    a[0] = b[0] = (int)0x80808080;
    Array<int> da(a), db(b), out(256);
    OK(f.launch("t_dot", 1, 256, 0, nullptr, out.p, da.p, db.p));
    const auto got = out.get();
    for (int i = 0; i < 256; i++) {
        int want = 1000;
        for (int k = 0; k < 4; k++) want += (std::int8_t)(a[i] >> 8 * k) * (std::int8_t)(b[i] >> 8 * k);
        WANT(got[i], want);
    }
    da.free();
    db.free();
    out.free();
    f.close();
}

static void refusals() {
    Fixture f;
    Array<int> p(2048);
    WANT(f.launch("t_stamped_one", 0, 32, 0, nullptr, p.p), emu::kInvalidValue);
    WANT(f.launch("t_stamped_one", 1, 1025, 0, nullptr, p.p), emu::kInvalidValue);
    WANT(f.launch("t_block", 1, 257, 0, nullptr, p.p, p.p, p.p, p.p, 1), emu::kInvalidValue);
    void *none;
    WANT(cuModuleGetFunction(&none, f.module, "t_none"), emu::kNotFound);
    WANT(cuModuleLoadData(&none, "\001garbage"), emu::kInvalidImage);
    DevicePtr big;
    WANT(cuMemAlloc_v2(&big, std::size_t{1} << 40), emu::kOutOfMemory);
    WANT(cuMemcpyHtoD_v2(12345, &big, 8), emu::kInvalidValue);
    OK(sluice_emu_fail("cuMemAlloc:2=2,cuLaunchKernel:1=719"));
    DevicePtr a, b;
    OK(cuMemAlloc_v2(&a, 16));
    WANT(cuMemAlloc_v2(&b, 16), emu::kOutOfMemory);
    WANT(f.launch("t_stamped_one", 1, 32, 0, nullptr, p.p), emu::kLaunchFailed);
    OK(sluice_emu_fail(""));
    OK(f.launch("t_stamped_one", 1, 32, 0, nullptr, p.p));
    OK(cuMemFree_v2(a));
    OK(cuCtxSetCurrent(nullptr));
    WANT(cuMemAlloc_v2(&a, 16), emu::kInvalidContext);
    OK(cuCtxSetCurrent(f.context));
    p.free();
    f.close();
    WANT(counter(emu::kLiveAllocations), 0);
}

// What test.sh asks of other environments: cuInit's answer, then that of a module for sm_80 and newer.
void pretend() {
    const int r = cuInit(0);
    int version = 0, major = 0, module = -1;
    void *c, *m;
    OK(cuDriverGetVersion(&version));
    if (r == 0) {
        OK(cuDeviceGetAttribute(&major, 75, 0));
        OK(cuCtxCreate_v2(&c, 0, 0));
        module = cuModuleLoadData(&m, "a stand-in");
        std::size_t free, total;
        OK(cuMemGetInfo_v2(&free, &total));
        printf("init %d version %d major %d module %d MiB %zu\n", r, version, major, module, total >> 20);
        cuCtxDestroy_v2(c);
        return;
    }
    printf("init %d version %d\n", r, version);
}

const Case kRight[] = {
    {"basics", basics}, {"warps", warps}, {"blocks", blocks}, {"shared", shared}, {"atomics", atomics},
    {"halves", halves}, {"dots", dots}, {"refusals", refusals},
    {"order", [] { for (const Case *c = kOrder; c->name; c++) c->run(); }},
    {nullptr, nullptr},
};
