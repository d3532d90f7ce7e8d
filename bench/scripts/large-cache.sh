#!/usr/bin/env bash
# large-cache.sh MODEL.gguf [PROCESSES]: what an expert cache costs where it holds everything. Decode with a cache that is large
# enough and warm, beside decode with the experts in memory of our own (resident) and beside decode from the file's mapping
# (mmap), token for token the same, rounds by turns in one process. Prints the ratio of the times and its spread over the rounds
# of all processes; 2 % is what the cache may cost.
#
#   ENGINE   our binary                                 (default bin/engine)
#   TG       decoded tokens of a round                  (default 32)
#   ROUNDS   timed rounds in a process                  (default 7)
#   WARM     a prompt of so many tokens warms the cache (default 512)
#   THREADS  worker threads                             (default: processors)
#   ARGS     further flags for the engine, e.g. "--cache-policy lru"
#
# Memory for two copies of the experts is needed: the cache and the other one are both there. What else runs on the machine
# hits both alike, and the median of the ratios more than the ratio of the medians.
set -euo pipefail
export LC_ALL=C
[ $# -ge 1 ] && [ $# -le 2 ] || { sed -n 2,15p "$0"; exit 2; }
model=$1 processes=${2:-2}
[[ $processes =~ ^[1-9][0-9]*$ ]] || { echo "large-cache.sh: $processes processes: want a whole number of 1 or more" >&2; exit 2; }
engine=${ENGINE:-$(cd "$(dirname "$0")" && pwd)/../../bin/engine}
[ -x "$engine" ] || { echo "large-cache.sh: no engine at $engine: run make first" >&2; exit 1; }
tg=${TG:-32} rounds=${ROUNDS:-7} warm=${WARM:-512} threads=${THREADS:-$(nproc)}
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
# Slots have some padding: an eighth more than the file is room for all of them.
mib=$(awk -v b="$(stat -Lc %s "$model")" 'BEGIN {print int(b * 1.125 / 2 ^ 20) + 16}')

# pairs DOCUMENT: for each timed round of decode the seconds with the cache and without.
pairs() {
    awk -v cached="\"$mib\"," '
        $1 == "\"test\":" {decode = $2 ~ /^"tg/}
        $1 == "\"cache_mb\":" {with = $2 == cached}
        $1 == "\"seconds\":" {in_ = 1; n = 0; next}
        in_ && /\]/ {in_ = 0}
        in_ && decode {sub(/,$/, "", $1); s[with, n++] = $1}
        $1 == "\"variants\":" {exit}
        END {for (i = 0; (1, i) in s; i++) print s[1, i], s[0, i]}' "$1"
}
# missed DOCUMENT: bytes read from storage in the timed rounds of decode with the cache, a token.
missed() { awk -v cached="\"$mib\"," '$1 == "\"test\":" {on = $2 ~ /^"tg/} $1 == "\"cache_mb\":" {with = $2 == cached} on && with && $1 == "\"read_bytes_per_token\":" {sub(/,$/, "", $2); print $2; exit}' "$1"; }
median() { sort -g | awk '{v[NR] = $1} END {if (NR) printf "%.6g\n", NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2}'; }

echo "model $(basename "$model"), cache of $mib MiB, $threads threads, $processes processes of $rounds rounds of $tg tokens; load $(cut -d' ' -f1 /proc/loadavg)"
for ((p = 1; p <= processes; p++)); do
    for other in resident mmap; do
        dense=anon
        [ $other = resident ] || dense=mmap
        # shellcheck disable=SC2086
        "$engine" bench -m "$model" --pp "$warm" --tg "$tg" --repeat "$rounds" --warmup 2 --seed "$p" -t "$threads" --dense $dense --cache-mb "$mib,0" --json ${ARGS:-} >"$out/json" 2>"$out/err" ||
            { echo "large-cache.sh: failed:" >&2; tail -3 "$out/err" >&2; exit 1; }
        pairs "$out/json" >"$out/pairs"
        [ "$(wc -l <"$out/pairs")" = "$rounds" ] || { echo "large-cache.sh: $(wc -l <"$out/pairs") rounds in the document, want $rounds" >&2; exit 1; }
        cat "$out/pairs" >>"$out/$other"
        missed "$out/json" >>"$out/missed"
        printf 'process %d: cache against %-9s %s of the time (%s MB read a token in the timed rounds)\n' "$p" "$other:" \
            "$(awk '{print $1 / $2}' "$out/pairs" | median)" "$(awk "BEGIN {printf \"%.3f\", $(missed "$out/json") / 1e6}")"
    done
done
echo
for other in resident mmap; do
    awk '{print $1 / $2}' "$out/$other" | sort -g | awk -v other="$other" '{v[NR] = $1}
        END {m = NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2
            printf "cache against %-9s costs %+.2f %% (median of %d rounds; half of them %+.2f to %+.2f, all %+.2f to %+.2f)\n", other ":", 100 * (m - 1), NR,
                100 * (v[int(NR / 4) + 1] - 1), 100 * (v[NR - int(NR / 4)] - 1), 100 * (v[1] - 1), 100 * (v[NR] - 1)}'
done
awk '{if ($1 > m) m = $1} END {if (m > 0) printf "note: up to %.3f MB a token were still read: a longer WARM fills the cache\n", m / 1e6}' "$out/missed"
