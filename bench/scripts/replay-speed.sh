#!/usr/bin/env bash
# Times `engine replay` against the format owner's Python script on one synthetic trace, in turn, and prints the ratio.
#   bench/scripts/replay-speed.sh SCRIPT [MB] [ROUNDS]
# SCRIPT: route-drop-replay.py, or a text file whose first line names it and whose rest is it. MB: size of the trace
# (default 60; Python needs some 30 times that in memory). Needs go and python3.
set -euo pipefail
script=${1:?"usage: $0 SCRIPT [MB] [ROUNDS]"}
mb=${2:-60}
rounds=${3:-3}
root=$(cd "$(dirname "$0")/../.." && pwd)
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

# The script without a first line that is a title, and the reader it imports.
awk 'NR == 1 && !/^#/ { next } { print }' "$script" >"$dir/replay.py"
cp "$root/dump/scripttest/trace_io.py" "$dir/"

cd "$root"
go build -o "$dir/engine" ./cmd/engine
go run ./bench/gen/cmd -trace "$dir/route.csv" -mb "$mb"
bytes=$(stat -c %s "$dir/route.csv")

seconds() { # runs its arguments and prints the wall seconds and the processor seconds
    local TIMEFORMAT='%R %U %S'
    { time "$@"; } 2>&1 | awk '{ print $1, $2 + $3 }'
}
python() { python3 "$dir/replay.py" "$dir/route.csv" >"$dir/python.txt"; }
ours() { "$dir/engine" replay "$dir/route.csv" >"$dir/ours.txt"; }

echo "machine: $(nproc) processors, $(awk -F': ' '/model name/ { print $2; exit }' /proc/cpuinfo), $(go version)"
for round in $(seq "$rounds"); do
    p=$(seconds python)
    e=$(seconds ours)
    awk -v p="$p" -v e="$e" -v n="$bytes" -v r="$round" 'BEGIN {
        split(p, P); split(e, E)
        printf "round %d: python %.2f s (%.2f s of processor), engine %.3f s (%.3f), %.0f MB/s, ratio %.1f by the clock, %.1f by the processor\n",
            r, P[1], P[2], E[1], E[2], n / E[1] / 1e6, P[1] / E[1], P[2] / E[2] }'
done
head -c "$(stat -c %s "$dir/python.txt")" "$dir/ours.txt" | diff -u "$dir/python.txt" - &&
    echo "figures: the engine's output begins with the script's, byte for byte"
