#!/usr/bin/env bash
# skew-drop.sh [MODEL.gguf [ROUNDS]]: what dropping gains on a model whose routers favour some experts, in memory for a share of
# the file: runs without and with a threshold by turns, each a process of its own in a group with that much memory. States the
# speed-up, what was dropped, and what fewer reads came of; then replays each run's own trace, and fails unless every drop and
# every byte read is reproduced.
#
#   ENGINE            our binary                             (default bin/engine)
#   FRAC              the threshold, a fraction of 1/k       (default 0.75)
#   SKEW              --router-skew of the model that is made where none is named: a qwen3moe model of olmoe-1b-7b's geometry,
#                     q4_k_m, 4.2 GB                         (default 1)
#   SYNTH             further flags for making it, e.g. "--layers 4"
#   FRACTION          memory, as a share of the file         (default 0.45)
#   READAHEAD         KiB that a page fault reads            (default 128)
#   TG                decoded tokens                         (default 64; as many before them warm up)
#   THREADS           worker threads                         (default: processors)
#   ARGS              further flags for the engine          (default --prefetch off: else the runs without a threshold, and they
#                     alone, would read ahead)
#   WORK              folder for model and disk image, twice the model's size (default: the temporary folder)
#
# All runs write a route trace, so that their times compare with each other alone. Needs what lowmem.sh needs, and ends with 77
# without it.
set -euo pipefail
export LC_ALL=C
[ $# -le 2 ] || { sed -n 2,21p "$0"; exit 2; }
model=${1:-} rounds=${2:-3}
[[ $rounds =~ ^[1-9][0-9]*$ ]] || { echo "skew-drop.sh: $rounds rounds: want a whole number of 1 or more" >&2; exit 2; }
here=$(cd "$(dirname "$0")" && pwd)
engine=$(realpath "${ENGINE:-$here/../../bin/engine}")
fraction=${FRACTION:-0.45} readahead=${READAHEAD:-128} tg=${TG:-64} threads=${THREADS:-$(nproc)} frac=${FRAC:-0.75}
self=skew-drop.sh
# shellcheck source=bench/scripts/lowmem-group.sh
. "$here/lowmem-group.sh"
can_limit
leave_nothing
if [ -z "$model" ]; then
    model=$work/skewed.gguf
    # shellcheck disable=SC2086
    "$engine" gguf synth "$model" --preset olmoe-1b-7b --arch qwen3moe --type q4_k_m --router-skew "${SKEW:-1}" ${SYNTH:-}
fi
limit_group "$(share_of "$model")"
own_disk "$model"

# one FRAC ROUND: a run, and the replay of its trace beside what it says of itself.
one() {
    local name=run.$1.$2 trace=$work/route.$1.$2 drops bytes line
    # shellcheck disable=SC2086
    within "$name" "$engine" bench -m "$file" --pp "" --tg "$tg" --repeat 1 --warmup 1 --seed "$2" -t "$threads" -c "$tg" \
        --drop-cold-experts "$1" --json --steps-csv "$work/steps.$1.$2" --route-trace "$trace" ${ARGS:---prefetch off}
    drops=$(inside "$work/$name" drop dropped) bytes=$(inside "$work/$name" io bytes_wanted)
    line="reproduced: $drops of $drops drops, $bytes of $bytes bytes"
    "$engine" replay "$trace" --frac "$1" >"$work/replay" 2>"$work/replay.err" && grep -qF " $line" "$work/replay" || {
        echo "skew-drop.sh: $name dropped $drops and read $bytes bytes, the replay of its trace says:" >&2
        grep -h "reproduced\|not held\|no recorded run\|engine:" "$work/replay" "$work/replay.err" >&2
        exit 1
    }
    read -r mid p99 top read_ hit miss wait_ busy drop _ <<<"$(steps "$work/steps.$1.$2")"
    tps=$(result "$work/$name" "tg$tg" tps)
    echo "$tps $read_ $hit $miss $(result "$work/$name" "tg$tg" dropped_share) $(result "$work/$name" "tg$tg" weight_lost) $mid $p99 $top" >>"$work/rows.$1"
    memory_of "$name" >>"$work/memory"
    printf 'round %d, threshold %-5s %.2f tokens/s, %.1f MB read a token, %.1f %% hits, steps %.1f ms (p99 %.1f, most %.1f), waiting %.0f %%; %s\n' \
        "$2" "$1:" "$tps" "$(awk "BEGIN {print $read_ / 1e6}")" "$(awk "BEGIN {print 100 * $hit / ($hit + $miss)}")" "$mid" "$p99" "$top" "$(awk "BEGIN {print 100 * $wait_}")" "$line"
    rm -f "$trace"
}

echo "model $(basename "$model"): $(stat -c %s "$model") bytes; limit $limit ($fraction); readahead $readahead KiB on $device; $threads threads; load $(cut -d' ' -f1 /proc/loadavg)"
for ((r = 1; r <= rounds; r++)); do
    # The order turns every round.
    if ((r % 2)); then one 0 "$r"; one "$frac" "$r"; else one "$frac" "$r"; one 0 "$r"; fi
done

column() { awk -v f="$2" '{print $f}' "$work/rows.$1" | median; }
echo
for f in 0 "$frac"; do
    awk -v f="$f" -v tps="$(column "$f" 1)" -v range="$(awk '{print $1}' "$work/rows.$f" | spread)" -v read="$(column "$f" 2)" -v drop="$(column "$f" 5)" -v lost="$(column "$f" 6)" \
        'BEGIN {printf "threshold %-5s %.2f tokens/s (%s), %.1f MB read a token, %.2f %% of the experts and %.2f %% of the weight dropped\n", f ":", tps, range, read / 1e6, 100 * drop, 100 * lost}'
    printf '                steps: median %s ms, p99 %s ms, p99/median %s, most %s ms\n' "$(column "$f" 7)" "$(column "$f" 8)" "$(awk '{print $8 / $7}' "$work/rows.$f" | median)" "$(awk '{print $9}' "$work/rows.$f" | sort -g | tail -1)"
done
# Of each round: the order within it does not matter, what the machine did meanwhile hits both.
paste -d' ' "$work/rows.0" "$work/rows.$frac" | awk '{print $10 / $1}' >"$work/ratio"
paste -d' ' "$work/rows.0" "$work/rows.$frac" | awk '{print ($2 > 0 ? 1 - $11 / $2 : 0)}' >"$work/saved"
printf 'speed-up %s (%s) with %s of the bytes not read; %d replays of %d runs reproduced every drop and every byte\n' \
    "$(median <"$work/ratio")" "$(spread <"$work/ratio")" "$(awk "BEGIN {printf \"%.1f %%\", 100 * $(median <"$work/saved")}")" $((2 * rounds)) $((2 * rounds))
memory_line "$work/memory"
