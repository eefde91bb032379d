"""The three facts of an array that a layout needs: address, strides, axes; NumPy, torch and CuPy alike."""

from __future__ import annotations

from typing import Any

import numpy as np

from .errors import invalid


def strides_of(array: Any) -> tuple[int, ...]:
    """Strides in bytes of a NumPy array, a torch tensor, or a CuPy array."""
    strides = getattr(array, "strides", None)
    if isinstance(strides, tuple):
        return strides
    return tuple(int(s) * int(array.element_size()) for s in array.stride())


def address_of(array: Any) -> int:
    """Where the first element of a NumPy array, a torch tensor or a CuPy array lies: here, or on the device."""
    if isinstance(array, np.ndarray):
        return int(array.__array_interface__["data"][0])
    if hasattr(array, "data_ptr"):
        return int(array.data_ptr())
    return int(array.__cuda_array_interface__["data"][0])


class Axes:
    """The axes of an array by letter: sizes, and strides in bytes.

    An axis in two levels has its capital letter for the outer one.
    """

    def __init__(self, array: Any, names: str, field: str) -> None:
        shape = tuple(int(n) for n in array.shape)
        if len(shape) != len(names) or len(set(names)) != len(names):
            raise invalid(field, f"axes {names!r} do not name the {len(shape)} axes of shape {shape}")
        if 0 in shape:
            raise invalid(field, f"shape {shape} has an empty axis")
        self.size = dict(zip(names, shape, strict=True))
        # the stride of an axis of length 1 means nothing, and frameworks fill in anything
        self.stride = {n: s if self.size[n] > 1 else 0 for n, s in zip(names, strides_of(array), strict=True)}
        for name, stride in self.stride.items():
            if stride < 0:
                raise invalid(field, f"axis {name!r} has the negative stride {stride}")

    def length(self, name: str) -> int:
        """Elements along an axis, both its levels together; 1 if absent."""
        return self.size.get(name.upper(), 1) * self.size.get(name, 1)
