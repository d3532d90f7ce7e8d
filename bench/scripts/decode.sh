#!/usr/bin/env bash
# Decode speed over a list of models, with every figure beside the machine's limit. One CSV for each model goes to DIR, a
# table of all of them to standard output.
#
#   bench/scripts/decode.sh [-o DIR] [-e ENGINE] MODEL... [-- BENCH FLAGS]
#   bench/scripts/decode.sh -o out models/*.gguf -- --tg 64 --depth 0,4096 --repeat 10
#   bench/scripts/decode.sh -                       # a list of models on standard input, a path a line, # comments
#
# Without flags: --tg 64 --repeat 5 --probe. A model that fails is named at the end, and the exit is 1; the others are
# measured all the same.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
usage() { sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0" >&2; exit 2; }

dir=. engine=$root/bin/engine models=()
while (($#)); do
    case $1 in
    -o) dir=${2:?"-o: want a folder"}; shift 2 ;;
    -e) engine=${2:?"-e: want the program"}; shift 2 ;;
    --) shift; break ;;
    -) shift
        while IFS= read -r line; do
            line=${line%%#*}
            line=$(sed 's/^[[:space:]]*//; s/[[:space:]]*$//' <<<"$line")
            [ -z "$line" ] || models+=("$line")
        done ;;
    -*) usage ;;
    *) models+=("$1"); shift ;;
    esac
done
((${#models[@]})) || usage
(($#)) && flags=("$@") || flags=(--tg 64 --repeat 5 --probe)
[ -x "$engine" ] || { echo "decode.sh: $engine: no such program: build it, or name one with -e" >&2; exit 2; }
mkdir -p "$dir"

failed=() first=1
for model in "${models[@]}"; do
    name=$(basename "$model" .gguf)
    out=$dir/decode-$name.csv
    echo "== $model" >&2
    if ! "$engine" bench -m "$model" --pp "" --csv "${flags[@]}" >"$out.part"; then
        rm -f "$out.part"
        failed+=("$model")
        continue
    fi
    mv "$out.part" "$out"
    # Columns by their names, so that a new one in between does no harm.
    awk -F, -v model="$name" -v head="$first" '
        /^#/ { next }
        !n { for (i = 1; i <= NF; i++) at[$i] = i; n = NF
             if (head) printf "%-32s %-12s %10s %8s %10s %8s %10s %8s\n", "model", "test", "tokens/s", "spread%", "MB/token", "GB/s", "of limit%", "bound"
             next }
        { f = $at["limit_fraction"]
          printf "%-32s %-12s %10.2f %8.1f %10.2f %8.2f %10s %8s\n", model, $at["test"], $at["tokens_per_second"], $at["spread_percent"],
              $at["weight_bytes_per_token"] / 1e6, $at["bytes_per_second"] / 1e9, f == "" ? "-" : sprintf("%.1f", 100 * f), $at["bound"] }' "$out"
    first=0
done
for model in ${failed[@]+"${failed[@]}"}; do echo "decode.sh: $model: failed" >&2; done
((${#failed[@]} == 0))
