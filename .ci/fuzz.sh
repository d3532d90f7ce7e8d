#!/usr/bin/env bash
# Runs every fuzz target of the module, one after the other. Called by `make fuzz` and .ci/run.
#   FUZZTIME    how long or how often each target runs (Go's -fuzztime: 10s, 100000x)
#   FUZZLIMIT   seconds after which one target is ended, its build included
#   FUZZBUDGET  seconds for all targets; those that do not fit are named, not run. 0: no limit
set -uo pipefail
cd "$(dirname "$0")/.."

time=${FUZZTIME:-10s}
limit=${FUZZLIMIT:-180}
budget=${FUZZBUDGET:-0}

log=$(mktemp)
trap 'rm -f "$log"' EXIT

packages=$(go list ./...) || exit 1
ran=0 failed=0 left=0
SECONDS=0
for package in $packages; do
    targets=$(go test -list '^Fuzz' "$package") || { echo "fuzz: $package does not build"; exit 1; }
    for target in $(grep '^Fuzz' <<<"$targets"); do
        if ((budget > 0 && SECONDS > budget)); then
            echo "fuzz: $package $target not run: the budget of ${budget}s is spent"
            left=$((left + 1))
            continue
        fi
        timeout "$limit" go test -run '^$' -fuzz "^$target\$" -fuzztime "$time" "$package" >"$log" 2>&1
        rc=$?
        # When the time is up during an execution, go test may report the deadline as a failure; without a
        # failing input there is nothing to repair. Goes once the oldest supported Go is free of it.
        if ((rc == 1)) && grep -q 'context deadline exceeded' "$log" && ! grep -q 'Failing input written' "$log"; then
            rc=0
        fi
        ran=$((ran + 1))
        if ((rc != 0)); then
            failed=$((failed + 1))
            echo "fuzz: $package $target failed, status $rc"
            cat "$log"
        else
            echo "fuzz: $package $target $(grep -o 'execs: [0-9]*' "$log" | tail -n 1)"
        fi
    done
done
echo "fuzz: $ran targets run, $failed failed, $left left out, ${SECONDS}s"
((failed == 0))
