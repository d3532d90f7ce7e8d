// launch.h: running a grid.
#pragma once
#include <vector>

#include "context.h"
#include "processor.h"

namespace emu {

// A launch with its arguments copied, as it lies in a queue or a graph.
struct Launch {
    const Kernel *kernel;
    Dim grid, block;
    unsigned dynamicBytes;
    std::vector<std::uint64_t> cells;
};

// Runs all blocks, on this thread and perhaps one more, and reports what went wrong under the kernel's name.
Result run(Stream &s, const Launch &l);

}  // namespace emu
