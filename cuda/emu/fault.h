#pragma once
namespace emu {
// Once, after the program's runtime has set its own handlers: the emulator's passes on what is not its.
void installFaultHandler();
// A thread that runs kernels handles faults on a stack of its own, since the faulting one may be full.
void useSignalStack();
}  // namespace emu
