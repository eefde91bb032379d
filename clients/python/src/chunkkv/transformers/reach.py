"""The daemon for the place that a model is at: finding it, and saying clearly when it serves another."""

from __future__ import annotations

from os import PathLike

from ..client import Client
from ..endpoint import RUNTIME, is_named
from ..errors import DaemonUnavailable, RegionError
from ..session import Session
from ..wire import Code
from .place import Place, gpu_name

NAME = "chunkkv.transformers"


def connect(place: Place, endpoint: str | PathLike[str] | None) -> Client:
    """A session with the daemon at an endpoint; without one, that of $CHUNKKV_ENDPOINT, or of the system's instances
    the one that serves the place.

    Raises:
        DaemonUnavailable: nobody answers there, or none of the system's serves the place.
        RegionError: it serves another device.
    """
    if is_named(endpoint):
        try:
            client = Client(endpoint, name=NAME)
        except DaemonUnavailable as error:
            raise DaemonUnavailable(f"{error.detail}; {_way_out(place)}", radius=error.radius) from error
        try:
            check_serves(client, place)
        except BaseException:
            client.close()
            raise
        return client
    found: list[str] = []
    for prefix in place.prefixes():
        try:
            client = Client(prefix, name=NAME)
        except DaemonUnavailable as error:
            found.append(error.detail)
            continue
        if client.session.device_uuid == place.uuid:
            return client
        found.append(f"{prefix} serves {_served(client.session)}")
        client.close()
    raise DaemonUnavailable(f"the model is on {place}, and of the daemons below {RUNTIME} none serves that"
                            f"{''.join(f'; {one}' for one in found)}; {_way_out(place)}")


def check_serves(client: Client, place: Place) -> None:
    """RegionError unless a daemon compresses what lies at this place."""
    if client.session.device_uuid != place.uuid:
        raise RegionError(f"the model is on {place}, but the daemon at {client.endpoint.prefix} serves "
                          f"{_served(client.session)}; {_way_out(place)}", code=Code.DEVICE_MISMATCH)


def _way_out(place: Place) -> str:
    return f"start one with {place.start} and set CHUNKKV_ENDPOINT=DIR/main"


def _served(session: Session) -> str:
    return gpu_name(session.device, session.device_uuid) if session.device_uuid else "the CPU"
