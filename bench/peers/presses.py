"""kvpress' own presses on given tensors: what they keep, and the scores they say.

Presses are called as kvpress' hook calls them, with the least that they ask of an attention layer: head counts, head
size, a layer number, and a query projection.  Nothing of kvpress is replaced: the hidden states *are* the queries, the
projection is the identity and the rotation has angle 0, so the queries that a press computes are exactly those given.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from kvpress import (
    ChunkKVPress,
    EntropyGatedChunkKVPress,
    KeyDiffPress,
    KnormPress,
    LagKVPress,
    PyramidKVPress,
    SnapKVPress,
    StreamingLLMPress,
    TOVAPress,
)
from numpy.typing import NDArray

F32 = NDArray[np.float32]
Rows = NDArray[np.int64]


@dataclass(frozen=True)
class Input:
    """Tensors of one sequence: per layer q [rows][Hq][d], newest last; k, v [L][Hkv][d]; binary32."""

    name: str
    q: list[F32]
    k: list[F32]
    v: list[F32]
    window: int = 64
    chunk: int = 20

    @property
    def rows(self) -> int:
        return len(self.k[0])

    @property
    def heads(self) -> int:
        return int(self.k[0].shape[1])


@dataclass(frozen=True)
class Method:
    """One method by both: the press for a removed fraction, and the members of the daemon's policy."""

    name: str
    press: Callable[[Input, float], Any]
    policy: Callable[[Input], dict[str, Any]]


UNPOOLED = {"pool": "none"}
METHODS = [
    Method("ChunkKV", lambda i, r: ChunkKVPress(SnapKVPress(r, i.window), i.chunk),
           lambda i: {"window": i.window, "chunk": i.chunk}),
    Method("SnapKV", lambda i, r: SnapKVPress(r, i.window), lambda i: {"selector": "token", "window": i.window}),
    Method("PyramidKV", lambda i, r: PyramidKVPress(r, i.window),
           lambda i: {"selector": "token", "window": i.window, "beta": 20}),
    Method("TOVA", lambda _, r: TOVAPress(r), lambda _: {"selector": "token", "window": 1, **UNPOOLED}),
    Method("KeyDiff", lambda _, r: KeyDiffPress(r), lambda _: {"selector": "token", "scorer": "keydiff", **UNPOOLED}),
    Method("Knorm", lambda _, r: KnormPress(r), lambda _: {"selector": "token", "scorer": "knorm", **UNPOOLED}),
    Method("LagKV", lambda _, r: LagKVPress(r), lambda _: {"selector": "token", "scorer": "lagkv", **UNPOOLED}),
    Method("StreamingLLM", lambda _, r: StreamingLLMPress(r), lambda _: {"selector": "streaming"}),
    Method("EG-ChunkKV", lambda i, r: EntropyGatedChunkKVPress(SnapKVPress(r, i.window)),
           lambda i: {"selector": "chunk_eg", "window": i.window, "chunk": 10}),
]


class Layer(torch.nn.Module):
    """As much of an attention layer as presses look at."""

    def __init__(self, data: Input, index: int) -> None:
        super().__init__()
        self.head_dim = int(data.k[index].shape[2])
        self.layer_idx = index
        self.config = types.SimpleNamespace(
            num_attention_heads=int(data.q[index].shape[1]), num_key_value_heads=data.heads,
            num_hidden_layers=len(data.k))
        self.q_proj = torch.nn.Identity()


def _arguments(data: Input, index: int) -> tuple[Any, ...]:
    """What compress() and score() take: module, hidden states, keys, values, attentions, the rest."""
    q, k, v = data.q[index], data.k[index], data.v[index]
    hidden = torch.zeros(1, data.rows, q.shape[1] * q.shape[2])
    hidden[0, data.rows - len(q) :] = torch.from_numpy(q.reshape(len(q), -1))
    angles = torch.ones(1, data.rows, q.shape[2]), torch.zeros(1, data.rows, q.shape[2])
    keys, values = (torch.from_numpy(x).transpose(0, 1)[None].contiguous() for x in (k, v))
    return Layer(data, index), hidden, keys, values, None, {"position_embeddings": angles}


def _names(keys: F32, values: F32) -> list[bytes]:
    """A name for each row of one head: its bytes, [L][d] both."""
    return [a.tobytes() + b.tobytes() for a, b in zip(keys, values, strict=True)]


@torch.no_grad()
def kept_by(press: Any, data: Input, index: int) -> list[Rows]:
    """The rows that a press keeps of a layer, for each KV head, found by their bytes in what it returns."""
    arguments = _arguments(data, index)
    keys, values = (x[0].numpy() for x in press.compress(*arguments))
    found = []
    for head in range(data.heads):
        names = _names(data.k[index][:, head], data.v[index][:, head])
        place = {name: row for row, name in enumerate(names)}
        assert len(place) == data.rows, f"{data.name}: two rows of layer {index}, head {head} are the same"
        found.append(np.sort([place[name] for name in _names(keys[head], values[head])]))
    return found


@torch.no_grad()
def scores_of(press: Any, data: Input, index: int) -> F32:
    """What the press, or the one inside it, says of each row: [Hkv][L]."""
    scores: F32 = getattr(press, "press", press).score(*_arguments(data, index))[0].numpy()
    return scores


def budget_of(press: Any, data: Input, index: int) -> int:
    """PyramidKV's rows of a layer."""
    return int(press.get_layer_budget(Layer(data, index), data.rows))
