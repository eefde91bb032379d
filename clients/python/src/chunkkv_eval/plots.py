"""Plots as SVG text, without a plotting package; light and dark.

Heat maps of depth by length for each method, as the needle figures of the papers are; exact matches over budgets;
and bars of what adjacent layers have in common, and of the error of attention.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from .report import groups
from .results import Cell, Record, mean_and_error, paired
from .tasks import BANDS

STYLE = """<style>
text { fill: #1a202c; font: 12px system-ui, sans-serif } .title { font-size: 14px; font-weight: 600 }
.faint { fill: #4a5568 } .end { text-anchor: end } .middle { text-anchor: middle } .grid { stroke: #cbd5e0 }
.line { fill: none; stroke-width: 2 } .bar { fill: #2b6cb0 }
@media (prefers-color-scheme: dark) { text { fill: #e2e8f0 } .faint { fill: #a0aec0 } .grid { stroke: #4a5568 } }
</style>"""
COLOURS = ("#2b6cb0", "#c05621", "#2f855a", "#b83280", "#6b46c1", "#b7791f", "#4a5568", "#e53e3e", "#319795", "#805ad5",
           "#d69e2e", "#38a169", "#3182ce", "#dd6b20", "#97266d", "#285e61", "#744210", "#702459")
CELL, LEFT, GAP = 30, 60, 40


def _svg(width: float, height: float, title: str, body: Iterable[str]) -> str:
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" role="img">',
                      f"<title>{title}</title>", STYLE, *body, "</svg>"]) + "\n"


def _text(x: float, y: float, text: str, kind: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}">{text}</text>'


def _colour(share: float) -> str:
    """From red over yellow to green, as the papers' needle figures have it."""
    red, green = (220, round(60 + 300 * share)) if share < 0.5 else (round(220 - 320 * (share - 0.5)), 210)
    return f"rgb({red},{min(green, 210)},70)"


def _heat(left: float, name: str, by_length: dict[int, Sequence[Record]]) -> Iterator[str]:
    yield _text(left, 50, name, "title")
    for column, (length, own) in enumerate(sorted(by_length.items())):
        x = left + CELL * column
        yield _text(x + CELL / 2, 70 + 18 * BANDS + 14, f"{length / 1024:g}k", "faint middle")
        for band in range(BANDS):
            here = [r.token_accuracy for r in own if min(BANDS - 1, int(r.depth * BANDS)) == band]
            if not here:
                continue
            share = mean_and_error(here)[0]
            y = 60 + 18 * band
            yield (f'<rect x="{x:.0f}" y="{y}" width="{CELL - 1}" height="17" fill="{_colour(share)}">'
                   f"<title>{name}, {length}, depth {band}0 %: {100 * share:.0f} % of {len(here)}</title></rect>")


def heat_map(task: str, budget: str, methods: dict[str, dict[int, Sequence[Record]]]) -> str:
    """Token accuracy by depth and length, a panel for each method."""
    body = [_text(8, 20, f"{task}: token accuracy by depth (down) and length (across), {budget} kept", "title")]
    body += [_text(LEFT - 8, 73 + 18 * band, f"{10 * band} %", "faint end") for band in range(BANDS)]
    left = float(LEFT)
    for name, by_length in methods.items():
        body += _heat(left, name, by_length)
        left += max(len(by_length) * CELL, 9 * len(name)) + GAP
    return _svg(left, 280, f"{task} by depth and length", body)


def curves(title: str, methods: dict[str, list[tuple[float, float, float]]], full: float | None) -> str:
    """Exact matches over the kept part; points are (kept, value, standard error), 0 to 1."""
    places = sorted({kept for points in methods.values() for kept, _, _ in points})
    width, height = 420.0, 260.0

    def x_of(kept: float) -> float:
        return LEFT + width * places.index(kept) / max(1, len(places) - 1)

    def y_of(value: float) -> float:
        return 40 + height * (1 - value)

    body = [_text(8, 20, title, "title")]
    for tick in (0, 0.25, 0.5, 0.75, 1):
        body += [f'<line class="grid" x1="{LEFT}" x2="{LEFT + width}" y1="{y_of(tick):.1f}" y2="{y_of(tick):.1f}"/>',
                 _text(LEFT - 8, y_of(tick) + 4, f"{100 * tick:.0f}", "faint end")]
    body += [_text(x_of(kept), 40 + height + 18, f"{100 * kept:.0f} %", "faint middle") for kept in places]
    if full is not None:
        body.append(f'<line stroke="#718096" stroke-dasharray="5 4" x1="{LEFT}" x2="{LEFT + width}" '
                    f'y1="{y_of(full):.1f}" y2="{y_of(full):.1f}"/>')
    for i, (name, points) in enumerate(methods.items()):
        colour = COLOURS[i % len(COLOURS)]
        line = " ".join(f"{x_of(kept):.1f},{y_of(value):.1f}" for kept, value, _ in points)
        body.append(f'<polyline class="line" stroke="{colour}" points="{line}"/>')
        for kept, value, error in points:
            x = x_of(kept)
            body += [f'<line stroke="{colour}" x1="{x:.1f}" x2="{x:.1f}" y1="{y_of(min(1, value + error)):.1f}" '
                     f'y2="{y_of(max(0, value - error)):.1f}"/>',
                     f'<circle fill="{colour}" cx="{x:.1f}" cy="{y_of(value):.1f}" r="3.5"/>']
        y = 46 + 17 * i
        body += [f'<rect fill="{colour}" x="{LEFT + width + 24}" y="{y - 9}" width="12" height="10"/>',
                 _text(LEFT + width + 42, y, name)]
    return _svg(LEFT + width + 190, max(350, 60 + 17 * len(methods)), title, body)


def bars(title: str, values: Sequence[tuple[str, float]]) -> str:
    """A bar for each name, from 0 to the largest."""
    most = max((value for _, value in values), default=1.0) or 1.0
    body = [_text(8, 20, title, "title")]
    for i, (name, value) in enumerate(values):
        y = 50 + 22 * i
        body += [_text(140, y, name, "end"), _text(160 + 300 * max(value, 0) / most, y, f"{value:.3f}", "faint"),
                 f'<rect class="bar" x="150" y="{y - 11}" width="{300 * max(value, 0) / most:.1f}" height="14"/>']
    return _svg(560, 60 + 22 * len(values), title, body)


def _kept(own: Sequence[Record]) -> float:
    return round(mean_and_error([r.kept / r.length for r in own])[0], 2)


def _curves_of(name: str, cells: dict[Cell, list[Record]]) -> tuple[str, str] | None:
    points: dict[str, list[tuple[float, float, float]]] = {}
    for cell, own in cells.items():
        if cell.method != "full":
            kept = cell.keep if cell.keep is not None else _kept(own)
            points.setdefault(cell.method, []).append((kept, *mean_and_error([r.exact for r in own])))
    whole = next((own for cell, own in cells.items() if cell.method == "full"), None)
    full = mean_and_error([r.exact for r in whole])[0] if whole else None
    if max((len(own) for own in points.values()), default=0) < 2:
        return None
    ordered = {method: sorted(own) for method, own in points.items()}
    return f"curves-{name}", curves(f"{name}: exact answers, per cent, by rows kept", ordered, full)


def pictures(records: Iterable[Record]) -> dict[str, str]:
    """All plots that the records allow, by file name without its end."""
    records = list(records)
    out: dict[str, str] = {}
    heat: dict[tuple[str, str, str], dict[str, dict[int, Sequence[Record]]]] = {}
    for (task, context, question), cells in groups(records).items():
        name = f"{task}-{context}" + ("-hidden" if question == "hidden" else "")
        first = next((cell.budget for cell in cells if cell.method != "full"), None)
        if task != "perplexity":
            if (found := _curves_of(name, cells)) is not None:
                out[found[0]] = found[1]
            for cell, own in cells.items():
                if cell.method != "full" and task != "icl":
                    heat.setdefault((task, question, cell.budget), {}).setdefault(cell.method, {})[context] = own
            continue
        small = {cell.method: own for cell, own in cells.items() if cell.budget == first}
        full = next((own for cell, own in cells.items() if cell.method == "full"), None)
        for kind, title in (("jaccard", "kept rows in common of adjacent layers (Jaccard)"),
                            ("attention_error", "relative error of the output of attention")):
            values = {method: mean_and_error([v for r in own if (v := getattr(r, kind)) is not None])[0]
                      for method, own in small.items()}
            ordered = sorted(values.items(), key=lambda pair: pair[1])
            out[f"{kind.replace('_', '-')}-{name}"] = bars(f"{title}, {first} kept", ordered)
        if full is not None:
            losses = {method: paired(own, full, "nll")[0] for method, own in small.items()}
            out[f"loss-{name}"] = bars(f"nats above the full cache on plain text, {first} kept",
                                       sorted(losses.items(), key=lambda pair: pair[1]))
    for (task, question, budget), by_method in heat.items():
        if max(len(lengths) for lengths in by_method.values()) > 1:
            shown = {method: lengths for method, lengths in by_method.items() if len(lengths) > 1}
            label = f"heat-{task}-{budget.replace(' %', 'pc').replace(' rows', 'rows')}"
            out[label + ("-hidden" if question == "hidden" else "")] = heat_map(task, budget, shown)
    return out
