#!/bin/bash
# tools/man: each function of libchunkkv has its manual page, so have the programs, and none of it makes man complain.
set -euo pipefail
cd "$(dirname "$0")/.."
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

fail() {
        echo "FAIL: $*"
        exit 1
}

tools/man 0 "${CHUNKKV_BUILD:-build/release}/chunkkvctl" "$scratch"
while read -r name; do
        [[ -s $scratch/$name.3 ]] || fail "$name has no manual page"
done < <(sed -nE 's/^ +(chunkkv_[a-z_]+);$/\1/p' clients/c/libchunkkv.map)
[[ -s $scratch/chunkkv.7 ]] || fail "no chunkkv.7"
grep -q '^int chunkkv_compress(' "$scratch/chunkkv_compress.3" || fail "chunkkv_compress.3 lacks the prototype"
grep -q '^ret_result: ' "$scratch/chunkkv_compress.3" || fail "chunkkv_compress.3 lacks an argument"
while read -r option; do
        grep -qF -- "${option//-/\\-}" "$scratch/chunkkvd.8" || fail "chunkkvd.8 lacks $option"
done < <(sed -nE 's/^OPT\(([a-z_]+),.*/--\1/p' daemon/options.def | tr _ -)
grep -qF -- '\-\-keep\-ratio PART' "$scratch/chunkkvctl.1" || fail "chunkkvctl.1 lacks an option"
if command -v man >/dev/null; then
        for page in "$scratch"/*; do
                warnings=$(man --warnings=w -l "$page" 2>&1 >/dev/null)
                [[ -z $warnings ]] || fail "$page: $warnings"
        done
fi
echo "ok"
