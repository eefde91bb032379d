"""Export of device memory: what is recognised without a driver."""

from __future__ import annotations

import os
import secrets
from types import SimpleNamespace
from typing import Any

import pytest

import chunkkv
from chunkkv import Code, cuda
from chunkkv.registration import register_message
from chunkkv.side import OfferKind
from chunkkv.wire import Access

BARE = bytes(range(64))
UUID = bytes(range(100, 116))


def test_torch_handles_are_unwrapped() -> None:
    assert cuda.unwrap_handle(BARE) == BARE
    assert cuda.unwrap_handle(b"\x01c" + BARE) == BARE
    assert cuda.unwrap_handle(b"\x02c" + BARE) == BARE


@pytest.mark.parametrize(("handle", "words"), [
    (b"", "0 bytes"), (b"\x03c" + BARE, "header version 3"), (b"\x01x" + BARE, "type b'x'"),
    (b"\x01c" + BARE[:63], "65 bytes"),
])
def test_other_handles_are_refused(handle: bytes, words: str) -> None:
    with pytest.raises(chunkkv.InvalidArgument, match=words) as caught:
        cuda.unwrap_handle(handle)
    assert caught.value.field == "register_region.cuda_ipc.handle"


def test_expandable_segments_have_no_handle() -> None:
    with pytest.raises(chunkkv.Unsupported, match="expandable_segments:False") as caught:
        cuda.unwrap_handle(b"\x01e" + BARE)
    assert caught.value.code == Code.HANDLE_UNSUPPORTED


def of(shape: tuple[int, ...], strides: tuple[int, ...] | None = None) -> Any:
    return SimpleNamespace(__cuda_array_interface__={"shape": shape, "strides": strides, "typestr": "<f2",
                                                     "data": (4096, False)})


def test_extent_of_an_array() -> None:
    assert cuda._extent(of((3, 5)), None) == (4096, 30)
    assert cuda._extent(of((3, 5), (20, 2)), None) == (4096, 2 * 20 + 4 * 2 + 2)
    assert cuda._extent(4096, 100) == (4096, 100)
    with pytest.raises(TypeError, match="size"):
        cuda._extent(4096, None)
    with pytest.raises(chunkkv.InvalidArgument, match="must be 1 to 30, is 31"):
        cuda._extent(of((3, 5)), 31)
    with pytest.raises(chunkkv.InvalidArgument, match="negative"):
        cuda._extent(of((3, 5), (-20, 2)), None)


def test_message_of_a_handle() -> None:
    memory = cuda.DeviceMemory(0x7000, 500, UUID, BARE, 1000, 300, 77)
    message = register_message(memory, 20, 100, Access.READ, lambda *_: pytest.fail("nothing is offered"))
    assert (message.cuda_ipc.handle, message.cuda_ipc.alloc_size) == (BARE, 1000)
    assert (message.offset, message.size, message.access) == (320, 100, Access.READ)
    assert (message.device_uuid, message.buffer_id) == (UUID, 77)
    assert BARE.hex() not in repr(memory)
    assert "\\x05" not in repr(memory)


def test_pieces_are_offered_in_order_and_closed() -> None:
    pieces = tuple((os.memfd_create("piece"), size) for size in (100, 50))
    memory = cuda.DeviceMemory(0x7000, 120, UUID, b"", 150, 10, 77, pieces)
    offered = []

    def offer(fd: int, size: int, kind: OfferKind) -> bytes:
        offered.append((fd, size, kind, secrets.token_bytes(16)))
        return offered[-1][3]

    message = register_message(memory, 0, 120, Access.READ_WRITE, offer)
    assert [entry[:3] for entry in offered] == [(fd, size, OfferKind.CUDA_VMM) for fd, size in pieces]
    assert message.vmm_tokens == offered[0][3] + offered[1][3]
    assert message.offset == 10
    del memory
    for fd, _ in pieces:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)
