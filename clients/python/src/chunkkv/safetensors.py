"""A reader of safetensors files: a header in JSON, then the bytes.  Views of a mapping; nothing is copied."""

from __future__ import annotations

import json
import mmap
import os
import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

_TYPES = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16, "F64": np.float64, "I64": np.int64,
          "I32": np.int32, "I8": np.int8, "U8": np.uint8}
LARGEST_HEADER = 100_000_000  # bytes, as the format says


def load(path: str | os.PathLike[str]) -> dict[str, NDArray[Any]]:
    """All tensors of a file, read-only, by name; bf16 as its bits in uint16."""
    with open(path, "rb") as stream:
        view = mmap.mmap(stream.fileno(), 0, prot=mmap.PROT_READ)
    (length,) = struct.unpack_from("<Q", view)
    if length > min(LARGEST_HEADER, len(view) - 8):
        raise ValueError(f"{os.fspath(path)}: header of {length} bytes")
    header = json.loads(view[8 : 8 + length])
    found = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        kind = np.dtype(_TYPES[entry["dtype"]])
        first, end = entry["data_offsets"]
        found[name] = np.frombuffer(view, kind, (end - first) // kind.itemsize, 8 + length + first).reshape(
            entry["shape"])
    return found
