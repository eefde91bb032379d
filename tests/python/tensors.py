"""The tensors of tests/data, the golden cases, and the synthetic tensors of the specification's section 6.4."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chunkkv import safetensors
from reference_numpy import Params

DATA = Path(__file__).resolve().parents[1] / "data"
U16 = NDArray[np.uint16]
F32 = NDArray[np.float32]


@dataclass(frozen=True)
class LayerTensors:
    """bfloat16 bits of one layer: key, value [T][Hkv][D], query [rows][Hq][D], newest last."""

    key: U16
    value: U16
    query: U16


def widen(bits: U16) -> F32:
    """bfloat16 bits as binary32, exactly."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


@functools.cache
def load(name: str) -> dict[int, LayerTensors]:
    """All layers of one safetensors file of tests/data."""
    found: dict[int, dict[str, U16]] = {}
    for tensor, bits in safetensors.load(DATA / name).items():
        layer, kind = tensor.removeprefix("layer").split(".")
        found.setdefault(int(layer), {})[kind] = bits
    return {n: LayerTensors(t["key"], t["value"], t["query"]) for n, t in sorted(found.items())}


@functools.cache
def golden() -> list[dict[str, Any]]:
    """The cases of golden.json."""
    cases: list[dict[str, Any]] = json.loads((DATA / "golden.json").read_text())
    return cases


ABOUT = {"file", "layer", "profile", "kept", "kept_count"}


def params(case: dict[str, Any]) -> Params:
    """A golden case in the words of reference_numpy."""
    given = {name: value for name, value in case.items() if name not in ABOUT}
    given["spans"] = tuple((first, end) for first, end in given.get("spans", ()))
    return Params(profile=case["profile"], **given)


def case_name(case: dict[str, Any]) -> str:
    """A readable pytest id."""
    words = [case["file"].split(".")[0], f"l{case['layer']}", case["profile"]]
    words += [f"{k}={v}" for k, v in case.items() if k not in ABOUT]
    return "-".join(words).replace(" ", "")


def synthetic() -> tuple[F32, F32, F32]:
    """Section 6.4: key, value [48][2][8] and query [4][4][8], exact in every float type."""
    state = 1

    def draw(shape: tuple[int, int, int]) -> F32:
        nonlocal state
        out = np.empty(shape, np.float32)
        for i in range(out.size):
            state = (1103515245 * state + 12345) % 2**31
            out.flat[i] = ((state // 65536) % 31 - 15) / 8
        return out

    key, value, query = draw((2, 48, 8)), draw((2, 48, 8)), draw((4, 4, 8))
    return (np.ascontiguousarray(key.transpose(1, 0, 2)), np.ascontiguousarray(value.transpose(1, 0, 2)),
            np.ascontiguousarray(query.transpose(1, 0, 2)))


def rows_of(text: str) -> list[int]:
    """'0-3 20 22-27' as rows."""
    out: list[int] = []
    for word in text.split():
        first, _, last = word.partition("-")
        out += range(int(first), int(last or first) + 1)
    return out


def pattern(length: int) -> NDArray[np.float64]:
    """T[j] of section 6.2."""
    j = np.arange(length)
    return ((j * j + 7 * j + 3) % 97).astype(np.float64)


def spiked() -> NDArray[np.float64]:
    """T[j] of example E17."""
    t = np.ones(60)
    t[30:40], t[25] = 10, 95
    return t


@dataclass(frozen=True)
class StageExample:
    """One row of the table in section 6.2."""

    name: str
    params: Params
    scores: NDArray[np.float64]
    kept: str
    positions: NDArray[np.int64] | None = None
    outcome: str = "dropped"
    raised: bool = False


UNSET = {"join": "cut", "softcap": 0.0, "sliding": 0}  # what Params holds where a request says nothing
STAGE = Params(chunk=10, window=1, sinks=4, recent=8, min_tokens=0)


def _stage(name: str, length: int, kept: str, *, scores: NDArray[np.float64] | None = None,
           positions: NDArray[np.int64] | None = None, outcome: str = "dropped", raised: bool = False,
           **given: Any) -> StageExample:
    return StageExample(name, replace(STAGE, **given), pattern(length) if scores is None else scores, kept, positions,
                        outcome, raised)


STAGE_EXAMPLES = [
    _stage("E1", 60, "0-3 20-27 30-39 52-59", keep_ratio=500000),
    _stage("E2", 60, "0-3 30-39 52-59", keep_ratio=500000, fill="none"),
    _stage("E3", 60, "0-3 20 22-27 29-39 52-59", keep_ratio=500000, fill="best"),
    _stage("E4", 60, "0-3 30-37 52-59", keep_ratio=500000, max_tokens=20),
    _stage("E5", 60, "0-3 52-59", max_tokens=10, raised=True),
    _stage("E6", 60, "0-21 52-59", keep_ratio=500000, scores=np.ones(60)),
    _stage("E7", 57, "0-3 30-39 49-56", keep_ratio=400000),
    _stage("E8", 60, "0-3 20-27 30-39 52-59", keep_ratio=500000, spans=((20, 25),)),
    _stage("E9", 60, "0-6 23-37 52-59", keep_ratio=500000, selector="chunk_at", chunk_lengths=(7, 12, 4, 18, 19)),
    _stage("E10a", 60, "0-3 20-39 52-59", keep_ratio=500000, align=16),
    _stage("E10b", 60, "0-3 20-28 30-39 52-59", keep_ratio=500000, align=16, max_tokens=31),
    _stage("E11a", 60, "0-9 20-39 50-59", keep_ratio=666667),
    _stage("E11b", 60, "0-8 20-39 50-59", keep_ratio=666666),
    _stage("E12", 60, "0-3 10-17 20-39 52-59", keep_ratio=666667, unit_reduce="sum"),
    _stage("E13", 60, "20-39 50-59", keep_ratio=500000, sinks=0, recent=0),
    _stage("E14", 45, "0-3 25-32 35-44", keep_ratio=500000, positions=np.r_[0:20, 35:60]),
    _stage("E15", 60, "0-3 5-6 10 13 16 18 20 22 24 26 29 32-33 36-39 51-59", keep_ratio=500000, selector="token"),
    _stage("E16a", 12, "0-11", keep_ratio=500000, outcome="protected"),
    _stage("E16b", 1, "0", keep_ratio=500000, outcome="fits"),
    _stage("E16c", 5, "0-4", keep_ratio=100000, outcome="protected"),
    _stage("E16d", 12, "0-11", keep_ratio=500000, min_tokens=22, outcome="short"),
    _stage("E17", 60, "0-3 20-31 52-59", keep_ratio=400000, scores=spiked()),
]


def _of_profile(profile: str, length: int, chunk: int, window: int, kept: str, **given: Any) -> StageExample:
    params = Params(profile=profile, chunk=chunk, window=window, **given)
    name = "-".join([profile, str(length), *(f"{k}={v}" for k, v in given.items()), f"c={chunk}", f"w={window}"])
    return StageExample(name, params, pattern(length), kept, outcome="fits" if kept == f"0-{length - 1}" else "dropped")


PROFILE_EXAMPLES = [  # section 6.3
    _of_profile("kvpress", 60, 10, 8, "20-39 50-59", keep_ratio=500000),
    _of_profile("kvpress", 57, 10, 8, "30-56", keep_ratio=500000),
    _of_profile("kvpress", 100, 20, 8, "80-99", keep_ratio=100000),
    _of_profile("kvpress", 100, 10, 8, "90-99", keep_ratio=100000),
    _of_profile("kvpress", 200, 10, 8, "190-199", keep_ratio=100000),
    _of_profile("kvpress", 200, 10, 8, "30-39 90-99 190-199", keep_ratio=200000),
    _of_profile("kvpress", 45, 10, 32, "20-29", keep_ratio=300000),
    _of_profile("kvpress", 1003, 10, 64, "940-989", keep_ratio=50000),
    _of_profile("paper", 60, 10, 8, "20-39 50-59", max_tokens=30),
    _of_profile("paper", 60, 10, 8, "20-39 50-59", max_tokens=30, join="union"),
    _of_profile("paper", 60, 10, 8, "20-39 50-59", max_tokens=35),
    _of_profile("paper", 57, 10, 8, "20-36 49-56", max_tokens=25),
    _of_profile("paper", 57, 10, 8, "20-39 49-56", max_tokens=25, join="union"),
    _of_profile("paper", 60, 10, 8, "52-59", max_tokens=9),
    _of_profile("paper", 60, 10, 8, "0-59", max_tokens=60),
]
PROFILE_COUNTS = [  # section 6.3, kvpress: millionths, rows, chunk, rows kept
    (100000, 8192, 10, 802), (100000, 8192, 20, 792), (250000, 4096, 20, 1016), (500000, 1003, 20, 483),
    (700000, 900, 10, 620),
]


@dataclass(frozen=True)
class EndToEnd:
    """One variant of the table in section 6.4."""

    name: str
    params: Params
    kept: str


def _end_to_end(name: str, kept: str, **given: Any) -> EndToEnd:
    base = Params(chunk=5, window=4, sinks=2, recent=4, min_tokens=0, keep_ratio=500000)
    if given.get("profile"):
        base = Params(chunk=5, window=4, keep_ratio=500000)
    return EndToEnd(name, replace(base, **given), kept)


END_TO_END = [
    _end_to_end("default", "0-4 10-14 20-29 44-47"),
    _end_to_end("softcap", "0-4 10-14 20-29 44-47", softcap=1.0),
    _end_to_end("sliding", "0-1 25-33 35-47", sliding=20),
    _end_to_end("avg5", "0-4 15-29 44-47", pool="avg", pool_size=5),
    _end_to_end("max7", "0-1 5-7 15-29 44-47", pool="max", pool_size=7),
    _end_to_end("l2", "0-4 10-14 20-29 44-47", value_weight="l2"),
    _end_to_end("knorm", "0-9 15-19 30-34 44-47", scorer="knorm"),
    _end_to_end("keydiff", "0-4 10-24 44-47", scorer="keydiff"),
    _end_to_end("paper-raw_qk", "0-4 10-14 25-29 44-47", profile="paper"),
    _end_to_end("paper-window", "0-4 10-14 20-29 44-47", profile="paper", scorer="window"),
    _end_to_end("kvpress5", "15-29 40-47", profile="kvpress"),
    _end_to_end("kvpress2", "45-47", profile="kvpress", keep_ratio=200000),
]
