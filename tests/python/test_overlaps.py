"""Memory that a request would write to twice, or for two purposes: refused before anything is written."""

from __future__ import annotations

import ctypes
import os

import numpy as np
import pytest

import chunkkv
from chunkkv import Code
from chunkkv._pb import chunkkv_pb2 as pb
from daemon import Daemon

ROWS, HEADS, DIM, WINDOW = 64, 2, 16, 8
PLANE = ROWS * HEADS * DIM * 4  # bytes of one plane in f32
PUNCH_HOLE, KEEP_SIZE = 2, 1


class Rig:
    """K at 0, V behind it, queries behind that, and room for answers at the end, all in one region."""

    def __init__(self, client: chunkkv.Client, value_at: int = PLANE) -> None:
        self.client = client
        self.memory = chunkkv.SharedMemory.allocate(4 * PLANE + 64 * 1024)
        bytes_ = self.memory.numpy(self.memory.size, np.uint8)
        bytes_[...] = 0
        self.memory.numpy(3 * PLANE // 4, "f32")[...] = np.random.default_rng(3).normal(size=3 * PLANE // 4)
        self.region = client.register_region(self.memory)
        group = pb.LayerGroup(layers=[0], kv_heads=HEADS, q_heads=HEADS, head_dim_k=DIM, head_dim_v=DIM,
                              tokens_per_block=ROWS, num_blocks=1)
        register = pb.RegisterCache(groups=[group])
        for kind, at in ((pb.PLANE_K, 0), (pb.PLANE_V, value_at)):
            register.planes.add(kind=kind, dtype=pb.DTYPE_F32, layer_count=1, region_id=self.region.id, offset=at,
                                block_stride=PLANE, head_stride=DIM * 4, token=pb.Axis(tile=1, outer=HEADS * DIM * 4),
                                dim=pb.Axis(tile=1, outer=4))
        self.cache_id = client.call(pb.Request(register_cache=register)).cache_registered.cache_id

    def compress(self, **fields: object) -> pb.Compress:
        body = pb.Compress(cache_id=self.cache_id, mode=pb.MODE_PLAN, logical_len=ROWS)
        job = body.groups.add(physical_len=ROWS, keep_ratio=500_000)
        job.table.form = pb.TABLE_BLOCKS
        job.table.numbers.append(0)
        job.policies.add(window=WINDOW, chunk=5)
        body.queries.CopyFrom(pb.Queries(
            data=pb.Slice(region_id=self.region.id, offset=2 * PLANE, size=PLANE), dtype=pb.DTYPE_F32, rows=WINDOW,
            layer_stride=PLANE // 2, head_stride=DIM * 4, row_stride=HEADS * DIM * 4))
        for name, value in fields.items():
            setattr(body, name, value)
        return body

    def room(self, offset: int, size: int = 4096) -> pb.Slice:
        return pb.Slice(region_id=self.region.id, offset=offset, size=size)

    def refused(self, body: pb.Compress) -> chunkkv.ChunkkvError:
        before = self.memory.numpy(self.memory.size, np.uint8).copy()
        with pytest.raises(chunkkv.ChunkkvError) as caught:
            self.client.call(pb.Request(compress=body), timeout=10)
        assert np.array_equal(before, self.memory.numpy(self.memory.size, np.uint8))
        assert caught.value.cache == chunkkv.CacheState.CLEAN
        return caught.value


@pytest.mark.parametrize("offset", [0, PLANE - 4, PLANE, 2 * PLANE - 4, 2 * PLANE])
def test_answers_never_go_into_the_cache_or_the_queries(daemon: Daemon, offset: int) -> None:
    with chunkkv.Client(daemon.prefix()) as client:
        rig = Rig(client)
        for mode in (pb.MODE_PLAN, pb.MODE_IN_PLACE):
            body = rig.compress(mode=mode, reply_form=pb.REPLY_IN_REGION)
            body.reply_to.CopyFrom(rig.room(offset))
            error = rig.refused(body)
            assert (error.code, error.field) == (Code.INVALID_ARGUMENT, "compress.reply_to")
            body = rig.compress(mode=mode)
            body.groups[0].scores_out.CopyFrom(rig.room(offset))
            error = rig.refused(body)
            assert (error.code, error.field) == (Code.INVALID_ARGUMENT, "compress.groups[0].scores_out")


def test_answers_never_go_into_tables_or_scores(daemon: Daemon) -> None:
    with chunkkv.Client(daemon.prefix()) as client:
        rig = Rig(client)
        for mode in (pb.MODE_PLAN, pb.MODE_IN_PLACE):
            body = rig.compress(mode=mode)
            body.groups[0].table.ClearField("numbers")
            getattr(body.groups[0].table, "from").CopyFrom(rig.room(3 * PLANE, 4))
            body.groups[0].scores_out.CopyFrom(rig.room(3 * PLANE))
            assert rig.refused(body).field == "compress.groups[0].scores_out"
            body.groups[0].scores_out.offset += 4
            body.groups[0].scores_in.CopyFrom(rig.room(3 * PLANE + 8, 56))
            assert rig.refused(body).field == "compress.groups[0].scores_out"
        body = rig.compress(reply_form=pb.REPLY_IN_REGION)
        body.reply_to.CopyFrom(rig.room(3 * PLANE + 2))
        assert rig.refused(body).field == "compress.reply_to"  # words lie at multiples of 4


def test_a_latent_needs_a_scale_only_where_it_is_scored(daemon: Daemon) -> None:
    with chunkkv.Client(daemon.prefix()) as client:
        rig = Rig(client)
        group = pb.LayerGroup(layers=[0], kv_heads=1, q_heads=HEADS, head_dim_k=DIM, tokens_per_block=ROWS,
                              num_blocks=1)
        register = pb.RegisterCache(groups=[group])
        register.planes.add(kind=pb.PLANE_LATENT, dtype=pb.DTYPE_F32, layer_count=1, region_id=rig.region.id,
                            block_stride=PLANE, head_stride=0, token=pb.Axis(tile=1, outer=DIM * 4),
                            dim=pb.Axis(tile=1, outer=4))
        rig.cache_id = client.call(pb.Request(register_cache=register)).cache_registered.cache_id
        body = rig.compress()
        assert rig.refused(body).field == "compress.groups[0].policies[0].scale"
        for profile in (pb.PROFILE_KVPRESS, pb.PROFILE_PAPER):
            body.groups[0].policies[0].CopyFrom(pb.Policy(profile=profile, scorer=pb.SCORER_WINDOW, window=WINDOW,
                                                          chunk=5))
            error = rig.refused(body)
            assert (error.code, error.field) == (Code.UNSUPPORTED, "compress.groups[0].policies[0].profile")
        body.groups[0].policies[0].CopyFrom(pb.Policy(window=WINDOW, chunk=5, scale=0.25))
        assert client.call(pb.Request(compress=body), timeout=10).status.code == pb.CODE_OK
        body = rig.compress()
        body.groups[0].keep_ratio = 0
        body.groups[0].given_runs.extend([0, 10, 20, 30])
        assert client.call(pb.Request(compress=body), timeout=10).status.code == pb.CODE_OK


def test_two_answers_have_two_places(daemon: Daemon) -> None:
    with chunkkv.Client(daemon.prefix()) as client:
        rig = Rig(client)
        body = rig.compress(reply_form=pb.REPLY_IN_REGION)
        body.groups[0].scores_out.CopyFrom(rig.room(3 * PLANE))
        body.reply_to.CopyFrom(rig.room(3 * PLANE + 4092))
        assert rig.refused(body).field == "compress.reply_to"
        body.reply_to.CopyFrom(rig.room(3 * PLANE + 4096))
        assert client.call(pb.Request(compress=body), timeout=10).status.code == pb.CODE_OK


@pytest.mark.parametrize("value_at", [0, 4, PLANE - 4])
def test_planes_that_share_bytes_are_scored_and_not_moved(daemon: Daemon, value_at: int) -> None:
    with chunkkv.Client(daemon.prefix()) as client:
        rig = Rig(client, value_at)
        assert client.call(pb.Request(compress=rig.compress()), timeout=10).status.code == pb.CODE_OK
        error = rig.refused(rig.compress(mode=pb.MODE_IN_PLACE))
        assert (error.code, error.field) == (Code.INVALID_ARGUMENT, "compress.mode")
        assert "group 0" in error.detail


def test_a_region_with_holes_is_lost_for_every_mode(daemon: Daemon) -> None:
    with chunkkv.Client(daemon.prefix()) as client:
        rig = Rig(client)
        libc = ctypes.CDLL(None, use_errno=True)
        page = os.sysconf("SC_PAGE_SIZE")
        assert libc.fallocate(rig.memory.fileno(), PUNCH_HOLE | KEEP_SIZE, ctypes.c_long(0), ctypes.c_long(page)) == 0
        for mode in (pb.MODE_PLAN, pb.MODE_IN_PLACE):
            with pytest.raises(chunkkv.ChunkkvError) as caught:  # and reading the memory here would fill the hole
                client.call(pb.Request(compress=rig.compress(mode=mode)), timeout=10)
            assert (caught.value.code, caught.value.cache) == (Code.REGION_LOST, chunkkv.CacheState.CLEAN)
