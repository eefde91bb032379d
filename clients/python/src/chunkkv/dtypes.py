"""Element types by name, and how NumPy holds them.

NumPy has no bfloat16 and no 8-bit floats, so their bits are held as uint16 and uint8 and the type is
given by name.  `to_bf16` and `from_bf16` convert.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from .errors import invalid
from .wire import DType

_NAMES = {
    "f32": DType.F32, "float32": DType.F32, "f16": DType.F16, "float16": DType.F16, "half": DType.F16,
    "bf16": DType.BF16, "bfloat16": DType.BF16, "f8_e4m3": DType.F8_E4M3, "float8_e4m3fn": DType.F8_E4M3,
    "f8_e5m2": DType.F8_E5M2, "float8_e5m2": DType.F8_E5M2, "i8": DType.I8, "int8": DType.I8,
    "byte": DType.BYTE, "uint8": DType.BYTE,
}
_STORAGE: dict[DType, DTypeLike] = {
    DType.F32: np.float32, DType.F16: np.float16, DType.BF16: np.uint16, DType.F8_E4M3: np.uint8,
    DType.F8_E5M2: np.uint8, DType.I8: np.int8, DType.BYTE: np.uint8,
}


def element_type(name: Any) -> DType:
    """A DType from a name ("bf16"), a NumPy type, or a torch type (torch.bfloat16).

    >>> element_type("bf16")
    <DType.BF16: 3>
    """
    if isinstance(name, DType):
        return name
    try:
        text = name if isinstance(name, str) else str(name) if "torch" in str(name) else np.dtype(name).name
    except (TypeError, ValueError):
        raise TypeError(f"dtype must be a name, a NumPy type or a torch type, not {name!r}") from None
    found = _NAMES.get(text.removeprefix("torch.").lower())
    if found is None:
        raise invalid("dtype", f"{name!r} is no element type; known are {', '.join(sorted(_NAMES))}")
    return found


def storage(dtype: DType) -> np.dtype[Any]:
    """The NumPy type that holds the bits of a DType."""
    return np.dtype(_STORAGE[dtype])


def to_bf16(values: Any) -> NDArray[np.uint16]:
    """bfloat16 bits of float values, rounded to nearest even; NaN stays NaN."""
    array = np.ascontiguousarray(values, np.float32)
    bits = array.view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    quiet = (bits >> np.uint32(16)) | np.uint32(0x40)
    return np.where(np.isnan(array), quiet, rounded).astype(np.uint16)


def from_bf16(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """bfloat16 bits as float32, exactly."""
    return (np.asarray(bits, np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)


def from_torch(tensor: Any) -> NDArray[Any]:
    """A CPU torch tensor as a NumPy array without a copy; bfloat16 as its bits in uint16."""
    if str(tensor.dtype) == "torch.bfloat16":
        import torch

        return tensor.detach().view(torch.int16).numpy().view(np.uint16)  # type: ignore[no-any-return]
    return tensor.detach().numpy()  # type: ignore[no-any-return]


def as_torch(array: NDArray[Any], dtype: Any) -> Any:
    """A torch view of a NumPy view, for example of bf16 bits held as uint16; torch must be installed.

    >>> # as_torch(cache.key(0), "bf16")
    """
    import torch

    kind = element_type(dtype)
    names = {DType.F32: "float32", DType.F16: "float16", DType.BF16: "bfloat16", DType.F8_E4M3: "float8_e4m3fn",
             DType.F8_E5M2: "float8_e5m2", DType.I8: "int8", DType.BYTE: "uint8"}
    plain = {1: np.int8, 2: np.int16, 4: np.int32}[kind.itemsize]  # torch takes every signed type of NumPy
    return torch.from_numpy(array.view(plain)).view(getattr(torch, names[kind]))
