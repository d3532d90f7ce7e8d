#!/usr/bin/env bash
# What an armed selection dump costs a decode step: BenchmarkDumpCost (engine/dumpcost_test.go), which lets a session
# with the dump and one without take turns, COUNT times over for each routing arm. Prints median and spread of the cost in
# percent of decode time, and exits 1 when a median is above LIMIT percent.
#
#   bench/scripts/dump-cost.sh [COUNT]          # default 10; about 8 s a count
#   LIMIT=0.5 TURNS=4000 bench/scripts/dump-cost.sh 20
set -euo pipefail
cd "$(dirname "$0")/../.."

count=${1:-10}
turns=${TURNS:-1000}
limit=${LIMIT:-1}
if ! [[ $count =~ ^[1-9][0-9]*$ && $turns =~ ^[1-9][0-9]*$ ]]; then
    echo "dump-cost.sh: count $count, turns $turns: want whole numbers of 1 or more" >&2
    exit 2
fi
run=$(mktemp)
trap 'rm -f "$run"' EXIT

go test ./engine -run '^$' -bench '^BenchmarkDumpCost$' -benchtime "${turns}x" -count "$count" | tee "$run"
echo "commit $(git rev-parse --short HEAD 2>/dev/null || echo unknown), $count times $turns turns of 8 tokens"
# The name, then pairs of value and unit.
awk '/^Benchmark/ {
        for (i = 2; i < NF; i++) if ($(i + 1) == "cost-%") { split($1, part, "/"); print part[3], $i }
    }' "$run" | sort -k1,1 -k2,2g |
    awk -v limit="$limit" '
        function line() {
            m = n % 2 ? v[(n + 1) / 2] : (v[n / 2] + v[n / 2 + 1]) / 2
            printf "%s: the armed dump costs %+.2f %% of a decode step (median; from %+.2f to %+.2f %%), limit %g %%\n", name, m, v[1], v[n], limit
            bad += m > limit
        }
        $1 != name { if (n) line(); name = $1; n = 0 }
        { v[++n] = $2 }
        END { if (!n) { print "no result"; exit 1 } line(); exit bad > 0 }'
