#!/usr/bin/env bash
# What a change needs while it is being written, in under a minute on two cores: vet, gofmt, the source rules, and
# `go test -short` of the packages that changed and of those that use them. Called by `make quick`. What it leaves out
# (long tests, races, fuzzing, the device arm, most of the command line's) is what .ci/run is for.
#
#   ROOM        folders below which everything counts as changed: engine, moe/store, "kernels dump". Default: the packages
#               of the files that differ from BASE, those not committed yet included
#   BASE        a commit; default: origin/main, or where there is none main
#   TESTFLAGS   more flags of go test
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

die() { echo "quick: $*" >&2; exit 2; }
packages=$(go list ./...) || die "go list failed"
module=$(go list -m) || die "go list failed"

# package_of FILE: the package that a file belongs to, or nothing: the nearest folder above it that is one.
package_of() {
    local dir=$1
    while dir=$(dirname "$dir") && [ "$dir" != . ]; do
        grep -qxF "$module/$dir" <<<"$packages" && echo "$module/$dir" && return
    done
}

if [ -n "${ROOM:-}" ]; then
    from="ROOM=$ROOM"
    changed= tests=
    for room in ${ROOM//,/ }; do
        room=${room#./} room=${room%/}
        found=$(grep -E "^$module/${room//./\\.}(/|\$)" <<<"$packages") || die "ROOM=$room: no package of $module is there"
        changed+=$found$'\n'
    done
else
    base=
    for ref in ${BASE:-origin/main main}; do
        base=$(git merge-base "$ref" HEAD 2>/dev/null) && break
    done
    [ -n "$base" ] || die "nothing to compare with, neither ${BASE:-origin/main nor main}: say ROOM=folder"
    from="what differs from $(git rev-parse --short "$base")"
    files=$(git diff --name-only --no-renames "$base" -- && git ls-files --others --exclude-standard) || die "git failed"
    # Nothing uses what tests alone consist of: their packages count, those that use them do not.
    tests=$(grep '_test\.go$' <<<"$files" | while read -r file; do package_of "$file"; done)
    changed=$(grep -v '_test\.go$' <<<"$files" | while read -r file; do package_of "$file"; done)
fi
own=$(printf '%s\n' "$changed" "$tests" | sort -u | sed '/^$/d')

# Of each package: what it is built from, then what its tests import.
selected=$(go list -f '{{.ImportPath}} {{join .Deps " "}}|{{join .TestImports " "}} {{join .XTestImports " "}}' ./... |
    CHANGED=$changed OWN=$own awk '
        BEGIN { n = split(ENVIRON["CHANGED"], list, "\n"); for (i = 1; i <= n; i++) hit[list[i]] = 1
            n = split(ENVIRON["OWN"], list, "\n"); for (i = 1; i <= n; i++) own[list[i]] = 1 }
        {
            split($0, half, "|"); name[NR] = $1; tests[NR] = half[2]
            n = split(half[1], deps, " ")
            for (i = 1; i <= n; i++) if (deps[i] in hit) touched[$1] = 1
        }
        END {
            for (p = 1; p <= NR; p++) {
                use = name[p] in touched || name[p] in own
                n = split(tests[p], imports, " ")
                for (i = 1; i <= n; i++) if (imports[i] in touched) use = 1
                if (use) print name[p]
            }
        }') || die "go list failed"

command=$module/cmd/engine whole=$selected goldens=
# The command line sees nearly every package. Unless it changed itself its goldens stand for the rest of its tests.
if grep -qxF "$command" <<<"$selected" && ! grep -qxF "$command" <<<"$own"; then
    whole=$(grep -vxF "$command" <<<"$selected")
    goldens='|^TestGoldens$'
fi

echo "quick: $from: $(grep -c . <<<"$own") packages changed, $(grep -c . <<<"$selected") to test"
sed -n "s|^$module/|    |p" <<<"$own"
! grep -q "^$module/cuda" <<<"$own" || echo "quick: the device arm itself is built and tested by make cuda-test"

failed=0
step() {
    local start=$SECONDS
    "$@" || { failed=1; echo "quick: failed: ${*:1:3}"; }
    echo "-- $((SECONDS - start)) s"
}
format() {
    local out
    out=$(gofmt -l .) && [ -z "$out" ] || { echo "gofmt would change:"; echo "$out"; return 1; }
}
step format
# shellcheck disable=SC2086 # lists of packages and of flags
{
    step go vet $selected $command
    step go test -short -run "^TestLint$goldens" ${TESTFLAGS:-} ./cmd/engine
    [ -z "$whole" ] || step go test -short ${TESTFLAGS:-} $whole
}
((failed)) && verdict="something failed" || verdict="all passed"
echo "quick: $verdict, $SECONDS s"
exit "$failed"
