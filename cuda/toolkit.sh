# toolkit.sh: finds a CUDA toolkit. Read by build.sh and env.sh with `. cuda/toolkit.sh`, which sets
#   cuda_nvcc     the compiler
#   cuda_include  the directory of cuda.h
#   cuda_stubs    the directory of a libcuda.so to link against
#   cuda_version  of the header, 11080 for 11.8
#   cuda_ccbin    the host compiler for nvcc
#   cuda_missing  what was not found, a sentence each line; empty when all of it was
# It looks into CUDA_HOME when that is set and nowhere else then; else into the usual places, then where Debian's
# packages put things.

cuda_nvcc= cuda_include= cuda_stubs= cuda_version= cuda_ccbin= cuda_missing=

if [ -n "${CUDA_HOME:-}" ]; then
    cuda_homes=$CUDA_HOME
else
    # Of several versions side by side the newest; a plain link is somebody's choice and goes first.
    cuda_homes="/usr/local/cuda /opt/cuda $(ls -d /usr/local/cuda-* /opt/cuda-* 2>/dev/null | sort -rV | tr '\n' ' ')"
    cuda_on_path=$(command -v nvcc || true)
    [ -z "$cuda_on_path" ] || cuda_homes="$cuda_homes $(dirname "$(dirname "$(readlink -f "$cuda_on_path")")")"
fi
for cuda_home in $cuda_homes; do
    if [ -x "$cuda_home/bin/nvcc" ]; then
        cuda_nvcc=$cuda_home/bin/nvcc
        break
    fi
done
# Debian's own package spreads the toolkit over the system; the nvcc that its programs run is beside its cicc.
if [ -z "$cuda_nvcc" ] && [ -z "${CUDA_HOME:-}" ] && [ -x /usr/lib/nvidia-cuda-toolkit/bin/nvcc ]; then
    cuda_nvcc=/usr/lib/nvidia-cuda-toolkit/bin/nvcc
fi
if [ -n "$cuda_nvcc" ]; then
    cuda_home=$(dirname "$(dirname "$cuda_nvcc")")
    cuda_includes="$cuda_home/include $cuda_home/targets/x86_64-linux/include"
    cuda_stubdirs="$cuda_home/lib64/stubs $cuda_home/targets/x86_64-linux/lib/stubs $cuda_home/lib/stubs"
    if [ -z "${CUDA_HOME:-}" ]; then
        cuda_includes="$cuda_includes /usr/include"
        cuda_stubdirs="$cuda_stubdirs /usr/lib/x86_64-linux-gnu/stubs /usr/lib/x86_64-linux-gnu"
    fi
    for cuda_dir in $cuda_includes; do
        [ ! -f "$cuda_dir/cuda.h" ] || { cuda_include=$cuda_dir && break; }
    done
    for cuda_dir in $cuda_stubdirs; do
        [ ! -f "$cuda_dir/libcuda.so" ] || { cuda_stubs=$cuda_dir && break; }
    done
    [ -z "$cuda_include" ] || cuda_version=$(sed -n 's/^#define CUDA_VERSION \([0-9]*\).*/\1/p' "$cuda_include/cuda.h")

    # The newest gcc that this nvcc takes, by the installation guide of each version.
    case ${cuda_version:-0} in
    120[0-3]0) cuda_newest=12 ;;
    120[4-7]0) cuda_newest=13 ;;
    12*) cuda_newest=14 ;;
    13*) cuda_newest=15 ;;
    *) cuda_newest=11 ;;
    esac
    cuda_default=$(g++ -dumpversion 2>/dev/null | cut -d. -f1)
    if [ -n "$cuda_default" ] && [ "$cuda_default" -le "$cuda_newest" ]; then
        cuda_ccbin=g++
    else
        for cuda_gcc in 15 14 13 12 11 10 9; do
            if [ "$cuda_gcc" -le "$cuda_newest" ] && command -v "g++-$cuda_gcc" >/dev/null; then
                cuda_ccbin=g++-$cuda_gcc
                break
            fi
        done
    fi
fi

cuda_lacks() { cuda_missing="$cuda_missing$*
"; }
cuda_where=${CUDA_HOME:-$cuda_homes and Debian\'s /usr/lib/nvidia-cuda-toolkit}
if [ -z "$cuda_nvcc" ]; then
    cuda_lacks "nvcc (looked for bin/nvcc in $cuda_where)"
else
    [ -n "$cuda_include" ] || cuda_lacks "cuda.h for $cuda_nvcc (looked in $cuda_includes)"
    [ -n "$cuda_stubs" ] || cuda_lacks "libcuda.so to link against for $cuda_nvcc (looked in $cuda_stubdirs)"
    [ -n "$cuda_ccbin" ] || cuda_lacks "a host compiler for $cuda_nvcc: g++-$cuda_newest or older (g++ here is ${cuda_default:-not installed})"
fi
command -v gcc >/dev/null || cuda_lacks "gcc, which cgo compiles with"
