"""Bytes on the request socket without the client's checks: for messages that no honest client sends."""

from __future__ import annotations

import time
from types import TracebackType

import zmq

import chunkkv
from chunkkv._pb import chunkkv_pb2 as pb

NANO = 1_000_000_000


class RawSession:
    """A DEALER that speaks for the session of a client, with its request ids."""

    def __init__(self, client: chunkkv.Client) -> None:
        self.session = client.session
        self._new_id = client.new_request_id
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.linger = 0
        self._socket.connect(client.endpoint.requests)

    def request(self, seconds: float = 5.0, **body: object) -> pb.Request:
        """A request of the session, complete."""
        return pb.Request(request_id=self._new_id(), deadline_ns=time.monotonic_ns() + int(seconds * NANO),
                          boot_id=self.session.boot_id, session_token=self.session.token,
                          **body)  # type: ignore[arg-type]

    def send(self, *frames: bytes) -> None:
        """Send frames as they are."""
        self._socket.send_multipart(frames)

    def receive(self, seconds: float = 5.0) -> pb.Response | None:
        """The next answer, None if there is none in time."""
        if not self._socket.poll(int(seconds * 1000)):
            return None
        return pb.Response.FromString(self._socket.recv_multipart()[-1])

    def ask(self, request: pb.Request | bytes, seconds: float = 5.0) -> pb.Response:
        """Send and receive."""
        self.send(request if isinstance(request, bytes) else request.SerializeToString(deterministic=True))
        answer = self.receive(seconds)
        assert answer is not None, "no answer"
        return answer

    def __enter__(self) -> RawSession:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self._socket.close(0)
        self._context.term()
