// Modules and functions. The kernels are in this library; an image is read only to answer what a driver would answer to
// it: garbage, or code for other devices.
#include <cstdio>
#include <cstring>
#include <map>
#include <vector>

#include "config.h"
#include "context.h"
#include "kernel.h"
#include "module.h"
#include "report.h"

namespace emu {

struct Module {
    std::map<const Kernel *, Function> functions;  // by first question; the handle is the address
};

static auto &modules = *new std::set<Module *>;
static auto &functions = *new std::set<const Function *>;

bool isFunction(const void *f) {
    std::lock_guard<std::mutex> held(lock);
    return functions.count(static_cast<const Function *>(f)) != 0;
}

template <typename T>
static T at(const unsigned char *p) {
    T v;
    memcpy(&v, p, sizeof v);
    return v;
}

// Whether a fatbin has code for the device: machine code for its own generation up to its own capability, or PTX for no
// newer one. The layout is that of files that fatbinary writes (fatbinary_section.h of the toolkit names the magic).
static Result checkFatbin(const unsigned char *p) {
    const unsigned header = at<std::uint16_t>(p + 6);
    const auto total = at<std::uint64_t>(p + 8);
    for (std::uint64_t o = 0; o + 64 <= total;) {
        const unsigned char *e = p + header + o;
        const unsigned kind = at<std::uint16_t>(e), entryHeader = at<std::uint32_t>(e + 4);
        const auto size = at<std::uint64_t>(e + 8);
        const int arch = static_cast<int>(at<std::uint32_t>(e + 28)), device = config().arch();
        if (kind == 2 && arch / 10 == device / 10 && arch <= device) return kSuccess;
        if (kind == 1 && arch <= device) return kSuccess;
        if (entryHeader + size == 0) break;
        o += entryHeader + size;
    }
    return kNoBinaryForGpu;
}

static Result checkImage(const void *image) {
    const auto *p = static_cast<const unsigned char *>(image);
    if (!p || !*p) return kInvalidImage;
    if (*p == 0x50 && at<std::uint32_t>(p) == 0xba55ed50) return checkFatbin(p);
    if (*p == 0x7f && memcmp(p, "\177ELF", 4) == 0) return kSuccess;
    // Text: PTX, or the words that stand in for an image where there is no compiler. Those are for the oldest device that
    // the kernels are compiled for.
    for (int i = 0; i < 16 && p[i]; i++)
        if (p[i] >= 0x7f || (p[i] < 0x20 && p[i] != '\n' && p[i] != '\t' && p[i] != '\r')) return kInvalidImage;
    return config().major >= 8 ? kSuccess : kNoBinaryForGpu;
}

static Module *known(void *handle) {
    auto *m = static_cast<Module *>(handle);
    return modules.count(m) ? m : nullptr;
}

}  // namespace emu

using namespace emu;

EMU_API int cuModuleLoadData(void **out, const void *image) {
    if (Result r = enter("cuModuleLoadData", nullptr)) return r;
    if (!out) return kInvalidValue;
    if (Result r = checkImage(image)) return r;
    auto *m = new Module;
    std::lock_guard<std::mutex> held(lock);
    modules.insert(m);
    *out = m;
    return kSuccess;
}
EMU_API int cuModuleLoadDataEx(void **out, const void *image, unsigned, void *, void **) { return cuModuleLoadData(out, image); }
EMU_API int cuModuleLoadFatBinary(void **out, const void *image) { return cuModuleLoadData(out, image); }

EMU_API int cuModuleLoad(void **out, const char *path) {
    if (Result r = enter("cuModuleLoad", nullptr)) return r;
    FILE *f = fopen(path, "rb");
    if (!f) return kFileNotFound;
    std::vector<char> image;
    char part[4096];
    for (std::size_t n; (n = fread(part, 1, sizeof part, f)) > 0;) image.insert(image.end(), part, part + n);
    fclose(f);
    image.resize(image.size() + 64);  // zeroes after the end of a text
    return cuModuleLoadData(out, image.data());
}

EMU_API int cuModuleUnload(void *handle) {
    Context *c;
    if (Result r = enterAnyway("cuModuleUnload", &c)) return r;
    std::lock_guard<std::mutex> held(lock);
    Module *m = known(handle);
    if (!m) return kInvalidHandle;
    for (const auto &f : m->functions) functions.erase(&f.second);
    modules.erase(m);
    delete m;
    return c->error;
}

EMU_API int cuModuleGetFunction(void **out, void *handle, const char *name) {
    if (Result r = enter("cuModuleGetFunction", nullptr)) return r;
    const Kernel *k = name ? findKernel(name) : nullptr;
    std::lock_guard<std::mutex> held(lock);
    Module *m = known(handle);
    if (!m) return kInvalidHandle;
    if (!k) return kNotFound;
    Function &f = m->functions[k];
    f.kernel = k;
    functions.insert(&f);
    *out = &f;
    return kSuccess;
}

// No kernel source has variables that the host could ask for.
EMU_API int cuModuleGetGlobal_v2(DevicePtr *, std::size_t *, void *, const char *) {
    if (Result r = enter("cuModuleGetGlobal", nullptr)) return r;
    return kNotFound;
}

EMU_API int cuFuncGetAttribute(int *value, int attribute, void *handle) {
    if (Result r = enter("cuFuncGetAttribute", nullptr)) return r;
    if (!isFunction(handle)) return kInvalidHandle;
    const auto *f = static_cast<const Function *>(handle);
    switch (attribute) {
    case kFuncMaxThreads: *value = static_cast<int>(f->kernel->maxThreads); return kSuccess;
    case kFuncMaxDynamicShared: *value = static_cast<int>(f->maxDynamic); return kSuccess;
    case kFuncPtxVersion: case kFuncBinaryVersion: *value = config().arch(); return kSuccess;
    case kFuncRegisters: *value = 32; return kSuccess;
    case kFuncPreferredCarveout: *value = -1; return kSuccess;
    }
    *value = 0;
    return attribute >= 0 && attribute < 16 ? kSuccess : kInvalidValue;
}

EMU_API int cuFuncSetAttribute(void *handle, int attribute, int value) {
    if (Result r = enter("cuFuncSetAttribute", nullptr)) return r;
    if (!isFunction(handle)) return kInvalidHandle;
    if (attribute == kFuncPreferredCarveout) return kSuccess;
    if (attribute != kFuncMaxDynamicShared || value < 0 || static_cast<unsigned>(value) > config().maxShared()) return kInvalidValue;
    static_cast<Function *>(handle)->maxDynamic = static_cast<unsigned>(value);
    return kSuccess;
}
EMU_API int cuFuncSetCacheConfig(void *handle, int) { return isFunction(handle) ? kSuccess : kInvalidHandle; }

// As the call of CUDA 12.4: tells where a parameter lies, and by its refusal how many there are.
EMU_API int cuFuncGetParamInfo(void *handle, std::size_t index, std::size_t *offset, std::size_t *size) {
    if (!isFunction(handle)) return kInvalidHandle;
    const Kernel *k = static_cast<const Function *>(handle)->kernel;
    if (index >= k->params) return kInvalidValue;
    std::size_t o = 0, n = 0;
    for (std::size_t i = 0; i <= index; i++) {
        o += n;
        n = k->kinds[i] == Param::kWord ? 4 : 8;
        o = (o + n - 1) / n * n;
    }
    if (offset) *offset = o;
    if (size) *size = n;
    return kSuccess;
}

EMU_API int cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, void *handle, int threads, std::size_t) {
    if (!isFunction(handle)) return kInvalidHandle;
    if (threads < 1 || threads > 1024) return kInvalidValue;
    *blocks = 2048 / threads < 16 ? 2048 / threads : 16;
    return kSuccess;
}
