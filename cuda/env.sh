#!/bin/sh
# env.sh prints the environment in which `go test -tags cuda ./cuda/...` and `go build -tags cuda ./cmd/engine` compile,
# and run on the emulated device of bin/emu:
#
#	make cuda-emu && eval "$(cuda/env.sh)" && go test -tags cuda ./cuda/kernels
#
# env.sh --device leaves bin/emu out, so that they run on the machine's own device. Where cuda/driver/image has no
# kernels yet, it writes a stand-in there: the emulated device brings its own.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)

die() {
    echo "env.sh: $*" >&2
    echo false # so that eval fails too
    exit 1
}

. "$root/cuda/toolkit.sh"
[ -n "$cuda_include" ] || die "missing: ${cuda_missing%%
*}; on Debian 12 cuda/install-toolkit.sh installs it"

image=$root/cuda/driver/image/kernels
if [ ! -f "$image/about.txt" ]; then
    mkdir -p "$image"
    echo 'a stand-in for device code' >"$image/none.fatbin"
    echo 'for an emulated device only' >"$image/about.txt"
fi

emu=
if [ "${1:-}" != --device ]; then
    [ -f "$root/bin/emu/libcuda.so.1" ] || die "missing: bin/emu/libcuda.so.1; make cuda-emu builds it"
    emu=$root/bin/emu
fi
libs=${cuda_stubs:-$emu}
[ -n "$libs" ] || die "missing: ${cuda_missing%%
*}"

echo "export CGO_ENABLED=1"
echo "export CGO_CFLAGS='-O2 -g -I$root/cuda/compat/include -I$cuda_include'"
echo "export CGO_LDFLAGS='-L$libs'"
[ -z "$emu" ] || echo "export LD_LIBRARY_PATH='$emu'"
