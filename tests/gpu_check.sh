#!/bin/bash
# gpu_check.sh: all that only a GPU can show, in one run of at most 480 seconds on a machine without a network.
#
#   tests/gpu_check.sh pack                     beforehand, where there is nvcc: build, and put into build/gpu-check what runs there
#   tests/gpu_check.sh [--stand-in] [REPORT]    run all rows; REPORT: build/gpu-check.txt
#
# Carry the repository and build/gpu-check (pack says how large both are, and fails above 64 MiB).  Where build/gpu-check
# is missing and there is nvcc, it is built first.  Rows are in the order of what matters most: if the time ends early,
# what was settled until then is in the report.  No row stops another.  --stand-in rehearses the run without a GPU.
# The last line is the sum; the exit status is 1 if anything was WRONG.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
pack=build/gpu-check budget=480 most_mib=64

pack_up() {
        local build=build/gpu-check-build programs=(gpu-check chunkkvd chunkkvd-standin chunkkv-gate compress-cuda) kib

        # the gate gets no LD_LIBRARY_PATH from the daemon, so programs know by themselves where their libraries lie
        make --no-print-directory O="$build" CUDA=1 CUDA_COMPILER=nvcc WERROR=1 -j"$(nproc)" \
                LDFLAGS="-Wl,--disable-new-dtags,-rpath,'\$\$ORIGIN/lib'" all "${programs[@]/#/$build/}" \
                "$build/fake/libcuda.so.1" build/cuda/gpu-probes.fatbin >/dev/null || return 1
        rm -rf "$pack" && mkdir -p "$pack/fake" "$pack/lib" || return 1
        cp "${programs[@]/#/$build/}" build/cuda/gpu-probes.fatbin "$pack" && cp "$build/fake/libcuda.so.1" "$pack/fake" || return 1
        strip --strip-debug "$pack"/chunkk* "$pack"/compress-cuda "$pack"/gpu-check "$pack"/fake/libcuda.so.1
        # libraries that a bare machine may lack; those of the compiler and of the C library it has in its own version
        for program in "$pack"/chunkk* "$pack"/compress-cuda "$pack"/gpu-check; do
                ldd "$program" | awk '$3 ~ /^\// { print $3 }'
        done | sort -u | grep -vE '/(libc|libm|libgcc_s|libstdc\+\+|libpthread|libdl|librt|libresolv|ld-linux[^/]*)\.so' |
                xargs -r cp -L -t "$pack/lib"
        kib=$(($(du -sk "$pack" | cut -f1) + $(git ls-files -z | du -ck --files0-from=- | tail -n 1 | cut -f1)))
        echo "$pack is ready: with the repository $((kib / 1024)) MiB of $most_mib"
        ((kib <= most_mib * 1024))
}

# row SECONDS NAME COMMAND...: one part of the report, within what is left of the time
row() {
        local limit=$1 name=$2 start=$SECONDS rc=0
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
                124 | 137) echo "-- ended at its limit of $limit s" ;;
                0) echo "-- $((SECONDS - start)) s" ;;
                *) echo "-- ended with status $rc after $((SECONDS - start)) s: WRONG" ;;
        esac
}

check() {
        "$pack/gpu-check" ${driver:+--driver "$driver"} --probes "$pack/gpu-probes.fatbin" "$@"
}

# the daemon in its sandbox or not, its gate, and an engine in another process
end_to_end() {
        local directory daemon rc=0 program=$pack/chunkkvd ratios=(0.2 0.1 0.3)

        [[ -z $driver || $1 == off ]] || { echo "skipped: stand-in, which lies where the sandbox lets nobody read" && return; }
        directory=$(mktemp -d /tmp/gpu-check-XXXXXX)
        [[ -z $driver ]] || export LD_LIBRARY_PATH=$PWD/$pack/fake
        "$program" --version
        "$program" --runtime-dir "$directory" --endpoint main --backend cuda --sandbox "$1" 2>"$directory/log" &
        daemon=$!
        for ((i = 0; i < 100; i++)); do
                if [[ -S $directory/main.zmq ]] || ! kill -0 "$daemon" 2>/dev/null; then break; fi
                sleep 0.1
        done
        [[ -z $driver ]] || ratios=(0.2) # the emulator takes seconds for what a GPU does in a millisecond
        CHUNKKV_ENDPOINT=$directory/main "$pack/compress-cuda" tests/data/needle-1k.safetensors "${ratios[@]}" |
                grep -v '^  layer' || rc=$?
        kill "$daemon"
        wait "$daemon" || rc=$?
        cat "$directory/log"
        rm -rf "$directory"
        return "$rc"
}

# kernels under NVIDIA's own checkers, a few jobs each: the emulator does not see everything that they do
sanitized() {
        local tool

        [[ -z $driver ]] || { echo "skipped: stand-in" && return; }
        command -v compute-sanitizer >/dev/null || { echo "skipped: there is no compute-sanitizer" && return; }
        for tool in memcheck racecheck initcheck synccheck; do
                GPU_CHECK_JOBS=8 timeout 25 compute-sanitizer --tool "$tool" --error-exitcode 9 --print-limit 5 \
                        "$pack/gpu-check" conform 2>&1 | grep -vE '^=+ *$' | tail -n 8
                echo "$tool: status ${PIPESTATUS[0]}"
        done
}

# what kvpress computes, in plain torch, on the shapes of row request
torch_formula() {
        [[ -z $driver ]] || { echo "skipped: stand-in" && return; }
        python3 -c 'import torch, sys; sys.exit(not torch.cuda.is_available())' 2>/dev/null ||
                { echo "skipped: there is no torch with CUDA" && return; }
        python3 tests/gpu/torch_formula.py
}

rows() {
        echo "gpu-check of $(git log -1 --format=%h 2>/dev/null || echo 'a copy'), $(date -u +%FT%TZ), $(uname -m), $(nproc) CPUs"
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
        row 40 "9 order of a word behind a kernel" check order
        row 30 "10 latency beside a busy process" check busy
        row 40 "12 other users, other pid namespaces, a killed exporter" check users
        row 40 "13 daemon, gate and engine" end_to_end off
        row 30 "13 the same in its sandbox (needs the libraries of chunkkv-gate installed)" end_to_end on
        row 40 "14 kvpress' formula in plain torch" torch_formula
        row 100 "11 compute-sanitizer" sanitized
        echo
}

driver=
case ${1:-} in
        pack) pack_up && exit ;;
        --stand-in) driver=$PWD/$pack/fake/libcuda.so.1 && shift ;;
esac
[[ ${1:-} != pack ]] || exit 1
report=${1:-build/gpu-check.txt}
[[ -x $pack/gpu-check ]] || pack_up || { echo "gpu_check: $pack is missing and cannot be built here" && exit 1; }
SECONDS=0
export -f end_to_end sanitized torch_formula check
export pack driver
mkdir -p "$(dirname "$report")"
rows 2>&1 | tee "$report"
wrong=$(grep -c 'WRONG$' "$report")
echo "$(grep -c ': ok$' "$report") ok, $wrong wrong, $(grep -cE 'skipped: ' "$report") skipped, $SECONDS s" | tee -a "$report"
((wrong == 0))
