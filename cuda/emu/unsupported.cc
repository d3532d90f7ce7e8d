// Every other symbol that gorgonia.org/cu v0.9.6 refers to, under the names of cuda.h from 11.8 to 13, and some that
// programs look up. With the System V calling convention a function may ignore the arguments that it is given.
#include "api.h"
#include "report.h"

#define NONE(name)                                          \
    EMU_API int name(void) {                                \
        emu::note(#name " is not part of the emulator");    \
        return emu::kNotSupported;                          \
    }
#include "unsupported.inc"
#undef NONE
