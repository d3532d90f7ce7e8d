#!/usr/bin/env bash
# goldens.sh OLD_BINARY: before a change that is to leave every byte of output as it is, records what the binary of before does in
# the settings of TestGoldens (cmd/engine), runs them all again with the same binary, since what differs between two runs of one
# binary is no golden, and then compares this tree with it. Where this tree differs each place is shown with what the old binary
# gives. The recorded digests, cmd/engine/testdata/goldens.txt, belong into the change's first commit, where git says whether
# they differ from those that were there.
#
#   TWICE=0  do not run the old binary again
set -euo pipefail
[ $# = 1 ] || { sed -n 2,8p "$0"; exit 2; }
[ -x "$1" ] || { echo "goldens.sh: $1: no binary there" >&2; exit 1; }
SLUICE_GOLDEN_ENGINE=$(realpath "$1")
export SLUICE_GOLDEN_ENGINE
cd "$(dirname "$0")/../.."
file=cmd/engine/testdata/goldens.txt
record() { go test ./cmd/engine -count=1 -run '^TestGoldens$' -update >/dev/null; }
echo "recording $SLUICE_GOLDEN_ENGINE"
record
if [ "${TWICE:-1}" = 1 ]; then
    first=$(mktemp)
    trap 'rm -f "$first"' EXIT
    cp "$file" "$first"
    record
    cmp -s "$first" "$file" || { echo "goldens.sh: two runs of the old binary differ, which must be left out of the goldens (goldens_parts_test.go):" >&2
        diff "$first" "$file" >&2 || true; exit 1; }
fi
git --no-pager diff --stat -- "$file"
echo "comparing this tree"
go test ./cmd/engine -count=1 -run '^TestGoldens$'
