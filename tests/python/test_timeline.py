"""Timeline words: a request waits for one, and raises another when it has ended."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest

import chunkkv
from chunkkv import Code, TimelineWord
from daemon import Daemon
from tenant import LONG_ROWS, ROWS, filled, long_to_score

WAIT, SIGNAL = 64, 128  # offsets of two words
TOP = (1 << 64) - 1


class Words:
    """A page of timeline words."""

    def __init__(self, client: chunkkv.Client) -> None:
        self.memory = chunkkv.SharedMemory.allocate(4096)
        self.region = client.register_region(self.memory)
        self.words = self.memory.numpy(512, np.uint64)

    def at(self, offset: int, value: int) -> TimelineWord:
        return TimelineWord(self.region.slice(offset, 8), value)

    def get(self, offset: int) -> int:
        return int(self.words[offset // 8])

    def set(self, offset: int, value: int) -> None:
        self.words[offset // 8] = value


@pytest.fixture
def words(client: chunkkv.Client) -> Iterator[Words]:
    page = Words(client)
    yield page
    client.unregister_region(page.region)


def later(call: Callable[[], None], seconds: float) -> threading.Timer:
    timer = threading.Timer(seconds, call)
    timer.start()
    return timer


def test_it_waits_for_the_word_and_signals_the_end(client: chunkkv.Client, words: Words) -> None:
    with filled(client) as cache:
        want = client.plan(cache, rows=ROWS, keep_ratio=0.5).layers
        start = time.monotonic()
        timer = later(lambda: words.set(WAIT, 7), 0.2)
        answer = client.plan(cache, rows=ROWS, keep_ratio=0.5, wait=words.at(WAIT, 7), signal=words.at(SIGNAL, 41))
        assert time.monotonic() - start >= 0.19
        assert words.get(SIGNAL) == 41
        assert answer.layers == want
        timer.join()


def test_what_is_written_before_the_word_is_read_after_it(client: chunkkv.Client, words: Words) -> None:
    """The cache is filled while the request waits: all of it counts."""
    with filled(client) as cache, filled(client) as full:
        want = client.plan(full, rows=ROWS, keep_ratio=0.25).layers
        for layer in (0, 1):
            cache.key(layer)[...] = np.float32(np.nan)

        def fill() -> None:
            for layer in (0, 1):
                cache.key(layer)[...] = full.key(layer)
            words.set(WAIT, 1)

        timer = later(fill, 0.1)
        assert client.plan(cache, rows=ROWS, keep_ratio=0.25, wait=words.at(WAIT, 1)).layers == want
        timer.join()


@pytest.mark.parametrize(("word", "value", "come"), [
    (5, 5, True), (6, 5, True), (4, 5, False), (3, TOP - 1, True), (TOP - 1, 3, False), (0, 0, True),
    ((1 << 63) - 1, 0, True), (1 << 63, 0, False),
])
def test_values_are_compared_cyclically(client: chunkkv.Client, words: Words, word: int, value: int,
                                        come: bool) -> None:
    words.set(WAIT, word)
    words.set(SIGNAL, 0)
    with filled(client) as cache:
        if come:
            client.plan(cache, rows=ROWS, keep_ratio=0.5, wait=words.at(WAIT, value))
            return
        said = ""
        for _ in range(20):  # the client's clock and the daemon's run out together: either may be the first to say so
            with pytest.raises(chunkkv.DeadlineExceeded) as caught:
                client.plan(cache, rows=ROWS, keep_ratio=0.5, wait=words.at(WAIT, value), signal=words.at(SIGNAL, 9),
                            timeout=0.1)
            assert (caught.value.code, caught.value.cache) == (Code.EXPIRED, chunkkv.CacheState.CLEAN)
            said = caught.value.detail
            if caught.value.field:
                assert caught.value.field == "compress.wait"
                break
        assert f"come to {value} before the deadline; it was {word}" in said
        deadline = time.monotonic() + 5
        while words.get(SIGNAL) != 9:  # it has ended, if not as it should
            assert time.monotonic() < deadline
            time.sleep(0.001)


def test_a_wait_can_be_cancelled(client: chunkkv.Client, words: Words) -> None:
    with filled(client) as cache:
        number = client.new_request_id()
        timer = later(lambda: client.cancel(number), 0.1)
        start = time.monotonic()
        with pytest.raises(chunkkv.Cancelled):
            client.plan(cache, rows=ROWS, keep_ratio=0.5, wait=words.at(WAIT, 1), signal=words.at(SIGNAL, 3),
                        request_id=number, timeout=30)
        assert time.monotonic() - start < 10
        assert words.get(SIGNAL) == 3
        timer.join()


def test_who_waits_holds_nobody_up(daemon: Daemon, client: chunkkv.Client, words: Words) -> None:
    with chunkkv.Client(daemon.prefix()) as other, filled(other) as theirs, filled(client) as cache:
        timer = later(lambda: words.set(WAIT, 1), 0.5)
        start = time.monotonic()
        waiting = threading.Thread(target=lambda: client.plan(cache, rows=ROWS, keep_ratio=0.5, wait=words.at(WAIT, 1)))
        waiting.start()
        other.plan(theirs, rows=ROWS, keep_ratio=0.5)
        assert time.monotonic() - start < 0.45
        waiting.join()
        timer.join()


def test_a_hold_ends_with_its_commit(client: chunkkv.Client, words: Words) -> None:
    with filled(client) as cache:
        answer = client.compress(cache, rows=ROWS, keep_ratio=0.5, hold=True, signal=words.at(SIGNAL, 12))
        assert words.get(SIGNAL) == 0
        answer.commit()
        assert words.get(SIGNAL) == 12
        words.set(SIGNAL, 0)
        client.compress(cache, rows=ROWS, keep_ratio=0.5, hold=True, signal=words.at(SIGNAL, 13)).cancel()
        assert words.get(SIGNAL) == 13


def test_words_in_the_wrong_place_are_refused(client: chunkkv.Client, words: Words) -> None:
    read_only = client.register_region(chunkkv.SharedMemory.allocate(4096, read_only=True))
    with filled(client) as cache:
        def refused(code: Code, field: str, **given: TimelineWord) -> None:
            with pytest.raises(chunkkv.ChunkkvError) as caught:
                client.plan(cache, rows=ROWS, keep_ratio=0.5, **given)
            assert (caught.value.code, caught.value.field) == (code, field)

        def word(offset: int, size: int = 8) -> TimelineWord:
            return TimelineWord(words.region.slice(offset, size), 1)

        refused(Code.INVALID_ARGUMENT, "compress.wait", wait=word(64, 4))
        refused(Code.INVALID_ARGUMENT, "compress.wait", wait=word(64, 16))
        refused(Code.INVALID_ARGUMENT, "compress.signal", signal=word(68))
        refused(Code.PERMISSION, "compress.signal", signal=TimelineWord(read_only.slice(0, 8), 1))
        refused(Code.INVALID_ARGUMENT, "compress.signal", wait=word(64), signal=word(64))
        refused(Code.INVALID_ARGUMENT, "compress.signal", signal=TimelineWord(cache.region.slice(0, 8), 1))
        with pytest.raises(chunkkv.InvalidArgument, match="timeline value"):
            client.plan(cache, rows=ROWS, keep_ratio=0.5, wait=TimelineWord(words.region.slice(0, 8), 1 << 64))
        client.plan(cache, rows=ROWS, keep_ratio=0.5, wait=TimelineWord(read_only.slice(0, 8), 0))
    client.unregister_region(read_only)


def test_a_word_may_be_given_up_by_its_deadline_while_the_device_is_busy(client: chunkkv.Client, words: Words,
                                                                         daemon: Daemon) -> None:
    with chunkkv.Client(daemon.prefix()) as other, long_to_score(other) as heavy, filled(client) as cache:
        busy = threading.Thread(target=lambda: other.plan(heavy, rows=LONG_ROWS, keep_ratio=0.5, timeout=60))
        busy.start()
        start = time.monotonic()
        with pytest.raises(chunkkv.DeadlineExceeded):
            client.plan(cache, rows=ROWS, keep_ratio=0.5, wait=words.at(WAIT, 1), timeout=0.2)
        assert time.monotonic() - start < 5
        busy.join()


def test_a_cache_is_closed_although_a_request_that_was_given_up_is_still_inside(client: chunkkv.Client,
                                                                               monkeypatch: pytest.MonkeyPatch) -> None:
    """The daemon lets go of a request a slice after its deadline, and until then the cache is in use."""
    tries: list[chunkkv.Cache] = []
    unregister = client.unregister_cache

    def late(cache: chunkkv.Cache) -> None:
        tries.append(cache)
        if len(tries) < 3:
            raise chunkkv.Busy("1 caches or requests still use it", code=Code.BUSY)
        unregister(cache)

    monkeypatch.setattr(client, "unregister_cache", late)
    with filled(client) as cache:
        pass
    assert tries == [cache] * 3
    with pytest.raises(chunkkv.ChunkkvError):
        client.plan(cache, rows=ROWS, keep_ratio=0.5)
