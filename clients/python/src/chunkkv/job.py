"""What a compress request says about a sequence: its rows, its queries, its budget.

Tables and queries that lie in a registered region are named by a `Slice`; NumPy arrays travel in the
request itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from . import ranges as rg
from ._pb import chunkkv_pb2 as pb
from .arrays import Axes
from .checks import MOST_64, of_type, whole, word
from .dtypes import element_type
from .errors import invalid
from .policy import Policy, millionths
from .region import Region, Slice
from .wire import DType

MOST_LAYER = 65535
TableForm = Literal["blocks", "block_runs", "tokens", "token_runs"]


@dataclass(frozen=True)
class Table:
    """Where the rows of a sequence are, in order.

    Attributes:
        entries: numbers below 2^32 (sent in the request), or a Slice that holds them as little-endian words.
        form: "blocks": block ids; "tokens": slots block * tokens_per_block + token, one for each row;
            "*_runs": pairs (first, count) of consecutive ones.
    """

    entries: Sequence[int] | NDArray[Any] | Slice
    form: TableForm = "blocks"

    def words(self, path: str) -> NDArray[np.uint32]:
        """The entries as the wire's words, where they are not in a region."""
        try:
            numbers = np.asarray(self.entries)
        except (TypeError, ValueError) as error:
            raise invalid(f"{path}.numbers", f"is no list of numbers: {error}") from None
        if numbers.size and (numbers.dtype.kind not in "iu" or numbers.min() < 0 or numbers.max() > 0xFFFFFFFF):
            raise invalid(f"{path}.numbers", "table entries must be integers from 0 to 2^32-1")
        return numbers.ravel().astype(np.uint32)

    def in_runs(self, path: str) -> Table:
        """The same rows in runs, where that is shorter; else itself."""
        if isinstance(self.entries, Slice) or self.form not in ("blocks", "tokens"):
            return self
        numbers = self.words(path)
        starts = np.flatnonzero(np.diff(numbers.astype(np.int64), prepend=-2) != 1)
        if 2 * len(starts) >= len(numbers):
            return self
        pairs = np.stack([numbers[starts], np.diff(starts, append=len(numbers)).astype(np.uint32)], axis=1)
        return Table(pairs.ravel(), "block_runs" if self.form == "blocks" else "token_runs")

    def to_message(self, path: str) -> pb.Table:
        """The wire's message."""
        word(f"{path}.form", self.form, get_args(TableForm))
        message = pb.Table(form=getattr(pb, f"TABLE_{self.form.upper()}"))
        if isinstance(self.entries, Slice):
            getattr(message, "from").CopyFrom(self.entries.to_message())
            return message
        message.numbers.extend(self.words(path).tolist())
        return message


AnyTable = Table | Sequence[int] | NDArray[Any] | Slice


@dataclass(frozen=True)
class Queries:
    """The newest query rows of each layer, newest last, after rotary embedding.

    Row r, head h of the i-th layer lies at offset + i * layer_stride + h * head_stride
    + ((ring_start + r) % rows) * row_stride of the region.

    `lse` and `sink_logits` are float32 in a region, [layers][q_heads][rows] and [layers][q_heads]: natural logarithms
    of the softmax sums of each query, in the order of its place in the ring, and the sink logits of models that have
    them.  Arrays go as arguments of compress().
    """

    region: Region
    offset: int
    size: int
    dtype: DType
    rows: int
    layer_stride: int
    head_stride: int
    row_stride: int
    ring_start: int = 0
    layers: tuple[int, ...] = ()
    last_row: int = 0
    lse: Slice | None = None
    sink_logits: Slice | None = None

    @classmethod
    def of_array(cls, array: Any, *, region: Region, axes: str = "lrhd", layers: Sequence[int] = (),
                 ring_start: int = 0, last_row: int = 0, dtype: Any = None) -> Queries:
        """Queries from an array that views a region.

        Args:
            array: NumPy array or torch tensor; dimensions adjacent.
            region: where it lies.
            axes: a letter for each axis: l layer, r row, h query head, d dimension; without "l", one layer.
            layers: the layers present, ascending; empty = all layers of all groups named.
            ring_start: index of the oldest row, where the rows are a ring.
            last_row: cache row of the newest query; 0 = the last row.
            dtype: where the array's own does not tell ("bf16" held as uint16).
        """
        named = Axes(array, axes, "queries")
        kind = element_type(dtype if dtype is not None else array.dtype)
        if not {"r", "h", "d"} <= set(named.size) or set(named.size) - set("lrhd"):
            raise invalid("queries", f"axes {axes!r} are not l, r, h, d")
        if named.size["d"] > 1 and named.stride["d"] != kind.itemsize:
            raise invalid("queries", "the dimensions of a query must be adjacent")
        size = sum((n - 1) * named.stride[name] for name, n in named.size.items()) + kind.itemsize
        return cls(region, region.offset_of(array, "queries"), size, kind, named.size["r"], named.stride.get("l", 0),
                   named.stride["h"], named.stride["r"], ring_start, tuple(layers), last_row)

    def to_message(self) -> pb.Queries:
        """The wire's message."""
        of_type("queries.dtype", self.dtype, DType)
        for name in ("rows", "ring_start", "last_row"):
            whole(f"compress.queries.{name}", getattr(self, name))
        for name in ("offset", "size", "layer_stride", "head_stride", "row_stride"):
            whole(f"compress.queries.{name}", getattr(self, name), 0, MOST_64)
        for i, layer in enumerate(self.layers):
            whole(f"compress.queries.layers[{i}]", layer, 0, MOST_LAYER)
        return pb.Queries(
            data=pb.Slice(region_id=self.region.id, offset=self.offset, size=self.size),
            dtype=int(self.dtype), rows=self.rows, ring_start=self.ring_start,  # type: ignore[arg-type]
            layer_stride=self.layer_stride, head_stride=self.head_stride, row_stride=self.row_stride,
            layers=self.layers, last_row=self.last_row,
            lse=None if self.lse is None else self.lse.to_message(),
            sink_logits=None if self.sink_logits is None else self.sink_logits.to_message())


@dataclass(frozen=True, kw_only=True)
class GroupJob:
    """What to do with one layer group of a sequence.

    Attributes:
        rows: rows now in the cache.
        table: where they are: a Table, block ids, or a Slice of a region that holds block ids.
        group: index into CacheLayout.groups.
        policy: one, or several with ascending layer_first.
        keep_ratio: fraction of `rows` to keep.
        max_tokens: rows to keep; with both, the smaller.
        protect: half-open ranges of positions that are kept but may move.
        protect_prefix: first rows that are kept and never written, such as blocks shared with others.
        positions: half-open ranges of the rows' positions after an earlier compression; None = row number.
        keep: keep exactly these rows, without scoring and budget.
        chunk_lengths: with selector "chunk_at" or pool "leak": lengths of the chunks in rows, all rows together.
        destination: where copy_out() puts the kept rows: room for all of them, in blocks that are not the source's.
        scores_out: True = bring the scores along in the answer, or a Slice to write them to.
        scores_in: select by these instead of scoring: an array [layers or 1][units or rows], or a Slice; with
            heads="each" [layers][kv_heads][units or rows]; with several policies of rows, for all layers.
        score_kind: whether scores are of units (chunks) or of rows.
    """

    rows: int
    table: AnyTable
    group: int = 0
    policy: Policy | Sequence[Policy] = field(default_factory=Policy)
    keep_ratio: float | str | Decimal | None = None
    max_tokens: int | None = None
    protect: Sequence[rg.Range] = ()
    protect_prefix: int = 0
    positions: Sequence[rg.Range] | None = None
    keep: Sequence[rg.Range] | None = None
    chunk_lengths: Sequence[int] | None = None
    destination: AnyTable | None = None
    scores_out: bool | Slice = False
    scores_in: NDArray[Any] | Slice | None = None
    score_kind: Literal["units", "rows"] = "units"

    @property
    def policies(self) -> Sequence[Policy]:
        """The policies; one if it is one."""
        return (self.policy,) if isinstance(self.policy, Policy) else self.policy

    @property
    def needs_queries(self) -> bool:
        """False where nothing is to be scored, or not by queries."""
        return self.keep is None and self.scores_in is None and any(p.reads_queries for p in self.policies)

    @property
    def next_position(self) -> int:
        """One past the position of the last row."""
        return self.positions[-1][1] if self.positions else self.rows

    def to_message(self, path: str) -> pb.GroupJob:
        """The wire's message; InvalidArgument names what it cannot hold.  Scores must be in a region."""
        return self.checked(path)._message(path)

    def checked(self, path: str) -> GroupJob:
        """The same in plain numbers; errors name a value outside its limits, or what is of a wrong type."""
        policies = (self.policy,) if isinstance(self.policy, Policy) else self.policy
        if not isinstance(policies, Sequence) or not all(isinstance(policy, Policy) for policy in policies):
            raise TypeError(f"policy must be a Policy or several, not {self.policy!r}")
        if not policies:
            raise invalid(f"{path}.policies", "must have at least 1 entry, has 0")
        for policy in policies:
            policy.to_message()  # before anything is made of its values
        own_budget = all(policy.selector == "h2o" for policy in policies)
        if self.keep_ratio is None and self.max_tokens is None and self.keep is None and not own_budget:
            raise invalid(f"{path}.keep_ratio", "one of keep_ratio, max_tokens and keep is needed")
        word(f"{path}.score_kind", self.score_kind, ("units", "rows"))
        of_type("scores_out", self.scores_out, bool, Slice)
        if self.keep_ratio is not None:
            millionths(self.keep_ratio)
        lengths = self.chunk_lengths
        return replace(
            self, rows=whole(f"{path}.rows", self.rows), group=whole(f"{path}.group", self.group),
            protect_prefix=whole(f"{path}.protect_prefix", self.protect_prefix),
            max_tokens=None if self.max_tokens is None else whole(f"{path}.max_tokens", self.max_tokens, 1),
            protect=rg.checked(self.protect, f"{path}.protect", ascending=False),
            positions=_ranges(self.positions, f"{path}.positions"), keep=_ranges(self.keep, f"{path}.keep"),
            chunk_lengths=None if lengths is None else _lengths(lengths, f"{path}.chunk_lengths"))

    def _message(self, path: str) -> pb.GroupJob:
        message = pb.GroupJob(score_kind=getattr(pb, f"SCORE_{self.score_kind.upper()}"))
        # no rows: a sequence without a table, which is legal
        if self.rows:
            message.table.CopyFrom(table_of(self.table).to_message(f"{path}.table"))
        if self.rows and self.destination is not None:
            message.destination.CopyFrom(table_of(self.destination).to_message(f"{path}.destination"))
        policies = [self.policy] if isinstance(self.policy, Policy) else self.policy
        message.policies.extend(policy.to_message() for policy in policies)
        message.group, message.physical_len = self.group, self.rows
        message.protect_prefix, message.max_tokens = self.protect_prefix, self.max_tokens or 0
        if self.keep_ratio is not None:
            message.keep_ratio = millionths(self.keep_ratio)
        for first, end in self.protect:
            message.protect.add(first=first, count=end - first)
        if self.positions is not None:
            if rg.count(self.positions) != self.rows:
                raise invalid(f"{path}.position_runs", f"{rg.count(self.positions)} positions for {self.rows} rows")
            message.position_runs.extend(rg.runs_from_ranges(self.positions))
        if self.keep is not None:
            message.given_runs.extend(rg.runs_from_ranges(self.keep))
        self._fill_lists(message, path)
        return message

    def _fill_lists(self, message: pb.GroupJob, path: str) -> None:
        """Chunk lengths and the places of scores."""
        message.chunk_lengths.extend(() if self.chunk_lengths is None else self.chunk_lengths)
        for name, where in (("scores_out", self.scores_out), ("scores_in", self.scores_in)):
            if isinstance(where, Slice):
                getattr(message, name).CopyFrom(where.to_message())
            elif where is not None and where is not False:
                raise invalid(f"{path}.{name}", "in a message by itself, scores must lie in a region")


def _ranges(ranges: Sequence[rg.Range] | None, field: str) -> list[rg.Range] | None:
    return None if ranges is None else rg.checked(ranges, field, ascending=True)


def _lengths(lengths: Sequence[int], field: str) -> list[int]:
    try:
        items = list(lengths)
    except TypeError:
        raise TypeError(f"{field} must be a list of whole numbers, not {lengths!r}") from None
    return [whole(f"{field}[{i}]", length, 1) for i, length in enumerate(items)]


def table_of(table: AnyTable) -> Table:
    """A Table; bare numbers and slices are block ids."""
    return table if isinstance(table, Table) else Table(table)
