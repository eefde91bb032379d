#!/bin/bash
# checks.sh: what boot.sh runs inside the booted systemd, as root.  Prints a line for each failure, and ends with one in
# the form of the check library.
set -uo pipefail

prefix=/run/chunkkv/cpu/main
log=/test/chunkkvd.log
checks=0 failures=0

# expect WHAT COMMAND...: one check
expect() {
        local what=$1
        shift
        checks=$((checks + 1))
        "$@" && return
        failures=$((failures + 1))
        echo "FAIL: $what"
        return 1
}

# need WHAT COMMAND...: one check without which the rest makes no sense
need() {
        expect "$@" || exit
}

# as USER ARGUMENT...: chunkkvctl, called by a user
as() {
        setpriv --reuid "$1" --regid "$1" --init-groups chunkkvctl "${@:2}" --endpoint "$prefix"
}

prop() {
        systemctl show --value --property "$2" "$1"
}

is() {
        [[ $1 == "$2" ]] || ! echo "      is \"$1\", expected \"$2\""
}

# await SECONDS COMMAND...: until it succeeds
await() {
        local end=$((SECONDS + $1))
        shift
        until "$@"; do
                ((SECONDS < end)) || return
                sleep 0.1
        done
}

no_process() {
        ! pgrep --uid chunkkv >/dev/null
}

state_is() {
        [[ $(prop "$1" ActiveState) == "$2" ]]
}

restarted() {
        [[ $(prop chunkkvd@cpu NRestarts) == "$1" && $(prop chunkkvd@cpu ActiveState) == active ]]
}

status_of() {
        sed -n "s/^$2:[[:space:]]*//p" "/proc/$1/status" | tr '\t' ' '
}

# shellcheck disable=SC2317 # called by the trap
summary() {
        echo "$((100 * (checks - failures) / (checks ? checks : 1)))%: Checks: $checks, Failures: $failures, Errors: 0"
}
trap summary EXIT

# ---- the sockets are there, the daemon is not
expect "socket unit is active" is "$(prop chunkkvd@cpu.socket ActiveState)" active
expect "daemon does not run yet" is "$(prop chunkkvd@cpu ActiveState)" inactive
for name in main.zmq main.fd; do
        expect "$name: owner and mode" is "$(stat -c '%U:%G %a' /run/chunkkv/cpu/$name)" "chunkkv:chunkkv 660"
done

# ---- the first client starts it, and a stranger cannot
expect "stranger is refused" is "$(as stranger ping --timeout 1 >/dev/null 2>&1; echo $?)" 3
expect "stranger starts nothing" is "$(prop chunkkvd@cpu ActiveState)" inactive
need "first client is answered" as engine ping --timeout 20 >/dev/null
need "daemon is active" await 5 state_is chunkkvd@cpu active
expect "directory's mode" is "$(stat -c '%U:%G %a' /run/chunkkv/cpu)" "chunkkv:chunkkv 750"
expect "stranger is still refused" is "$(as stranger ping --timeout 1 >/dev/null 2>&1; echo $?)" 3
plan=$(as engine plan /test/needle-1k.safetensors --keep-ratio 0.2 --json | sed 's/.*\("kept":[^}]*\).*/\1/')
expect "a plan keeps rows" test "${#plan}" -gt 20

# ---- what the unit promises of its processes
core=$(prop chunkkvd@cpu MainPID)
gate=$(pgrep --parent "$core")
for pid in "$core" "$gate"; do
        expect "user of $pid" is "$(stat -c '%U:%G' "/proc/$pid")" chunkkv:chunkkv
        expect "capabilities of $pid" is "$(status_of "$pid" CapBnd)" 0000000000000000
        expect "no new privileges of $pid" is "$(status_of "$pid" NoNewPrivs)" 1
        expect "filter of system calls of $pid" is "$(status_of "$pid" Seccomp)" 2
        expect "$pid sees no GPU" test -e /dev/nvidia0 -a ! -e "/proc/$pid/root/dev/nvidia0"
        expect "$pid has no network" test "$(readlink "/proc/$pid/ns/net")" != "$(readlink /proc/self/ns/net)"
        expect "core dumps of $pid" is "$(sed -n 's/^Max core file size *\([0-9]*\) .*/\1/p' "/proc/$pid/limits")" 0
done
expect "user namespace is the machine's" is "$(readlink "/proc/$core/ns/user")" "$(readlink /proc/self/ns/user)"
expect "users are told apart" grep -q "uid=$(id -u engine)\b" "$log"
# lowering it takes a capability that a container's root may lack
if { echo -1 >/proc/self/oom_score_adj; } 2>/dev/null; then
        expect "oom score of the core" is "$(<"/proc/$core/oom_score_adj")" -500
fi
expect "oom score of the gate" is "$(<"/proc/$gate/oom_score_adj")" 500

# ---- the core is killed, and a client that knows nothing of it works again
before=$(stat -c %i /run/chunkkv/cpu/main.*)
systemctl kill --signal KILL --kill-whom main chunkkvd@cpu
expect "client right after the kill" as engine ping --timeout 20 >/dev/null
need "restarted once" await 10 restarted 1
expect "another process" test "$(prop chunkkvd@cpu MainPID)" != "$core"
expect "the old gate is gone" test ! -e "/proc/$gate"
expect "the sockets are the same" is "$(stat -c %i /run/chunkkv/cpu/main.*)" "$before"
again=$(as engine plan /test/needle-1k.safetensors --keep-ratio 0.2 --json | sed 's/.*\("kept":[^}]*\).*/\1/')
expect "the same plan" is "$again" "$plan"

# ---- reload
core=$(prop chunkkvd@cpu MainPID)
expect "reload succeeds" systemctl reload chunkkvd@cpu
expect "reload reaches the daemon" await 5 grep -q RELOADED "$log"
expect "active after the reload" await 5 state_is chunkkvd@cpu active
expect "the same process" is "$(prop chunkkvd@cpu MainPID)" "$core"
expect "client after the reload" as engine ping --timeout 5 >/dev/null

# ---- a core that stands still is ended by the watchdog
kill -STOP "$core"
expect "restarted by the watchdog" await 15 restarted 2
expect "ends so far" is "$(paste -s -d, /test/ends)" "signal KILL,watchdog ABRT"
expect "client after the watchdog" as engine ping --timeout 10 >/dev/null

# ---- stop, and start again by connecting
systemctl reset-failed chunkkvd@cpu
expect "stop succeeds" systemctl stop chunkkvd@cpu 2>/dev/null
expect "a good end" is "$(tail -n 1 /test/ends)" "success 0"
expect "it said so" test "$(grep -c ' STOPPED ' "$log")" = 1
expect "no process is left" no_process
expect "client after the stop" as engine ping --timeout 20 >/dev/null
expect "stopping the sockets stops it" systemctl stop chunkkvd@cpu.socket
expect "and all of it" await 10 no_process
expect "no path is left" test ! -e "$prefix.zmq" -a ! -e "$prefix.fd"
expect "nobody answers" is "$(as engine ping --timeout 1 >/dev/null 2>&1; echo $?)" 3

# ---- what cannot work is given up
for name in wrong broken; do
        mkdir -p "/etc/systemd/system/chunkkvd@$name.service.d"
done
printf '[Service]\nEnvironment="CHUNKKVD_OPTIONS=--rows 0"\n' >/etc/systemd/system/chunkkvd@wrong.service.d/zz.conf
printf '[Service]\nEnvironment="CHUNKKVD_OPTIONS=--gate /none"\n' >/etc/systemd/system/chunkkvd@broken.service.d/zz.conf
systemctl daemon-reload
systemctl start chunkkvd@wrong 2>/dev/null
expect "a wrong option is not tried again" await 5 state_is chunkkvd@wrong failed
expect "it failed for its option" is "$(prop chunkkvd@wrong ExecMainStatus) $(prop chunkkvd@wrong NRestarts)" "2 0"
systemctl start chunkkvd@broken 2>/dev/null
expect "the fifth failure is the last" await 20 state_is chunkkvd@broken failed
expect "clients are refused then" await 5 state_is chunkkvd@broken.socket failed
expect "five starts" is "$(prop chunkkvd@broken NRestarts)" 5
