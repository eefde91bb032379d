#!/bin/bash
# test_chunkkvctl.sh: chunkkvctl from outside: answers, refusals, exit statuses, the private daemon.
#
#   CHUNKKV_BUILD=build/release tests/test_chunkkvctl.sh
#
# Prints a line for each failure, gives up after 20, and ends with a line in the form of the check library, which
# tests/run-unit counts.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
build=${CHUNKKV_BUILD:-build/release}
ctl=$build/chunkkvctl
needle=tests/data/needle-1k.safetensors
checks=0 failures=0

for program in chunkkvctl chunkkvd chunkkv-gate; do
        [[ -x $build/$program ]] || { echo "skipped: $build has no $program" && exit 77; }
done
unset CHUNKKV_ENDPOINT
scratch=$(mktemp -d)
# everything private that chunkkvctl makes lies in here, so that what it leaves behind is seen
export TMPDIR=$scratch
daemon=
# called by the trap
# shellcheck disable=SC2317
finish() {
        [[ -n $daemon ]] && kill "$daemon" && wait "$daemon"
        rm -rf "$scratch"
}
trap finish EXIT

# run STATUS ARGUMENT...: call chunkkvctl, expect this exit status; output in $out and $err
run() {
        local want=$1 got
        shift
        "$ctl" "$@" >"$scratch/out" 2>"$scratch/err" </dev/null
        got=$?
        out=$(<"$scratch/out")
        err=$(<"$scratch/err")
        called="$*"
        expect "exit status $want, not $got" test "$got" = "$want"
}

# expect WHAT COMMAND...: one check
expect() {
        local what=$1
        shift
        checks=$((checks + 1))
        "$@" && return
        failures=$((failures + 1))
        echo "FAIL: chunkkvctl $called: $what"
        [[ -n $err ]] && echo "      stderr: $err"
        # one reason is enough
        if [[ -n $daemon ]] && ! kill -0 "$daemon" 2>/dev/null; then
                echo "the daemon has died:"
                tail -n 40 "$scratch/log"
                summary
        elif ((failures == 20)); then
                summary
        fi
}

# summary: the end, in words and in the form of the check library
summary() {
        echo "$((checks - failures)) passed, $failures failed"
        echo "$((100 * (checks - failures) / checks))%: Checks: $checks, Failures: $failures, Errors: 0"
        exit $((failures > 0))
}

# complains TEXT: one line on stderr that holds the text, nothing on stdout
complains() {
        expect "says \"$1\" on stderr" grep -qF -- "$1" <<<"$err"
        expect "one line on stderr" test "$(wc -l <<<"$err")" = 1
        expect "nothing on stdout" test -z "$out"
}

# kept_is RANGES: kept rows of the only layer
kept_is() {
        local got=${out#*\"kept\":}
        expect "kept ${got%%\}*}, expected $1" test "${got%%\}*}" = "$1"
}

# tensors FILE HEADER BYTES: a safetensors file with this header and so many zero bytes
tensors() {
        local length=${#2} i
        {
                for ((i = 0; i < 8; i++)); do
                        printf '%b' "\\x$(printf %02x $((length >> (8 * i) & 255)))"
                done
                printf '%s' "$2"
                head -c "$3" /dev/zero
        } >"$1"
}

# ---- without any daemon
run 0 --help
expect "lists plan" grep -q 'chunkkvctl plan' <<<"$out"
for command in ping status plan compress explain; do
        run 0 "$command" --help
        expect "prints its options" grep -q -- '--timeout' <<<"$out"
done
run 0 plan --help
for option in layer names keep-ratio max-tokens protect logical-len profile scorer selector window chunk sinks recent min-tokens \
        pool pool-size norm heads group-heads value-weight unit-reduce layer-sets layer-reduce reuse fill tight align join scale \
        softcap sliding window-reduce vote-rows contrast-first contrast-end mute spike-keep page beta heavy recent-part; do
        expect "lists --$option" grep -q -- "--$option " <<<"$out"
done
run 0 compress --help
expect "says what it writes" grep -q kept_rows <<<"$out"
run 0 explain --help
expect "lists --tokens" grep -q -- '--tokens F.json' <<<"$out"
run 0 --version
expect "prints its version" grep -qE '^chunkkvctl [0-9]+\.[0-9]+' <<<"$out"
run 2
complains command
run 2 plan "$needle"
complains --keep-ratio
for ratio in 0 1.1 -0.1 nan 0.1234567 1e-1 ''; do
        run 2 plan "$needle" --keep-ratio "$ratio"
        complains --keep-ratio
done
run 2 plan "$needle" --keep-ratio 0.2 --keep-ratio 0.3
complains '--keep-ratio: is given twice, the second time as "0.3"; it has one value'
run 2 ping --endpoint "$scratch/nobody" --timeout 1 --endpoint "$scratch/nobody"
complains "--endpoint: is given twice"
run 3 ping --endpoint "$scratch/nobody"
complains nobody.fd
run 3 plan "$needle" --keep-ratio 0.2 --endpoint "$scratch/nobody"
complains nobody.fd
CHUNKKV_ENDPOINT=$scratch/nobody run 3 status
complains nobody.fd

run 2 compress "$needle" --keep-ratio 0.2
complains "write to"
run 2 explain "$needle" --keep-ratio 0.2 --out "$scratch/page"
complains --tokens
run 2 plan --query a.npy --key "$scratch/missing.npy" --keep-ratio 0.2
complains "missing.npy: No such file"
run 3 compress "$needle" "$scratch/none" --keep-ratio 0.2 --endpoint "$scratch/nobody"
complains nobody.fd
run 3 explain "$needle" --tokens "${needle%.safetensors}.json" --out "$scratch/none" --keep-ratio 0.2 --endpoint "$scratch/nobody"
complains nobody.fd
expect "writes nothing" test -z "$(find "$scratch" -name 'none*')"

# ---- files that are none; found wrong before a daemon is looked for
plan=(--keep-ratio 0.2 --endpoint "$scratch/nobody")
bad=$scratch/bad.safetensors
run 2 plan "$scratch/missing" "${plan[@]}"
complains "missing: No such file"
run 2 plan "$scratch" "${plan[@]}"
complains directory
head -c 100000 "$needle" >"$bad"
run 2 plan "$bad" "${plan[@]}"
complains "cut short"
head -c 5 "$needle" >"$bad"
run 2 plan "$bad" "${plan[@]}"
complains "too few"
printf '\xff\xff\xff\xff\xff\xff\xff\x7f{}' >"$bad"
run 2 plan "$bad" "${plan[@]}"
complains header
tensors "$bad" 'no json at all' 0
run 2 plan "$bad" "${plan[@]}"
complains JSON
tensors "$bad" '{"layer0.key":{"dtype":"F32","shape":[4,1,2],"data_offsets":[0,32]}}' 32
run 2 plan "$bad" "${plan[@]}"
complains layer0.query
tensors "$bad" '{"layer0.key":{"dtype":"F64","shape":[4,1,1],"data_offsets":[0,32]}}' 32
run 2 plan "$bad" "${plan[@]}"
complains "layer0.key is F64"
tensors "$bad" '{"layer0.key":{"dtype":"F32","shape":[4,2],"data_offsets":[0,32]}}' 32
run 2 plan "$bad" "${plan[@]}"
complains "layer0.key has 2 dimensions"
tensors "$bad" '{"layer0.key":{"dtype":"F32","shape":[4,2,1],"data_offsets":[0,32]},"layer0.query":{"dtype":"F32","shape":[1,3,1],"data_offsets":[32,44]}}' 44
run 2 plan "$bad" "${plan[@]}"
complains "no multiple"
tensors "$bad" '{"layer0.key":{"dtype":"F32","shape":[4,1,1],"data_offsets":[0,16]},"layer0.query":{"dtype":"F32","shape":[4,1,1],"data_offsets":[8,24]}}' 24
run 2 plan "$bad" "${plan[@]}"
complains "inside another"
run 2 plan "$needle" --layer 10 --layer 12 "${plan[@]}"
complains layer12.key
run 2 plan "$needle" --layer 10 --window 65 "${plan[@]}"
complains "layer10.query has 64 rows"
run 2 plan "$needle" --names 'key=layer.key' "${plan[@]}"
complains --names
run 2 plan "$needle" --names 'key=model.{layer}.k' "${plan[@]}"
complains "it has no tensor named model.0.k, or of another layer; --names"
printf '\x93NUMPY\x01\x00\x10\x00{oh, a dict? no}' >"$scratch/bad.npy"
run 2 plan --key "$scratch/bad.npy" --query "$scratch/bad.npy" "${plan[@]}"
complains "bad.npy: its header is not a dict"
echo '{"tokens": 1024}' >"$scratch/tokens"
run 2 explain "$needle" --tokens "$scratch/tokens" --out "$scratch/none" "${plan[@]}"
complains "tokens: it holds no list"
run 2 explain "$needle" --tokens "$needle" --out "$scratch/none" "${plan[@]}"
complains "no JSON"
run 2 explain "$needle" --tokens tests/data/novel-4k.json --out "$scratch/none" "${plan[@]}"
complains "4096 pieces of text, but layer 2 has 1024"
run 2 compress "$needle" "$scratch" "${plan[@]}"
complains directory
run 2 compress "$needle" "$bad" "${plan[@]}"
complains "bad.safetensors: it is there already; --force replaces it"
run 2 compress "$needle" "$needle" --force "${plan[@]}"
complains "never overwritten"

# ---- a daemon of its own
if [[ ! -S /run/chunkkv/cpu/main.fd ]]; then
        run 0 plan "$needle" --layer 10 --layer 11 --profile default --keep-ratio 0.2 --chunk 10 --window 32 --sinks 4 --json
        expect "says that it starts a daemon" grep -q 'starting a private one' <<<"$err"
        expect "one line of JSON" test "$(wc -l <"$scratch/out")" = 1
        expect "leaves no directory" test -z "$(find "$scratch" -name 'chunkkv-*')"
        run 0 compress "$needle" "$scratch/small" --layer 10 --keep-ratio 0.2 --json
        expect "names the file" grep -qE '"kept_count":204,.*"out":"[^"]*/small","bytes":[0-9]+\}$' <<<"$out"
        expect "moved rows" grep -qvE '"move":0,' <<<"$out"
        run 0 explain "$needle" --tokens "${needle%.safetensors}.json" --out "$scratch/page" --keep-ratio 0.2
        expect "says what it wrote" grep -qE "^wrote $scratch/page, [0-9]+ bytes$" <<<"$out"
        expect "a page" grep -q '^<!doctype html>' "$scratch/page"
        expect "leaves no directory" test -z "$(find "$scratch" -name 'chunkkv-*')"
        run 3 ping
        complains "No such file"

        # interrupted in the middle: nothing may stay
        called="plan, interrupted" err=
        "$ctl" plan tests/data/novel-4k.safetensors --keep-ratio 0.2 >/dev/null 2>&1 &
        victim=$!
        until [[ -S $(echo "$scratch"/chunkkv-*/main.fd) ]] || ! kill -0 "$victim" 2>/dev/null; do :; done
        kill -INT "$victim" 2>/dev/null
        wait "$victim"
        status=$?
        expect "exit status 130 or 0, not $status" test "$status" = 130 -o "$status" = 0
        expect "leaves no directory" test -z "$(find "$scratch" -name 'chunkkv-*')"
        called="compress, ended in the middle"
        "$ctl" compress tests/data/novel-4k.safetensors "$scratch/cut" --keep-ratio 0.9 >/dev/null 2>&1 &
        victim=$!
        until [[ -S $(echo "$scratch"/chunkkv-*/main.fd) ]] || ! kill -0 "$victim" 2>/dev/null; do :; done
        kill -TERM "$victim" 2>/dev/null
        wait "$victim"
        status=$?
        expect "exit status 143 or 0, not $status" test "$status" = 143 -o "$status" = 0
        expect "no half a file" test "$status" = 0 -o ! -e "$scratch/cut"
        expect "leaves nothing else" test -z "$(find "$scratch" -name 'chunkkv-*' -o -name '*.tmp')"
        called="compress, interrupted when the file is there"
        "$ctl" compress "$needle" "$scratch/late" --layer 10 --keep-ratio 0.2 >/dev/null 2>&1 &
        victim=$!
        until [[ -e $scratch/late ]] || ! kill -0 "$victim" 2>/dev/null; do :; done
        kill -INT "$victim" 2>/dev/null
        wait "$victim"
        status=$?
        expect "exit status 0, not $status" test "$status" = 0
        run 0 plan "$scratch/late" --layer 11 --keep-ratio 0.2
fi

# ---- a daemon that is there
"$build/chunkkvd" --runtime-dir "$scratch/d" --endpoint main >"$scratch/log" 2>&1 &
daemon=$!
export CHUNKKV_ENDPOINT=$scratch/d/main
called="(waiting for chunkkvd)" err=
for ((i = 0; i < 200; i++)); do
        "$ctl" ping >/dev/null 2>&1 && break
        sleep 0.05
done
run 0 ping
expect "names the daemon" grep -q chunkkvd <<<"$out"
run 0 ping --json
expect "an object" grep -q '"draining":false' <<<"$out"
run 0 status
expect "lists budgets" grep -q sessions <<<"$out"
expect "lists code paths" grep -qE '^keys   queries   head_dim  1-24 +25-96 +97\+$' <<<"$out"
run 0 status --json
expect "lists budgets" grep -q '"slot":"sessions","used":1,' <<<"$out"
expect "lists code paths" grep -q '"code_paths":\[{"key_dtype":"bf16","query_dtype":"bf16","head_dim":\[1,80\],"queries":\[1,24\],' <<<"$out"

run 0 plan "$needle" --layer 10 --keep-ratio 0.2 --json
expect "the form of the answer" grep -qE '^\{"layers":\[\{"layer":10,"physical_before":1024,"logical_len":1024,"kept_count":204,"budget":204,"kept_all":null,"kept":\[\[0,4\],' <<<"$out"
expect "the policy used" grep -q '"policy":{"profile":"default","scorer":"window","selector":"chunk",' <<<"$out"
expect "times" grep -qE '"timing_us":\{"queue":[0-9]+,"score":[0-9]+,"select":[0-9]+,"move":0,"total":[0-9]+\}\}$' <<<"$out"
run 0 plan "$needle" --layer 11 --layer 10 --keep-ratio 0.2 --json
expect "layers ascending" grep -qE '"layer":10,.*"layer":11,' <<<"$out"
run 0 plan "$needle" --keep-ratio 0.2 --json
expect "all layers of the file" test "$(grep -o '"layer":[0-9]*' <<<"$out" | tr -d '"layer:\n')" = 23101118192627
run 0 plan "$needle" --layer 10 --keep-ratio 1 --json
expect "all rows kept" grep -q '"kept_count":1024,"budget":1024,"kept_all":"fits","kept":\[\[0,1024\]\]' <<<"$out"
run 0 plan "$needle" --layer 10 --max-tokens 100 --min-tokens 2000 --json
expect "too short" grep -q '"kept_all":"short","kept":\[\[0,1024\]\]' <<<"$out"
run 0 plan "$needle" --layer 10 --keep-ratio 0.2 --logical-len 5000 --json
expect "logical_len given back" grep -q '"logical_len":5000' <<<"$out"
run 0 plan "$needle" --layer 10 --keep-ratio 0.2
expect "a readable table" grep -qE '^ +10 +1024 +204 +204  0-3 ' <<<"$out"

run 0 compress "$needle" "$scratch/few" --layer 10 --layer 26 --max-tokens 100
expect "a table" grep -qE '^ +26 +1024 +100 +100  0-3 ' <<<"$out"
expect "says what it wrote" grep -qE "^wrote $scratch/few, [0-9]+ bytes$" <<<"$out"
expect "wrote it" test -s "$scratch/few"
run 2 plan "$scratch/few" --layer 10 --keep-ratio 0.5
complains "few: it was compressed before: it has a tensor layer10.kept_rows"
run 0 plan "$scratch/few" --layer 11 --keep-ratio 0.5
run 1 compress "$needle" "$scratch/refused" --layer 10 --keep-ratio 0.2 --chunk 1025
complains "--chunk 1025: "
expect "writes nothing" test -z "$(find "$scratch" -name 'refused*')"
run 1 plan "$needle" --layer 10 --keep-ratio 0.2 --selector h2o
complains "--keep-ratio 0.2: h2o keeps parts of the rows: set heavy and recent_part instead"
complains "(INVALID_ARGUMENT, compress.groups[0].keep_ratio)"
run 1 plan "$needle" --layer 10 --selector h2o
complains "send them all"
run 1 plan "$needle" --layer 10 --keep-ratio 0.2 --heads each
complains "--heads each: "
run 1 plan "$needle" --layer 10 --keep-ratio 0.2 --chunk 1025
complains "--chunk 1025: "
run 1 plan "$needle" --layer 10 --keep-ratio 0.2 --logical-len 5
complains "--logical-len 5: "
run 1 plan "$needle" --layer 10 --max-tokens 20 --tight refuse
complains BUDGET_BELOW_PROTECTED

# one file, layers of different shape, length and dtype; no values anywhere
tensors "$scratch/mixed" '{"layer0.key":{"dtype":"F32","shape":[64,2,4],"data_offsets":[0,2048]},"layer0.query":{"dtype":"F32","shape":[8,4,4],"data_offsets":[2048,2560]},"layer1.key":{"dtype":"BF16","shape":[64,1,8],"data_offsets":[2560,3584]},"layer1.query":{"dtype":"F32","shape":[8,3,8],"data_offsets":[3584,4352]},"layer2.key":{"dtype":"F16","shape":[50,1,8],"data_offsets":[4352,5152]},"layer2.query":{"dtype":"F16","shape":[8,1,8],"data_offsets":[5152,5280]}}' 5280
run 0 plan "$scratch/mixed" --keep-ratio 0.5 --window 8 --min-tokens 0 --chunk 4 --json
expect "all scores equal: the first rows win" grep -q '"layer":0,"physical_before":64,"logical_len":64,"kept_count":32,"budget":32,"kept_all":null,"kept":\[\[0,24\],\[56,64\]\]' <<<"$out"
expect "layer 1" grep -q '"layer":1,"physical_before":64,.*"kept":\[\[0,24\],\[56,64\]\]' <<<"$out"
expect "layer 2" grep -q '"layer":2,"physical_before":50,.*"kept":\[\[0,17\],\[42,50\]\]' <<<"$out"
run 2 plan "$scratch/mixed" --keep-ratio 0.5 --window 8 --value-weight l2
complains layer0.value
run 0 plan "$scratch/mixed" --keep-ratio 0.5 --window 8 --scorer knorm
run 2 plan "$scratch/mixed" --keep-ratio 0.5 --window 8 --scorer lagkv
complains layer0.value

# log-sum-exp beside the queries: of another shape, and wrong; one that is right gives what none gives
tensors "$scratch/lse" '{"layer0.key":{"dtype":"F32","shape":[64,2,4],"data_offsets":[0,2048]},"layer0.query":{"dtype":"F32","shape":[8,4,4],"data_offsets":[2048,2560]},"layer0.lse":{"dtype":"F32","shape":[4,7],"data_offsets":[2560,2672]}}' 2672
run 2 plan "$scratch/lse" --keep-ratio 0.5 --window 8
complains "layer0.lse is not [4 heads, 8 rows] as layer0.query"
tensors "$scratch/lse" '{"layer0.key":{"dtype":"F32","shape":[64,2,4],"data_offsets":[0,2048]},"layer0.query":{"dtype":"F32","shape":[8,4,4],"data_offsets":[2048,2560]},"layer0.lse":{"dtype":"F32","shape":[4,8],"data_offsets":[2560,2688]}}' 2688
run 1 plan "$scratch/lse" --keep-ratio 0.5 --window 8
complains "(BAD_LSE, compress.queries.lse)"
run 0 plan "$scratch/lse" --keep-ratio 0.5 --window 8 --names "lse=no{layer}"

# ---- layer plans, sets of KV heads, kept mass, lengths out of a file
run 0 plan "$needle" --keep-ratio 0.1 --hybrid token --kept-mass --json
expect "the upper half is named" grep -q '"upper_policy":{[^}]*"selector":"token","layer_first":18' <<<"$out"
expect "every layer has its mass" test "$(grep -o '"kept_mass":0\.[0-9]' <<<"$out" | wc -l)" = 8
run 0 compress "$needle" "$scratch/heads" --layer 3 --keep-ratio 0.1 --heads each --selector token --json
expect "three heads" grep -q '"kept_heads":\[\[\[0,4\].*\]\],\[\[0,4\].*\]\],\[\[0,4\]' <<<"$out"
expect "a line of rows for each" grep -qa '"layer3.kept_rows":{"dtype":"I64","shape":\[3,102\]' "$scratch/heads"
printf '500\n 300, 224\n' >"$scratch/lengths"
run 0 plan "$needle" --layer 3 --keep-ratio 0.2 --selector chunk_at --chunk-lengths "$scratch/lengths" --json
from_file=$(grep -o '"kept":.*\]\]' <<<"$out")
run 0 plan "$needle" --layer 3 --keep-ratio 0.2 --selector chunk_at --chunk-lengths 500,300,224 --json
expect "the same lengths, the same rows" test "$(grep -o '"kept":.*\]\]' <<<"$out")" = "$from_file"
run 2 plan "$needle" --layer 3 --keep-ratio 0.2 --selector chunk_at --chunk-lengths "$scratch/none"
complains "or a file of them"
run 0 plan "$needle" --keep-ratio 0.06 --profile vote --json
kept_is '[[0,1],[353,357],[393,418],[993,1024]]'

# ---- right answers: every case of golden.json
while read -r line; do
        file=$(sed -E 's/.*"file": "([^"]*)".*/\1/' <<<"$line")
        kept=$(sed -E 's/.*"kept": (\[.*\])\}.*/\1/; s/ //g' <<<"$line")
        options=()
        while read -r span; do
                options+=(--protect "$span")
        done < <(sed -nE 's/.*"spans": \[(\[.*\])\], "kept_count.*/\1/p' <<<"$line" | sed -E 's/\], \[/\n/g; s/, /:/g; s/[][]//g')
        while read -r key value; do
                [[ $key == keep-ratio ]] && value=$(printf '%d.%06d' $((value / 1000000)) $((value % 1000000)))
                options+=("--$key" "$value")
        done < <(sed -E 's/"(file|kept_count|kept|spans)": ("[^"]*"|[0-9]+|\[\[.*\]\])(, |\})//g; s/[{}]//g; s/, "/\n"/g' <<<"$line" |
                sed -nE 's/^"([a-z_]+)": "?([a-z0-9_.]+)"?.*/\1 \2/p' | sed -E ':a; s/^([a-z-]*)_/\1-/; ta')
        run 0 plan "tests/data/$file" "${options[@]}" --json
        kept_is "$kept"
done < <(grep '"file"' tests/data/golden.json)

# ---- it stands still, it is gone
kill -STOP "$daemon"
run 3 ping --timeout 0.3
complains "in time"
kill -CONT "$daemon"
kill "$daemon"
wait "$daemon"
daemon=
run 3 ping

# ---- a budget that is used up
"$build/chunkkvd" --runtime-dir "$scratch/d" --endpoint main --mapped-bytes 65536 >"$scratch/log" 2>&1 &
daemon=$!
for ((i = 0; i < 200; i++)); do
        "$ctl" ping >/dev/null 2>&1 && break
        sleep 0.05
done
run 1 plan "$needle" --layer 10 --keep-ratio 0.2
complains "(QUOTA of mapped_bytes, "

summary
