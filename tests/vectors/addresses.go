// The address examples of layouts.json in Go, by chunkkv_plane_offset() of the C library.
//
//	addresses layouts.json
package main

// #include <chunkkv.h>
import "C"
import (
	"encoding/json"
	"fmt"
	"os"
)

type axis struct {
	Tile         uint32
	Outer, Inner uint64
}

type row struct {
	Name  string
	Group struct {
		KVHeads        uint32 `json:"kv_heads"`
		QHeads         uint32 `json:"q_heads"`
		HeadDimK       uint32 `json:"head_dim_k"`
		HeadDimV       uint32 `json:"head_dim_v"`
		TokensPerBlock uint32 `json:"tokens_per_block"`
		NumBlocks      uint32 `json:"num_blocks"`
	}
	Planes []struct {
		Kind        string
		LayerFirst  uint32 `json:"layer_first"`
		LayerCount  uint32 `json:"layer_count"`
		Offset      uint64
		LayerStride uint64 `json:"layer_stride"`
		BlockStride uint64 `json:"block_stride"`
		HeadStride  uint64 `json:"head_stride"`
		Token, Dim  axis
	}
	Examples []struct {
		Plane, Layer, Block, Head, Token, Dim uint32
		Offset                                uint64
	}
}

var kinds = map[string]C.uint32_t{"K": C.CHUNKKV_PLANE_K, "V": C.CHUNKKV_PLANE_V, "LATENT": C.CHUNKKV_PLANE_LATENT}

func toC(a axis) C.struct_chunkkv_axis {
	return C.struct_chunkkv_axis{tile: C.uint32_t(a.Tile), outer: C.uint64_t(a.Outer), inner: C.uint64_t(a.Inner)}
}

func fail(format string, args ...any) {
	fmt.Fprintf(os.Stderr, format+"\n", args...)
	os.Exit(1)
}

func main() {
	text, err := os.ReadFile(os.Args[1])
	var rows []row
	if err == nil {
		err = json.Unmarshal(text, &rows)
	}
	if err != nil {
		fail("%v", err)
	}
	checked := 0
	for _, r := range rows {
		group := C.struct_chunkkv_group{kv_heads: C.uint32_t(r.Group.KVHeads), q_heads: C.uint32_t(r.Group.QHeads),
			head_dim_k: C.uint32_t(r.Group.HeadDimK), head_dim_v: C.uint32_t(r.Group.HeadDimV),
			tokens_per_block: C.uint32_t(r.Group.TokensPerBlock), num_blocks: C.uint32_t(r.Group.NumBlocks)}
		for _, e := range r.Examples {
			p := r.Planes[e.Plane]
			plane := C.struct_chunkkv_plane{kind: kinds[p.Kind], layer_first: C.uint32_t(p.LayerFirst),
				layer_count: C.uint32_t(p.LayerCount), offset: C.uint64_t(p.Offset), layer_stride: C.uint64_t(p.LayerStride),
				block_stride: C.uint64_t(p.BlockStride), head_stride: C.uint64_t(p.HeadStride), token: toC(p.Token), dim: toC(p.Dim)}
			var offset C.uint64_t
			if C.chunkkv_plane_offset(&group, &plane, C.uint32_t(e.Layer), C.uint32_t(e.Block), C.uint32_t(e.Head),
				C.uint32_t(e.Token), C.uint32_t(e.Dim), &offset, nil) != 0 || uint64(offset) != e.Offset {
				fail("%s: plane %d: %d and not %d", r.Name, e.Plane, offset, e.Offset)
			}
			checked++
		}
	}
	fmt.Printf("%d addresses\n", checked)
}
