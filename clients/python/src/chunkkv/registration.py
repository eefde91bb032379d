"""RegisterRegion, for each kind of memory: how the daemon is to come by it."""

from __future__ import annotations

import os
from collections.abc import Callable

from ._pb import chunkkv_pb2 as pb
from .checks import MOST_64, of_type, whole
from .cuda import DeviceMemory
from .errors import invalid
from .memory import SharedMemory
from .side import OfferKind
from .wire import Access

Offer = Callable[[int, int, OfferKind], bytes]  # descriptor, bytes, kind: the token


def register_message(memory: SharedMemory | DeviceMemory | int, offset: int, size: int, access: Access,
                     offer: Offer) -> pb.RegisterRegion:
    """The message for `size` bytes from byte `offset` of memory; descriptors are offered on the way.

    Args:
        memory: or the descriptor of a sealed memfd.
        offset: inside what the caller calls memory, which may begin inside an allocation.
        size: bytes.
        access: what the daemon may do with it.
        offer: sends a descriptor over the side socket.
    """
    if isinstance(memory, DeviceMemory):
        whole("register_region.offset", memory.offset + offset, 0, MOST_64)
    body = pb.RegisterRegion(offset=offset, size=size, access=int(access))  # type: ignore[arg-type]
    if isinstance(memory, DeviceMemory):
        body.offset += memory.offset
        body.device_uuid, body.buffer_id = memory.device_uuid, memory.buffer_id
        if memory.pieces:
            for fd, _ in memory.pieces:  # all of them, before the first is offered
                _check_open("register_region.vmm_tokens", fd)
            body.vmm_tokens = b"".join(offer(fd, piece, OfferKind.CUDA_VMM) for fd, piece in memory.pieces)
        else:
            body.cuda_ipc.handle, body.cuda_ipc.alloc_size = memory.handle, memory.alloc_size
    elif isinstance(memory, SharedMemory) and memory.name is not None:
        body.posix_shm = memory.name
    else:
        fd, total = (memory.fileno(), memory.size) if isinstance(memory, SharedMemory) else (memory, size_of(memory))
        # what is no file has no size; the daemon then says what it is instead
        body.memfd_token = offer(fd, total or offset + size, OfferKind.MEMFD)
    return body


def size_of(fd: int) -> int:
    """Bytes of the file behind a descriptor."""
    of_type("memory", fd, SharedMemory, DeviceMemory, int)
    return _check_open("memory", fd).st_size


def _check_open(field: str, fd: int) -> os.stat_result:
    try:
        return os.fstat(fd)
    except (OSError, OverflowError):
        raise invalid(field, f"{fd} is no open descriptor") from None
