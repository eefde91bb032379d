#!/usr/bin/env python3
"""Compress a KV cache in place: allocate shared memory, fill it, ask the daemon, look at what is left.

Run it beside a daemon: CHUNKKV_ENDPOINT=/run/chunkkv/cpu/main python3 examples/compress_in_place.py
"""

import chunkkv
import numpy as np

LAYERS, TOKENS, KV_HEADS, Q_HEADS, DIM, WINDOW = 4, 2048, 2, 8, 64, 32


def main() -> None:
    """One sequence of random rows, to a quarter."""
    rng = np.random.default_rng(1)
    with chunkkv.Client() as client, chunkkv.SharedCache.allocate(
            client, layers=LAYERS, tokens=TOKENS, kv_heads=KV_HEADS, q_heads=Q_HEADS, head_dim=DIM, dtype="bf16",
            window=WINDOW) as kv:
        for layer in range(LAYERS):
            kv.write(layer, key=rng.normal(size=(TOKENS, KV_HEADS, DIM)),
                     value=rng.normal(size=(TOKENS, KV_HEADS, DIM)), query=rng.normal(size=(WINDOW, Q_HEADS, DIM)))
        before = kv.key(0).copy()
        answer = client.compress(kv, rows=TOKENS, keep_ratio=0.25)
        kept = answer.layers[0].rows
        assert np.array_equal(kv.key(0)[: len(kept)], before[kept])
        print(f"kept {answer.physical_len} of {TOKENS} rows in {answer.timing.total_us} us")
        print(f"the next token goes to slot {answer.physical_len} and has position {answer.logical_len}")
        print("layer 0:", answer.layers[0].kept)


if __name__ == "__main__":
    main()
