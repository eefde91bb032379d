"""The same request for a small cache of no meaning: the daemon says at once what it would refuse after the prompt.

Which options there are, and their limits, is the daemon's knowledge alone.  Asking costs milliseconds and some memory
once for a block; without it a wrong option would be found when the prompt has been computed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from ..answer import Answer
from ..cache import Cache
from ..client import Client
from ..errors import Busy, CannotCompress, ChunkkvError, DeadlineExceeded, Draining, SessionLost
from ..job import Queries
from ..layout import CacheLayout
from .arena import Arena, QueryRing
from .place import Place
from .registered import Registration
from .settings import Settings, ranges_voted

ROWS = 1344  # more than the longest window and chunk, 256 and 1024
ROWS_OF_H2O = 64  # as many as it has queries, each of which looks at all rows
DIM = 8


def try_settings(client: Client, place: Place, layers: Sequence[int], settings: Settings) -> Answer | None:
    """Ask for what will be asked for, of a cache with these layers; None where the daemon has reasons of the moment.

    Raises:
        ChunkkvError: it would refuse; `field` is the argument of compress().
    """
    rows = ROWS_OF_H2O if settings.all_queries else ROWS
    wanted = rows if settings.all_queries else settings.query_rows()
    lengths = None if settings.chunk_lengths is None else [16] * (rows // 16)
    try:
        with _sample(client, place, layers, rows, max(wanted, 1)) as (cache, queries):
            policy, budget = settings.job(layers, rows)
            protect = [*settings.protect]
            if settings.voted is not None:
                vote, most = settings.vote(rows)
                voted = client.plan(cache, rows=rows, table=[0], queries=queries, policy=vote, max_tokens=most,
                                    protect=settings.protect, timeout=settings.timeout)
                protect += ranges_voted(voted.groups[0])
            return client.compress(cache, rows=rows, table=[0], queries=queries, policy=policy, protect=protect,
                                   chunk_lengths=lengths, single_pass=True,
                                   timeout=settings.timeout, **budget)
    except (Busy, CannotCompress, DeadlineExceeded, Draining, SessionLost):  # the request itself will tell
        return None
    except ChunkkvError as error:
        raise settings.as_asked(error) from None


@contextmanager
def _sample(client: Client, place: Place, layers: Sequence[int], rows: int,
            window: int) -> Iterator[tuple[Cache, Queries]]:
    """A cache of one head in each layer, and its queries."""
    row = torch.empty(1, 1, 1, DIM, dtype=torch.bfloat16)
    arena, ring = Arena(place, len(layers), row.shape, row.shape, row.dtype, rows), None
    registration = Registration(client)
    try:
        ring = QueryRing(place, len(layers), row, window)
        for tensor in (*arena.keys, *arena.values, ring.tensor):
            tensor.fill_(1.0)  # and 1.75 here and there: no scorer divides by them in vain
            tensor.view(-1)[::7] = 1.75
        place.synchronize()
        region, beside = registration.region(arena.memory), registration.region(ring.memory)
        layout = CacheLayout.of_arrays([one[0] for one in arena.keys], [one[0] for one in arena.values], axes="htd",
                                       q_heads=1, region=region, layers=layers)
        yield registration.cache(layout), Queries.of_array(ring.tensor[0], region=beside)
    finally:
        registration.release()
        arena.close()
        if ring is not None:
            ring.close()
