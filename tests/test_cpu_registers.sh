#!/bin/bash
# The inner loops of the window kernels keep their sums in registers: between the first and the last product of a loop
# no instruction touches the stack. A compiler that puts them into memory makes the kernels several times slower, and
# every result stays right.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${CHUNKKV_BUILD:-build/release}
[ "$(uname -m)" = x86_64 ] || { echo "SKIP: not x86-64"; exit 0; }
command -v objdump >/dev/null || { echo "SKIP: no objdump"; exit 0; }
if nm "$build/libkernels.a" 2>/dev/null | grep '__asan_\|__tsan_' >/dev/null; then
        echo "SKIP: sanitizers put checks into the loops"
        exit 0
fi

# clang 14 keeps the sums in registers too, but an address or two of the tiles of ten rows on the stack
if readelf -p .comment "$build/kernels/cpu_window_avx2.o" | grep clang >/dev/null; then
        echo "SKIP: built by clang"
        exit 0
fi

# A loop: a straight stretch of code with 10 products at least that ends by a jump into itself. Prints how many there are.
loops() {
        objdump -d --no-show-raw-insn "$build/kernels/cpu_window_$1.o" | awk -v product="$2" '
                function at(hex) { return sprintf("%16s", hex) }
                function end_stretch(target) {
                        if (products >= 10 && target != "" && at(target) >= at(start) && at(target) <= at(address)) {
                                count++
                                if (stack) { print "FAIL: the stack is touched in a loop of " products " products:\n" text; bad = 1 }
                        }
                        products = stack = pending = 0; text = start = ""
                }
                /^[0-9a-f]+ </ { end_stretch(""); next }
                NF < 2 { next }
                { address = $1; sub(":", "", address); if (start == "") start = address }
                $2 ~ /^(j|call|ret)/ { end_stretch($2 ~ /^j/ ? $3 : ""); next }
                products > 0 && /%[re][sb]p/ { pending = 1 }
                index($2, product) == 1 { products++; if (pending) stack = 1 }
                { text = text $0 "\n" }
                END { end_stretch(""); print count + 0; exit bad }'
}
check() {
        local found
        found=$(loops "$1" "$2") || { echo "$found"; exit 1; }
        [ "$found" -ge "$3" ] || { echo "FAIL: $1: $found loops of products instead of $3"; exit 1; }
        echo "$1: $found loops without the stack"
}
check avx2 vfmadd231ps 1
check avx512 vfmadd231ps 4
check avx512bf16 vdpbf16ps 4

# AMX: functions with tile products hold no vector on the stack, and each template has both its products for each tile of channels
tiles=$(objdump -d --no-show-raw-insn "$build/kernels/cpu_window_amx.o" | awk '
        /^[0-9a-f]+ </ { name = $2 }
        name !~ /(units|rows)_tile_[2348]/ { next }
        $2 == "tdpbf16ps" { products[name]++ }
        /zmm.*\(%r[sb]p|\(%r[sb]p.*zmm/ { print "FAIL: a vector on the stack in " name ": " $0; bad = 1 }
        END {
                for (name in products) {
                        match(name, /tile_[2348]/)
                        # with and without weights beside them
                        if (products[name] < 4 * substr(name, RSTART + 5, 1)) { print "FAIL: products are missing in " name; bad = 1 }
                        count++
                }
                print count + 0
                exit bad
        }') || { echo "$tiles"; exit 1; }
[ "$tiles" -ge 12 ] || { echo "FAIL: amx: $tiles functions with products instead of 12"; exit 1; }
echo "amx: $tiles functions without a vector on the stack"
