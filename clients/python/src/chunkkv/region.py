"""A region: memory that the daemon has mapped, and slices of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ._pb import chunkkv_pb2 as pb
from .arrays import address_of
from .checks import MOST_64, out_of_range, whole
from .errors import invalid
from .memory import SharedMemory
from .wire import Access


@dataclass(frozen=True)
class Slice:
    """A piece of a registered region, in bytes."""

    region: Region
    offset: int
    size: int

    def to_message(self) -> pb.Slice:
        """The wire's message."""
        whole("slice.offset", self.offset, 0, MOST_64)
        whole("slice.size", self.size, 0, MOST_64)
        return pb.Slice(region_id=self.region.id, offset=self.offset, size=self.size)


@dataclass(frozen=True)
class Region:
    """Memory that the daemon has mapped; valid in the session that registered it.

    Attributes:
        id: the daemon's number for it.
        size: bytes.
        access: what the daemon may do with it.
        shared: the daemon had mapped this memory already.
        address: where the region begins in this process; 0 = not mapped here.
        memory: what lies behind it; None if only a descriptor was given.
        session: which session of this process it belongs to.
    """

    id: int
    size: int
    access: Access
    shared: bool = False
    address: int = 0
    memory: SharedMemory | None = field(default=None, repr=False)
    session: int = 0

    def slice(self, offset: int = 0, size: int | None = None) -> Slice:
        """A piece of the region; size None = to its end."""
        offset = whole("slice.offset", offset, 0, self.size)
        size = self.size - offset if size is None else whole("slice.size", size, 0, MOST_64)
        if offset + size > self.size:
            raise out_of_range("slice", f"bytes {offset} to {offset + size} of a region of {self.size}")
        return Slice(self, offset, size)

    def offset_of(self, array: Any, path: str = "array") -> int:
        """Byte offset of an array's first element, which must lie in the region."""
        offset = address_of(array) - self.address
        if self.address == 0 or not 0 <= offset < self.size:
            raise invalid(path, f"the array does not lie in region {self.id}")
        return offset
