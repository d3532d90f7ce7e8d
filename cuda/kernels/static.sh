#!/bin/sh
# static.sh SM FATBIN...: what can be said of the kernels without a device, for architecture SM (90), as one Markdown table
# with a line a kernel: registers, bytes of static shared memory, stack, spills (LDL and STL), and the loads from memory by
# width (LDG of 16, 8, 4, 2 and 1 bytes). `cuda/kernels/static.sh 90 cuda/driver/image/kernels/*.fatbin` shows what
# `make CUDA=1` built; cubins will do too. Needs cuobjdump of the toolkit, where toolkit.sh finds one or on PATH.
#
# The counts are of instructions in the code, not of executions: an unrolled loop has its loads several times. From sm_90 on
# shared memory includes 1024 bytes of the system's in kernels that use any.
set -eu

[ $# -ge 2 ] || {
    echo "usage: static.sh SM FATBIN..." >&2
    exit 2
}
sm=sm_$1
shift

. "$(dirname "$0")/../toolkit.sh"
dump=${cuda_nvcc:+$(dirname "$cuda_nvcc")/cuobjdump}
[ -n "$dump" ] && [ -x "$dump" ] || dump=$(command -v cuobjdump) || {
    echo "static.sh: missing: cuobjdump" >&2
    exit 1
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for image; do
    [ -f "$image" ] || {
        echo "static.sh: no such file: $image" >&2
        exit 1
    }
    # An image without code for this architecture makes cuobjdump fail; others may have some.
    "$dump" -arch "$sm" -res-usage "$image" >>"$work/usage" 2>&1 || true
    "$dump" -arch "$sm" -sass "$image" >>"$work/sass" 2>/dev/null || true
done

awk '
    # Function NAME: and on the next line REG:32 STACK:0 SHARED:512 LOCAL:0 ...
    FILENAME ~ /usage$/ && /Function / { name = $2; sub(/:$/, "", name); next }
    FILENAME ~ /usage$/ && /REG:/ {
        for (i = 1; i <= NF; i++) { split($i, p, ":"); use[name, p[1]] = p[2] }
        next
    }
    FILENAME ~ /sass$/ && /Function : / { name = $3; seen[name] = 1; next }
    FILENAME ~ /sass$/ && /^[ \t]*\/\*[0-9a-f]+\*\// {
        op = $0
        sub(/^[ \t]*\/\*[0-9a-f]+\*\/[ \t]*/, "", op)
        sub(/^@!?U?P[0-9T]+[ \t]+/, "", op)
        sub(/[ \t;].*/, "", op)
        if (op ~ /^(LDL|STL)/) spill[name]++
        if (op ~ /^LDG/) {
            width = op ~ /\.128/ ? 16 : op ~ /\.64/ ? 8 : op ~ /\.[US]16/ ? 2 : op ~ /\.[US]8/ ? 1 : 4
            load[name, width]++
        }
    }
    END {
        for (f in seen)
            printf "| %s | %d | %d | %d | %d | %d | %d | %d | %d | %d |\n", f, use[f, "REG"], use[f, "SHARED"], use[f, "STACK"],
                spill[f], load[f, 16], load[f, 8], load[f, 4], load[f, 2], load[f, 1]
    }
' "$work/usage" "$work/sass" | LC_ALL=C sort >"$work/table"
[ -s "$work/table" ] || {
    echo "static.sh: no code for $sm in $*" >&2
    exit 1
}
echo "| kernel ($sm) | registers | shared | stack | spills | 16 B | 8 B | 4 B | 2 B | 1 B |"
echo "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|"
cat "$work/table"
