"""What has to be reached, and whether it was."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

Row = dict[str, Any]

LONG, WIDE = 8192, 128  # tokens, and queries that read one KV head
SCRATCH_BYTES = 128 << 20  # CKV_CPU_SCRATCH_BYTES of kernels/cpu_scratch.h, the default of --scratch
GROWTH = 1.15  # time for each row at the longest length over that at the shortest


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


def _growth(rows: list[Row]) -> list[Row]:
    """Time and memory over lengths that double."""
    first, last = (row["score_ms"] / row["tokens"] for row in (rows[0], rows[-1]))
    over = [max(row["extra_bytes"] - SCRATCH_BYTES, 0) / row["k_bytes"] for row in rows]
    lengths = f"{rows[-1]['tokens']} rows over {rows[0]['tokens']}"
    return [_gate(f"time of a row, {lengths}", [last / first], GROWTH, 1.05, True),
            _gate("memory beyond 128 MiB of scratch, part of K", over, 0.02, None, True)]


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
        *_growth(result["growth"]),
    ]


def text(gate: Row) -> str:
    """A gate as one line."""
    if gate["value"] is None:
        return f"{gate['outcome']}: {gate['name']}"
    sign = "<=" if gate["most"] else ">="
    aim = f", aim {gate['aim']}" if gate["aim"] is not None else ""
    return f"{gate['outcome']:4}  {gate['name']}: {gate['value']:.3f}, gate {sign} {gate['gate']}{aim}"


def show(gates: list[Row]) -> None:
    print()
    for gate in gates:
        print(text(gate) if gate["outcome"] != "miss" else text(gate).replace("miss", "MISS", 1))
