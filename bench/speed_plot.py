"""The plot of make bench: score time of one layer over its length, a panel for each number of threads."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

Row = dict[str, Any]

LEFT, PANEL_WIDTH, GAP, TOP, PANEL_HEIGHT, BOTTOM = 64, 340, 56, 84, 320, 52
COLOURS = {"scalar": "grey", "avx2": "green", "avx512": "blue", "avx512bf16": "purple", "amx": "red"}
STYLE = """
  <style>
    text { fill: #1a202c } .small { font-size: 12px; fill: #4a5568 } .name { font-weight: 600 }
    .grid { stroke: #e2e8f0; stroke-width: 1 } .end { text-anchor: end } .middle { text-anchor: middle }
    .line { fill: none; stroke-width: 2 } .floor { stroke-dasharray: 5 4 }
    .grey { stroke: #718096 } .green { stroke: #2f855a } .blue { stroke: #2b6cb0 } .purple { stroke: #6b46c1 }
    .red { stroke: #c53030 }
    @media (prefers-color-scheme: dark) {
      text { fill: #e2e8f0 } .small { fill: #a0aec0 } .grid { stroke: #2d3748 } .grey { stroke: #a0aec0 }
      .green { stroke: #68d391 } .blue { stroke: #63b3ed } .purple { stroke: #b794f4 } .red { stroke: #fc8181 }
    }
  </style>"""


class Axes:
    """Both logarithmic; the same in all panels."""

    def __init__(self, rows: list[Row]) -> None:
        tokens = [math.log2(row["tokens"]) for row in rows] or [10.0]
        times = [math.log10(row["score_ms"]) for row in rows if row["score_ms"]] or [0.0]
        floors = [math.log10(row["score_ms"] * row["floor_ratio"]) for row in rows
                  if row["score_ms"] and row["floor_ratio"] and row["picked"]]
        self.first, self.last = math.floor(min(tokens)), max(math.ceil(max(tokens)), math.floor(min(tokens)) + 1)
        self.low, self.high = math.floor(min(times + floors)), math.ceil(max(times)) + (max(times) % 1 == 0)

    def x(self, left: float, tokens: int) -> float:
        return left + PANEL_WIDTH * (math.log2(tokens) - self.first) / (self.last - self.first)

    def y(self, ms: float) -> float:
        return TOP + PANEL_HEIGHT * (self.high - math.log10(ms)) / (self.high - self.low)


def _grid(axes: Axes, left: float) -> Iterator[str]:
    for power in range(axes.first, axes.last + 1):
        x = axes.x(left, 1 << power)
        yield f'<line class="grid" x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{TOP + PANEL_HEIGHT}"/>'
        yield f'<text class="small middle" x="{x:.1f}" y="{TOP + PANEL_HEIGHT + 18}">{(1 << power) // 1024}k</text>'
    for power in range(axes.low, axes.high + 1):
        y = axes.y(10.0**power)
        yield f'<line class="grid" x1="{left}" y1="{y:.1f}" x2="{left + PANEL_WIDTH}" y2="{y:.1f}"/>'
        yield f'<text class="small end" x="{left - 8}" y="{y + 4:.1f}">{10.0**power:g}</text>'


def _line(points: list[tuple[float, float]], kind: str) -> str:
    if len(points) == 1:
        (x, y), = points
        return f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="3"/>'
    return f'<polyline class="{kind}" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in points)}"/>'


def _panel(rows: list[Row], axes: Axes, left: float, threads: int) -> Iterator[str]:
    own = sorted((row for row in rows if row["threads"] == threads and row["score_ms"]), key=lambda row: row["tokens"])
    yield f'<text class="name" x="{left}" y="{TOP - 14}">{threads} thread{"s" if threads > 1 else ""}</text>'
    yield from _grid(axes, left)
    for path, colour in COLOURS.items():
        points = [(axes.x(left, row["tokens"]), axes.y(row["score_ms"])) for row in own if row["path"] == path]
        if points:
            yield _line(points, f"line {colour}")
    floor = [(axes.x(left, row["tokens"]), axes.y(row["score_ms"] * row["floor_ratio"])) for row in own
             if row["picked"] and row["floor_ratio"]]
    if floor:
        yield _line(floor, "line floor grey")


def svg(rows: list[Row]) -> str:
    """The picture as text; `rows` of one shape, all paths, lengths and numbers of threads."""
    threads = sorted({row["threads"] for row in rows})
    paths = [path for path in COLOURS if any(row["path"] == path for row in rows)]
    width = LEFT + len(threads) * (PANEL_WIDTH + GAP)
    height = TOP + PANEL_HEIGHT + BOTTOM
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-labelledby="t d" '
             'font-family="system-ui, sans-serif" font-size="14">',
             '  <title id="t">Time to score one layer of Llama-3-8B on the CPU</title>',
             '  <desc id="d">Milliseconds over the length of the sequence, both on logarithmic axes, a line for each '
             'code path, a panel for each number of threads; dashed, the floor of the path that is picked. The numbers '
             'are in the table of docs/performance.md.</desc>' + STYLE,
             '<text class="small" x="8" y="20">ms to score one layer of Llama-3-8B, window 32, chunk 10; dashed: read '
             'K, products, exponentials, each alone, added</text>']
    for i, path in enumerate(paths):
        x = LEFT + 120 * i
        lines += [f'<line class="line {COLOURS[path]}" x1="{x}" y1="40" x2="{x + 20}" y2="40"/>',
                  f'<text class="small" x="{x + 26}" y="44">{path}</text>']
    axes = Axes(rows)
    for i, count in enumerate(threads):
        lines += _panel(rows, axes, LEFT + i * (PANEL_WIDTH + GAP), count)
    lines.append(f'<text class="small" x="{LEFT}" y="{height - 12}">tokens</text>')
    return "\n".join([*lines, "</svg>"]) + "\n"
