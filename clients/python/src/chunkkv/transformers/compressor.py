"""`compress()`: a block in which the caches of a model are compressed."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from contextlib import ExitStack
from decimal import Decimal
from types import TracebackType
from typing import Any
from weakref import WeakSet

import torch

from ..client import Client
from ..errors import ChunkkvError, DaemonUnavailable, Unsupported
from ..policy import Policy
from ..ranges import Range
from ..wire import CacheState
from .cache import ChunkKVCache, adopt, store_of
from .capture import Call, begin, end, recording
from .report import Report
from .request import compress_store
from .settings import OnError, Settings
from .store import Store

CACHE_NAMES = ("past_key_values", "cache")  # Transformers up to 5.23, and after


def compress(model: torch.nn.Module, *, keep_ratio: float | str | Decimal | None = None,
             max_tokens: int | None = None, method: str | Policy | Sequence[Policy] = "chunkkv",
             every: int | None = None, protect: Sequence[Range] = (), chunk_lengths: Sequence[int] | None = None,
             on_error: OnError = "raise", timeout: float = 60.0, client: Client | None = None,
             endpoint: str | None = None, **options: Any) -> Compressor:
    """A block in which every cache of a model is compressed once its prompt is prefilled.

        with chunkkv.compress(model, keep_ratio=0.2) as kv:
            output = model.generate(**inputs, max_new_tokens=50)
        print(kv.last)

    The daemon is asked when the first token is about to be processed alone: what the prompt's own forwards computed is
    that of the full cache.  Later prompts of the same cache are not compressed, unless `every` says so.

    Args:
        model: a causal language model of Transformers, on the CPU.
        keep_ratio: fraction of the prompt's rows to keep, at most 1.
        max_tokens: rows to keep; with both, the smaller.
        method: a name of `chunkkv.methods`, or "hybrid", or policies of your own.
        every: compress again whenever so many tokens came since; keep_ratio then counts in all tokens so far.
        protect: half-open ranges of positions that are kept.
        chunk_lengths: with method "chunk-at": lengths of the chunks, all tokens together.
        on_error: "continue" = where the daemon refuses and nothing is lost, go on with all rows; see `failures`.
        timeout: seconds for one compression.
        client: a connected client; None = one for the block.
        endpoint: of the daemon, as Client has it.
        **options: of the method, such as window=16 or heads="each".

    Raises:
        DaemonUnavailable: at the beginning of the block, when no daemon answers.
        Unsupported: what cannot be compressed, with the reason.
    """
    settings = Settings.of(method, options, keep_ratio=keep_ratio, max_tokens=max_tokens, every=every,
                           protect=protect, chunk_lengths=chunk_lengths, on_error=on_error, timeout=timeout)
    return Compressor(model, settings, client, endpoint)


class Compressor:
    """A block of `compress()`.

    Attributes:
        reports: what was done, in order.
        failures: errors that were passed over, with on_error="continue".
    """

    def __init__(self, model: torch.nn.Module, settings: Settings, client: Client | None, endpoint: str | None) -> None:
        names = inspect.signature(model.forward).parameters
        self._name = next((name for name in CACHE_NAMES if name in names), "")
        if not self._name or not hasattr(model, "config"):
            raise Unsupported(f"a {type(model).__name__} takes no cache: give the causal language model itself")
        self.reports: list[Report] = []
        self.failures: list[ChunkkvError] = []
        self._model, self._settings, self._endpoint = model, settings, endpoint
        self._client = client
        self._stack = ExitStack()
        self._stores: WeakSet[Store] = WeakSet()

    @property
    def last(self) -> Report | None:
        """The newest report; None before the first."""
        return self.reports[-1] if self.reports else None

    def __enter__(self) -> Compressor:
        with ExitStack() as stack:
            if self._client is None:
                self._client = stack.enter_context(_connect(self._endpoint))
                stack.callback(setattr, self, "_client", None)
            stack.callback(self._release)
            stack.enter_context(recording(self._model))
            before = self._model.register_forward_pre_hook(self._before, with_kwargs=True)
            stack.callback(before.remove)
            after = self._model.register_forward_hook(lambda *_: end(), always_call=True)
            stack.callback(after.remove)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self._stack.close()

    def compress(self, cache: Any) -> Report:
        """Compress a cache now, instead of before its next token.

        Raises:
            Unsupported: it is not one that was filled inside this block.
        """
        store = store_of(cache)
        if store is None or store not in self._stores or store.arena is None:
            raise Unsupported("this cache was not filled inside this block")
        assert self._client is not None
        report = compress_store(self._client, store, self._settings)
        self.reports.append(report)
        return report

    # ---- hooks

    def _before(self, _: torch.nn.Module, args: tuple[Any, ...],
                given: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """A forward begins: its cache becomes ours, or was; the prompt may be over."""
        if given.get("use_cache") is False or (given.get("use_cache") is None and not _uses_cache(self._model)):
            return None
        name = next((name for name in CACHE_NAMES if given.get(name) is not None), self._name)
        if given.get(name) is None:
            given = {**given, name: ChunkKVCache(self._model.config)}
        cache = given[name]
        store = store_of(cache) or adopt(cache, self._model.config)
        self._stores.add(store)
        _check_mask(given.get("attention_mask"))
        if _tokens(args, given) == 1 and self._is_due(store):
            self._compress(cache, store)
        wanted = not store.done or self._settings.every is not None
        begin(Call(store, self._settings.query_rows() if wanted else 0, wanted and self._settings.all_queries))
        return args, given

    def _is_due(self, store: Store) -> bool:
        every = self._settings.every
        return store.seen > 0 and (not store.done or (every is not None and store.seen - store.since >= every))

    def _compress(self, cache: Any, store: Store) -> None:
        try:
            self.compress(cache)
        except ChunkkvError as error:
            if self._settings.on_error == "raise" or error.cache != CacheState.CLEAN or store.broken:
                raise
            self.failures.append(error)
            store.done, store.since = True, store.seen

    def _release(self) -> None:
        for store in list(self._stores):
            store.release()


def _connect(endpoint: str | None) -> Client:
    try:
        return Client(endpoint, name="chunkkv.transformers")
    except DaemonUnavailable as error:
        raise DaemonUnavailable(f"{error.detail}; start one with `chunkkvd --runtime-dir DIR --endpoint main` and set "
                                "CHUNKKV_ENDPOINT=DIR/main", radius=error.radius) from error


def _uses_cache(model: Any) -> bool:
    return bool(getattr(model.config.get_text_config(decoder=True), "use_cache", True)) and not model.training


def _tokens(args: tuple[Any, ...], given: dict[str, Any]) -> int:
    """How many tokens this forward is given."""
    for value in (given.get("input_ids"), given.get("inputs_embeds"), *args[:1]):
        if value is not None:
            return int(value.shape[1])
    return 0


def _check_mask(mask: Any) -> None:
    """Unsupported unless every token is to be seen."""
    if mask is None:
        return
    if not isinstance(mask, torch.Tensor) or mask.ndim != 2:
        raise Unsupported("an attention mask of the caller's own does not go together with compression: rows move")
    if not bool(mask.all()):
        raise Unsupported("the attention mask hides tokens: a batch with padding cannot be compressed, because "
                          "sequences of different lengths keep different numbers of rows; generate them one by one")
