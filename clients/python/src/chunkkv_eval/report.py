"""Tables of what was measured, as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .methods import MIXES
from .results import Cell, Record, by_cell, mean_and_error, paired

Group = tuple[str, int, str]


def groups(records: Iterable[Record]) -> dict[Group, dict[Cell, list[Record]]]:
    """The cells of each task, length and visibility."""
    found: dict[Group, dict[Cell, list[Record]]] = {}
    for cell, own in by_cell(records).items():
        found.setdefault((cell.task, cell.context, cell.question), {})[cell] = own
    return found


def _figure(task: str, own: Sequence[Record], full: Sequence[Record]) -> str:
    if task == "perplexity":
        mean, error, _ = paired(own, full, "nll") if full else (*mean_and_error([r.nll for r in own]), 0)
        shift = mean_and_error([r.attention_error for r in own if r.attention_error is not None])[0]
        return f"{mean:+.3f} ±{error:.3f} / {shift:.3f}"
    exact, error = mean_and_error([r.exact for r in own])
    tokens = mean_and_error([r.token_accuracy for r in own])[0]
    return f"{100 * exact:.0f} ±{100 * error:.0f} / {100 * tokens:.1f}"


def table(task: str, cells: dict[Cell, list[Record]]) -> str:
    """Methods by budgets: exact ± its standard error / token accuracy, in per cent; of plain text see `tables`."""
    full = next((own for cell, own in cells.items() if cell.method == "full"), [])
    names = list(dict.fromkeys(cell.method for cell in cells if cell.method != "full"))
    budgets = list(dict.fromkeys(cell.budget for cell in cells if cell.method != "full"))
    place = {(cell.method, cell.budget): own for cell, own in cells.items()}
    lines = ["| method | " + " | ".join(budgets) + " | Jaccard of adjacent layers |", "|---" * (len(budgets) + 2) + "|"]
    if full:
        nll = mean_and_error([r.nll for r in full])[0]
        mean = f"nll {nll:.3f}" if task == "perplexity" else _figure(task, full, [])
        lines.append("| full | " + " | ".join([mean] * len(budgets)) + " | |")
    for name in names:
        own = [place.get((name, budget)) for budget in budgets]
        alike = [f"{mean_and_error([r.jaccard for r in one if r.jaccard is not None])[0]:.2f}" for one in own if one]
        lines.append(f"| `{name}` | " + " | ".join(_figure(task, one, full) if one else "" for one in own)
                     + f" | {', '.join(alike)} |")
    return "\n".join(lines)


def _shift(task: str, one: Sequence[Record], other: Sequence[Record]) -> str:
    if task == "perplexity":
        mean, error, _ = paired(one, other, "nll")
        return f"{mean:+.3f} ±{error:.3f}"
    found = [paired(one, other, value) for value in ("exact", "token_accuracy")]
    return ", ".join(f"{100 * mean:+.1f} ±{100 * error:.1f}" for mean, error, _ in found)


def differences(task: str, cells: dict[Cell, list[Record]], pairs: Sequence[tuple[str, str]]) -> str:
    """Paired differences ± standard error: exact and token accuracy in points, or nats of plain text."""
    budgets = list(dict.fromkeys(cell.budget for cell in cells if cell.method != "full"))
    place = {(cell.method, cell.budget): own for cell, own in cells.items()}
    what = "nats, lower is better" if task == "perplexity" else "exact, token accuracy"
    lines = [f"| {what} | " + " | ".join(budgets) + " |", "|---" * (len(budgets) + 1) + "|"]
    for one, other in pairs:
        words = []
        for budget in budgets:
            a, b = place.get((one, budget)), place.get((other, budget))
            words.append(_shift(task, a, b) if a and b else "")
        if any(words):
            lines.append(f"| `{one}` - `{other}` | " + " | ".join(words) + " |")
    return "\n".join(lines) if len(lines) > 2 else ""


PAIRS = (("chunkkv", "snapkv"), ("chunkkv-reuse2", "chunkkv"), ("hybrid", "chunkkv"), ("vote", "snapkv-max"),
         ("vote", "default"), ("vote-each", "vote"), ("vote-leak", "vote"), ("vote-own", "vote"),
         ("vote-own", "snapkv-max"))
PLAIN_PAIRS = (*((name, "snapkv-max") for name in ("vote", "vote-own", "vote-each", *MIXES)), ("vote", "snapkv"),
               ("chunkkv", "snapkv"), ("vote", "default"), ("vote", "streamingllm"))


def tables(records: Iterable[Record]) -> str:
    """Everything that was measured, a table for each task and length."""
    records = list(records)
    out = []
    for (task, context, question), cells in groups(records).items():
        first = next(iter(cells.values()))
        length = mean_and_error([r.length for r in first])[0]
        n = sorted({len(own) for own in cells.values()})
        what = ("nats above the full cache ± standard error / relative error of the output of attention"
                if task == "perplexity" else "exact ± standard error / token accuracy, per cent")
        out.append(f"**{task}, {context} tokens, question {question}**: {what}; n = {', '.join(map(str, n))}; "
                   f"{length:.0f} rows on average; {', '.join(sorted({r.run for r in first}))}\n\n"
                   f"{table(task, cells)}\n")
        unit, pairs = ("nats", PLAIN_PAIRS) if task == "perplexity" else ("points", PAIRS)
        if text := differences(task, cells, pairs):
            out.append(f"Paired differences, {unit} ± standard error:\n\n{text}\n")
    return "\n".join(out)
