#!/usr/bin/env bash
# cache-curve.sh MODEL.gguf MIB...: decode speed and hit rate by size of the expert cache. Each size is a process of its own, and
# what memory is free is looked at before it: one that does not fit, or fails, is a line of the result and not its end. The first
# pass over each size fills the cache and is not counted.
#
#   ENGINE   our binary                  (default bin/engine)
#   TG       decoded tokens              (default 32)
#   ARGS     further flags for the engine
set -euo pipefail
export LC_ALL=C
[ $# -ge 2 ] || { sed -n 2,8p "$0"; exit 2; }
model=$1
shift
engine=${ENGINE:-$(cd "$(dirname "$0")" && pwd)/../../bin/engine}
[ -x "$engine" ] || { echo "cache-curve.sh: no engine at $engine: run make first" >&2; exit 1; }
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
value() { awk -v k="\"$1\":" '$1 == k {sub(/,$/, "", $2); print $2; exit}' "$out/json"; }

printf '%8s %10s %12s %8s %14s %12s\n' MiB 'free MiB' tokens/s 'hits %' 'MB read/token' 'peak MiB'
for mib in "$@"; do
    printf '%8s %10d ' "$mib" "$(awk '$1 == "MemAvailable:" {print int($2 / 1024)}' /proc/meminfo)"
    # shellcheck disable=SC2086
    if "$engine" bench -m "$model" --pp "" --tg "${TG:-32}" --repeat 1 --cache-mb "$mib" --json ${ARGS:-} >"$out/json" 2>"$out/err"; then
        awk -v tps="$(value tps)" -v hits="$(value hit_rate)" -v read="$(value read_bytes_per_token)" -v peak="$(awk '/^memory: .* resident/ {print $NF}' "$out/err")" \
            'BEGIN {printf "%12.2f %8.1f %14.2f %12d\n", tps, 100 * hits, read / 1e6, peak}'
    else
        echo "failed: $(tail -n 1 "$out/err")"
    fi
done
