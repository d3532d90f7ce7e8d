#!/bin/sh
# scan.sh FILE.cu < PREPROCESSED: writes a source that includes FILE.cu and registers its kernels. The input is the file
# after the preprocessor, with __global__ and __launch_bounds__ left as they are, so that kernels which macros stamp are
# found as well.
set -eu
file=$1
text=$(tr '\n' ' ')
kernels=$(printf '%s' "$text" |
    grep -oE 'extern *"C" *__global__ *void *(__launch_bounds__ *\(([^()]|\([^()]*\))*\) *)?[A-Za-z_][A-Za-z0-9_]* *\(' || true)
found=$(printf '%s' "$kernels" | grep -c . || true)
all=$(printf '%s' "$text" | grep -o '__global__' | grep -c . || true)
if [ "$found" -ne "$all" ]; then
    echo "$file: $all times __global__, but $found of them as: extern \"C\" __global__ void name(" >&2
    exit 1
fi
echo "#include \"kernel.h\""
echo "#include \"$file\""
printf '%s\n' "$kernels" | while IFS= read -r k; do
    [ -n "$k" ] || continue
    name=$(printf '%s' "$k" | sed -E 's/ *\($//; s/.*[^A-Za-z0-9_]//')
    bounds=$(printf '%s' "$k" | sed -nE 's/.*__launch_bounds__ *\((.*)\) *[A-Za-z_][A-Za-z0-9_]* *\($/\1/p' | sed 's/,.*//')
    echo "static emu::Registration<&$name> sluice_register_$name(\"$name\", \"$(basename "$file")\", ${bounds:-0});"
done
