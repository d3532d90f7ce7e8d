#pragma once
namespace emu {
// Fills the static shared memory of all kernels, as this thread sees it, with values that show. Clears no other thread
// storage that must outlive it: see shared.cc.
void poisonStaticShared();
}  // namespace emu
