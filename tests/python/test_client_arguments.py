"""What a caller can get wrong in Python: a typo, a bad value, a wrong type.  Nothing is swallowed, each is named."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
import zmq

import chunkkv
from chunkkv import Code, Slot
from chunkkv._pb import chunkkv_pb2 as pb
from chunkkv.wire import CacheState
from daemon import Daemon

ROWS, LARGE = 100, 2**32
NAN = float("nan")


@pytest.fixture(scope="module")
def shared(daemon: Daemon) -> Iterator[tuple[chunkkv.Client, chunkkv.SharedCache]]:
    with chunkkv.Client(daemon.prefix()) as client, chunkkv.SharedCache.allocate(
            client, layers=1, tokens=ROWS, kv_heads=2, q_heads=4, head_dim=8, dtype="f32", window=8) as cache:
        rng = np.random.default_rng(3)
        cache.write(0, key=rng.normal(size=(ROWS, 2, 8)), value=rng.normal(size=(ROWS, 2, 8)),
                    query=rng.normal(size=(8, 4, 8)))
        yield client, cache


GOOD: dict[str, Any] = {"rows": ROWS, "keep_ratio": 0.5, "policy": chunkkv.Policy(window=8)}
METHODS = ("plan", "compress", "copy_out")


@pytest.fixture(autouse=True)
def nothing_is_written(shared: tuple[chunkkv.Client, chunkkv.SharedCache]) -> Iterator[None]:
    """Every test of this file is refused: the cache stays as it was, and the right request still works."""
    client, cache = shared
    before = cache.key(0).copy()
    yield
    assert np.array_equal(cache.key(0), before)
    assert client.plan(cache, **GOOD).physical_len == ROWS // 2


# ---- arguments that there are not

@pytest.mark.parametrize("method", METHODS)
def test_misspelt_argument_is_no_default(method: str, shared: tuple[chunkkv.Client, chunkkv.SharedCache]) -> None:
    client, cache = shared
    with pytest.raises(TypeError, match=rf"{method}\(\) got an unexpected keyword argument 'protected'; .*'protect'"):
        getattr(client, method)(cache, **GOOD, protected=[(10, 20)])
    with pytest.raises(TypeError, match=r"argument 'polcy'; did you mean 'policy'"):
        getattr(client, method)(cache, rows=ROWS, keep_ratio=0.5, polcy=chunkkv.Policy(chunk=1))
    with pytest.raises(TypeError, match=r"'xyzzy'$"):
        getattr(client, method)(cache, **GOOD, xyzzy=None)


def test_every_argument_of_a_job_is_one_of_a_request() -> None:
    names = set(chunkkv.GroupJob.__dataclass_fields__) - {"group"}
    assert names <= set(chunkkv.client.CompressRequest.__annotations__)


def test_arguments_beside_jobs_are_not_dropped(shared: tuple[chunkkv.Client, chunkkv.SharedCache]) -> None:
    client, cache = shared
    job = chunkkv.GroupJob(table=[0], **GOOD)
    assert client.plan(cache, jobs=[job]).physical_len == ROWS // 2
    with pytest.raises(chunkkv.InvalidArgument, match=r"protect: .*jobs"):
        client.plan(cache, jobs=[job], protect=[(10, 20)])
    with pytest.raises(chunkkv.InvalidArgument, match="jobs: must have at least 1"):
        client.plan(cache, jobs=[])


# ---- values

VALUES: list[tuple[dict[str, Any], str, str]] = [
    ({"keep_ratio": NAN}, "keep_ratio", r"nan is not in \(0, 1\]"),
    ({"keep_ratio": np.float64("nan")}, "keep_ratio", r"\(0, 1\]"),
    ({"keep_ratio": Decimal("NaN")}, "keep_ratio", r"\(0, 1\]"),
    ({"keep_ratio": "1e999999"}, "keep_ratio", r"\(0, 1\]"),
    ({"keep_ratio": "sNaN"}, "keep_ratio", r"\(0, 1\]"),
    ({"keep_ratio": -1}, "keep_ratio", r"\(0, 1\]"),
    ({"rows": -1}, "rows", "must be 0 to 4294967295, is -1"),
    ({"rows": LARGE}, "rows", "must be 0 to 4294967295, is 4294967296"),
    ({"rows": ROWS + 1}, "rows", "must be 0 to 100, .* is 101"),
    ({"rows": ROWS + 1, "table": [0]}, "table", "entries"),
    ({"rows": 2**21, "table": [0], "scores_out": True}, "rows", "must be 0 to 1048576, is 2097152"),
    ({"max_tokens": 0}, "max_tokens", "must be 1 to 4294967295, is 0"),
    ({"max_tokens": LARGE}, "max_tokens", "must be 1 to"),
    ({"protect": [(2**32, 2**32 + 5)]}, "protect[0]", "must be 0 to 4294967295, is 4294967296"),
    ({"protect": [(0, 2), (5, 5)]}, "protect[1]", "end must be above"),
    ({"protect": [(-1, 5)]}, "protect[0]", "must be 0 to 4294967295, is -1"),
    ({"protect_prefix": -1}, "protect_prefix", "must be 0 to"),
    ({"protect_prefix": 2**40}, "protect_prefix", "must be 0 to"),
    ({"positions": [(0, ROWS - 1)]}, "position", "99 positions for 100 rows"),
    ({"positions": [(50, 100), (0, 50)]}, "positions[1]", "not behind"),
    ({"positions": [(0, 50), (2**40, 2**40 + 50)]}, "positions[1]", "must be 0 to"),
    ({"keep": [(5, 2)]}, "keep[0]", "half-open"),
    ({"keep": [(0, LARGE)]}, "keep[0]", "must be 0 to"),
    ({"chunk_lengths": [50, -1]}, "chunk_lengths[1]", "must be 1 to"),
    ({"score_kind": "tokens"}, "score_kind", "'tokens' is none of units, rows"),
    ({"scores_in": np.ones(5, np.float64)}, "scores_in", "float64 is not float32"),
    ({"scores_in": [[1.0], [1.0, 2.0]]}, "scores_in", "is no array"),
    ({"table": [-1]}, "compress.groups[0].table.numbers", "0 to 2"),
    ({"table": [2**70]}, "compress.groups[0].table.numbers", "0 to 2"),
    ({"table": [[1], [2, 3]]}, "compress.groups[0].table.numbers", "list of numbers"),
    ({"table": "ab"}, "compress.groups[0].table.numbers", "0 to 2"),
    ({"table": chunkkv.Table([0], "slots")}, "table.form", "none of blocks, block_runs"),  # type: ignore[arg-type]
    ({"policy": []}, "policies", "at least 1"),
    ({"policy": chunkkv.Policy(window=-1)}, "policy.window", "0 to 4294967295, is -1"),
    ({"policy": chunkkv.Policy(sinks=2**40)}, "policy.sinks", "0 to 4294967295"),
    ({"policy": chunkkv.Policy(tight="x")}, "policy.tight", "must be one of raise, refuse, is 'x'"),  # type: ignore[arg-type]
    ({"reply_form": "x"}, "compress.reply_form", "'x' is none of runs, rows, in_region, no_sets"),
    ({"logical_len": -1}, "logical_len", "must be 0 to"),
    ({"logical_len": LARGE}, "logical_len", "must be 0 to"),
    ({"generation": -1}, "generation", "must be 0 to 18446744073709551615, is -1"),
    ({"generation": 2**64}, "generation", "must be 0 to"),
    ({"request_id": 0}, "request_id", "must be of new_request_id"),
    ({"request_id": 2**31}, "request_id", "must be of new_request_id"),
    ({"request_id": 2**64}, "request_id", "must be 0 to"),
    ({"timeout": 0}, "timeout", "above 0"),
    ({"timeout": NAN}, "timeout", "at most 599"),
    ({"timeout": 1e9}, "timeout", "at most 599"),
]


@pytest.mark.parametrize(("given", "field", "limit"), VALUES, ids=lambda value: str(value)[:40])
def test_bad_value_names_field_and_limit(given: dict[str, Any], field: str, limit: str,
                                         shared: tuple[chunkkv.Client, chunkkv.SharedCache]) -> None:
    client, cache = shared
    for method in ("plan", "compress"):
        with pytest.raises(chunkkv.InvalidArgument, match=limit) as caught:
            getattr(client, method)(cache, **{**GOOD, **given})
        assert field in caught.value.field
        assert caught.value.cache == CacheState.CLEAN


TYPES: list[tuple[dict[str, Any], str]] = [
    ({"rows": 3.5}, "rows"), ({"rows": "x"}, "rows"), ({"rows": None}, "rows"), ({"keep_ratio": [1]}, "keep_ratio"),
    ({"max_tokens": 1.5}, "max_tokens"), ({"max_tokens": True}, "max_tokens"), ({"keep_ratio": True}, "keep_ratio"),
    ({"protect": [5]}, r"protect\[0\] must be a pair"),
    ({"protect": 5}, "protect must be a list of pairs"), ({"protect": None}, "protect"),
    ({"protect": [(1, 2, 3)]}, r"protect\[0\]"), ({"protect": [(1, "x")]}, r"protect\[0\]"), ({"keep": 3}, "keep"),
    ({"protect_prefix": "x"}, "protect_prefix"), ({"positions": [1]}, r"positions\[0\]"),
    ({"chunk_lengths": 5}, "chunk_lengths"), ({"chunk_lengths": [1.5]}, r"chunk_lengths\[0\]"),
    ({"policy": {}}, "policy must be a Policy"), ({"policy": "paper"}, "policy must be a Policy"),
    ({"policy": [{}]}, "policy must be a Policy"), ({"scores_out": "yes"}, "scores_out"),
    ({"queries": np.zeros((1, 8, 4, 8), "f4")}, "queries must be a Queries"), ({"logical_len": "x"}, "logical_len"),
    ({"generation": 1.5}, "generation"), ({"request_id": "x"}, "request_id"), ({"timeout": "x"}, "timeout"),
    ({"jobs": [5], "rows": None, "keep_ratio": None, "policy": None}, r"jobs\[0\] must be a GroupJob"),
]


@pytest.mark.parametrize(("given", "name"), TYPES, ids=lambda value: str(value)[:40])
def test_wrong_type_names_the_argument(given: dict[str, Any], name: str,
                                       shared: tuple[chunkkv.Client, chunkkv.SharedCache]) -> None:
    client, cache = shared
    for method in ("plan", "compress"):
        with pytest.raises(TypeError, match=name):
            getattr(client, method)(cache, **{**GOOD, **given})


def test_anything_at_all_is_one_of_these_errors(shared: tuple[chunkkv.Client, chunkkv.SharedCache]) -> None:
    """No value of any argument ends in an error of a library below."""
    client, cache = shared
    odd = [None, -1, 0, 3.5, NAN, 2**31, 2**64, 10**400, "", "x", b"x", [], [None], [[1]], [(0, 1, 2)], {}, {"a": 1},
           (), object(), np.zeros(2, "f4"), np.array(5), np.zeros(0), [np.nan], [2**64], [(0, 2**64)], True, range(3)]
    names = [*chunkkv.client.CompressRequest.__annotations__, "x"]
    for name, value in itertools.product(names, odd):
        try:
            client.plan(cache, **{**GOOD, "timeout": 2.0, name: value})
        except chunkkv.ChunkkvError as error:
            assert error.field or error.detail, (name, value)
        except TypeError as error:
            assert name.removesuffix("_ratio") in str(error), (name, value, error)


WORDS = ("profile", "scorer", "selector", "pool", "norm", "heads", "group_heads", "value_weight", "unit_reduce",
         "layers", "fill", "tight", "join", "window_reduce", "layer_reduce")


@pytest.mark.parametrize("name", chunkkv.Policy.__dataclass_fields__)
def test_wrong_type_in_a_policy_names_the_member(name: str, shared: tuple[chunkkv.Client, chunkkv.SharedCache]) -> None:
    client, cache = shared
    odd = [True, b"x", [], {}, object(), np.zeros(2, "f4"), 1j]
    odd += [1, 1.5] if name in WORDS else ["32"] if name in ("scale", "softcap") else ["32", 1.5, np.float32(2)]
    for value in odd:
        with pytest.raises(TypeError, match=rf"^policy\.{name} must be a "):
            client.plan(cache, **{**GOOD, "policy": chunkkv.Policy(**{name: value})})


def test_numbers_in_a_policy() -> None:
    policy = chunkkv.Policy(window=np.int64(8), sinks=np.uint8(0), scale=np.float32(0.5), softcap=3)
    sent = policy.to_message()
    assert (sent.window, sent.sinks.value, sent.scale, sent.softcap) == (8, 0, 0.5, 3.0)
    for wrong in ({"scale": 10**400}, {"window": 2**32}, {"mute": -1}):
        with pytest.raises(chunkkv.InvalidArgument) as caught:
            chunkkv.Policy(**wrong).to_message()
        assert caught.value.field == f"policy.{next(iter(wrong))}"


# ---- the rest of the interface

def test_numbers_of_numpy_are_numbers(shared: tuple[chunkkv.Client, chunkkv.SharedCache]) -> None:
    client, cache = shared
    answer = client.plan(cache, rows=np.int32(ROWS), keep_ratio=np.float32(0.5), policy=GOOD["policy"],
                         protect=np.array([[50, 60]]), generation=np.uint64(7))
    assert answer.physical_len == ROWS // 2
    assert set(range(50, 60)) <= set(answer.layers[0].rows.tolist())


def test_what_a_cache_is_given(shared: tuple[chunkkv.Client, chunkkv.SharedCache]) -> None:
    client, cache = shared
    for wrong in (np.zeros((ROWS + 1, 2, 8)), np.zeros((4, 1, 8)), np.zeros((4, 2, 7)), np.zeros(4)):
        with pytest.raises(chunkkv.InvalidArgument, match=r"key: must be of shape \[at most 100, 2, 8\]"):
            cache.write(0, key=wrong)
    with pytest.raises(chunkkv.InvalidArgument, match=r"query: must be of shape \[at most 8, 4, 8\]"):
        cache.write(0, query=np.zeros((9, 4, 8)))
    for access in (cache.key, cache.value, cache.query):
        with pytest.raises(chunkkv.InvalidArgument, match="layer: 1 is none of"):
            access(1)
    shape = {"layers": 1, "tokens": 8, "kv_heads": 1, "q_heads": 1, "head_dim": 8}
    for name, value in (("layers", 0), ("layers", [-1]), ("tokens", 0), ("kv_heads", -1), ("window", 0)):
        with pytest.raises(chunkkv.InvalidArgument, match=f"{name}.*must be"):
            chunkkv.SharedCache.allocate(client, **{**shape, name: value})
    with pytest.raises(TypeError, match="head_dim"):
        chunkkv.SharedCache.allocate(client, **{**shape, "head_dim": 1.5})


def test_what_a_session_is_given(daemon: Daemon, shared: tuple[chunkkv.Client, chunkkv.SharedCache]) -> None:
    client, cache = shared
    with pytest.raises(chunkkv.InvalidArgument, match=r"needs\[0\]: 'levitate' is none of"):
        chunkkv.Client(daemon.prefix(), needs=["levitate"])
    with pytest.raises(chunkkv.InvalidArgument, match="zero byte"):
        chunkkv.Client("/tmp/a\0b")
    with pytest.raises(TypeError, match="name"):
        chunkkv.Client(daemon.prefix(), name=5)  # type: ignore[arg-type]
    for call in (client.cancel, client.outcome):
        with pytest.raises(chunkkv.InvalidArgument, match="request_id: must be 0 to"):
            call(-1)
    for wrong in ({"offset": -1}, {"size": -1}, {"size": 2**64}, {"access": 9}):
        with pytest.raises(chunkkv.InvalidArgument, match="register_region"):
            client.register_region(cache.memory, **wrong)  # type: ignore[arg-type]
    with pytest.raises(chunkkv.InvalidArgument, match="no open descriptor"):
        client.register_region(-1)
    with pytest.raises(TypeError, match="memory"):
        client.register_region("x")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="cache must be a Cache, not NoneType"):
        client.plan(None, **GOOD)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="layout"):
        client.register_cache({})  # type: ignore[arg-type]
    for size in (0, -5, 2**70):
        with pytest.raises(chunkkv.InvalidArgument, match="size: must be 1 to"):
            chunkkv.SharedMemory.allocate(size)


def test_what_a_layout_is_given(shared: tuple[chunkkv.Client, chunkkv.SharedCache]) -> None:
    _, cache = shared
    array = cache.memory.numpy((2, 2, 8, 2, 8), "f32")
    plain = array[:, 0]
    make = chunkkv.CacheLayout.of_arrays
    with pytest.raises(TypeError, match="'layer'"):
        make([array], axes="b2thd", q_heads=4, region=cache.region, layer=[0])  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="'layer'"):
        chunkkv.engine_layout("vllm-flashinfer-nhd", [array], q_heads=4, region=cache.region,
                              layer=[0])  # type: ignore[call-arg]
    with pytest.raises(chunkkv.InvalidArgument, match="axes: 'bthx' has x"):
        make([plain], [plain], axes="bthx", q_heads=4, region=cache.region)
    with pytest.raises(chunkkv.InvalidArgument, match=r"keys\[0\]: .*no axis of 2"):
        make([array], axes="bt2hd", q_heads=4, region=cache.region)
    with pytest.raises(chunkkv.InvalidArgument, match="region: must be one"):
        make([plain], [plain], axes="bthd", q_heads=4, region=[cache.region] * 2)
    with pytest.raises(chunkkv.InvalidArgument, match=r"layers\[0\]: must be 0 to 65535, is -1"):
        make([plain], [plain], axes="bthd", q_heads=4, region=cache.region, layers=[-1])
    with pytest.raises(TypeError, match="q_heads"):
        make([plain], [plain], axes="bthd", q_heads="x", region=cache.region)  # type: ignore[arg-type]
    with pytest.raises(chunkkv.InvalidArgument, match="at least one array"):
        chunkkv.CacheLayout.of_latent([], axes="btd", q_heads=4, region=cache.region)
    layout = make([plain], [plain], axes="bthd", q_heads=4, region=cache.region)
    plane = layout.planes[0].__class__(**{**layout.planes[0].__dict__, "token": chunkkv.Axis(0, 1, 1)})
    with pytest.raises(chunkkv.InvalidArgument, match=r"token\.tile: must be 1 to"):
        chunkkv.CacheLayout(layout.groups, (plane,)).check()


# ---- quotas

@pytest.mark.parametrize("attempts", [20])
def test_one_client_too_many_is_a_quota(daemon: Daemon, attempts: int) -> None:
    """Whether the refusal or our own first record is the faster one is a matter of luck, so it is tried often."""
    with chunkkv.Client(daemon.prefix()) as first:
        slot = next(budget for budget in first.status() if budget.slot == Slot.CONNECTIONS)
        others = [chunkkv.Client(daemon.prefix()) for _ in range(slot.limit - slot.used)]
        try:
            for _ in range(attempts):
                with pytest.raises(chunkkv.Busy, match="16 of 16 side connections of this user are open") as caught:
                    chunkkv.Client(daemon.prefix())
                assert (caught.value.code, caught.value.slot) == (Code.QUOTA, Slot.CONNECTIONS)
                assert str(caught.value).startswith("QUOTA of connections: ")
            others.pop().close()
            others.append(chunkkv.Client(daemon.prefix()))
            assert others[-1].call(pb.Request(ping=pb.Ping())).pong.now_ns
        finally:
            for other in others:
                other.close()


def test_error_shown_by_a_debugger_keeps_its_field(shared: tuple[chunkkv.Client, chunkkv.SharedCache]) -> None:
    client, cache = shared
    with pytest.raises(chunkkv.InvalidArgument) as caught:
        client.plan(cache, **{**GOOD, "rows": ROWS + 1})
    assert caught.value.field
    assert f", field={caught.value.field!r}, cache=CLEAN)" in repr(caught.value)
    quota = chunkkv.Busy("1 of 1 are in use", code=Code.QUOTA, slot=Slot.SESSIONS)
    assert repr(quota) == "Busy('1 of 1 are in use', code=QUOTA, field='', cache=CLEAN, slot=SESSIONS)"
    assert repr(chunkkv.DaemonUnavailable("x")) == "DaemonUnavailable('x', code=None, field='', cache=CLEAN)"


# ---- sockets

def test_channel_that_was_never_finished_does_not_wait_for_itself() -> None:
    """A context whose sockets are forgotten with it, in one circle, would wait for them for ever."""
    for _ in range(3):
        with pytest.raises(zmq.ZMQError) as caught:
            chunkkv.channel.Channel("ipc:///" + "x" * 300)
        circle: list[object] = [caught.value]
        circle.append(circle)
        del caught, circle
        gc.collect()


# ---- queries

def test_queries_that_were_not_given_do_not_vote(daemon: Daemon) -> None:
    """Room for 64 query rows, of which fewer are filled in: rows of zeros would look at all keys alike."""
    rng = np.random.default_rng(4)
    newest = rng.normal(size=(40, 4, 8))
    with chunkkv.Client(daemon.prefix()) as client, chunkkv.SharedCache.allocate(
            client, layers=1, tokens=ROWS, kv_heads=2, q_heads=4, head_dim=8, dtype="f32") as cache:
        cache.write(0, key=rng.normal(size=(ROWS, 2, 8)), value=rng.normal(size=(ROWS, 2, 8)), query=newest)
        request: dict[str, Any] = {"rows": ROWS, "keep_ratio": 0.5, "policy": chunkkv.methods.vote(),
                                   "scores_out": True, "score_kind": "rows"}
        scores = client.plan(cache, **request).groups[0].scores
        assert scores is not None
        of_40 = chunkkv.Queries.of_array(cache.query(0)[None, -40:], region=cache.region)
        assert np.array_equal(scores, client.plan(cache, queries=of_40, **request).groups[0].scores)
        of_64 = client.plan(cache, **request).groups[0].scores
        assert not np.array_equal(scores, of_64), "whoever takes the view has all rows to fill"
        cache.write(0, query=newest[-8:])
        with pytest.raises(chunkkv.InvalidArgument, match="8") as caught:
            client.plan(cache, rows=ROWS, keep_ratio=0.5)
        assert caught.value.field == "compress.queries.rows"
