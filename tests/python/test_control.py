"""The control page and hold: slots and their words, what the daemon writes there, commit, cancel and expiry."""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import chunkkv
from chunkkv.control import HEADER, KEPT_UNIT, SLOT, ControlPage, crc32c
from chunkkv.exchange import Exchange
from chunkkv.link import Link
from chunkkv.wire import CacheState, Code, Phase
from daemon import Daemon
from tenant import NOISE, ROWS, WIDE_ROWS, every_other, filled, wide

# ---- the page itself


def test_page_is_laid_out_as_documented() -> None:
    page = ControlPage(3, 2 * KEPT_UNIT)
    assert (HEADER.size, SLOT.size) == (64, 128)
    header = HEADER.unpack_from(page.memory.buffer, 0)
    assert header[:7] == (0x50564B43, 1, 128, 3, KEPT_UNIT, 2 * KEPT_UNIT, 0)
    assert header[7] == page.memory.size == KEPT_UNIT + 3 * 2 * KEPT_UNIT
    assert page.memory.buffer[:4] == b"CKVP"


def test_slots_are_given_once_until_they_end() -> None:
    page = ControlPage(2, KEPT_UNIT)
    first, second = page.take(), page.take()
    assert first is not None
    assert second is not None
    assert [(t.number, t.use) for t in (first, second)] == [(1, 1), (2, 1)]
    assert page.take() is None
    assert struct.unpack_from("<Q", page.memory.buffer, HEADER.size + SLOT.size) == (1 << 32 | Phase.SUBMITTED,)
    page.give_back(first, answered=False)  # nobody knows: the daemon may still take it up
    assert page.take() is None
    page.end(first, Phase.DONE)
    again = page.take()
    assert again is not None
    assert (again.number, again.use) == (1, 2)
    page.give_back(second, answered=True)  # it was refused: what comes of it later finds another word
    assert page.read(2).phase == Phase.CANCELLED
    third = page.take()
    assert third is not None
    assert (third.number, third.use) == (2, 2)
    page.close()


def test_use_begins_anew_after_the_last() -> None:
    page = ControlPage(1, KEPT_UNIT)
    struct.pack_into("<Q", page.memory.buffer, HEADER.size, 0xFFFFFFFF << 32 | Phase.DONE)
    ticket = page.take()
    assert ticket is not None
    assert ticket.use == 0
    assert page.read(1).phase == Phase.SUBMITTED


def test_crc_is_castagnoli() -> None:
    """RFC 3720, B.4."""
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert crc32c(b"\xff" * 32) == 0x62A8AB43
    assert crc32c(bytes(range(32))) == 0x46DD794E


@pytest.mark.parametrize(("slots", "kept_bytes", "field"), [
    (9, KEPT_UNIT, "control_slots"), (-1, KEPT_UNIT, "control_slots"), (8, 0, "kept_bytes"),
    (8, KEPT_UNIT + 1, "kept_bytes"), (8, 2 << 20, "kept_bytes"), (1, 16 << 20, "kept_bytes")])
def test_sizes_of_a_page(daemon: Daemon, slots: int, kept_bytes: int, field: str) -> None:
    with pytest.raises(chunkkv.InvalidArgument, match="must be") as caught:
        chunkkv.Client(daemon.prefix(), control_slots=slots, kept_bytes=kept_bytes)
    assert caught.value.field == field


def test_largest_pages(daemon: Daemon) -> None:
    for slots, kept_bytes in ((1, (16 << 20) - KEPT_UNIT), (8, (2 << 20) - KEPT_UNIT), (1, KEPT_UNIT)):
        with chunkkv.Client(daemon.prefix(), control_slots=slots, kept_bytes=kept_bytes) as client:
            assert client._link.page is not None


# ---- with a daemon


def contents(cache: chunkkv.SharedCache) -> np.ndarray:
    return cache.memory.numpy(cache.memory.size, np.uint8).copy()


def check_moved(cache: chunkkv.SharedCache, answer: chunkkv.Answer) -> None:
    for layer in (0, 1):
        rows = answer.layers[layer].rows
        assert np.array_equal(cache.key(layer)[: len(rows)], NOISE[layer, rows].astype(np.float32))
        assert np.array_equal(cache.value(layer)[: len(rows)], NOISE[layer + 2, rows].astype(np.float32))


def test_a_request_in_place_takes_a_slot_by_itself(daemon: Daemon, client: chunkkv.Client) -> None:
    page = client._link.page
    assert page is not None
    with filled(client) as cache:
        plan = client.plan(cache, rows=ROWS, keep_ratio=0.5)
        assert page.read(1).use == 0, "a plan writes nothing that would need repair"
        answer = client.compress(cache, rows=ROWS, keep_ratio=0.5, generation=41)
        check_moved(cache, answer)
        assert not answer.repaired
    slot = page.read(1)
    assert (slot.phase, slot.use, slot.code) == (Phase.DONE, 1, Code.OK)
    assert (slot.request_id, slot.generation) == (answer.request_id, 41)
    assert slot.boot_id == client.session.boot_id
    assert slot.steps == slot.steps_done > 0
    assert crc32c(slot.kept) == slot.kept_crc
    assert slot.set_count == 2
    head = struct.unpack_from("<6I", slot.kept)
    assert head[:5] == (0, 0, 0, ROWS, answer.physical_len)
    assert chunkkv.ranges_from_runs(struct.unpack_from(f"<{head[5]}I", slot.kept, 24)) == answer.layers[0].kept
    assert answer.groups[0].kept_digest == plan.groups[0].kept_digest
    header = HEADER.unpack_from(page.memory.buffer)
    assert header[8] == client.session.boot_id
    assert time.monotonic_ns() - header[9] < 3_000_000_000, "no heartbeat"


def test_refused_requests_end_their_slots(daemon: Daemon, client: chunkkv.Client) -> None:
    page = client._link.page
    assert page is not None
    with filled(client) as cache:
        for _ in range(20):
            with pytest.raises(chunkkv.InvalidArgument):
                client.compress(cache, rows=ROWS, keep_ratio=0.5, table=[7])
        assert client.compress(cache, rows=ROWS, keep_ratio=0.5).physical_len == ROWS // 2


def test_without_slots(daemon: Daemon) -> None:
    with chunkkv.Client(daemon.prefix(), control_slots=0) as client, filled(client) as cache:
        assert client._link.page is None
        check_moved(cache, client.compress(cache, rows=ROWS, keep_ratio=0.5))
        held = client.compress(cache, rows=ROWS // 2, keep_ratio=0.5, hold=True)
        assert held.phase == Phase.SELECTED
        assert held.commit().cache == CacheState.COMMITTED


def test_kept_sets_that_may_not_fit_go_without_a_slot(daemon: Daemon) -> None:
    with chunkkv.Client(daemon.prefix(), kept_bytes=KEPT_UNIT) as client, filled(client) as cache:
        assert client._link.page is not None
        check_moved(cache, client.compress(cache, rows=ROWS, keep=[(row, row + 1) for row in range(3, ROWS, 4)]))
        assert client._link.page.read(1).use == 0


def test_kept_sets_that_the_daemon_thinks_too_large(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its bound may be above ours: the request is asked again without a slot."""
    original = chunkkv.client.submit

    def submit(link: Link, exchange: Exchange, *rest: Any) -> chunkkv.Answer:
        exchange.kept_bytes = 0
        return original(link, exchange, *rest)

    monkeypatch.setattr(chunkkv.client, "submit", submit)
    with chunkkv.Client(daemon.prefix(), kept_bytes=KEPT_UNIT) as client, filled(client) as cache:
        check_moved(cache, client.compress(cache, rows=ROWS, keep=[(row, row + 1) for row in range(3, ROWS, 4)]))
        assert client._link.page is not None
        assert client._link.page.read(1).phase in (Phase.CANCELLED, Phase.FAILED)
        assert not client._link.unfinished


@pytest.mark.tries(30)
def test_too_many_steps_names_the_way_out(daemon: Daemon, client: chunkkv.Client) -> None:
    """One row dropped in front of thousands: a step for each row."""
    with filled(client) as cache:
        before = contents(cache)
        with pytest.raises(chunkkv.CannotCompress, match="single_pass") as caught:
            client.compress(cache, rows=ROWS, keep=[(1, ROWS)])
        assert caught.value.code == Code.TOO_MANY_STEPS
        assert caught.value.cache == CacheState.CLEAN
        assert "COPY_OUT" in caught.value.detail
        assert np.array_equal(before, contents(cache))
        answer = client.compress(cache, rows=ROWS, keep=[(1, ROWS)], single_pass=True)
        assert answer.physical_len == ROWS - 1
        check_moved(cache, answer)


def test_hold_and_commit(daemon: Daemon, client: chunkkv.Client) -> None:
    with filled(client) as cache:
        before = contents(cache)
        held = client.compress(cache, rows=ROWS, keep_ratio=0.5, hold=True, generation=3)
        assert (held.phase, held.cache) == (Phase.SELECTED, CacheState.CLEAN)
        assert held.physical_len == ROWS // 2
        assert held.groups[0].bytes_moved == 0
        assert np.array_equal(before, contents(cache)), "written before the commit"
        assert client.outcome(held.request_id).phase == Phase.SELECTED
        done = held.commit()
        assert (done.phase, done.cache, done.generation) == (Phase.DONE, CacheState.COMMITTED, 3)
        assert done.layers == held.layers
        assert done.groups[0].bytes_moved > 0
        check_moved(cache, done)
        with pytest.raises(ValueError, match="nothing to commit"):
            done.commit()


def test_hold_and_cancel(daemon: Daemon, client: chunkkv.Client) -> None:
    with filled(client) as cache:
        before = contents(cache)
        held = client.compress(cache, rows=ROWS, keep_ratio=0.5, hold=True)
        outcome = held.cancel()
        assert (outcome.phase, outcome.cache) == (Phase.CANCELLED, CacheState.CLEAN)
        with pytest.raises(chunkkv.ChunkkvError) as caught:
            held.commit()
        assert caught.value.code in (Code.CANCELLED, Code.CONFLICT)
        assert caught.value.cache == CacheState.CLEAN
        assert np.array_equal(before, contents(cache))


def test_hold_expires(daemon: Daemon, client: chunkkv.Client) -> None:
    with filled(client) as cache:
        before = contents(cache)
        held = client.compress(cache, rows=ROWS, keep_ratio=0.5, hold=True)
        time.sleep(client.session.limits.hold_ms / 1000 + 0.2)
        with pytest.raises(chunkkv.ChunkkvError) as caught:
            held.commit()
        assert caught.value.code in (Code.EXPIRED, Code.CANCELLED, Code.CONFLICT)
        assert caught.value.cache == CacheState.CLEAN
        assert np.array_equal(before, contents(cache))
        check_moved(cache, client.compress(cache, rows=ROWS, keep_ratio=0.5))


def test_held_answers_that_are_forgotten_return_their_slots(daemon: Daemon) -> None:
    with chunkkv.Client(daemon.prefix(), control_slots=2) as client, filled(client) as cache:
        page = client._link.page
        assert page is not None
        for _ in range(2):
            client.compress(cache, rows=ROWS, keep_ratio=0.5, hold=True)
            assert client.outcome(client._connection.newest_id).cache == CacheState.CLEAN
        time.sleep(client.session.limits.hold_ms / 1000 + 0.2)
        client.compress(cache, rows=ROWS, keep_ratio=0.5)
        assert max(page.read(n).use for n in (1, 2)) == 2
        assert not client._link.unfinished


def test_copy_out_with_hold(daemon: Daemon, client: chunkkv.Client) -> None:
    memory = chunkkv.SharedMemory.allocate(2 * 64 * 16 * 4)
    planes = memory.numpy((2, 64, 1, 16), np.float32)
    planes[...] = np.arange(planes.size).reshape(planes.shape)
    region = client.register_region(memory)
    keys, values = planes.reshape(2, 1, 8, 8, 1, 16)
    cache = client.register_cache(chunkkv.CacheLayout.of_arrays(list(keys), list(values), axes="bthd", q_heads=1,
                                                                region=region))
    held = client.copy_out(cache, rows=32, table=range(4), destination=range(4, 8), keep=[(3, 9)], hold=True)
    assert held.phase == Phase.SELECTED
    assert planes[0, 32, 0, 0] == 32 * 16
    assert held.commit().phase == Phase.DONE
    assert np.array_equal(planes[:, 32:38], planes[:, 3:9])


@pytest.mark.tries(15)
def test_cancel_from_another_thread(daemon: Daemon, client: chunkkv.Client) -> None:
    """Whichever comes first, it is one of the two, and the cache is as is said."""
    with wide(client) as cache:
        keys = cache.key(0)
        keys[:, 0, 0] = np.arange(WIDE_ROWS)
        for delay in (0.0, 0.001, 0.003, 0.01):
            number = client.new_request_id()
            seen: list[object] = []

            def work(number: int = number, seen: list[object] = seen) -> None:
                try:
                    seen.append(client.compress(cache, rows=WIDE_ROWS, keep=every_other(WIDE_ROWS),
                                                request_id=number))
                except chunkkv.ChunkkvError as error:
                    seen.append(error)

            worker = threading.Thread(target=work)
            worker.start()
            time.sleep(delay)
            client.cancel(number)
            worker.join()
            moved = keys[0, 0, 0] != 0
            assert moved == isinstance(seen[0], chunkkv.Answer), seen
            if not moved:
                assert isinstance(seen[0], chunkkv.Cancelled)
            keys[:, 0, 0] = np.arange(WIDE_ROWS)


def test_many_requests_reuse_one_slot(daemon: Daemon) -> None:
    with chunkkv.Client(daemon.prefix(), control_slots=1) as client, filled(client) as cache:
        for i in range(50):
            cache.write(0, key=NOISE[0])
            client.compress(cache, rows=ROWS, keep_ratio=0.5, policy=chunkkv.Policy(chunk=5 + i % 7))
        assert client._link.page is not None
        assert client._link.page.read(1).use == 50


def test_a_new_session_takes_the_page_along(new_daemon: Callable[..., Daemon]) -> None:
    daemon = new_daemon()
    with chunkkv.Client(daemon.prefix()) as client, filled(client) as cache:
        client.compress(cache, rows=ROWS, keep_ratio=0.5)
        client.reconnect()
        client.compress(cache, rows=ROWS // 2, keep_ratio=0.5)
        assert client._link.page is not None
        assert client._link.page.read(1).use == 2
