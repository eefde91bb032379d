"""Export of device memory: what is recognised without a driver."""

from __future__ import annotations

import copy
import dataclasses
import gc
import os
import pickle
import secrets
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

import chunkkv
from chunkkv import Code, cuda
from chunkkv.region import Region
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


def test_a_handle_that_is_a_text() -> None:
    with pytest.raises(TypeError, match=r"^handle must be a bytes or bytearray, not str"):
        cuda.unwrap_handle("x" * 64)  # type: ignore[arg-type]


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
    assert cuda._extent(of((), ()), None) == (4096, 2)
    with pytest.raises(TypeError, match="size"):
        cuda._extent(4096, None)
    with pytest.raises(chunkkv.InvalidArgument, match=f"must be 1 to {2**64 - 1}, is 0"):
        cuda._extent(4096, 0)
    with pytest.raises(chunkkv.InvalidArgument, match="must be 1 to 30, is 31"):
        cuda._extent(of((3, 5)), 31)
    with pytest.raises(chunkkv.InvalidArgument, match="negative"):
        cuda._extent(of((3, 5), (-20, 2)), None)


@pytest.mark.parametrize(("entry", "value", "words"), [
    ("typestr", "f", r"\['typestr'\]: must be an order, .*, is 'f'"), ("typestr", None, "is None"),
    ("typestr", "<f0", "is '<f0'"), ("data", None, r"\['data'\]: must be a pointer and .*, is None"),
    ("data", (4096,), "must be a pointer"), ("data", (-1, False), rf"\['data'\]\[0\]: must be 0 to {2**64 - 1}, is -1"),
    ("strides", (20, 2, 2), r"\['strides'\]: must have the 2 axes of shape \(3, 5\), has 3"),
    ("strides", 7, "must be a tuple of whole numbers, is 7"), ("strides", (2**63, 2), "must be -"),
    ("shape", (3, -5), r"\['shape'\]: must be 0 to"), ("shape", None, "must be a tuple of whole numbers, is None"),
])
def test_an_array_that_says_nonsense_of_itself(entry: str, value: Any, words: str) -> None:
    """Of memory to export, and of an array that a layout is made of."""
    array = of((3, 5))
    array.__cuda_array_interface__[entry] = value
    region = Region(1, 4096, Access.READ, address=4096)
    for call in (lambda: cuda._extent(array, None), lambda: region.offset_of(array, "keys[0]")):
        with pytest.raises(chunkkv.InvalidArgument, match=words) as caught:
            call()
        assert f"__cuda_array_interface__['{entry}']" in caught.value.field
    del array.__cuda_array_interface__[entry]
    if entry != "strides":
        with pytest.raises(chunkkv.InvalidArgument, match=f"'{entry}'.: is missing"):
            cuda._extent(array, None)
    with pytest.raises(TypeError, match=r"shape.* must be a whole number, not 3\.0"):
        cuda._extent(of((3.0, 5)), None)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["address", "size", "alloc_size", "offset", "buffer_id"])
def test_numbers_of_device_memory_have_limits(name: str) -> None:
    memory = cuda.DeviceMemory(0x7000, 500, UUID, BARE, 1000, 300, 77)
    for value in (-1, 2**64):
        limit = rf"DeviceMemory\.{name}: must be [01] to {2**64 - 1}, is {value}"
        with pytest.raises(chunkkv.InvalidArgument, match=limit):
            dataclasses.replace(memory, **{name: value})
    with pytest.raises(TypeError, match=rf"DeviceMemory\.{name} must be a whole number, not None"):
        dataclasses.replace(memory, **{name: None})


def test_other_members_of_device_memory() -> None:
    memory = cuda.DeviceMemory(0x7000, 500, UUID, BARE, 1000, 2**64 - 1, 77)
    limit = rf"register_region\.offset: must be 0 to {2**64 - 1}, is {2**64}"
    with pytest.raises(chunkkv.InvalidArgument, match=limit):
        register_message(memory, 1, 100, Access.READ, lambda *_: b"")
    for name in ("device_uuid", "handle"):
        with pytest.raises(TypeError, match=rf"DeviceMemory\.{name} must be a bytes, not str"):
            dataclasses.replace(memory, **{name: "x"})
    with pytest.raises(TypeError, match=r"pieces\[0\] must be a descriptor and its bytes, not 5"):
        dataclasses.replace(memory, pieces=(5,))
    for piece in ((-1, 100), (3, 0), (3, 2**64)):
        with pytest.raises(chunkkv.InvalidArgument, match=r"pieces\[0\]\[.\]: must be"):
            dataclasses.replace(memory, pieces=(piece,))


@pytest.mark.parametrize("strides", [None, (16, 2)])
@pytest.mark.parametrize("shape", [(4, 0), (0, 4), (0, 0)])
def test_an_empty_array_is_refused(shape: tuple[int, int], strides: tuple[int, int] | None) -> None:
    for size in (None, 12):
        with pytest.raises(chunkkv.InvalidArgument, match="has no bytes") as caught:
            cuda._extent(of(shape, strides), size)
        assert caught.value.field == "register_region"


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


def in_pieces() -> tuple[cuda.DeviceMemory, list[int]]:
    pieces = tuple((os.memfd_create("piece"), 100) for _ in range(2))
    return cuda.DeviceMemory(0x7000, 120, UUID, b"", 200, 10, 77, pieces), [fd for fd, _ in pieces]


def is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


@pytest.mark.parametrize("again", [
    lambda memory: dataclasses.replace(memory, size=100), copy.copy, copy.deepcopy,
    lambda memory: cuda.DeviceMemory(**dataclasses.asdict(memory)),
    lambda memory: dataclasses.replace(memory, pieces=memory.pieces[1:]),
], ids=["replace", "copy", "deepcopy", "asdict", "a part"])
def test_copies_own_the_pieces_together(again: Callable[[cuda.DeviceMemory], cuda.DeviceMemory]) -> None:
    """Closed once, with the last of them: a second close would hit whoever has the number by then."""
    for first_goes in (True, False):
        memory, fds = in_pieces()
        both = [memory, again(memory)]
        del memory
        both.pop(0 if first_goes else 1)
        assert all(is_open(fd) for fd in fds)
        both.clear()
        assert not any(is_open(fd) for fd in fds)
        strangers = [os.memfd_create("stranger") for _ in fds]  # get the numbers that were free
        gc.collect()
        assert all(is_open(fd) for fd in strangers)
        for fd in strangers:
            os.close(fd)


def test_other_pieces_have_another_owner() -> None:
    memory, fds = in_pieces()
    more = os.memfd_create("piece")
    other = dataclasses.replace(memory, pieces=((more, 100),))
    del memory
    assert [is_open(fd) for fd in (*fds, more)] == [False, False, True]
    del other
    assert not is_open(more)


def test_pieces_are_not_pickled() -> None:
    memory, _ = in_pieces()
    with pytest.raises(TypeError, match="of this process alone"):
        pickle.dumps(memory)
    handle = cuda.DeviceMemory(0x7000, 500, UUID, BARE, 1000, 300, 77)
    assert pickle.loads(pickle.dumps(handle)) == handle


def test_a_closed_piece_is_told_before_any_is_offered() -> None:
    memory, fds = in_pieces()
    stranger = os.dup(fds[1])
    os.close(fds[1])
    try:
        with pytest.raises(chunkkv.InvalidArgument, match=f"{fds[1]} is no open descriptor") as caught:
            register_message(memory, 0, 120, Access.READ, lambda *_: pytest.fail("nothing is offered"))
        assert caught.value.field == "register_region.vmm_tokens"
    finally:
        os.dup2(stranger, fds[1])  # the memory closes it
        os.close(stranger)
