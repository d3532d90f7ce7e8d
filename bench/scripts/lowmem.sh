#!/usr/bin/env bash
# lowmem.sh MODEL.gguf [ROUNDS]: a model that is larger than memory: ours and llama.cpp (mmap), each in a process of its own
# in a group whose memory is a share of the file, taking turns on one disk. Prints medians, ratios and spread, and for ours
# bytes read per token, hit rate, the share of the disk's bandwidth, the two limits of decode, and p99/median of decode steps.
#
#   ENGINE            our binary                             (default bin/engine)
#   SLUICE_PEER, SLUICE_PEER_LIBS   llama-peer and the folder of its libraries; unset: ours alone
#   FRACTION          memory, as a share of the file         (default 0.45)
#   READAHEAD         KiB that a page fault reads            (default 128: a fair setting for mmap)
#   PP, TG            prompt and decode lengths; PP=0: none  (default 512, 64)
#   THREADS           of both                                (default: processors)
#   ARGS              further flags for ours, e.g. "--drop-cold-experts 0.75"
#   RESIDENT          1: measure decode without the limit too, for the limits (default 1)
#   WORK              folder for the disk image, a little larger than the model (default: the temporary folder)
#
# The file is copied into a file system of its own on a loop device, because readahead belongs to a device and nothing else on
# the machine should change. Needs root, a memory controller (version 1 or 2) and loop devices; without them it says so and
# ends with 77. The group, the device and the image are removed at the end.
set -euo pipefail
export LC_ALL=C
[ $# -ge 1 ] || { sed -n 2,19p "$0"; exit 2; }
model=$1 rounds=${2:-5}
[[ $rounds =~ ^[1-9][0-9]*$ ]] || { echo "lowmem.sh: $rounds rounds: want a whole number of 1 or more" >&2; exit 2; }
here=$(cd "$(dirname "$0")" && pwd)
engine=$(realpath "${ENGINE:-$here/../../bin/engine}")
fraction=${FRACTION:-0.45} readahead=${READAHEAD:-128} pp=${PP:-512} tg=${TG:-64} threads=${THREADS:-$(nproc)}
peer=${SLUICE_PEER:-} libs=${SLUICE_PEER_LIBS:-}
skip() { echo "lowmem.sh: skipped: $*" >&2; exit 77; }
[ -x "$engine" ] || { echo "lowmem.sh: no engine at $engine: run make first" >&2; exit 1; }
[ "$(id -u)" = 0 ] || skip "only root can limit memory and set up a loop device"
for tool in losetup mkfs.ext4 mount; do command -v "$tool" >/dev/null || skip "there is no $tool"; done

work=$(mktemp -d "${WORK:-${TMPDIR:-/tmp}}/lowmem.XXXXXX")
group='' device='' mounted=''
cleanup() {
    set +e
    [ -z "$mounted" ] || umount "$work/disk"
    [ -z "$device" ] || losetup -d "$device"
    if [ -n "$group" ]; then for _ in $(seq 50); do rmdir "$group" 2>/dev/null && break; sleep 0.1; done; fi
    rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

# The group. Version 1: below our own. Version 2: below the root, as a group that holds processes can have no children
# with a controller.
v1=$(awk '$3 == "cgroup" && $4 ~ /(^|,)memory(,|$)/ {print $2; exit}' /proc/mounts)
v2=$(awk '$3 == "cgroup2" {print $2; exit}' /proc/mounts)
bytes=$(stat -c %s "$model")
limit=$(awk -v b="$bytes" -v f="$fraction" 'BEGIN {printf "%d", int(b * f / 4096) * 4096}')
if [ -n "$v1" ]; then
    group=$v1$(awk -F: '$2 ~ /(^|,)memory(,|$)/ {print $3; exit}' /proc/self/cgroup)/lowmem-$$
    mkdir "$group" 2>/dev/null || { group=''; skip "cannot make a memory group below $v1"; }
    echo "$limit" >"$group/memory.limit_in_bytes"
    echo 0 >"$group/memory.swappiness"
    peak=memory.max_usage_in_bytes hits=memory.failcnt
elif [ -n "$v2" ] && grep -qw memory "$v2/cgroup.controllers"; then
    echo +memory >"$v2/cgroup.subtree_control" 2>/dev/null || skip "cannot hand on the memory controller of $v2"
    group=$v2/lowmem-$$
    mkdir "$group" 2>/dev/null || { group=''; skip "cannot make a memory group below $v2"; }
    echo "$limit" >"$group/memory.max"
    [ ! -e "$group/memory.swap.max" ] || echo 0 >"$group/memory.swap.max"
    peak=memory.peak hits=memory.events
else
    skip "no memory controller is mounted"
fi

# The disk.
truncate -s $(((bytes + bytes / 32 + (64 << 20)) / 1048576 * 1048576)) "$work/image"
mkfs.ext4 -q -F -m 0 -O ^has_journal "$work/image"
device=$(losetup --find --show --direct-io=on "$work/image" 2>"$work/losetup") || { device=''; skip "no loop device: $(cat "$work/losetup")"; }
echo "$readahead" >"/sys/block/${device##*/}/queue/read_ahead_kb"
mkdir "$work/disk"
mount "$device" "$work/disk" || skip "cannot mount $device"
mounted=1
file=$work/disk/model.gguf
cp "$model" "$file"
sync "$file"

# within NAME COMMAND...: one process in the group, from a cold page cache, which counts against whoever filled it.
within() {
    local name=$1
    shift
    dd if="$file" iflag=nocache count=0 status=none
    [ "$peak" != memory.max_usage_in_bytes ] || echo 0 >"$group/$peak"
    bash -c 'echo $$ >"$1/cgroup.procs"; shift; exec "$@"' _ "$group" "$@" >"$work/$name" 2>"$work/$name.err" ||
        { echo "lowmem.sh: $name failed:" >&2; tail -5 "$work/$name.err" >&2; exit 1; }
    cat "$group/$peak" >"$work/$name.peak" 2>/dev/null || echo 0 >"$work/$name.peak"
}
tests() { [ "$pp" = 0 ] && echo "" || echo "$pp"; }
ours() {
    # shellcheck disable=SC2086
    within "ours.$1" "$engine" bench -m "$file" --pp "$(tests)" --tg "$tg" --repeat 1 --seed "$1" -t "$threads" -c $((pp > tg ? pp : tg)) --json --steps-csv "$work/steps.$1" ${ARGS:-}
}
theirs() {
    within "theirs.$1" "$peer" --libs "$libs" --model "$file" --load mmap --repack 0 --prompt-tokens "$pp" --gen-tokens "$tg" --repeat 1 --feed random --threads "$threads"
}
# Of ours: the value of a key in the result of a test; anywhere in the document; a sum of decode steps.
result() { awk -v t="\"$2\"" -v k="\"$3\":" '$1 == "\"test\":" {on = index($2, t) == 1} on && $1 == k {sub(/,$/, "", $2); print $2; exit}' "$1"; }
anywhere() { awk -v k="\"$2\":" '$1 == k {sub(/,$/, "", $2); print $2; exit}' "$1"; }
of_peer() { grep -o "\"$2\":[0-9.]*" "$1" | head -1 | cut -d: -f2; }
median() { sort -g | awk '{v[NR] = $1} END {if (NR) printf "%.6g\n", NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2}'; }
spread() { sort -g | awk 'NR == 1 {a = $1} {b = $1} END {printf "%.4g..%.4g", a, b}'; }
# The decode steps of the timed round: the last TG. Prints median, p99 and largest in ms, bytes read and hits and misses, and
# the shares of waiting and computing.
steps() {
    grep -v '^#' "$1" | awk -F, 'NR == 1 {for (i = 1; i <= NF; i++) c[$i] = i; next}
        $c["decode"] == 1 {print $c["wall_us"], $c["bytes_read"], $c["hits"], $c["misses"], $c["io_wait_us"], $c["compute_us"], $c["dropped"], $c["major_faults"]}' | tail -n "$tg" |
        sort -g | awk '{w[NR] = $1; wall += $1; b += $2; h += $3; m += $4; io += $5; c += $6; d += $7; f += $8}
            END {p = int(0.99 * NR + 0.999999); printf "%.3f %.3f %.3f %d %d %d %.4f %.4f %d %d\n", w[int((NR + 1) / 2)] / 1e3, w[p] / 1e3, w[NR] / 1e3, b / NR, h, m, io / wall, c / wall, d, f}'
}

echo "model $(basename "$model"): $bytes bytes; limit $limit ($fraction); readahead $readahead KiB on $device; $threads threads; load $(cut -d' ' -f1 /proc/loadavg)"
"$engine" bench --probe-io "$file" --json >"$work/probe"
disk=$(awk '$1 == "\"bytes_per_second\":" {sub(/,$/, "", $2); if ($2 > m) m = $2} END {printf "%.0f", m}' "$work/probe")
resident=0
if [ "${RESIDENT:-1}" = 1 ]; then
    "$engine" bench -m "$file" --pp "" --tg "$tg" --repeat 1 --cache-mb 0 -t "$threads" -c $((pp > tg ? pp : tg)) --json >"$work/resident" 2>/dev/null && resident=$(result "$work/resident" "tg$tg" tps)
fi
[ -n "$peer" ] && [ -n "$libs" ] || { peer=''; echo "SLUICE_PEER and SLUICE_PEER_LIBS are not both set: ours alone"; }
for ((r = 1; r <= rounds; r++)); do
    # The order turns every round.
    if ((r % 2)); then ours "$r"; [ -z "$peer" ] || theirs "$r"; else [ -z "$peer" ] || theirs "$r"; ours "$r"; fi
    o=$work/ours.$r
    read -r mid p99 top read_ hit miss wait_ busy drop fault <<<"$(steps "$work/steps.$r")"
    tps=$(result "$o" "tg$tg" tps)
    echo "$tps" >>"$work/tg.ours"
    [ "$pp" = 0 ] || result "$o" "pp$pp" tps >>"$work/pp.ours"
    echo "$mid $p99 $top $read_ $hit $miss $wait_ $busy $tps $drop $fault" >>"$work/rows"
    echo "$(awk '/^memory: .* resident/ {print $NF * 2 ^ 20}' "$o.err") $(cat "$o.peak") $(anywhere "$o" budget_bytes)" >>"$work/memory"
    printf 'round %d: ours %.2f tokens/s, %.1f MB read a token, %.1f %% hits, steps %.1f ms (p99 %.1f, most %.1f), waiting %.0f %%' \
        "$r" "$tps" "$(awk "BEGIN {print $read_ / 1e6}")" "$(awk "BEGIN {print 100 * $hit / ($hit + $miss)}")" "$mid" "$p99" "$top" "$(awk "BEGIN {print 100 * $wait_}")"
    [ "$pp" = 0 ] || printf ', prefill %.1f' "$(tail -1 "$work/pp.ours")"
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
awk -v read="$read_" -v disk="$disk" -v tps="$tps" -v res="$resident" 'BEGIN {
    printf "disk     %.2f GB/s by direct reads; decode takes %.2f GB/s of it (%.0f %%): %.1f MB a token\n", disk / 1e9, read * tps / 1e9, 100 * read * tps / disk, read / 1e6
    io = read > 0 ? disk / read : 0
    printf "limits   bytes over bandwidth %.2f tokens/s, resident decode %s; ", io, (res > 0 ? sprintf("%.2f tokens/s", res) : "not measured")
    bound = io; what = "bytes over bandwidth"
    if (res > 0 && (io == 0 || res < io)) { bound = res; what = "resident decode" }
    if (bound > 0) printf "decode is at %.0f %% of %s\n", 100 * tps / bound, what; else printf "nothing was read\n" }'
awk '{h += $5; m += $6; d += $10; f += $11; w += $7; c += $8} END {printf "cache    %.1f %% hits, %d drops, %d major faults; %.0f %% of decode waits for reads, %.0f %% computes\n", 100 * h / (h + m), d, f, 100 * w / NR, 100 * c / NR}' "$work/rows"
printf 'steps    median %s ms, p99 %s ms, p99/median %s, most %s ms\n' "$(column 1)" "$(column 2)" "$(awk '{print $2 / $1}' "$work/rows" | median)" "$(awk '{print $3}' "$work/rows" | sort -g | tail -1)"
awk -v limit="$limit" '{if ($1 > p) p = $1; if ($2 > g) g = $2; b = $3} END {printf "memory   cache of %d MiB; the process held at most %d MiB, the group %d of %d MiB: %d below the limit\n", b / 2^20, p / 2^20, g / 2^20, limit / 2^20, (limit - g) / 2^20}' "$work/memory"
[ ! -r "$group/$hits" ] || echo "group    $hits: $(tr '\n' ' ' <"$group/$hits")"
