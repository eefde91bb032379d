"""Kernels and calls of the driver that do not end, against the stand-in: who waits is told, and the daemon ends."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest

import chunkkv
import cuda_engine as engine
from chunkkv import CacheState, Code
from cuda_daemon import KEEP, KEPT, LOST, MARKS, MIB, ends_lost, refused, status_of_end
from cuda_engine import DeviceBlock, DeviceCache
from daemon import Daemon
from tenant import Tenant

pytestmark = MARKS


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
    """As ends_lost(), and the log says why."""
    assert status_of_end(daemon) == LOST
    assert "DEVICE_HUNG seconds=2 " in daemon.log()
    ends_lost(daemon, client)


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
            assert client.repair(error.request_id).repaired
            assert np.array_equal(cache.everything, cache.moves([KEPT] * engine.LAYERS))


def test_a_registration_that_hangs(new_gpu: Callable[..., Daemon]) -> None:
    daemon = new_gpu("--device-timeout", "2", HANG="cuIpcOpenMemHandle_v2:1")
    with chunkkv.Client(daemon.prefix()) as client:
        memory = DeviceBlock(MIB).export()
        refused(Code.DEVICE_HUNG, "", lambda: client.register_region(memory, timeout=30))
        after_hang(daemon, client)
        client.register_region(memory)


@pytest.mark.parametrize("who", ["unregisters", "ends", "dies"])
def test_a_close_that_hangs(new_gpu: Callable[..., Daemon], who: str) -> None:
    """Nothing else is inside: it is noticed all the same, and who waits for it is told."""
    daemon = new_gpu("--device-timeout", "2", HANG="cuIpcCloseMemHandle:1")
    if who == "dies":
        with Tenant(daemon.prefix(), engine.idle) as tenant:
            tenant.say(False)
            assert tenant.hear() == "ready"
            tenant.signal(signal.SIGKILL)
    else:
        client = chunkkv.Client(daemon.prefix())
        region = client.register_region(DeviceBlock(MIB).export())
        if who == "unregisters":
            refused(Code.DEVICE_HUNG, "", lambda: client.unregister_region(region))
        client.close()
    assert status_of_end(daemon) == LOST
    assert "DEVICE_HUNG seconds=2 queued=0 running=0 imports=1 " in daemon.log()


def test_a_device_that_cannot_be_closed(new_gpu: Callable[..., Daemon]) -> None:
    """The end of the daemon waits for it no longer than for anything else of the device."""
    daemon = new_gpu("--device-timeout", "1", HANG="cuMemFree_v2:1")
    assert daemon.process is not None
    daemon.process.terminate()
    assert status_of_end(daemon) == LOST
    assert "DEVICE_HUNG seconds=1 " in daemon.log()


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
