#!/usr/bin/env python3
"""A sequence that grows and is compressed again and again, and the map from its rows to the tokens they were.

Run it beside a daemon: CHUNKKV_ENDPOINT=/run/chunkkv/cpu/main python3 examples/compress_again.py
"""

import chunkkv
import numpy as np

LAYERS, ROOM, KV_HEADS, Q_HEADS, DIM, WINDOW = 4, 1024, 2, 8, 64, 32
PROMPT, ROUNDS, STEP, KEEP = 900, 4, 200, 512


def main() -> None:
    """A prompt, then rounds of new tokens; whenever it is full, the cache is compressed to 512 rows."""
    rng = np.random.default_rng(1)
    with chunkkv.Client() as client, chunkkv.SharedCache.allocate(
            client, layers=LAYERS, tokens=ROOM, kv_heads=KV_HEADS, q_heads=Q_HEADS, head_dim=DIM, dtype="f32",
            window=WINDOW) as kv:
        rows = chunkkv.RowMap()

        def write(count: int) -> None:
            """The model's part: new tokens, to the rows behind the last, at positions behind the last."""
            at = rows.physical_len
            first, end = rows.append(count)
            for layer in range(LAYERS):
                for part in (kv.key(layer), kv.value(layer)):
                    part[at : at + count] = rng.normal(size=(count, KV_HEADS, DIM))
                    part[at : at + count, :, 0] = np.arange(first, end)[:, None] / 1000  # to tell rows apart
                kv.query(layer)[...] = rng.normal(size=(WINDOW, Q_HEADS, DIM))

        write(PROMPT)
        for _ in range(ROUNDS):
            answer = client.compress(kv, max_tokens=KEEP, policy=chunkkv.methods.vote(), **rows.arguments())
            rows.compressed(answer)
            assert np.array_equal(kv.value(0)[: rows.physical_len, 0, 0], (rows.positions / 1000).astype(np.float32))
            print(f"{rows.logical_len} tokens so far, {rows.physical_len} rows kept; the next token goes to row "
                  f"{rows.physical_len} and has position {rows.logical_len}; token 500 is "
                  f"{'gone' if rows.row_of(500) is None else f'in row {rows.row_of(500)}'}")
            write(STEP)


if __name__ == "__main__":
    main()
