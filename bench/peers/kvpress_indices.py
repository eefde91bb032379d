#!/usr/bin/env python3
"""kvpress beside the daemon on the same tensors, in float32: do they keep the same rows, method by method?

    make bench-peers-indices

Profile `kvpress` promises equal sets (R51 to R54 of the specification).  Each difference is listed with its reason;
one that no known reason accounts for (reasons.py) makes the exit status 1.  Tensors are those of tests/data, widened
from bfloat16, random ones of several shapes, and some made to show what is known to differ.  With --self-test every
answer of the daemon has one row exchanged for another, and each must be found out.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "clients" / "python" / "src"), str(ROOT / "tests" / "python"), str(Path(__file__).parent)]
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("TQDM_DISABLE", "1")

import numpy as np  # noqa: E402
import torch  # noqa: E402

import chunkkv  # noqa: E402
import presses  # noqa: E402
import reasons  # noqa: E402
import tensors  # noqa: E402
from daemon import Daemon  # noqa: E402
from presses import METHODS, Input, Method, Rows  # noqa: E402

KEEP = (100_000, 200_000, 300_000, 500_000)
FILES = ("needle-1k.safetensors", "novel-4k.safetensors")
# rows, layers, KV heads, query heads, head size, window, chunk
SHAPES = [
    (300, 4, 2, 4, 16, 8, 10), (301, 4, 3, 9, 32, 16, 20), (517, 5, 1, 7, 64, 64, 20), (640, 3, 4, 4, 24, 32, 16),
    (777, 6, 2, 10, 16, 64, 10), (1024, 2, 2, 8, 64, 64, 20), (1500, 4, 8, 8, 16, 32, 5), (263, 2, 2, 2, 8, 64, 20),
    (450, 3, 2, 6, 128, 4, 10), (999, 4, 3, 3, 32, 64, 7)]


# ---- what is compressed

def fixtures() -> Iterator[Input]:
    for file in FILES:
        layers = tensors.load(file).values()
        yield Input(file.split(".")[0], *([tensors.widen(getattr(x, name)) for x in layers]
                                          for name in ("query", "key", "value")))


def random_inputs(seeds: int) -> Iterator[Input]:
    for seed in range(seeds * len(SHAPES)):
        rows, layers, heads, q_heads, dim, window, chunk = SHAPES[seed % len(SHAPES)]
        rng = np.random.default_rng(seed)

        q, k, v = ([rng.standard_normal((count, of, dim), np.float32) for _ in range(layers)]
                   for count, of in ((window, q_heads), (rows, heads), (rows, heads)))
        yield Input(f"random-{seed}", q, k, v, window, chunk)


def made_to_differ() -> Iterator[Input]:
    """Keys of which many are the same; and a channel that never changes."""
    rng = np.random.default_rng(1)
    q, v = (rng.standard_normal((n, 2, 16), np.float32) for n in (64, 600))
    few = rng.standard_normal((20, 2, 16), np.float32)
    yield Input("equal keys", [q], [few[rng.integers(0, 20, 600)]], [v])
    k = rng.standard_normal((600, 2, 16), np.float32)
    k[:, :, 3] = 0.5
    yield Input("constant channel", [q], [k], [v])


# ---- both sides

def kept_by_daemon(client: chunkkv.Client, cache: chunkkv.SharedCache, data: Input, method: Method,
                   keep_ratio: int) -> list[list[Rows]]:
    """Rows of each layer and KV head; what lies at the front of the cache afterwards must be those rows."""
    for layer in range(len(data.k)):
        cache.write(layer, key=data.k[layer], value=data.v[layer], query=data.q[layer])
    policy = chunkkv.Policy(profile="kvpress", **method.policy(data))
    answer = client.compress(cache, rows=data.rows, keep_ratio=keep_ratio / 1e6, policy=policy)
    found = []
    for layer in range(len(data.k)):
        rows = [answer.layers[layer].rows_of(head).astype(np.int64) for head in range(data.heads)]
        for head, kept in enumerate(rows):
            assert np.array_equal(cache.key(layer)[: len(kept), head], data.k[layer][kept, head])
            assert np.array_equal(cache.value(layer)[: len(kept), head], data.v[layer][kept, head])
        found.append(rows)
    return found


@dataclass(frozen=True)
class Case:
    """One method, input, kept ratio, layer and head."""

    method: str
    input: str
    keep: float
    layer: int
    head: int
    rows_daemon: int
    rows_kvpress: int
    jaccard: float
    reason: str | None  # of a difference; "" where there is none, None where it is unexplained


def spoiled(rows: Rows, length: int) -> Rows:
    """One kept row exchanged for one that was not."""
    left = np.setdiff1d(np.arange(length), rows)
    return np.sort(np.r_[np.delete(rows, len(rows) // 2), left[len(left) // 2]])


def compare(client: chunkkv.Client, data: Input, spoil: bool) -> Iterator[Case]:
    with chunkkv.SharedCache.allocate(client, layers=len(data.k), tokens=data.rows, kv_heads=data.heads,
                                      q_heads=int(data.q[0].shape[1]), head_dim=int(data.k[0].shape[2]), dtype="f32",
                                      window=len(data.q[0])) as cache:
        for method in METHODS:
            for keep_ratio in KEEP:
                removed = (1_000_000 - keep_ratio) / 1e6
                press = method.press(data, removed)
                daemon = kept_by_daemon(client, cache, data, method, keep_ratio)
                for layer, heads in enumerate(daemon):
                    theirs = presses.kept_by(press, data, layer)
                    for head, rows in enumerate(heads):
                        ours = spoiled(rows, data.rows) if spoil else rows
                        d = reasons.Difference(data, method, layer, head, keep_ratio, ours, theirs[head])
                        same = np.array_equal(ours, theirs[head])
                        common = len(np.intersect1d(ours, theirs[head]))
                        yield Case(method.name, data.name, keep_ratio / 1e6, layer, head, len(ours), len(theirs[head]),
                                   common / len(np.union1d(ours, theirs[head])), "" if same else reasons.reason_for(d))


# ---- what is said of it

def list_differences(cases: list[Case]) -> None:
    """A line for each method, input and kept ratio that has any, by reason."""
    found: dict[tuple[str, str | None], dict[tuple[str, float], list[Case]]] = {}
    for case in cases:
        if case.reason != "":
            found.setdefault((case.method, case.reason), {}).setdefault((case.input, case.keep), []).append(case)
    for (method, reason), places in found.items():
        print(f"\n{method}: {reason or 'UNEXPLAINED'}")
        for (name, keep), some in places.items():
            where = ", ".join(sorted({f"{c.layer}" for c in some}, key=int))
            print(f"  {name}, keep {keep:.0%}: {len(some)} sets, layers {where}, "
                  f"Jaccard {min(c.jaccard for c in some):.3f} to {max(c.jaccard for c in some):.3f}")


def print_table(cases: list[Case]) -> None:
    print(f"\n{'method':14}{'sets':>8}{'equal':>8}{'explained':>11}{'unexplained':>13}{'lowest Jaccard':>16}")
    for method in METHODS:
        own = [c for c in cases if c.method == method.name]
        count = Counter("equal" if c.reason == "" else "unexplained" if c.reason is None else "explained" for c in own)
        print(f"{method.name:14}{len(own):8}{count['equal']:8}{count['explained']:11}{count['unexplained']:13}"
              f"{min(c.jaccard for c in own):16.3f}")


def main() -> int:
    parser = argparse.ArgumentParser(description="kvpress and the daemon, set for set")
    parser.add_argument("--seeds", type=int, default=2, help="random inputs of each shape")
    parser.add_argument("--self-test", action="store_true", help="spoil the daemon's answers; each must be found out")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "peers.json")
    args = parser.parse_args()

    torch.set_num_threads(1)
    daemon = Daemon()
    cases: list[Case] = []
    try:
        with chunkkv.Client(daemon.prefix(), timeout=60) as client:
            every = [*fixtures(), *random_inputs(args.seeds), *made_to_differ()]
            for data in random_inputs(1) if args.self_test else every:
                cases += compare(client, data, args.self_test)
    finally:
        daemon.stop()
    unexplained = [c for c in cases if c.reason is None]
    if args.self_test:
        missed = [c for c in cases if c.reason is not None]
        for case in missed:
            print(f"not found out: {case}")
        print(f"{len(cases)} spoiled sets, {len(missed)} not found out")
        return 1 if missed else 0
    list_differences(cases)
    print_table(cases)
    args.out.write_text(json.dumps({"kvpress": "0.5.5", "torch": torch.__version__,
                                    "cases": [vars(c) for c in cases]}, indent=0) + "\n")
    print(f"\n{len(cases)} sets, {len(unexplained)} differences without a known reason; all in {args.out}")
    return 1 if unexplained else 0


if __name__ == "__main__":
    sys.exit(main())
