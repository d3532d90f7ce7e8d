#!/usr/bin/env bash
# Times `engine profile` against the Python script that defined its report, on the same large file.
#
#   bench/scripts/profile-compare.sh SCRIPT.py [ENGINE] [MB] [ROUNDS]
#
# SCRIPT.py is profile_summary.py (a text file whose first line is its path is taken too). The file repeats the rows of
# bench/profile/testdata/dlv3_ops.csv.gz up to MB megabytes (100). Rounds (5) alternate, after one that warms up. Prints
# the smallest wall and processor time of each, their ratio and whether the two JSON files are the same; exit 1 when
# they are not. On a loaded machine the ratio of processor times is the one to trust.
set -euo pipefail

[ $# -ge 1 ] || { echo "usage: $0 SCRIPT.py [ENGINE] [MB] [ROUNDS]" >&2; exit 2; }
root=$(cd "$(dirname "$0")/../.." && pwd)
script=$(realpath "$1") engine=${2:-$root/bin/engine} mb=${3:-100} rounds=${4:-5}
engine=$(realpath "$engine")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

sed '1{/^#!/!d}' "$script" >summary.py
gzip -dc "$root/bench/profile/testdata/dlv3_ops.csv.gz" >once.csv
head -n 1 once.csv >big.csv
tail -n +2 once.csv >rows
for ((n = 0; n < (mb * 1000000 + $(stat -c %s rows) - 1) / $(stat -c %s rows); n++)); do cat rows; done >>big.csv

# timed NAME COMMAND...: appends "wall cpu" in seconds to NAME.times.
timed() {
    local name=$1 TIMEFORMAT='%R %U %S'
    shift
    { time "$@" >"$name.out" 2>"$name.err"; } 2>"$name.time" || { cat "$name.err" >&2; exit 1; }
    awk '{print $1, $2 + $3}' "$name.time" >>"$name.times"
}

for ((i = 0; i <= rounds; i++)); do
    timed script python3 summary.py big.csv script.json
    timed engine "$engine" profile big.csv engine.json
    ((i > 0)) || rm -f script.times engine.times
done

least() { awk -v f="$2" 'NR == 1 || $f < m {m = $f} END {print m}' "$1.times"; }
sw=$(least script 1) sc=$(least script 2) ew=$(least engine 1) ec=$(least engine 2)
echo "file: $(stat -c %s big.csv) bytes, $n times the reference rows; $(python3 --version); load $(cut -d' ' -f1 /proc/loadavg); least of $rounds rounds"
printf '%-10s %10s %10s\n' "" "wall s" "cpu s" script "$sw" "$sc" engine "$ew" "$ec"
awk -v a="$sw" -v b="$ew" -v c="$sc" -v d="$ec" 'BEGIN {printf "%-10s %9.1fx %9.1fx\n", "ratio", a / b, c / d}'
cmp script.json engine.json && echo "both JSON files are the same"
