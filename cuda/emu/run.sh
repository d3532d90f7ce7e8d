#!/bin/sh
# run.sh PROGRAM [ARG ...]: runs a program on the emulated device of this checkout (bin/emu, or the folder SLUICE_EMU_LIB)
# and fails when the emulator found something, whatever the program's own exit status: a Go program ends without the
# library's last word, so the counters come from a file that it keeps. For tests: go test -exec "$PWD/cuda/emu/run.sh".
# A test that makes a child err on purpose gives it an empty SLUICE_EMU_STATE.
set -u
emu=$(cd "$(dirname "$0")" && pwd)
lib=${SLUICE_EMU_LIB:-$emu/../../bin/emu}
state=$(mktemp) || exit 1
trap 'rm -f "$state"' EXIT
SLUICE_EMU_STATE=$state LD_LIBRARY_PATH=$lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} "$@"
status=$?
# A page a process, of numbers of 8 bytes in the order of report.h: the 14th and its followers are what lives, the 19th
# and its followers what was found.
od -An -v -t u8 -w4096 "$state" | awk '
    $14 + $16 + $18 > 0 { printf "emu: a process ended with %d allocations, %d pinned and %d objects not freed\n", $14, $16, $18; bad = 1 }
    $19 + $20 + $21 + $22 + $23 + $24 > 0 {
        printf "emu: out of bounds %d, use after free %d, leaks %d, kernel errors %d, host accesses %d, timeouts %d\n", $19, $20, $21, $22, $23, $24
        bad = 1
    }
    END { exit bad }' >&2 || [ $status -ne 0 ] || status=86
exit $status
