"""`compress()`: a block in which the caches of a model are compressed."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Sequence
from contextlib import ExitStack
from decimal import Decimal
from os import PathLike
from types import TracebackType
from typing import Any
from weakref import WeakSet, ref

import torch

from ..checks import of_type
from ..client import Client
from ..errors import ChunkkvError, Unsupported, invalid
from ..policy import Policy
from ..ranges import Range
from ..wire import CacheState
from .asked import is_mistake
from .cache import ChunkKVCache, adopt, store_of
from .capture import Call, begin, end, recording
from .models import CACHE_NAMES, check_model, fresh_layers, without_assistants
from .place import place_of
from .reach import check_serves, connect
from .registered import Registration
from .report import BudgetRaised, Report
from .request import compress_store
from .settings import OnError, Settings
from .store import Store
from .trial import try_settings

_lock = threading.Lock()
_open: list[Compressor] = []  # blocks that are open now, of all threads


def compress(model: torch.nn.Module, *, keep_ratio: float | str | Decimal | None = None,
             max_tokens: int | None = None, method: str | Policy | Sequence[Policy] = "chunkkv",
             every: int | None = None, protect: Sequence[Range] = (), voted: float | str | Decimal | None = None,
             chunk_lengths: Sequence[int] | None = None,
             on_error: OnError = "raise", timeout: float = 60.0, client: Client | None = None,
             endpoint: str | None = None, **options: Any) -> Compressor:
    """A block in which every cache of a model is compressed once its prompt is prefilled.

        with chunkkv.compress(model, keep_ratio=0.2) as kv:
            output = model.generate(**inputs, max_new_tokens=50)
        print(kv.last)

    The daemon is asked when the first token is about to be processed alone: what the prompt's own forwards computed is
    that of the full cache.  Later prompts of the same cache are not compressed, unless `every` says so.  What is wrong
    with the arguments, or the model, is said at the beginning of the block.

    Args:
        model: a causal language model of Transformers, on the CPU or one GPU.
        keep_ratio: fraction of the prompt's rows to keep, at most 1.
        max_tokens: rows to keep; with both, the smaller.  Rows that a method always keeps (the first few, those of its
            window, `protect`) count, and are kept also where they are more: then there is a warning, `BudgetRaised`.
            With method "h2o" a half each goes to heavy hitters and the newest rows, or give `heavy` and `recent`.
        method: a name of `chunkkv.methods`, or "hybrid", or policies of your own.
        every: compress again whenever so many tokens came since; keep_ratio then counts in all tokens so far.
        protect: half-open ranges of positions that are kept; they must end within the prompt, unless `every` is given.
        voted: this part of the budget is for the rows that all layers agree on, as method "vote" finds them; the method
            has the rest, and each layer may choose for itself.  With method="snapkv", sinks=1, recent=4 and three
            quarters (0.75) plain text lost no more than by SnapKV with a maximum pool, and planted answers were found.
        chunk_lengths: with method "chunk-at": lengths of the chunks, all tokens together.
        on_error: "continue" = where the daemon refuses and nothing is lost, go on with all rows; see `failures`.  What
            is wrong with these arguments is raised all the same.
        timeout: seconds for one compression.
        client: a connected client; None = one for the block.
        endpoint: of the daemon, as Client has it; None, and no $CHUNKKV_ENDPOINT = for a model on a GPU the one of
            /run/chunkkv/gpu*/main that serves this GPU.
        **options: of the method, such as window=16 or heads="each".

    Raises:
        TypeError: an argument is of a wrong type, or there is no such argument.
        InvalidArgument: an argument has a wrong value; `field` names it.
        DaemonUnavailable: at the beginning of the block, when no daemon answers.
        RegionError: likewise, when it serves another device than the model's.
        Unsupported: what cannot be compressed, with the reason.
    """
    if client is not None:
        of_type("client", client, Client)
    if endpoint is not None:
        of_type("endpoint", endpoint, str, PathLike)
    if client is not None and endpoint is not None:
        raise invalid("endpoint", "is that of the client, which is given, too: leave one of them out")
    settings = Settings.of(method, options, keep_ratio=keep_ratio, max_tokens=max_tokens, every=every,
                           protect=protect, voted=voted, chunk_lengths=chunk_lengths, on_error=on_error,
                           timeout=timeout)
    return Compressor(model, settings, client, endpoint)


class Compressor:
    """A block of `compress()`.

    Attributes:
        reports: what was done, in order.
        failures: errors that were passed over, with on_error="continue".
    """

    def __init__(self, model: torch.nn.Module, settings: Settings, client: Client | None, endpoint: str | None) -> None:
        self._name = check_model(model)
        self._place = place_of(model)
        self.reports: list[Report] = []
        self.failures: list[ChunkkvError] = []
        self._model, self._settings, self._endpoint = model, settings, endpoint
        self._client = client
        self._stack = ExitStack()
        self._stores: WeakSet[Store] = WeakSet()
        self._registrations: list[tuple[ref[Store], Registration]] = []
        self._said: set[str] = set()

    @property
    def last(self) -> Report | None:
        """The newest report; None before the first."""
        return self.reports[-1] if self.reports else None

    def __enter__(self) -> Compressor:
        with ExitStack() as stack:
            self._begin_alone()
            stack.callback(self._end_alone)
            if self._client is None:
                self._client = stack.enter_context(connect(self._place, self._endpoint))
                stack.callback(setattr, self, "_client", None)
            check_serves(self._client, self._place)
            self._try(self._client)
            stack.callback(self._release)
            stack.enter_context(recording(self._model))
            stack.enter_context(without_assistants(self._model))
            before = self._model.register_forward_pre_hook(self._before, with_kwargs=True)
            stack.callback(before.remove)
            after = self._model.register_forward_hook(lambda *_: end(), always_call=True)
            stack.callback(after.remove)
            filled = self._model.register_forward_hook(self._check_filled, with_kwargs=True)
            stack.callback(filled.remove)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self._stack.close()

    def compress(self, cache: Any) -> Report:
        """Compress a cache now, instead of before its next token.

        Raises:
            Unsupported: it is not one that was filled inside this block, or the block has ended, or nothing came
                since it was compressed before.
        """
        store = store_of(cache)
        if store is None or store not in self._stores or store.arena is None:
            raise Unsupported("this cache was not filled inside this block")
        if self not in _open or self._client is None:
            raise Unsupported("this block has ended: its caches are compressed inside it only")
        if store.arena.place.device != self._place.device:
            raise Unsupported(f"the rows of this cache are on {store.arena.place.device}, but the model's weights on "
                              f"{self._place.device}, for which this block asks the daemon")
        try:
            report = compress_store(self._client, store, self._settings)
        finally:
            self._hold(store)
        self.reports.append(report)
        if report.budget_raised:
            self._warn_raised(report.budget, max(report.rows_after.values()))
        return report

    # ---- at the beginning

    def _begin_alone(self) -> None:
        """Blocks of a model, or of a part of it, would each compress the same caches."""
        parts = set(self._model.modules())
        with _lock:
            if any(other._model in parts or self._model in set(other._model.modules()) for other in _open):
                raise Unsupported(f"this {type(self._model).__name__} is in a compress() block already: end that one "
                                  "first, as a model has one way of compressing at a time")
            _open.append(self)

    def _end_alone(self) -> None:
        with _lock:
            _open.remove(self)

    def _try(self, client: Client) -> None:
        """Ask the daemon now what it would refuse, or do otherwise, after the prompt."""
        layers = fresh_layers(self._model.config)[1]
        answer = try_settings(client, self._place, layers, self._settings)
        # with `voted`, which rows are always kept is known with the prompt
        known = self._settings.keep_ratio is None and self._settings.voted is None
        if answer is not None and answer.groups[0].budget_raised and known:
            self._warn_raised(self._settings.max_tokens or 0, answer.physical_len)

    def _warn_raised(self, asked: int, kept: int) -> None:
        """Once for each budget, and not where the caller said what to do then."""
        if all(policy.tight is None for policy in self._settings.policies((0, 1))):
            self._warn(f"{asked} rows are asked for, but the rows that are always kept (the first ones, the newest "
                       f"that vote, protect) are {kept}, and these are kept: ask for {kept} or more, or for "
                       "fewer sinks or a smaller window; tight=\"refuse\" makes this an error, tight=\"raise\" silent",
                       BudgetRaised)

    def _warn(self, words: str, kind: type[Warning]) -> None:
        if words not in self._said:
            self._said.add(words)
            warnings.warn(words, kind, stacklevel=2)

    # ---- hooks

    def _before(self, _: torch.nn.Module, args: tuple[Any, ...],
                given: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """A forward begins: its cache becomes ours, or was; the prompt may be over."""
        name = next((name for name in CACHE_NAMES if given.get(name) is not None), self._name)
        if given.get(name) is None and not _uses_cache(self._model, given.get("use_cache")):
            self._warn("this forward keeps no cache (use_cache=False, or a model in training), so there is nothing to "
                       "compress", UserWarning)
            return None
        if given.get(name) is None:
            given = {**given, name: ChunkKVCache(self._model.config)}
        cache = given[name]
        store = store_of(cache) or adopt(cache, self._model.config)
        if store not in self._stores:
            self._release_orphans()
            self._stores.add(store)
        _check_mask(given.get("attention_mask"))
        if _tokens(args, given) == 1 and self._is_due(store):
            self._compress(cache, store)
        wanted = not store.done or self._settings.every is not None
        begin(Call(store, self._settings.query_rows() if wanted else 0, wanted and self._settings.all_queries))
        return args, given

    @staticmethod
    def _check_filled(model: torch.nn.Module, _: Any, given: dict[str, Any], __: Any) -> None:
        """A forward went well; one that left its cache empty would be compressed by nobody, and silently."""
        store = next((store_of(given[name]) for name in CACHE_NAMES if given.get(name) is not None), None)
        if store is not None and store.seen == 0:
            raise Unsupported(f"this {type(model).__name__} wrote nothing to its cache, so there is nothing to "
                              "compress: give the causal language model itself")

    def _is_due(self, store: Store) -> bool:
        every = self._settings.every
        return store.seen > 0 and (not store.done or (every is not None and store.seen - store.since >= every))

    def _compress(self, cache: Any, store: Store) -> None:
        try:
            self.compress(cache)
        except ChunkkvError as error:
            lost = error.cache != CacheState.CLEAN or store.broken
            if self._settings.on_error == "raise" or lost or is_mistake(error):
                raise
            self.failures.append(error)
            store.done, store.since = True, store.seen

    def _hold(self, store: Store) -> None:
        """Remember what is registered of a cache, should it be let go before the block ends."""
        registration = store.registered and store.registered.registration
        if registration and all(one is not registration for _, one in self._registrations):
            self._registrations.append((ref(store), registration))

    def _release(self) -> None:
        for store in list(self._stores):
            store.release()
        self._release_orphans()

    def _release_orphans(self) -> None:
        """Unregister the memory of caches that nobody has any more."""
        for store, registration in self._registrations:
            if store() is None:
                registration.release()
        self._registrations = [(store, one) for store, one in self._registrations if one.is_held]


def _uses_cache(model: Any, asked: bool | None) -> bool:
    if asked is not None:
        return asked
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
