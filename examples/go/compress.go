// A real cache, compressed in place from Go.  The file holds 8 layers of SmolLM2: keys, queries, values.
//
//	CGO_CFLAGS="$(pkg-config --cflags chunkkv)" CGO_LDFLAGS="$(pkg-config --libs chunkkv)" go run compress.go needle-1k.safetensors
package main

// #include <chunkkv.h>
import "C"

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"unsafe"
)

func main() {
	file, _ := os.ReadFile(os.Args[1])
	before := file[8+binary.LittleEndian.Uint64(file):]
	shape := C.struct_chunkkv_shape{layers: 8, rows: 1024, kv_heads: 3, q_heads: 9, head_dim: 64, query_rows: 64,
		dtype: C.CHUNKKV_DTYPE_BF16, key: 0, value: 522240, query: 393216, layer_stride: 915456}
	var client *C.struct_chunkkv_client
	var kv C.struct_chunkkv_dense
	var result *C.struct_chunkkv_result
	var e C.struct_chunkkv_error
	if C.chunkkv_connect(nil, &client, &e) != 0 || C.chunkkv_dense_create(client, &shape, &kv, &e) != 0 {
		panic(C.GoString(&e.detail[0]))
	}
	now := unsafe.Slice((*byte)(kv.memory.address), kv.memory.size)
	copy(now, before)
	if C.chunkkv_dense_compress(client, &kv, C.CHUNKKV_MODE_IN_PLACE, shape.rows, 200000, &result, &e) != 0 {
		panic(C.GoString(&e.detail[0]))
	}
	rows, wrong := make([]C.uint32_t, result.groups.physical_len), 0
	for layer := 0; layer < 8; layer++ {
		set := C.chunkkv_set_find(result.groups, C.uint32_t(layer), 0)
		C.chunkkv_runs_to_rows(set.runs, set.run_count, &rows[0], C.size_t(len(rows)))
		for i, row := range rows {
			to, from := layer*915456+i*384, layer*915456+int(row)*384
			if !bytes.Equal(now[to:to+384], before[from:from+384]) {
				wrong++
			}
		}
	}
	fmt.Printf("kept %d of 1024 rows, digest %016x, %d wrong\n", len(rows), uint64(result.groups.kept_digest), wrong)
	C.chunkkv_close(client)
	os.Exit(wrong)
}
