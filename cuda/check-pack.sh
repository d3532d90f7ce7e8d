#!/bin/sh
# check-pack.sh: makes bin/check, a folder with everything that cuda/check.sh runs on a machine with a GPU and without Go,
# and bin/check.tar.gz, the same in one file. `make cuda-check` calls it after a build with CUDA=1.
#
# The programs need a libcuda.so.1, which the driver brings, and the C library; NEEDS says how new a one.
set -eu
cd "$(dirname "$0")/.."

environment=$(cuda/env.sh --device)
eval "$environment"
grep -q '(CUDA ' cuda/driver/image/kernels/about.txt || {
    echo "check-pack.sh: missing: device code: make cuda-check builds it" >&2
    exit 1
}
version=$(git describe --tags --always --dirty 2>/dev/null || echo unknown)
check=bin/check
rm -rf "$check" "$check.tar.gz"
mkdir -p "$check/cuda/kernels" "$check/cuda/driver" "$check/engine" "$check/kernels"

go build -tags cuda -trimpath -ldflags "-s -w -X main.version=$version" -o "$check/engine-cuda" ./cmd/engine
for package in cuda cuda/driver cuda/kernels; do
    go test -c -tags cuda -trimpath -ldflags '-s -w' -o "$check/$package/test" "./$package"
done
cp cuda/check.sh "$check"
# What the tests read, where they look for it.
cp cuda/kernels/*.cu cuda/kernels/*.h "$check/cuda/kernels"
cp -r engine/testdata "$check/engine"
cp -r kernels/testdata "$check/kernels"

needs=$(cd "$check" && for f in engine-cuda cuda/test cuda/*/test; do objdump -T "$f"; done 2>/dev/null | grep -o 'GLIBC_[0-9.]*' | sed 's/GLIBC_//' | sort -Vu | tail -n 1)
{
    echo "version $version"
    echo "kernels $(cat cuda/driver/image/kernels/about.txt)"
    echo "glibc ${needs:-unknown}"
} >"$check/about.txt"
tar -C bin -czf "$check.tar.gz" check
echo "built $check and $check.tar.gz ($(du -h "$check.tar.gz" | cut -f1)) $version, for glibc ${needs:-unknown} or newer: on the machine with the GPU run check/check.sh"
