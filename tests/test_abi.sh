#!/bin/bash
# The binary interface of libchunkkv.so: exports what chunkkv.h declares and nothing else, is as clients/c/abi.txt says,
# needs only the libraries that it may, has no text relocations and no state of its own.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${CHUNKKV_BUILD:-build/release}
library=$build/libchunkkv.so
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

fail() {
        echo "FAIL: $*"
        exit 1
}

exported() {
        nm -D --defined-only "$library" | awk '$2 ~ /[TDBR]/ { sub(/@.*/, "", $3); print $3 }' | sort
}
declared() {
        tr '\n' ' ' <clients/c/include/chunkkv.h | grep -oE 'CHUNKKV_API [^;(]*\bchunkkv_[a-z_]+\(' |
                grep -oE 'chunkkv_[a-z_]+\($' | tr -d '(' | sort
}
mapped() {
        sed -nE 's/^ +(chunkkv_[a-z_]+);$/\1/p' clients/c/libchunkkv.map | sort
}
diff <(declared) <(mapped) || fail "chunkkv.h (<) and libchunkkv.map (>) differ"
diff <(declared) <(exported) || fail "chunkkv.h declares (<) what the library exports (>) differently"

tools/abi "$library" >"$scratch/abi"
diff clients/c/abi.txt "$scratch/abi" || fail "the interface changed; on purpose? See the head of tools/abi, then" \
        "tools/abi $library > clients/c/abi.txt"

readelf -dW "$library" >"$scratch/dynamic"
grep -q 'SONAME.*\[libchunkkv\.so\.0\]' "$scratch/dynamic" || fail "another soname"
! grep -qE 'TEXTREL' "$scratch/dynamic" || fail "text relocations"
needed=$(sed -nE 's/.*NEEDED.*\[(.*)\]/\1/p' "$scratch/dynamic" | grep -vE '^(libzmq\.so\.5|libprotobuf-c\.so\.1|libc\.so\.6)$' || true)
if grep -qE '__(asan|tsan)_init' < <(nm -D --undefined-only "$library"); then
        needed=$(grep -vE '^lib([at]san|ubsan|gcc_s|m)\.so' <<<"$needed" || true)
else
        # constants that hold addresses are .data.rel.ro, which is read-only once loaded
        size -A "$build"/clients/c/src/*.o "$build/gen/proto/chunkkv.pb-c.o" >"$scratch/sizes"
        ! grep -E '^\.(data|bss)(\.[a-z_]+)? +[1-9]' "$scratch/sizes" | grep -v '^\.data\.rel\.ro' || fail "writable data"
fi
[[ -z $needed ]] || fail "needs $needed"
! readelf -lW "$library" | grep -E 'GNU_STACK.*RWE' || fail "an executable stack"
echo "ok"
