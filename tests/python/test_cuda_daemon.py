"""A daemon that serves a GPU, end to end against the stand-in driver: client, gate, core, IPC, kernels, reply.

The kernels that run are those of kernels/cuda in the emulator.  Nothing here says anything of a real driver or GPU.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import chunkkv
import cuda_engine as engine
import reference_numpy as ref
import tensors
from chunkkv import CacheState, Code, TimelineWord
from chunkkv.wire import Slot
from cuda_engine import DeviceBlock, DeviceCache, kept_of
from daemon import ROOT, Daemon, build_directory, is_sanitizer_build
from problems import Bench, Instance, Problem
from tenant import Tenant, seconds_until, used
from test_golden import POLICY_OF_PARAMS

pytestmark = [
    pytest.mark.skipif(is_sanitizer_build(), reason="a library with a sanitizer cannot be loaded into Python"),
    pytest.mark.skipif(not (build_directory() / "chunkkvd-standin").exists(), reason="built by make check-cuda"),
]
PROBLEMS = 200
WORK = 1500  # rows times heads times layers of the largest problem: the emulator needs a moment for it
LOST = 75  # exit status of a daemon whose device is at fault
MIB = 1 << 20


@pytest.fixture(scope="module")
def gpu() -> Iterator[Daemon]:
    """One daemon for most tests; it must survive them and end cleanly."""
    running = engine.start()
    yield running
    running.stop()


@pytest.fixture
def client(gpu: Daemon) -> Iterator[chunkkv.Client]:
    with chunkkv.Client(gpu.prefix()) as connected:
        yield connected


@pytest.fixture
def new_gpu() -> Iterator[Callable[..., Daemon]]:
    """Daemons of the test's own; one that has ended by itself by then was meant to."""
    made: list[Daemon] = []

    def make(*options: str, **faults: str) -> Daemon:
        made.append(engine.start(*options, **faults))
        return made[-1]

    yield make
    for running in made:
        running.stop(check=running.process is not None and running.process.poll() is None)


def mapped(daemon: Daemon) -> int:
    """Memory of the stand-in that the daemon has mapped, its own scratch included."""
    return Path(f"/proc/{daemon.pid}/maps").read_text().count("memfd:fakecuda")


def status_of_end(daemon: Daemon) -> int:
    """Of a daemon that ends by itself."""
    assert daemon.process is not None
    return daemon.process.wait(20)


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
    return not (p.scorer in ("lagkv", "drop") or p.pool == "leak" or p.contrast_end or p.layers == "one")


def test_random_problems(client: chunkkv.Client) -> None:
    """Every layout, type and mode: the rows of the model, every byte of the memory accounted for."""
    bench = DeviceBench(client)
    done = refused = 0
    for seed in range(PROBLEMS):
        problem = Problem(seed)
        if problem.length * problem.layers * problem.q_heads > WORK:
            continue
        instance = Instance(bench, problem)
        instance.in_region = False
        request, expected = instance.request(), instance.before
        cache = client.register_cache(instance.layout)
        try:
            plans = instance.plans()
            if problem.mode == "plan":
                answer = client.plan(cache, **request)
            elif problem.mode == "in_place":
                answer = client.compress(cache, **request)
            else:
                room = instance.destination(max(len(plan.kept) for plan in plans))
                answer = client.copy_out(cache, destination=room, **request)
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
        client.unregister_cache(cache)
    print(f"{done} computed, {refused} refused")
    assert done >= 15
    assert refused >= 3


@pytest.mark.parametrize("example", tensors.END_TO_END, ids=lambda e: e.name)
def test_example_of_the_specification(client: chunkkv.Client, example: tensors.EndToEnd) -> None:
    """The table of section 6.4."""
    key, value, query = tensors.synthetic()
    given = {name: getattr(example.params, name) for name in POLICY_OF_PARAMS}
    given = {name: value for name, value in given.items() if value is not None and value != tensors.UNSET.get(name)}
    block = DeviceBlock(2 * key.nbytes + query.nbytes)
    arrays = [block.numpy(key.shape, np.float32), block.numpy(key.shape, np.float32, key.nbytes),
              block.numpy((1, *query.shape), np.float32, 2 * key.nbytes)]
    for array, source in zip(arrays, (key, value, query[None]), strict=True):
        array[...] = source
    region = client.register_region(block.export())
    cache = client.register_cache(chunkkv.CacheLayout.of_arrays(
        [arrays[0][None]], [arrays[1][None]], axes="bthd", q_heads=4, region=region, dtype="f32"))
    assert example.params.keep_ratio is not None
    answer = client.compress(cache, rows=48, keep_ratio=example.params.keep_ratio / 1e6, table=[0],
                             policy=chunkkv.Policy(**given),
                             queries=chunkkv.Queries.of_array(arrays[2], region=region, dtype="f32"))
    kept = answer.layers[0].rows
    assert kept.tolist() == tensors.rows_of(example.kept)
    assert np.array_equal(arrays[0][: len(kept)], key[kept])
    assert np.array_equal(arrays[1][: len(kept)], value[kept])
    client.unregister_cache(cache)
    client.unregister_region(region)


@pytest.mark.parametrize("vmm", [False, True], ids=["ipc", "vmm"])
def test_plan_in_place_and_copy(client: chunkkv.Client, vmm: bool) -> None:
    cache = DeviceCache(client, vmm=vmm)
    kept = kept_of(client.plan(cache.cache, **cache.request()))
    assert np.array_equal(cache.everything, cache.pristine), "PLAN wrote something"
    client.copy_out(cache.cache, destination=cache.spare, **cache.request())
    assert np.array_equal(cache.everything, cache.moves(kept, cache.spare)), "COPY_OUT"
    cache.everything[...] = cache.pristine
    moved = client.compress(cache.cache, **cache.request())
    assert moved.cache == CacheState.COMMITTED
    assert np.array_equal(cache.everything, cache.moves(kept)), "IN_PLACE"


def test_the_same_as_the_cpu(client: chunkkv.Client, new_daemon: Callable[..., Daemon]) -> None:
    """The same noise through a daemon of each kind: the same rows and the same bytes."""
    cache = DeviceCache(client, seed=3)
    there = client.compress(cache.cache, **cache.request())
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


def test_queries_may_lie_on_the_host(client: chunkkv.Client) -> None:
    cache = DeviceCache(client)
    want = kept_of(client.plan(cache.cache, **cache.request()))
    shape = (engine.LAYERS, engine.WINDOW, 4 * engine.HEADS, engine.DIM)
    memory = chunkkv.SharedMemory.allocate(4 * int(np.prod(shape)))
    region = client.register_region(memory)
    queries = memory.numpy(shape, np.float32)
    queries[...] = cache.pristine[-queries.nbytes :].view(np.float32).reshape(shape)
    request = cache.request() | {"queries": chunkkv.Queries.of_array(queries, region=region, dtype="f32")}
    cache.everything[-queries.nbytes :] = 0xFF
    got = kept_of(client.plan(cache.cache, **request))
    assert all(np.array_equal(a, b) for a, b in zip(want, got, strict=True))


def test_timeline_words(client: chunkkv.Client) -> None:
    cache, memory = DeviceCache(client), chunkkv.SharedMemory.allocate(4096)
    region, words = client.register_region(memory), memory.numpy(512, np.uint64)
    timer = threading.Timer(0.2, lambda: words.__setitem__(0, 7))
    timer.start()
    start = time.monotonic()
    client.plan(cache.cache, wait=TimelineWord(region.slice(0, 8), 7), signal=TimelineWord(region.slice(8, 8), 41),
                **cache.request())
    assert time.monotonic() - start >= 0.19
    assert words[1] == 41
    timer.join()
    with pytest.raises(chunkkv.ChunkkvError) as caught:
        client.plan(cache.cache, wait=TimelineWord(region.slice(0, 8), 8), **cache.request() | {"timeout": 0.3})
    assert caught.value.code == Code.EXPIRED
    with pytest.raises(chunkkv.Unsupported, match="lies in a memfd"):
        client.plan(cache.cache, wait=TimelineWord(cache.region.slice(0, 8), 8), **cache.request())


# ---- memory


def test_an_allocation_is_opened_once(new_gpu: Callable[..., Daemon], tmp_path: Path) -> None:
    log = tmp_path / "calls"
    daemon = new_gpu(LOG=str(log))
    with chunkkv.Client(daemon.prefix()) as client:
        block, empty = DeviceBlock(MIB), used(client)[Slot.MAPPED_BYTES]
        regions = [client.register_region(block.export(4096 * i, 4096)) for i in range(5)]
        assert [region.shared for region in regions] == [False, True, True, True, True]
        assert used(client)[Slot.MAPPED_BYTES] == empty + MIB
        for region in regions[1:]:
            client.unregister_region(region)
        assert used(client)[Slot.MAPPED_BYTES] == empty + MIB
        assert f"{daemon.pid} call cuIpcCloseMemHandle" not in log.read_text()
        client.unregister_region(regions[0])
        assert used(client)[Slot.MAPPED_BYTES] == empty
    calls = log.read_text().splitlines()
    assert calls.count(f"{daemon.pid} call cuIpcOpenMemHandle_v2") == 1
    assert calls.count(f"{daemon.pid} call cuIpcCloseMemHandle") == 1


def test_unregistered_is_closed(new_gpu: Callable[..., Daemon]) -> None:
    """OK says that the engine may free the memory, so it comes after the close."""
    daemon = new_gpu(DELAY="cuIpcCloseMemHandle:150000")
    with chunkkv.Client(daemon.prefix()) as client:
        region = client.register_region(DeviceBlock(MIB).export())
        start = time.monotonic()
        client.unregister_region(region)
        assert time.monotonic() - start >= 0.14
        client.register_region(DeviceBlock(MIB).export())
        start = time.monotonic()
        client.close()  # OK of EndSession says the same
        assert time.monotonic() - start >= 0.14


def test_while_one_region_opens_the_session_goes_on(new_gpu: Callable[..., Daemon]) -> None:
    """Four opens of 0.2 s each in turn; meanwhile the same process is answered at once."""
    daemon = new_gpu(DELAY="cuIpcOpenMemHandle_v2:200000")
    with chunkkv.Client(daemon.prefix()) as client, chunkkv.Client(daemon.prefix()) as other:
        blocks = [DeviceBlock(4096) for _ in range(4)]
        regions: list[chunkkv.Region] = []
        opening = threading.Thread(target=lambda: regions.extend(client.register_region(b.export()) for b in blocks))
        start = time.monotonic()
        opening.start()
        while opening.is_alive():
            other.ping(timeout=5)
            other.status()
        opening.join()
        assert time.monotonic() - start >= 0.79
        assert len(regions) == 4


def test_a_registration_that_comes_too_late(new_gpu: Callable[..., Daemon]) -> None:
    """Nobody waits for it any more: it is closed again."""
    daemon = new_gpu(DELAY="cuIpcOpenMemHandle_v2:600000")
    before = mapped(daemon)
    with chunkkv.Client(daemon.prefix()) as client:
        empty = used(client)
        with pytest.raises(chunkkv.ChunkkvError):
            client.register_region(DeviceBlock(MIB).export(), timeout=0.2)
        seconds_until(lambda: used(client) == empty and mapped(daemon) == before, 10)


@pytest.mark.parametrize("vmm", [False, True], ids=["ipc", "vmm"])
@pytest.mark.parametrize("work", [engine.idle, engine.planning])
def test_a_killed_engine_leaves_nothing(gpu: Daemon, work: Any, vmm: bool) -> None:
    """Within a second, also when a request of it is inside the device."""
    before = mapped(gpu)
    with chunkkv.Client(gpu.prefix()) as client, Tenant(gpu.prefix(), work) as tenant:
        empty = used(client)
        tenant.say(vmm)
        assert tenant.hear() == "ready"
        assert mapped(gpu) > before
        tenant.signal(signal.SIGKILL)
        took = seconds_until(lambda: mapped(gpu) == before, 20)
        print(f"closed after {took * 1e3:.0f} ms")
        seconds_until(lambda: all(used(client)[slot] <= empty[slot] for slot in empty), 20)


def test_killed_while_its_memory_is_opened(new_gpu: Callable[..., Daemon]) -> None:
    daemon = new_gpu(DELAY="cuIpcOpenMemHandle_v2:300000")
    before = mapped(daemon)
    with chunkkv.Client(daemon.prefix()) as client:
        empty = used(client)
        with Tenant(daemon.prefix(), engine.registering) as tenant:
            assert tenant.hear() == "ready"
            seconds_until(lambda: used(client)[Slot.REGIONS] == 1, 10)
            tenant.signal(signal.SIGKILL)
        seconds_until(lambda: all(used(client)[slot] <= empty[slot] for slot in empty), 10)
    seconds_until(lambda: mapped(daemon) == before, 10)


# ---- what is refused


def refused(code: Code, field: str, call: Callable[[], object], words: str | None = None) -> chunkkv.ChunkkvError:
    with pytest.raises(chunkkv.ChunkkvError, match=words) as caught:
        call()
    assert (caught.value.code, caught.value.field) == (code, field), caught.value
    return caught.value


def test_memory_that_is_not_what_it_says(client: chunkkv.Client) -> None:
    block = DeviceBlock(MIB)
    memory, here = block.export(), "register_region."
    empty = used(client)
    for change, code, field, words in (
        ({"device_uuid": bytes(range(16))}, Code.DEVICE_MISMATCH, "device_uuid",
         "00010203-0405-0607-.*6368756e-6b6b-7664-"),
        ({"alloc_size": 2 * MIB}, Code.OUT_OF_RANGE, "cuda_ipc.alloc_size", "has 1048576 bytes, not 2097152"),
        ({"offset": 1}, Code.OUT_OF_RANGE, "size", "the allocation has 1048576"),
        ({"handle": os.urandom(64)}, Code.HANDLE_INVALID, "cuda_ipc.handle", "export it again"),
    ):
        refused(code, here + field, lambda: client.register_region(replace(memory, **change)), words)  # noqa: B023
        assert used(client) == empty
    region = client.register_region(memory)
    refused(Code.HANDLE_STALE, here + "buffer_id",
            lambda: client.register_region(replace(memory, buffer_id=memory.buffer_id + 1)), "unregister those")
    client.unregister_region(region)
    assert used(client) == empty


def test_memory_that_is_gone(client: chunkkv.Client) -> None:
    block = DeviceBlock(MIB)
    memory = block.export()
    block.free()
    error = refused(Code.HANDLE_INVALID, "register_region.cuda_ipc.handle", lambda: client.register_region(memory),
                    "it was freed")
    assert error.driver_code == 205


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a second user")
def test_a_handle_belongs_to_one_user(new_gpu: Callable[..., Daemon]) -> None:
    daemon = new_gpu("--socket-mode", "0666")
    daemon.directory.chmod(0o755)
    memory = DeviceBlock(MIB).export()
    with chunkkv.Client(daemon.prefix()) as client, Tenant(daemon.prefix(), engine.bringing, uid=4711) as other:
        client.register_region(memory)
        other.say(memory)
        assert other.hear() == Code.PERMISSION


def test_each_kind_of_memory_in_its_place(client: chunkkv.Client, new_daemon: Callable[..., Daemon]) -> None:
    """Planes on the device for a GPU, on the host for a CPU; what the daemon itself reads is on the host."""
    memory = chunkkv.SharedMemory.allocate(MIB)
    refused(Code.DEVICE_MISMATCH, "register_cache.planes[0].region_id",
            lambda: DeviceCache(client, memory=memory), "memory of the host")
    cache = DeviceCache(client)
    table = chunkkv.Table(cache.region.slice(0, 32), "blocks")
    refused(Code.UNSUPPORTED, "compress.groups[0].table.from",
            lambda: client.plan(cache.cache, **cache.request() | {"table": table}), "in a memfd")
    with chunkkv.Client(new_daemon().prefix()) as cpu:
        refused(Code.UNSUPPORTED, "register_region.cuda_ipc", lambda: DeviceCache(cpu), "--backend cuda")
        refused(Code.UNSUPPORTED, "offer.kind", lambda: DeviceCache(cpu, vmm=True))


def test_what_the_gpu_does_not_compute(client: chunkkv.Client) -> None:
    cache = DeviceCache(client)
    request = cache.request() | {"policy": chunkkv.Policy(scorer="lagkv")}
    refused(Code.UNSUPPORTED, "compress.groups[0].policies[0].scorer", lambda: client.plan(cache.cache, **request),
            "--backend cpu")


# ---- errors of the driver


def table_of_errors() -> dict[str, list[tuple[int, Code]]]:
    """kernels/cuda_errors.def: numbers and codes by radius."""
    numbers = dict(re.findall(r"CUDA_ERROR_(\w+) = (\d+)", (ROOT / "kernels" / "cuda_types.h").read_text()))
    rows = re.findall(r"^ERROR\((\w+), (\w+), (\w+), \w+\)", (ROOT / "kernels" / "cuda_errors.def").read_text(), re.M)
    assert len(rows) > 30
    found: dict[str, list[tuple[int, Code]]] = {"REGION": [], "DEVICE": []}
    for name, code, radius in rows:
        found[radius].append((int(numbers[name]), Code[code]))
    return found


def test_errors_that_concern_one_region(new_gpu: Callable[..., Daemon]) -> None:
    """Each code of the table from the open; the daemon lives, nothing is held, and the next open goes well."""
    codes = [*table_of_errors()["REGION"], (12345, Code.INTERNAL)]
    fail = ",".join(f"cuIpcOpenMemHandle_v2:{n + 1}:{number}" for n, (number, _) in enumerate(codes))
    with chunkkv.Client(new_gpu(FAIL=fail).prefix()) as client:
        memory, empty = DeviceBlock(MIB).export(), used(client)
        for number, code in codes:
            error = refused(code, "register_region.cuda_ipc.handle", lambda: client.register_region(memory))
            assert error.driver_code == number
            assert used(client) == empty
        client.register_region(memory)


def test_errors_of_pieces(new_gpu: Callable[..., Daemon]) -> None:
    with chunkkv.Client(new_gpu(FAIL="cuMemImportFromShareableHandle:2:1,cuMemMap:5:800").prefix()) as client:
        memory, empty = DeviceBlock(0, [engine.GRANULE] * 4).export(), used(client)
        for number, code in ((1, Code.HANDLE_INVALID), (800, Code.PERMISSION)):
            error = refused(code, "register_region.vmm_tokens", lambda: client.register_region(memory))
            assert error.driver_code == number
            seconds_until(lambda: used(client) == empty, 10)
        client.register_region(memory)


def test_errors_that_end_the_process(new_gpu: Callable[..., Daemon]) -> None:
    """Each code of the table: it is told, the log says which, the process leaves, and another one works."""
    daemon = new_gpu()
    memory = DeviceBlock(MIB).export()
    for number, code in table_of_errors()["DEVICE"]:
        daemon.environment |= {"FAKECUDA_FAIL": f"cuIpcOpenMemHandle_v2:1:{number}"}
        daemon.restart()
        client = chunkkv.Client(daemon.prefix())
        error = refused(code, "register_region.cuda_ipc.handle", lambda: client.register_region(memory))  # noqa: B023
        assert error.driver_code == number
        assert status_of_end(daemon) == LOST
        assert f"DEVICE_LOST driver_code={number} " in daemon.log()
        client.close()
    del daemon.environment["FAKECUDA_FAIL"]
    daemon.restart()
    with chunkkv.Client(daemon.prefix()) as client:
        client.register_region(memory)


def after_loss(daemon: Daemon, client: chunkkv.Client) -> None:
    """The daemon ends, and another one is started, to which the client comes again."""
    assert status_of_end(daemon) == LOST
    daemon.environment.pop("FAKECUDA_FAULT", None)
    daemon.restart()
    client.reconnect()


def test_a_fault_while_scoring_leaves_the_cache_clean(new_gpu: Callable[..., Daemon]) -> None:
    daemon = new_gpu(FAULT="2:700")
    with chunkkv.Client(daemon.prefix()) as client:
        cache = DeviceCache(client)
        error = refused(Code.DEVICE_ERROR, "", lambda: client.compress(cache.cache, **cache.request()))
        assert (error.cache, error.driver_code) == (CacheState.CLEAN, 700)
        after_loss(daemon, client)
        assert np.array_equal(cache.everything, cache.pristine)


KEEP = [(8 * i + 4, 8 * i + 8) for i in range(engine.ROWS // 8)]  # in several steps


@pytest.mark.parametrize("fault", ["2:719", "2:214"], ids=["repairable", "memory is suspect"])
def test_a_fault_while_rows_move(new_gpu: Callable[..., Daemon], fault: str) -> None:
    """The slot stays as a death in the move leaves it, and the next daemon goes on; where memory itself failed, not."""
    daemon = new_gpu(FAULT=fault)
    with chunkkv.Client(daemon.prefix()) as client:
        cache = DeviceCache(client)
        kept = np.concatenate([np.arange(*run) for run in KEEP])
        given = {"rows": engine.ROWS, "table": cache.table[: engine.ROWS // engine.BLOCK], "keep": KEEP, "timeout": 30}
        error = refused(Code.DEVICE_ERROR, "", lambda: client.compress(cache.cache, **given))
        assert not np.array_equal(cache.everything, cache.pristine), "one step was written"
        assert error.cache == (CacheState.TORN_REPAIRABLE if fault == "2:719" else CacheState.TORN)
        after_loss(daemon, client)
        if error.cache == CacheState.TORN_REPAIRABLE:
            assert client.repair(error.request_id).repaired
            assert np.array_equal(cache.everything, cache.moves([kept] * engine.LAYERS))


def test_a_driver_that_hangs_does_not_keep_the_process(new_gpu: Callable[..., Daemon]) -> None:
    """An open that never returns: everything else is served, and the end does not wait for it."""
    daemon = new_gpu("--stop-timeout", "0", HANG="cuIpcOpenMemHandle_v2:1")
    assert daemon.process is not None
    with chunkkv.Client(daemon.prefix()) as client, chunkkv.Client(daemon.prefix()) as other:
        with pytest.raises(chunkkv.ChunkkvError):
            client.register_region(DeviceBlock(MIB).export(), timeout=0.2)
        other.ping(timeout=5)
        daemon.process.terminate()
        assert status_of_end(daemon) == LOST
    assert "did not end within 5 s" in daemon.log()


def after_hang(daemon: Daemon, client: chunkkv.Client) -> None:
    """As after_loss(), with a line that says why."""
    assert status_of_end(daemon) == LOST
    assert "DEVICE_HUNG seconds=2 " in daemon.log()
    del daemon.environment["FAKECUDA_HANG"]
    daemon.restart()
    client.reconnect()


def test_a_kernel_that_hangs_while_scoring(new_gpu: Callable[..., Daemon]) -> None:
    """Everybody who waits is told, those behind it in line too, and that nothing was changed."""
    daemon = new_gpu("--device-timeout", "2", HANG="kernel:2")
    with chunkkv.Client(daemon.prefix()) as client, chunkkv.Client(daemon.prefix()) as other:
        caches = DeviceCache(client), DeviceCache(other)
        errors: list[chunkkv.ChunkkvError] = []

        def asking(who: chunkkv.Client, cache: DeviceCache) -> None:
            request = cache.request()
            errors.append(refused(Code.DEVICE_HUNG, "", lambda: who.compress(cache.cache, **request), "for 2 s"))

        asked = [threading.Thread(target=asking, args=pair) for pair in zip((client, other), caches, strict=True)]
        for thread in asked:
            thread.start()
        for thread in asked:
            thread.join()
        assert [error.cache for error in errors] == [CacheState.CLEAN] * 2
        after_hang(daemon, client)
        assert all(np.array_equal(cache.everything, cache.pristine) for cache in caches)


@pytest.mark.parametrize("single_pass", [False, True], ids=["steps", "single pass"])
def test_a_kernel_that_hangs_while_rows_move(new_gpu: Callable[..., Daemon], single_pass: bool) -> None:
    """What was counted in steps can be gone on with by the next daemon."""
    daemon = new_gpu("--device-timeout", "2", HANG="kernel:1" if single_pass else "kernel:2")
    with chunkkv.Client(daemon.prefix()) as client:
        cache = DeviceCache(client)
        given = {"rows": engine.ROWS, "table": cache.table[: engine.ROWS // engine.BLOCK], "keep": KEEP, "timeout": 30}
        error = refused(Code.DEVICE_HUNG, "", lambda: client.compress(cache.cache, single_pass=single_pass, **given))
        assert error.cache == (CacheState.TORN if single_pass else CacheState.TORN_REPAIRABLE)
        after_hang(daemon, client)
        if not single_pass:
            kept = np.concatenate([np.arange(*run) for run in KEEP])
            assert client.repair(error.request_id).repaired
            assert np.array_equal(cache.everything, cache.moves([kept] * engine.LAYERS))


def test_a_registration_that_hangs(new_gpu: Callable[..., Daemon]) -> None:
    daemon = new_gpu("--device-timeout", "2", HANG="cuIpcOpenMemHandle_v2:1")
    with chunkkv.Client(daemon.prefix()) as client:
        memory = DeviceBlock(MIB).export()
        refused(Code.DEVICE_HUNG, "", lambda: client.register_region(memory, timeout=30))
        after_hang(daemon, client)
        client.register_region(memory)


def test_a_daemon_that_was_stopped_has_not_hung(new_gpu: Callable[..., Daemon]) -> None:
    """Time in which it did not run is none that the device let pass; an idle device does not hang either."""
    daemon = new_gpu("--device-timeout", "1", DELAY="cuIpcOpenMemHandle_v2:300000")
    assert daemon.process is not None
    with chunkkv.Client(daemon.prefix()) as client:
        block = DeviceBlock(MIB).export()
        opening = threading.Thread(target=client.register_region, args=(block,), kwargs={"timeout": 30})
        opening.start()
        daemon.process.send_signal(signal.SIGSTOP)
        time.sleep(2)
        daemon.process.send_signal(signal.SIGCONT)
        opening.join()
        time.sleep(1.5)
        client.ping(timeout=5)
    assert "DEVICE_HUNG" not in daemon.log()


# ---- starting


def start_failed(*options: str, program: str = "chunkkvd-standin", **faults: str) -> str:
    """What a daemon says that does not start."""
    child = subprocess.run([build_directory() / program, "--runtime-dir", "/tmp", *options], text=True, timeout=60,
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
])
def test_starts_that_fail_with_a_sentence(tmp_path: Path, options: tuple[str, ...], faults: dict[str, str],
                                          words: str) -> None:
    assert words in start_failed("--runtime-dir", str(tmp_path), "--sandbox", "off", *options, **faults)


def test_a_start_says_what_it_met(gpu: Daemon) -> None:
    line = next(line for line in gpu.log().splitlines() if "CUDA_DRIVER" in line)
    assert "uuid=6368756e-6b6b-7664-2d73-74616e64696e" in line
    assert "CUDA 13.0" in line


def test_by_uuid_and_in_the_sandbox(tmp_path: Path) -> None:
    """What is loaded before needs no file.  Memory by descriptor works; the IPC of the stand-in cannot."""
    fake = engine.environment()["LD_LIBRARY_PATH"] + "/libcuda.so.1"
    daemon = Daemon(program="chunkkvd-standin", environment={"LD_PRELOAD": fake},
                    options=("--backend", "cuda", "--device", "GPU-6368756e-6b6b-7664-2d73-74616e64696e"))
    try:
        with chunkkv.Client(daemon.prefix()) as client:
            cache = DeviceCache(client, vmm=True)
            kept = kept_of(client.compress(cache.cache, **cache.request()))
            assert np.array_equal(cache.everything, cache.moves(kept))
    finally:
        daemon.stop()
