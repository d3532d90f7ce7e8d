#!/usr/bin/env bash
# What the op recorder costs a decode step: BenchmarkRecorder (engine/ops_test.go), which decodes the same tokens without and
# with it, by turns, token by token. Prints the cost for one worker thread and for two, and exits 1 when the median over the
# rounds, by the first deciles, is above LIMIT percent. The demo model is the hard case: its ops are short.
#
#   bench/scripts/record-cost.sh [ROUNDS]        # default 5; about 2 s a round
#   TOKENS=8192 LIMIT=3 bench/scripts/record-cost.sh 10
set -euo pipefail
cd "$(dirname "$0")/../.."

rounds=${1:-5}
tokens=${TOKENS:-4096}
limit=${LIMIT:-3}
[[ $rounds =~ ^[1-9][0-9]*$ && $tokens =~ ^[1-9][0-9]*$ ]] || {
    echo "record-cost.sh: rounds $rounds, tokens $tokens: want 1 or more" >&2
    exit 2
}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
go test -c -o "$dir/engine.test" ./engine
(cd engine && "$dir/engine.test" -test.run '^$' -test.bench '^BenchmarkRecorder$' -test.benchtime "${tokens}x" -test.count "$rounds") |
    tee "$dir/run.txt" | grep '^Benchmark'
echo "commit $(git rev-parse --short HEAD 2>/dev/null || echo unknown), $rounds rounds of $tokens tokens, load $(cut -d' ' -f1 /proc/loadavg)"
worst=0
for threads in 1 2; do
    for by in decile median; do
        grep "/threads=$threads[^0-9]" "$dir/run.txt" |
            awk -v unit="cost-$by-%" '{ for (i = 2; i <= NF; i++) if ($i == unit) print $(i-1) }' | sort -g >"$dir/cost"
        mid=$(awk '{ c[NR] = $1 } END { print NR % 2 ? c[(NR+1)/2] : (c[NR/2] + c[NR/2+1]) / 2 }' "$dir/cost")
        printf '%d threads, by the %s: median %+.2f %%, from %+.2f to %+.2f %%\n' "$threads" "$by" "$mid" "$(head -1 "$dir/cost")" "$(tail -1 "$dir/cost")"
        [ "$by" = median ] || worst=$(awk -v a="$worst" -v b="$mid" 'BEGIN { print (b > a ? b : a) }')
    done
done
awk -v w="$worst" -v l="$limit" 'BEGIN { printf "cost: %.2f %% (limit %g %%)\n", w, l; exit w > l }'
