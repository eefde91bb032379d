"""A ZeroMQ peer in plain sockets (ZMTP 3.0, mechanism NULL), to send what no library would send."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable
from types import TracebackType

MORE, LONG, COMMAND = 1, 2, 4
SIGNATURE = b"\xff" + bytes(8) + b"\x7f"


def _property(name: bytes, value: bytes) -> bytes:
    return bytes([len(name)]) + name + struct.pack(">I", len(value)) + value


class Closed(Exception):
    """The other side has hung up."""


class Peer:
    """One connection; without ready() it stays in the middle of its handshake."""

    def __init__(self, path: str, timeout: float = 5.0) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(timeout)
        try:
            self.socket.connect(path)
        except OSError:
            self.socket.close()
            raise

    def greet(self, version: tuple[int, int] = (3, 0)) -> None:
        """Send and read a greeting."""
        self.push(SIGNATURE + bytes(version) + b"NULL".ljust(20, b"\0") + bytes(32))
        self.read(64)

    def ready(self, identity: bytes | None = b"", extra: Iterable[tuple[bytes, bytes]] = ()) -> None:
        """End the handshake as a DEALER; `extra` metadata are believed by nobody."""
        self.greet()
        body = b"\x05READY" + _property(b"Socket-Type", b"DEALER")
        if identity is not None:
            body += _property(b"Identity", identity)
        for name, value in extra:
            body += _property(name, value)
        self.frame(body, COMMAND)
        flags, length = self.read(2)
        if flags != COMMAND:
            raise Closed(f"flags {flags} instead of READY")
        if not self.read(length).startswith(b"\x05READY"):
            raise Closed("not let in")

    def frame(self, body: bytes, flags: int = 0) -> None:
        """One frame."""
        if len(body) < 256:
            self.push(bytes([flags, len(body)]) + body)
        else:
            self.push(bytes([flags | LONG]) + struct.pack(">Q", len(body)) + body)

    def receive(self) -> bytes:
        """The next message of one frame; heartbeats are answered."""
        while True:
            flags = self.read(1)[0]
            length = struct.unpack(">Q", self.read(8))[0] if flags & LONG else self.read(1)[0]
            body = self.read(length)
            if not flags & COMMAND:
                return body
            if body.startswith(b"\x04PING"):
                self.frame(b"\x04PONG" + body[7:], COMMAND)

    def push(self, data: bytes) -> None:
        """Bytes as they are."""
        try:
            self.socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise Closed(str(error)) from error

    def read(self, count: int) -> bytes:
        """Exactly so many bytes."""
        data = b""
        while len(data) < count:
            try:
                part = self.socket.recv(count - len(data))
            except ConnectionResetError as error:
                raise Closed(str(error)) from error
            if not part:
                raise Closed("end of file")
            data += part
        return data

    def is_cut(self, seconds: float) -> bool:
        """Does the other side hang up within this time?  What it says before is dropped."""
        self.socket.settimeout(seconds)
        try:
            while True:
                self.read(1)
        except Closed:
            return True
        except TimeoutError:
            return False

    def close(self) -> None:
        """Hang up."""
        self.socket.close()

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()
