#!/bin/sh
# symbols.sh LIBRARY: every driver symbol that gorgonia.org/cu refers to must resolve. The names come from its sources in
# the module cache; where a toolkit is installed, through the renames of its cuda.h. Says what it skips.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
dir=$(cd "$root" && go list -m -f '{{.Dir}}' gorgonia.org/cu 2>/dev/null || true)
[ -n "$dir" ] || { echo "symbols.sh: skipped: gorgonia.org/cu is not in the module cache"; exit 0; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
nm -D --defined-only "$1" | awk '{print $3}' | sort -u >"$work/have"
# Helpers of the package itself and types have the same prefix.
grep -ohE 'C\.cu[A-Z][A-Za-z0-9]*(_v[0-9])?' "$dir"/*.go | sed 's/^C\.//' | sort -u |
    grep -vxE 'cuAllocAndCopy|cuLaunchAndSync|cuGraphNode' >"$work/names"
. "$root/cuda/toolkit.sh" 2>/dev/null || cuda_include=
if [ -n "${cuda_include:-}" ] && [ -f "$cuda_include/cuda.h" ]; then
    # The preprocessor renames; a name alone on a line stays alone.
    { echo '#include <cuda.h>'; sed 's/.*/EMU_NAME &/' "$work/names"; } | "${CXX:-g++}" -x c -E -P -I"$cuda_include" - 2>/dev/null |
        sed -n 's/^EMU_NAME //p' >"$work/renamed"
    [ "$(wc -l <"$work/names")" -eq "$(wc -l <"$work/renamed")" ] || { echo "symbols.sh: cuda.h was not understood"; exit 1; }
else
    # Without it, either spelling will do.
    echo "symbols.sh: no toolkit: renames not checked"
    sed -E 's/_v[0-9]$//' "$work/have" | sort -u - "$work/have" >"$work/have2"
    mv "$work/have2" "$work/have"
    cp "$work/names" "$work/renamed"
fi
sort -u "$work/renamed" | comm -23 - "$work/have" >"$work/missing"
if [ -s "$work/missing" ]; then
    echo "symbols.sh: $1 lacks:"
    cat "$work/missing"
    exit 1
fi
echo "ok: symbols ($(wc -l <"$work/renamed") names)"
