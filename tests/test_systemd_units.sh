#!/bin/bash
# test_systemd_units.sh: the shipped units as files: systemd can read them, and what `systemd-analyze security` says.
# The score goes from 0 (best) to 10; it is a bound against carelessness, not a goal.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
most=0.5        # of the shipped file
least=9.0       # of the same file without its hardening: below that, the measuring itself is broken
checks=0 failures=0

command -v systemd-analyze >/dev/null || { echo "skipped: systemd-analyze is missing (Debian package systemd)" && exit 77; }
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

expect() {
        local what=$1
        shift
        checks=$((checks + 1))
        "$@" && return
        failures=$((failures + 1))
        echo "FAIL: $what"
}

# score FILE: what systemd-analyze gives to this file, as chunkkvd@cpu.service
score() {
        mkdir -p "$scratch/score"
        cp "$1" "$scratch/score/chunkkvd@cpu.service"
        systemd-analyze security --offline=true "$scratch/score/chunkkvd@cpu.service" 2>/dev/null |
                sed -n 's/.*exposure level for [^:]*: \([0-9.]*\).*/\1/p'
}

# below A B: A <= B, numbers with a point
# shellcheck disable=SC2317 # called by expect
below() {
        awk -v a="$1" -v b="$2" 'BEGIN { exit !(a != "" && a + 0 <= b + 0) }'
}

# ---- installed, they name the programs where make install puts them
make --no-print-directory -s install-units DESTDIR="$scratch/root" PREFIX=/opt/kv
units=$scratch/root/opt/kv/lib/systemd/system
expect "the program is where it was installed" grep -q '^ExecStart=/opt/kv/bin/chunkkvd ' "$units/chunkkvd@.service"
expect "nothing is left of /usr/local" test "$(cat "$units"/* | grep -v '^#' | grep -c /usr/local)" = 0
expect "the gate may be executed" grep -q '^ExecPaths=.*/opt/kv/libexec/chunkkv\b' "$units/chunkkvd@.service"
expect "the user is declared" grep -q '^u chunkkv ' "$scratch/root/opt/kv/lib/sysusers.d/chunkkv.conf"

# ---- systemd reads them without a complaint; programs that exist here stand in for ours
mkdir "$scratch/verify"
cp "$units"/chunkkvd@.socket "$scratch/verify/chunkkvd@cpu.socket"
sed 's|^ExecStart=[^ ]*|ExecStart=/bin/true|' "$units/chunkkvd@.service" >"$scratch/verify/chunkkvd@cpu.service"
complaints=$(systemd-analyze verify --man=no --recursive-errors=no "$scratch"/verify/chunkkvd@cpu.* 2>&1)
expect "systemd-analyze verify: $complaints" test -z "$complaints"

# ---- the bound
shipped=$(score systemd/chunkkvd@.service)
expect "exposure is ${shipped:-unknown}, at most $most" below "$shipped" "$most"
sed -E '/^(Protect|Private|Restrict|SystemCall|Device|Capab|Ambient|NoNew|Lock|MemoryDeny|IPAddr|Proc|RemoveIPC|Keyring|UMask|User|Group|NoExec|ExecPaths)/d' \
        systemd/chunkkvd@.service >"$scratch/bare"
bare=$(score "$scratch/bare")
expect "exposure without hardening is ${bare:-unknown}, at least $least" below "$least" "$bare"

# ---- what must not be "improved"
expect "PrivateUsers=no" grep -qx 'PrivateUsers=no' systemd/chunkkvd@.service
expect "no device is allowed" test "$(grep -c '^DeviceAllow' systemd/chunkkvd@.service)" = 0
expect "TimeoutStopSec above --stop-timeout" test "$(sed -n 's/^TimeoutStopSec=//p' systemd/chunkkvd@.service)" -gt \
        "$(($(sed -n 's/^OPT(stop_timeout, COUNT, \([0-9]*\),.*/\1/p' daemon/options.def) + 5))"

echo "exposure of chunkkvd@.service: $shipped (0 best, 10 worst), without its hardening $bare"
echo "$((100 * (checks - failures) / checks))%: Checks: $checks, Failures: $failures, Errors: 0"
exit $((failures > 0))
