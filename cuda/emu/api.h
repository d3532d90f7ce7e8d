// api.h: the part of the driver API that the emulator answers: types, numbers and the shape of its calls, as cuda.h of
// 11.8 has them. cuda.h itself is not needed to build; where it is installed, compat_test.cc compares the two.
#pragma once
#include <cstddef>
#include <cstdint>

#define EMU_API extern "C" __attribute__((visibility("default")))

namespace emu {

enum Result : int {
    kSuccess = 0,
    kInvalidValue = 1,
    kOutOfMemory = 2,
    kNotInitialized = 3,
    kNoDevice = 100,
    kInvalidDevice = 101,
    kInvalidImage = 200,
    kInvalidContext = 201,
    kNoBinaryForGpu = 209,
    kFileNotFound = 301,
    kInvalidHandle = 400,
    kIllegalState = 401,
    kNotFound = 500,
    kNotReady = 600,
    kIllegalAddress = 700,
    kLaunchOutOfResources = 701,
    kLaunchTimeout = 702,
    kContextIsDestroyed = 709,
    kMisalignedAddress = 716,
    kLaunchFailed = 719,
    kNotSupported = 801,
    kCaptureUnsupported = 900,
    kCaptureInvalidated = 901,
    kCaptureMerge = 902,
    kCaptureUnmatched = 903,
    kCaptureUnjoined = 904,
    kCaptureIsolation = 905,
    kCaptureImplicit = 906,
    kCapturedEvent = 907,
    kCaptureWrongThread = 908,
    kUnknown = 999,
};

using DevicePtr = unsigned long long;

enum StreamFlags : unsigned { kStreamNonBlocking = 1 };
enum EventFlags : unsigned { kEventDisableTiming = 2 };
enum WaitFlags : unsigned { kWaitGeq = 0, kWaitEq = 1, kWaitAnd = 2, kWaitNor = 3, kWaitFlush = 1u << 30 };
enum CaptureMode : int { kCaptureGlobal = 0, kCaptureThreadLocal = 1, kCaptureRelaxed = 2 };
enum CaptureStatus : int { kCaptureNone = 0, kCaptureActive = 1, kCaptureBroken = 2 };
enum FunctionAttribute : int {
    kFuncMaxThreads = 0,
    kFuncSharedBytes = 1,
    kFuncConstBytes = 2,
    kFuncLocalBytes = 3,
    kFuncRegisters = 4,
    kFuncPtxVersion = 5,
    kFuncBinaryVersion = 6,
    kFuncCacheModeCa = 7,
    kFuncMaxDynamicShared = 8,
    kFuncPreferredCarveout = 9,
};

}  // namespace emu
