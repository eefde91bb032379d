#!/bin/bash
# The rows of gpu-check run on the stand-in for the driver: nothing wrong, and what only a GPU can say is skipped in words.
set -uo pipefail
build=${CHUNKKV_BUILD:-build/release}
cd "$(dirname "$0")/.." || exit 1
log=$(mktemp)
trap 'rm -f "$log"' EXIT
bad=0

# row NAME LEAST: a row that judges at least so many things, none of them wrong
row() {
        local good

        "$build/gpu-check" --driver "$build/fake/libcuda.so.1" "$1" >"$log" 2>&1
        rc=$?
        good=$(grep -c ': ok$' "$log")
        if ((rc != 0 || good < $2)) || grep -q 'WRONG$' "$log"; then
                echo "row $1: status $rc, $good ok of at least $2"
                cat "$log"
                bad=1
        fi
}

row info 12
row prims 0
row conform 1
row golden 2
row peaks 0
row request 0
grep -q 'skipped: stand-in' "$log" || { echo "row request does not say that its times mean nothing" && bad=1; }
row ipc 0
row codes 2
row order 1
row busy 0
row users 1
exit $bad
