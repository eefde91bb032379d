#!/bin/bash
# The C client under ThreadSanitizer, used by several threads at once (tests/test_client_threads.c), against the daemon
# that was built: a race in the client shows here, in every run of the suite.
set -euo pipefail
cd "$(dirname "$0")/.."
build=$(realpath "${CHUNKKV_BUILD:-build/release}")
if grep -qE '__(asan|tsan)_init' <<<"$(nm -D --undefined-only "$build/libchunkkv.so")"; then
        echo "skipped: this build has a sanitizer of its own"
        exit 77
fi
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
# the test starts the daemon that lies beside it
ln -s "$build/chunkkvd" "$build/chunkkv-gate" "$scratch"
"${CC:-cc}" -std=c11 -D_GNU_SOURCE -DCKV_VERSION='"test"' -fsanitize=thread -O1 -g -pthread -w -I. "-I$build/gen" \
        -o "$scratch/test_client_threads" clients/c/src/*.c "$build/gen/proto/chunkkv.pb-c.c" tools/private.c \
        tests/support_client.c tests/test_client_threads.c "$build/libproto.a" "$build/libbase.a" \
        -lzmq -lprotobuf-c -lcheck -lsubunit -lm -lrt
export TSAN_OPTIONS="suppressions=$PWD/tests/tsan.supp exitcode=66"
"$scratch/test_client_threads"
