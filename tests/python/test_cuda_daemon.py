"""A daemon that serves a GPU, end to end against the stand-in driver: client, gate, core, IPC, kernels, reply.

The kernels that run are those of kernels/cuda in the emulator.  Nothing here says anything of a real driver or GPU.
"""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import chunkkv
import cuda_engine as engine
import reference_numpy as ref
import tensors
from chunkkv import CacheState, Code, TimelineWord
from cuda_daemon import MARKS, MIB, mapped
from cuda_engine import DeviceBlock, DeviceCache, kept_of
from daemon import Daemon, build_directory
from problems import Bench, Instance, Problem
from tenant import Tenant, seconds_until
from test_golden import POLICY_OF_PARAMS

pytestmark = MARKS
PROBLEMS = 200
WHOLE, SLICE = "6368756e-6b6b-7664-2d73-74616e64696e", "6368756e-6b6b-7664-2d61-2d736c696365"  # UUIDs of the stand-in
WORK = 1500  # rows times heads times layers of the largest problem: the emulator needs a moment for it


# ---- right results


class DeviceBench(Bench):
    """One block of device memory for all problems."""

    def __init__(self, client: chunkkv.Client, size: int = 8 * MIB) -> None:
        block = DeviceBlock(size)
        self.client, self.memory = client, block  # type: ignore[assignment]
        self.region = client.register_region(block.export())
        self.everything = block.numpy(size, np.uint8)


def computed_on_device(problem: Problem) -> bool:
    """What the GPU does not compute is refused (kernels/cuda_shape.h)."""
    p = problem.params
    return p.scorer not in ("lagkv", "drop")


def test_random_problems(gpu_client: chunkkv.Client) -> None:
    """Every layout, type and mode: the rows of the model, every byte of the memory accounted for."""
    bench = DeviceBench(gpu_client)
    done = refused = 0
    for seed in range(PROBLEMS):
        problem = Problem(seed)
        if problem.length * problem.layers * problem.q_heads > WORK:
            continue
        instance = Instance(bench, problem)
        instance.in_region = False
        request, expected = instance.request(), instance.before
        cache = gpu_client.register_cache(instance.layout)
        try:
            plans = instance.plans()
            if problem.mode == "plan":
                answer = gpu_client.plan(cache, **request)
            elif problem.mode == "in_place":
                answer = gpu_client.compress(cache, **request)
            else:
                room = instance.destination(max(len(plan.kept) for plan in plans))
                answer = gpu_client.copy_out(cache, destination=room, **request)
        except ref.Refused:
            continue  # of the CPU's tests
        except chunkkv.Unsupported as error:
            assert not computed_on_device(problem), f"seed {seed}: {error}"
            assert str(error.field).startswith("compress.groups[0].policies[0]."), f"seed {seed}: {error}"
            refused += 1
        else:
            kept = [answer.layers[i].rows.astype(np.int64) for i in range(problem.layers)]
            for plan, rows in zip(plans, kept, strict=True):
                assert ref.difference_allowed(plan, rows), f"seed {seed}: {ref.ranges(rows)}, not {plan.ranges}"
            if problem.mode != "plan" and plans[0].outcome == "dropped":
                expected = instance.expected(kept, instance.slots if problem.mode == "in_place" else instance.to_slots)
            done += 1
        assert np.array_equal(bench.everything[: instance.end], expected), f"seed {seed}: other bytes than the plan's"
        gpu_client.unregister_cache(cache)
    print(f"{done} computed, {refused} refused")
    assert done >= 15
    assert refused >= 1


@pytest.mark.parametrize("example", tensors.END_TO_END, ids=lambda e: e.name)
def test_example_of_the_specification(gpu_client: chunkkv.Client, example: tensors.EndToEnd) -> None:
    """The table of section 6.4."""
    key, value, query = tensors.synthetic()
    given = {name: getattr(example.params, name) for name in POLICY_OF_PARAMS}
    given = {name: value for name, value in given.items() if value is not None and value != tensors.UNSET.get(name)}
    block = DeviceBlock(2 * key.nbytes + query.nbytes)
    arrays = [block.numpy(key.shape, np.float32), block.numpy(key.shape, np.float32, key.nbytes),
              block.numpy((1, *query.shape), np.float32, 2 * key.nbytes)]
    for array, source in zip(arrays, (key, value, query[None]), strict=True):
        array[...] = source
    region = gpu_client.register_region(block.export())
    cache = gpu_client.register_cache(chunkkv.CacheLayout.of_arrays(
        [arrays[0][None]], [arrays[1][None]], axes="bthd", q_heads=4, region=region, dtype="f32"))
    assert example.params.keep_ratio is not None
    answer = gpu_client.compress(cache, rows=48, keep_ratio=example.params.keep_ratio / 1e6, table=[0],
                             policy=chunkkv.Policy(**given),
                             queries=chunkkv.Queries.of_array(arrays[2], region=region, dtype="f32"))
    kept = answer.layers[0].rows
    assert kept.tolist() == tensors.rows_of(example.kept)
    assert np.array_equal(arrays[0][: len(kept)], key[kept])
    assert np.array_equal(arrays[1][: len(kept)], value[kept])
    gpu_client.unregister_cache(cache)
    gpu_client.unregister_region(region)


@pytest.mark.parametrize("vmm", [False, True], ids=["ipc", "vmm"])
def test_plan_in_place_and_copy(gpu_client: chunkkv.Client, vmm: bool) -> None:
    cache = DeviceCache(gpu_client, vmm=vmm)
    kept = kept_of(gpu_client.plan(cache.cache, **cache.request()))
    assert np.array_equal(cache.everything, cache.pristine), "PLAN wrote something"
    gpu_client.copy_out(cache.cache, destination=cache.spare, **cache.request())
    assert np.array_equal(cache.everything, cache.moves(kept, cache.spare)), "COPY_OUT"
    cache.everything[...] = cache.pristine
    moved = gpu_client.compress(cache.cache, **cache.request())
    assert moved.cache == CacheState.COMMITTED
    assert np.array_equal(cache.everything, cache.moves(kept)), "IN_PLACE"


def test_the_same_as_the_cpu(gpu_client: chunkkv.Client, new_daemon: Callable[..., Daemon]) -> None:
    """The same noise through a daemon of each kind: the same rows and the same bytes."""
    cache = DeviceCache(gpu_client, seed=3)
    there = gpu_client.compress(cache.cache, **cache.request())
    with chunkkv.Client(new_daemon().prefix()) as cpu:
        twin = DeviceCache(cpu, seed=3, memory=chunkkv.SharedMemory.allocate(cache.memory.size))
        here = cpu.compress(twin.cache, **twin.request())
        assert here.groups[0].kept_digest == there.groups[0].kept_digest
        assert np.array_equal(twin.everything, cache.everything)


def test_two_engines_at_once(new_gpu: Callable[..., Daemon]) -> None:
    """One with cuMemAlloc, one with cuMemCreate; neither sees the other, and nothing of them is left."""
    daemon = new_gpu()
    before = mapped(daemon)
    with Tenant(daemon.prefix(), engine.checking) as one, Tenant(daemon.prefix(), engine.checking) as two:
        one.say((5, False))
        two.say((6, True))
        assert (one.hear(), two.hear()) == ("ready", "ready")
        assert mapped(daemon) > before + 1
        for tenant in (one, two):
            tenant.say("stop")
        assert one.hear() > 0
        assert two.hear() > 0
    seconds_until(lambda: mapped(daemon) == before, 10)


def test_queries_may_lie_on_the_host(gpu_client: chunkkv.Client) -> None:
    cache = DeviceCache(gpu_client)
    want = kept_of(gpu_client.plan(cache.cache, **cache.request()))
    shape = (engine.LAYERS, engine.WINDOW, 4 * engine.HEADS, engine.DIM)
    memory = chunkkv.SharedMemory.allocate(4 * int(np.prod(shape)))
    region = gpu_client.register_region(memory)
    queries = memory.numpy(shape, np.float32)
    queries[...] = cache.pristine[-queries.nbytes :].view(np.float32).reshape(shape)
    request = cache.request() | {"queries": chunkkv.Queries.of_array(queries, region=region, dtype="f32")}
    cache.everything[-queries.nbytes :] = 0xFF
    got = kept_of(gpu_client.plan(cache.cache, **request))
    assert all(np.array_equal(a, b) for a, b in zip(want, got, strict=True))


def test_timeline_words(gpu_client: chunkkv.Client) -> None:
    cache, memory = DeviceCache(gpu_client), chunkkv.SharedMemory.allocate(4096)
    region, words = gpu_client.register_region(memory), memory.numpy(512, np.uint64)
    timer = threading.Timer(0.2, lambda: words.__setitem__(0, 7))
    timer.start()
    start = time.monotonic()
    gpu_client.plan(cache.cache, wait=TimelineWord(region.slice(0, 8), 7), signal=TimelineWord(region.slice(8, 8), 41),
                **cache.request())
    assert time.monotonic() - start >= 0.19
    assert words[1] == 41
    timer.join()
    with pytest.raises(chunkkv.ChunkkvError) as caught:
        gpu_client.plan(cache.cache, wait=TimelineWord(region.slice(0, 8), 8), **cache.request() | {"timeout": 0.3})
    assert caught.value.code == Code.EXPIRED
    with pytest.raises(chunkkv.Unsupported, match="lies in a memfd"):
        gpu_client.plan(cache.cache, wait=TimelineWord(cache.region.slice(0, 8), 8), **cache.request())


# ---- starting


def start_failed(directory: Path, *options: str, program: str = "chunkkvd-standin", **faults: str) -> str:
    """What a daemon says that does not start."""
    child = subprocess.run([build_directory() / program, "--runtime-dir", directory, *options], text=True, timeout=60,
                           capture_output=True, check=False, env=os.environ | engine.environment(**faults))
    assert child.returncode in (1, 2)
    return child.stderr


@pytest.mark.parametrize(("options", "faults", "words"), [
    (("--backend", "gpu"), {}, '--backend: must be cpu or cuda, is "gpu"'),
    (("--device", "0"), {}, "--device: needs --backend cuda"),
    (("--backend", "cuda", "--cpu-path", "scalar"), {}, "--cpu-path: needs --backend cpu"),
    (("--backend", "cuda"), {"VERSION": "12080"}, "update the driver"),
    (("--backend", "cuda"), {"FAIL": "cuInit:0:100"}, "no GPU is visible"),
    (("--backend", "cuda", "--device", "7"), {}, "there is no GPU 7"),
    (("--backend", "cuda", "--device", "+0"), {}, '"+0" is no index'),
    (("--backend", "cuda", "--device", " 0"), {}, '" 0" is no index'),
    (("--backend", "cuda", "--device", "GPU-00000000-0000-0000-0000-000000000000"), {}, "GPU-0000"),
    (("--backend", "cuda", "--device", f"MIG-{SLICE}"), {}, "none of the 1 GPUs"),
    (("--backend", "cuda", "--device", f"MIG-{WHOLE}"), {}, f"no instance of one: its name is GPU-{WHOLE}"),
    (("--backend", "cuda", "--device", f"GPU-{SLICE}"), {"INSTANCE": "1"}, f"no whole GPU: its name is MIG-{SLICE}"),
    (("--backend", "cuda", "--device", f"GPU-{WHOLE}"), {"INSTANCE": "1"}, f"GPU-{WHOLE} is divided into instances"),
    (("--backend", "cuda", "--device", f"MIG-{WHOLE}"), {"INSTANCE": "1"}, "is divided into instances"),
])
def test_starts_that_fail_with_a_sentence(tmp_path: Path, options: tuple[str, ...], faults: dict[str, str],
                                          words: str) -> None:
    assert words in start_failed(tmp_path, "--sandbox", "off", *options, **faults)


def test_a_start_says_what_it_met(gpu: Daemon) -> None:
    line = next(line for line in gpu.log().splitlines() if "CUDA_DRIVER" in line)
    assert f"uuid={WHOLE} " in line
    assert "CUDA 13.0" in line


@pytest.mark.parametrize("name", [SLICE, f"MIG-{SLICE}", SLICE.replace("-", "").upper()])
def test_an_instance_by_its_name(new_gpu: Callable[..., Daemon], name: str) -> None:
    assert f"uuid={SLICE} " in new_gpu("--device", name, INSTANCE="1").log()


def test_by_uuid_and_in_the_sandbox(tmp_path: Path) -> None:
    """What is loaded before needs no file.  Memory by descriptor works; the IPC of the stand-in cannot."""
    fake = engine.environment()["LD_LIBRARY_PATH"] + "/libcuda.so.1"
    daemon = Daemon(program="chunkkvd-standin", environment={"LD_PRELOAD": fake},
                    options=("--backend", "cuda", "--device", f"GPU-{WHOLE}"))
    try:
        with chunkkv.Client(daemon.prefix()) as client:
            cache = DeviceCache(client, vmm=True)
            kept = kept_of(client.compress(cache.cache, **cache.request()))
            assert np.array_equal(cache.everything, cache.moves(kept))
    finally:
        daemon.stop()
