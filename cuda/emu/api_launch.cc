// Launching a kernel, with the limits of a device.
#include "config.h"
#include "context.h"
#include "launch.h"
#include "module.h"
#include "report.h"

namespace emu {

static Result refuse(const Kernel *k, const char *why, unsigned long long have, unsigned long long limit) {
    note("launch of %s: %s %llu, limit %llu", k->name, why, have, limit);
    return kInvalidValue;
}

static Result checkLimits(const Function *f, Dim grid, Dim block, unsigned dynamic) {
    const Kernel *k = f->kernel;
    if (grid.count() == 0) return refuse(k, "an empty grid;", 0, 1);
    if (block.count() == 0) return refuse(k, "an empty block;", 0, 1);
    if (grid.x > 0x7fffffffu) return refuse(k, "grid x", grid.x, 0x7fffffff);
    if (grid.y > 65535) return refuse(k, "grid y", grid.y, 65535);
    if (grid.z > 65535) return refuse(k, "grid z", grid.z, 65535);
    if (block.x > 1024) return refuse(k, "block x", block.x, 1024);
    if (block.y > 1024) return refuse(k, "block y", block.y, 1024);
    if (block.z > 64) return refuse(k, "block z", block.z, 64);
    if (block.count() > k->maxThreads) return refuse(k, "threads", block.count(), k->maxThreads);
    if (dynamic > f->maxDynamic) return refuse(k, "dynamic shared bytes", dynamic, f->maxDynamic);
    return kSuccess;
}

}  // namespace emu

using namespace emu;

EMU_API int cuLaunchKernel(void *handle, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned dynamic, void *stream,
                           void **params, void **extra) {
    if (Result r = enter("cuLaunchKernel", nullptr)) return r;
    if (!isFunction(handle)) return kInvalidHandle;
    const auto *f = static_cast<const Function *>(handle);
    if (extra) return kNotSupported;
    if (Result r = checkLimits(f, {gx, gy, gz}, {bx, by, bz}, dynamic)) return r;
    std::shared_ptr<Stream> s;
    if (Result r = findStream(stream, &s)) return r;
    Launch l{f->kernel, {gx, gy, gz}, {bx, by, bz}, dynamic, {}};
    if (l.kernel->params > 0 && !params) return kInvalidValue;
    l.cells.resize(l.kernel->params);
    for (unsigned i = 0; i < l.kernel->params; i++) memcpy(&l.cells[i], params[i], l.kernel->kinds[i] == Param::kWord ? 4 : 8);
    Operation op;
    op.name = l.kernel->name;
    op.kernels = true;
    op.body = [l = std::move(l)](Stream &on) { return run(on, l); };
    return submit(s, std::move(op));
}
