"""Rolling a torn move forward: what is left of it when the daemon died in it, from its control slot.

Everything in the slot is read as if a stranger had written it.  The kept sets must be whole (CRC-32C), of this
request, ascending, inside the sequence, never over its protected prefix, and must need exactly the steps that the slot
names.  Only then are the rows of the steps that are missing moved, in our own memory, by our own description of it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from . import ranges as rg
from .control import SlotState, crc32c
from .errors import InvalidArgument
from .job import GroupJob, Table, table_of
from .layout import Axis, CacheLayout, LayerGroup, Plane
from .region import Region, Slice
from .steps import Batch, lock_step, stay
from .wire import PlaneKind

MOST_STEPS = 512
SET_HEAD = struct.Struct("<6I")
PIECE_BYTES = 64 << 20  # copied at a time


class NotRepairable(Exception):
    """Why a slot cannot be rolled forward."""


@dataclass(frozen=True)
class FoundSet:
    """A kept set out of a kept area."""

    group: int
    layer_first: int
    kv_head: int
    physical_before: int
    kept: Sequence[rg.Range]


def read_sets(slot: SlotState) -> list[FoundSet]:
    """The kept sets of a slot, whole and well-formed, or NotRepairable."""
    if not slot.kept and slot.set_count:
        raise NotRepairable("its kept area is absurd")
    if crc32c(slot.kept) != slot.kept_crc:
        raise NotRepairable("its kept area has another CRC-32C")
    sets: list[FoundSet] = []
    place = 0
    for i in range(slot.set_count):
        if place + SET_HEAD.size > len(slot.kept):
            raise NotRepairable(f"kept set {i} is not all there")
        group, layer_first, kv_head, before, after, words = SET_HEAD.unpack_from(slot.kept, place)
        place += SET_HEAD.size
        if 4 * words > len(slot.kept) - place:
            raise NotRepairable(f"the runs of kept set {i} are not all there")
        try:
            kept = rg.ranges_from_runs(struct.unpack_from(f"<{words}I", slot.kept, place))
        except InvalidArgument as error:
            raise NotRepairable(f"kept set {i}: {error.detail}") from None
        place += 4 * words
        if rg.count(kept) != after or (kept and kept[-1][1] > before):
            raise NotRepairable(f"the runs of kept set {i} do not add up")
        sets.append(FoundSet(group, layer_first, kv_head, before, kept))
    if place != len(slot.kept):
        raise NotRepairable("there is more in its kept area than its sets")
    return sets


def check_sets(sets: Sequence[FoundSet], layout: CacheLayout, jobs: Sequence[GroupJob]) -> None:
    """NotRepairable unless the sets can be an answer to these jobs: each layer and head once, none over the prefix."""
    by_group = {job.group: job for job in jobs}
    firsts: dict[tuple[int, int], list[int]] = {}
    for one in sets:
        job = by_group.get(one.group)
        if job is None or one.physical_before != job.rows:
            raise NotRepairable(f"a kept set is of group {one.group} with {one.physical_before} rows, not of this job")
        group = layout.groups[one.group]
        if one.layer_first not in group.layers or one.kv_head >= group.kv_heads:
            raise NotRepairable(f"a kept set is of layer {one.layer_first}, head {one.kv_head}: there is none")
        block = group.tokens_per_block
        if stay(one.kept) < min(job.rows, -(-job.protect_prefix // block) * block):
            raise NotRepairable("a kept set would move rows of the protected prefix")
        firsts.setdefault((one.group, one.kv_head), []).append(one.layer_first)
    for number in {one.group for one in sets}:
        group = layout.groups[number]
        heads = {head for of, head in firsts if of == number}
        if heads not in ({0}, set(range(group.kv_heads))):
            raise NotRepairable(f"the kept sets of group {number} leave out a head")
    for job in jobs:
        if job.rows and (job.group, 0) not in firsts:
            raise NotRepairable(f"there is no kept set of group {job.group}")
    for (number, head), layers in firsts.items():
        if layers != sorted(set(layers)) or layers[0] != layout.groups[number].layers[0]:
            raise NotRepairable(f"the kept sets of group {number}, head {head} are not one for each layer, in order")


class _Mover:
    """Moves rows of one kept set: some layers of a group, all their heads or one."""

    def __init__(self, layout: CacheLayout, found: FoundSet, last_layer: int | None, each_head: bool, job: GroupJob,
                 places: NDArray[np.int64]) -> None:
        group = layout.groups[found.group]
        layers = [n for n in group.layers if n >= found.layer_first and (last_layer is None or n < last_layer)]
        heads = [found.kv_head] if each_head else list(range(group.kv_heads))
        self._rows = rg.rows_from_ranges(found.kept)
        self._pieces: list[tuple[NDArray[np.uint8], NDArray[np.int64]]] = []
        for plane in layout.planes:
            for layer in layers:
                if layer in plane.layers:
                    self._pieces += _pieces_of(plane, group, layer, heads, places)

    def move(self, batch: Batch) -> None:
        """Rows of one batch; it reads none that it writes."""
        begin, end = batch
        for window, starts in self._pieces:
            at_once = max(1, PIECE_BYTES // window.shape[1])
            for first in range(begin, end, at_once):
                last = min(end, first + at_once)
                window[starts[first:last]] = window[starts[self._rows[first:last]]]


def roll_forward(slot: SlotState, sets: Sequence[FoundSet], layout: CacheLayout, jobs: Sequence[GroupJob],
                 count: Callable[[int], None]) -> None:
    """Move what the steps from `slot.steps_done` on move; `count` is told how many are done.  NotRepairable comes
    before the first write."""
    steps = list(islice(lock_step([one.kept for one in sets], slot.batch_rows), MOST_STEPS + 1))
    if len(steps) != slot.steps or slot.steps_done > slot.steps:
        raise NotRepairable(f"{slot.steps_done} of {slot.steps} steps are done, and its sets need {len(steps)}")
    by_group = {job.group: job for job in jobs}
    places = {n: row_places(by_group[n], layout.groups[n]) for n in {one.group for one in sets}}
    movers = []
    for one in sets:
        later = [other.layer_first for other in sets
                 if (other.group, other.kv_head) == (one.group, one.kv_head) and other.layer_first > one.layer_first]
        each = any(other.group == one.group and other.kv_head > 0 for other in sets)
        movers.append(_Mover(layout, one, min(later, default=None), each, by_group[one.group], places[one.group]))
    for done, step in enumerate(steps[slot.steps_done :], slot.steps_done + 1):
        for mover, batch in zip(movers, step, strict=True):
            if batch is not None:
                mover.move(batch)
        count(done)


def row_places(job: GroupJob, group: LayerGroup) -> NDArray[np.int64]:
    """[rows][2]: block, and token in it, of every row."""
    table = table_of(job.table)
    words = _words(table).astype(np.int64)
    block = group.tokens_per_block
    if table.form in ("block_runs", "token_runs"):
        if len(words) % 2:
            raise NotRepairable("its table has half a run")
        firsts, counts = words[0::2], words[1::2]
        inside = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
        words = np.repeat(firsts, counts) + inside
    rows = np.arange(job.rows, dtype=np.int64)
    per_entry = block if table.form in ("blocks", "block_runs") else 1
    if len(words) * per_entry < job.rows:
        raise NotRepairable("its table is too short")
    slots = words[rows // per_entry] * per_entry + rows % per_entry
    if len(slots) and int(slots.max()) >= group.num_blocks * block:
        raise NotRepairable("its table names a block that there is not")
    return np.stack([slots // block, slots % block], axis=1)


def _words(table: Table) -> NDArray[np.uint32]:
    if not isinstance(table.entries, Slice):
        return table.words("table")
    piece = table.entries
    return bytes_of(piece.region)[piece.offset : piece.offset + piece.size // 4 * 4].view("<u4")


def bytes_of(region: Region) -> NDArray[np.uint8]:
    """The bytes of a region as this process sees them, or NotRepairable."""
    view = region.view()
    if view is None:
        raise NotRepairable(f"region {region.id} is not mapped here any more")
    return view


def _along(axis: Axis, indices: NDArray[np.int64]) -> NDArray[np.int64]:
    """Byte offsets of many indices; Axis.at() for one."""
    return indices // axis.tile * axis.outer + indices % axis.tile * axis.inner


def _pieces_of(plane: Plane, group: LayerGroup, layer: int, heads: Sequence[int],
               places: NDArray[np.int64]) -> list[tuple[NDArray[np.uint8], NDArray[np.int64]]]:
    """The adjacent pieces of a row in a plane: for each, a window over the region, [byte][length], and where it begins
    for every row."""
    memory = bytes_of(plane.region)
    if plane.end(group) > len(memory):
        raise NotRepairable("a plane passes the end of its region")
    base = (plane.offset + (layer - plane.layer_first) * plane.layer_stride + places[:, 0] * plane.block_stride
            + _along(plane.token, places[:, 1]))
    dims = np.arange(group.head_dim_v if plane.kind == PlaneKind.V else group.head_dim_k)
    at = np.unique(np.asarray(heads, np.int64)[:, None] * plane.head_stride + _along(plane.dim, dims))
    size = plane.dtype.itemsize
    cuts = np.flatnonzero(np.diff(at) != size) + 1
    pieces = []
    for elements in np.split(at, cuts):
        length = len(elements) * size
        window = np.lib.stride_tricks.as_strided(memory, (len(memory) - length + 1, length), (1, 1))
        pieces.append((window, base + int(elements[0])))
    return pieces
