"""The example of device memory in the client's README runs as it stands, on the stand-in for the driver."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import chunkkv
import cuda_engine as engine
from cuda_engine import DeviceBlock
from daemon import ROOT, build_directory, is_sanitizer_build

pytestmark = [
    pytest.mark.skipif(is_sanitizer_build(), reason="a library with a sanitizer cannot be loaded into Python"),
    pytest.mark.skipif(not (build_directory() / "chunkkvd-standin").exists(), reason="built by make check-cuda"),
]


class DeviceArray:
    """What CuPy, or torch, shows of an array on the device."""

    def __init__(self, host: np.ndarray) -> None:
        self.host, self.shape, self.strides, self.dtype = host, host.shape, host.strides, host.dtype
        self.__cuda_array_interface__ = {"shape": host.shape, "typestr": host.dtype.str, "strides": host.strides,
                                         "data": (host.__array_interface__["data"][0], False), "version": 3}

    def __getitem__(self, key: Any) -> DeviceArray:
        return DeviceArray(self.host[key])

    @classmethod
    def noise(cls, *shape: int) -> DeviceArray:
        """In an allocation of its own."""
        host = DeviceBlock(4 * int(np.prod(shape))).numpy(shape, np.float32)
        host[...] = np.random.default_rng(1).standard_normal(shape, np.float32)
        return cls(host)


def test_the_example_of_the_readme(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / "clients/python/README.md").read_text().split("## A cache in the memory of a GPU")[1]
    code = text.split("```python\n")[1].split("```")[0]
    kv, torch = DeviceArray.noise(2, 2, 400, 1, 16), SimpleNamespace(cuda=SimpleNamespace(synchronize=lambda: None))
    before = kv.host.copy()
    names = {"chunkkv": chunkkv, "torch": torch, "kv": kv, "queries": DeviceArray.noise(2, 32, 4, 16)}
    gpu = engine.start()
    monkeypatch.setenv("CHUNKKV_ENDPOINT", str(gpu.prefix()))
    try:
        exec(code, names)
    finally:
        gpu.stop()
    for layer, kept in names["answer"].layers.items():
        assert len(kept.rows) == 80
        assert np.array_equal(kv.host[layer, :, :80], before[layer][:, kept.rows])
