#pragma once
#include "kernel.h"

namespace emu {

// A kernel as a module gives it out.
struct Function {
    const Kernel *kernel = nullptr;
    unsigned maxDynamic = 48 << 10;  // bytes of dynamic shared memory it may ask for
};

bool isFunction(const void *f);

}  // namespace emu
