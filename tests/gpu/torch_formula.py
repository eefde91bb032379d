#!/usr/bin/env python3
"""What the method costs in plain torch on this GPU: attention of the window, pools, chunks, top-k, a gather, per layer.

The formula is that of kvpress (SnapKV inside chunks, profile kvpress), written as its code does it: logits of all query
heads are formed, softmax is taken over them, and the kept rows are copied to new tensors.  Row request of gpu-check has
the same shapes.
"""

from __future__ import annotations

import torch
from torch.nn import functional

SHAPES = [  # name, layers, KV heads, query heads, dimensions, rows, window
    ("Llama-3-8B, 32k, w 32", 32, 8, 32, 128, 32768, 32),
    ("Llama-3-8B, 32k, w 64", 32, 8, 32, 128, 32768, 64),
    ("Llama-3-8B, 8k, w 32", 32, 8, 32, 128, 8192, 32),
    ("Qwen2-7B, 32k, w 32", 28, 4, 28, 128, 32768, 32),
]
CHUNK, POOL, KEPT, REPEATS = 10, 5, 0.2, 5


def scores(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """A score for each chunk: query [q_heads, window, dims], key [kv_heads, rows, dims]."""
    heads, window, dims = query.shape
    kv_heads, rows, _ = key.shape
    logits = query @ key.repeat_interleave(heads // kv_heads, 0).transpose(1, 2) / dims**0.5
    future = torch.ones(window, rows, dtype=torch.bool, device=key.device).triu(rows - window + 1)
    weights = torch.softmax(logits.masked_fill(future, float("-inf")), -1, dtype=torch.float32).mean(1)[:, :-window]
    pooled = functional.avg_pool1d(weights[None], POOL, padding=POOL // 2, stride=1)[0]
    rows_scored = pooled.view(kv_heads, heads // kv_heads, -1).mean(1).sum(0)
    chunks = rows_scored.shape[0] // CHUNK
    return rows_scored[: chunks * CHUNK].view(chunks, CHUNK).mean(1)


def compress(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """New tensors of the kept rows."""
    chunk_scores = scores(query, key)
    best = torch.topk(chunk_scores, int(len(chunk_scores) * KEPT)).indices.sort().values
    rows = (best[:, None] * CHUNK + torch.arange(CHUNK, device=key.device)).flatten()
    return key[:, rows].contiguous(), value[:, rows].contiguous()


def seconds(layers: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> float:
    """Of all layers, one after the other; the best of some."""
    best = float("inf")
    for _ in range(REPEATS + 1):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _layer in range(layers):
            compress(query, key, value)
        end.record()
        torch.cuda.synchronize()
        best = min(best, start.elapsed_time(end) / 1000)
    return best


def main() -> None:
    """A line for each shape."""
    print(f"torch {torch.__version__}")
    for name, layers, kv_heads, heads, dims, rows, window in SHAPES:
        query = torch.randn(heads, window, dims, device="cuda", dtype=torch.bfloat16)
        key, value = (torch.randn(kv_heads, rows, dims, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        print(f"{name}, 20 % kept: {1e6 * seconds(layers, query, key, value):.0f} us")


if __name__ == "__main__":
    main()
