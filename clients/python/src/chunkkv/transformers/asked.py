"""What a user wrote as method, options and budget, turned into policies; errors name the argument."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from difflib import get_close_matches
from typing import Any

from .. import methods
from ..checks import whole
from ..errors import ChunkkvError, InvalidArgument, Unsupported, invalid
from ..policy import MILLION, Policy

HYBRID = "hybrid"  # the one method that is a plan for the layers of a model
# where 0 on the wire means "what the profile says", and would be taken for it
FROM_ONE = ("window", "chunk", "pool_size", "reuse", "align", "vote_rows", "spike_keep", "page")
ARGUMENTS = ("keep_ratio", "max_tokens", "method", "every", "protect", "voted", "chunk_lengths", "on_error", "timeout",
             "client", "endpoint")


def policies_of(method: Any, options: dict[str, Any]) -> list[Policy] | None:
    """The policies of a method, the first for the first layer; None = the hybrid of whatever layers the model has.

    Raises:
        TypeError: there is no such option, or the method is neither a name nor policies.
        InvalidArgument: there is no such method.
    """
    if isinstance(method, str):
        return _named(method, options)
    plan = [method] if isinstance(method, Policy) else list(method) if isinstance(method, Sequence) else []
    if not plan or not all(isinstance(policy, Policy) for policy in plan):
        raise TypeError(f"method must be a name, a Policy or several, not {method!r}")
    if options:
        _check_names("", options)
        raise TypeError(f"{next(iter(options))} goes with a method's name: the policies given have it already")
    return plan


def _named(method: str, options: dict[str, Any]) -> list[Policy] | None:
    if method != HYBRID and method not in methods.METHODS:
        raise invalid("method", f"{method!r} is none of {', '.join((*methods.METHODS, HYBRID))}")
    _check_names(method, options)
    if method == HYBRID:
        for name, policy in options.items():
            if not isinstance(policy, Policy | None):
                raise TypeError(f"{name} must be a Policy, not {policy!r}")
        return None
    policy = methods.get(method, **options)
    if method == "h2o" and not {"heavy", "recent"} & options.keys():  # then a budget may be given instead
        policy = replace(policy, heavy=None, recent_part=None)
    return [policy]


def _check_names(method: str, options: dict[str, Any]) -> None:
    """TypeError for an option that the method, or a Policy where it has no name, does not have."""
    named: dict[str, Callable[..., Any]] = {**methods.METHODS, HYBRID: methods.hybrid, "": Policy}
    function = named[method]
    known = [name for name, parameter in inspect.signature(function).parameters.items()
             if parameter.kind is not parameter.VAR_KEYWORD and name != "layers"]
    if method != HYBRID:
        known += [item.name for item in fields(Policy) if item.name not in known]
    for name in options:
        if name not in known:
            near = get_close_matches(name, [*ARGUMENTS, *known], 1)
            raise TypeError(f"compress() has no argument {name!r}"
                            + (f", and method {method!r} no such option" if method else "")
                            + (f"; did you mean {near[0]!r}?" if near else f"; a method takes {', '.join(known)}"))


def check_policy(policy: Policy) -> None:
    """Values must be of their types, and not 0 where the least is 1.

    Raises:
        InvalidArgument, TypeError: with the option's name.
    """
    for name in FROM_ONE:
        if getattr(policy, name) == 0:
            raise invalid(name, "must be at least 1, is 0; without it, it is what the profile says")
    try:
        policy.to_message()
    except ChunkkvError as error:
        raise as_argument(error) from None
    except TypeError as error:
        raise TypeError(str(error).removeprefix("policy.")) from None


def as_argument(error: ChunkkvError) -> ChunkkvError:
    """The error with its field in terms of compress()'s arguments: compress.groups[0].max_tokens is max_tokens."""
    field = re.sub(r"^(compress|plan)\.(groups\[\d+\]\.)?", "", error.field)
    error.field = re.sub(r"^(policies\[0\]|policy)\.", "", field).replace("policies[", "method[")
    return error


def is_mistake(error: ChunkkvError) -> bool:
    """Is it an argument of compress() that is wrong, or goes with no prompt like this, whatever the daemon does?"""
    name = re.match(r"\w*", error.field)
    arguments = {*ARGUMENTS, *(item.name for item in fields(Policy))}
    return isinstance(error, Unsupported) or (isinstance(error, InvalidArgument) and name is not None
                                              and name[0] in arguments)


def check_lengths(lengths: Any) -> None:
    """Lengths of chunks must be whole numbers from 1 on."""
    try:
        items = list(lengths)
    except TypeError:
        raise TypeError(f"chunk_lengths must be a list of whole numbers, not {lengths!r}") from None
    if not items:
        raise invalid("chunk_lengths", "must have at least 1 entry, has 0")
    for i, length in enumerate(items):
        whole(f"chunk_lengths[{i}]", length, 1)


def halves_of(plan: Sequence[Policy], rows: int, budget: int) -> tuple[list[Policy], dict[str, Any]]:
    """H2O with a half of a budget for heavy hitters, and the other for the newest rows; an odd row is a heavy one.

    The wire has parts in millionths, of which the daemon takes the floor in rows: they are rounded up here.
    """
    if budget >= rows:  # all of them: halves, rounded up, may be more than a whole
        return [methods.streamingllm()], {"max_tokens": max(rows, 1)}
    recent = budget // 2
    heavy, newest = (-(-part * MILLION // rows) for part in (budget - recent, recent))
    return [replace(policy, heavy=heavy, recent_part=max(1, newest)) for policy in plan], {}
