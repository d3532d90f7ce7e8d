#!/bin/sh
# build.sh OUTDIR [FILE.cu ...]: builds OUTDIR/libcuda.so.1, the emulated device, from this folder and the kernels: all of
# cuda/kernels, or only the files named. Needs g++ and make, no CUDA. Objects stay in OUTDIR/obj and are made anew when
# a source or a header has changed. What a source does not compile stops the build and is named.
set -eu
[ $# -ge 1 ] || { echo "usage: build.sh OUTDIR [FILE.cu ...]" >&2; exit 2; }
emu=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1"
out=$(cd "$1" && pwd)
shift
command -v "${CXX:-g++}" >/dev/null || { echo "build.sh: missing: g++ (Debian: apt-get install g++)" >&2; exit 1; }
command -v make >/dev/null || { echo "build.sh: missing: make" >&2; exit 1; }
if [ $# -eq 0 ]; then
    set -- "$emu"/../kernels/*.cu
fi
list=
for f; do
    [ -f "$f" ] || { echo "build.sh: no such file: $f" >&2; exit 1; }
    list="$list $(cd "$(dirname "$f")" && pwd)/$(basename "$f")"
done
# Two builds of one folder at once would read each other's half-written objects.
exec 9>"$out/.lock"
if command -v flock >/dev/null; then flock 9; fi
exec make -s -j "$(nproc)" -f "$emu/emu.mk" EMU="$emu" OUT="$out" KERNELS="$list"
