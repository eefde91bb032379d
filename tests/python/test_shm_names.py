"""POSIX shm names: off by default; where allowed, bytes are copied and no name of anybody else is opened."""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pytest

import chunkkv
from chunkkv import Code
from chunkkv._pb import chunkkv_pb2 as pb
from chunkkv.wire import CacheState, Mode, Slot
from daemon import Daemon
from tenant import Tenant, every_other, is_sanitized, seconds_until, used

SHM = Path("/dev/shm")
ROWS, HEADS, QUERY_HEADS, DIM, WINDOW, BLOCK, LAYERS = 1003, 2, 4, 32, 16, 16, 2
BLOCKS = -(-ROWS // BLOCK) + 3
OTHER = 60001
only_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be two users")


@pytest.fixture(scope="module")
def allowing() -> Iterator[Daemon]:
    daemon = Daemon(options=("--posix-shm", "on", "--socket-mode", "666"))
    daemon.directory.chmod(0o755)
    yield daemon
    daemon.stop()


@pytest.fixture
def client(allowing: Daemon) -> Iterator[chunkkv.Client]:
    before = allowing.usage()
    with chunkkv.Client(allowing.prefix()) as connected:
        yield connected
    seconds_until(lambda: allowing.usage().descriptors <= before.descriptors
                  and (is_sanitized(allowing) or allowing.usage().mappings <= before.mappings + 2), 10)


class Pool:
    """Planes of a paged cache with everything in one memory, filled by a seed."""

    def __init__(self, memory: chunkkv.SharedMemory, axes: str, seed: int = 5) -> None:
        sizes = {"b": BLOCKS, "t": BLOCK, "h": HEADS, "d": DIM}
        shape = tuple(sizes[axis] for axis in axes)
        self.memory, self.axes = memory, axes
        self.bytes = memory.numpy(memory.size, np.uint8)
        rng = np.random.default_rng(seed)
        self.bytes[...] = rng.integers(0, 256, memory.size, np.uint8)
        plane = int(np.prod(shape)) * 4
        self.planes = [memory.numpy(shape, "f32", i * plane) for i in range(2 * LAYERS)]
        self.queries = memory.numpy((LAYERS, WINDOW, QUERY_HEADS, DIM), "f32", 2 * LAYERS * plane)
        for array in [*self.planes, self.queries]:
            array[...] = rng.normal(size=array.shape)
        self.words_at = 2 * LAYERS * plane + self.queries.nbytes
        self.table = rng.permutation(BLOCKS)[: -(-ROWS // BLOCK)].astype("<u4")
        self.spare = np.setdiff1d(np.arange(BLOCKS), self.table)
        memory.numpy(len(self.table), np.uint32, self.words_at)[...] = self.table

    @staticmethod
    def size() -> int:
        return (2 * LAYERS * BLOCKS * BLOCK * HEADS * DIM + LAYERS * WINDOW * QUERY_HEADS * DIM + BLOCKS) * 4

    def register(self, client: chunkkv.Client) -> tuple[chunkkv.Region, chunkkv.Cache]:
        region = client.register_region(self.memory)
        layout = chunkkv.CacheLayout.of_arrays(self.planes[:LAYERS], self.planes[LAYERS:], axes=self.axes,
                                               q_heads=QUERY_HEADS, region=region)
        return region, client.register_cache(layout)

    def ask(self, region: chunkkv.Region, **more: object) -> dict[str, object]:
        request: dict[str, object] = {
            "rows": ROWS, "keep_ratio": 0.4, "timeout": 20, "table": self.table,
            "queries": chunkkv.Queries.of_array(self.queries, region=region),
            "policy": chunkkv.Policy(window=WINDOW, chunk=7),
        }
        return request | more


def named() -> chunkkv.SharedMemory:
    return chunkkv.SharedMemory.named(Pool.size())


def refused(client: chunkkv.Client, name: str, size: int = 4096,
            access: pb.Access = pb.ACCESS_READ_WRITE) -> chunkkv.ChunkkvError:
    with pytest.raises(chunkkv.ChunkkvError) as caught:
        client.call(pb.Request(register_region=pb.RegisterRegion(posix_shm=name, size=size, access=access)), timeout=10)
    assert caught.value.field.startswith("register_region"), caught.value
    assert caught.value.detail
    client.ping()
    return caught.value


@contextlib.contextmanager
def file(uid: int | None = None, mode: int = 0o600, size: int = 4096, full: bool = True) -> Iterator[Path]:
    """Of a good name, made by hand."""
    path = SHM / f"chunkkv-{os.geteuid()}-{secrets.token_hex(16)}"
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.ftruncate(fd, size)
        if full:
            os.posix_fallocate(fd, 0, size)
        os.fchmod(fd, mode)
        if uid is not None:
            os.fchown(fd, uid, uid)
        yield path
    finally:
        os.close(fd)
        path.unlink()


# ---- the same as through a memfd


@pytest.mark.parametrize("axes", ["bthd", "bhtd", "hbtd", "bhdt"])
@pytest.mark.parametrize("mode", [Mode.PLAN, Mode.IN_PLACE])
def test_every_byte_is_as_through_a_memfd(client: chunkkv.Client, axes: str, mode: Mode) -> None:
    with named() as copied, chunkkv.SharedMemory.allocate(Pool.size()) as mapped:
        pools = [Pool(copied, axes), Pool(mapped, axes)]
        results = []
        for pool in pools:
            region, cache = pool.register(client)
            act = client.plan if mode == Mode.PLAN else client.compress
            results.append(act(cache, **pool.ask(region)))
            client.unregister_cache(cache)
            client.unregister_region(region)
        assert results[0].layers == results[1].layers
        assert results[0].groups[0].kept_digest == results[1].groups[0].kept_digest
        assert np.array_equal(pools[0].bytes, pools[1].bytes)


def test_copy_out_and_tables_in_memory(client: chunkkv.Client) -> None:
    with named() as copied, chunkkv.SharedMemory.allocate(Pool.size()) as mapped:
        pools = [Pool(copied, "bthd"), Pool(mapped, "bthd")]
        kept = []
        for pool in pools:
            region, cache = pool.register(client)
            table = region.slice(pool.words_at, 4 * len(pool.table))
            result = client.copy_out(cache, destination=pool.spare, **pool.ask(region, table=table, keep_ratio=0.03))
            kept.append(result.layers)
        assert kept[0] == kept[1]
        assert np.array_equal(pools[0].bytes, pools[1].bytes)


def test_tables_of_slots(client: chunkkv.Client) -> None:
    with named() as copied, chunkkv.SharedMemory.allocate(Pool.size()) as mapped:
        pools = [Pool(copied, "bhtd"), Pool(mapped, "bhtd")]
        # runs of slots within and across blocks, and single ones
        rng = np.random.default_rng(4)
        runs = np.array_split(np.arange(BLOCKS * BLOCK), 150)
        slots = np.concatenate([runs[i] for i in rng.permutation(150)])[:ROWS]
        for pool in pools:
            region, cache = pool.register(client)
            client.compress(cache, **pool.ask(region, table=chunkkv.Table(slots, form="tokens")))
        assert np.array_equal(pools[0].bytes, pools[1].bytes)


def test_bytes_beside_the_rows_are_never_written(client: chunkkv.Client) -> None:
    """The engine writes other blocks while ours are moved: none of it is undone."""
    with named() as memory:
        pool = Pool(memory, "bthd")
        region, cache = pool.register(client)
        stop, counts = threading.Event(), 0

        def write() -> None:
            value = 0
            while not stop.is_set():
                value += 1
                for plane in pool.planes:
                    plane[pool.spare] = value
                    if not (plane[pool.spare] == value).all():
                        failures.append(value)

        failures: list[int] = []
        writer = threading.Thread(target=write)
        writer.start()
        end = time.monotonic() + 2
        while time.monotonic() < end:
            client.compress(cache, **pool.ask(region))
            counts += 1
        stop.set()
        writer.join()
        assert counts > 3
        assert not failures


def test_request_with_a_control_slot_says_that_nothing_can_be_repaired(allowing: Daemon) -> None:
    with chunkkv.Client(allowing.prefix(), control_slots=2) as client, named() as memory:
        pool = Pool(memory, "bthd")
        region, cache = pool.register(client)
        client.compress(cache, **pool.ask(region))
        page = client._connection.page
        assert page is not None
        assert page.read(1).steps == 0
        body = pb.Compress(cache_id=cache.id, mode=pb.MODE_IN_PLACE, logical_len=ROWS, groups=[
            chunkkv.GroupJob(rows=ROWS, table=pool.table, keep=every_other(960)).to_message("g")])
        with pytest.raises(chunkkv.ChunkkvError) as caught:
            client.call(pb.Request(repair=pb.Repair(target_request_id=1, control_slot=1, job=body)), timeout=10)
        assert (caught.value.code, caught.value.field) == (Code.UNSUPPORTED, "repair.job")


def test_memory_is_charged_and_given_back(client: chunkkv.Client) -> None:
    before = used(client)
    with named() as memory:
        region = client.register_region(memory)
        assert used(client)[Slot.MAPPED_BYTES] == before[Slot.MAPPED_BYTES] + 2 * memory.size
        assert client.register_region(memory).shared
        client.unregister_region(region)
    assert memory.name is not None
    assert not (SHM / memory.name[1:]).exists()


# ---- what is refused


def test_off_by_default(daemon: Daemon) -> None:
    with chunkkv.Client(daemon.prefix()) as client, file() as path:
        assert "posix_shm" not in client.session.capabilities
        error = refused(client, f"/{path.name}")
        assert error.code == Code.UNSUPPORTED
        assert "--posix-shm" in error.detail


def test_capability_says_that_it_is_on(client: chunkkv.Client) -> None:
    assert "posix_shm" in client.session.capabilities


@only_root
@pytest.mark.tries(17)
def test_names_of_another_user(client: chunkkv.Client) -> None:
    with file(uid=OTHER) as path:  # squatted: the name is ours, the file is not
        error = refused(client, f"/{path.name}")
        assert (error.code, str(OTHER) in error.detail) == (Code.PERMISSION, True)
    theirs = SHM / f"chunkkv-{OTHER}-{'0' * 32}"
    with file() as path:
        path.rename(theirs)
        try:
            assert refused(client, f"/{theirs.name}").code == Code.PERMISSION
        finally:
            theirs.rename(path)


@pytest.mark.parametrize("mode", [0o666, 0o660, 0o640, 0o604, 0o601])
@pytest.mark.tries(17)
def test_rights_for_others(client: chunkkv.Client, mode: int) -> None:
    with file(mode=mode) as path:
        assert refused(client, f"/{path.name}").code == Code.PERMISSION


@pytest.mark.tries(17)
def test_links(client: chunkkv.Client) -> None:
    other = SHM / f"chunkkv-{os.geteuid()}-{secrets.token_hex(16)}"
    with file() as path:
        other.symlink_to(path)
        try:
            assert refused(client, f"/{other.name}").code == Code.PERMISSION
        finally:
            other.unlink()
        os.link(path, other)
        try:
            assert refused(client, f"/{other.name}").code == Code.PERMISSION
        finally:
            other.unlink()


@pytest.mark.tries(17)
def test_other_kinds(client: chunkkv.Client) -> None:
    path = SHM / f"chunkkv-{os.geteuid()}-{secrets.token_hex(16)}"
    assert refused(client, f"/{path.name}").code == Code.NOT_FOUND
    for make, remove in ((os.mkdir, os.rmdir), (os.mkfifo, os.unlink)):
        make(path, 0o600)
        try:
            for access in (pb.ACCESS_READ, pb.ACCESS_READ_WRITE):
                assert refused(client, f"/{path.name}", access=access).code == Code.HANDLE_INVALID
        finally:
            remove(path)
    with file(full=False) as path:
        assert refused(client, f"/{path.name}").code == Code.SPARSE
    with file() as path:
        assert refused(client, f"/{path.name}", size=4097).code == Code.OUT_OF_RANGE


@pytest.mark.parametrize("name", [
    "chunkkv-0-" + "0" * 32, "/chunkkv-0-" + "0" * 31, "/chunkkv-0-" + "0" * 33, "/chunkkv-0-" + "G" * 32,
    "/psm_12345678", "/../etc/passwd", "/chunkkv-0-../../../../../../../../etc/passwd", ""])
@pytest.mark.tries(17)
def test_other_names(client: chunkkv.Client, name: str) -> None:
    assert refused(client, name).code in (Code.INVALID_ARGUMENT, Code.BAD_MESSAGE)


def test_answers_go_elsewhere(client: chunkkv.Client) -> None:
    with named() as memory:
        pool = Pool(memory, "bthd")
        region, cache = pool.register(client)
        body = pb.Compress(cache_id=cache.id, mode=pb.MODE_PLAN, logical_len=ROWS, reply_form=pb.REPLY_IN_REGION)
        body.groups.append(chunkkv.GroupJob(rows=ROWS, table=pool.table, keep_ratio=0.4,
                                            policy=chunkkv.Policy(window=WINDOW)).to_message("g"))
        body.queries.CopyFrom(chunkkv.Queries.of_array(pool.queries, region=region).to_message())
        body.reply_to.CopyFrom(pb.Slice(region_id=region.id, offset=0, size=4096))
        with pytest.raises(chunkkv.ChunkkvError) as caught:
            client.call(pb.Request(compress=body), timeout=10)
        assert (caught.value.code, caught.value.field) == (Code.UNSUPPORTED, "compress.reply_to")
        body.reply_form = pb.REPLY_RUNS
        body.ClearField("reply_to")
        body.groups[0].scores_out.CopyFrom(pb.Slice(region_id=region.id, offset=0, size=4096))
        with pytest.raises(chunkkv.ChunkkvError) as caught:
            client.call(pb.Request(compress=body), timeout=10)
        assert (caught.value.code, caught.value.field) == (Code.UNSUPPORTED, "compress.groups[0].scores_out")


# ---- truncated under us


def test_truncated_under_us(client: chunkkv.Client) -> None:
    """Before, and at any moment while rows are scored or moved: REGION_LOST."""
    rng = np.random.default_rng(9)
    seen: set[tuple[Code, CacheState] | None] = set()
    for i in range(60):
        with named() as memory:
            pool = Pool(memory, "bthd")
            region, cache = pool.register(client)
            if i == 0:
                os.ftruncate(memory.fileno(), 4096)
            cut = threading.Timer(float(rng.uniform(0, 0.006)), os.ftruncate, (memory.fileno(), 4096))
            ask = pool.ask(region, keep=every_other(960))
            cut.start()
            try:
                del ask["keep_ratio"], ask["policy"], ask["queries"]
                client.compress(cache, **ask)
                seen.add(None)
            except chunkkv.ChunkkvError as error:
                seen.add((Code(error.code), CacheState(error.cache)))
            cut.join()
            left = os.fstat(memory.fileno())
            assert left.st_blocks * 512 <= 4096 + (1 << 20)  # no more than what was on its way
            if left.st_size != 4096:  # cut off between our look and our write: it is theirs to know
                continue
            with pytest.raises(chunkkv.ChunkkvError) as caught:
                client.plan(cache, **pool.ask(region))
            assert caught.value.code == Code.REGION_LOST
    print(seen)
    assert (Code.REGION_LOST, CacheState.CLEAN) in seen
    assert seen <= {None, (Code.REGION_LOST, CacheState.CLEAN), (Code.REGION_LOST, CacheState.TORN)}


@only_root
def test_another_user_is_not_disturbed(allowing: Daemon) -> None:
    def work(client: chunkkv.Client, pipe: Connection) -> None:
        with named() as memory:
            pool = Pool(memory, "bthd")
            region, cache = pool.register(client)
            kept = client.plan(cache, **pool.ask(region)).physical_len
        pipe.send(kept)  # and the name is gone

    with Tenant(allowing.prefix(), work, OTHER) as tenant:
        assert tenant.hear() > 0


def test_names_are_registered_again_with_a_new_daemon(new_daemon: Callable[..., Daemon]) -> None:
    daemon = new_daemon(options=("--posix-shm", "on"))
    with chunkkv.Client(daemon.prefix()) as client, chunkkv.SharedMemory.named(4096) as memory:
        region = client.register_region(memory)
        before = region.session
        daemon.restart()
        client.reconnect()
        assert region.session == client.session.number != before
        client.unregister_region(region)
