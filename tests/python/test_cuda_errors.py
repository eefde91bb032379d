"""Errors of the driver, against the stand-in: each code of the table, and what they leave of a cache."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest

import chunkkv
import cuda_engine as engine
from chunkkv import CacheState, Code
from cuda_daemon import KEEP, KEPT, LOST, MARKS, MIB, ends_lost, refused, status_of_end
from cuda_engine import DeviceBlock, DeviceCache
from daemon import ROOT, Daemon
from tenant import seconds_until, used

pytestmark = MARKS


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


def test_a_fault_while_scoring_leaves_the_cache_clean(new_gpu: Callable[..., Daemon]) -> None:
    daemon = new_gpu(FAULT="2:700")
    with chunkkv.Client(daemon.prefix()) as client:
        cache = DeviceCache(client)
        error = refused(Code.DEVICE_ERROR, "", lambda: client.compress(cache.cache, **cache.request()))
        assert (error.cache, error.driver_code) == (CacheState.CLEAN, 700)
        ends_lost(daemon, client)
        assert np.array_equal(cache.everything, cache.pristine)

@pytest.mark.parametrize("fault", ["2:719", "2:214"], ids=["repairable", "memory is suspect"])
def test_a_fault_while_rows_move(new_gpu: Callable[..., Daemon], fault: str) -> None:
    """The slot stays as a death in the move leaves it, and the next daemon goes on; where memory itself failed, not."""
    daemon = new_gpu(FAULT=fault)
    with chunkkv.Client(daemon.prefix()) as client:
        cache = DeviceCache(client)
        given = {"rows": engine.ROWS, "table": cache.table[: engine.ROWS // engine.BLOCK], "keep": KEEP, "timeout": 30}
        error = refused(Code.DEVICE_ERROR, "", lambda: client.compress(cache.cache, **given))
        assert not np.array_equal(cache.everything, cache.pristine), "one step was written"
        assert error.cache == (CacheState.TORN_REPAIRABLE if fault == "2:719" else CacheState.TORN)
        ends_lost(daemon, client)
        if error.cache == CacheState.TORN_REPAIRABLE:
            assert client.repair(error.request_id).repaired
            assert np.array_equal(cache.everything, cache.moves([KEPT] * engine.LAYERS))
