"""Where a daemon is reached: one path prefix, two sockets.

`<prefix>.zmq` takes requests (ZeroMQ), `<prefix>.fd` takes descriptors (SOCK_SEQPACKET).
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from .errors import invalid

ENVIRONMENT = "CHUNKKV_ENDPOINT"
DEFAULT_PREFIX = "/run/chunkkv/cpu/main"
LONGEST_PATH = 107  # bytes of sun_path without its final zero


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
