"""Everything a client can get wrong: the right code, the name of the field, nothing written, daemon still serving."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pytest

import chunkkv
from chunkkv import Code
from chunkkv._pb import chunkkv_pb2 as pb
from daemon import Daemon
from raw import RawSession

ROWS, HEADS, QUERY_HEADS, DIM, WINDOW, BLOCK = 64, 2, 4, 16, 8, 8
INVALID = (Code.INVALID_ARGUMENT, Code.OUT_OF_RANGE)  # a value outside its bounds may get either
RANGE = (Code.OUT_OF_RANGE,)
EITHER = INVALID
MISSING = (Code.NOT_FOUND,)


@dataclass
class Bench:
    """A registered paged cache of one layer, and the messages that describe and compress it rightly."""

    client: chunkkv.Client
    raw: RawSession
    memory: chunkkv.SharedMemory
    region: chunkkv.Region
    cache: chunkkv.Cache
    register: pb.RegisterCache
    compress: pb.Compress

    def keys(self) -> np.ndarray:
        return self.memory.numpy((ROWS // BLOCK, BLOCK, HEADS, DIM), "f32")

    def queries(self) -> np.ndarray:
        return self.memory.numpy((1, WINDOW, QUERY_HEADS, DIM), "f32", 2 * self.keys().nbytes)

    def expect(self, request: pb.Request, codes: tuple[Code, ...], field: str) -> pb.Response:
        """Send it; the answer must be one of these codes, name the field, and leave every byte alone."""
        before = self.memory.numpy(self.memory.size, np.uint8).copy()
        response = self.raw.ask(request)
        code = Code(response.status.code)
        text = f"{code.name} {response.status.field!r} {response.status.detail!r}"
        assert code in codes, text
        assert response.status.field.startswith(field), text
        assert response.status.detail, text
        assert response.status.cache == pb.CACHE_CLEAN
        assert response.WhichOneof("body") is None
        assert np.array_equal(before, self.memory.numpy(self.memory.size, np.uint8)), "bytes were written"
        assert not self.client.ping().draining
        return response


@pytest.fixture(scope="module")
def bench(daemon: Daemon) -> Iterator[Bench]:
    with chunkkv.Client(daemon.prefix()) as client, RawSession(client) as raw:
        memory = chunkkv.SharedMemory.allocate(64 * 1024)
        region = client.register_region(memory)
        rng = np.random.default_rng(7)
        shape = (ROWS // BLOCK, BLOCK, HEADS, DIM)
        keys = memory.numpy(shape, "f32")
        values = memory.numpy(shape, "f32", keys.nbytes)
        queries = memory.numpy((1, WINDOW, QUERY_HEADS, DIM), "f32", 2 * keys.nbytes)
        for array in (keys, values, queries):
            array[...] = rng.normal(size=array.shape)
        layout = chunkkv.CacheLayout.of_arrays([keys], [values], axes="bthd", q_heads=QUERY_HEADS, region=region)
        cache = client.register_cache(layout)
        job = chunkkv.GroupJob(rows=ROWS, table=range(ROWS // BLOCK), keep_ratio=0.5,
                               policy=chunkkv.Policy(window=WINDOW, chunk=5))
        compress = pb.Compress(cache_id=cache.id, mode=pb.MODE_IN_PLACE, logical_len=ROWS,
                               groups=[job.to_message("g")],
                               queries=chunkkv.Queries.of_array(queries, region=region).to_message())
        yield Bench(client, raw, memory, region, cache, layout.to_message(), compress)


@pytest.fixture(autouse=True)
def the_same_request_without_the_mistake_still_works(bench: Bench) -> Iterator[None]:
    yield
    body = pb.Compress()
    body.CopyFrom(bench.compress)
    body.mode = pb.MODE_PLAN
    answer = bench.raw.ask(bench.raw.request(compress=body))
    assert answer.status.code == pb.CODE_OK, str(answer)
    assert answer.compressed.groups[0].physical_len == ROWS // 2


# ---- caches

CACHE: list[tuple[str, Callable[[pb.RegisterCache], object], tuple[Code, ...], str]] = [
    ("no groups", lambda m: m.ClearField("groups"), INVALID, "register_cache.groups"),
    ("no planes", lambda m: m.ClearField("planes"), INVALID, "register_cache.planes"),
    ("kv_heads 0", lambda m: setattr(m.groups[0], "kv_heads", 0), INVALID, "register_cache.groups[0].kv_heads"),
    ("kv_heads 1025", lambda m: setattr(m.groups[0], "kv_heads", 1025), INVALID, "register_cache.groups[0].kv_heads"),
    ("q_heads 0", lambda m: setattr(m.groups[0], "q_heads", 0), INVALID, "register_cache.groups[0].q_heads"),
    ("q_heads 3 of 2", lambda m: setattr(m.groups[0], "q_heads", 3), INVALID, "register_cache.groups[0].q_heads"),
    ("head_dim_k 0", lambda m: setattr(m.groups[0], "head_dim_k", 0), INVALID, "register_cache.groups[0].head_dim_k"),
    ("head_dim_k 1025", lambda m: setattr(m.groups[0], "head_dim_k", 1025), INVALID,
     "register_cache.groups[0].head_dim_k"),
    ("head_dim_v 0 and no latent plane", lambda m: setattr(m.groups[0], "head_dim_v", 0), INVALID, "register_cache."),
    ("latent plane of two heads", lambda m: setattr(m.planes[0], "kind", pb.PLANE_LATENT), INVALID,
     "register_cache.planes[0].kind"),
    ("tokens_per_block 0", lambda m: setattr(m.groups[0], "tokens_per_block", 0), INVALID,
     "register_cache.groups[0].tokens_per_block"),
    ("tokens_per_block 65537", lambda m: setattr(m.groups[0], "tokens_per_block", 65537), INVALID,
     "register_cache.groups[0].tokens_per_block"),
    ("num_blocks 0", lambda m: setattr(m.groups[0], "num_blocks", 0), INVALID, "register_cache.groups[0].num_blocks"),
    ("num_blocks beyond the region", lambda m: setattr(m.groups[0], "num_blocks", 2**32 - 1), RANGE,
     "register_cache.planes[0]"),
    ("no layers", lambda m: m.groups[0].ClearField("layers"), INVALID, "register_cache.groups[0].layers"),
    ("layer twice", lambda m: m.groups[0].layers.append(0), INVALID, "register_cache.groups[0].layers"),
    ("layer 65536", lambda m: m.groups[0].layers.append(65536), INVALID, "register_cache.groups[0].layers"),
    ("layer without planes", lambda m: m.groups[0].layers.append(1), INVALID, "register_cache.planes"),
    ("plane of no kind", lambda m: setattr(m.planes[0], "kind", 0), INVALID, "register_cache.planes[0].kind"),
    ("plane of an unknown kind", lambda m: setattr(m.planes[0], "kind", 77), INVALID, "register_cache.planes[0].kind"),
    ("plane without dtype", lambda m: setattr(m.planes[0], "dtype", 0), INVALID, "register_cache.planes[0].dtype"),
    ("plane of an unknown dtype", lambda m: setattr(m.planes[0], "dtype", 99), INVALID,
     "register_cache.planes[0].dtype"),
    ("plane of a layer in no group", lambda m: setattr(m.planes[0], "layer_first", 5), INVALID,
     "register_cache.planes[0]"),
    ("plane of 0 layers", lambda m: setattr(m.planes[0], "layer_count", 0), INVALID,
     "register_cache.planes[0].layer_count"),
    ("plane of 1025 layers", lambda m: setattr(m.planes[0], "layer_count", 1025), INVALID,
     "register_cache.planes[0].layer_count"),
    ("two K planes", lambda m: setattr(m.planes[1], "kind", pb.PLANE_K), INVALID, "register_cache.planes"),
    ("unknown region", lambda m: setattr(m.planes[0], "region_id", 999), MISSING, "register_cache.planes[0].region_id"),
    ("offset at the region's end", lambda m: setattr(m.planes[0], "offset", 64 * 1024 - 4), RANGE,
     "register_cache.planes[0]"),
    ("offset near 2^64", lambda m: setattr(m.planes[0], "offset", 2**64 - 4), RANGE, "register_cache.planes[0]"),
    ("block_stride overflows", lambda m: setattr(m.planes[0], "block_stride", 2**64 - 4), RANGE,
     "register_cache.planes[0]"),
    ("head_stride overflows", lambda m: setattr(m.planes[0], "head_stride", 2**63), RANGE, "register_cache.planes[0]"),
    ("token stride overflows", lambda m: setattr(m.planes[0].token, "outer", 2**62), RANGE, "register_cache.planes[0]"),
    ("dim stride overflows", lambda m: setattr(m.planes[0].dim, "outer", 2**60), RANGE, "register_cache.planes[0]"),
    ("layer_stride of one layer too large", lambda m: (
        m.groups[0].layers.append(1), setattr(m.planes[0], "layer_count", 2), setattr(m.planes[1], "layer_count", 2),
        setattr(m.planes[0], "layer_stride", 2**64 - 4)), RANGE, "register_cache.planes[0]"),
    ("block_stride 0", lambda m: setattr(m.planes[0], "block_stride", 0), EITHER, "register_cache.planes[0]"),
    ("head_stride 0", lambda m: setattr(m.planes[0], "head_stride", 0), EITHER, "register_cache.planes[0]"),
    ("token stride 0", lambda m: setattr(m.planes[0].token, "outer", 0), EITHER, "register_cache.planes[0]"),
    ("dim stride 0", lambda m: setattr(m.planes[0].dim, "outer", 0), EITHER, "register_cache.planes[0]"),
    ("unaligned stride", lambda m: setattr(m.planes[0], "head_stride", DIM * 4 + 1), INVALID,
     "register_cache.planes[0].head_stride"),
    ("scale NaN", lambda m: setattr(m.planes[0], "scale", float("nan")), INVALID, "register_cache.planes[0].scale"),
    ("scale infinite", lambda m: setattr(m.planes[0], "scale", float("inf")), INVALID,
     "register_cache.planes[0].scale"),
]


@pytest.mark.parametrize(("name", "spoil", "codes", "field"), CACHE, ids=[c[0] for c in CACHE])
@pytest.mark.tries(6, 9)
def test_register_cache(bench: Bench, name: str, spoil: Callable[[pb.RegisterCache], object],
                        codes: tuple[Code, ...], field: str) -> None:
    body = pb.RegisterCache()
    body.CopyFrom(bench.register)
    spoil(body)
    bench.expect(bench.raw.request(register_cache=body), codes, field)


@pytest.mark.tries(9)
def test_region_too_small_for_its_planes_by_one_row(bench: Bench) -> None:
    """The last byte of the last plane decides: one element less is refused, the exact size is not."""
    body = pb.RegisterCache()
    body.CopyFrom(bench.register)
    end = 64 * 1024 - bench.keys().nbytes
    body.planes[1].offset = end
    assert bench.raw.ask(bench.raw.request(register_cache=body)).status.code == pb.CODE_OK
    body.planes[1].offset = end + 4
    bench.expect(bench.raw.request(register_cache=body), RANGE, "register_cache.planes[1]")


# ---- compress

def policy(name: str, value: object) -> Callable[[pb.Compress], object]:
    return lambda m: setattr(m.groups[0].policies[0], name, value)


def job(name: str, value: object) -> Callable[[pb.Compress], object]:
    return lambda m: setattr(m.groups[0], name, value)


def query(name: str, value: object) -> Callable[[pb.Compress], object]:
    return lambda m: setattr(m.queries, name, value)


def entry(index: int, value: int) -> Callable[[pb.Compress], object]:
    def change(m: pb.Compress) -> None:
        m.groups[0].table.numbers[index] = value

    return change


def from_region(offset: int, size: int) -> Callable[[pb.Compress], object]:
    def change(m: pb.Compress) -> None:
        m.groups[0].table.ClearField("numbers")
        getattr(m.groups[0].table, "from").CopyFrom(pb.Slice(region_id=m.queries.data.region_id, offset=offset,
                                                             size=size))

    return change


def given_runs(*runs: int) -> Callable[[pb.Compress], object]:
    def change(m: pb.Compress) -> None:
        m.groups[0].given_runs.extend(runs)
        m.groups[0].keep_ratio = 0
        m.groups[0].ClearField("policies")
        m.ClearField("queries")

    return change


G, P, Q = "compress.groups[0].", "compress.groups[0].policies[0].", "compress.queries."
COMPRESS: list[tuple[str, Callable[[pb.Compress], object], tuple[Code, ...], str]] = [
    ("unknown cache", lambda m: setattr(m, "cache_id", 999), MISSING, "compress.cache_id"),
    ("no mode", lambda m: setattr(m, "mode", 0), INVALID, "compress.mode"),
    ("unknown mode", lambda m: setattr(m, "mode", 9), INVALID, "compress.mode"),
    ("unknown reply form", lambda m: setattr(m, "reply_form", 9), INVALID, "compress.reply_form"),
    ("no groups", lambda m: m.ClearField("groups"), INVALID, "compress.groups"),
    ("group twice", lambda m: m.groups.append(m.groups[0]), INVALID, "compress.groups[1].group"),
    ("unknown group", job("group", 1), EITHER + MISSING, G + "group"),
    ("logical below physical", lambda m: setattr(m, "logical_len", ROWS - 1), INVALID, "compress.logical_len"),
    ("rows beyond the limit", lambda m: (setattr(m.groups[0], "physical_len", 2**21),
                                         setattr(m, "logical_len", 2**21)), EITHER + (Code.QUOTA,), G + "physical_len"),
    ("block id out of range", entry(3, 8), EITHER, G + "table"),
    ("block id 2^32-1", entry(0, 2**32 - 1), EITHER, G + "table"),
    ("block repeated", entry(5, 2), INVALID, G + "table"),
    ("table too short", lambda m: m.groups[0].table.numbers.pop(), INVALID, G + "table"),
    ("table of no form", lambda m: setattr(m.groups[0].table, "form", 0), INVALID, G + "table.form"),
    ("no table", lambda m: m.groups[0].ClearField("table"), INVALID, G + "table"),
    ("table in a region and inline", lambda m: getattr(m.groups[0].table, "from").CopyFrom(
        pb.Slice(region_id=1, size=4)), INVALID, G + "table"),
    ("table beyond its region", from_region(64 * 1024 - 8, 32), RANGE, G + "table.from"),
    ("table wraps", from_region(2**64 - 4, 32), RANGE, G + "table.from"),
    ("table in a region too short", from_region(48 * 1024, 4), EITHER, G + "table"),
    ("no budget", job("keep_ratio", 0), INVALID, G + "keep_ratio"),
    ("keep_ratio above 1", job("keep_ratio", 1_000_001), INVALID, G + "keep_ratio"),
    ("span of 0 rows", lambda m: m.groups[0].protect.add(first=3), INVALID, G + "protect[0]"),
    ("run of 0 inside", given_runs(0, 4, 0, 3), EITHER, G + "given_runs"),
    ("runs past the end", given_runs(0, 4, 60, 1), EITHER, G + "given_runs"),
    ("runs without a kept end", given_runs(0, 4, 60), EITHER, G + "given_runs"),
    ("runs and a ratio", lambda m: m.groups[0].given_runs.extend([0, 4]), INVALID, G + "keep_ratio"),
    ("position runs for other rows", lambda m: m.groups[0].position_runs.extend([0, 4]), EITHER + (Code.UNSUPPORTED,),
     G + "position_runs"),
    ("window 257", policy("window", 257), INVALID, P + "window"),
    ("window 2^32-1", policy("window", 2**32 - 1), INVALID, P + "window"),
    ("fewer query rows than window", policy("window", WINDOW + 1), INVALID, "compress."),
    ("chunk 1025", policy("chunk", 1025), INVALID, P + "chunk"),
    ("sinks 1025", lambda m: setattr(m.groups[0].policies[0].sinks, "value", 1025), INVALID, P + "sinks"),
    ("pool_size even", policy("pool_size", 4), INVALID, P + "pool_size"),
    ("pool_size 33", policy("pool_size", 33), INVALID, P + "pool_size"),
    ("align 1025", policy("align", 1025), INVALID, P + "align"),
    ("unknown profile", policy("profile", 88), INVALID, P + "profile"),
    ("unknown pool", policy("pool", 88), INVALID, P + "pool"),
    ("scale NaN", policy("scale", float("nan")), INVALID, P + "scale"),
    ("softcap negative", policy("softcap", -1.0), INVALID, P + "softcap"),
    ("no policy, so a window of 32", lambda m: m.groups[0].ClearField("policies"), INVALID, "compress.queries.rows"),
    ("kvpress with sinks", lambda m: (setattr(m.groups[0].policies[0], "profile", pb.PROFILE_KVPRESS),
                                      setattr(m.groups[0].policies[0].sinks, "value", 4)), INVALID, P + "sinks"),
    ("kvpress with max_tokens", lambda m: (setattr(m.groups[0].policies[0], "profile", pb.PROFILE_KVPRESS),
                                           setattr(m.groups[0], "max_tokens", 4)), INVALID, G + "max_tokens"),
    ("budget below the protected rows", lambda m: (setattr(m.groups[0].policies[0], "tight", pb.TIGHT_REFUSE),
                                                   setattr(m.groups[0], "max_tokens", 5)),
     (Code.BUDGET_BELOW_PROTECTED,), G),
    ("no queries", lambda m: m.ClearField("queries"), INVALID, "compress.queries"),
    ("queries of no rows", query("rows", 0), INVALID, Q + "rows"),
    ("queries without dtype", query("dtype", 0), INVALID, Q + "dtype"),
    ("queries in int8", query("dtype", pb.DTYPE_I8), INVALID + (Code.UNSUPPORTED,), Q + "dtype"),
    ("ring_start at rows", query("ring_start", WINDOW), INVALID, Q + "ring_start"),
    ("newest query past the end", query("last_row", ROWS), EITHER, Q + "last_row"),
    ("queries in an unknown region", lambda m: setattr(m.queries.data, "region_id", 999), MISSING, Q + "data"),
    ("queries beyond their region", lambda m: setattr(m.queries.data, "offset", 64 * 1024 - 4), RANGE, Q + "data"),
    ("queries wrap", lambda m: setattr(m.queries.data, "offset", 2**64 - 4), RANGE, Q + "data"),
    ("query stride beyond the slice", query("row_stride", 2**20), RANGE, Q),
    ("query stride overflows", query("head_stride", 2**63), RANGE, Q),
    ("queries of no such layer", lambda m: m.queries.layers.append(9), EITHER + MISSING, "compress.queries"),
]


@pytest.mark.parametrize(("name", "spoil", "codes", "field"), COMPRESS, ids=[c[0] for c in COMPRESS])
@pytest.mark.tries(6)
def test_compress(bench: Bench, name: str, spoil: Callable[[pb.Compress], object], codes: tuple[Code, ...],
                  field: str) -> None:
    body = pb.Compress()
    body.CopyFrom(bench.compress)
    spoil(body)
    bench.expect(bench.raw.request(compress=body), codes, field)


def blocks(numbers: range, form: int = pb.TABLE_BLOCKS) -> pb.Table:
    return pb.Table(form=form, numbers=numbers)  # type: ignore[arg-type]


def copy_out(destination: pb.Table | None) -> Callable[[pb.Compress], object]:
    """Rows 0 to 31 only, so that blocks 4 to 7 are free for the copy."""
    def change(m: pb.Compress) -> None:
        m.mode, m.groups[0].physical_len = pb.MODE_COPY_OUT, ROWS // 2
        m.groups[0].table.CopyFrom(blocks(range(4)))
        if destination is not None:
            m.groups[0].destination.CopyFrom(destination)

    return change


def region_slice(m: pb.Compress, offset: int, size: int) -> pb.Slice:
    return pb.Slice(region_id=m.queries.data.region_id, offset=offset, size=size)


def reply_to(offset: int, size: int, form: int = pb.REPLY_IN_REGION) -> Callable[[pb.Compress], object]:
    def change(m: pb.Compress) -> None:
        m.reply_form = form  # type: ignore[assignment]
        m.reply_to.CopyFrom(region_slice(m, offset, size))

    return change


def scores(name: str, offset: int, size: int, kind: int = pb.SCORE_UNITS) -> Callable[[pb.Compress], object]:
    def change(m: pb.Compress) -> None:
        m.groups[0].score_kind = kind  # type: ignore[assignment]
        getattr(m.groups[0], name).CopyFrom(region_slice(m, offset, size))

    return change


FREE = 40 * 1024  # bytes of the region that no plane and no query uses begin here
MODES: list[tuple[str, Callable[[pb.Compress], object], tuple[Code, ...], str]] = [
    ("copy without a destination", copy_out(None), INVALID, G + "destination"),
    ("copy onto its source", copy_out(blocks(range(3, 7))), INVALID, G + "destination"),
    ("copy to the source's slots", copy_out(blocks(range(31, 63), pb.TABLE_TOKENS)), INVALID, G + "destination"),
    ("copy to a block twice", lambda m: (copy_out(blocks(range(4, 7)))(m), m.groups[0].destination.numbers.append(4)),
     INVALID, G + "destination"),
    ("copy to no such block", copy_out(blocks(range(6, 9))), RANGE, G + "destination"),
    ("copy to too little room", copy_out(blocks(range(4, 5))), EITHER, G + "destination"),
    ("destination of another mode", lambda m: m.groups[0].destination.CopyFrom(m.groups[0].table), INVALID,
     G + "destination"),
    ("reply in no region", lambda m: setattr(m, "reply_form", pb.REPLY_IN_REGION), EITHER + MISSING,
     "compress.reply_to"),
    ("reply in too small a slice", reply_to(FREE, 48), (Code.REPLY_TOO_LARGE,), "compress.reply_to"),
    ("reply beyond its region", reply_to(64 * 1024 - 512, 1024), RANGE, "compress.reply_to"),
    ("reply_to without its form", reply_to(FREE, 4096, pb.REPLY_RUNS), INVALID, "compress.reply_to"),
    ("scores to too small a slice", scores("scores_out", FREE, 8), EITHER, G + "scores_out"),
    ("scores beyond their region", scores("scores_out", 64 * 1024 - 4, 8), RANGE, G + "scores_out"),
    ("too few scores", scores("scores_in", FREE, 8), EITHER, G + "scores_in"),
    ("scores of too many rows", scores("scores_in", FREE, 4 * ROWS + 4, pb.SCORE_ROWS), EITHER, G + "scores_in"),
    ("scores of no kind", lambda m: setattr(m.groups[0], "score_kind", 7), INVALID, G + "score_kind"),
    ("best rows by scores of units", lambda m: (scores("scores_in", FREE, 40)(m), policy("fill", pb.FILL_BEST)(m)),
     INVALID, G + "score_kind"),
    ("given rows and scores", lambda m: (given_runs(0, 4)(m), scores("scores_out", FREE, 400)(m)), INVALID,
     G + "scores_out"),
    ("chunk lengths of another selector", lambda m: m.groups[0].chunk_lengths.extend([ROWS]), INVALID,
     G + "chunk_lengths"),
    ("chunk lengths that do not add up", lambda m: (policy("selector", pb.SELECTOR_CHUNK_AT)(m),
                                                    m.groups[0].chunk_lengths.extend([ROWS - 1])), EITHER,
     G + "chunk_lengths"),
    ("chunk of no row", lambda m: (policy("selector", pb.SELECTOR_CHUNK_AT)(m),
                                   m.groups[0].chunk_lengths.extend([0, ROWS])), EITHER, G + "chunk_lengths"),
    ("chunk_at without lengths", policy("selector", pb.SELECTOR_CHUNK_AT), INVALID, G + "chunk_lengths"),
    ("sums of unequal chunks", lambda m: (policy("selector", pb.SELECTOR_CHUNK_AT)(m),
                                          policy("unit_reduce", pb.UNIT_SUM)(m),
                                          m.groups[0].chunk_lengths.extend([ROWS])), INVALID, P + "unit_reduce"),
    ("prefix beyond the rows", job("protect_prefix", ROWS + 1), EITHER, G + "protect_prefix"),
    ("position twice", lambda m: (setattr(m, "logical_len", 100),
                                  m.groups[0].position_runs.extend([0, 30, 0, ROWS - 30])), EITHER,
     G + "position_runs"),
    ("positions beyond what was seen", lambda m: m.groups[0].position_runs.extend([1, ROWS]), EITHER,
     G + "position_runs"),
    ("reuse of more layers than there are", policy("reuse", 2), EITHER, P + "reuse"),
    ("paper with sinks", lambda m: (setattr(m.groups[0].policies[0], "profile", pb.PROFILE_PAPER),
                                    setattr(m.groups[0].policies[0].sinks, "value", 4)), INVALID, P + "sinks"),
    ("paper with spans", lambda m: (setattr(m.groups[0].policies[0], "profile", pb.PROFILE_PAPER),
                                    m.groups[0].protect.add(first=3, count=2)), INVALID, G + "protect"),
    ("paper with less than its window", lambda m: (setattr(m.groups[0].policies[0], "profile", pb.PROFILE_PAPER),
                                                   setattr(m.groups[0], "keep_ratio", 0),
                                                   setattr(m.groups[0], "max_tokens", WINDOW - 1)), INVALID, G),
]


@pytest.mark.parametrize(("name", "spoil", "codes", "field"), MODES, ids=[c[0] for c in MODES])
@pytest.mark.tries(6)
def test_modes(bench: Bench, name: str, spoil: Callable[[pb.Compress], object], codes: tuple[Code, ...],
               field: str) -> None:
    test_compress(bench, name, spoil, codes, field)


SLOTS: list[tuple[str, int, int, Code, str]] = [
    ("a word that was not submitted", 1, 7, Code.CONFLICT, "compress.control_use"),
    ("a slot that no page has", 9, 1, Code.OUT_OF_RANGE, "compress.control_slot"),
    ("a use without a slot", 0, 1, Code.INVALID_ARGUMENT, "compress.control_use"),
]


@pytest.mark.parametrize(("name", "slot", "use", "code", "field"), SLOTS, ids=[c[0] for c in SLOTS])
def test_slots(bench: Bench, name: str, slot: int, use: int, code: Code, field: str) -> None:
    body = pb.Compress()
    body.CopyFrom(bench.compress)
    body.control_slot, body.control_use = slot, use
    bench.expect(bench.raw.request(compress=body), (code,), field)


@pytest.mark.parametrize("where", ["key", "query"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.tries(6)
def test_not_finite(bench: Bench, where: str, value: float) -> None:
    array = bench.keys() if where == "key" else bench.queries()
    place = (3, 1, 0, 5) if where == "key" else (0, WINDOW - 1, 1, 5)
    good = array[place]
    array[place] = value
    try:
        response = bench.expect(bench.raw.request(compress=bench.compress), (Code.NONFINITE_SCORE,), "")
        assert "layer 0" in response.status.detail
        assert "unit" in response.status.detail
    finally:
        array[place] = good


# ---- successes that look like mistakes

@pytest.mark.parametrize(("rows", "keep", "why"), [
    (0, 500_000, pb.KEPT_EMPTY), (1, 500_000, pb.KEPT_SHORT), (WINDOW - 1, 100_000, pb.KEPT_SHORT),
    (ROWS, 1_000_000, pb.KEPT_FITS)])
def test_nothing_to_drop_is_a_success(bench: Bench, rows: int, keep: int, why: int) -> None:
    body = pb.Compress()
    body.CopyFrom(bench.compress)
    body.groups[0].physical_len, body.groups[0].keep_ratio = rows, keep
    before = bench.memory.numpy(bench.memory.size, np.uint8).copy()
    response = bench.raw.ask(bench.raw.request(compress=body))
    assert response.status.code == pb.CODE_OK, str(response)
    group = response.compressed.groups[0]
    assert (group.kept_all, group.physical_before, group.physical_len) == (why, rows, rows)
    assert np.array_equal(before, bench.memory.numpy(bench.memory.size, np.uint8))


def test_budget_above_the_length_keeps_everything(bench: Bench) -> None:
    body = pb.Compress()
    body.CopyFrom(bench.compress)
    body.groups[0].keep_ratio, body.groups[0].max_tokens = 0, ROWS * 10
    group = bench.raw.ask(bench.raw.request(compress=body)).compressed.groups[0]
    assert (group.kept_all, group.physical_len) == (pb.KEPT_FITS, ROWS)


# ---- memory

def file_descriptor(kind: str) -> int:
    """Something that is not a full and sealed memfd."""
    if kind == "regular file":
        with tempfile.TemporaryFile() as stream:
            stream.write(bytes(8192))
            stream.flush()
            return os.dup(stream.fileno())
    if kind == "/dev/zero":
        return os.open("/dev/zero", os.O_RDWR | os.O_CLOEXEC)
    if kind == "directory":
        return os.open("/tmp", os.O_RDONLY | os.O_CLOEXEC)
    if kind == "pipe":
        read, write = os.pipe()
        os.close(write)
        return read
    fd = os.memfd_create("bad", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, 8192)
    if kind != "sparse memfd":
        os.posix_fallocate(fd, 0, 8192)
    if kind != "unsealed memfd":
        import fcntl

        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals | (fcntl.F_SEAL_GROW if kind == "sparse memfd" else 0))
    return fd


@pytest.mark.parametrize(("kind", "codes"), [
    ("unsealed memfd", (Code.NOT_SEALED,)), ("memfd that can grow", (Code.NOT_SEALED,)),
    ("sparse memfd", (Code.SPARSE,)), ("regular file", (Code.HANDLE_INVALID, Code.NOT_SEALED)),
    ("/dev/zero", (Code.HANDLE_INVALID, Code.NOT_SEALED)), ("directory", (Code.HANDLE_INVALID, Code.NOT_SEALED)),
    ("pipe", (Code.HANDLE_INVALID, Code.NOT_SEALED))])
@pytest.mark.tries(7, 16)
def test_descriptor(daemon: Daemon, kind: str, codes: tuple[Code, ...]) -> None:
    with chunkkv.Client(daemon.prefix()) as client:
        fd = file_descriptor(kind)
        try:
            with pytest.raises(chunkkv.RegionError) as caught:
                client.register_region(fd, size=8192)
        finally:
            os.close(fd)
        assert caught.value.code in codes, str(caught.value)
        assert caught.value.field in ("offer.fd", "register_region.memfd_token")
        assert caught.value.detail
        client.ping()


@pytest.mark.parametrize(("name", "given", "codes", "field"), [
    ("size 0", {"size": 0}, INVALID, "register_region.size"),
    ("size beyond the file", {"size": 8193}, RANGE, "register_region."),
    ("offset beyond the file", {"offset": 8192, "size": 1}, RANGE, "register_region."),
    ("offset + size = 2^64", {"offset": 2**64 - 4096, "size": 4096}, EITHER, "register_region."),
    ("size above 2^46", {"size": 2**46 + 1}, EITHER, "register_region.size"),
    ("no access", {"access": 0}, INVALID, "register_region.access"),
    ("unknown access", {"access": 7}, INVALID, "register_region.access"),
    ("device uuid", {"device_uuid": b"u" * 16}, (Code.DEVICE_MISMATCH, Code.INVALID_ARGUMENT),
     "register_region.device_uuid"),
], ids=lambda value: value if isinstance(value, str) and " " in value else "")
@pytest.mark.tries(7, 9)
def test_region_fields(bench: Bench, name: str, given: dict[str, object], codes: tuple[Code, ...],
                       field: str) -> None:
    side = bench.client._connection.side
    assert side is not None
    with chunkkv.SharedMemory.allocate(8192) as memory:
        token = side.offer(memory.fileno(), memory.size)
        body = pb.RegisterRegion(**{"memfd_token": token, "size": 8192, "access": 2, **given})  # type: ignore[arg-type]
        bench.expect(bench.raw.request(register_region=body), codes, field)


@pytest.mark.parametrize(("body", "codes", "field"), [
    (pb.RegisterRegion(memfd_token=b"x" * 16, size=4096, access=2), MISSING, "register_region.memfd_token"),
    (pb.RegisterRegion(memfd_token=b"x" * 15, size=4096, access=2), (Code.BAD_MESSAGE,), "register_region.memfd_token"),
    (pb.RegisterRegion(size=4096, access=2), EITHER + (Code.BAD_MESSAGE,), "register_region.source"),
    (pb.RegisterRegion(cuda_ipc=pb.CudaIpc(handle=b"h" * 63, alloc_size=4096), size=4096, access=2,
                       device_uuid=b"u" * 16), (Code.BAD_MESSAGE,), "register_region.cuda_ipc.handle"),
    (pb.RegisterRegion(cuda_ipc=pb.CudaIpc(handle=b"h" * 66, alloc_size=4096), size=4096, access=2,
                       device_uuid=b"u" * 16), (Code.BAD_MESSAGE,), "register_region.cuda_ipc.handle"),
    (pb.RegisterRegion(cuda_ipc=pb.CudaIpc(handle=b"h" * 64, alloc_size=4096), size=4096, access=2,
                       device_uuid=b"u" * 16), (Code.UNSUPPORTED, Code.DEVICE_MISMATCH), "register_region."),
], ids=["unknown token", "token of 15 bytes", "no source", "handle of 63 bytes", "handle of 66 bytes", "cuda ipc"])
@pytest.mark.tries(7)
def test_region_sources(bench: Bench, body: pb.RegisterRegion, codes: tuple[Code, ...], field: str) -> None:
    bench.expect(bench.raw.request(register_region=body), codes, field)


def test_in_place_on_read_only_memory(bench: Bench) -> None:
    """plan() may read it, compress() may not write it."""
    client = bench.client
    with chunkkv.SharedMemory.allocate(64 * 1024, read_only=True) as memory:
        memory.numpy(memory.size, np.uint8)[...] = bench.memory.numpy(bench.memory.size, np.uint8)
        region = client.register_region(memory)
        assert region.access == chunkkv.Access.READ
        shape = (ROWS // BLOCK, BLOCK, HEADS, DIM)
        keys, values = memory.numpy(shape, "f32"), memory.numpy(shape, "f32", bench.keys().nbytes)
        cache = client.register_cache(chunkkv.CacheLayout.of_arrays([keys], [values], axes="bthd",
                                                                    q_heads=QUERY_HEADS, region=region))
        body = pb.Compress()
        body.CopyFrom(bench.compress)
        body.cache_id, body.queries.data.region_id = cache.id, region.id
        before = memory.numpy(memory.size, np.uint8).copy()
        bench.expect(bench.raw.request(compress=body), (Code.PERMISSION,), "compress.")
        body.mode = pb.MODE_PLAN
        assert bench.raw.ask(bench.raw.request(compress=body)).status.code == pb.CODE_OK
        assert np.array_equal(before, memory.numpy(memory.size, np.uint8))
        client.unregister_cache(cache)
        client.unregister_region(region)


def test_unregister_unknown(bench: Bench) -> None:
    bench.expect(bench.raw.request(unregister_region=pb.UnregisterRegion(region_id=999)), MISSING,
                 "unregister_region.region_id")
    bench.expect(bench.raw.request(unregister_cache=pb.UnregisterCache(cache_id=999)), MISSING,
                 "unregister_cache.cache_id")


# ---- messages

def ping_with_unknown_fields(raw: RawSession, count: int) -> bytes:
    """A good Ping, and `count` fields that chunkkv.v1 does not know (number 100, varint 1)."""
    return raw.request(ping=pb.Ping()).SerializeToString() + bytes.fromhex("a00601") * count


def test_up_to_64_unknown_fields_are_ignored(bench: Bench) -> None:
    assert bench.raw.ask(ping_with_unknown_fields(bench.raw, 64)).status.code == pb.CODE_OK
    response = bench.raw.ask(ping_with_unknown_fields(bench.raw, 65))
    assert response.status.code == pb.CODE_BAD_MESSAGE
    assert "64" in response.status.detail
    assert not bench.client.ping().draining


@pytest.mark.parametrize("data", [b"", b"\xff" * 50, bytes.fromhex("2200") * 131072, b"\x0a" + b"\x80" * 9 + b"\x01"],
                         ids=["empty", "noise", "amplifier", "length 2^63"])
def test_bytes_that_are_no_request(bench: Bench, data: bytes) -> None:
    response = bench.raw.ask(data)
    assert response.status.code == pb.CODE_BAD_MESSAGE, str(response)
    assert response.status.cache == pb.CACHE_CLEAN
    bench.client.ping()


ENVELOPE: list[tuple[str, Callable[[pb.Request], object], tuple[Code, ...], str]] = [
    ("request_id 0", lambda r: setattr(r, "request_id", 0), EITHER + (Code.BAD_MESSAGE,), "request_id"),
    ("request_id 2^63", lambda r: setattr(r, "request_id", 2**63), EITHER + (Code.BAD_MESSAGE,), "request_id"),
    ("no boot_id", lambda r: setattr(r, "boot_id", b""), (Code.BAD_MESSAGE,), "boot_id"),
    ("boot_id of 15 bytes", lambda r: setattr(r, "boot_id", b"b" * 15), (Code.BAD_MESSAGE,), "boot_id"),
    ("other boot_id", lambda r: setattr(r, "boot_id", b"b" * 16), (Code.STALE_BOOT,), "boot_id"),
    ("no session_token", lambda r: setattr(r, "session_token", b""), (Code.BAD_MESSAGE,), "session_token"),
    ("unknown session_token", lambda r: setattr(r, "session_token", b"t" * 16), (Code.SESSION_UNKNOWN,),
     "session_token"),
    ("deadline too far", lambda r: setattr(r, "deadline_ns", r.deadline_ns + 700 * 10**9), EITHER, "deadline_ns"),
    ("deadline passed", lambda r: setattr(r, "deadline_ns", 1), (Code.EXPIRED,), "deadline_ns"),
    ("traceparent", lambda r: setattr(r, "traceparent", "no trace"), EITHER + (Code.BAD_MESSAGE,), "traceparent"),
    ("no body", lambda r: r.ClearField("ping"), INVALID + (Code.BAD_MESSAGE,), "body"),
]


@pytest.mark.parametrize(("name", "spoil", "codes", "field"), ENVELOPE, ids=[c[0] for c in ENVELOPE])
def test_envelope(bench: Bench, name: str, spoil: Callable[[pb.Request], object], codes: tuple[Code, ...],
                  field: str) -> None:
    request = bench.raw.request(ping=pb.Ping())
    spoil(request)
    bench.expect(request, codes, field)


def test_compress_needs_a_deadline(bench: Bench) -> None:
    request = bench.raw.request(compress=bench.compress)
    request.deadline_ns = 0
    bench.expect(request, INVALID, "deadline_ns")


def test_two_bodies_the_last_one_counts(bench: Bench) -> None:
    request = bench.raw.request(cancel=pb.Cancel(target_request_id=12345)).SerializeToString()
    response = bench.raw.ask(request + pb.Request(ping=pb.Ping()).SerializeToString())
    assert response.WhichOneof("body") == "pong", str(response)


def test_several_frames_are_refused_or_dropped(bench: Bench) -> None:
    data = bench.raw.request(ping=pb.Ping()).SerializeToString()
    bench.raw.send(data, data)
    response = bench.raw.receive(1.0)
    assert response is None or response.status.code == pb.CODE_BAD_MESSAGE
    bench.raw.send(b"", bench.raw.request(ping=pb.Ping()).SerializeToString())  # as a REQ socket sends
    again = bench.raw.receive(5.0)
    assert again is not None
    assert again.WhichOneof("body") == "pong"
