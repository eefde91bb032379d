"""Caches: one that an engine registered, and one that this package allocates itself."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .checks import out_of_range, whole
from .dtypes import element_type, from_torch, storage, to_bf16
from .errors import invalid
from .job import Queries, Table
from .layout import MOST_LAYERS, MOST_TOKENS_PER_BLOCK, CacheLayout
from .memory import SharedMemory
from .region import Region
from .wire import DType

if TYPE_CHECKING:
    from .client import Client

SECTION_ALIGN = 4096  # bytes: keys, values and queries begin on pages of their own


class Cache:
    """A registered KV cache.

    Attributes:
        layout: what was registered.
        id: the daemon's number for it, in the session of now.
        fast_path: False = right, but on the generic kernels.
        session: which session of this process it belongs to.
    """

    def __init__(self, layout: CacheLayout, cache_id: int, fast_path: bool, session: int) -> None:
        self.layout = layout
        self.id = cache_id
        self.fast_path = fast_path
        self.session = session

    def default_table(self, rows: int) -> Table | None:
        """The table of a sequence that begins at the first block, where there is only one sequence."""
        return None

    def default_queries(self) -> Queries | None:
        """The query rows, where they are part of the cache."""
        return None


class SharedCache(Cache):
    """Keys, values and query rows of one sequence, in one piece of sealed shared memory.

    Use as a context manager, or call close().

    Attributes:
        tokens: rows that there is room for.
        window: query rows that there is room for.
        dtype: element type of all of it.
        memory: what it all lies in.
        region: memory, as registered.
    """

    def __init__(self, client: Client, memory: SharedMemory, numbers: Sequence[int], tokens: int, kv_heads: int,
                 q_heads: int, head_dim: int, dtype: DType, window: int) -> None:
        self.tokens, self.window, self.dtype, self.memory = tokens, window, dtype, memory
        self._q_heads = q_heads
        block = min(tokens, MOST_TOKENS_PER_BLOCK)
        blocks = -(-tokens // block)
        row = (len(numbers), blocks, block, kv_heads, head_dim)
        self._keys = memory.numpy(row, dtype)
        self._values = memory.numpy(row, dtype, _aligned(self._keys.nbytes))
        self._queries = memory.numpy((len(numbers), window, q_heads, head_dim), dtype,
                                     2 * _aligned(self._keys.nbytes))
        self._place = {number: i for i, number in enumerate(numbers)}
        self._query_rows: dict[int, int] = {}  # that the caller filled in, of layers where there are any
        self.region: Region
        self.register(client)

    @classmethod
    def allocate(cls, client: Client, *, layers: int | Sequence[int], tokens: int, kv_heads: int, q_heads: int,
                 head_dim: int, dtype: Any = "bf16", window: int = 64) -> SharedCache:
        """Allocate and register.

        Args:
            client: a connected client.
            layers: how many, or their numbers in ascending order.
            tokens: rows that there is room for.
            kv_heads: heads of keys and values.
            q_heads: heads of queries, a multiple of kv_heads.
            head_dim: elements of a row of one head.
            dtype: "bf16", "f16" or "f32", or a NumPy or torch type.
            window: query rows that there is room for; how many of them vote, the newest, the policy says.
        """
        numbers = tuple(range(whole("layers", layers, 1, MOST_LAYERS))) if isinstance(layers, int) else tuple(layers)
        for name, value in (("layers", len(numbers)), ("tokens", tokens), ("kv_heads", kv_heads),
                            ("q_heads", q_heads), ("head_dim", head_dim), ("window", window)):
            whole(name, value, 1)
        kind = element_type(dtype)
        if kind not in (DType.F32, DType.F16, DType.BF16):
            raise invalid("dtype", f"{kind.name} is none of F32, F16, BF16")
        block = min(tokens, MOST_TOKENS_PER_BLOCK)
        rows = -(-tokens // block) * block
        plane = len(numbers) * rows * kv_heads * head_dim * kind.itemsize
        queries = len(numbers) * window * q_heads * head_dim * kind.itemsize
        memory = SharedMemory.allocate(2 * _aligned(plane) + queries, name="chunkkv-cache")
        try:
            return cls(client, memory, numbers, tokens, kv_heads, q_heads, head_dim, kind, window)
        except BaseException:
            memory.close()
            raise

    def register(self, client: Client) -> None:
        """Register memory and layout with a client's session of now, unless they are."""
        if getattr(self, "session", 0) == client.session.number:
            return
        self._client = client
        self.region = client.register_region(self.memory)
        try:
            layout = CacheLayout.of_arrays(list(self._keys), list(self._values), axes="bthd", q_heads=self._q_heads,
                                           region=self.region, layers=tuple(self._place), dtype=self.dtype)
            cache = client.register_cache(layout)
        except BaseException:
            client.unregister_region(self.region)
            raise
        super().__init__(layout, cache.id, cache.fast_path, cache.session)
        client._link.caches.add(self)

    def key(self, layer: int) -> NDArray[Any]:
        """Keys of a layer, [tokens, kv_heads, head_dim], a view; with bf16 its bits as uint16."""
        return self._rows(self._keys, layer)

    def value(self, layer: int) -> NDArray[Any]:
        """Values of a layer, [tokens, kv_heads, head_dim], a view; with bf16 its bits as uint16."""
        return self._rows(self._values, layer)

    def query(self, layer: int) -> NDArray[Any]:
        """Query rows of a layer, [window, q_heads, head_dim], newest last, a view; with bf16 its bits as uint16.

        From then on all rows of it count as given, whether they were filled in or not.
        """
        view: NDArray[Any] = self._queries[self._index(layer)]
        self._query_rows[layer] = self.window
        return view

    def write(self, layer: int, *, key: Any = None, value: Any = None, query: Any = None) -> None:
        """Copy numbers in, converted to the cache's type; NumPy arrays or torch tensors.

        Args:
            layer: its number.
            key: [rows, kv_heads, head_dim], to the first rows.
            value: likewise.
            query: [rows, q_heads, head_dim], to the last query rows, newest last; requests send as many as were given.
        """
        for name, source, view in (("key", key, self.key(layer)), ("value", value, self.value(layer))):
            if source is not None:
                bits = self._bits(source, name, view)
                view[: len(bits)] = bits
        if query is not None:
            rows = self._queries[self._index(layer)]
            bits = self._bits(query, "query", rows)
            rows[self.window - len(bits) :] = bits
            self._query_rows[layer] = max(len(bits), 1)

    def default_table(self, rows: int) -> Table:
        """The blocks from the first on that hold so many rows."""
        if rows > self.tokens:
            raise out_of_range("compress.groups[0].rows", f"must be 0 to {self.tokens}, the tokens that this cache has "
                               f"room for, is {rows}")
        block = self._keys.shape[2]
        return Table(range(-(-rows // block)))

    def default_queries(self) -> Queries:
        """The query rows of all layers: the newest that every layer with queries was given; all, where none was."""
        rows = min(self._query_rows.values(), default=self.window)
        return Queries.of_array(self._queries[:, self.window - rows :], region=self.region, dtype=self.dtype)

    def close(self) -> None:
        """Unregister and let the memory go."""
        try:
            self._client.unregister_quietly(self, self.region)
        finally:
            self.memory.close()

    def __enter__(self) -> SharedCache:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()

    def _rows(self, planes: NDArray[Any], layer: int) -> NDArray[Any]:
        blocks, block, heads, dim = planes.shape[1:]
        view: NDArray[Any] = planes[self._index(layer)].reshape(blocks * block, heads, dim)[: self.tokens]
        return view

    def _index(self, layer: int) -> int:
        if layer not in self._place:
            raise invalid("layer", f"{layer!r} is none of {tuple(self._place)}")
        return self._place[layer]

    def _bits(self, source: Any, name: str, view: NDArray[Any]) -> NDArray[Any]:
        """The rows of a caller in the cache's type; they must fit the view."""
        array = np.asarray(source) if not hasattr(source, "data_ptr") else from_torch(source)
        if array.shape[1:] != view.shape[1:] or array.ndim != view.ndim or len(array) > len(view):
            room = ", ".join(str(n) for n in view.shape[1:])
            raise invalid(name, f"must be of shape [at most {len(view)}, {room}], is {list(array.shape)}")
        if array.dtype == storage(self.dtype):
            return array
        if array.dtype.kind not in "fiu":
            raise invalid("dtype", f"cannot convert {array.dtype} to {self.dtype.name}")
        return to_bf16(array) if self.dtype == DType.BF16 else array.astype(storage(self.dtype))


def _aligned(size: int) -> int:
    return -(-size // SECTION_ALIGN) * SECTION_ALIGN
