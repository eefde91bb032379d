"""Where a daemon is reached: one path prefix, two sockets.

`<prefix>.zmq` takes requests (ZeroMQ), `<prefix>.fd` takes descriptors (SOCK_SEQPACKET).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from .errors import invalid

ENVIRONMENT = "CHUNKKV_ENDPOINT"
RUNTIME = "/run/chunkkv"  # a directory for each of the system's instances
DEFAULT_PREFIX = f"{RUNTIME}/cpu/main"
LONGEST_PATH = 107  # bytes of sun_path without its final zero


def is_named(prefix: str | os.PathLike[str] | None) -> bool:
    """Does the caller or the environment say which daemon?"""
    return prefix is not None or bool(os.environ.get(ENVIRONMENT))


def prefixes_of_gpus() -> list[str]:
    """Endpoints of the system's own GPU instances, such as /run/chunkkv/gpu0/main."""
    return sorted(str(socket.with_suffix("")) for socket in Path(RUNTIME).glob("gpu*/main.zmq"))


@dataclass(frozen=True)
class Endpoint:
    """A daemon's endpoint, named by the common prefix of its two sockets."""

    prefix: str

    @classmethod
    def find(cls, prefix: str | os.PathLike[str] | None = None) -> Endpoint:
        """The endpoint given, or that of $CHUNKKV_ENDPOINT, or the system's own CPU instance."""
        chosen = os.fspath(prefix) if prefix is not None else os.environ.get(ENVIRONMENT) or DEFAULT_PREFIX
        chosen = chosen.removeprefix("ipc://").removesuffix(".zmq")
        if "\0" in chosen:
            raise invalid("endpoint", f"{chosen!r} holds a zero byte")
        if len(os.fsencode(chosen + ".zmq")) > LONGEST_PATH:
            raise invalid("endpoint", f"socket path longer than {LONGEST_PATH} bytes: {chosen}.zmq")
        return cls(chosen)

    @property
    def requests(self) -> str:
        """ZeroMQ address of the request socket."""
        return f"ipc://{self.prefix}.zmq"

    @property
    def side(self) -> str:
        """Path of the side socket."""
        return f"{self.prefix}.fd"
