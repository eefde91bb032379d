"""Random problems: shapes, layout, parameters and mode of one seed, and the memory that they lie in."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

import chunkkv
import layouts
import reference_numpy as ref
from reference_numpy import Params

ENGINES = [*chunkkv.ENGINES, "strided"]
STORAGE = {"f32": np.float32, "f16": np.float16, "bf16": np.uint16}
MODES = ["plan", "in_place", "copy_out"]
FORMS = ["blocks", "block_runs", "tokens", "token_runs"]
I64 = NDArray[np.int64]


def encode(values: NDArray[np.float32], dtype: str) -> NDArray[Any]:
    """Numbers as a type's bits."""
    return chunkkv.to_bf16(values) if dtype == "bf16" else values.astype(STORAGE[dtype])


def decode(bits: NDArray[Any], dtype: str) -> NDArray[np.float32]:
    """A type's bits as binary32."""
    return chunkkv.from_bf16(bits) if dtype == "bf16" else bits.astype(np.float32)


def in_runs(ids: I64) -> list[int]:
    """Pairs (first, count) of consecutive ids."""
    pairs: list[int] = []
    for i in ids.tolist():
        if pairs and pairs[-2] + pairs[-1] == i:
            pairs[-1] += 1
        else:
            pairs += [i, 1]
    return pairs


@dataclass
class Problem:
    """What a seed stands for."""

    seed: int
    rng: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        self.rng = rng = np.random.default_rng(self.seed)
        self.engine = ENGINES[self.seed % len(ENGINES)]  # each as often as any other
        self.mode = MODES[self.seed // len(ENGINES) % 3]
        self.latent = self.engine == "mla-latent"
        self.dtype = str(rng.choice(["f32", "bf16", "f16"]))
        self.query_dtype = self.dtype if rng.random() < 0.7 else str(rng.choice(["f32", "bf16", "f16"]))
        self.heads = 1 if self.latent else int(rng.integers(1, 4))
        self.q_heads = self.heads * int(rng.integers(1, 8))
        self.layers = int(rng.integers(1, 5))
        self.dim = int(rng.choice([16, 32] if self.engine == "vllm-cpu-amx" else [8, 16, 24, 64]))
        short = int(rng.choice([0, 1, *rng.integers(2, 60, 6)]))
        self.length = int(rng.integers(40, 450)) if rng.random() < 0.85 else short
        self.tokens = {"sglang": 1, "vllm-cpu-amx": 32}.get(self.engine) or int(rng.choice([4, 16, 33, 128]))
        self.params = self._params()
        self.positions = self._positions()
        self._compatible()

    def _params(self) -> Params:
        rng = self.rng

        def maybe(value: Any, chance: float = 0.5) -> Any:
            return value if rng.random() < chance else None

        def one_of(*values: str) -> str:
            return str(rng.choice(values))

        profile = str(rng.choice(["default", "retrieval", "paper", "kvpress"], p=[0.55, 0.15, 0.15, 0.15]))
        p = Params(profile=profile, keep_ratio=int(rng.integers(150_000, 1_000_001)),
                   window=maybe(int(rng.choice([1, 4, 8, 16, 32, 64])), 0.8),
                   chunk=maybe(int(rng.choice([1, 3, 5, 10, 16, 20, 40])), 0.8),
                   pool=maybe(one_of("none", "avg", "max")), pool_size=maybe(int(rng.choice([1, 3, 5, 7, 13]))))
        if profile == "kvpress":
            return p
        if rng.random() < 0.3:
            p = replace(p, max_tokens=int(rng.integers(20, 300)), keep_ratio=maybe(p.keep_ratio))
        if profile == "paper":
            return replace(p, scorer=maybe(one_of("window", "raw_qk")), join=one_of("cut", "union"))
        return replace(
            p, scorer=maybe(one_of("window", "raw_qk", "knorm", "keydiff", "lagkv", "vk_ratio", "drop"), 0.4),
            selector=one_of("chunk", "chunk", "token", "chunk_at"),
            sinks=maybe(int(rng.integers(0, 20))), recent=maybe(int(rng.integers(0, 40))),
            min_tokens=maybe(int(rng.integers(0, 70))), align=int(rng.choice([1, 1, 16])),
            tight=one_of("raise", "raise", "refuse"), fill=one_of("lead", "best", "none"),
            norm=maybe(one_of("sum", "mean", "seen"), 0.3), heads=maybe(one_of("sum", "max"), 0.4),
            group_heads=maybe(one_of("sum", "mean", "max"), 0.4),
            unit_reduce=maybe(one_of("mean", "sum", "max"), 0.4), value_weight=maybe(one_of("l1", "l2"), 0.25),
            scale=maybe(float(rng.uniform(0.05, 0.5)), 0.25), softcap=float(rng.choice([0, 0, 0, 1.5])),
            sliding=int(rng.choice([0, 0, 0, 50])), layers=one_of("each", "each", "one"),
            reuse=int(rng.integers(1, self.layers + 1)) if rng.random() < 0.3 else 1,
            last_row=maybe(int(rng.integers(0, max(self.length, 1))), 0.15),
            spans=tuple((first, first + int(rng.integers(1, 20)))
                        for first in rng.integers(0, 500, int(rng.integers(0, 4))).tolist()))

    def _positions(self) -> I64 | None:
        """After an earlier compression: ascending, with gaps."""
        if self.length == 0 or self.rng.random() < 0.7:
            return None
        steps = np.where(self.rng.random(self.length) < 0.05, self.rng.integers(2, 60, self.length), 1)
        return np.cumsum(steps) - int(steps[0] if self.rng.random() < 0.5 else 1)

    def _compatible(self) -> None:
        """What may not come together is taken apart; what is refused by itself is tested elsewhere."""
        p, rng = self.params, self.rng
        self.prefix = 0
        if p.profile in ("default", "retrieval") and rng.random() < 0.2:
            self.prefix = int(rng.integers(0, self.length + 1))
            whole = -(-self.prefix // self.tokens) * self.tokens
            p = replace(p, protect_prefix=min(whole, self.length))
        if p.selector == "chunk_at":
            cuts = np.unique(rng.integers(1, max(self.length, 2), int(rng.integers(0, 40))))
            lengths = np.diff(np.r_[0, cuts[cuts < self.length], self.length]).tolist() if self.length else ()
            p = replace(p, chunk_lengths=tuple(lengths), selector="chunk_at" if self.length else "chunk",
                        unit_reduce=None if p.unit_reduce == "sum" else p.unit_reduce)
        if p.profile in ("default", "retrieval") and p.scores_by == "window":
            p = self._votes(p)
        if self.latent and p.scorer in ("lagkv", "vk_ratio", "drop"):
            p = replace(p, scorer="keydiff")
        if self.latent:
            fixed = p.profile in ("kvpress", "paper")
            p = replace(p, value_weight=None, scale=None if fixed else p.scale or 0.2,
                        profile="paper" if fixed else p.profile, scorer="raw_qk" if fixed else p.scorer)
        if p.last_row is not None:
            p = replace(p, last_row=max(p.last_row, p.w - 1, 1))
            if p.last_row is not None and p.last_row >= self.length:
                p = replace(p, last_row=None)
        self.params = p
        self.query_rows = min(256, p.w + int(rng.integers(0, 9)))

    def _votes(self, p: Params) -> Params:
        """What scorer window alone can do with its weights."""
        rng = self.rng
        if rng.random() < 0.3:
            vote_rows = int(rng.integers(1, p.w + 1)) if rng.random() < 0.5 else None
            p = replace(p, window_reduce="max", norm=None, vote_rows=vote_rows)
        if rng.random() < 0.3:
            first = int(rng.integers(0, p.w))
            p = replace(p, contrast_first=first, contrast_end=first + int(rng.integers(1, 20)),
                        mute=int(rng.integers(0, 9)))
        return replace(p, pool="leak") if rng.random() < 0.15 else p

    def policy(self) -> chunkkv.Policy:
        """The same parameters in the words of the client."""
        p = self.params
        names = ["profile", "window", "chunk", "pool", "pool_size", "scorer"]
        if p.profile == "paper":
            names += ["join"]
        if p.profile in ("default", "retrieval"):
            names += ["selector", "sinks", "recent", "min_tokens", "align", "tight", "fill", "norm", "heads",
                      "group_heads", "unit_reduce", "value_weight", "scale", "softcap", "sliding", "layers", "reuse",
                      "window_reduce", "vote_rows", "contrast_first", "contrast_end", "mute"]
        counts = ("sinks", "recent", "min_tokens", "contrast_first", "contrast_end", "mute")  # 0 is a value there
        given = {name: getattr(p, name) for name in names}
        return chunkkv.Policy(**{name: value for name, value in given.items()
                                 if value is not None and (value != 0 or name in counts)})

    def pos(self) -> I64:
        return np.arange(self.length) if self.positions is None else self.positions


class Bench:
    """One piece of shared memory for all problems, one after the other."""

    def __init__(self, client: chunkkv.Client, size: int = 16 << 20) -> None:
        self.client = client
        self.memory = chunkkv.SharedMemory.allocate(size)
        self.region = client.register_region(self.memory)
        self.everything = self.memory.numpy(self.memory.size, np.uint8)


class Instance:
    """A problem in the memory of a bench: the layout, the table, the numbers."""

    def __init__(self, bench: Bench, problem: Problem) -> None:
        self.bench, self.problem = bench, problem
        p, rng = problem, problem.rng
        self._end = 4096
        used = -(-p.length // p.tokens)
        self.blocks = 2 * used + int(rng.integers(1, 4))  # as many again for a copy
        self.layout = self._make_layout()
        self.group = self.layout.groups[0]
        order = rng.permutation(self.blocks)
        if rng.random() < 0.4:
            order = np.roll(np.arange(self.blocks), int(rng.integers(0, self.blocks)))
        self.form = str(rng.choice(FORMS))
        self.to_form = str(rng.choice(FORMS))
        self.slots = self._slots_of(order[:used], self.form)[: p.length]
        self.to_slots = self._slots_of(order[used : 2 * used], self.to_form)
        self._queries = self._take((p.layers, p.query_rows, p.q_heads, p.dim), p.query_dtype, rng.permutation(3))
        self._table_at = -(-self._end // 64) * 64
        self.end = self._table_at + 8 * (2 * p.length + 16)
        assert self.end <= bench.memory.size
        self._fill()

    def _fill(self) -> None:
        p, rng = self.problem, self.problem.rng
        self.bench.everything[: self.end] = 0xFF  # NaN in every type: what is no row must not matter (R34)
        self.flat = self.bench.memory.numpy(self.bench.memory.size // self.itemsize, STORAGE[p.dtype])
        self.rows: list[list[NDArray[np.float32]]] = []
        for layer in range(p.layers):
            self.rows.append([])
            for place in self.places(layer, self.slots):
                self.flat[place] = encode(rng.standard_normal(place.shape, np.float32), p.dtype)
                self.rows[-1].append(decode(self.flat[place], p.dtype))
        spread = np.float32(rng.choice([0.5, 1.0, 2.0]))
        self._queries[...] = encode(spread * rng.standard_normal(self._queries.shape, np.float32), p.query_dtype)
        self.ring_start = int(rng.integers(0, p.query_rows)) if rng.random() < 0.3 else 0
        self.in_region = rng.random() < 0.3
        if self.in_region:
            words = np.asarray(self._entries(self.slots, self.form), np.uint32)
            self.bench.memory.numpy(len(words), np.uint32, self._table_at)[...] = words
        self.before = self.bench.everything[: self.end].copy()
        self.reply_form = str(rng.choice(["runs", "rows", "in_region", ""])) or None

    @property
    def itemsize(self) -> int:
        return int(np.dtype(STORAGE[self.problem.dtype]).itemsize)

    def places(self, layer: int, slots: I64) -> list[I64]:
        """Where the elements of the rows in these slots lie, as indices of `flat`: one array for each plane."""
        n = self.problem.tokens
        return [layouts.places(plane, layer, self.group, slots // n, slots % n) // self.itemsize
                for plane in self.layout.planes if layer in plane.layers]

    def plans(self) -> list[ref.Plan]:
        """What the model keeps."""
        p = self.problem
        queries = np.roll(decode(self._queries, p.query_dtype), -self.ring_start, axis=1)
        return ref.plan_layers([ref.Layer(queries[i], x[0], None if p.latent else x[1])
                                for i, x in enumerate(self.rows)], p.params, p.pos())

    def request(self) -> dict[str, Any]:
        """The request's arguments, but for the destination."""
        p = self.problem
        numbers: Any = self._entries(self.slots, self.form)
        if self.in_region and len(numbers):
            numbers = self.bench.region.slice(self._table_at, 4 * len(numbers))
        return {
            "rows": p.length, "policy": p.policy(), "protect": p.params.spans, "protect_prefix": self.problem.prefix,
            "keep_ratio": p.params.keep_ratio / 1e6 if p.params.keep_ratio else None,
            "max_tokens": p.params.max_tokens, "table": chunkkv.Table(numbers, self.form),  # type: ignore[arg-type]
            "chunk_lengths": p.params.chunk_lengths or None, "reply_form": self.reply_form,
            "positions": None if p.positions is None else [(a, b) for a, b in ref.ranges(p.positions)],
            "queries": chunkkv.Queries.of_array(self._queries, region=self.bench.region, dtype=p.query_dtype,
                                                ring_start=self.ring_start, last_row=p.params.last_row or 0)}

    def destination(self, rows: int) -> chunkkv.Table:
        """Room for so many rows, or a little more."""
        slots = self.to_slots[: -(-rows // self.problem.tokens) * self.problem.tokens]
        return chunkkv.Table(self._entries(slots, self.to_form), self.to_form)  # type: ignore[arg-type]

    def expected(self, kept: list[I64], slots: I64) -> NDArray[np.uint8]:
        """All bytes, after the kept rows of each layer were put into these slots in order."""
        after = self.before.copy()
        old, new = (memory[: len(memory) // self.itemsize * self.itemsize].view(STORAGE[self.problem.dtype])
                    for memory in (self.before, after))
        for layer, rows in enumerate(kept):
            sources = self.places(layer, self.slots[rows])
            for source, to in zip(sources, self.places(layer, slots[: len(rows)]), strict=True):
                new[to] = old[source]
        return after

    def _slots_of(self, blocks: I64, form: str) -> I64:
        """Slots of rows in these blocks: in order, or anywhere where the table's form allows it."""
        n = self.problem.tokens
        slots = (blocks[:, None] * n + np.arange(n)).ravel()
        return self.problem.rng.permutation(slots) if form == "tokens" else slots

    def _entries(self, slots: I64, form: str) -> list[int]:
        ids = slots if form.startswith("token") else slots[:: self.problem.tokens] // self.problem.tokens
        return in_runs(ids) if form.endswith("runs") else ids.tolist()

    def _make_layout(self) -> chunkkv.CacheLayout:
        p = self.problem
        given: dict[str, Any] = {"q_heads": p.q_heads, "region": self.bench.region, "dtype": p.dtype}
        if p.engine == "strided":
            shape = (self.blocks, p.tokens, p.heads, p.dim)
            planes = [[self._take(shape, p.dtype, p.rng.permutation(3)) for _ in range(p.layers)] for _ in (0, 1)]
            return chunkkv.CacheLayout.of_arrays(*planes, axes="bthd", **given)
        shape_of = layouts.Shape(p.layers, self.blocks, p.heads, p.tokens, p.dim)
        return layouts.layout(p.engine, shape_of, lambda of, _: self._take(of, p.dtype), **given)

    def _take(self, shape: tuple[int, ...], dtype: str, order: NDArray[np.int64] | None = None) -> NDArray[Any]:
        """The next array; with an order of its axes (but the last), padded at random as well."""
        rng, item = self.problem.rng, np.dtype(STORAGE[dtype]).itemsize
        axes = list(range(len(shape))) if order is None else [*order.tolist(), len(shape) - 1]
        strides, step = [0] * len(shape), item
        for axis in reversed(axes):
            strides[axis] = step
            step *= shape[axis]
            if order is not None and rng.random() < 0.4:
                step += item * int(rng.integers(1, 5))
        start = -(-self._end // item) * item + item * int(rng.integers(0, 9))
        self._end = start + step
        return self.bench.memory.numpy(shape, STORAGE[dtype], start, strides)
