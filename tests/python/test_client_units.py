"""The parts of the client that need no daemon."""

from __future__ import annotations

import fcntl
import os
import subprocess
from decimal import Decimal
from enum import IntEnum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from google.protobuf import descriptor_pb2

import chunkkv
from chunkkv import exchange, ranges, side, wire
from chunkkv._pb import chunkkv_pb2 as pb
from chunkkv.arrays import address_of

ROOT = Path(__file__).resolve().parents[2]


# ---- generated code

def test_generated_module_is_that_of_the_schema(tmp_path: Path) -> None:
    """The committed chunkkv_pb2.py describes exactly what proto/chunkkv.proto says now."""
    out = tmp_path / "set"
    subprocess.run(["protoc", "-I", str(ROOT / "proto"), f"--descriptor_set_out={out}", "chunkkv.proto"], check=True)
    compiled = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes())
    committed = descriptor_pb2.FileDescriptorProto.FromString(pb.DESCRIPTOR.serialized_pb)
    for file in (compiled.file[0], committed):
        file.ClearField("source_code_info")
        for message in file.message_type:
            for item in message.field:
                item.ClearField("json_name")  # only protoc's set has it
    assert compiled.file[0] == committed


@pytest.mark.parametrize(("mirror", "prefix"), [
    (wire.Code, "CODE_"), (wire.Radius, "RADIUS_"), (wire.CacheState, "CACHE_"), (wire.Phase, "PHASE_"),
    (wire.Mode, "MODE_"), (wire.Access, "ACCESS_"), (wire.Slot, "SLOT_"), (wire.PlaneKind, "PLANE_"),
    (wire.DType, "DTYPE_")], ids=lambda value: getattr(value, "__name__", ""))
def test_enum_is_that_of_the_schema(mirror: type[IntEnum], prefix: str) -> None:
    schema = pb.DESCRIPTOR.enum_types_by_name[mirror.__name__]
    assert {prefix + m.name: m.value for m in mirror} == {v.name: v.number for v in schema.values}


def test_enum_kept_all_is_that_of_the_schema() -> None:
    schema = pb.DESCRIPTOR.enum_types_by_name["KeptAll"]
    names = {v.number: v.name.removeprefix("KEPT_") for v in schema.values}
    assert {m.value: m.name for m in wire.KeptAll} == names


def test_every_code_has_an_error_class() -> None:
    for code in wire.Code:
        error = chunkkv.errors.from_code(code, "why")
        assert (type(error) is not chunkkv.InternalError) or code in (wire.Code.OK, wire.Code.INTERNAL)
        assert error.code == code
    assert isinstance(chunkkv.errors.from_code(999, "?"), chunkkv.InternalError)


def test_error_tells_code_field_and_cache() -> None:
    status = pb.Status(code=pb.CODE_OUT_OF_RANGE, radius=pb.RADIUS_REQUEST, cache=pb.CACHE_CLEAN,
                       field="compress.groups[0].table.numbers[3]", detail="entry 3 is 9, but the group has 8 of them")
    error = chunkkv.errors.from_status(status)
    assert isinstance(error, chunkkv.InvalidArgument)
    assert isinstance(error, ValueError)
    assert str(error) == ("OUT_OF_RANGE: compress.groups[0].table.numbers[3]: entry 3 is 9, but the group has 8 of "
                          "them (cache CLEAN)")


# ---- ranges

@pytest.mark.parametrize(("ranges", "runs"), [
    ([], []), ([(0, 4)], [0, 4]), ([(3, 4)], [3, 1]), ([(0, 4), (20, 30), (100, 400)], [0, 4, 16, 10, 70, 300])])
def test_runs_and_ranges(ranges: list[tuple[int, int]], runs: list[int]) -> None:
    assert chunkkv.ranges_from_runs(runs) == ranges
    assert chunkkv.runs_from_ranges(ranges) == runs
    assert chunkkv.ranges_from_rows(chunkkv.rows_from_ranges(ranges)) == ranges


def test_touching_ranges_become_one_run() -> None:
    assert chunkkv.runs_from_ranges([(2, 4), (4, 9)]) == [2, 7]


def test_random_rows_there_and_back() -> None:
    rng = np.random.default_rng(1)
    for _ in range(200):
        rows = np.flatnonzero(rng.random(rng.integers(1, 300)) < rng.random())
        ranges = chunkkv.ranges_from_rows(rows)
        assert chunkkv.rows_from_ranges(ranges).tolist() == rows.tolist()
        assert chunkkv.ranges_from_runs(chunkkv.runs_from_ranges(ranges)) == ranges


@pytest.mark.parametrize("runs", [[0], [0, 0], [1, 2, 0, 3], [1, 2, 3]])
def test_impossible_runs_are_refused(runs: list[int]) -> None:
    with pytest.raises(chunkkv.InvalidArgument, match="runs"):
        chunkkv.ranges_from_runs(runs)


@pytest.mark.parametrize("ranges", [[(3, 3)], [(5, 2)], [(0, 4), (3, 6)], [(-1, 2)]])
def test_impossible_ranges_are_refused(ranges: list[tuple[int, int]]) -> None:
    with pytest.raises(chunkkv.InvalidArgument, match="ranges"):
        chunkkv.runs_from_ranges(ranges)


@pytest.mark.parametrize("rows", [[1, 1], [2, 1], [-1, 3]])
def test_impossible_rows_are_refused(rows: list[int]) -> None:
    with pytest.raises(chunkkv.InvalidArgument, match="ascending"):
        chunkkv.ranges_from_rows(rows)


# ---- policy

@pytest.mark.parametrize(("ratio", "expected"), [
    (0.1, 100000), (0.3, 300000), (1 / 3, 333333), (2 / 3, 666667), (1.0, 1000000), (1e-6, 1), ("0.1", 100000),
    ("0.29", 290000), (0.29, 290000), ("1", 1000000), (Decimal("0.0000005000001"), 1), ("2.5e-1", 250000)])
def test_millionths(ratio: float | str | Decimal, expected: int) -> None:
    assert chunkkv.millionths(ratio) == expected


@pytest.mark.parametrize("ratio", [0, 0.0, -0.1, 1.1, 1.0000001, float("nan"), float("inf"), 1e-7, "0", "1.1", "nan",
                                   "ten", "-0.5", Decimal("Infinity")])
def test_impossible_ratio_is_refused(ratio: float | str | Decimal) -> None:
    with pytest.raises(chunkkv.InvalidArgument, match="keep_ratio"):
        chunkkv.millionths(ratio)


@pytest.mark.parametrize(("parts", "name"), [({"heavy": 1.5}, "heavy"), ({"recent": 0}, "recent")])
def test_impossible_part_of_h2o_is_named(parts: dict[str, float], name: str) -> None:
    with pytest.raises(chunkkv.InvalidArgument) as caught:
        chunkkv.methods.h2o(**parts)
    assert caught.value.field == name


def test_policy_there_and_back() -> None:
    policy = chunkkv.Policy(profile="kvpress", window=64, chunk=20, sinks=0, pool="avg", pool_size=5, scale=0.125,
                            group_heads="mean", window_reduce="max", tight="refuse", selector="chunk_at",
                            value_weight="none")
    message = policy.to_message()
    assert (message.profile, message.pool, message.group_heads) == (pb.PROFILE_KVPRESS, pb.POOL_AVG, pb.GROUP_MEAN)
    assert message.HasField("sinks")
    assert not message.HasField("recent")
    assert chunkkv.Policy.from_message(pb.Policy.FromString(message.SerializeToString())) == policy


def test_policy_names_every_value_of_the_schema() -> None:
    """No enum value of Policy is out of reach of the client."""
    from chunkkv.policy import _ENUMS

    for field in pb.Policy.DESCRIPTOR.fields:
        if field.enum_type is None:
            continue
        for value in field.enum_type.values:
            assert value.name.startswith(_ENUMS[field.name]), value.name


@pytest.mark.parametrize(("given", "field"), [({"pool": "median"}, "policy.pool"), ({"window": -1}, "policy.window"),
                                              ({"sinks": 2**40}, "policy.sinks")])
def test_impossible_policy_is_refused(given: dict[str, object], field: str) -> None:
    with pytest.raises(chunkkv.InvalidArgument) as caught:
        chunkkv.Policy(**given).to_message()  # type: ignore[arg-type]
    assert caught.value.field == field


# ---- memory and layouts

def test_memory_is_sealed_and_full() -> None:
    with chunkkv.SharedMemory.allocate(10_000) as memory:
        assert memory.size == 12_288
        stat = os.fstat(memory.fileno())
        assert (stat.st_size, stat.st_blocks * 512) == (12_288, 12_288)
        seals = fcntl.fcntl(memory.fileno(), fcntl.F_GET_SEALS)
        assert seals == fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        assert not os.get_inheritable(memory.fileno())
        with pytest.raises(PermissionError):
            os.ftruncate(memory.fileno(), 0)


def test_read_only_memory_is_ours_alone_to_write() -> None:
    import mmap

    with chunkkv.SharedMemory.allocate(4096, read_only=True) as memory:
        memory.numpy(4, "f32")[...] = 1.5
        assert fcntl.fcntl(memory.fileno(), fcntl.F_GET_SEALS) & 0x10
        with pytest.raises(PermissionError):
            mmap.mmap(memory.fileno(), 4096)


def test_views_outlive_the_memory_object() -> None:
    memory = chunkkv.SharedMemory.allocate(4096)
    view = memory.numpy((2, 3), "f32", 64)
    view[...] = 7
    memory.close()
    memory.close()
    assert view.sum() == 42
    with pytest.raises(ValueError, match="closed"):
        memory.fileno()


def test_bf16_there_and_back() -> None:
    values = np.array([0.0, -0.0, 1.0, -2.5, 3.14159, 1e38, np.inf, -np.inf, 1.00390625, 1.01171875], np.float32)
    bits = chunkkv.to_bf16(values)
    assert bits.tolist() == [0, 0x8000, 0x3F80, 0xC020, 0x4049, 0x7E96, 0x7F80, 0xFF80, 0x3F80, 0x3F82]
    assert np.array_equal(chunkkv.to_bf16(chunkkv.from_bf16(bits)), bits)
    assert np.isnan(chunkkv.from_bf16(chunkkv.to_bf16(np.array([np.nan], np.float32)))).all()


def region_of(memory: chunkkv.SharedMemory) -> chunkkv.Region:
    return chunkkv.Region(1, memory.size, chunkkv.Access.READ_WRITE, address=memory.address, memory=memory)


@pytest.mark.parametrize(("axes", "shape"), [
    ("b2thd", (5, 2, 4, 3, 8)), ("2bthd", (2, 5, 4, 3, 8)), ("b2htd", (5, 2, 3, 4, 8)), ("bth2d", (5, 4, 3, 2, 8)),
    ("2bhDtd", (2, 5, 3, 2, 4, 4)), ("l2bthd", (2, 2, 5, 4, 3, 8)), ("2thd", (2, 20, 3, 8))])
def test_layout_addresses_are_those_of_numpy(axes: str, shape: tuple[int, ...]) -> None:
    """Every element's address by the planes equals the place that NumPy finds it at."""
    with chunkkv.SharedMemory.allocate(64 * 1024) as memory:
        array = memory.numpy(shape, "f32", 256)
        array[...] = np.arange(array.size).reshape(shape)
        layout = chunkkv.CacheLayout.of_arrays([array], axes=axes, q_heads=6, region=region_of(memory))
        group = layout.groups[0]
        assert (group.kv_heads, group.head_dim_k, group.head_dim_v) == (3, 8, 8)
        flat = memory.numpy(memory.size // 4, "f32")
        sizes = {"l": len(group.layers), "b": group.num_blocks, "h": 3, "t": group.tokens_per_block, "d": 8}
        names = axes
        for name in (n for n in "lbhtd" if n not in axes):
            array, names = array[None], name + names
        inner = 4 if "D" in axes else 8
        for place in np.ndindex(*sizes.values()):
            of = dict(zip(sizes, place, strict=True))
            for two, kind in enumerate((chunkkv.PlaneKind.K, chunkkv.PlaneKind.V)):
                plane = next(p for p in layout.planes if p.kind == kind and of["l"] in p.layers)
                index = tuple({**of, "2": two, "D": of["d"] // inner, "d": of["d"] % inner if "D" in axes else of["d"]}
                              [n] for n in names)
                address = plane.address(of["l"], of["b"], of["h"], of["t"], of["d"])
                assert flat[address // 4] == array[index]
        assert max(p.end(group) for p in layout.planes) == 256 + 4 * array.size


def test_layout_axis_end_of_unequal_tiles() -> None:
    axis = chunkkv.Axis(tile=4, outer=8, inner=100)
    for count in range(1, 20):
        assert axis.last(count) == max(axis.at(i) for i in range(count))


def test_layout_outside_its_region_is_refused() -> None:
    with chunkkv.SharedMemory.allocate(4096) as memory:
        array = memory.numpy((16, 2, 8), "f32")
        layout = chunkkv.CacheLayout.of_arrays([array], [array], axes="thd", q_heads=2, region=region_of(memory))
        small = chunkkv.Region(1, layout.planes[0].end(layout.groups[0]) - 1, chunkkv.Access.READ_WRITE,
                               address=memory.address)
        with pytest.raises(chunkkv.InvalidArgument) as caught:
            chunkkv.CacheLayout.of_arrays([array], [array], axes="thd", q_heads=2, region=small)
        assert (caught.value.code, caught.value.field) == (chunkkv.Code.OUT_OF_RANGE, "register_cache.planes[0]")
        elsewhere = np.zeros((16, 2, 8), np.float32)
        with pytest.raises(chunkkv.InvalidArgument, match=r"keys\[0\]"):
            chunkkv.CacheLayout.of_arrays([elsewhere], [array], axes="thd", q_heads=2, region=region_of(memory))


@pytest.mark.parametrize(("axes", "q_heads", "what"), [("th", 2, "axes"), ("thh", 2, "axes"), ("thd", 3, "q_heads"),
                                                       ("thd", 0, "q_heads")])
def test_layout_nonsense_is_refused(axes: str, q_heads: int, what: str) -> None:
    with chunkkv.SharedMemory.allocate(4096) as memory:
        array = memory.numpy((16, 2, 8), "f32")
        with pytest.raises(chunkkv.InvalidArgument, match=what):
            chunkkv.CacheLayout.of_arrays([array], [array], axes=axes, q_heads=q_heads, region=region_of(memory))


def test_layout_negative_stride_is_refused() -> None:
    with chunkkv.SharedMemory.allocate(4096) as memory:
        array = memory.numpy((16, 2, 8), "f32")[::-1]
        with pytest.raises(chunkkv.InvalidArgument, match="negative"):
            chunkkv.CacheLayout.of_arrays([array], [array], axes="thd", q_heads=2, region=region_of(memory))


def test_queries_slice_ends_with_the_array() -> None:
    with chunkkv.SharedMemory.allocate(8192) as memory:
        array = memory.numpy((2, 4, 6, 8), "f32", 512)[:, 1:]
        queries = chunkkv.Queries.of_array(array, region=region_of(memory))
        assert (queries.offset, queries.rows) == (512 + 6 * 8 * 4, 3)
        assert queries.offset + queries.size == 512 + 2 * 4 * 6 * 8 * 4
        with pytest.raises(chunkkv.InvalidArgument, match="adjacent"):
            chunkkv.Queries.of_array(array[..., ::2], region=region_of(memory))


class StandInTensor:
    """As much of a torch tensor as the client looks at."""

    class Type(str):
        pass

    def __init__(self, array: np.ndarray) -> None:
        self._array, self.shape, self.dtype = array, array.shape, self.Type(f"torch.{array.dtype.name}")

    def stride(self) -> tuple[int, ...]:
        return tuple(s // self._array.itemsize for s in self._array.strides)

    def element_size(self) -> int:
        return self._array.itemsize

    def data_ptr(self) -> int:
        return self._array.ctypes.data

    def __getitem__(self, index: object) -> StandInTensor:
        return StandInTensor(self._array[index])  # type: ignore[index]

    def detach(self) -> StandInTensor:
        return self

    def numpy(self) -> np.ndarray:
        return self._array


def test_tensors_are_described_as_arrays_are() -> None:
    """Strides in elements, the address from data_ptr(), the type by its name: torch itself is not needed."""
    with chunkkv.SharedMemory.allocate(64 * 1024) as memory:
        region = region_of(memory)
        array = memory.numpy((6, 2, 4, 3, 8), "f32", 128)[1:, :, :, :2]
        tensor = StandInTensor(array)
        given = {"axes": "b2thd", "q_heads": 4, "region": region}
        assert chunkkv.CacheLayout.of_arrays([tensor], **given) == chunkkv.CacheLayout.of_arrays([array], **given)
        queries = memory.numpy((1, 4, 6, 8), "f16", 32 * 1024)
        assert chunkkv.Queries.of_array(StandInTensor(queries), region=region) == \
            chunkkv.Queries.of_array(queries, region=region)
        assert chunkkv.element_type(StandInTensor.Type("torch.bfloat16")) == chunkkv.DType.BF16


def test_table_inline_or_in_a_region() -> None:
    with chunkkv.SharedMemory.allocate(4096) as memory:
        inline = chunkkv.Table(np.array([3, 1, 2], np.uint32)).to_message("t")
        assert list(inline.numbers) == [3, 1, 2]
        assert not inline.HasField("from")
        there = chunkkv.Table(region_of(memory).slice(64, 12), "tokens").to_message("t")
        assert (there.form, getattr(there, "from").offset, list(there.numbers)) == (pb.TABLE_TOKENS, 64, [])
        for wrong in ([-1], [2**32], [1.5]):
            with pytest.raises(chunkkv.InvalidArgument, match=r"t\.numbers"):
                chunkkv.Table(wrong).to_message("t")  # type: ignore[arg-type]
        with pytest.raises(chunkkv.InvalidArgument, match="region"):
            region_of(memory).slice(4000, 100)


def test_table_in_runs_only_where_that_is_shorter() -> None:
    blocks = chunkkv.Table([7, 8, 9, 3, 4, 0, 1, 2, 5]).in_runs("t")
    assert (blocks.form, list(blocks.entries)) == ("block_runs", [7, 3, 3, 2, 0, 3, 5, 1])  # type: ignore[arg-type]
    assert chunkkv.Table(range(100), "tokens").in_runs("t").form == "token_runs"
    for same in (chunkkv.Table([1, 3, 5, 6]), chunkkv.Table([0, 4], "block_runs"), chunkkv.Table([])):
        assert same.in_runs("t") is same


def test_positions_of_kept_rows() -> None:
    assert ranges.positions_of([(0, 2), (3, 5)], None) == [(0, 2), (3, 5)]
    assert ranges.positions_of([(0, 2), (3, 5)], [(0, 4), (10, 14)]) == [(0, 2), (3, 4), (10, 11)]
    assert ranges.positions_of([(2, 4)], [(0, 3), (3, 6)]) == [(2, 4)]
    assert ranges.positions_of([], [(0, 3)]) == []


@pytest.mark.parametrize(("given", "most"), [
    ({"keep": [(0, 3), (5, 7)]}, 2),
    ({"keep_ratio": 0.5}, 50), ({"keep_ratio": 0.9}, 10), ({"max_tokens": 30}, 3),
    ({"keep_ratio": 0.5, "policy": chunkkv.Policy(profile="kvpress")}, 25),
    ({"keep_ratio": 0.5, "policy": chunkkv.Policy(selector="token")}, 500),
    ({"keep_ratio": 0.5, "positions": [(5, 1005)]}, 500)])
def test_most_runs_of_a_set(given: dict[str, object], most: int) -> None:
    """The estimate that decides how a reply comes: never below the truth, and not far above it."""
    bound = exchange.most_runs(chunkkv.GroupJob(rows=1000, table=[0], **given))  # type: ignore[arg-type]
    assert most <= bound <= most + 20


def test_scores_in_a_message_need_a_region() -> None:
    with pytest.raises(chunkkv.InvalidArgument, match="scores_in"):
        chunkkv.GroupJob(rows=8, table=[0], keep_ratio=0.5, scores_in=np.ones(8, np.float32)).to_message("j")
    with pytest.raises(chunkkv.InvalidArgument, match="chunk_lengths"):
        chunkkv.GroupJob(rows=8, table=[0], keep_ratio=0.5, chunk_lengths=[-1]).to_message("j")


def test_no_rows_need_no_table() -> None:
    assert not chunkkv.GroupJob(rows=0, table=[], keep_ratio=0.5).to_message("j").HasField("table")


def test_latent_layout_has_one_plane_and_one_head() -> None:
    with chunkkv.SharedMemory.allocate(8192) as memory:
        array = memory.numpy((2, 5, 4, 24), "f32", 256)
        layout = chunkkv.CacheLayout.of_latent([array], axes="lbtd", q_heads=16, region=region_of(memory))
        assert layout.groups == (chunkkv.LayerGroup((0, 1), 1, 16, 24, 0, 4, 5),)
        assert [plane.kind for plane in layout.planes] == [chunkkv.PlaneKind.LATENT]
        assert layout.planes[0].address(1, 2, 0, 3, 4) == 256 + 4 * (((1 * 5 + 2) * 4 + 3) * 24 + 4)


@pytest.mark.parametrize(("given", "name"), [
    ({"axes": 5}, "axes"), ({"region": 5}, "region"), ({"keys": 5}, "keys"), ({"values": 5}, "values"),
    ({"keys": [5], "values": [5]}, r"keys\[0\]"), ({"keys": [[1.0]]}, r"keys\[0\]"),
    ({"keys": [5], "values": None, "axes": "b2thd"}, r"keys\[0\]"),
    ({"dtype": 5}, "dtype"), ({"layers": 5}, "layers"), ({"layers": "0"}, "layers"),
    ({"layers": [1.5]}, r"layers\[0\]"),
    ({"keys": [SimpleNamespace(shape=(2, 16, 1, 8), dtype="f32")]}, r"keys\[0\]"),
], ids=str)
def test_what_is_no_array_is_named(given: dict[str, Any], name: str) -> None:
    array = np.zeros((2, 16, 1, 8), "f4")
    region = chunkkv.Region(1, array.nbytes, wire.Access.READ_WRITE, address=address_of(array))
    asked = {"keys": [array], "values": [array], "axes": "bthd", "q_heads": 4, "region": region}
    assert chunkkv.CacheLayout.of_arrays(**asked)
    with pytest.raises(TypeError, match=f"^{name} must be a"):
        chunkkv.CacheLayout.of_arrays(**{**asked, **given})
    uneven = SimpleNamespace(shape=array.shape, strides=(*array.strides, 4), dtype="f32",
                             data_ptr=lambda: address_of(array))
    with pytest.raises(chunkkv.InvalidArgument, match=r"keys\[0\]: shape .* has 4 axes, and there are 5 strides"):
        chunkkv.CacheLayout.of_arrays(**{**asked, "keys": [uneven]})


def test_keys_and_values_in_regions_of_their_own() -> None:
    with chunkkv.SharedMemory.allocate(4096) as one, chunkkv.SharedMemory.allocate(4096) as two:
        keys, values = one.numpy((16, 2, 8), "f32", 64), two.numpy((2, 8, 16), "f32", 128)
        other = chunkkv.Region(2, two.size, chunkkv.Access.READ_WRITE, address=two.address)
        layout = chunkkv.CacheLayout.of_arrays([keys], [values], axes="thd", value_axes="hdt", q_heads=2,
                                               region=region_of(one), value_region=other)
        assert [(p.region.id, p.offset) for p in layout.planes] == [(1, 64), (2, 128)]
        assert (layout.planes[1].token.outer, layout.planes[1].dim.outer) == (4, 64)


def test_job_needs_a_budget_and_fitting_positions() -> None:
    with pytest.raises(chunkkv.InvalidArgument, match="keep_ratio"):
        chunkkv.GroupJob(rows=8, table=[0]).to_message("j")
    with pytest.raises(chunkkv.InvalidArgument, match="position"):
        chunkkv.GroupJob(rows=8, table=[0], keep_ratio=0.5, positions=[(0, 7)]).to_message("j")
    job = chunkkv.GroupJob(rows=8, table=[0], keep_ratio=0.5, positions=[(0, 4), (10, 14)], protect=[(10, 12)])
    message = job.to_message("j")
    assert (list(message.position_runs), message.protect[0].first, message.protect[0].count) == ([0, 4, 6, 4], 10, 2)
    assert job.next_position == 14


# ---- side records and endpoints

def test_side_record_is_that_of_the_header() -> None:
    record = side.SideRecord(side.SideType.OFFER, cookie=0x1122334455667788, kind=1, size=4096, token=b"t" * 16)
    data = record.pack()
    assert len(data) == 96
    assert data[:8] == b"CKS1\x01\x00\x03\x00"
    assert data[8:16] == bytes.fromhex("8877665544332211")
    assert (data[20], data[24:26], data[56:72]) == (1, b"\x00\x10", b"t" * 16)
    assert side.SideRecord.unpack(data) == record
    for wrong in (data[:-1], b"X" + data[1:], data[:4] + b"\x02" + data[5:], data[:-1] + b"\x01"):
        with pytest.raises(ValueError, match="record"):
            side.SideRecord.unpack(wrong)


def test_endpoint_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CHUNKKV_ENDPOINT", raising=False)
    assert chunkkv.Endpoint.find().prefix == "/run/chunkkv/cpu/main"
    monkeypatch.setenv("CHUNKKV_ENDPOINT", "/tmp/x/main")
    assert chunkkv.Endpoint.find().requests == "ipc:///tmp/x/main.zmq"
    assert chunkkv.Endpoint.find("ipc:///tmp/y/a.zmq").side == "/tmp/y/a.fd"
    with pytest.raises(chunkkv.InvalidArgument, match="endpoint"):
        chunkkv.Endpoint.find("/" + "x" * 120)


def test_nobody_there_is_said_at_once() -> None:
    with pytest.raises(chunkkv.DaemonUnavailable, match=r"/nonexistent/main\.fd"):
        chunkkv.Client("/nonexistent/main")
    with pytest.raises(chunkkv.DaemonUnavailable, match=r"main\.zmq"):
        chunkkv.Client("/nonexistent/main", needs_side=False, timeout=0.3)


# ---- vectors of the protocol

@pytest.mark.parametrize(("data", "message", "expected"), [
    ("08078a0100", pb.Request, pb.Request(request_id=7, ping=pb.Ping())),
    ("08ac02110807060504030201d2010308ab02", pb.Request,
     pb.Request(request_id=300, deadline_ns=0x0102030405060708, cancel=pb.Cancel(target_request_id=299))),
    ("0801120c0100000000010000ffffffff", pb.Table, pb.Table(form=pb.TABLE_BLOCKS, numbers=[1, 256, 4294967295])),
    ("1a070004100a46ac02", pb.KeptSet, pb.KeptSet(runs=[0, 4, 16, 10, 70, 300])),
])
def test_vector(data: str, message: type, expected: object) -> None:
    raw = bytes.fromhex(data)
    decoded = message.FromString(raw)  # type: ignore[attr-defined]
    assert decoded == expected
    assert decoded.SerializeToString(deterministic=True) == raw


def test_vector_unpacked_table() -> None:
    raw = bytes.fromhex("080115010000001500010000" + "15ffffffff")
    assert list(pb.Table.FromString(raw).numbers) == [1, 256, 4294967295]


def test_vector_response() -> None:
    field = b"compress.groups[0].table"
    raw = bytes.fromhex("08071009221e0803100122") + bytes([len(field)]) + field
    response = pb.Response.FromString(raw)
    assert (response.request_id, response.generation) == (7, 9)
    error = chunkkv.errors.from_status(response.status)
    assert (error.code, error.radius, error.field) == (wire.Code.INVALID_ARGUMENT, wire.Radius.REQUEST, field.decode())
    assert response.SerializeToString(deterministic=True) == raw
