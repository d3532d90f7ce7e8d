#!/usr/bin/env bash
# oldnew.sh OLD NEW [MODEL.gguf...]: two binaries of ours by turns, for a change that is to cost no speed. In each round each of
# them decodes and runs a prompt on every model, decodes with 45 % of the first model's file as memory, and starts. Prints for
# each figure the medians, the median of the rounds' ratios new/old of the speeds with its 95 % interval (order statistics), and
# passes it when the interval reaches 1 and does not go below 0.96; exit 1 when one does not pass. Then instructions per
# decoded token, where the machine has a counter.
#
#   ROUNDS    rounds                                     (default 40; fewer than 6 give no verdict)
#   PP, TG    prompt and decode lengths                  (default 128, 48)
#   THREADS   of both                                    (default: processors)
#   ARGS      further flags for both, e.g. "--arm table"
#   PARTS     what is measured                           (default "resident streamed start instructions")
#   MODELS    folder of the models that are made         (default: a cache folder)
#   LIMIT     group: a memory group of 45 % of the file, as lowmem.sh has it; cache: --cache-mb at 45 % of the expert bytes
#             (default: group where it can be had, and else cache, which is said)
#   WORK      folder for what is written meanwhile: a copy of the first model with LIMIT=group (default: the temporary folder)
#
# Without models: the three of compare.sh with fewer layers and a smaller vocabulary, so that a process starts in a second: m1
# (olmoe-1b-7b as qwen3moe, q4_k_m, 4 layers), m2 and m3 (qwen3-30b-a3b-slim, q4_k_m and q8_0, 2 layers). A layer is of full size, so
# that what a layer costs beside its products has its true share. They are kept, 3.2 GB.
set -euo pipefail
export LC_ALL=C
[ $# -ge 2 ] || { sed -n 2,22p "$0"; exit 2; }
here=$(cd "$(dirname "$0")" && pwd)
old=$(realpath "$1") new=$(realpath "$2")
shift 2
for b in "$old" "$new"; do [ -x "$b" ] || { echo "oldnew.sh: $b: no binary there" >&2; exit 1; }; done
rounds=${ROUNDS:-40} pp=${PP:-128} tg=${TG:-48} threads=${THREADS:-$(nproc)} parts=${PARTS:-resident streamed start instructions}
[[ $rounds =~ ^[1-9][0-9]*$ ]] || { echo "oldnew.sh: ROUNDS=$rounds: want a whole number of 1 or more" >&2; exit 2; }
ctx=$((2 * (pp > tg ? pp : tg)))
self=oldnew.sh engine=$old fraction=0.45 readahead=128
# shellcheck source=bench/scripts/lowmem-group.sh
. "$here/lowmem-group.sh"
wanted() { [[ " $parts " == *" $1 "* ]]; }

models=("$@")
if [ ${#models[@]} = 0 ]; then
    folder=${MODELS:-${XDG_CACHE_HOME:-$HOME/.cache}/sluice/oldnew}
    mkdir -p "$folder"
    make_() { # NAME FLAGS...
        models+=("$folder/$1.gguf")
        [ -f "$folder/$1.gguf" ] || { "$old" gguf synth "$folder/$1.tmp" --vocab 8192 "${@:2}" >&2 && mv "$folder/$1.tmp" "$folder/$1.gguf"; }
    }
    make_ m1 --preset olmoe-1b-7b --arch qwen3moe --type q4_k_m --layers 4
    make_ m2 --preset qwen3-30b-a3b-slim --type q4_k_m --layers 2
    make_ m3 --preset qwen3-30b-a3b-slim --type q8_0 --layers 2
fi

# Whether a group can be had is tried in a shell of its own, as lowmem-group.sh ends the shell where it cannot.
limit_by=${LIMIT:-}
if wanted streamed && [ -z "$limit_by" ]; then
    # Of what a group allows the engine leaves 128 MiB and more free.
    if [ "$(share_of "${models[0]}")" -lt $((320 << 20)) ]; then limit_by=cache why="skipped: $(basename "${models[0]}") is too small for one"
    elif why=$( (can_limit && leave_nothing && limit_group $((1 << 30))) 2>&1); then limit_by=group; else limit_by=cache; fi
fi
leave_nothing
(cd "$here/../.." && go build -o "$work/paired" ./bench/paired/cmd)
first=${models[0]} cache=''
case $(wanted streamed && echo "$limit_by") in
group)
    can_limit
    limit_group "$(share_of "$first")"
    own_disk "$first"
    how="a memory group of $((limit >> 20)) MiB, $fraction of the file, on a loop device"
    ;;
cache)
    experts=$("$old" gguf info "$first" --json | awk '$1 == "\"name\":" {e = $2 ~ /ffn_(gate|up|down)(_exps|\.[0-9]+)\.weight/} e && $1 == "\"bytes\":" {sub(/,$/, "", $2); s += $2} END {printf "%.0f", s}')
    cache="--cache-force --cache-mb $(awk -v b="$experts" -v f="$fraction" 'BEGIN {m = int(b * f / 2 ^ 20); print (m > 1 ? m : 1)}')"
    how="no memory group${why:+ (${why#*skipped: })}: $cache, $fraction of the expert bytes, and the page cache holds what it likes"
    ;;
esac

# plain BINARY OUT FLAGS...: one process of engine bench.
plain() {
    local b=$1 out=$2
    shift 2
    # shellcheck disable=SC2086
    "$b" bench -t "$threads" --json "$@" ${ARGS:-} >"$work/$out" 2>"$work/$out.err" || { echo "oldnew.sh: $b bench $* failed:" >&2; tail -3 "$work/$out.err" >&2; exit 1; }
}
resident() { # BINARY WHICH MODEL NAME ROUND
    plain "$1" "$2" -m "$3" --pp "$pp" --tg "$tg" --repeat 1 --warmup 1 -c "$ctx" --seed "$5" --cache-mb 0
    echo "decode-$4 $(result "$work/$2" "tg$tg" tps)" >>"$work/$2.row"
    echo "prefill-$4 $(result "$work/$2" "pp$pp" tps)" >>"$work/$2.row"
}
# The round before the one that counts fills the cache.
streamed() { # BINARY WHICH ROUND
    if [ -z "$cache" ]; then
        # shellcheck disable=SC2086
        within "$2" "$1" bench -t "$threads" --json -m "$file" --pp "" --tg "$tg" --repeat 1 --warmup 1 -c "$ctx" --seed "$3" ${ARGS:-}
    else
        # shellcheck disable=SC2086
        plain "$1" "$2" -m "$first" --pp "" --tg "$tg" --repeat 1 --warmup 1 -c "$ctx" --seed "$3" $cache
    fi
    echo "streamed $(result "$work/$2" "tg$tg" tps)" >>"$work/$2.row"
}
# Starts a second, so that more is better here too; the fastest of three.
start() { # BINARY WHICH NAME FLAGS...
    local b=$1 w=$2 name=$3
    shift 3
    for _ in 1 2 3; do "$work/paired" -run "$b" run "$@" -t "$threads" -p a -n 1 --temp 0 2>/dev/null; done |
        sort -g | awk -v name="start-$name" 'NR == 1 {print name, 1 / $1}' >>"$work/$w.row"
}
one() { # BINARY WHICH ROUND
    : >"$work/$2.row"
    if wanted resident; then for m in "${models[@]}"; do resident "$1" "$2" "$m" "$(basename "$m" .gguf)" "$3"; done; fi
    if wanted streamed; then streamed "$1" "$2" "$3"; fi
    if wanted start; then
        start "$1" "$2" built-in
        start "$1" "$2" "$(basename "$first" .gguf)" -m "$first" --dense mmap --cache-mb 0
    fi
}

echo "old $old ($("$old" --version)), new $new ($("$new" --version)); $threads threads, $rounds rounds, prompt $pp, decode $tg; load $(cut -d' ' -f1 /proc/loadavg)"
[ -z "${how:-}" ] || echo "streamed: $how"
touch "$work/rounds"
for ((r = 1; r <= rounds; r++)); do
    # The order turns every round.
    if ((r % 2)); then one "$old" old $r; one "$new" new $r; else one "$new" new $r; one "$old" old $r; fi
    paste -d' ' "$work/old.row" "$work/new.row" | awk '{print $1, $2, $4}' >>"$work/rounds"
    echo "round $r of $rounds" >&2
done
rc=0
[ ! -s "$work/rounds" ] || "$work/paired" -table "$work/rounds" || rc=1

# Of one thread, as threads that wait for one another by spinning retire as many as there is time; the difference of two lengths is
# the tokens' alone.
instructions() { # BINARY MODEL
    local n=()
    for t in "$tg" $((3 * tg)); do
        n+=("$("$work/paired" -run "$1" bench -m "$2" -t 1 --pp "" --tg "$t" --repeat 1 --warmup 0 -c $((3 * tg)) --cache-mb 0 --json 2>"$work/count" | cut -d' ' -f2)")
    done
    [ "${n[0]}" != 0 ] || { grep -a '^paired:' "$work/count" >&2; return 1; }
    echo "${n[0]} ${n[1]}" | awk -v t=$((2 * tg)) '{printf "%.0f", ($2 - $1) / t}'
}
if wanted instructions; then
    for m in "${models[@]}"; do
        if ! a=$(instructions "$old" "$m") || ! b=$(instructions "$new" "$m"); then echo "instructions per token: not counted on this machine"; break; fi
        echo "instructions per token, $(basename "$m" .gguf), one thread: old $a, new $b, new/old $(awk "BEGIN {printf \"%.4f\", $b / $a}")"
    done
fi
exit $rc
