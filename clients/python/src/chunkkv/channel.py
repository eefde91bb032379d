"""The request socket: bytes out, the answer back, by a deadline, whatever dies in between.

A DEALER with IMMEDIATE (nothing is queued while nobody listens: a request executed after its caller gave up
would be corruption), LINGER 0 and no identity.  Requests that stay unanswered are repeated with the same
bytes, which the daemon executes at most once: after a quarter of the time left, and at once when a lost
connection is there again.  The core's pidfd is polled beside the socket.

This knows bytes, ids and time; what the messages mean, the client knows.
"""

from __future__ import annotations

import os
import select
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass

import zmq
from google.protobuf.message import DecodeError
from zmq.utils.monitor import recv_monitor_message

from ._pb import chunkkv_pb2 as pb

SHORTEST_WAIT_NS = 100_000_000  # before a repeat
RECONNECT_MS, RECONNECT_MOST_MS = 10, 500
HANDSHAKE_MS = 2000
LAST_ANSWER_MS = 50  # after the core's death, for what is on its way through the gate
MOST_ANSWER_BYTES = 64 << 20  # above every reply limit; larger frames are not ours


class NoAnswer(Exception):
    """The time was over."""


class CoreGone(Exception):
    """The daemon's process is dead, and no answer of it is left in the socket."""


@dataclass
class Pending:
    """A request that waits for its answer.

    Attributes:
        request_id: its id.
        payload: its bytes, the same each time.
        deadline_ns: of this process's CLOCK_MONOTONIC.
        sent: how often it was handed to a connection.
        due_ns: when it is to be sent (again).
    """

    request_id: int
    payload: bytes
    deadline_ns: int
    sent: int = 0
    due_ns: int = 0

    def mark_sent(self, now_ns: int) -> None:
        """Note a sending, and when the next is due."""
        self.sent += 1
        self.due_ns = now_ns + max(SHORTEST_WAIT_NS, (self.deadline_ns - now_ns) // 4)


def _close(process: int, context: zmq.Context[zmq.Socket[bytes]], sockets: list[zmq.Socket[bytes]]) -> None:
    if os.getpid() != process:
        return  # after a fork they are the parent's
    try:
        sockets[0].disable_monitor()
    finally:
        for socket in reversed(sockets):
            socket.close(0)
        context.term()


class Channel:
    """One connection to a gate; not thread-safe."""

    def __init__(self, address: str, pidfd: int = -1) -> None:
        """Connect (in the background); `pidfd` stays the caller's, -1 = none to watch."""
        self._context = zmq.Context(io_threads=1)
        self._socket = self._context.socket(zmq.DEALER)
        sockets = [self._socket]
        # sockets first, then the context, also when a channel is forgotten or never finished: a context that is
        # collected before its sockets waits for them for ever
        self._finalizer = weakref.finalize(self, _close, os.getpid(), self._context, sockets)
        for option, value in ((zmq.IMMEDIATE, 1), (zmq.LINGER, 0), (zmq.RECONNECT_IVL, RECONNECT_MS),
                              (zmq.RECONNECT_IVL_MAX, RECONNECT_MOST_MS), (zmq.HANDSHAKE_IVL, HANDSHAKE_MS),
                              (zmq.MAXMSGSIZE, MOST_ANSWER_BYTES)):
            self._socket.setsockopt(option, value)
        self._monitor = self._socket.get_monitor_socket(zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_SUCCEEDED)
        sockets.append(self._monitor)
        self._lost = False
        self._death = select.poll()
        self._poller = zmq.Poller()
        self._poller.register(self._monitor, zmq.POLLIN)
        if pidfd >= 0:
            self._poller.register(pidfd, zmq.POLLIN)
            self._death.register(pidfd, select.POLLIN)
        self._socket.connect(address)

    def close(self) -> None:
        """Close at once; nothing lingers."""
        self._finalizer()

    def exchange(self, pending: Pending) -> pb.Response:
        """Send one request and wait for its answer, at most until its deadline; NoAnswer or CoreGone otherwise."""
        return self.wait([pending], pending.deadline_ns)[1]

    def wait(self, waiting: Sequence[Pending], until_ns: int) -> tuple[Pending, pb.Response]:
        """The first answer to any of these requests, sending what is due; NoAnswer at `until_ns`, or CoreGone."""
        while True:
            found = self._receive(waiting)
            if found:
                return found
            if self.core_is_dead():  # asked before sending: what is not sent is certainly not executed
                found = self._last_answer(waiting)
                if found:
                    return found
                raise CoreGone
            now = time.monotonic_ns()
            if now >= until_ns:
                raise NoAnswer
            blocked = [item for item in waiting if not self._send_if_due(item, now)]
            wake_ns = until_ns if blocked else min(until_ns, *(item.due_ns for item in waiting))
            self._poller.register(self._socket, zmq.POLLIN | (zmq.POLLOUT if blocked else 0))
            events = dict(self._poller.poll(max(0, -(-(wake_ns - now) // 1_000_000))))
            if self._monitor in events and self._came_back():
                for item in waiting:  # its answer went with the connection
                    item.due_ns = 0

    def core_is_dead(self) -> bool:
        """Does the pidfd say so?"""
        return bool(self._death.poll(0))

    def _last_answer(self, waiting: Sequence[Pending]) -> tuple[Pending, pb.Response] | None:
        """An answer that a dead core had given to its gate already."""
        if any(item.sent for item in waiting):
            self._socket.poll(LAST_ANSWER_MS)
        return self._receive(waiting)

    def _send_if_due(self, item: Pending, now_ns: int) -> bool:
        """False when it is due and no connection takes it."""
        if now_ns < item.due_ns:
            return True
        try:
            self._socket.send(item.payload, zmq.DONTWAIT)
        except zmq.Again:
            return False
        item.mark_sent(now_ns)
        return True

    def _receive(self, waiting: Sequence[Pending]) -> tuple[Pending, pb.Response] | None:
        """The next answer to one of these requests that is there already; others are of requests given up."""
        while True:
            try:
                frames = self._socket.recv_multipart(zmq.DONTWAIT)
            except zmq.Again:
                return None
            if len(frames) != 1:
                continue
            try:
                response = pb.Response.FromString(frames[0])
            except DecodeError:
                continue
            for item in waiting:
                # 0: the gate could not read so far as the id, and the oldest one asked
                if response.request_id in (item.request_id, 0):
                    return item, response

    def _came_back(self) -> bool:
        """Was the connection lost, and is it there again?

        The loss alone is no reason to send: for a moment the socket still takes messages for the connection that
        is gone, and drops them.
        """
        back = False
        while True:
            try:
                event = recv_monitor_message(self._monitor, zmq.DONTWAIT)
            except zmq.Again:
                return back
            if event["event"] == zmq.Event.DISCONNECTED:
                self._lost = True
            elif self._lost:
                self._lost, back = False, True
