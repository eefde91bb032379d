"""The plot of bench/accuracy_small.py: a row for each method, a panel for each file, a dot for each kept ratio."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

Point = tuple[str, str, float, float]  # file, method, kept ratio, error

NAME_WIDTH, PANEL_WIDTH, GAP, ROW, TOP, BOTTOM = 140, 340, 40, 20, 78, 52
MOST, STEP = 1.0, 0.2  # of the axis; what lies beyond is written out
STYLE = """
  <style>
    text { fill: #1a202c } .small { font-size: 12px; fill: #4a5568 } .name { font-weight: 600 }
    .grid { stroke: #cbd5e0; stroke-width: 1 } .row { stroke: #e2e8f0; stroke-width: 1 } .end { text-anchor: end }
    .middle { text-anchor: middle } circle { stroke-width: 1.5; stroke: #2b6cb0 }
    .k10 { fill: #ffffff } .k20 { fill: #90cdf4 } .k30 { fill: #2b6cb0 }
    @media (prefers-color-scheme: dark) {
      text { fill: #e2e8f0 } .small { fill: #a0aec0 } .grid { stroke: #4a5568 } .row { stroke: #2d3748 }
      circle { stroke: #63b3ed } .k10 { fill: #1a202c } .k20 { fill: #2c5282 } .k30 { fill: #63b3ed }
    }
  </style>"""


def dot(x: float, y: float, keep: float) -> str:
    return f'<circle class="k{round(100 * keep)}" cx="{x:.1f}" cy="{y:.1f}" r="4"/>'


def panel(points: Sequence[Point], names: Sequence[str], left: float) -> Iterator[str]:
    """One file: its axis, and the dots of each method, those of few rows last, on top."""
    bottom = TOP + ROW * len(names)
    def x_of(error: float) -> float:
        return left + PANEL_WIDTH * error / MOST

    for i in range(round(MOST / STEP) + 1):
        x = x_of(i * STEP)
        yield f'<line class="grid" x1="{x:.1f}" y1="{TOP - 6}" x2="{x:.1f}" y2="{bottom}"/>'
        yield f'<text class="small middle" x="{x:.1f}" y="{bottom + 18}">{100 * i * STEP:.0f} %</text>'
    yield f'<text class="name" x="{left}" y="{TOP - 16}">{points[0][0]}</text>'
    for i, name in enumerate(names):
        y = TOP + ROW * (i + 0.5)
        own = sorted((keep, error) for _, method, keep, error in points if method == name)
        yield f'<line class="row" x1="{left}" y1="{y:.1f}" x2="{left + PANEL_WIDTH}" y2="{y:.1f}"/>'
        yield from (dot(x_of(error), y, keep) for keep, error in reversed(own) if error <= MOST)
        beyond = ", ".join(f"{100 * error:.0f}" for _, error in own if error > MOST)
        if beyond:
            right = left + PANEL_WIDTH - 4
            yield f'<text class="small end" x="{right}" y="{y + 4:.1f}">{beyond} % \u2192</text>'


def svg(points: Sequence[Point], names: Sequence[str]) -> str:
    """The picture as text; rows in the order of `names`."""
    files = list(dict.fromkeys(point[0] for point in points))
    width = NAME_WIDTH + len(files) * (PANEL_WIDTH + GAP)
    height = TOP + ROW * len(names) + BOTTOM
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-labelledby="t d" '
             'font-family="system-ui, sans-serif" font-size="14">',
             '  <title id="t">Error of the output of attention, by method</title>',
             '  <desc id="d">Relative l2 error for each method at 10, 20 and 30 per cent of the rows kept, in a panel '
             'for each text. The numbers are in the table of docs/accuracy.md.</desc>' + STYLE,
             '<text class="small" x="8" y="20">relative l2 error of the output of attention; rows kept:</text>']
    for i, keep in enumerate((0.1, 0.2, 0.3)):
        x = NAME_WIDTH + 240 + 70 * i
        lines += [dot(x, 16, keep), f'<text class="small" x="{x + 10}" y="20">{keep:.0%}</text>']
    for i, name in enumerate(names):
        lines.append(f'<text class="end" x="{NAME_WIDTH - 12}" y="{TOP + ROW * (i + 0.5) + 5:.1f}">{name}</text>')
    for i, file in enumerate(files):
        left = NAME_WIDTH + i * (PANEL_WIDTH + GAP)
        lines += panel([p for p in points if p[0] == file], names, left)
    return "\n".join([*lines, "</svg>"]) + "\n"
