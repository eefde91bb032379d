#!/bin/bash
# gpu_check.sh: all that only a GPU can show, in one run of at most 480 seconds on a machine without a network.
#
#   tests/gpu_check.sh pack                     beforehand, where there is nvcc: build, and put into build/gpu-check what runs there
#   tests/gpu_check.sh [--stand-in] [REPORT]    run all rows; REPORT: build/gpu-check.txt
#
# Carry the repository and build/gpu-check (pack says how large both are, and fails above 64 MiB).  Where build/gpu-check
# is missing and there is nvcc, it is built first.  Rows are in the order of what matters most: if the time ends early,
# what was settled until then is in the report.  No row stops another, and one that hangs is WRONG.  --stand-in rehearses
# the run without a GPU.  A build/gpu-check of other sources than those that lie here is refused.
# The last line is the sum; the exit status is 1 if anything was WRONG or nothing was ok, and 2 if there is no report, as
# where there is no GPU.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
pack=build/gpu-check budget=480 most_mib=64

usage() {
        echo "usage: tests/gpu_check.sh pack | [--stand-in] [REPORT]" >&2
        exit 2
}

# a number for all sources of the programs, without git, which the other machine may lack
sources() {
        find Makefile base proto ipc kernels daemon clients/c examples tests -type f \
                \( -name Makefile -o -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' -o -name '*.cpp' -o -name '*.inc' -o -name '*.def' \
                -o -name '*.mk' -o -name '*.proto' \) -print0 2>/dev/null | LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum | cut -c1-16
}

pack_up() {
        local build=build/gpu-check-build programs=(gpu-check chunkkvd chunkkvd-standin chunkkv-gate compress-cuda) kib of

        of="$(sources) $(git describe --always --dirty --exclude='*' 2>/dev/null || echo 'a copy')"
        # the gate gets no LD_LIBRARY_PATH from the daemon, so programs know by themselves where their libraries lie
        make --no-print-directory O="$build" CUDA=1 CUDA_COMPILER=nvcc WERROR=1 -j"$(nproc)" \
                LDFLAGS="-Wl,--disable-new-dtags,-rpath,'\$\$ORIGIN/lib'" all "${programs[@]/#/$build/}" \
                "$build/fake/libcuda.so.1" build/cuda/gpu-probes.fatbin >/dev/null || return 1
        rm -rf "$pack" && mkdir -p "$pack/fake" "$pack/lib" || return 1
        cp "${programs[@]/#/$build/}" build/cuda/gpu-probes.fatbin "$pack" && cp "$build/fake/libcuda.so.1" "$pack/fake" || return 1
        # what tells which path the sandbox refuses; a bare machine has none
        if command -v strace >/dev/null; then cp -L "$(command -v strace)" "$pack" || return 1; fi
        strip --strip-debug "$pack"/chunkk* "$pack"/compress-cuda "$pack"/gpu-check "$pack"/fake/libcuda.so.1
        # libraries that a bare machine may lack; those of the compiler and of the C library it has in its own version
        for program in "$pack"/chunkk* "$pack"/compress-cuda "$pack"/gpu-check "$pack"/strace*; do
                ldd "$program" | awk '$3 ~ /^\// { print $3 }'
        done | sort -u | grep -vE '/(libc|libm|libgcc_s|libstdc\+\+|libpthread|libdl|librt|libresolv|ld-linux[^/]*)\.so' |
                xargs -r cp -L -t "$pack/lib"
        echo "$of" >"$pack/sources"
        kib=$(($(du -sk "$pack" | cut -f1) + $(git ls-files -z | du -ck --files0-from=- | tail -n 1 | cut -f1)))
        echo "$pack is ready: with the repository $((kib / 1024)) MiB of $most_mib"
        ((kib <= most_mib * 1024))
}

# row SECONDS NAME COMMAND...: one part of the report, within what is left of the time
row() {
        local most=$1 limit=$1 name=$2 start=$SECONDS rc=0
        shift 2
        ((limit <= budget - SECONDS)) || limit=$((budget - SECONDS))
        echo
        echo "== $name"
        if ((limit < 2)); then
                echo "skipped: the time is up"
                return
        fi
        # commands are functions of this file, which timeout cannot run by itself
        timeout --kill-after=3 "$limit" bash -o pipefail -c '"$@"' row "$@" </dev/null 2>&1 || rc=$?
        case $rc in
                124 | 137)
                        if ((limit < most)); then
                                echo "-- skipped: the rest of it, as the time is up"
                        else
                                echo "-- ended at its limit of $limit s: WRONG"
                        fi
                        ;;
                0) echo "-- $((SECONDS - start)) s" ;;
                *) echo "-- ended with status $rc after $((SECONDS - start)) s: WRONG" ;;
        esac
}

check() {
        "$pack/gpu-check" ${driver:+--driver "$driver"} --probes "$pack/gpu-probes.fatbin" "$@"
}

# libraries of the gate that lie in build/gpu-check alone
lacking_in_a_sandbox() {
        local cache name

        cache=$(PATH=$PATH:/usr/sbin:/sbin ldconfig -p)
        for name in $(ldd "$pack/chunkkv-gate" | awk '{ print $1 }'); do
                if [[ -e $pack/lib/$name && $cache != *$name\ * ]]; then echo "$name"; fi
        done | xargs
}

# end_to_end SANDBOX [TRACE]: the daemon in its sandbox or not, its gate, and an engine in another process; with TRACE,
# calls of the daemon that fail go there.  The array aside of the caller has more variables of the daemon.
end_to_end() {
        local directory daemon rc=0 program=$pack/chunkkvd ratios=(0.2 0.1 0.3) tracer=()

        [[ -z ${2:-} ]] || tracer=(env LD_LIBRARY_PATH="$PWD/$pack/lib" "$strace" -D -f -qq -Z -o "$2" -E LD_LIBRARY_PATH)
        directory=$(mktemp -d /tmp/gpu-check-XXXXXX)
        # the sandbox lets nobody read where the stand-in lies, so it is loaded before
        [[ -z $driver ]] || tracer+=(env LD_PRELOAD="$driver")
        "${tracer[@]}" env ${aside[@]+"${aside[@]}"} "$program" --runtime-dir "$directory" --endpoint main --backend cuda \
                --sandbox "$1" 2>"$directory/log" &
        daemon=$!
        for ((i = 0; i < 100; i++)); do
                if [[ -S $directory/main.zmq ]] || ! kill -0 "$daemon" 2>/dev/null; then break; fi
                sleep 0.1
        done
        [[ -z $driver ]] || ratios=(0.2) # the emulator takes seconds for what a GPU does in a millisecond
        CHUNKKV_ENDPOINT=$directory/main LD_LIBRARY_PATH=${driver%/*} "$pack/compress-cuda" tests/data/needle-1k.safetensors \
                "${ratios[@]}" | grep -v '^  layer' || rc=$?
        kill "$daemon" 2>/dev/null
        wait "$daemon" || rc=$?
        cat "$directory/log"
        rm -rf "$directory"
        return "$rc"
}

# refused SANDBOX FILE: what such a daemon is refused on the way, a call a line, without numbers that differ each time
refused() {
        local trace

        trace=$(mktemp /tmp/gpu-check-trace-XXXXXX)
        end_to_end "$1" "$trace" >/dev/null 2>&1
        sleep 0.5 # the tracer writes its last lines behind the daemon's end
        grep -E ' = -1 (EACCES|EPERM)' "$trace" | sed -E 's/^[0-9]+ +//; s/0x[0-9a-f]+/0x_/g; s/[0-9]{2,}/N/g' | LC_ALL=C sort -u >"$2"
        rm -f "$trace"
}

# the daemon in its sandbox; what it is refused there, and not without one
in_sandbox() {
        local lacking rc=0 work told

        lacking=$(lacking_in_a_sandbox)
        [[ -z $lacking ]] || { echo "skipped: not installed here, and the sandbox hides $pack/lib: $lacking" && return; }
        # the stand-in opens memory through /proc/PID/fd, and the sandbox lets it not: that is to be told, and no more
        end_to_end on || rc=$?
        [[ -n $strace ]] || { echo "what it is refused: skipped: there is no strace" && return "$rc"; }
        work=$(mktemp -d /tmp/gpu-check-XXXXXX)
        refused off "$work/off"
        refused on "$work/on"
        told=$(LC_ALL=C comm -13 "$work/off" "$work/on")
        rm -rf "$work"
        if [[ -n $told ]]; then
                echo "refused in the sandbox alone, and it works or not as above:"
                head -n 20 <<<"$told"
        else
                echo "refused in the sandbox alone: nothing"
        fi
        [[ -z $driver ]] || { grep -q 'openat(.*"/proc/N/fd/' <<<"$told" && ((rc != 0)) && echo "the path is told: ok" && rc=0; }
        return "$rc"
}

# under_mps: handles between clients of a server of MPS; then an engine that is one and a daemon that is not
under_mps() {
        local directory aside=()

        [[ -z $driver ]] || { echo "skipped: stand-in" && return; }
        command -v nvidia-cuda-mps-control >/dev/null || { echo "skipped: there is no nvidia-cuda-mps-control" && return; }
        directory=$(mktemp -d /tmp/gpu-check-mps-XXXXXX)
        export CUDA_MPS_PIPE_DIRECTORY=$directory CUDA_MPS_LOG_DIRECTORY=$directory
        if nvidia-cuda-mps-control -d; then
                check codes || echo "handles under MPS: status $?"
                if end_to_end off; then echo "daemon and engine under MPS: they work"; else echo "daemon and engine under MPS: status $?"; fi
                aside=(CUDA_MPS_PIPE_DIRECTORY=/nowhere)
                if end_to_end off; then echo "the engine alone under MPS: it works"; else echo "the engine alone under MPS: status $?"; fi
                echo quit | nvidia-cuda-mps-control
                tail -n 5 "$directory/control.log" 2>/dev/null
        else
                echo "skipped: no control daemon of MPS can be started here"
        fi
        rm -rf "$directory"
}

# what the service's unit forbids besides, and libcuda may want: memory that is written and executed, and @resources
in_unit() {
        [[ -d /run/systemd/system && $(id -u) == 0 ]] || { echo "skipped: no systemd runs here, or not as root" && return; }
        systemd-run --quiet --wait --pipe -p MemoryDenyWriteExecute=yes -p SystemCallErrorNumber=EPERM \
                -p SystemCallFilter=@system-service -p SystemCallFilter='~@privileged @resources' -p WorkingDirectory="$PWD" \
                "$PWD/$pack/gpu-check" ${driver:+--driver "$driver"} info </dev/null
}

# kernels under NVIDIA's own checkers, a few jobs each: the emulator does not see everything that they do
sanitized() {
        local tool status bad=0

        [[ -z $driver ]] || { echo "skipped: stand-in" && return; }
        command -v compute-sanitizer >/dev/null || { echo "skipped: there is no compute-sanitizer" && return; }
        for tool in memcheck racecheck initcheck synccheck; do
                GPU_CHECK_JOBS=8 timeout 25 compute-sanitizer --tool "$tool" --error-exitcode 9 --print-limit 5 \
                        "$pack/gpu-check" conform 2>&1 | grep -vE '^=+ *$' | tail -n 8
                status=${PIPESTATUS[0]}
                case $status in
                        0) echo "$tool: ok" ;;
                        124) echo "$tool: skipped: the rest of it, after 25 s" ;;
                        *) echo "$tool: status $status: WRONG" && bad=1 ;;
                esac
        done
        return "$bad"
}

# what kvpress computes, in plain torch, on the shapes of row request
torch_formula() {
        [[ -z $driver ]] || { echo "skipped: stand-in" && return; }
        python3 -c 'import torch, sys; sys.exit(not torch.cuda.is_available())' 2>/dev/null ||
                { echo "skipped: there is no torch with CUDA" && return; }
        python3 tests/gpu/torch_formula.py
}

rows() {
        "$pack/chunkkvd" --version
        echo "gpu-check of $of, $(date -u +%FT%TZ), $(uname -m), $(nproc) CPUs"
        [[ -z $driver ]] || echo "ON THE STAND-IN FOR THE DRIVER: no GPU is involved, times mean nothing"
        nvidia-smi --query-gpu=name,driver_version,compute_mode,memory.total --format=csv,noheader 2>/dev/null
        row 15 "1 driver, device, images, registers" check info
        row 20 "2 primitives beside the emulator's" check prims
        row 60 "3 random jobs beside the reference" check conform
        row 25 "3 golden cases" check golden
        row 25 "4 peaks" check peaks
        row 100 "5 6 7 requests of a model's size" check request
        row 30 "8 opening and closing memory of other processes" check ipc
        row 15 "8 codes of bad handles" check codes
        row 40 "9 order of words and kernels" check order
        row 30 "10 latency beside a busy process" check busy
        row 20 "12 other users, other pid namespaces" check users
        row 30 "12 a killed exporter, a killed opener" check deaths
        row 40 "13 daemon, gate and engine" end_to_end off
        row 60 "13 the same in its sandbox (needs the libraries of chunkkv-gate installed)" in_sandbox
        row 15 "8 imported memory that is read-only" check vmm
        row 20 "13 driver and device with what a unit forbids" in_unit
        row 60 "15 under MPS" under_mps
        row 40 "14 kvpress' formula in plain torch" torch_formula
        row 100 "11 compute-sanitizer" sanitized
        echo
}

give_up() {
        echo "gpu_check: $1"
        exit 2
}

driver=
case ${1:-} in
        pack)
                (($# == 1)) || usage
                pack_up
                exit
                ;;
        --stand-in) driver=$PWD/$pack/fake/libcuda.so.1 && shift ;;
esac
[[ $# -le 1 && ${1:-} != -* && ${1:-} != pack ]] || usage
report=${1:-build/gpu-check.txt}
[[ -x $pack/gpu-check ]] || pack_up || give_up "$pack is missing and cannot be built here"
packed='' of='other sources'
if [[ -e $pack/sources ]]; then read -r packed of <"$pack/sources"; fi
[[ $packed == "$(sources)" ]] || give_up "$pack was made of $of, not of what lies here: tests/gpu_check.sh pack makes a new one"
if [[ -z $driver ]]; then
        # all rows would be WRONG for this one reason
        said=$(timeout 60 "$pack/gpu-check" open 2>&1)
        (($? != 3)) || give_up "no GPU can be used here, so no report is made: $(sed -n 's/^driver: \(.*\): WRONG$/\1/p' <<<"$said"); a rehearsal: --stand-in"
fi
mkdir -p "$(dirname "$report")" 2>/dev/null
: 2>/dev/null >"$report" || give_up "no report can be written to $report"
SECONDS=0
strace=$(command -v strace || { [[ ! -x $pack/strace ]] || echo "$PWD/$pack/strace"; })
export -f end_to_end refused in_sandbox under_mps in_unit sanitized torch_formula check lacking_in_a_sandbox
export pack driver strace
rows 2>&1 | tee "$report" || give_up "$report is not complete"
wrong=$(grep -c 'WRONG$' "$report") good=$(grep -c ': ok$' "$report")
echo "$good ok, $wrong wrong, $(grep -cE 'skipped: ' "$report") skipped, $SECONDS s" | tee -a "$report" || exit 2
((wrong == 0 && good > 0))
