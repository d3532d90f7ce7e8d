#!/usr/bin/env bash
# compare.sh MODEL [ROUNDS]: ours and llama.cpp, interleaved on one file with equal threads: medians,
# spread, ratio of medians, and decode's share of the bandwidth measured in the same rounds.
#
#   ENGINE   our binary                                  (default bin/engine)
#   PEER     folder of llama-driver.sh's output          (default: built in a cache folder)
#   LLAMA_BENCH  a llama-bench to use instead of our driver
#   THREADS  threads of both                             (default: processors)
#   PP, TG   prompt and decode lengths                   (default 512, 64)
#   ARGS     further flags for ours, e.g. "--dense mmap"
#   PEER_ARGS further flags for the driver, e.g. "--mmap-only"
#
# Each round runs ours and the peer, one after the other, each in a process of its own, in an order that
# turns every round; ours then measures the machine's bandwidth. Times are after a warm-up.
set -euo pipefail
[ $# -ge 1 ] || { sed -n 2,16p "$0"; exit 2; }
model=$1 rounds=${2:-5}
here=$(cd "$(dirname "$0")" && pwd)
engine=${ENGINE:-$here/../../bin/engine}
threads=${THREADS:-$(nproc)} pp=${PP:-512} tg=${TG:-64}
[ -x "$engine" ] || { echo "compare: no engine at $engine: run make first" >&2; exit 1; }
if [ -z "${LLAMA_BENCH:-}" ]; then
    peer=${PEER:-${XDG_CACHE_HOME:-$HOME/.cache}/sluice/driver}
    [ -x "$peer/llama-speed" ] || bash "$here/llama-driver.sh" "$peer" >/dev/null
fi
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

ours() {
    # shellcheck disable=SC2086
    "$engine" bench -m "$model" --pp "$pp" --tg "$tg" --repeat 2 -t "$threads" --probe --json ${ARGS:-} >"$out/ours.$1" 2>"$out/ours.err.$1"
}
theirs() {
    if [ -n "${LLAMA_BENCH:-}" ]; then
        "$LLAMA_BENCH" -m "$model" -p "$pp" -n "$tg" -t "$threads" -r 2 -o json >"$out/theirs.$1" 2>/dev/null
        return
    fi
    # shellcheck disable=SC2086
    "$peer/llama-speed" --backends "$peer/backends" -m "$model" --pp "$pp" --tg "$tg" --repeat 2 -t "$threads" ${PEER_ARGS:-} >"$out/theirs.$1"
}
for ((r = 0; r < rounds; r++)); do
    if ((r % 2)); then theirs $r && ours $r; else ours $r && theirs $r; fi
    echo "round $((r + 1)) of $rounds" >&2
done
python3 "$here/compare.py" "$out" "$rounds" "$("$engine" gguf info "$model" --json | python3 -c 'import json,sys; print(json.load(sys.stdin)["metadata"]["general.architecture"])')"
grep -h '^weights:\|^kernels:\|^session:\|^experts:' "$out/ours.err.0"
