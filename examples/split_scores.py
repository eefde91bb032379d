#!/usr/bin/env python3
"""Tensor parallel: each rank holds some of the KV heads, and all must keep the same rows.

Each rank has its own heads scored, the scores are added up (an all-reduce of one float32 for each row), and each rank
selects by the sum.  Here both ranks live in one process.
Run it beside a daemon: CHUNKKV_ENDPOINT=/run/chunkkv/cpu/main python3 examples/split_scores.py
"""

import chunkkv
import numpy as np

RANKS, LAYERS, ROWS, KV_HEADS, Q_HEADS, DIM, WINDOW = 2, 3, 1000, 4, 16, 64, 32


def main() -> None:
    """Scores out, summed, and in again."""
    rng = np.random.default_rng(1)
    with chunkkv.Client() as client:
        ranks = [chunkkv.SharedCache.allocate(client, layers=LAYERS, tokens=ROWS, kv_heads=KV_HEADS // RANKS,
                                              q_heads=Q_HEADS // RANKS, head_dim=DIM, window=WINDOW, dtype="f32")
                 for _ in range(RANKS)]
        for kv in ranks:
            for layer in range(LAYERS):
                for part in (kv.key(layer), kv.value(layer), kv.query(layer)):
                    part[...] = rng.normal(size=part.shape)
        request = {"rows": ROWS, "keep_ratio": 0.2, "policy": chunkkv.methods.chunkkv(), "score_kind": "rows"}
        scores = [client.plan(kv, scores_out=True, **request).groups[0].scores for kv in ranks]
        total = np.sum(scores, axis=0, dtype=np.float32)
        answers = [client.compress(kv, scores_in=total, **request) for kv in ranks]
        for layer in range(LAYERS):
            assert np.array_equal(answers[0].layers[layer].rows, answers[1].layers[layer].rows)
        print(f"scores {total.shape} of {RANKS} ranks; both kept the same {answers[0].physical_len} rows on each layer")
        for kv in ranks:
            kv.close()


if __name__ == "__main__":
    main()
