"""A session: what Hello and its Welcome settle, and the clock that deadlines are measured by."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, fields

from ._pb import chunkkv_pb2 as pb
from .checks import of_type
from .errors import invalid

MINOR_LEAST, MINOR_MOST = 0, 0  # versions that this client speaks
_numbers = itertools.count(1)


@dataclass(frozen=True)
class Limits:
    """What the daemon refuses to exceed; see Limits in chunkkv.proto."""

    request_bytes: int
    reply_bytes: int
    in_flight: int
    regions: int
    mapped_bytes: int
    rows: int
    planes: int
    groups: int
    spans: int
    hold_ms: int
    control_slots: int
    message_parts: int


@dataclass(frozen=True)
class Session:
    """What was agreed.

    Attributes:
        number: of this process, counted from 1: ids of one session mean nothing in another.
        boot_id: 16 bytes, of the daemon's run.
        token: 16 secret bytes.
        minor: version of the protocol.
        clock_offset_ns: add to this process's CLOCK_MONOTONIC to have the daemon's.
        capabilities: in lower case, such as "memfd".
        limits: of this daemon.
        device: name of the device served.
        device_uuid: 16 bytes of the GPU or MIG instance served; empty for the CPU.
        daemon: name and version.
    """

    number: int
    boot_id: bytes
    token: bytes
    minor: int
    clock_offset_ns: int
    capabilities: frozenset[str]
    limits: Limits
    device: str
    device_uuid: bytes
    daemon: str

    @classmethod
    def of_welcome(cls, response: pb.Response, asked_ns: int, answered_ns: int) -> Session:
        """A session out of a Welcome, asked for and answered at these times of our own clock."""
        welcome = response.welcome
        names = pb.Capability.DESCRIPTOR.values_by_number
        capabilities = {names[n].name.removeprefix("CAP_").lower() for n in welcome.capabilities if n in names}
        # the clocks are one, unless this process lives in a time namespace
        same = asked_ns <= welcome.now_ns <= answered_ns
        offset = 0 if same else welcome.now_ns - (asked_ns + answered_ns) // 2
        limits = Limits(**{item.name: getattr(welcome.limits, item.name) for item in fields(Limits)})
        return cls(next(_numbers), response.boot_id, welcome.session_token, welcome.minor, offset,
                   frozenset(capabilities), limits, welcome.device.name, welcome.device.uuid, welcome.daemon)

    def compose(self, body: pb.Request, request_id: int, deadline_ns: int, generation: int) -> bytes:
        """The bytes of a request; `body` brings its body, `deadline_ns` is of our own clock."""
        body.request_id = request_id
        body.deadline_ns = deadline_ns + self.clock_offset_ns
        body.generation = generation
        body.boot_id = self.boot_id
        body.session_token = self.token
        payload: bytes = body.SerializeToString(deterministic=True)
        return payload


def hello(request_id: int, name: str, now_ns: int, attach_token: bytes, needs: tuple[str, ...]) -> bytes:
    """The bytes of a Hello; its deadline is the daemon's default, as the clocks are not compared yet."""
    known = pb.Capability.DESCRIPTOR.values_by_name
    for i, need in enumerate(needs):
        of_type(f"needs[{i}]", need, str)
        if f"CAP_{need.upper()}" not in known:
            names = ", ".join(name.removeprefix("CAP_").lower() for name in known)
            raise invalid(f"hello.needs[{i}]", f"{need!r} is none of {names}")
    wanted = [pb.Capability.Value(f"CAP_{need.upper()}") for need in needs]
    body = pb.Hello(minor_min=MINOR_LEAST, minor_max=MINOR_MOST, client=name, now_ns=now_ns, attach_token=attach_token,
                    needs=wanted)  # type: ignore[arg-type]
    payload: bytes = pb.Request(request_id=request_id, hello=body).SerializeToString(deterministic=True)
    return payload
