#!/usr/bin/env python3
"""What each method changes in the output of attention, on the real tensors of tests/data.

    make bench-accuracy-small

The daemon plans (and where heads keep different rows, compresses) each layer at 10, 20 and 30 % kept; then the rows of
`layerN.query_later`, which the model asked after the prompt and no selector has seen, attend to all rows of the prompt,
and to the kept ones alone.  The error of a layer is |o' - o| / |o| over all these rows, heads and dimensions, in the
l2 norm and in the l1 norm; a figure of a method is the mean over the layers of a file.  Keys of the later rows
themselves are not in the files: only what they see of the prompt is compared.

The error is no measure of answers: it weighs every row alike, and the few that hold a fact vanish among the rest.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "clients" / "python" / "src"), str(ROOT / "tests" / "python"), str(Path(__file__).parent)]
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np  # noqa: E402
from numpy.typing import NDArray  # noqa: E402

import accuracy_plot  # noqa: E402
import chunkkv  # noqa: E402
from chunkkv import Policy, from_bf16, methods, safetensors  # noqa: E402
from chunkkv.text import chunk_lengths  # noqa: E402
from daemon import Daemon  # noqa: E402

FILES = ("needle-1k", "novel-4k")
KEEP = (0.1, 0.2, 0.3)
BLOCK = 16
# h2o wants the queries of all rows, and the files have those of the last 64
NAMES = [*(name for name in methods.METHODS if name != "h2o"), "hybrid"]
DOCS = ROOT / "docs"
BEGIN, END = "<!-- written by bench/accuracy_small.py -->", "<!-- until here -->"
F64 = NDArray[np.float64]


class File:
    """The cache of one prompt in blocks of 16, and what was asked after it."""

    def __init__(self, client: chunkkv.Client, name: str) -> None:
        stem = ROOT / "tests" / "data" / name
        about = json.loads(stem.with_suffix(".json").read_text())
        self.name, self.rows, self.layers = name, about["tokens"], about["layers"]
        self.lengths = chunk_lengths(about["pieces"])
        found = safetensors.load(stem.with_suffix(".safetensors"))
        bits = {kind: np.stack([found[f"layer{n}.{kind}"] for n in self.layers])
                for kind in ("key", "value", "query", "query_later")}
        self.before = bits["key"], bits["value"]
        shape = (len(self.layers), self.rows // BLOCK, BLOCK, *bits["key"].shape[2:])
        size, count = bits["key"].nbytes, len(self.layers)
        memory = chunkkv.SharedMemory.allocate(2 * size + bits["query"].nbytes)
        self.planes = [memory.numpy(shape, "bf16", i * size) for i in (0, 1)]
        queries = memory.numpy(bits["query"].shape, "bf16", 2 * size)
        queries[...] = bits["query"]
        region = client.register_region(memory)
        self.queries = chunkkv.Queries.of_array(queries, region=region, dtype="bf16")
        self.cache = client.register_cache(chunkkv.CacheLayout.of_arrays(
            list(self.planes[0]), list(self.planes[1]), axes="bthd", q_heads=about["query_heads"], region=region,
            layers=tuple(self.layers), dtype="bf16"))
        key, value, later = (from_bf16(bits[kind]).astype(np.float64) for kind in ("key", "value", "query_later"))
        groups = about["query_heads"] // about["kv_heads"]
        # [layer][query head][later row][row]
        self.logits = np.einsum("ntgpd,njgd->ngptj", later.reshape(count, later.shape[1], -1, groups, later.shape[3]),
                                key) * about["scale"]
        self.values = np.moveaxis(value, 2, 1)  # [layer][KV head][row][dim]
        self.full = [self.attend(i, [np.arange(self.rows)] * about["kv_heads"]) for i in range(count)]

    def attend(self, layer: int, kept: Sequence[NDArray[Any]]) -> F64:
        """The output of attention of the later rows over the kept rows of each KV head."""
        out = []
        for head, rows in enumerate(kept):
            logits = self.logits[layer, head][:, :, rows]
            weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
            out.append(weights @ self.values[layer, head, rows] / weights.sum(axis=-1, keepdims=True))
        return np.stack(out)

    def restore(self) -> None:
        for plane, before in zip(self.planes, self.before, strict=True):
            plane[...] = before.reshape(plane.shape)


@dataclass(frozen=True)
class Figure:
    """One method on one file at one kept ratio."""

    file: str
    method: str
    keep: float
    rows: float  # kept, mean over layers
    l2: float
    l1: float
    l2_of_layers: list[float]


def measure(client: chunkkv.Client, file: File, name: str, keep: float) -> Figure:
    policy: Policy | list[Policy] = methods.hybrid(file.layers) if name == "hybrid" else methods.get(name)
    file.restore()
    run = client.compress if name == "snapkv-each" else client.plan
    answer = run(file.cache, rows=file.rows, keep_ratio=keep, policy=policy, queries=file.queries, timeout=60,
                 table=range(file.rows // BLOCK), chunk_lengths=file.lengths if name == "chunk-at" else None)
    l1, l2, rows = [], [], []
    for i, layer in enumerate(file.layers):
        kept = [answer.layers[layer].rows_of(head) for head in range(len(file.full[i]))]
        gap, full = file.attend(i, kept) - file.full[i], file.full[i]
        l2.append(float(np.sqrt((gap**2).sum() / (full**2).sum())))
        l1.append(float(np.abs(gap).sum() / np.abs(full).sum()))
        rows.append(len(kept[0]))
    return Figure(file.name, name, keep, float(np.mean(rows)), float(np.mean(l2)), float(np.mean(l1)), l2)


def ordered(figures: list[Figure]) -> list[str]:
    """Methods by their mean l2 error at all kept ratios and files, lowest first."""
    return sorted(NAMES, key=lambda name: float(np.mean([f.l2 for f in figures if f.method == name])))


def table(figures: list[Figure]) -> Iterator[str]:
    """In Markdown: for each file and kept ratio the l2 and the l1 error, in per cent."""
    heads = [f"{file} {keep:.0%}" for file in FILES for keep in KEEP]
    yield "| method | " + " | ".join(heads) + " |"
    yield "|---|" + "---|" * len(heads)
    place = {(f.file, f.method, f.keep): f for f in figures}
    for name in ordered(figures):
        cells = [place[file, name, keep] for file in FILES for keep in KEEP]
        yield f"| `{name}` | " + " | ".join(f"{100 * f.l2:.1f} / {100 * f.l1:.1f}" for f in cells) + " |"


def write_docs(lines: list[str], plot: str) -> None:
    page = DOCS / "accuracy.md"
    head, _, rest = page.read_text().partition(BEGIN)
    page.write_text("\n".join([head + BEGIN, *lines, END]) + rest.partition(END)[2])
    (DOCS / "accuracy.svg").write_text(plot)


def main() -> int:
    parser = argparse.ArgumentParser(description="error of attention's output, by method")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "accuracy-small.json", help="beside it: .svg")
    parser.add_argument("--docs", action="store_true", help="put table and plot into docs/, too")
    args = parser.parse_args()

    figures: list[Figure] = []
    daemon = Daemon()
    try:
        with chunkkv.Client(daemon.prefix(), timeout=60) as client:
            for file_name in FILES:
                file = File(client, file_name)
                figures += [measure(client, file, name, keep) for name in NAMES for keep in KEEP]
    finally:
        daemon.stop()
    lines = list(table(figures))
    print("Relative error of attention's output in per cent, l2 / l1, mean over layers\n")
    print("\n".join(lines))
    args.out.write_text(json.dumps({"figures": [vars(f) for f in figures]}, indent=0) + "\n")
    plot = accuracy_plot.svg([(f.file, f.method, f.keep, f.l2) for f in figures], ordered(figures))
    args.out.with_suffix(".svg").write_text(plot)
    print(f"\n{args.out}\n{args.out.with_suffix('.svg')}")
    if args.docs:
        write_docs(lines, plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
