"""Caches of Transformers in the memory of a GPU: what shared memory is held to, and what only a GPU can refuse.

Without a GPU, on the stand-in for the driver with emulated kernels; with `make check-transformers DEVICE=cuda` on one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import chunkkv  # noqa: E402
import chunkkv.transformers  # noqa: E402
import cuda_engine  # noqa: E402
import torch_gpu  # noqa: E402
from chunkkv import endpoint  # noqa: E402
from chunkkv.transformers import compressor, place  # noqa: E402
from daemon import Daemon, build_directory, is_sanitizer_build  # noqa: E402
from test_transformers import METHODS  # noqa: E402
from tiny_models import KINDS, generated, masked_run, prompt, tiny  # noqa: E402
from torch_gpu import REAL, Gpu, StandIn  # noqa: E402

pytestmark = [
    pytest.mark.skipif(not REAL and is_sanitizer_build(),
                       reason="a library with a sanitizer cannot be loaded into Python"),
    pytest.mark.skipif(not REAL and not (build_directory() / "chunkkvd-standin").exists(),
                       reason="built by make check-transformers"),
]
TOKENS = 8


@pytest.fixture(scope="module")
def gpu_daemon() -> Iterator[Daemon]:
    """It must survive all tests and end cleanly."""
    running = torch_gpu.start_daemon()
    yield running
    running.stop()


@pytest.fixture
def gpu(gpu_daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> Gpu:
    """A GPU and its daemon."""
    return Gpu(gpu_daemon, None if REAL else torch_gpu.put_in(monkeypatch))


@pytest.fixture
def stand_in(gpu: Gpu) -> StandIn:
    """For what a real GPU does not show."""
    if gpu.stand_in is None:
        pytest.skip("of the stand-in alone")
    return gpu.stand_in


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny("Llama").to(torch_gpu.DEVICE if REAL else "cpu")


def check(gpu: Gpu, model: Any, ids: Any, tokens: int = TOKENS, **asked: Any) -> list[Any]:
    """Generate compressed, and hold it to a full cache whose mask hides the dropped rows; the reports."""
    ids = ids.to(gpu.device)
    with chunkkv.compress(model, endpoint=gpu.endpoint, **asked) as kv:
        chosen, logits = generated(model, ids, tokens)
    assert kv.reports
    expected, full = masked_run(model, ids, tokens, kv.reports)
    assert torch.equal(chosen, expected)
    torch.testing.assert_close(logits, full, rtol=1e-4, atol=1e-4)
    return kv.reports


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_model(gpu: Gpu, kind: str) -> None:
    [report] = check(gpu, tiny(kind).to(gpu.device), prompt(120), keep_ratio=0.5)
    full = [1, 3] if kind.startswith("Gemma") else [0, 1, 2, 3]
    assert report.rows_after == dict.fromkeys(full, 60)


@pytest.mark.parametrize("asked", METHODS, ids=lambda asked: str(asked["method"])[:24])
def test_every_method(gpu: Gpu, model: Any, asked: dict[str, Any]) -> None:
    [report] = check(gpu, model, prompt(120, seed=2), **asked)
    if "max_tokens" in asked and asked["method"] != "pyramidkv":
        assert set(report.rows_after.values()) == {asked["max_tokens"]}
    if asked.get("heads") == "each" or asked["method"] == "snapkv-each":
        assert report.kept(0, kv_head=0).tolist() != report.kept(0, kv_head=1).tolist()


@pytest.mark.parametrize("asked", [{"method": "lagkv", "keep_ratio": 0.5}, {"keep_ratio": 0.5, "scorer": "drop"}],
                         ids=str)
def test_what_has_no_kernel_is_refused_at_the_beginning(gpu: Gpu, model: Any, asked: dict[str, Any]) -> None:
    """Once it has one, it is as right as the others."""
    ran: list[Any] = []
    hook = model.register_forward_pre_hook(lambda *_: ran.append(1))
    try:
        check(gpu, model, prompt(120), **asked)
    except chunkkv.Unsupported as error:
        assert "--backend cpu" in str(error)
        assert not ran
    finally:
        hook.remove()


@pytest.mark.parametrize("asked", [{"keep_ratio": 0.3}, {"method": "chunkkv-kvpress", "keep_ratio": 0.4},
                                   {"method": "vote", "keep_ratio": 0.3},
                                   {"method": "snapkv-each", "max_tokens": 50}], ids=str)
def test_the_same_rows_and_tokens_as_on_the_cpu(gpu: Gpu, stand_in: StandIn, model: Any, asked: dict[str, Any],
                                                monkeypatch: pytest.MonkeyPatch,
                                                new_daemon: Callable[..., Daemon]) -> None:
    ids = prompt(140, seed=12)
    with chunkkv.compress(model, endpoint=gpu.endpoint, **asked) as kv:
        there = generated(model, ids, TOKENS)
    assert "compress" in stand_in.events
    monkeypatch.setitem(place.PLACES, "cpu", place.HostPlace)
    with chunkkv.compress(model, endpoint=new_daemon().prefix(), **asked) as on_cpu:
        here = generated(model, ids, TOKENS)
    heads = range(2 if asked.get("method") == "snapkv-each" else 1)
    assert all(kv.reports[0].kept(layer, 0, head).tolist() == on_cpu.reports[0].kept(layer, 0, head).tolist()
               for layer in range(4) for head in heads)
    assert torch.equal(there[0], here[0])
    assert torch.equal(there[1], here[1])


@pytest.mark.parametrize("method", ["chunkkv", "vote"])
def test_batches(gpu: Gpu, model: Any, method: str) -> None:
    [report] = check(gpu, model, prompt(80, batch=3), method=method, max_tokens=45)
    assert report.sequences == 3
    assert report.kept(1, 0).tolist() != report.kept(1, 2).tolist()


def test_compressing_again_while_tokens_come(gpu: Gpu, model: Any) -> None:
    reports = check(gpu, model, prompt(90, seed=8), 24, keep_ratio=0.4, window=8, every=10)
    assert [report.tokens for report in reports] == [90, 100, 110]


def test_a_prompt_in_pieces_with_all_its_queries(gpu: Gpu) -> None:
    """Ring and cache grow, and move, while the prompt comes."""
    model = tiny("Gemma3").to(gpu.device)
    cache = chunkkv.transformers.ChunkKVCache(model.config)
    ids = prompt(330, seed=9).to(gpu.device)
    asked: dict[str, Any] = {"method": "h2o", "max_tokens": 60, "endpoint": gpu.endpoint}
    with torch.no_grad(), chunkkv.compress(model, **asked) as kv:
        for piece in ids.split(55, dim=1):
            model(piece, past_key_values=cache)
        pieces = kv.compress(cache)
        step = model(ids[:, :1], past_key_values=cache)
    assert step.logits.isfinite().all()
    assert cache.store.seen == 331
    assert {layer.length for layer in cache.store.layers} == {61}
    assert pieces.bytes_after < pieces.bytes_before
    with chunkkv.compress(model, **asked) as kv:
        generated(model, ids, 2)
    assert all(pieces.kept(layer).tolist() == kv.reports[0].kept(layer).tolist() for layer in (1, 3))


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_types_of_16_bits(gpu: Gpu, name: str) -> None:
    model = tiny("Llama", "sdpa").to(gpu.device, getattr(torch, name))
    with chunkkv.compress(model, keep_ratio=0.5, endpoint=gpu.endpoint) as kv:
        generated(model, prompt(80).to(gpu.device), 3)
    assert kv.last is not None
    assert set(kv.last.rows_after.values()) == {40}


def test_a_restarted_daemon_is_found_again(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    daemon = torch_gpu.start_daemon()
    try:
        gpu = Gpu(daemon, None if REAL else torch_gpu.put_in(monkeypatch))
        ids = prompt(64).to(gpu.device)
        with chunkkv.compress(model, keep_ratio=0.5, window=8, every=8, endpoint=gpu.endpoint) as kv:
            generated(model, ids, 3)
            daemon.restart()
            generated(model, ids, 12)
        assert len(kv.reports) == 3
    finally:
        daemon.stop()


IN_STEPS: dict[str, Any] = {"method": "streamingllm", "max_tokens": 64,
                            "protect": [(8 * i + 4, 8 * i + 8) for i in range(15)]}


@pytest.mark.skipif(REAL, reason="no GPU fails when it is told to")
def test_a_move_that_a_device_leaves_in_the_middle_is_gone_on_with(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The daemon ends, as its device is lost; the next one has the cache registered again, and finishes."""
    monkeypatch.setattr(compressor, "try_settings", lambda *_: None)  # so that its are not among the kernels counted
    daemon, over = cuda_engine.start(FAULT="2:719"), threading.Event()

    def next_one() -> None:
        assert daemon.process is not None
        daemon.process.wait(60)
        del daemon.environment["FAKECUDA_FAULT"]
        daemon.restart()
        over.wait()  # a daemon goes with the thread that started it

    watch = threading.Thread(target=next_one)
    watch.start()
    try:
        [report] = check(Gpu(daemon, torch_gpu.put_in(monkeypatch)), model, prompt(120), **IN_STEPS)
        daemon.stop()
    finally:
        over.set()
        watch.join()
    assert report.answers[0].repaired


@pytest.mark.skipif(REAL, reason="no GPU fails when it is told to")
def test_a_cache_whose_move_nobody_goes_on_with_is_not_used(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compressor, "try_settings", lambda *_: None)
    daemon = cuda_engine.start(FAULT="2:719")
    torch_gpu.put_in(monkeypatch)
    cache, ids = chunkkv.transformers.ChunkKVCache(model.config), prompt(120)
    try:
        with torch.no_grad(), chunkkv.compress(model, endpoint=daemon.prefix(), timeout=2, on_error="continue",
                                               **IN_STEPS) as kv:
            model(ids, past_key_values=cache)
            with pytest.raises(chunkkv.ChunkkvError) as caught:
                model(ids[:, :1], past_key_values=cache)
            assert caught.value.cache != chunkkv.CacheState.CLEAN
            with pytest.raises(chunkkv.CannotCompress, match="this cache lost its rows"):
                model(ids[:, :1], past_key_values=cache)
        assert not kv.failures
    finally:
        daemon.stop(check=False)


# ---- memory


def test_the_daemon_reads_what_is_written_and_lets_go_before_memory_is_free(gpu: Gpu, stand_in: StandIn,
                                                                            model: Any) -> None:
    """Two regions, planes and queries: of the small cache at the beginning, and of the cache."""
    ids = prompt(64)
    with chunkkv.compress(model, keep_ratio=0.5, endpoint=gpu.endpoint):
        assert stand_in.events[-8:] == [*ONCE, "free", "free"]
        stand_in.events.clear()
        generated(model, ids, 2)
        assert stand_in.events[:6] == ONCE
        assert "compress" not in stand_in.events[6:]
    stand_in.events.clear()
    with chunkkv.compress(model, max_tokens=33, window=8, every=8, endpoint=gpu.endpoint):
        stand_in.events.clear()
        generated(model, ids, 12)
        assert stand_in.events[:6] == ["wait", "register", "register", "compress", "wait", "compress"]
        assert "free" not in stand_in.events  # its cache is gone, but registered
    assert stand_in.events[6:8] == ["unregister", "unregister"]


ONCE = ["wait", "register", "register", "compress", "unregister", "unregister"]


def test_expandable_segments_travel_as_descriptors(gpu: Gpu, stand_in: StandIn, model: Any) -> None:
    stand_in.kind = "segments"
    [report] = check(gpu, model, prompt(100), keep_ratio=0.5)
    assert report.bytes_before > 0


def test_memory_that_cannot_be_shared_is_refused_with_the_way_out(gpu: Gpu, stand_in: StandIn, model: Any) -> None:
    """Of cudaMallocAsync, and of expandable segments that torch made without descriptors: before anything runs."""
    stand_in.kind = "pool"
    with pytest.raises(chunkkv.Unsupported, match="PYTORCH_CUDA_ALLOC_CONF=backend:native,expandable_segments:False") \
            as caught, chunkkv.compress(model, keep_ratio=0.5, endpoint=gpu.endpoint):
        pytest.fail("the block was entered")
    assert caught.value.code == chunkkv.Code.HANDLE_UNSUPPORTED
    assert "register" not in stand_in.events
    stand_in.kind = "malloc"
    assert len(check(gpu, model, prompt(64), keep_ratio=0.5)) == 1  # and the model is free


def test_a_fault_of_the_driver_is_not_taken_for_the_allocator(gpu: Gpu, stand_in: StandIn, model: Any,
                                                              monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKECUDA_FAIL", "cuIpcGetMemHandle:0:801")
    with pytest.raises(chunkkv.Unsupported, match=r"^(?!.*PYTORCH).*cuIpcGetMemHandle: .*801") as caught, \
            chunkkv.compress(model, keep_ratio=0.5, endpoint=gpu.endpoint):
        pytest.fail("the block was entered")
    assert caught.value.driver_code == 801
    assert "register" not in stand_in.events


# ---- the right daemon


OURS, THEIRS = "00010203-0405-0607-0809-0a0b0c0d0e0f", "6368756e-6b6b-7664-2d73-74616e64696e"


@pytest.mark.parametrize("given", ["endpoint", "client"])
def test_a_daemon_of_another_gpu_is_refused_by_both_names(gpu: Gpu, stand_in: StandIn, model: Any, given: str,
                                                          monkeypatch: pytest.MonkeyPatch) -> None:
    torch_gpu.other_uuid(monkeypatch)
    with chunkkv.Client(gpu.endpoint) as client:
        asked: dict[str, Any] = {given: gpu.endpoint if given == "endpoint" else client}
        words = (f"on cuda:0 \\(stand-in 0, UUID {OURS}\\), but the daemon at .* serves .*, UUID {THEIRS}; "
                 f"start one with .* --device {OURS} ")
        with pytest.raises(chunkkv.RegionError, match=words) as caught, \
                chunkkv.compress(model, keep_ratio=0.5, on_error="continue", **asked):
            pytest.fail("the block was entered")
    assert caught.value.code == chunkkv.Code.DEVICE_MISMATCH
    assert "register" not in stand_in.events


def test_the_daemon_itself_refuses_memory_of_another_gpu(gpu: Gpu, stand_in: StandIn, model: Any,
                                                         monkeypatch: pytest.MonkeyPatch) -> None:
    """As when the one of another GPU came in its place; no row is lost."""
    ids = prompt(64)
    alone = generated(model, ids, 4)
    with chunkkv.compress(model, keep_ratio=0.5, endpoint=gpu.endpoint, on_error="continue") as kv:
        torch_gpu.other_uuid(monkeypatch)
        assert torch.equal(generated(model, ids, 4)[1], alone[1])
    assert not kv.reports
    [error] = kv.failures
    assert (error.code, type(error)) == (chunkkv.Code.DEVICE_MISMATCH, chunkkv.RegionError)
    assert "00010203-0405-0607" in str(error)
    assert "6368756e-6b6b-7664" in str(error)
    assert stand_in.events.count("compress") == 1  # that of the beginning


def test_the_cpu_and_a_gpu_are_not_taken_for_each_other(gpu: Gpu, model: Any, monkeypatch: pytest.MonkeyPatch,
                                                        new_daemon: Callable[..., Daemon]) -> None:
    with pytest.raises(chunkkv.RegionError, match=r"on cuda:0 .* serves the CPU; .* --backend cuda --device \w+-"), \
            chunkkv.compress(model, keep_ratio=0.5, endpoint=new_daemon().prefix()):
        pytest.fail("the block was entered")
    monkeypatch.setitem(place.PLACES, "cpu", place.HostPlace)
    with pytest.raises(chunkkv.RegionError, match=r"on the CPU, but .* serves .*, UUID .*; .*`chunkkvd --runtime"), \
            chunkkv.compress(tiny("Llama"), keep_ratio=0.5, endpoint=gpu.endpoint):
        pytest.fail("the block was entered")


def test_without_an_endpoint_the_daemon_of_this_gpu_is_found(gpu: Gpu, model: Any, tmp_path: Path,
                                                             monkeypatch: pytest.MonkeyPatch,
                                                             new_daemon: Callable[..., Daemon]) -> None:
    monkeypatch.delenv(endpoint.ENVIRONMENT, raising=False)
    monkeypatch.setattr(endpoint, "RUNTIME", str(tmp_path))
    ids = prompt(64).to(gpu.device)
    with pytest.raises(chunkkv.DaemonUnavailable, match=r"on cuda:0 .*, and of the .* none serves that; start"), \
            chunkkv.compress(model, keep_ratio=0.5):
        pytest.fail("the block was entered")
    (tmp_path / "gpu0").symlink_to(new_daemon().directory)  # one of the CPU, by mistake
    (tmp_path / "gpu1").mkdir()
    (tmp_path / "gpu1" / "main.zmq").touch()  # of one that is gone
    (tmp_path / "cpu").symlink_to(gpu.daemon.directory)  # is not asked
    with pytest.raises(chunkkv.DaemonUnavailable, match=r"none serves that; .*gpu0/main serves the CPU; .*gpu1/main.*; "
                                                        "start"), chunkkv.compress(model, keep_ratio=0.5):
        pytest.fail("the block was entered")
    (tmp_path / "gpu2").symlink_to(gpu.daemon.directory)
    with chunkkv.compress(model, keep_ratio=0.5) as kv:
        generated(model, ids, 2)
    assert len(kv.reports) == 1


def test_rows_that_are_not_where_the_weights_were(gpu: Gpu, stand_in: StandIn, model: Any,
                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    """As when accelerate runs on a GPU what it keeps elsewhere."""
    with chunkkv.compress(model, keep_ratio=0.5, endpoint=gpu.endpoint):
        monkeypatch.setitem(place.PLACES, "cpu", place.HostPlace)
        with pytest.raises(chunkkv.Unsupported, match="of this cache are on cpu, but the model's weights on cuda:0"):
            generated(model, prompt(64), 2)
    assert stand_in.events.count("compress") == 1
