// config.h: what the environment asks the emulator to be, read once.
#pragma once
#include <cstdint>
#include <string>

#include "api.h"

namespace emu {

struct Config {
    int devices = 1;                         // SLUICE_EMU_DEVICES
    std::uint64_t bytes = 1024ull << 20;     // SLUICE_EMU_MB
    int driver = 11080;                      // SLUICE_EMU_DRIVER
    int major = 9, minor = 0;                // SLUICE_EMU_ARCH, as sm_90
    int order = 0;                           // SLUICE_EMU_ORDER: 0 forward, 1 reverse
    double timeout = 120;                    // SLUICE_EMU_TIMEOUT, seconds a host call may wait
    bool verbose = false;                    // SLUICE_EMU_VERBOSE=1: say why a call is refused
    std::string state;                       // SLUICE_EMU_STATE: a file that outlives the process, see report.h
    int arch() const { return major * 10 + minor; }
    unsigned maxShared() const;              // bytes a block can ask for by function attribute
};

const Config &config();

// Failures to inject: "cuMemAlloc:3=2,cuLaunchKernel=719" makes the third cuMemAlloc return 2 and every cuLaunchKernel
// 719. Names are without _v2; a call without =CODE returns CUDA_ERROR_UNKNOWN. From SLUICE_EMU_FAIL, or by this call.
bool setFailures(const char *spec);
Result injected(const char *call);

}  // namespace emu
