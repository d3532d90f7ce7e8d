#!/bin/sh
# build.sh: checks the tools, then builds bin/engine, one static binary.
# CUDA=1 asks for the device engine; this version has none, and says so instead of building the CPU one.
set -eu
cd "$(dirname "$0")"

die() {
    echo "build.sh: $*" >&2
    exit 1
}

check_cuda() {
    nvcc=
    for dir in "${CUDA_HOME:-}" /usr/local/cuda; do
        if [ -n "$dir" ] && [ -x "$dir/bin/nvcc" ]; then
            nvcc=$dir/bin/nvcc
            break
        fi
    done
    [ -n "$nvcc" ] || nvcc=$(command -v nvcc || true)
    if [ -z "$nvcc" ]; then
        echo "build.sh: missing: nvcc (looked in \$CUDA_HOME/bin, /usr/local/cuda/bin and PATH); install the CUDA toolkit or set CUDA_HOME" >&2
    else
        echo "build.sh: found $nvcc" >&2
        [ -f "$(dirname "$nvcc")/../include/cuda.h" ] ||
            echo "build.sh: missing: include/cuda.h beside $nvcc; the toolkit's headers are not installed" >&2
    fi
    die "CUDA=1: this version has no CUDA arm; build without CUDA for the CPU engine"
}

case ${CUDA:-0} in
0) ;;
1) check_cuda ;;
*) die "CUDA=$CUDA: want 0 or 1" ;;
esac

want=$(sed -n 's/^go //p' go.mod)
command -v go >/dev/null || die "missing: go; install Go $want or newer"
# Asked outside the module and with the toolchain switch off: the version of the go that is installed.
have=$(cd / && GOTOOLCHAIN=local go env GOVERSION)
have=${have#go}
oldest=$(printf '%s\n%s\n' "$want" "${have%%[!0-9.]*}" | sort -V | head -n 1)
[ "$oldest" = "$want" ] || die "go is $have, want $want or newer"

version=$(git describe --tags --always --dirty 2>/dev/null || echo unknown)
mkdir -p bin
CGO_ENABLED=0 go build -trimpath -ldflags "-X main.version=$version" -o bin/engine ./cmd/engine
echo "built bin/engine $version"
