#!/bin/sh
# build.sh: checks the tools, then builds bin/engine, one static binary.
#
# CUDA=1 builds bin/engine-cuda beside it, which `engine --device cuda` starts: the same program with the device arm,
# linked to libcuda. It takes a toolkit (nvcc, cuda.h, a libcuda.so to link against) from CUDA_HOME or from the usual
# places, and compiles the kernels for CUDA_ARCH, compute capabilities such as "80 90" (default 80 89 90), with PTX of
# the newest of them for devices newer still. No GPU is needed to build.
set -eu
cd "$(dirname "$0")"

die() {
    echo "build.sh: $*" >&2
    exit 1
}

# Everything that is missing, in one go; then how to get it.
find_cuda() {
    . cuda/toolkit.sh
    if [ -n "$cuda_missing" ]; then
        printf '%s' "$cuda_missing" | sed 's/^/build.sh: missing: /' >&2
        die "CUDA=1: install a CUDA toolkit and set CUDA_HOME to it (on Debian 12: cuda/install-toolkit.sh), or build without CUDA for the CPU engine"
    fi
    [ "${cuda_version:-0}" -ge 11080 ] || die "CUDA=1: $cuda_include/cuda.h is CUDA $((cuda_version / 1000)).$((cuda_version % 1000 / 10)), want 11.8 or newer"

    cuda_known=$("$cuda_nvcc" --list-gpu-arch | sed 's/compute_//' | tr '\n' ' ')
    cuda_archs=$(echo "${CUDA_ARCH:-80 89 90}" | tr ', ' '\n\n' | sed 's/^sm_//' | sort -nu | tr '\n' ' ')
    cuda_gencode= cuda_built=
    for arch in $cuda_archs; do
        case " $cuda_known " in
        *" $arch "*) ;;
        *) die "CUDA_ARCH=$CUDA_ARCH: $arch is not one that $cuda_nvcc compiles for: $cuda_known" ;;
        esac
        [ "$arch" -ge 70 ] || die "CUDA_ARCH=$CUDA_ARCH: $arch: want 70 or newer"
        cuda_gencode="$cuda_gencode -gencode arch=compute_$arch,code=sm_$arch" cuda_built="${cuda_built}sm_$arch " cuda_last=$arch
    done
    [ -n "$cuda_gencode" ] || die "CUDA_ARCH=$CUDA_ARCH: want compute capabilities such as 80 90"
    cuda_gencode="$cuda_gencode -gencode arch=compute_$cuda_last,code=compute_$cuda_last"
    cuda_built="for ${cuda_built}and newer (CUDA $((cuda_version / 1000)).$((cuda_version % 1000 / 10)))"
}

# One fatbin for each source that is newer than its own, or all of them when a header, the compiler or CUDA_ARCH is not
# what it was.
build_kernels() {
    image=cuda/driver/image/kernels
    mkdir -p "$image"
    if [ "$cuda_built" != "$(cat "$image/about.txt" 2>/dev/null)" ] || [ -n "$(find cuda/kernels -name '*.h' -newer "$image/about.txt")" ]; then
        rm -f "$image"/*
    fi
    for fatbin in "$image"/*.fatbin; do
        name=$(basename "$fatbin" .fatbin)
        [ -f "cuda/kernels/$name.cu" ] || rm -f "$fatbin"
    done
    for source in cuda/kernels/*.cu; do
        fatbin=$image/$(basename "$source" .cu).fatbin
        [ -f "$fatbin" ] && [ -z "$(find "$source" -newer "$fatbin")" ] || echo "$source"
    done | xargs -r -P "$(nproc)" -I '{}' sh -c '
        source=$1 out=$2/$(basename "$1" .cu).fatbin
        shift 2
        echo "nvcc $source"
        "$@" -o "$out.partial" "$source" && mv "$out.partial" "$out"' sh '{}' "$image" \
        "$cuda_nvcc" -ccbin "$cuda_ccbin" -std=c++17 -O3 $cuda_gencode -fatbin ||
        die "CUDA=1: nvcc refused a kernel"
    echo "$cuda_built" >"$image/about.txt"
}

case ${CUDA:-0} in
0) ;;
1) find_cuda ;;
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

if [ "${CUDA:-0}" = 1 ]; then
    build_kernels
    environment=$(cuda/env.sh --device)
    eval "$environment"
    go build -tags cuda -trimpath -ldflags "-X main.version=$version" -o bin/engine-cuda ./cmd/engine
    echo "built bin/engine-cuda $version, kernels $cuda_built"
fi
