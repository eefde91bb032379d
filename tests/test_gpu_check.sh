#!/bin/bash
# The rows of gpu-check run on the stand-in for the driver: nothing wrong, and what only a GPU can say is skipped in words.
# Then what tests/gpu_check.sh makes of rows that are wrong, that hang, and of a report that cannot be written.
set -uo pipefail
build=${CHUNKKV_BUILD:-build/release}
cd "$(dirname "$0")/.." || exit 1
work=$(mktemp -d)
log=$work/log
trap 'rm -rf "$work"' EXIT
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
row golden 1
row peaks 0
row request 0
grep -q 'skipped: stand-in' "$log" || { echo "row request does not say that its times mean nothing" && bad=1; }
row ipc 0
row codes 2
row order 4
row busy 0
row users 0
row deaths 3
row vmm 3

# no driver, or no GPU, has a status of its own
for library in "$work/libcuda.so.1" "$build/fake/libcuda.so.1"; do
        FAKECUDA_FAIL=cuInit:0:100 "$build/gpu-check" --driver "$library" open >"$log" 2>&1
        rc=$?
        ((rc == 3)) || { echo "no GPU: status $rc" && cat "$log" && bad=1; }
done

# registers beside the bounds for the compiler of these images, where there is one
compiler=$("$build/chunkkvd" --version | grep -oE '(nvcc|nvrtc) [0-9.]+')
if grep -q "^${compiler:-none} .*ckv_k_move " <(tr -s ' ' <kernels/cuda/registers.txt); then
        for registers in 8:0 250:1; do
                FAKECUDA_REGISTERS=${registers%:*} "$build/gpu-check" --driver "$build/fake/libcuda.so.1" info >"$log" 2>&1
                rc=$?
                ((rc == ${registers#*:})) || { echo "${registers%:*} registers: status $rc" && bad=1; }
        done
fi

# the script itself, on programs that only print; limits of 15 s and more become 4 s
mkdir -p "$work/tests" "$work/build/gpu-check/lib" "$work/bin"
cp tests/gpu_check.sh "$work/tests"
echo 'int a;' >"$work/tests/a.c"
program() {
        printf '#!/bin/bash\n%s\n' "$2" >"$work/$1"
        chmod +x "$work/$1"
}
# what runs there, not here
# shellcheck disable=SC2016
program bin/timeout '[[ $1 == --kill* ]] || exec /usr/bin/timeout "$@"; exec /usr/bin/timeout "$1" 4 "${@:3}"'
program bin/python3 'exit 1'
program bin/strace ':'
program bin/ldd 'echo "libnowhere.so.9 => /x"'
program build/gpu-check/chunkkvd ''
program build/gpu-check/compress-cuda 'echo "an engine"'

# script STATUS PATTERN BODY ARGUMENT...: gpu-check does BODY; then the script ends so, and a line is so
script() {
        local status=$1 pattern=$2 rc

        program build/gpu-check/gpu-check "$3"
        shift 3
        PATH=$work/bin:$PATH "$work/tests/gpu_check.sh" "$@" >"$log" 2>&1
        rc=$?
        if ((rc != status)) || ! grep -qE "$pattern" "$log"; then
                echo "gpu_check.sh $*: status $rc, not $status, or no line $pattern"
                cat "$log"
                bad=1
        fi
}
script 2 'made of other sources' 'echo "x: ok"'
# what pack writes
sed -n '/^sources() {/,/^}/p' tests/gpu_check.sh >"$work/sources"
(cd "$work" && bash -c '. ./sources && echo "$(sources) abc1234"' >build/gpu-check/sources)
script 0 '^13 ok, 0 wrong' 'echo "x: ok"'
# shellcheck disable=SC2016
program bin/nvidia-cuda-mps-control '[[ ${1:-} == -d ]] || cat >>"$CUDA_MPS_LOG_DIRECTORY/control.log"'
# shellcheck disable=SC2016
program bin/strace '[[ $* != *"--sandbox on"* ]] || echo "7 openat(AT_FDCWD, \"/dev/x12\") = -1 EACCES (a)" >"${6}"'
script 0 '^quit$' 'echo "x: ok"'
for line in 'daemon and engine under MPS: they work' 'refused in the sandbox alone, and it works or not as above:' \
        'openat(AT_FDCWD, "/dev/xN") = -1 EACCES (a)'; do
        grep -qxF "$line" "$log" || { echo "no line: $line" && cat "$log" && bad=1; }
done
program bin/nvidia-cuda-mps-control 'exit 1'
script 0 '^skipped: no control daemon of MPS' 'echo "x: ok"'
touch "$work/build/gpu-check/lib/libnowhere.so.9"
script 0 '^skipped: not installed here, .*: libnowhere.so.9$' 'echo "x: ok"'
script 1 'ended at its limit.*: WRONG$' 'if [[ $* == *info ]]; then sleep 9; else echo "x: ok"; fi'
script 1 '^== 4 peaks' 'echo "x: WRONG"; exit 1'
script 1 '^0 ok, ' 'exit 0'
script 2 '^gpu_check: no GPU can be used here, so no report is made: why: so; a rehearsal: --stand-in$' 'echo "driver: why: so: WRONG"; exit 3'
(($(wc -l <"$log") == 1)) || { echo "more than one line where there is no GPU" && cat "$log" && bad=1; }
script 2 'no report can be written' 'echo "x: ok"' /proc/nope/r
script 2 '^usage' 'echo "x: ok"' --standin
script 2 '^usage' 'echo "x: ok"' one two
echo 'int b;' >"$work/tests/a.c"
script 2 'made of abc1234' 'echo "x: ok"'
exit $bad
