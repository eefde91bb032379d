"""Device memory of other processes, against the stand-in driver: opened once, closed in time, and what is refused."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import chunkkv
import cuda_engine as engine
from chunkkv import Code
from chunkkv.wire import Slot
from cuda_daemon import MARKS, MIB, mapped, refused
from cuda_engine import DeviceBlock, DeviceCache
from daemon import Daemon
from tenant import Tenant, seconds_until, used

pytestmark = MARKS


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


def test_memory_that_is_not_what_it_says(gpu_client: chunkkv.Client) -> None:
    block = DeviceBlock(MIB)
    memory, here = block.export(), "register_region."
    empty = used(gpu_client)
    for change, code, field, words in (
        ({"device_uuid": bytes(range(16))}, Code.DEVICE_MISMATCH, "device_uuid",
         "00010203-0405-0607-.*6368756e-6b6b-7664-"),
        ({"alloc_size": 2 * MIB}, Code.OUT_OF_RANGE, "cuda_ipc.alloc_size", "has 1048576 bytes, not 2097152"),
        ({"offset": 1}, Code.OUT_OF_RANGE, "size", "the allocation has 1048576"),
        ({"handle": os.urandom(64)}, Code.HANDLE_INVALID, "cuda_ipc.handle", "export it again"),
    ):
        refused(code, here + field, lambda: gpu_client.register_region(replace(memory, **change)), words)  # noqa: B023
        assert used(gpu_client) == empty
    region = gpu_client.register_region(memory)
    refused(Code.HANDLE_STALE, here + "buffer_id",
            lambda: gpu_client.register_region(replace(memory, buffer_id=memory.buffer_id + 1)), "unregister those")
    gpu_client.unregister_region(region)
    assert used(gpu_client) == empty


def test_memory_that_is_gone(gpu_client: chunkkv.Client) -> None:
    block = DeviceBlock(MIB)
    memory = block.export()
    block.free()
    error = refused(Code.HANDLE_INVALID, "register_region.cuda_ipc.handle", lambda: gpu_client.register_region(memory),
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


def test_each_kind_of_memory_in_its_place(gpu_client: chunkkv.Client, new_daemon: Callable[..., Daemon]) -> None:
    """Planes on the device for a GPU, on the host for a CPU; what the daemon itself reads is on the host."""
    memory = chunkkv.SharedMemory.allocate(MIB)
    refused(Code.DEVICE_MISMATCH, "register_cache.planes[0].region_id",
            lambda: DeviceCache(gpu_client, memory=memory), "memory of the host")
    cache = DeviceCache(gpu_client)
    table = chunkkv.Table(cache.region.slice(0, 32), "blocks")
    refused(Code.UNSUPPORTED, "compress.groups[0].table.from",
            lambda: gpu_client.plan(cache.cache, **cache.request() | {"table": table}), "in a memfd")
    with chunkkv.Client(new_daemon().prefix()) as cpu:
        refused(Code.UNSUPPORTED, "register_region.cuda_ipc", lambda: DeviceCache(cpu), "--backend cuda")
        refused(Code.UNSUPPORTED, "offer.kind", lambda: DeviceCache(cpu, vmm=True),
                "no memory of a GPU, CUDA_VMM: ask one with --backend cuda, or send a memfd")


def test_what_the_gpu_does_not_compute(gpu_client: chunkkv.Client) -> None:
    cache = DeviceCache(gpu_client)
    request = cache.request() | {"policy": chunkkv.Policy(scorer="lagkv")}
    refused(Code.UNSUPPORTED, "compress.groups[0].policies[0].scorer", lambda: gpu_client.plan(cache.cache, **request),
            "choose another method, or give a copy in host memory to a daemon with --backend cpu")
