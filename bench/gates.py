"""What has to be reached, and whether it was."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

Row = dict[str, Any]

LONG, WIDE = 8192, 128  # tokens, and queries that read one KV head
GROWTH = 1.15  # time for each row of a sequence over that of the shortest
PART_OF_K = 0.02  # of extra memory


def _gate(name: str, values: Iterable[float | None], gate: float, aim: float | None, most: bool = False) -> Row:
    """The worst value against the gate; `most`: it must not be above."""
    found = [value for value in values if value is not None]
    worst = (max if most else min)(found) if found else None
    hit = worst is not None and (worst <= gate if most else worst >= gate)
    return {"name": name, "value": worst, "gate": gate, "aim": aim, "most": most,
            "outcome": "no result" if worst is None else "hit" if hit else "miss"}


def _absent(name: str) -> Row:
    return {"name": name, "value": None, "gate": None, "aim": None, "most": False, "outcome": "not on this machine"}


def _scores(rows: list[Row]) -> list[Row]:
    """Gates of the main shapes, path by path."""
    long = [row for row in rows if row["main"] and row["tokens"] >= LONG and "measured_as" not in row]
    threads = sorted({row["threads"] for row in long})
    paths = list(dict.fromkeys(row["path"] for row in long))
    found = []

    def of(path: str, count: int, field: str, keep: Callable[[Row], bool] = lambda _: True) -> list[float | None]:
        return [row[field] for row in long if row["path"] == path and row["threads"] == count and keep(row)]

    def wide(row: Row) -> bool:
        return bool(row["group"] * row["window"] >= WIDE)

    for count in threads:
        name = f"{count} thread{'s' if count > 1 else ''}"
        if "amx" in paths:
            found += [_gate(f"amx over avx512, {name}", of("amx", count, "times_faster_than_avx512", wide),
                            3.5 if count == 1 else 3.0, 5.0),
                      _gate(f"amx, floor over score, {name}", of("amx", count, "floor_ratio", wide), 0.55, 0.80)]
        for path in paths:
            if path not in ("amx", "scalar"):
                gate = 0.50 if path == "avx512" and "amx" in paths else 0.60
                found.append(_gate(f"{path}, of its own peak, {name}", of(path, count, "peak_ratio"), gate, 0.75))
    return found if "amx" in paths else [_absent("amx"), *found]


def _growth(rows: list[Row]) -> Row:
    """Time of a row over lengths that double.  Where the quartiles lie on both sides of the gate, nobody knows."""
    longer = rows[1:]
    found = _gate(f"time of a row, up to {rows[-1]['tokens']} rows over {rows[0]['tokens']}",
                  [row["over_shortest"] for row in longer], GROWTH, 1.05, True)
    if any(row["over_shortest"] is None for row in longer):
        return found | {"value": None, "outcome": "no result"}
    if any(row["over_low"] > GROWTH for row in longer):
        return found | {"outcome": "miss"}
    return found | {"outcome": "no result" if any(row["over_high"] > GROWTH for row in longer) else "hit"}


def allowed_bytes(row: Row) -> float:
    """Memory that a plan may take beside K."""
    return max(PART_OF_K * row["k_bytes"], row["scratch_bytes"])


def _memory(rows: list[Row]) -> list[Row]:
    """Whatever scratch is configured, model by model."""
    return [_gate(f"extra memory over the larger of 2 % of K and --scratch, {model}",
                  [row["extra_bytes"] / allowed_bytes(row) for row in rows if row["model"] == model], 1.0, None, True)
            for model in dict.fromkeys(row["model"] for row in rows)]


def judge(result: Row) -> list[Row]:
    """All gates of make bench, in the order of the table."""
    compact, rpc = result["compact"] or {}, result["rpc"] or {}
    return [
        *_scores(result["rows"]),
        _gate("picked path over the best one", [None if result["picked_within"] is None else
                                                1 + result["picked_within"]], 1.05, 1.0, True),
        _gate("compaction of 20 KB runs over memcpy", [compact.get("ratio_20k")], 0.60, 0.75),
        _gate("compaction of 2.5 KB runs over memcpy", [compact.get("ratio_2k5")], 0.50, 0.60),
        _gate("request overhead over bare round trips, p50", [rpc.get("ratio")], 1.5, 1.3, True),
        _growth(result["growth"]),
        *_memory(result["memory"]),
    ]


def text(gate: Row) -> str:
    """A gate as one line."""
    if gate["value"] is None:
        return f"{gate['outcome']}: {gate['name']}"
    if gate["outcome"] == "no result":
        return f"no result: {gate['name']}: {gate['value']:.3f}, but its quartiles lie on both sides of {gate['gate']}"
    sign = "<=" if gate["most"] else ">="
    aim = f", aim {gate['aim']}" if gate["aim"] is not None else ""
    return f"{gate['outcome']:4}  {gate['name']}: {gate['value']:.3f}, gate {sign} {gate['gate']}{aim}"


def show(gates: list[Row]) -> None:
    print()
    for gate in gates:
        print(text(gate) if gate["outcome"] != "miss" else text(gate).replace("miss", "MISS", 1))
