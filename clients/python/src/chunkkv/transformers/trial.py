"""The same request for a small cache of no meaning: the daemon says at once what it would refuse after the prompt.

Which options there are, and their limits, is the daemon's knowledge alone.  Asking costs milliseconds and some memory
once for a block; without it a wrong option would be found when the prompt has been computed.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..answer import Answer
from ..cache import SharedCache
from ..client import Client
from ..errors import Busy, CannotCompress, ChunkkvError, DeadlineExceeded, Draining, SessionLost
from .asked import as_argument
from .settings import Settings

ROWS = 1344  # more than the longest window and chunk, 256 and 1024
ROWS_OF_H2O = 64  # as many as it has queries, each of which looks at all rows
DIM = 8


def try_settings(client: Client, layers: Sequence[int], settings: Settings) -> Answer | None:
    """Ask for what will be asked for, of a cache with these layers; None where the daemon has reasons of the moment.

    Raises:
        ChunkkvError: it would refuse; `field` is the argument of compress().
    """
    rows = ROWS_OF_H2O if settings.all_queries else ROWS
    wanted = rows if settings.all_queries else settings.query_rows()
    lengths = None if settings.chunk_lengths is None else [16] * (rows // 16)
    try:
        with SharedCache.allocate(client, layers=layers, tokens=rows, kv_heads=1, q_heads=1, head_dim=DIM, dtype="bf16",
                                  window=max(wanted, 1)) as cache:
            # 1.0 to 1.75 in bfloat16: no scorer divides by them in vain
            words = cache.memory.numpy(cache.memory.size // 2, "bf16")  # their bits
            words[:] = 0x3F80
            words[::7] = 0x3FE0
            policy, budget = settings.job(layers, rows)
            return client.compress(cache, rows=rows, policy=policy, protect=settings.protect, chunk_lengths=lengths,
                                   single_pass=True, timeout=settings.timeout, **budget)
    except (Busy, CannotCompress, DeadlineExceeded, Draining, SessionLost):  # the request itself will tell
        return None
    except ChunkkvError as error:
        raise as_argument(error) from None

