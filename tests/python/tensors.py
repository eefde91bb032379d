"""The tensors of tests/data, the golden cases, and the synthetic tensors of the specification's section 6.4."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
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


PLAIN = {"keep_ratio", "max_tokens", "chunk", "window", "sinks", "recent", "spans", "pool", "pool_size"}
ABOUT = {"file", "layer", "profile", "kept", "kept_count"}
WITHOUT_MODEL = {"knorm", "keydiff"}  # scorers that reference_numpy does not cover


def is_plain(case: dict[str, Any]) -> bool:
    """Profile kvpress, or default with no parameters but the basic ones."""
    return case["profile"] == "kvpress" or (case["profile"] == "default" and set(case) <= PLAIN | ABOUT)


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
