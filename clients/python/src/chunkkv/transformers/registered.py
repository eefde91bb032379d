"""What a daemon knows of a cache: its regions, and layer groups that describe the rows in them."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

from ..cache import Cache
from ..client import Client
from ..errors import SessionLost
from ..job import Queries
from ..layout import CacheLayout, LayerGroup, Plane
from ..region import Region
from .layer import ChunkKVLayer
from .store import Store

MOST_GROUPS = 16  # layer groups of one registered cache


@dataclass(frozen=True)
class Unit:
    """Layers of one sequence that a request treats as one: a layer group."""

    sequence: int
    layers: Sequence[ChunkKVLayer]


def units_of(store: Store, each_layer: bool) -> list[Unit]:
    """A unit for each sequence; with `each_layer` one for each of its layers, whose rows are of other tokens."""
    if each_layer:
        return [Unit(b, [layer]) for b in range(store.batch) for layer in store.layers]
    return [Unit(b, store.layers) for b in range(store.batch)]


class Registered:
    """The memory of a store, registered with a client.

    Attributes:
        parts: the units, in as many caches as they need, as one holds 16 groups.
    """

    def __init__(self, client: Client, store: Store, each_layer: bool) -> None:
        assert store.arena is not None
        self._client, self._store = client, store
        self._regions: list[Region] = []
        self._caches: list[Cache] = []
        self.parts: list[tuple[Cache, list[Unit]]] = []
        try:
            self._region = self._register(store.arena.memory)
            self._queries = None if store.ring is None else self._register(store.ring.memory)
            units = units_of(store, each_layer)
            for first in range(0, len(units), MOST_GROUPS):
                some = units[first : first + MOST_GROUPS]
                cache = client.register_cache(self._layout(some))
                self._caches.append(cache)
                self.parts.append((cache, some))
        except BaseException:
            self.release()
            raise

    def _register(self, memory: object) -> Region:
        region = self._client.register_region(memory)  # type: ignore[arg-type]
        self._regions.append(region)
        return region

    def serves(self, client: Client) -> bool:
        """Is this registration with that client?  Memory that moves, or is closed, releases it."""
        return client is self._client

    def _layout(self, units: Sequence[Unit]) -> CacheLayout:
        """The groups of some units."""
        arena, stride = self._store.arena, self._store.stride
        assert arena is not None
        groups: list[LayerGroup] = []
        planes: list[Plane] = []
        for unit in units:
            one = CacheLayout.of_arrays([arena.keys[layer.place][unit.sequence] for layer in unit.layers],
                                        [arena.values[layer.place][unit.sequence] for layer in unit.layers],
                                        axes="htd", q_heads=self._store.q_heads or int(arena.keys[0].shape[1]),
                                        region=self._region,
                                        layers=[unit.sequence * stride + layer.number for layer in unit.layers])
            groups += one.groups
            planes += one.planes
        return CacheLayout(tuple(groups), tuple(planes))

    def queries(self, units: Sequence[Unit]) -> Queries | None:
        """The query rows of the layers of some units; None where there are none."""
        ring = self._store.ring
        if ring is None or self._queries is None:
            return None
        rows, start = ring.filled()
        if rows == 0:
            return None
        places = [unit.sequence * len(self._store.layers) + layer.place for unit in units for layer in unit.layers]
        numbers = [unit.sequence * self._store.stride + layer.number for unit in units for layer in unit.layers]
        flat = ring.tensor.reshape(-1, *ring.tensor.shape[2:])[places[0] : places[-1] + 1, :rows]
        return Queries.of_array(flat, region=self._queries, layers=numbers, ring_start=start)

    def release(self) -> None:
        """Unregister all of it; where the session is gone, so is what it had registered."""
        with contextlib.suppress(SessionLost):
            for cache in self._caches:
                self._client.unregister_cache(cache)
            for region in self._regions:
                self._client.unregister_region(region)
        self._regions, self._caches, self.parts = [], [], []
