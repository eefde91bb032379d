"""Moves that a core left unfinished, on pages made here: the client library finishes them, or says that it cannot."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import chunkkv
from chunkkv.control import HEADER, KEPT_UNIT, SLOT, ControlPage, crc32c
from chunkkv.exchange import Exchange
from chunkkv.forward import row_places
from chunkkv.ranges import Range
from chunkkv.steps import batches, lock_step
from chunkkv.wire import CacheState, Mode, Phase
from chunkkv.writing import Writing

VECTORS = Path(__file__).resolve().parents[1] / "vectors" / "steps.json"
BOOT = b"b" * 16
LIMITS = chunkkv.Limits(*[0] * 12)
BLOCK, BLOCKS, HEADS, DIM = 4, 40, 3, 8
ROWS = 137
Sets = list[tuple[int, int, list[Range]]]  # layer_first, kv_head, kept


# ---- the batch rule


@pytest.mark.parametrize("case", json.loads(VECTORS.read_text()), ids=lambda case: case["name"])
def test_batches_are_those_of_the_daemon(case: dict[str, Any]) -> None:
    """tests/test_client_control.c holds the daemon's and the C library's rule to the same file."""
    kept = [tuple(pair) for pair in case["kept"]]
    assert [list(batch) for batch in batches(kept, case["batch_rows"])] == case["batches"]


def test_batches_read_nothing_that_they_or_later_ones_write() -> None:
    rng = np.random.default_rng(5)
    for _ in range(200):
        rows = np.flatnonzero(rng.random(300) < rng.uniform(0.02, 0.98))
        kept = chunkkv.ranges_from_rows(rows)
        cut = list(batches(kept, int(rng.choice([0, 1, 7]))))
        assert all(end == begin for (_, end), (begin, _) in pairwise(cut))
        assert not cut or cut[-1][1] == len(rows)
        for begin, end in cut:
            assert begin < end <= rows[begin]


# ---- a core that dies


@dataclass
class Torn:
    """A cache, a request on it, and what a core that died left of both."""

    writing: Writing
    planes: list[np.ndarray[Any, Any]]  # [keys, values], each [layer][row][head][dim] in the order of the table
    before: list[np.ndarray[Any, Any]]
    sets: Sets
    memory: chunkkv.SharedMemory

    def expected(self) -> list[np.ndarray[Any, Any]]:
        """The cache as it should be when all rows have moved."""
        out = [plane.copy() for plane in self.before]
        layers = self.before[0].shape[0]
        for layer_first, head, kept in self.sets:
            later = [first for first, h, _ in self.sets if h == head and first > layer_first]
            heads = slice(None) if all(h == 0 for _, h, _ in self.sets) else slice(head, head + 1)
            rows = chunkkv.rows_from_ranges(kept)
            for layer in range(layer_first, min(later, default=layers)):
                for plane, old in zip(out, self.before, strict=True):
                    plane[layer, : len(rows), heads] = old[layer, rows, heads]
        return out

    def is_done(self) -> bool:
        return all(np.array_equal(a, b) for a, b in zip(self.read(), self.expected(), strict=True))

    def read(self) -> list[np.ndarray[Any, Any]]:
        """The rows of the cache, through its table."""
        places = row_places(self.writing.exchange.jobs[0], self.writing.exchange.cache.layout.groups[0])
        return [plane[:, places[:, 0], places[:, 1]] for plane in self.planes]

    def write(self, plane: int, layer: int, rows: Any, heads: Any, values: Any) -> None:
        places = row_places(self.writing.exchange.jobs[0], self.writing.exchange.cache.layout.groups[0])[rows]
        self.planes[plane][layer, places[:, 0], places[:, 1], heads] = values

    def move(self, rng: np.random.Generator, done: int, part: float) -> None:
        """Move the rows of the first `done` steps, and a part of the rows of the next one, each in any order."""
        layers = self.before[0].shape[0]
        for number, step in enumerate(lock_step([kept for _, _, kept in self.sets])):
            if number > done:
                return
            for (layer_first, head, kept), batch in zip(self.sets, step, strict=True):
                if batch is None:
                    continue
                later = [first for first, h, _ in self.sets if h == head and first > layer_first]
                every = all(h == 0 for _, h, _ in self.sets)
                source = chunkkv.rows_from_ranges(kept)
                rows = np.arange(*batch)
                if number == done:
                    rows = rows[rng.random(len(rows)) < part]
                for layer in range(layer_first, min(later, default=layers)):
                    for h in range(HEADS) if every else (head,):
                        for plane in (0, 1):
                            now = self.read()[plane][layer, source[rows], h]
                            if number == done:  # half a row of it
                                now[:, DIM // 2 :] = 0
                            self.write(plane, layer, rows, h, now)

    def leave(self, phase: Phase, done: int, **changes: Any) -> None:
        """Fill in the slot as the core that dies does; `changes` are what a stranger writes there."""
        area = b""
        for layer_first, head, kept in self.sets:
            runs = chunkkv.runs_from_ranges(kept)
            length = sum(end - first for first, end in kept)
            area += struct.pack(f"<6I{len(runs)}I", 0, layer_first, head, ROWS, length, len(runs), *runs)
        area = changes.get("area", area)
        steps = sum(1 for _ in lock_step([kept for _, _, kept in self.sets]))
        page, ticket = self.writing.page, self.writing.ticket
        values = {"request_id": 77, "boot_id": BOOT, "batch_rows": 0, "steps": steps, "steps_done": done,
                  "set_count": len(self.sets), "kept_used": len(area), "kept_crc": crc32c(area)} | changes
        at = HEADER.size + (ticket.number - 1) * SLOT.size
        SLOT.pack_into(page.memory.buffer, at, ticket.use << 32 | phase, values["request_id"], 0, 0, 0,
                       values["boot_id"], 1, 0, values["batch_rows"], values["steps"], values["steps_done"],
                       values["set_count"], values["kept_used"], values["kept_crc"], Mode.IN_PLACE)
        start = page.memory.size - page.slots * page.kept_bytes + (ticket.number - 1) * page.kept_bytes
        page.memory.buffer[start : start + len(area)] = area


def torn(rng: np.random.Generator, sets: Sets, axes: str = "bthd", form: str = "blocks", layers: int = 2,
         **job: Any) -> Torn:
    memory = chunkkv.SharedMemory.allocate(2 * layers * BLOCKS * BLOCK * HEADS * DIM * 2)
    memory.numpy(memory.size // 2, np.uint16)[...] = rng.integers(1, 1 << 16, memory.size // 2)
    region = chunkkv.Region(1, memory.size, chunkkv.Access.READ_WRITE, address=memory.address, memory=memory)
    size = {"b": BLOCKS, "t": BLOCK, "h": HEADS, "d": DIM}
    arrays = memory.numpy([2, layers, *(size[name] for name in axes)], np.uint16)
    layout = chunkkv.CacheLayout.of_arrays(list(arrays[0]), list(arrays[1]), axes=axes, q_heads=HEADS, region=region,
                                           dtype="bf16")
    table: Any = rng.permutation(BLOCKS)[: -(-ROWS // BLOCK)]
    if form == "tokens":
        table = rng.permutation(BLOCKS * BLOCK)[:ROWS]
    elif form == "block_runs":
        table = [20, 20, 0, 20]
    elif form == "token_runs":
        table = [100, 30, 0, 90, 140, 17]
    one = chunkkv.GroupJob(rows=ROWS, table=chunkkv.Table(table, form), keep_ratio=0.5,  # type: ignore[arg-type]
                           **job).checked("job")
    cache = chunkkv.Cache(layout, 1, True, 1)
    exchange = Exchange(Mode.IN_PLACE, cache, [one], queries=None, logical_len=ROWS, reply_form=None, limits=LIMITS)
    page = ControlPage(2, KEPT_UNIT)
    page.take()
    ticket = page.take()
    assert ticket is not None
    order = [0, *(1 + axes.index(name) for name in "bthd")]
    result = Torn(Writing(exchange, page, ticket, 77, 5, {BOOT}, 1), [a.transpose(order) for a in arrays], [], sets,
                  memory)
    result.before = [plane.copy() for plane in result.read()]
    return result


def random_kept(rng: np.random.Generator, keep: float = 0.5) -> list[Range]:
    """Half of the rows, in runs, the first few where they are."""
    rows = np.flatnonzero(np.repeat(rng.random(-(-ROWS // 5)) < keep, 5)[:ROWS])
    return chunkkv.ranges_from_rows(rows if len(rows) else [ROWS - 1])


def steps_of(sets: Sets) -> int:
    return sum(1 for _ in lock_step([kept for _, _, kept in sets]))


SHAPES = {
    "one set": lambda rng: [(0, 0, random_kept(rng))],
    "each layer": lambda rng: [(0, 0, random_kept(rng)), (1, 0, random_kept(rng, 0.8))],
    "each head": lambda rng: [(0, h, random_kept(rng)) for h in range(HEADS)],
    "each layer and head": lambda rng: [(n, h, random_kept(rng, 0.7)) for n in (0, 1) for h in range(HEADS)],
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("form", ["blocks", "tokens", "block_runs", "token_runs"])
def test_any_torn_move_is_finished(shape: str, form: str) -> None:
    rng = np.random.default_rng(len(shape) + len(form))
    for axes in ("bthd", "bhtd", "bhdt"):
        for _ in range(3):
            trial = torn(rng, SHAPES[shape](rng), axes, form)
            steps = steps_of(trial.sets)
            done = int(rng.integers(0, steps))
            trial.move(rng, done, rng.uniform(0, 1))
            trial.leave(Phase.COMMITTING, done)
            answer = trial.writing.after_death()
            assert trial.is_done()
            assert (answer.phase, answer.cache, answer.repaired) == (Phase.DONE, CacheState.COMMITTED, True)
            assert (answer.request_id, answer.generation, answer.logical_len) == (77, 5, ROWS)
            longest = max(sum(end - first for first, end in kept) for _, _, kept in trial.sets)
            assert answer.physical_len == longest
            assert answer.groups[0].table_used == (-(-longest // BLOCK) if form.startswith("block") else longest)
            assert answer.layers[0].kept == trial.sets[0][2]
            slot = trial.writing.page.read(trial.writing.ticket.number)
            assert (slot.phase, slot.steps_done) == (Phase.DONE, steps)


def test_rows_that_all_stay_need_no_step() -> None:
    rng = np.random.default_rng(3)
    trial = torn(rng, [(0, 0, [(0, 50)])])
    trial.leave(Phase.COMMITTING, 0)
    assert trial.writing.after_death().physical_len == 50
    assert trial.is_done()


@pytest.mark.parametrize("phase", [Phase.SUBMITTED, Phase.SCORING, Phase.SELECTED, Phase.CANCELLED, Phase.FAILED])
def test_before_the_commit_nothing_was_written(phase: Phase) -> None:
    trial = torn(np.random.default_rng(1), [(0, 0, [(5, 50)])])
    trial.leave(phase, 0)
    with pytest.raises(chunkkv.CoreDied) as caught:
        trial.writing.after_death()
    assert (caught.value.cache, caught.value.request_id) == (CacheState.CLEAN, 77)
    assert trial.writing.page.has_ended(trial.writing.ticket)


def test_a_move_that_was_done_needs_its_answer_only() -> None:
    rng = np.random.default_rng(1)
    trial = torn(rng, [(0, 0, [(5, 50)])])
    trial.move(rng, 100, 1)
    trial.leave(Phase.DONE, steps_of(trial.sets))
    answer = trial.writing.after_death()
    assert (answer.repaired, answer.cache, answer.physical_len) == (False, CacheState.COMMITTED, 45)
    assert trial.is_done()


def test_a_move_can_be_left_to_a_daemon() -> None:
    rng = np.random.default_rng(1)
    trial = torn(rng, [(0, 0, [(5, 50)])])
    trial.leave(Phase.COMMITTING, 1)
    before = trial.read()
    with pytest.raises(chunkkv.CoreDied) as caught:
        trial.writing.after_death(may_move=False)
    assert caught.value.cache == CacheState.TORN_REPAIRABLE
    assert all(np.array_equal(a, b) for a, b in zip(trial.read(), before, strict=True))
    assert not trial.writing.page.has_ended(trial.writing.ticket)


def sets_area(*sets: Sequence[int]) -> bytes:
    return b"".join(struct.pack(f"<{len(words)}I", *words) for words in sets)


WHOLE = (0, 0, 0, ROWS, 45, 2, 5, 45)
STRANGERS = {
    "a single pass": {"steps": 0},
    "another CRC": {"kept_crc": 1},
    "of another request": {"request_id": 78},
    "of another daemon": {"boot_id": b"x" * 16},
    "more done than there is": {"steps_done": 11},
    "one step fewer": {"steps": 8},
    "other batches": {"batch_rows": 3},
    "an area that is too long": {"kept_used": 1 << 30},
    "no sets": {"area": b"", "set_count": 0},
    "half a set": {"area": sets_area(WHOLE[:5])},
    "half the runs": {"area": sets_area(WHOLE[:7])},
    "runs without end": {"area": sets_area((*WHOLE[:5], 0xFFFFFFFF, 5, 45))},
    "an odd number of runs": {"area": sets_area((*WHOLE[:5], 3, 5, 45, 1))},
    "a run of nothing": {"area": sets_area((*WHOLE[:5], 4, 5, 45, 0, 1))},
    "runs that do not add up": {"area": sets_area((*WHOLE[:4], 46, 2, 5, 45))},
    "rows beyond the end": {"area": sets_area((*WHOLE[:5], 2, 100, 45))},
    "more rows than there were": {"area": sets_area((0, 0, 0, 2 * ROWS, 45, 2, 5, 45))},
    "something behind the sets": {"area": sets_area(WHOLE, (1,))},
    "a group that is not asked for": {"area": sets_area((1, *WHOLE[1:]))},
    "a layer that there is not": {"area": sets_area((0, 2, *WHOLE[2:]))},
    "not the first layer": {"area": sets_area((0, 1, *WHOLE[2:]))},
    "a head that there is not": {"area": sets_area((0, 0, HEADS, *WHOLE[3:]))},
    "a head without its sisters": {"area": sets_area((0, 0, 1, *WHOLE[3:]))},
    "a set twice": {"area": sets_area(WHOLE, WHOLE), "set_count": 2},
}


@pytest.mark.parametrize("what", STRANGERS)
def test_a_slot_that_a_stranger_wrote_moves_nothing(what: str) -> None:
    rng = np.random.default_rng(1)
    trial = torn(rng, [(0, 0, [(5, 50)])])
    trial.leave(Phase.COMMITTING, 1, **STRANGERS[what])
    before = trial.read()
    with pytest.raises(chunkkv.CoreDied) as caught:
        trial.writing.after_death()
    assert caught.value.cache == CacheState.TORN
    assert all(np.array_equal(a, b) for a, b in zip(trial.read(), before, strict=True)), "rows were moved"


def test_rows_of_the_protected_prefix_never_move() -> None:
    """Blocks that others use too: a set that would write them is refused, rounded up to whole blocks."""
    rng = np.random.default_rng(1)
    trial = torn(rng, [(0, 0, [(0, 6), (9, 60)])], protect_prefix=6)
    trial.leave(Phase.COMMITTING, 0)
    with pytest.raises(chunkkv.CoreDied, match="prefix") as caught:
        trial.writing.after_death()
    assert caught.value.cache == CacheState.TORN
    fine = torn(rng, [(0, 0, [(0, 8), (9, 60)])], protect_prefix=6)
    fine.leave(Phase.COMMITTING, 0)
    fine.writing.after_death()
    assert fine.is_done()


def test_memory_that_is_gone_here() -> None:
    trial = torn(np.random.default_rng(1), [(0, 0, [(5, 50)])])
    trial.leave(Phase.COMMITTING, 1)
    trial.memory.close()
    with pytest.raises(chunkkv.CoreDied, match="not mapped") as caught:
        trial.writing.after_death()
    assert caught.value.cache == CacheState.TORN


def test_a_held_answer_keeps_what_it_said() -> None:
    rng = np.random.default_rng(2)
    trial = torn(rng, [(0, 0, [(5, 50)])])
    trial.leave(Phase.COMMITTING, 0)
    selected = replace(trial.writing.exchange.answer_of_sets(77, 5, []), generation=9, phase=Phase.SELECTED)
    trial.writing.selected = selected
    answer = trial.writing.after_death()
    assert (answer.generation, answer.phase, answer.repaired) == (9, Phase.DONE, True)
