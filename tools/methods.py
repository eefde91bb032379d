#!/usr/bin/env python3
"""What docs/methods.md shows of the methods, out of the methods themselves.

    tools/methods.py tables             the tables between <!-- NAME --> marks, from chunkkv.methods; printed
    tools/methods.py write [DIR]        (make methods) those tables into docs/methods.md, and pictures into docs/; or
                                        the pictures alone into DIR

The pictures are of what a daemon that is started for it keeps of tests/data/needle-1k: a strip for each method, and a
map of layers over rows for chunks and for single tokens.
"""

from __future__ import annotations

import os
import re
import sys
from dataclasses import MISSING, fields
from html import escape
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "clients" / "python" / "src"), str(ROOT / "tools")]

import chunkkv  # noqa: E402
import demo  # noqa: E402
import numpy as np  # noqa: E402
from chunkkv import Policy, methods  # noqa: E402
from chunkkv_eval.daemon import private  # noqa: E402

DOCUMENT = ROOT / "docs" / "methods.md"
RATIOS = (0.1, 0.2)
BLOCK = 16
NOT_SHOWN = {"h2o": "needs all queries; the file has 64"}
PREFIXES = {"heads": "HEADS", "value_weight": "WEIGHT"}


# ---- tables

def said(policy: Policy) -> dict[str, object]:
    """Members of a policy that its method sets."""
    defaults = {item.name: None if item.default is MISSING else item.default for item in fields(Policy)}
    return {name: value for name in defaults if (value := getattr(policy, name)) != defaults[name]}


def option(name: str, value: object) -> str:
    """A member as an option of chunkkvctl."""
    word = {"layers": "layer-sets"}.get(name, name.replace("_", "-"))
    return f"--{word} {value / 1e6:g}" if name in ("heavy", "recent_part") else f"--{word} {value}"


def member(name: str, value: object) -> str:
    """A member as C has it."""
    if isinstance(value, str):
        return f".{name} = CHUNKKV_{PREFIXES.get(name, name.upper())}_{value.upper()}"
    return f".{name} = {{ true, {value} }}" if name in ("sinks", "recent", "min_tokens") else f".{name} = {value}"


def options_of(name: str) -> list[str]:
    """The words that chunkkvctl plan needs for a method."""
    return " ".join(option(*item) for item in said(methods.get(name)).items()).split()


def initializer_of(name: str) -> str:
    """The struct chunkkv_policy of a method."""
    inside = ", ".join(member(*item) for item in said(methods.get(name)).items())
    return f"{{ {inside or '0'} }}"


def about(name: str) -> tuple[str, str]:
    """What a method is, and what it needs, in the words of its function."""
    text = " ".join((methods.METHODS[name].__doc__ or "").split("\n\n    It")[0].split())
    needs = re.search(r" Needs (.*?)\.(?= |$)", text)
    assert needs, f"{name}: its function does not say what it needs"
    return text[: needs.start()].strip(), needs[1]


def linked(text: str) -> str:
    """arXiv's numbers as links."""
    return re.sub(r"\b(\d{4}\.\d{5})\b", r"[\1](https://arxiv.org/abs/\1)", text)


def tables() -> dict[str, str]:
    """Generated parts of the document."""
    what = ["| method | what it keeps | needs |", "| --- | --- | --- |"]
    ask = ["| Python: `chunkkv.methods` | `chunkkvctl plan` | C: `struct chunkkv_policy` |", "| --- | --- | --- |"]
    for name in methods.METHODS:
        is_what, needs = about(name)
        what.append(f"| `{name}` | {linked(is_what)} | {needs} |")
        ask.append(f"| `{name.replace('-', '_')}()` | `{' '.join(options_of(name)) or '(nothing)'}` | "
                   f"`{initializer_of(name)}` |")
    return {"methods": "\n".join(what), "asking": "\n".join(ask)}


def filled(text: str) -> str:
    """The document with its generated parts as they should be."""
    for name, table in tables().items():
        place = rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)"
        text, count = re.subn(place, lambda m, t=table: f"{m[1]}{t}\n{m[2]}", text, flags=re.DOTALL)
        assert count == 1, name
    return text


# ---- what the daemon keeps

class Text:
    """The fixture in a cache of blocks, as an engine has it."""

    def __init__(self, client: chunkkv.Client) -> None:
        self.client, self.text = client, demo.load()
        self.layers, self.rows = self.text.layers, len(self.text.pieces)
        shape = (len(self.layers), self.rows // BLOCK, BLOCK, 3, 64)
        plane, queries = 2 * int(np.prod(shape)), (len(self.layers), demo.WINDOW, 9, 64)
        memory = chunkkv.SharedMemory.allocate(2 * plane + 2 * int(np.prod(queries)))
        region = client.register_region(memory)
        self.planes = [memory.numpy(shape, "bf16", i * plane) for i in (0, 1)]
        asked = memory.numpy(queries, "bf16", 2 * plane)
        for i, layer in enumerate(self.layers):
            asked[i] = self.text.tensors[f"layer{layer}.query"]
        self.queries = chunkkv.Queries.of_array(asked, region=region, dtype="bf16")
        self.cache = client.register_cache(chunkkv.CacheLayout.of_arrays(
            [self.planes[0]], [self.planes[1]], axes="lbthd", q_heads=9, region=region, dtype="bf16"))

    def kept(self, name: str, ratio: float) -> np.ndarray:
        """[layers][KV heads or 1][rows]: 1 where a row is kept."""
        for plane, part in zip(self.planes, ("key", "value"), strict=True):
            for i, layer in enumerate(self.layers):
                plane[i] = self.text.tensors[f"layer{layer}.{part}"].reshape(plane[i].shape)
        policy = methods.get(name)
        lengths = chunkkv.text.chunk_lengths(self.text.pieces, wrapped=True) if policy.selector == "chunk_at" else None
        run = self.client.compress if policy.heads == "each" else self.client.plan
        answer = run(self.cache, rows=self.rows, table=range(self.rows // BLOCK), queries=self.queries, policy=policy,
                     keep_ratio=ratio, chunk_lengths=lengths)
        heads = 3 if policy.heads == "each" else 1
        out = np.zeros((len(self.layers), heads, self.rows))
        for i, layer in answer.layers.items():  # numbered 0, 1, 2, ... there
            for head in range(heads):
                out[i, head, layer.rows_of(head)] = 1
        return out


# ---- pictures

LEFT, UNIT, STRIP, TOP = 128, 3, 8, 52
BLUE, RED, GREY = "#1f4e9c", "#c2410c", "#eef0f4"


def strip(values: np.ndarray, x: int, y: int, height: int, levels: int = 8) -> str:
    """A row of boxes, darker where more is kept; values 0 to 1, one for each box."""
    level = np.rint(values * levels).astype(int)
    runs: dict[int, list[str]] = {}
    edges = [0, *(np.flatnonzero(np.diff(level)) + 1).tolist(), len(level)]
    for first, end in pairwise(edges):
        if level[first]:
            runs.setdefault(level[first], []).append(f"M{x + first * UNIT} {y + height / 2:g}h{(end - first) * UNIT}")
    out = [f'<path d="M{x} {y + height / 2:g}h{len(level) * UNIT}" stroke="{GREY}" stroke-width="{height}"/>']
    for n, parts in sorted(runs.items()):
        path = "".join(parts)
        out.append(f'<path d="{path}" stroke="{BLUE}" stroke-opacity="{n / levels:g}" stroke-width="{height}"/>')
    return "\n".join(out)


def boxes(rows: np.ndarray) -> np.ndarray:
    """Means of four rows each."""
    return rows.reshape(-1, 4).mean(axis=1)


def label(x: int, y: int, text: str, anchor: str = "start", weight: str = "normal") -> str:
    """A piece of text."""
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}" font-weight="{weight}">{escape(text)}</text>'


def picture(width: int, height: int, parts: list[str]) -> str:
    """The file."""
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
            'font-family="sans-serif" font-size="12" fill="#222">\n'
            f'<rect width="{width}" height="{height}" fill="#fff"/>\n' + "\n".join(parts) + "\n</svg>\n")


def sentence(bottom: int) -> str:
    """The place of the planted sentence, from top to bottom."""
    x, width = LEFT + demo.NEEDLE.start * UNIT / 4, len(demo.NEEDLE) * UNIT / 4
    return (f'<rect x="{x - 1:g}" y="{TOP - 6}" width="{width + 2:g}" height="{bottom - TOP + 8}" '
            f'fill="none" stroke="{RED}" stroke-width="1.5"/>')


def found(kept: np.ndarray) -> float:
    """Rows of the planted sentence that are kept, on the average over layers and KV heads."""
    return float(kept[:, :, demo.NEEDLE.start : demo.NEEDLE.stop].sum(axis=2).mean())


def draw_methods(text: Text) -> str:
    """A strip for each method and ratio."""
    across, y = LEFT + text.rows // 4 * UNIT, TOP
    parts = [label(LEFT, 16, "What each method keeps of 1024 tokens: 10 % above, 20 % below; darker: on more layers",
                   weight="bold"),
             label(LEFT, 34, "framed: the planted sentence, 14 tokens, that the last tokens ask for"),
             label(across + 150, 34, "of it, mean over layers", "end")]
    for name in methods.METHODS:
        parts.append(label(LEFT - 8, y + 13, name, "end"))
        if name in NOT_SHOWN:
            parts.append(label(LEFT, y + 13, NOT_SHOWN[name]))
        else:
            kept = [text.kept(name, ratio) for ratio in RATIOS]
            parts += [strip(boxes(one.mean(axis=(0, 1))), LEFT, y + i * (STRIP + 1), STRIP)
                      for i, one in enumerate(kept)]
            parts.append(label(across + 150, y + 13, " / ".join(f"{found(one):.1f}" for one in kept), "end"))
        y += 2 * STRIP + 9
    return picture(across + 160, y + 8, [*parts, sentence(y - 8)])


def draw_layers(text: Text) -> str:
    """Layers over rows, for chunks and for single tokens."""
    across, y = LEFT + text.rows // 4 * UNIT, TOP
    parts = [label(LEFT, 16, "The layers one by one, at 20 %: chunks, and single tokens", weight="bold"),
             label(LEFT, 34, "framed: the planted sentence; right: its tokens that are kept, of 14")]
    for name in ("chunkkv", "snapkv"):
        parts.append(label(8, y + 10, name, weight="bold"))
        for layer, rows in zip(text.layers, text.kept(name, 0.2), strict=True):
            parts += [label(LEFT - 8, y + 10, f"layer {layer}", "end"), strip(boxes(rows[0]), LEFT, y, 11),
                      label(across + 8, y + 10, f"{found(rows[None]):.0f}")]
            y += 13
        y += 12
    return picture(across + 40, y, [*parts, sentence(y - 14)])


def draw(build: Path, to: Path) -> None:
    """Start a daemon, ask it, stop it; write both pictures."""
    with private(build / "chunkkvd", "chunkkv-methods-") as daemon, chunkkv.Client(daemon.endpoint) as client:
        text = Text(client)
        for name, draw_it in (("methods", draw_methods), ("methods-layers", draw_layers)):
            (to / f"{name}.svg").write_text(draw_it(text))


def main() -> int:
    """Parse the command line."""
    words = sys.argv[1:]
    if words == ["tables"]:
        print("\n\n".join(tables().values()))
    elif words[:1] == ["write"] and len(words) <= 2:
        draw(Path(os.environ.get("CHUNKKV_BUILD") or ROOT / "build" / "release"), Path([*words, ROOT / "docs"][1]))
        if len(words) == 1:
            DOCUMENT.write_text(filled(DOCUMENT.read_text()))
    else:
        print(__doc__, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
