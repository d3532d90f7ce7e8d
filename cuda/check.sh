#!/bin/sh
# check.sh [-o DIR]: tests and measures the device arm on a machine with a GPU. It needs no Go and no CUDA toolkit, but the
# driver, a C library no older than the one it was built with, and the folder that `make cuda-check` makes, bin/check:
# copy that (or bin/check.tar.gz, unpacked) to the machine and run the check.sh in it, or run cuda/check.sh in a tree
# that has it.
#
# It prints one report in Markdown, in under five minutes, and leaves it in DIR (default: a new folder under the temporary
# one) as report.md beside the logs and the lines of the benchmarks, which benchstat reads.
#
#   STEPS        some of "tests tokens kernels sessions" (default: all of them)
#   TINY=1       small shapes and one round: proves the script, measures nothing. So it is on an emulated device
#   LAYERS       layers of the model of random weights that decode is timed with (default 16: 6.5 GB of disk and of device)
#   KEEP=1       leaves that model in DIR
#   LIMIT        seconds that all steps may take together (default 285, on an emulated device 1710); what is not done by
#                then ends and fails
#   SLUICE_BENCH_MODEL   a model file to time decode with instead
#
# Exit: 0 everything passed, 1 something failed (the report says what), 2 no device or wrong usage.
set -u
export LC_ALL=C

out=
while [ $# -gt 0 ]; do
    case $1 in
    -o)
        [ $# -ge 2 ] || { echo "check.sh: -o: want a folder" >&2; exit 2; }
        out=$2
        shift 2
        ;;
    *)
        sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0" >&2
        exit 2
        ;;
    esac
done

die() {
    echo "check.sh: $*" >&2
    exit 2
}

here=$(cd "$(dirname "$0")" && pwd)
pack=
for dir in "$here" "$here/../bin/check"; do
    [ ! -x "$dir/engine-cuda" ] || { pack=$(cd "$dir" && pwd) && break; }
done
out=${out:-$(mktemp -d "${TMPDIR:-/tmp}/sluice-check.XXXXXX")}
mkdir -p "$out" || exit 2
out=$(cd "$out" && pwd)
if [ -z "$pack" ] && [ -f "$here/../bin/check.tar.gz" ]; then
    unpacked=$(mktemp -d "${TMPDIR:-/tmp}/sluice-check.XXXXXX") || exit 2
    trap 'rm -rf "$unpacked"' EXIT
    tar -C "$unpacked" -xzf "$here/../bin/check.tar.gz" || die "bin/check.tar.gz does not unpack"
    pack=$unpacked/check
fi
[ -n "$pack" ] || die "no prebuilt files: neither engine-cuda in $here nor bin/check or bin/check.tar.gz beside it: make cuda-check builds them, where Go and a CUDA toolkit are"
engine=$pack/engine-cuda

# What stands in the way of a first start says so by itself: no libcuda.so.1, a C library that is too old.
if ! device=$("$engine" device cuda 2>"$out/device.log"); then
    cat "$out/device.log" >&2
    die "no device: see the lines above (the programs were built for $(tr '\n' ',' <"$pack/about.txt" | sed 's/,$//; s/,/, /g'))"
fi
# An emulated device has all the time that it needs.
case $device in
*emulated*) emulated=1 TINY=1 slow=6 ;;
*) emulated= slow=1 ;;
esac
rounds=20 decodes=5
if [ "${TINY:-0}" = 1 ]; then
    export SLUICE_TINY=1
    rounds=1 decodes=2
fi

steps=" ${STEPS:-tests tokens kernels sessions} "
for s in $steps; do
    case $s in
    tests | tokens | kernels | sessions) ;;
    *) die "STEPS: $s: want some of tests, tokens, kernels, sessions" ;;
    esac
done
wanted() { case $steps in *" $1 "*) return 0 ;; *) return 1 ;; esac; }

started=$(date +%s)
limit=${LIMIT:-$((285 * slow))}
failed=
elapsed() { echo $(($(date +%s) - started)); }

# step LIMIT NAME COMMAND...: runs it with its output in DIR/NAME.log, for LIMIT seconds at most and never beyond the whole
# limit.
step() {
    step_limit=$(($1 * slow)) step_name=$2
    shift 2
    step_left=$((limit - $(elapsed)))
    [ "$step_left" -lt "$step_limit" ] && step_limit=$step_left
    if [ "$step_limit" -lt 1 ]; then
        echo "no time left" >"$out/$step_name.log"
        failed="$failed $step_name"
        return 1
    fi
    echo "check.sh: $step_name ($(elapsed) s)" >&2
    timeout "$step_limit" "$@" >"$out/$step_name.log" 2>&1
    step_rc=$?
    [ $step_rc -ne 124 ] || echo "ended after $step_limit s" >>"$out/$step_name.log"
    [ $step_rc -eq 0 ] || failed="$failed $step_name"
    return $step_rc
}

# A test binary runs in its package's folder, as go test has it.
in_package='cd "$1" && shift && exec ./test "$@"'

# tests NAME PACKAGE LIMIT: one row of the table.
tests() {
    tests_began=$(elapsed)
    step "$3" "test-$1" sh -c "$in_package" sh "$pack/$2" -test.v -test.short
    case $? in
    0) verdict=pass ;;
    *) verdict=FAIL ;;
    esac
    awk -v name="$1" -v verdict="$verdict" -v seconds=$(($(elapsed) - tests_began)) '
        /^ *--- PASS/ { pass++ } /^ *--- FAIL/ { fail++ } /^ *--- SKIP/ { skip++ }
        END { printf "| %s | %s | %d | %d | %d | %d |\n", name, verdict, pass, fail, skip, seconds }' "$out/test-$1.log"
}

# greedy NAME FLAGS...: tokens of the built-in model, one a line, in DIR/NAME.ids; a single line "failed" otherwise.
greedy() {
    greedy_name=$1
    shift
    if step 60 "run-$greedy_name" "$engine" run "In the beginning" --temp 0 -n "$tokens" --ignore-eos --json "$@"; then
        awk '/"tokens": \[/ { on = 1; next } on && /\]/ { exit } on { gsub(/[ ,]/, ""); print }' "$out/run-$greedy_name.log" >"$out/$greedy_name.ids"
    else
        echo failed >"$out/$greedy_name.ids"
    fi
}

# same A B: how many tokens of B from the start on are those of A.
same() {
    awk 'NR == FNR { a[FNR] = $1; next } $1 != a[FNR] || $1 == "failed" { exit } { n++ } END { print n + 0 }' "$out/$1.ids" "$out/$2.ids"
}

# bench NAME LIMIT PACKAGE PATTERN TIMES
bench() {
    step "$2" "$1" sh -c "$in_package" sh "$pack/$3" -test.run '^$' -test.bench "$4" -test.benchtime "$5" -test.timeout 0
}

report_tests() {
    echo
    echo "## Tests"
    echo
    echo "| package | result | passed | failed | skipped | s |"
    echo "|---|---|---:|---:|---:|---:|"
    tests driver cuda/driver 20
    tests kernels cuda/kernels 60
    tests cuda cuda 90
}

report_tokens() {
    tokens=64
    [ "${TINY:-0}" != 1 ] || tokens=12
    greedy table --device cuda --arm table
    greedy host --device cuda --arm host
    greedy cpu --device cpu
    echo
    echo "## Tokens of the built-in model"
    echo
    echo "| compared with the device-table arm | same tokens from the start, of $tokens |"
    echo "|---|---:|"
    echo "| host arm | $(same table host) |"
    echo "| processor (may part at a near tie: the device quantises activations in its own blocks) | $(same table cpu) |"
    [ "$(same table host)" = "$tokens" ] || failed="$failed tokens-of-the-arms"
}

report_kernels() {
    bench kernel-bench 80 cuda/kernels "^BenchmarkCUDA(Copy|Kernel)$" "${rounds}x"
    echo
    echo "## Kernels"
    echo
    echo "Median of $rounds rounds, by events, L2 flushed before each. MB: what has to be moved at least. Of copy: by the rate of a copy within the device, read and written, which is the first row. The second is a launch that does nothing: no other can take less."
    echo
    echo "| kernel | µs | MB | GB/s | of copy % | GFLOP/s |"
    echo "|---|---:|---:|---:|---:|---:|"
    awk '/^BenchmarkCUDA/ && NF > 3 {
        name = $1; sub(/^[^\/]*\//, "", name); sub(/-[0-9]+$/, "", name); gsub(/\//, " ", name); sub(/^kernel=/, "", name)
        delete v
        for (i = 3; i < NF; i += 2) v[$(i + 1)] = $i
        printf "| %s | %.2f | %s | %s | %s | %s |\n", name, v["ns/op"] / 1000, cell(v, "MB", "%.3f"), cell(v, "GB/s", "%.1f"), cell(v, "%copy", "%.1f"), cell(v, "GFLOP/s", "%.0f")
    }
    function cell(v, unit, form) { return unit in v ? sprintf(form, v[unit]) : "" }' "$out/kernel-bench.log"
    skipped=$(grep -c '^ *--- SKIP' "$out/kernel-bench.log")
    [ "$skipped" = 0 ] || printf '\n%s shapes were left out, for want of device memory.\n' "$skipped"
}

report_sessions() {
    model=${SLUICE_BENCH_MODEL:-}
    if [ -z "$model" ]; then
        model=$out/synthetic.gguf
        if [ "${TINY:-0}" = 1 ]; then
            step 60 synth "$engine" gguf synth "$model" --preset small --layers 2 || model=
        else
            step 90 synth "$engine" gguf synth "$model" --preset qwen3-30b-a3b --layers "${LAYERS:-16}" || model=
        fi
    fi
    echo
    echo "## Prompt and decode"
    echo
    if [ -n "$model" ]; then
        what=$(basename "$model")
        [ -n "${SLUICE_BENCH_MODEL:-}" ] || what=$(tail -n 1 "$out/synth.log")
        export SLUICE_BENCH_MODEL="$model"
        bench session-bench 120 cuda '^BenchmarkCUDASession$' "${decodes}x"
        echo "$what. Median of $decodes rounds. It ends where a setting's tokens differ from the first one's."
        echo
        echo "| setting | prompt tokens/s | decode tokens/s | slowest round | launches a token | waits a token |"
        echo "|---|---:|---:|---:|---:|---:|"
        awk '/^BenchmarkCUDA/ && NF > 3 {
            name = $1; sub(/^[^\/]*\//, "", name); sub(/-[0-9]+$/, "", name); gsub(/\//, " ", name)
            delete v
            for (i = 3; i < NF; i += 2) v[$(i + 1)] = $i
            printf "| %s | %.1f | %.1f | %.1f | %.1f | %.1f |\n", name, v["pp-tok/s"], v["tg-tok/s"], v["tg-min-tok/s"], v["launches/token"], v["waits/token"]
        }' "$out/session-bench.log"
    else
        echo "No model: $(tail -n 1 "$out/synth.log")"
    fi
    [ "${KEEP:-0}" = 1 ] || rm -f "$out/synthetic.gguf"
}

# complaints LOG: of a Go test what the failing tests said, of anything else the end.
complaints() {
    awk '/^=== RUN/ { if ($3 !~ /\//) n = 0; running = $3; next }
        /_test\.go:[0-9]+: / || /^panic: / || /^emu: / { said[++n] = $0; next }
        /^--- FAIL/ { for (i = 1; i <= n; i++) print said[i]; print; any = 1; n = 0; next }
        /^ *--- / { n = 0; running = ""; next }
        NF { last[++m] = $0 }
        END {
            if (any) exit
            if (running) print "in " running
            for (i = 1; i <= n; i++) print said[i]
            for (i = m > 4 ? m - 4 : 1; i <= m; i++) print last[i]
        }' "$1" 2>/dev/null
}

report() {
    echo "# The device arm on $device"
    echo
    [ -z "$emulated" ] || echo "**An emulated device, tiny shapes: the tests count, the figures mean nothing.**
"
    [ -n "$emulated" ] || [ "${TINY:-0}" != 1 ] || echo "**TINY=1: tiny shapes, one round: the figures mean nothing.**
"
    echo "$(sed -n 's/^version //p' "$pack/about.txt"), kernels $(sed -n 's/^kernels //p' "$pack/about.txt"). $(date -u +%Y-%m-%d), $(nproc) processors ($(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1))."
    if [ -z "$emulated" ] && command -v nvidia-smi >/dev/null; then
        nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.max.sm,clocks.mem,power.limit,temperature.gpu,utilization.gpu --format=csv,noheader 2>/dev/null |
            sed 's/^/nvidia-smi before the start (name, driver, SM clock, its maximum, memory clock, power limit, temperature, use): /'
    fi

    ! wanted tests || report_tests
    ! wanted tokens || report_tokens
    ! wanted kernels || report_kernels
    ! wanted sessions || report_sessions

    echo
    if [ -z "$failed" ]; then
        echo "Everything passed, in $(elapsed) s."
    else
        echo "FAILED:$failed, in $(elapsed) s. What they said:"
        for f in $failed; do
            echo
            echo '```'
            echo "$f"
            complaints "$out/$f.log" | head -n 30
            echo '```'
        done
    fi
}

report >"$out/report.md"
cat "$out/report.md"
echo "check.sh: report and logs are in $out" >&2
grep -q '^Everything passed' "$out/report.md"
