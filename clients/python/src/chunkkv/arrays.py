"""The three facts of an array that a layout needs: address, strides, axes; NumPy, torch and CuPy alike."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from .checks import MOST_64, whole
from .errors import invalid

_TYPESTR = re.compile(r"[<>|=][A-Za-z]([1-9][0-9]{0,8})")
_MOST_STRIDE = (1 << 63) - 1


def _sequence(field: str, value: Any) -> tuple[Any, ...]:
    if not isinstance(value, tuple | list):
        raise invalid(field, f"must be a tuple of whole numbers, is {value!r}")
    return tuple(value)


class CudaInterface:
    """What an array says of itself by `__cuda_array_interface__`, each entry checked: anybody's class may have one.

    Attributes:
        address: device pointer of the first element; 0 is possible where there is none.
        item: bytes of an element.
        shape: elements along each axis.
        strides: bytes, those of the array in C order if it names none.
    """

    def __init__(self, array: Any, field: str) -> None:
        entries, field = array.__cuda_array_interface__, f"{field}.__cuda_array_interface__"
        if not isinstance(entries, Mapping):
            raise invalid(field, f"must be a dict, is {entries!r}")
        for name in ("shape", "typestr", "data"):
            if name not in entries:
                raise invalid(f"{field}[{name!r}]", "is missing")
        typestr, data = entries["typestr"], entries["data"]
        known = _TYPESTR.fullmatch(typestr) if isinstance(typestr, str) else None
        if known is None:
            raise invalid(f"{field}['typestr']",
                          f"must be an order, a letter and the bytes of an element, as '<f2', is {typestr!r}")
        if not isinstance(data, tuple | list) or len(data) != 2:
            raise invalid(f"{field}['data']", f"must be a pointer and whether it is read-only, is {data!r}")
        self.item = int(known[1])
        self.address = whole(f"{field}['data'][0]", data[0], 0, MOST_64)
        shape = _sequence(f"{field}['shape']", entries["shape"])
        self.shape = tuple(whole(f"{field}['shape']", n, 0, _MOST_STRIDE) for n in shape)
        self.strides = self._strides(entries.get("strides"), f"{field}['strides']")

    def _strides(self, strides: Any, field: str) -> tuple[int, ...]:
        if strides is None:
            bytes_of, at = [], self.item
            for n in reversed(self.shape):
                bytes_of.append(at)
                at *= n
            return tuple(reversed(bytes_of))
        strides = tuple(whole(field, n, -_MOST_STRIDE, _MOST_STRIDE) for n in _sequence(field, strides))
        if len(strides) != len(self.shape):
            raise invalid(field, f"must have the {len(self.shape)} axes of shape {self.shape}, has {len(strides)}")
        return strides

    @property
    def extent(self) -> int:
        """Bytes from the first element to the end of the last; strides must not be negative."""
        if 0 in self.shape:
            return 0
        return sum((n - 1) * stride for n, stride in zip(self.shape, self.strides, strict=True)) + self.item


def strides_of(array: Any) -> tuple[int, ...]:
    """Strides in bytes of a NumPy array, a torch tensor, or a CuPy array."""
    strides = getattr(array, "strides", None)
    if isinstance(strides, tuple):
        return strides
    return tuple(int(s) * int(array.element_size()) for s in array.stride())


def address_of(array: Any, field: str = "array") -> int:
    """Where the first element of a NumPy array, a torch tensor or a CuPy array lies: here, or on the device."""
    if isinstance(array, np.ndarray):
        return int(array.__array_interface__["data"][0])
    if hasattr(array, "data_ptr"):
        return int(array.data_ptr())
    if hasattr(array, "__cuda_array_interface__"):
        return CudaInterface(array, field).address
    raise no_array(array, field)


def no_array(array: Any, field: str) -> TypeError:
    """The error for what is none."""
    return TypeError(f"{field} must be a NumPy array, a torch tensor or a CuPy array, not {type(array).__name__}")


class Axes:
    """The axes of an array by letter: sizes, and strides in bytes.

    An axis in two levels has its capital letter for the outer one.
    """

    def __init__(self, array: Any, names: str, field: str) -> None:
        strided = isinstance(getattr(array, "strides", None), tuple) or hasattr(array, "stride")
        if not strided or not hasattr(array, "shape"):
            raise no_array(array, field)
        shape, strides = tuple(int(n) for n in array.shape), strides_of(array)
        if len(strides) != len(shape):
            raise invalid(field, f"shape {shape} has {len(shape)} axes, and there are {len(strides)} strides")
        if len(shape) != len(names) or len(set(names)) != len(names):
            raise invalid(field, f"axes {names!r} do not name the {len(shape)} axes of shape {shape}")
        if 0 in shape:
            raise invalid(field, f"shape {shape} has an empty axis")
        self.size = dict(zip(names, shape, strict=True))
        # the stride of an axis of length 1 means nothing, and frameworks fill in anything
        self.stride = {n: s if self.size[n] > 1 else 0 for n, s in zip(names, strides, strict=True)}
        for name, stride in self.stride.items():
            if stride < 0:
                raise invalid(field, f"axis {name!r} has the negative stride {stride}")

    def length(self, name: str) -> int:
        """Elements along an axis, both its levels together; 1 if absent."""
        return self.size.get(name.upper(), 1) * self.size.get(name, 1)
