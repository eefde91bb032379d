#!/bin/bash
# The address examples of tests/vectors/layouts.json in C++, Go and JavaScript (those in C and Python are tests there).
set -euo pipefail
cd "$(dirname "$0")/.."
build=$(realpath "${CHUNKKV_BUILD:-build/release}")
vectors=tests/vectors/layouts.json
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
passed=0 failed=0 skipped=0

want="$(python3 -c 'import json, sys; print(sum(len(r["examples"]) for r in json.load(open(sys.argv[1]))))' "$vectors") addresses"
# check LANGUAGE COMMAND...: it says that it checked as many addresses as there are
check() {
        local language=$1 said
        shift
        if said=$("$@" "$vectors" 2>&1) && [[ $said == "$want" ]]; then
                passed=$((passed + 1))
        else
                echo "FAIL: $language: '$said' and not '$want'"
                failed=$((failed + 1))
        fi
}
# have COMMAND: or count a skipped language; in CI that is a failure
have() {
        command -v "$1" >/dev/null && return
        echo "skipped: $1 is not installed"
        if [[ -n ${CI:-} ]]; then failed=$((failed + 1)); else skipped=$((skipped + 1)); fi
        return 1
}

library=("-L$build" "-Wl,-rpath,$build" -lchunkkv)
if grep -qE '__(asan|tsan)_init' <<<"$(nm -D --undefined-only "$build/libchunkkv.so")"; then
        echo "skipped: a library with a sanitizer in it"
        exit 77
fi
if have "${CXX:-c++}"; then
        "${CXX:-c++}" -std=c++20 -Wall -Wextra -Werror -Iclients/c/include -o "$scratch/cpp" tests/vectors/addresses.cpp \
                "${library[@]}" -lcjson
        check C++ "$scratch/cpp"
fi
if have go; then
        GOCACHE=$scratch/cache GOTOOLCHAIN=local GO111MODULE=off CGO_CFLAGS="-I$PWD/clients/c/include" \
                CGO_LDFLAGS="${library[*]}" go build -o "$scratch/go" tests/vectors/addresses.go
        check Go "$scratch/go"
fi
if have node; then
        check JavaScript node tests/vectors/addresses.js
fi
echo "$passed passed, $failed failed, $skipped skipped"
((failed == 0))
