#!/bin/bash
# boot.sh: boot a real systemd, with the shipped units, in namespaces and on a root of its own, and run checks.sh in it.
#
#   tests/systemd/boot.sh BUILD_DIR
#
# A booted systemd cleans directories, writes kernel settings and moves processes between control groups, so nothing of
# the machine is left in its reach: pid, mount, ipc, net, uts and cgroup namespaces; an overlay over / whose upper layer
# is a tmpfs; tmpfs of its own on /run, /tmp, /var and /dev; /proc/sys and /sys read-only; its own branch of the cgroup
# tree as the root of all that it sees; and no capability to set the clock or load modules.  All units but those copied
# below are hidden, and all generators.
#
# The stages are this file called again: "outside" in a mount namespace of its own, which the machine never sees;
# "inside" as pid 1 of the new pid namespace, which becomes systemd.  What checks.sh printed ends up on stdout.
# Exit status: 0, 1, or 77 with the reason as the last line where the machine does not allow it.
set -uo pipefail

seconds=${CHUNKKV_BOOT_TIMEOUT:-90}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# what checks.sh and the units need of systemd's own
targets=(basic.target sysinit.target sockets.target shutdown.target umount.target final.target local-fs.target
        local-fs-pre.target paths.target slices.target timers.target swap.target multi-user.target)

skip() {
        echo "skipped: $*"
        exit 77
}

stage_main() {
        local build scratch rc program
        build=$(realpath -m "$1")
        [[ $(id -u) == 0 ]] || skip "booting a systemd needs root"
        [[ -x /lib/systemd/systemd ]] || skip "/lib/systemd/systemd is missing (Debian package systemd)"
        for program in unshare setpriv pivot_root systemd-sysusers systemctl; do
                command -v "$program" >/dev/null || skip "$program is missing"
        done
        for program in chunkkvd chunkkv-gate chunkkvctl; do
                [[ -x $build/$program ]] || skip "$build has no $program"
        done
        ! grep -qE 'lib[alt]san' <<<"$(ldd "$build/chunkkvd")" || skip "sanitizers need what the unit forbids"
        unshare --pid --mount --ipc --net --uts --cgroup --fork true 2>/dev/null || skip "unshare is not allowed here"

        scratch=$(mktemp -d)
        # expanded now: it is a local variable
        # shellcheck disable=SC2064
        trap "rmdir '$scratch'" EXIT
        # should this script be killed, what it started goes too
        setpriv --pdeathsig KILL unshare --mount "$here/boot.sh" outside "$build" "$scratch"
        rc=$?
        exit $rc
}

# fill_root ROOT BUILD: everything that needs no new namespace but the mount namespace
fill_root() {
        local root=$1 build=$2 path
        mkdir -p "$root/test/units" "$root/run"
        # what is installed, as make install does it; the programs by hand, because make might build
        make --no-print-directory -s -C "$here/../.." install-units DESTDIR="$root" PREFIX=/usr &&
                install -D -t "$root/usr/bin" "$build/chunkkvd" "$build/chunkkvctl" &&
                install -D -t "$root/usr/libexec/chunkkv" "$build/chunkkv-gate" &&
                install -t "$root/test" "$here/checks.sh" "$here/../data/needle-1k.safetensors" || return
        cp -t "$root/test/units" "$root"/usr/lib/systemd/system/chunkkvd@.* \
                "${targets[@]/#/$root/usr/lib/systemd/system/}" || return
        printf 'u %s -\n' engine stranger >"$root/usr/lib/sysusers.d/chunkkv-test.conf"
        echo 'm engine chunkkv' >>"$root/usr/lib/sysusers.d/chunkkv-test.conf"
        systemd-sysusers --root="$root" chunkkv.conf chunkkv-test.conf 2>/dev/null || return

        mount --bind "$root/test/units" "$root/usr/lib/systemd/system" || return
        for path in etc/systemd/system usr/lib/systemd/system-generators run tmp var dev; do
                mount -t tmpfs -o mode=0755 chunkkv-boot "$root/$path" || return
        done
        mkdir -p "$root/var/log" "$root/dev/pts" "$root/dev/shm"
        chmod 1777 "$root/tmp"
        for path in null zero full random urandom tty; do
                touch "$root/dev/$path" && mount --bind "/dev/$path" "$root/dev/$path" || return
        done
        ln -s /proc/self/fd "$root/dev/fd"
        # what no unit but one with a GPU may see
        mknod "$root/dev/nvidia0" c 1 3 || return

        mkdir "$root/etc/systemd/system/chunkkvd@.service.d"
        # no journal is there; and a test must not wait for 20 s
        cat >"$root/etc/systemd/system/chunkkvd@.service.d/test.conf" <<'END'
[Service]
StandardError=append:/test/chunkkvd.log
ExecStopPost=+/bin/bash -c 'echo "$SERVICE_RESULT $EXIT_STATUS" >>/test/ends'
WatchdogSec=2
Environment="CHUNKKVD_OPTIONS=--log-level debug"
END
        cat >"$root/etc/systemd/system/chunkkv-test.target" <<'END'
[Unit]
Wants=chunkkvd@cpu.socket chunkkv-test.service
END
        cat >"$root/etc/systemd/system/chunkkv-test.service" <<'END'
[Unit]
After=chunkkvd@cpu.socket
[Service]
Type=oneshot
ExecStart=/bin/bash /test/checks.sh
ExecStopPost=/bin/systemctl poweroff --force --force
StandardOutput=append:/test/result
StandardError=append:/test/result
END
}

stage_outside() {
        local build=$1 scratch=$2 root=$2/root branch rc line
        # from here on, no mount reaches the machine
        mount --make-rprivate / 2>/dev/null || skip "mounts are not allowed here"
        mount -t tmpfs -o mode=0755 chunkkv-boot "$scratch" || skip "a tmpfs is not allowed here"
        mkdir "$scratch"/{upper,work,root,cgroup}
        mount -t overlay -o "lowerdir=/,upperdir=$scratch/upper,workdir=$scratch/work" chunkkv-boot "$root" ||
                skip "an overlay over / is not allowed here"
        [[ -x $root/lib/systemd/systemd && -x $root/usr/bin/env ]] || skip "/ and /usr are not one file system"
        fill_root "$root" "$build" || {
                echo "FAIL: the root cannot be filled"
                exit 1
        }

        if ! mount -t cgroup2 none "$scratch/cgroup" || ! branch=$(mktemp -d "$scratch/cgroup/chunkkv-boot.XXXXXX"); then
                skip "a control group of one's own is not allowed here"
        fi
        # $$ would be the number of this shell
        # shellcheck disable=SC2016
        setpriv --pdeathsig KILL timeout --signal=KILL "$seconds" bash -c 'echo $$ >"$1/cgroup.procs" && shift && exec "$@"' - \
                "$branch" setpriv --pdeathsig KILL unshare --pid --mount --ipc --net --uts --cgroup --fork --kill-child \
                "$here/boot.sh" inside "$root" >"$scratch/boot.log" 2>&1
        rc=$?
        line=$(grep -s ' Checks: ' "$root/test/result")
        # the last process of a pid namespace may be a moment behind its first
        for _ in {1..50}; do
                find "$branch" -depth -type d -exec rmdir {} + 2>/dev/null && break
                sleep 0.1
        done
        [[ ! -d $branch ]] || {
                echo "FAIL: processes are left in $branch"
                line=
        }

        if [[ -e $root/test/unsupported ]]; then
                skip "$(<"$root/test/unsupported")"
        elif [[ $line != *"Checks: "* ]]; then
                echo "FAIL: the boot ended without a result (exit status $rc, at most $seconds s)"
                tail -n 50 "$scratch/boot.log" "$root/test/chunkkvd.log" "$root/test/result" 2>/dev/null
                exit 1
        fi
        [[ $line == *"Failures: 0,"* ]] || tail -n 60 "$root/test/chunkkvd.log"
        grep -vxF 'Powering off.' "$root/test/result"
        [[ $line == *"Failures: 0,"* ]]
}

stage_inside() {
        local root=$1
        cd "$root" || exit 1
        {
                mount -t proc proc proc && mount --bind proc/sys proc/sys && mount -o remount,ro,bind proc/sys &&
                        mount -t sysfs -o ro sysfs sys && mount -t cgroup2 cgroup2 sys/fs/cgroup &&
                        mount -t devpts -o newinstance,ptmxmode=0666 devpts dev/pts && ln -s pts/ptmx dev/ptmx
        } || {
                echo "proc, sysfs, cgroup2 or devpts cannot be mounted here" >test/unsupported
                exit 1
        }
        # the old root goes: nothing of the machine has a path in here any more
        # shellcheck disable=SC2016
        pivot_root . . && exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin container=chunkkv-test /bin/bash -c '
                umount -l . && cd / &&
                exec setpriv --bounding-set=-sys_time,-sys_module,-sys_rawio,-syslog,-mac_admin,-mac_override \
                        /lib/systemd/systemd --system --unit=chunkkv-test.target --log-target=null --show-status=no'
        exit 1
}

case ${1:-} in
outside | inside) "stage_$1" "${@:2}" ;;
*) stage_main "${1:?a build directory}" ;;
esac
