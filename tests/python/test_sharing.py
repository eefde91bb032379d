"""What users share, and what one of them may take of it: memory, descriptors, the device, the endpoint itself."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from multiprocessing.connection import Connection

import pytest

import chunkkv
from chunkkv.wire import Slot
from daemon import Daemon
from tenant import LONG_ROWS, ROWS, SLOWLY, Tenant, filled, long_to_score, seconds_until, used

MIB = 1 << 20
PIECE = 16 * MIB
GREEDY, VICTIM = 60001, 60002
only_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be two users")


def open_to_all(new_daemon: Callable[..., Daemon], *options: str) -> Daemon:
    daemon = new_daemon(options=("--socket-mode", "666", *options))
    daemon.directory.chmod(0o755)
    return daemon


def budget(client: chunkkv.Client, slot: Slot) -> tuple[int, int]:
    return next((b.used, b.limit) for b in client.status() if b.slot == slot)


# ---- memory


@pytest.mark.tries(10)
def test_same_memory_is_mapped_once(new_daemon: Callable[..., Daemon]) -> None:
    """Registered 10,000 times, unregistered once: one mapping, the count is right, gone with the last."""
    daemon = new_daemon()
    with chunkkv.Client(daemon.prefix()) as client:
        before, held = daemon.usage(), used(client)[Slot.MAPPED_BYTES]
        memory = chunkkv.SharedMemory.allocate(MIB)
        regions: list[chunkkv.Region] = []
        refused = 0
        for _ in range(10000):
            try:
                regions.append(client.register_region(memory))
            except chunkkv.ChunkkvError as error:
                assert error.code == chunkkv.Code.QUOTA
                assert error.slot == Slot.REGIONS
                refused += 1
        assert len(regions) == 4096
        assert refused == 10000 - 4096
        assert not regions[0].shared
        assert all(region.shared for region in regions[1:])
        assert len({region.id for region in regions}) == 4096
        assert daemon.usage().memfd_mappings == before.memfd_mappings + 1
        seconds_until(lambda: daemon.usage().descriptors <= before.descriptors + 1, 5.0)  # closed beside the loop
        assert used(client)[Slot.MAPPED_BYTES] == held + memory.size
        assert used(client)[Slot.FDS] == 0
        client.unregister_region(regions.pop(0))
        assert used(client)[Slot.REGIONS] == 4095
        assert daemon.usage().memfd_mappings == before.memfd_mappings + 1
        for region in regions:
            client.unregister_region(region)
        assert used(client)[Slot.REGIONS] == 0
        assert used(client)[Slot.MAPPED_BYTES] == held
        assert daemon.usage().memfd_mappings == before.memfd_mappings
    assert daemon.log().count("slot=REGIONS") == 1


def test_two_sessions_of_a_user_share(new_daemon: Callable[..., Daemon]) -> None:
    daemon = new_daemon()
    memory = chunkkv.SharedMemory.allocate(MIB)
    with chunkkv.Client(daemon.prefix()) as second:
        with chunkkv.Client(daemon.prefix()) as first:
            mappings = daemon.usage().memfd_mappings
            held = used(first)[Slot.MAPPED_BYTES]  # control pages
            assert not first.register_region(memory).shared
            region = second.register_region(memory)
            assert region.shared
            # another access or another stretch is a mapping of its own
            assert not second.register_region(memory, access=chunkkv.Access.READ).shared
            assert not second.register_region(memory, size=4096).shared
            assert daemon.usage().memfd_mappings == mappings + 3
            assert used(first)[Slot.MAPPED_BYTES] == held + 2 * memory.size + 4096
        end = time.monotonic() + 5
        while used(second)[Slot.SESSIONS] > 1 and time.monotonic() < end:
            time.sleep(0.01)
        # what it registered alone is gone with it, its control page too
        assert used(second)[Slot.MAPPED_BYTES] == held // 2 + 2 * memory.size + 4096
        second.unregister_region(region)
        assert used(second)[Slot.MAPPED_BYTES] == held // 2 + memory.size + 4096


def take_all(client: chunkkv.Client, pipe: Connection) -> None:
    """Registers until nothing more is given, and tries a hundred times more."""
    regions: list[chunkkv.Region] = []
    size, details = PIECE, ""
    while size >= 4096:
        try:
            regions.append(client.register_region(chunkkv.SharedMemory.allocate(size)))
        except chunkkv.ChunkkvError as error:
            assert error.code == chunkkv.Code.QUOTA, error
            assert error.slot == Slot.MAPPED_BYTES
            details = error.detail
            size //= 2
    for _ in range(100):
        try:
            client.register_region(chunkkv.SharedMemory.allocate(PIECE))
        except chunkkv.ChunkkvError as error:
            assert error.code == chunkkv.Code.QUOTA, error
    pipe.send((used(client)[Slot.MAPPED_BYTES], budget(client, Slot.MAPPED_BYTES)[1], details))
    signal.pause()


def live(client: chunkkv.Client, pipe: Connection) -> None:
    most = budget(client, Slot.MAPPED_BYTES)[1]
    with filled(client) as cache:
        pipe.send((most, client.plan(cache, rows=ROWS, keep_ratio=0.5, timeout=20).physical_len))
    while pipe.recv() == "again":
        with filled(client) as cache:
            pipe.send(client.compress(cache, rows=ROWS, keep_ratio=0.5, timeout=20).physical_len)


@only_root
def test_greedy_user_leaves_room(new_daemon: Callable[..., Daemon]) -> None:
    """One user takes all memory it can get; another registers and compresses all the same."""
    total = 512 * MIB  # half of so small a limit is the daemon's own
    daemon = open_to_all(new_daemon, "--memory-limit", "1G")
    with Tenant(daemon.prefix(), take_all, GREEDY) as greedy:
        held, most, details = greedy.hear()
        assert total - total // 8 - 8192 < held <= total - total // 8
        assert held <= most < held + 4096
        assert "what one user alone may have" in details
        with Tenant(daemon.prefix(), live, VICTIM) as victim:
            most, kept = victim.hear()
            assert most >= (total // 8) // 3
            assert kept == ROWS // 2
            victim.say("again")
            assert victim.hear() == ROWS // 2
            victim.say("end")
    lines = [line for line in daemon.log().splitlines() if "QUOTA_REACHED" in line]
    assert len(lines) == 1, lines
    assert f"uid={GREEDY} slot=MAPPED_BYTES" in lines[0]


@only_root
@pytest.mark.tries(7)
def test_memory_of_another_user_is_refused(new_daemon: Callable[..., Daemon]) -> None:
    daemon = open_to_all(new_daemon)
    memory = chunkkv.SharedMemory.allocate(MIB)

    def steal(client: chunkkv.Client, pipe: Connection) -> None:
        for _ in range(2):
            try:
                pipe.send(client.register_region(memory.fileno(), size=memory.size).id)
            except chunkkv.PermissionDenied as error:
                pipe.send(error.field)
            pipe.recv()

    with chunkkv.Client(daemon.prefix()) as client:
        region = client.register_region(memory)
        with Tenant(daemon.prefix(), steal, VICTIM) as thief:
            assert thief.hear() == "register_region.memfd_token"
            client.unregister_region(region)
            thief.say("again")
            assert isinstance(thief.hear(), int), "nobody holds it any more"
            with pytest.raises(chunkkv.PermissionDenied):
                client.register_region(memory)


# ---- the endpoint


@only_root
def test_only_listed_users_connect(new_daemon: Callable[..., Daemon]) -> None:
    daemon = open_to_all(new_daemon, "--endpoint", f"closed:uid=0,{VICTIM}-{VICTIM + 5}:gid=70000")
    closed = daemon.prefix("closed")

    def hello(client: chunkkv.Client, pipe: Connection) -> None:
        client.ping()
        pipe.send("in")

    for uid in (None, VICTIM, VICTIM + 5):
        with Tenant(closed, hello, uid) as listed:
            assert listed.hear() == "in"
    for uid in (VICTIM - 1, VICTIM - 1, VICTIM + 6):
        with Tenant(closed, hello, uid) as stranger, pytest.raises(AssertionError, match="failed"):
            stranger.hear(20)
        with Tenant(daemon.prefix(), hello, uid) as listed:
            assert listed.hear() == "in"
    lines = [line for line in daemon.log().splitlines() if " STRANGER " in line]
    assert len(lines) == 2, lines
    assert f"uid={VICTIM - 1} " in lines[0]
    assert f"uid={VICTIM + 6} " in lines[1]


# ---- the device


def test_device_time_delays_and_ends_nothing(new_daemon: Callable[..., Daemon]) -> None:
    """20 ms of each second: more is waited for, in the queue; what was asked for is done."""
    daemon = new_daemon(options=("--device-time", "20", *SLOWLY))
    with chunkkv.Client(daemon.prefix()) as client, filled(client) as cache, long_to_score(client) as long:
        assert budget(client, Slot.DEVICE_TIME)[1] == 20
        start, spent, n = time.monotonic(), 0.0, 0
        while spent < 0.06 or n < 3:
            result = client.plan(cache, rows=ROWS, keep_ratio=0.5, timeout=60)
            assert result.physical_len == ROWS // 2
            last = (result.timing.score_us + result.timing.select_us) / 1e6
            spent, n = spent + last, n + 1
        assert budget(client, Slot.DEVICE_TIME)[0] > 0
        elapsed = time.monotonic() - start
        print(f"{n} plans, {spent * 1000:.0f} ms of the device in {elapsed:.2f} s")
        assert elapsed > (spent - last - 0.020) / 0.020 * 0.8
        # a deadline is kept while waiting
        rows = 256
        while budget(client, Slot.DEVICE_TIME)[0] < 30:  # a request of its own must take that long, on any machine
            rows *= 2
            assert rows <= LONG_ROWS
            client.plan(long, rows=rows, keep_ratio=0.5, timeout=60)
        with pytest.raises(chunkkv.DeadlineExceeded):
            client.plan(cache, rows=ROWS, keep_ratio=0.5, timeout=0.05)
        time.sleep(0.2)  # the last one leaves the queue


def test_device_time_is_told_without_a_limit(client: chunkkv.Client) -> None:
    """Time makes good what was taken as fast as it was taken: what is over within a millisecond leaves no trace."""
    with filled(client) as cache:
        client.plan(cache, rows=ROWS, keep_ratio=0.5, policy=chunkkv.Policy(scorer="drop"), timeout=120)
        taken, limit = budget(client, Slot.DEVICE_TIME)
        assert limit == 1000
        assert taken > 0
