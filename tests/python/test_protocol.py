"""Sessions, repeats, deadlines, deaths: the protocol as a client lives it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import chunkkv
from chunkkv import CacheState, Code, Phase
from chunkkv._pb import chunkkv_pb2 as pb
from chunkkv.side import SideRecord, SideType
from daemon import Daemon
from raw import NANO, RawSession

ROWS = 200


def prepared(client: chunkkv.Client, rows: int = ROWS, layers: int = 1) -> chunkkv.SharedCache:
    cache = chunkkv.SharedCache.allocate(client, layers=layers, tokens=rows, kv_heads=2, q_heads=4, head_dim=32,
                                         dtype="f32", window=32)
    rng = np.random.default_rng(11)
    for layer in range(layers):
        cache.write(layer, key=rng.normal(size=(rows, 2, 32)), value=rng.normal(size=(rows, 2, 32)),
                    query=rng.normal(size=(32, 4, 32)))
    return cache


@pytest.fixture
def cache(client: chunkkv.Client) -> Iterator[chunkkv.SharedCache]:
    with prepared(client) as made:
        yield made


@pytest.fixture
def raw(client: chunkkv.Client) -> Iterator[RawSession]:
    with RawSession(client) as made:
        yield made


def body_of(cache: chunkkv.SharedCache, mode: int = pb.MODE_IN_PLACE, keep: float = 0.5) -> pb.Compress:
    job = chunkkv.GroupJob(rows=cache.tokens, table=cache.default_table(cache.tokens), keep_ratio=keep)
    return pb.Compress(cache_id=cache.id, mode=mode, logical_len=cache.tokens,  # type: ignore[arg-type]
                       groups=[job.to_message("g")], queries=cache.default_queries().to_message())


# ---- sessions

def test_welcome_says_what_is_served(client: chunkkv.Client) -> None:
    session = client.session
    assert (len(session.boot_id), len(session.token), session.minor) == (16, 16, 0)
    assert "memfd" in session.capabilities
    assert session.limits.request_bytes >= 65536
    assert session.limits.rows >= 65536
    assert session.daemon.startswith("chunkkvd")
    assert session.clock_offset_ns == 0


def test_ping_and_status(client: chunkkv.Client, cache: chunkkv.SharedCache) -> None:
    pong = client.ping()
    assert abs(pong.now_ns - time.monotonic_ns()) < NANO
    assert not pong.draining
    budgets = {budget.slot.name: budget for budget in client.status()}
    assert budgets["SESSIONS"].used >= 1
    assert budgets["REGIONS"].used == 1
    page = client._connection.page
    assert page is not None
    assert budgets["MAPPED_BYTES"].used == cache.memory.size + page.memory.size
    assert budgets["FDS"].used == 0
    assert all(budget.used <= budget.limit for budget in budgets.values())


def test_hello_needs_that_are_lacking_are_refused(daemon: Daemon) -> None:
    with pytest.raises(chunkkv.Unsupported) as caught:
        chunkkv.Client(daemon.prefix(), needs=["memfd", "cuda_ipc"])
    assert caught.value.field == "hello.needs[1]"


def test_session_without_side_connection(daemon: Daemon) -> None:
    with chunkkv.Client(daemon.prefix(), needs_side=False) as client:
        client.ping()
        with chunkkv.SharedMemory.allocate(4096) as memory, pytest.raises(chunkkv.Unsupported, match="side"):
            client.register_region(memory)


def test_two_clients_have_two_sessions(daemon: Daemon, client: chunkkv.Client) -> None:
    with chunkkv.Client(daemon.prefix()) as second:
        assert second.session.token != client.session.token
        assert second.session.boot_id == client.session.boot_id
        with prepared(client) as one, prepared(second) as two:
            a = client.compress(one, rows=ROWS, keep_ratio=0.3)
            b = second.compress(two, rows=ROWS, keep_ratio=0.3)
        assert a.layers[0].kept == b.layers[0].kept
        client.ping()
    client.ping()


@pytest.mark.tries(28)
def test_ids_of_another_session_mean_nothing(daemon: Daemon, client: chunkkv.Client, raw: RawSession) -> None:
    with chunkkv.Client(daemon.prefix()) as second, prepared(second) as theirs:
        assert raw.ask(raw.request(compress=body_of(theirs))).status.code == pb.CODE_NOT_FOUND
        with pytest.raises(chunkkv.SessionLost, match="earlier session"):
            client.plan(theirs, rows=ROWS, keep_ratio=0.5)


def test_hello_again_with_the_same_attach_token_is_the_same_session(client: chunkkv.Client, raw: RawSession,
                                                                    cache: chunkkv.SharedCache) -> None:
    side = client._connection.side
    assert side is not None
    hello = pb.Hello(client="again", now_ns=time.monotonic_ns(), attach_token=side.attach_token)
    welcome = raw.ask(pb.Request(request_id=77_777, hello=hello))
    assert welcome.welcome.session_token == client.session.token, str(welcome)
    assert client.plan(cache, rows=ROWS, keep_ratio=0.5).physical_len == ROWS // 2


def test_hello_with_a_foreign_attach_token_is_refused(raw: RawSession) -> None:
    response = raw.ask(pb.Request(request_id=1, hello=pb.Hello(client="x", attach_token=b"?" * 16)))
    assert response.status.code in (pb.CODE_NOT_FOUND, pb.CODE_PERMISSION)
    assert response.status.field == "hello.attach_token"


def test_no_common_version_is_refused(raw: RawSession) -> None:
    response = raw.ask(pb.Request(request_id=1, hello=pb.Hello(minor_min=900, minor_max=901, client="x")))
    assert (response.status.code, response.status.field) == (pb.CODE_UNSUPPORTED_VERSION, "hello.minor_min")


def test_end_session(daemon: Daemon) -> None:
    before = daemon.usage()
    client = chunkkv.Client(daemon.prefix())
    with RawSession(client) as raw:
        cache = prepared(client)
        assert daemon.usage().memfd_mappings == before.memfd_mappings + 1
        assert raw.ask(raw.request(end_session=pb.EndSession())).status.code == pb.CODE_OK
        assert daemon.usage().memfd_mappings == before.memfd_mappings, "OK, but still mapped"
        with pytest.raises(chunkkv.SessionUnknown):
            client.ping()
        client.reconnect()  # which registers it again
        assert daemon.usage().memfd_mappings == before.memfd_mappings + 1
        assert client.plan(cache, rows=ROWS, keep_ratio=0.5).physical_len == ROWS // 2
        cache.close()
    client.close()


def test_closing_the_side_socket_ends_the_session(daemon: Daemon, client: chunkkv.Client) -> None:
    before = daemon.usage()
    other = chunkkv.Client(daemon.prefix())
    prepared(other)
    assert daemon.usage().memfd_mappings == before.memfd_mappings + 1
    other._connection.close()
    end = time.monotonic() + 1.0
    while daemon.usage().memfd_mappings != before.memfd_mappings:
        assert time.monotonic() < end, "memory of a session that is gone is still mapped after 1 s"
        time.sleep(0.005)
    client.ping()


ENGINE = """
import sys, chunkkv
client = chunkkv.Client(sys.argv[1])
cache = chunkkv.SharedCache.allocate(client, layers=1, tokens=4096, kv_heads=2, q_heads=4, head_dim=32, window=32)
print("ready", flush=True)
import time
end = time.monotonic() + 20
while time.monotonic() < end:
    client.plan(cache, rows=4096, keep_ratio=0.5, timeout=10)
"""


@pytest.mark.parametrize("delay", [0.0, 0.05, 0.21])
@pytest.mark.tries(12)
def test_killed_engine_is_unmapped_within_a_second(daemon: Daemon, client: chunkkv.Client, delay: float) -> None:
    before = daemon.usage()
    source = str(Path(chunkkv.__file__).parents[1])
    with subprocess.Popen([sys.executable, "-c", ENGINE, daemon.prefix()], stdout=subprocess.PIPE,
                          env={**os.environ, "PYTHONPATH": source}) as engine:
        assert engine.stdout is not None
        assert engine.stdout.readline() == b"ready\n"
        assert daemon.usage().memfd_mappings == before.memfd_mappings + 1
        time.sleep(delay)
        engine.send_signal(signal.SIGKILL)
        engine.wait(5)
    end = time.monotonic() + 1.0
    while daemon.usage().memfd_mappings != before.memfd_mappings:
        assert time.monotonic() < end, "memory of a dead engine is still mapped after 1 s"
        time.sleep(0.005)
    client.ping()


# ---- repeats

@pytest.mark.parametrize("mode", [pb.MODE_PLAN, pb.MODE_IN_PLACE], ids=["plan", "in place"])
def test_repeat_gets_the_stored_answer(raw: RawSession, cache: chunkkv.SharedCache, mode: int) -> None:
    request = raw.request(compress=body_of(cache, mode))
    first = raw.ask(request)
    assert first.status.code == pb.CODE_OK, str(first)
    assert not first.repeated_answer
    after = cache.memory.numpy(cache.memory.size, np.uint8).copy()
    again = raw.ask(request)
    assert again.repeated_answer
    again.repeated_answer = False
    assert again == first
    assert np.array_equal(after, cache.memory.numpy(cache.memory.size, np.uint8)), "executed twice"


def test_repeat_after_its_deadline_still_gets_the_answer(raw: RawSession, cache: chunkkv.SharedCache) -> None:
    request = raw.request(0.3, compress=body_of(cache))
    first = raw.ask(request)
    assert first.status.code == pb.CODE_OK
    time.sleep(0.35)
    assert raw.ask(request).compressed == first.compressed


def test_same_id_with_another_body_is_a_conflict(raw: RawSession, cache: chunkkv.SharedCache) -> None:
    request = raw.request(compress=body_of(cache, pb.MODE_PLAN))
    assert raw.ask(request).status.code == pb.CODE_OK
    request.compress.groups[0].keep_ratio += 1
    response = raw.ask(request)
    assert (response.status.code, response.status.field) == (pb.CODE_CONFLICT, "request_id")


def test_old_id_is_a_conflict(client: chunkkv.Client, raw: RawSession, cache: chunkkv.SharedCache) -> None:
    request = raw.request(compress=body_of(cache, pb.MODE_PLAN))
    assert raw.ask(request).status.code == pb.CODE_OK
    far = raw.request(compress=body_of(cache, pb.MODE_PLAN))
    far.request_id = request.request_id + 100_000
    assert raw.ask(far).status.code == pb.CODE_OK
    assert raw.ask(request).status.code == pb.CODE_CONFLICT
    client.reconnect()  # its own ids are too old now, too


def test_answer_to_an_error_can_be_repeated_too(raw: RawSession, cache: chunkkv.SharedCache) -> None:
    body = body_of(cache)
    body.cache_id = 999
    request = raw.request(compress=body)
    assert raw.ask(request).status.code == raw.ask(request).status.code == pb.CODE_NOT_FOUND


def test_generation_comes_back_untouched(client: chunkkv.Client, cache: chunkkv.SharedCache) -> None:
    assert client.plan(cache, rows=ROWS, keep_ratio=0.5, generation=2**64 - 3).generation == 2**64 - 3


def test_outcome_of_a_finished_request(client: chunkkv.Client, cache: chunkkv.SharedCache) -> None:
    answer = client.compress(cache, rows=ROWS, keep_ratio=0.5)
    outcome = client.outcome(answer.request_id)
    assert (outcome.phase, outcome.code, outcome.cache) == (Phase.DONE, Code.OK, CacheState.COMMITTED)
    late = client.cancel(answer.request_id)
    assert (late.phase, late.cache) == (Phase.DONE, CacheState.COMMITTED)
    for unknown in (client.outcome, client.cancel):
        with pytest.raises(chunkkv.NotFound):
            unknown(answer.request_id + 100)


# ---- deadlines and cancel

@pytest.mark.tries(14)
def test_passed_deadline_is_never_executed(raw: RawSession, cache: chunkkv.SharedCache) -> None:
    before = cache.memory.numpy(cache.memory.size, np.uint8).copy()
    request = raw.request(compress=body_of(cache))
    request.deadline_ns = time.monotonic_ns() - 1
    response = raw.ask(request)
    assert (response.status.code, response.status.cache) == (pb.CODE_EXPIRED, pb.CACHE_CLEAN)
    assert np.array_equal(before, cache.memory.numpy(cache.memory.size, np.uint8))


def test_tight_deadline_tells_the_truth_about_the_cache(client: chunkkv.Client) -> None:
    """Whatever comes of it, `cache` says what the bytes say."""
    rows = 16_384
    seen = set()
    with prepared(client, rows, layers=2) as cache:
        pristine = cache.memory.numpy(cache.memory.size, np.uint8).copy()
        for microseconds in (200, 1000, 3000, 8000, 20_000, 60_000):
            cache.memory.numpy(cache.memory.size, np.uint8)[...] = pristine
            state = CacheState.COMMITTED
            try:
                client.compress(cache, rows=rows, keep_ratio=0.5, timeout=microseconds / 1e6)
            except chunkkv.DeadlineExceeded as error:
                state = error.cache
            changed = not np.array_equal(pristine, cache.memory.numpy(cache.memory.size, np.uint8))
            assert state in (CacheState.CLEAN, CacheState.COMMITTED)
            assert changed == (state == CacheState.COMMITTED)
            seen.add(state)
            time.sleep(0.05)
            assert changed == (not np.array_equal(pristine, cache.memory.numpy(cache.memory.size, np.uint8)))
    assert CacheState.CLEAN in seen


@pytest.mark.tries(15)
def test_cancel_wins_or_loses_but_never_both(client: chunkkv.Client) -> None:
    rows = 16_384
    with prepared(client, rows, layers=2) as cache:
        pristine = cache.memory.numpy(cache.memory.size, np.uint8).copy()
        results = []
        for delay in (0.0, 0.0, 0.002, 0.005, 0.01, 0.02):
            cache.memory.numpy(cache.memory.size, np.uint8)[...] = pristine
            request_id = client.new_request_id()
            outcome: list[CacheState] = []

            def work(request_id: int = request_id, outcome: list[CacheState] = outcome) -> None:
                try:
                    outcome.append(client.compress(cache, rows=rows, keep_ratio=0.5, timeout=20,
                                                   request_id=request_id).cache)
                except chunkkv.Cancelled as error:
                    outcome.append(error.cache)

            worker = threading.Thread(target=work)
            worker.start()
            time.sleep(delay)
            told: chunkkv.Outcome | None = None
            while told is None and worker.is_alive():
                try:
                    told = client.cancel(request_id)
                except chunkkv.NotFound:
                    pass  # not there yet
            worker.join()
            changed = not np.array_equal(pristine, cache.memory.numpy(cache.memory.size, np.uint8))
            assert outcome == [CacheState.COMMITTED if changed else CacheState.CLEAN]
            if told is not None and told.phase == Phase.CANCELLED:
                assert not changed
            results.append(outcome[0])
        assert CacheState.CLEAN in results, "no cancel ever won"


@pytest.mark.tries(15)
def test_cancel_that_overtakes_its_request(raw: RawSession, client: chunkkv.Client, cache: chunkkv.SharedCache) -> None:
    """They come over two connections: the order of arrival is anyone's guess, and what was promised holds."""
    page = client._link.page
    assert page is not None
    before = cache.memory.numpy(cache.memory.size, np.uint8).copy()
    ticket = page.take()
    assert ticket is not None
    request = raw.request(compress=body_of(cache))
    request.compress.control_slot, request.compress.control_use = ticket.number, ticket.use
    told = raw.ask(raw.request(cancel=pb.Cancel(target_request_id=request.request_id))).outcome
    assert (told.phase, told.code, told.cache) == (pb.PHASE_CANCELLED, pb.CODE_CANCELLED, pb.CACHE_CLEAN)
    for _ in range(2):
        answer = raw.ask(request)
        assert (answer.status.code, answer.status.cache) == (pb.CODE_CANCELLED, pb.CACHE_CLEAN)
    assert page.has_ended(ticket), "its slot waits for ever"
    assert np.array_equal(before, cache.memory.numpy(cache.memory.size, np.uint8))
    page.give_back(ticket, answered=True)
    assert client.compress(cache, rows=ROWS, keep_ratio=0.5).cache == CacheState.COMMITTED


def test_cancelled_request_stays_cancelled(raw: RawSession, client: chunkkv.Client) -> None:
    with prepared(client, 16_384, layers=2) as cache:
        request = raw.request(20, compress=body_of(cache))
        raw.send(request.SerializeToString(deterministic=True))
        cancel = raw.request(cancel=pb.Cancel(target_request_id=request.request_id))
        raw.send(cancel.SerializeToString(deterministic=True))
        answers = {a.request_id: a for a in (raw.receive(), raw.receive()) if a is not None}
        told, made = answers[cancel.request_id], answers[request.request_id]
        assert told.outcome.target_request_id == request.request_id
        if made.status.code == pb.CODE_CANCELLED:
            assert made.status.cache == pb.CACHE_CLEAN
            assert raw.ask(request).status.code == pb.CODE_CANCELLED


# ---- the core dies

def test_restart_is_noticed(new_daemon: Callable[..., Daemon]) -> None:
    daemon = new_daemon()
    client = chunkkv.Client(daemon.prefix())
    cache = prepared(client)
    first = client.session
    forgotten = client.register_region(chunkkv.SharedMemory.allocate(4096))
    forgotten.memory.close()
    daemon.restart()
    # nothing was under way: the next call goes to the new daemon, with all that still exists
    assert client.compress(cache, rows=ROWS, keep_ratio=0.5).physical_len == ROWS // 2
    assert client.session.boot_id != first.boot_id
    with pytest.raises(chunkkv.SessionLost, match="earlier session"):
        client.unregister_region(forgotten)
    assert client.compress(cache, rows=ROWS, keep_ratio=0.5).physical_len == ROWS // 2
    client.close()


@pytest.mark.tries(14)
def test_stale_boot_is_answered_and_never_executed(new_daemon: Callable[..., Daemon]) -> None:
    """A request written for the daemon that died reaches the new one."""
    daemon = new_daemon()
    client = chunkkv.Client(daemon.prefix(), needs_side=False)
    old = client.session
    daemon.restart()
    with chunkkv.Client(daemon.prefix()) as fresh, prepared(fresh) as cache, RawSession(fresh) as raw:
        before = cache.memory.numpy(cache.memory.size, np.uint8).copy()
        request = raw.request(compress=body_of(cache))
        request.boot_id, request.session_token = old.boot_id, old.token
        response = raw.ask(request)
        assert response.status.code == pb.CODE_STALE_BOOT
        assert response.boot_id == fresh.session.boot_id
        assert np.array_equal(before, cache.memory.numpy(cache.memory.size, np.uint8))
    with pytest.raises(chunkkv.StaleBoot):
        client.ping()
    client.reconnect()
    client.ping()
    client.close()


@pytest.mark.parametrize(("mode", "slots", "state"), [
    ("plan", 0, CacheState.CLEAN), ("compress", 0, CacheState.TORN), ("copy_out", 0, CacheState.CLEAN),
    ("compress", 1, CacheState.CLEAN)])
@pytest.mark.tries(13)
def test_core_killed_under_a_waiting_client(new_daemon: Callable[..., Daemon], mode: str, slots: int,
                                            state: CacheState) -> None:
    """The pidfd tells at once.

    An unanswered in-place request leaves the cache torn, a plan or a copy clean; and a control slot says that the core
    had not begun.
    """
    daemon = new_daemon()
    client = chunkkv.Client(daemon.prefix(), control_slots=slots)
    cache = prepared(client)
    request = {"rows": ROWS, "keep_ratio": 0.5, "timeout": 60.0}
    if mode == "copy_out":
        request["destination"] = [1]
    caught: list[chunkkv.ChunkkvError] = []

    def work() -> None:
        try:
            getattr(client, mode)(cache, **request)
        except chunkkv.ChunkkvError as error:
            caught.append(error)

    os.kill(daemon.pid, signal.SIGSTOP)  # so that the request is sent and stays unanswered
    worker = threading.Thread(target=work)
    worker.start()
    time.sleep(0.3)
    daemon.kill()
    start = time.monotonic()
    worker.join(10)
    assert not worker.is_alive()
    assert time.monotonic() - start < 2.0
    assert isinstance(caught[0], chunkkv.CoreDied)
    assert caught[0].cache == state
    daemon.start()
    client.reconnect()
    client.ping()
    client.close()


# ---- side socket

def side_answer(daemon: Daemon, data: bytes) -> bytes:
    """What comes back for one message on a fresh side connection; b"" when it is closed."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.settimeout(5)
        sock.connect(daemon.prefix() + ".fd")
        sock.send(data)
        try:
            return sock.recv(200)
        except ConnectionResetError:
            return b""


@pytest.mark.parametrize(("name", "data"), [
    ("short", b"x"), ("95 bytes", SideRecord(SideType.ATTACH).pack()[:-1]),
    ("97 bytes", SideRecord(SideType.ATTACH).pack() + b"\0"), ("wrong magic", b"X" * 96),
    ("nonzero where zero must be", SideRecord(SideType.ATTACH, flags=1).pack()),
    ("unknown type", SideRecord(99).pack()), ("offer before attach", SideRecord(SideType.OFFER, kind=1, size=1).pack()),
], ids=lambda value: value if isinstance(value, str) else "")
def test_side_breach_closes_the_connection(daemon: Daemon, client: chunkkv.Client, name: str, data: bytes) -> None:
    answer = side_answer(daemon, data)
    if answer:
        assert SideRecord.unpack(answer).code != 0
    client.ping()


def test_side_two_descriptors_close_the_connection(daemon: Daemon, client: chunkkv.Client) -> None:
    before = daemon.usage().descriptors
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock, chunkkv.SharedMemory.allocate(4096) as memory:
        sock.settimeout(5)
        sock.connect(daemon.prefix() + ".fd")
        sock.send(SideRecord(SideType.ATTACH).pack())
        received, fds, _, _ = socket.recv_fds(sock, 96, 4)
        for fd in fds:
            os.close(fd)
        assert SideRecord.unpack(received).type == SideType.ATTACHED
        socket.send_fds(sock, [SideRecord(SideType.OFFER, kind=1, size=4096).pack()], [memory.fileno()] * 2)
        try:
            assert sock.recv(200) == b""
        except ConnectionResetError:
            pass
    end = time.monotonic() + 2
    while daemon.usage().descriptors > before and time.monotonic() < end:
        time.sleep(0.01)
    assert daemon.usage().descriptors <= before
    client.ping()


@pytest.mark.tries(7)
def test_offer_is_good_once_and_can_be_withdrawn(client: chunkkv.Client, raw: RawSession) -> None:
    side = client._connection.side
    assert side is not None
    with chunkkv.SharedMemory.allocate(4096) as memory:
        def register(token: bytes) -> int:
            body = pb.RegisterRegion(memfd_token=token, size=4096, access=pb.ACCESS_READ_WRITE)
            return int(raw.ask(raw.request(register_region=body)).status.code)

        token = side.offer(memory.fileno(), 4096)
        assert register(token) == Code.OK
        assert register(token) == Code.NOT_FOUND
        withdrawn = side.offer(memory.fileno(), 4096)
        side.withdraw(withdrawn)
        assert register(withdrawn) == Code.NOT_FOUND


@pytest.mark.tries(10)
def test_same_memory_registered_often_is_let_go_whole(daemon: Daemon, client: chunkkv.Client) -> None:
    before = daemon.usage()
    with chunkkv.SharedMemory.allocate(4096) as memory:
        regions = [client.register_region(memory) for _ in range(20)]
        mapped = sum(not region.shared for region in regions)
        assert daemon.usage().memfd_mappings == before.memfd_mappings + mapped
        for region in regions:
            client.unregister_region(region)
        with pytest.raises(chunkkv.NotFound):
            client.unregister_region(regions[0])
    assert daemon.usage().memfd_mappings == before.memfd_mappings


# ---- tables and several jobs

def test_table_in_a_region_gives_the_same_answer_as_inline(client: chunkkv.Client) -> None:
    with chunkkv.SharedMemory.allocate(1 << 20) as memory:
        rng = np.random.default_rng(2)
        keys = memory.numpy((16, 2, 16, 2, 32), "f32")
        keys[...] = rng.normal(size=keys.shape)
        queries = memory.numpy((1, 32, 4, 32), "f32", keys.nbytes)
        queries[...] = rng.normal(size=queries.shape)
        words = memory.numpy(16, np.uint32, keys.nbytes + queries.nbytes)
        words[...] = rng.permutation(16)
        region = client.register_region(memory)
        cache = client.register_cache(chunkkv.CacheLayout.of_arrays([keys], axes="b2thd", q_heads=4, region=region))
        request = {"rows": 250, "keep_ratio": 0.4, "queries": chunkkv.Queries.of_array(queries, region=region)}
        inline = client.plan(cache, table=words, **request)
        there = client.plan(cache, table=region.slice(keys.nbytes + queries.nbytes, 64), **request)
        assert there.layers[0].kept == inline.layers[0].kept
        assert inline.groups[0].table_used == -(-inline.physical_len // 16)
        assert there.groups[0].kept_digest == inline.groups[0].kept_digest
        client.unregister_cache(cache)
        client.unregister_region(region)


def test_many_clients_at_once(daemon: Daemon) -> None:
    errors: list[BaseException] = []

    def work() -> None:
        try:
            with chunkkv.Client(daemon.prefix()) as client, prepared(client) as cache:
                for _ in range(10):
                    client.plan(cache, rows=ROWS, keep_ratio=0.5, timeout=20)
        except BaseException as error:
            errors.append(error)

    workers = [threading.Thread(target=work) for _ in range(6)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert errors == []
