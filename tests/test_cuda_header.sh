#!/bin/bash
# test_cuda_header.sh: kernels/cuda_types.h and kernels/cuda_api.def say of the CUDA driver what cuda.h says.
#
# Every number is compared, the size of every struct, and that each entry point exists under its exact name.
# Where there is no cuda.h (CUDA_HOME, /usr/local/cuda*) there is nothing to compare with.
set -euo pipefail
cd "$(dirname "$0")/.."

for include in "${CUDA_HOME:-/nowhere}/include" /usr/local/cuda*/include /usr/local/cuda*/targets/*/include; do
        [[ -f $include/cuda.h ]] && break
done
if [[ ! -f $include/cuda.h ]]; then
        echo "test_cuda_header: there is no cuda.h here, nothing was compared"
        exit 77
fi

structs=(CUuuid CUipcMemHandle CUmemLocation CUmemAccessDesc CUmemAllocationProp CUdeviceptr CUmemGenericAllocationHandle)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

{
        echo '#include <stdio.h>'
        echo '#include "kernels/cuda_types.h"'
        echo '#define SIZE(type) printf("_Static_assert(sizeof(%s) == %zu, \"size\");%c", #type, sizeof(type), 10)'
        printf 'int main(void) {\n'
        printf '        SIZE(%s);\n' "${structs[@]}"
        printf '        return 0;\n}\n'
} >"$work/sizes.c"
cc -I. -o "$work/sizes" "$work/sizes.c"

{
        echo '#define __CUDA_API_VERSION_INTERNAL'
        echo '#include <cuda.h>'
        "$work/sizes"
        grep -oE '\bCU(DA)?_[A-Z0-9_]+ = [0-9]+' kernels/cuda_types.h |
                sed -E 's/(.*) = (.*)/_Static_assert(\1 == \2, "\1");/'
        echo '#define REQUIRED(name, arguments) void *look_##name(void) { return (void *)name; }'
        echo '#define OPTIONAL(name, arguments) REQUIRED(name, arguments)'
        echo '#define EXPORT(name, arguments) REQUIRED(name, arguments)'
        echo '#include "kernels/cuda_api.def"'
} >"$work/compare.c"
numbers=$(grep -c _Static_assert "$work/compare.c")
if ! cc -I. -I"$include" -Werror=implicit-function-declaration -fsyntax-only "$work/compare.c"; then
        echo "test_cuda_header: kernels/cuda_types.h or cuda_api.def differs from $include/cuda.h"
        exit 1
fi
if ((numbers < 60)); then
        echo "test_cuda_header: only $numbers numbers were found in kernels/cuda_types.h"
        exit 1
fi
echo "test_cuda_header: $numbers numbers and sizes, and all entry points, as in $include/cuda.h"
