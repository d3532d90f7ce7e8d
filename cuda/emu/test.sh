#!/bin/sh
# test.sh [OUTDIR]: the emulator's own tests. What is right must work, in both orders of threads; each mistake must be
# found, and said in the words that are wanted here.
set -eu
emu=$(cd "$(dirname "$0")" && pwd)
out=${1:-$emu/../../bin/emu-test}
sh "$emu/build.sh" "$out" "$emu/selftest/kernels.cu"
out=$(cd "$out" && pwd)
test=$out/selftest
if [ -z "$(find "$test" -newer "$out/libcuda.so.1" 2>/dev/null)" ] || [ -n "$(find "$emu/selftest" -name '*.cc' -newer "$test" -o -name '*.h' -newer "$test")" ]; then
    # The wrong cases do what compilers warn of.
    "${CXX:-g++}" -std=c++17 -O1 -Wall -Wextra -o "$test" "$emu"/selftest/*.cc -L"$out" -lcuda -Wl,-rpath,"$out"
fi

sh "$emu/symbols.sh" "$out/libcuda.so.1"
cuda_include=
. "$emu/../toolkit.sh"
if [ -n "$cuda_include" ]; then
    "${CXX:-g++}" -std=c++17 -fsyntax-only -Wall -Wextra -I"$emu" -isystem "$cuda_include" "$emu/compat_test.cc"
    echo "ok: numbers as in $cuda_include/cuda.h"
else
    echo "skipped: no cuda.h to compare the numbers with"
fi

for order in forward reverse; do
    SLUICE_EMU_ORDER=$order "$test" right >"$out/log" 2>&1 || { cat "$out/log"; echo "test.sh: FAIL: right, $order"; exit 1; }
done

bad=0
# want NAME STATUS WORDS: the case ends with the status (139: a fault) and says the words.
want() {
    status=0
    SLUICE_EMU_TIMEOUT=${timeout:-60} "$test" "$1" >"$out/log" 2>&1 || status=$?
    if [ "$status" -ne "$2" ] || ! grep -q -e "$3" "$out/log"; then
        echo "test.sh: FAIL: $1: status $status, want $2 and: $3"
        sed 's/^/    /' "$out/log"
        bad=1
    fi
}
want hostRead 139 'the host follows device address'
want hostReadAfterLaunch 139 'the host follows device address'
want hostPastPinned 139 ''
want hostAfterFreeHost 139 ''
want hostPastPinnedALittle 86 'write outside an allocation: 0 bytes past the end of pinned allocation 1 (100 bytes)'
want overrunByOne 86 'kernel w_write wrote outside an allocation: 0 bytes past the end of allocation 1 (1000 bytes)'
want overrunByPage 86 'kernel w_write: block (0,0,0), thread (0,0,0) reaches 100 bytes past the end of allocation 1'
want overrunRead 86 'kernel w_read: .* reaches 0 bytes past the end of allocation'
want underrun 86 'kernel w_write wrote outside an allocation: 1 bytes before allocation 1'
want underrunFar 86 'kernel w_write: .* reaches '
want wild 86 'kernel w_write: .* reaches .* which is no device memory'
want wilder 86 'kernel w_write: .* reaches an address that no memory has'
want afterFree 86 'kernel w_write: .* reaches byte 8 of freed allocation 1 (1000 bytes)'
want afterFreeThroughTable 86 'kernel w_through: .* reaches byte 0 of freed allocation 1'
want copyAfterFree 86 'cuMemcpyHtoD of 4 bytes at byte 0 of freed allocation 1'
want copyPast 86 'cuMemcpyHtoD of 17 bytes at byte 0 of allocation 1 (16 bytes)'
want freeTwice 86 'is freed already'
want leak 86 'leak: device allocation 1 of 400 bytes'
want leakStream 86 'leak: 1 streams'
want leakAtExit 86 'the process ends with 1 allocations'
want barrierIf 86 'kernel w_barrier_if: block (.,0,0): 40 of 64 threads wait at __syncthreads; thread (40,0,0) has returned'
want barrierLoop 86 'kernel w_barrier_loop: .* 32 of 64 threads wait'
want lanes 86 'kernel w_lanes: .* lanes 000fffff wait .* lanes fff00000 have returned'
want mixed 86 'kernel w_mixed: .* different warp functions'
want mask 86 'kernel w_mask: lane 16 calls a warp function with mask 0000ffff'
want oddWarp 86 'kernel w_lanes: warp function in a block of 40 threads'
want align 86 'kernel w_align: .* kernels.cu:.*: misaligned address'
want index 86 'kernel w_index: .* kernels.cu:.*: index past the end of an array'
want dynamic 86 'kernel w_dynamic: .* reaches past the dynamic shared memory'
want divide 86 'kernel w_divide: .* division by zero'
want shift 86 'kernel w_shift: .* shift by more bits'
want stack 86 'kernel w_stack: .* overflows its stack'
want hostArgument 86 'kernel t_word: argument 0 is .* which is no device address'
# pretended ENVIRONMENT WORDS: what the device pretends to be.
pretended() {
    env "$1" "$test" pretend >"$out/log" 2>&1 || true
    if ! grep -q -x -e "$2" "$out/log"; then
        echo "test.sh: FAIL: $1: want: $2"
        sed 's/^/    /' "$out/log"
        bad=1
    fi
}
pretended SLUICE_EMU_DEVICES=1 'init 0 version 11080 major 9 module 0 MiB 1024'
pretended SLUICE_EMU_DEVICES=0 'init 100 version 11080'
pretended SLUICE_EMU_DRIVER=11040 'init 0 version 11040 major 9 module 0 MiB 1024'
pretended SLUICE_EMU_ARCH=sm_75 'init 0 version 11080 major 7 module 209 MiB 1024'
pretended SLUICE_EMU_ARCH=sm_100 'init 0 version 11080 major 10 module 0 MiB 1024'
pretended SLUICE_EMU_MB=64 'init 0 version 11080 major 9 module 0 MiB 64'
pretended SLUICE_EMU_FAIL=cuInit=803 'init 803 version 11080'
pretended SLUICE_EMU_FAIL=cuModuleLoadData:1=222 'init 0 version 11080 major 9 module 222 MiB 1024'
# A program that ends without the library's last word, as Go's do, is judged by run.sh.
status=0
SLUICE_EMU_LIB=$out sh "$emu/run.sh" "$test" leakAndQuit >"$out/log" 2>&1 || status=$?
[ "$status" -eq 86 ] && grep -q 'ended with 1 allocations' "$out/log" || { cat "$out/log"; echo "test.sh: FAIL: run.sh: status $status"; bad=1; }

timeout=1
want endless 86 'a host call waited 1 s: stream .* is at w_endless'
want neverComes 86 'is at cuStreamWaitValue32'
[ $bad -eq 0 ] || exit 1
echo "ok: emulator"
