#!/usr/bin/env bash
# lowmem.sh MODEL.gguf [ROUNDS]: a model that is larger than memory: ours and llama.cpp (mmap), each in a process of its own
# in a group whose memory is a share of the file, taking turns on one disk. Prints medians, ratios and spread, and for ours
# bytes read per token, hit rate, the share of the disk's bandwidth, the two limits of decode, and p99/median of decode steps.
#
#   ENGINE            our binary                             (default bin/engine)
#   SLUICE_PEER, SLUICE_PEER_LIBS   llama-peer and the folder of its libraries; unset: ours alone
#   FRACTION          memory, as a share of the file         (default 0.45)
#   READAHEAD         KiB that a page fault reads            (default 128: a fair setting for mmap)
#   DISK              bytes a second that the disk gives at most, e.g. 500e6: a slower one (default: all that it has)
#   PP, TG            prompt and decode lengths; PP=0: none  (default 512, 64)
#   THREADS           of both                                (default: processors)
#   ARGS              further flags for ours, e.g. "--drop-cold-experts 0.75"
#   ALSO              flags for a third run in every round, ours with these in place of ARGS, e.g. "--prefetch off"
#   RESIDENT          1: measure decode without the limit too, for the limits (default 1)
#   WORK              folder for the disk image, a little larger than the model (default: the temporary folder)
#
# The file is copied into a file system of its own on a loop device, because readahead belongs to a device and nothing else on
# the machine should change. Needs root, a memory controller (version 1 or 2) and loop devices; without them it says so and
# ends with 77. The group, the device and the image are removed at the end.
set -euo pipefail
export LC_ALL=C
[ $# -ge 1 ] || { sed -n 2,20p "$0"; exit 2; }
model=$1 rounds=${2:-5}
[[ $rounds =~ ^[1-9][0-9]*$ ]] || { echo "lowmem.sh: $rounds rounds: want a whole number of 1 or more" >&2; exit 2; }
here=$(cd "$(dirname "$0")" && pwd)
engine=$(realpath "${ENGINE:-$here/../../bin/engine}")
fraction=${FRACTION:-0.45} readahead=${READAHEAD:-128} pp=${PP:-512} tg=${TG:-64} threads=${THREADS:-$(nproc)}
peer=${SLUICE_PEER:-} libs=${SLUICE_PEER_LIBS:-}
self=lowmem.sh
# shellcheck source=bench/scripts/lowmem-group.sh
. "$here/lowmem-group.sh"
can_limit
leave_nothing
bytes=$(stat -c %s "$model")
limit_group "$(share_of "$model")"
own_disk "$model"
[ -z "${DISK:-}" ] || slow_disk "$(printf %.0f "$DISK")"

tests() { [ "$pp" = 0 ] && echo "" || echo "$pp"; }
own() { # NAME ROUND FLAGS
    # shellcheck disable=SC2086
    within "$1.$2" "$engine" bench -m "$file" --pp "$(tests)" --tg "$tg" --repeat 1 --seed "$2" -t "$threads" -c $((pp > tg ? pp : tg)) --json --steps-csv "$work/$1.steps.$2" $3
}
ours() { own ours "$1" "${ARGS:-}"; }
also() { own also "$1" "$ALSO"; }
theirs() {
    within "theirs.$1" "$peer" --libs "$libs" --model "$file" --load mmap --repack 0 --prompt-tokens "$pp" --gen-tokens "$tg" --repeat 1 --feed random --threads "$threads"
}
of_peer() { grep -o "\"$2\":[0-9.]*" "$1" | head -1 | cut -d: -f2; }

echo "model $(basename "$model"): $bytes bytes; limit $limit ($fraction); readahead $readahead KiB on $device; $threads threads; load $(cut -d' ' -f1 /proc/loadavg)"
resident=0
if [ "${RESIDENT:-1}" = 1 ]; then
    "$engine" bench -m "$file" --pp "" --tg "$tg" --repeat 1 --cache-mb 0 -t "$threads" -c $((pp > tg ? pp : tg)) --json >"$work/resident" 2>/dev/null && resident=$(result "$work/resident" "tg$tg" tps)
fi
[ -n "$peer" ] && [ -n "$libs" ] || { peer=''; echo "SLUICE_PEER and SLUICE_PEER_LIBS are not both set: ours alone"; }
for ((r = 1; r <= rounds; r++)); do
    # The order turns every round.
    if ((r % 2)); then order="ours also theirs"; else order="theirs also ours"; fi
    for run in $order; do
        case $run in
        also) [ -z "${ALSO:-}" ] || also "$r" ;;
        theirs) [ -z "$peer" ] || theirs "$r" ;;
        *) ours "$r" ;;
        esac
    done
    # In every round, as the disk is not the same at all times; the best of them counts.
    within "probe.$r" "$engine" bench --probe-io "$file" --json
    o=$work/ours.$r
    read -r mid p99 top read_ hit miss wait_ busy drop fault <<<"$(steps "$work/ours.steps.$r")"
    tps=$(result "$o" "tg$tg" tps)
    echo "$tps" >>"$work/tg.ours"
    [ "$pp" = 0 ] || result "$o" "pp$pp" tps >>"$work/pp.ours"
    echo "$mid $p99 $top $read_ $hit $miss $wait_ $busy $tps $drop $fault" >>"$work/rows"
    memory_of "ours.$r" >>"$work/memory"
    printf 'round %d: ours %.2f tokens/s, %.1f MB read a token, %.1f %% hits, steps %.1f ms (p99 %.1f, most %.1f), waiting %.0f %%' \
        "$r" "$tps" "$(awk "BEGIN {print $read_ / 1e6}")" "$(awk "BEGIN {print 100 * $hit / ($hit + $miss)}")" "$mid" "$p99" "$top" "$(awk "BEGIN {print 100 * $wait_}")"
    [ "$pp" = 0 ] || printf ', prefill %.1f' "$(tail -1 "$work/pp.ours")"
    if [ -n "${ALSO:-}" ]; then
        t=$(result "$work/also.$r" "tg$tg" tps)
        echo "$t" >>"$work/tg.also"
        awk "BEGIN {print $tps / $t}" >>"$work/also.ratio"
        read -r _ _ _ read_ hit miss _ <<<"$(steps "$work/also.steps.$r")"
        printf '; with %s %.2f (%.1f MB a token, %.1f %% hits)' "$ALSO" "$t" "$(awk "BEGIN {print $read_ / 1e6}")" "$(awk "BEGIN {print 100 * $hit / ($hit + $miss)}")"
        if [ "$pp" != 0 ]; then
            t=$(result "$work/also.$r" "pp$pp" tps)
            echo "$t" >>"$work/pp.also"
            awk "BEGIN {print $(tail -1 "$work/pp.ours") / $t}" >>"$work/also.pp.ratio"
            printf ', prefill %.1f' "$t"
        fi
    fi
    if [ -n "$peer" ]; then
        t=$(of_peer "$work/theirs.$r" tg_tps)
        echo "$t" >>"$work/tg.theirs"
        awk "BEGIN {print $tps / $t}" >>"$work/tg.ratio"
        printf '; llama.cpp %.2f (%.0f faults a token)' "$t" "$(of_peer "$work/theirs.$r" tg_major_faults_per_token)"
        if [ "$pp" != 0 ]; then
            t=$(of_peer "$work/theirs.$r" pp_tps)
            echo "$t" >>"$work/pp.theirs"
            awk "BEGIN {print $(tail -1 "$work/pp.ours") / $t}" >>"$work/pp.ratio"
            printf ', prefill %.1f' "$t"
        fi
    fi
    echo
done

disk=$(awk '$1 == "\"bytes_per_second\":" {sub(/,$/, "", $2); if ($2 > m) m = $2} END {printf "%.0f", m}' "$work"/probe.*)
column() { awk -v f="$1" '{print $f}' "$work/rows" | median; }
tps=$(median <"$work/tg.ours") read_=$(column 4)
echo
printf 'decode   ours %s tokens/s (%s)' "$tps" "$(spread <"$work/tg.ours")"
[ -z "$peer" ] || printf ', llama.cpp %s (%s), ratio %s (%s)' "$(median <"$work/tg.theirs")" "$(spread <"$work/tg.theirs")" "$(median <"$work/tg.ratio")" "$(spread <"$work/tg.ratio")"
echo
if [ "$pp" != 0 ]; then
    printf 'prefill  ours %s tokens/s (%s)' "$(median <"$work/pp.ours")" "$(spread <"$work/pp.ours")"
    [ -z "$peer" ] || printf ', llama.cpp %s (%s), ratio %s (%s)' "$(median <"$work/pp.theirs")" "$(spread <"$work/pp.theirs")" "$(median <"$work/pp.ratio")" "$(spread <"$work/pp.ratio")"
    echo
fi
if [ -n "${ALSO:-}" ]; then
    printf 'beside   %s: decode %s tokens/s (%s), ours is %s times as fast (%s)' "$ALSO" "$(median <"$work/tg.also")" "$(spread <"$work/tg.also")" "$(median <"$work/also.ratio")" "$(spread <"$work/also.ratio")"
    [ "$pp" = 0 ] || printf '; prefill %s (%s), %s times (%s)' "$(median <"$work/pp.also")" "$(spread <"$work/pp.also")" "$(median <"$work/also.pp.ratio")" "$(spread <"$work/also.pp.ratio")"
    echo
fi
awk -v read="$read_" -v disk="$disk" -v tps="$tps" -v res="$resident" 'BEGIN {
    printf "disk     %.2f GB/s by direct reads; decode takes %.2f GB/s of it (%.0f %%): %.1f MB a token\n", disk / 1e9, read * tps / 1e9, 100 * read * tps / disk, read / 1e6
    io = read > 0 ? disk / read : 0
    printf "limits   bytes over bandwidth %.2f tokens/s, resident decode %s; ", io, (res > 0 ? sprintf("%.2f tokens/s", res) : "not measured")
    bound = io; what = "bytes over bandwidth"
    if (res > 0 && (io == 0 || res < io)) { bound = res; what = "resident decode" }
    if (bound > 0) printf "decode is at %.0f %% of %s\n", 100 * tps / bound, what; else printf "nothing was read\n" }'
awk '{h += $5; m += $6; d += $10; f += $11; w += $7; c += $8} END {printf "cache    %.1f %% hits, %d drops, %d major faults; %.0f %% of decode waits for reads, %.0f %% computes\n", 100 * h / (h + m), d, f, 100 * w / NR, 100 * c / NR}' "$work/rows"
printf 'steps    median %s ms, p99 %s ms, p99/median %s, most %s ms\n' "$(column 1)" "$(column 2)" "$(awk '{print $2 / $1}' "$work/rows" | median)" "$(awk '{print $3}' "$work/rows" | sort -g | tail -1)"
memory_line "$work/memory"
