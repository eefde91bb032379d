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
from .place import Memory
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


class Registration:
    """Memory and caches that a client registered, and unregisters together.  Until then the memory stays.

    Attributes:
        client: that did it.
    """

    def __init__(self, client: Client) -> None:
        self.client = client
        self._memories: list[Memory] = []
        self._regions: list[Region] = []
        self._caches: list[Cache] = []

    @property
    def is_held(self) -> bool:
        """Is anything registered?"""
        return bool(self._regions)

    def region(self, memory: Memory) -> Region:
        """Register memory."""
        region = self.client.register_region(memory.source)
        self._memories.append(memory)
        self._regions.append(region)
        return region

    def cache(self, layout: CacheLayout) -> Cache:
        """Register a cache in it."""
        cache = self.client.register_cache(layout)
        self._caches.append(cache)
        return cache

    def release(self) -> None:
        """Unregister all of it; where the session is gone, so is what it had registered."""
        with contextlib.suppress(SessionLost):
            for cache in self._caches:
                self.client.unregister_cache(cache)
            for region in self._regions:
                self.client.unregister_region(region)
        self._memories, self._regions, self._caches = [], [], []


class Registered:
    """The memory of a store, registered with a client.

    Attributes:
        registration: that holds it.
        parts: the units, in as many caches as they need, as one holds 16 groups.
    """

    def __init__(self, client: Client, store: Store, each_layer: bool) -> None:
        assert store.arena is not None
        self.registration = Registration(client)
        self.parts: list[tuple[Cache, list[Unit]]] = []
        try:
            self._region = self.registration.region(store.arena.memory)
            self._queries = None if store.ring is None else self.registration.region(store.ring.memory)
            units = units_of(store, each_layer)
            for first in range(0, len(units), MOST_GROUPS):
                some = units[first : first + MOST_GROUPS]
                self.parts.append((self.registration.cache(self._layout(store, some)), some))
        except BaseException:
            self.release()
            raise

    def serves(self, client: Client) -> bool:
        """Is this registration with that client?  Memory that moves, or is closed, releases it."""
        return client is self.registration.client

    def _layout(self, store: Store, units: Sequence[Unit]) -> CacheLayout:
        """The groups of some units."""
        arena, stride = store.arena, store.stride
        assert arena is not None
        groups: list[LayerGroup] = []
        planes: list[Plane] = []
        for unit in units:
            one = CacheLayout.of_arrays([arena.keys[layer.place][unit.sequence] for layer in unit.layers],
                                        [arena.values[layer.place][unit.sequence] for layer in unit.layers],
                                        axes="htd", q_heads=store.q_heads or int(arena.keys[0].shape[1]),
                                        region=self._region,
                                        layers=[unit.sequence * stride + layer.number for layer in unit.layers])
            groups += one.groups
            planes += one.planes
        return CacheLayout(tuple(groups), tuple(planes))

    def queries(self, store: Store, units: Sequence[Unit]) -> Queries | None:
        """The query rows of the layers of some units; None where there are none."""
        ring = store.ring
        if ring is None or self._queries is None:
            return None
        rows, start = ring.filled()
        if rows == 0:
            return None
        places = [unit.sequence * len(store.layers) + layer.place for unit in units for layer in unit.layers]
        numbers = [unit.sequence * store.stride + layer.number for unit in units for layer in unit.layers]
        flat = ring.tensor.reshape(-1, *ring.tensor.shape[2:])[places[0] : places[-1] + 1, :rows]
        return Queries.of_array(flat, region=self._queries, layers=numbers, ring_start=start)

    def release(self) -> None:
        """Unregister all of it."""
        self.registration.release()
        self.parts = []
