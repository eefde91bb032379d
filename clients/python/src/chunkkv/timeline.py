"""Timeline words: order between an engine's own stream and a request, with no thread that waits.

Eight bytes in a registered region.  A word only goes up; it has come to a value when it is not behind it, cyclically.
On a GPU the engine's stream writes the word (cuStreamWriteValue64 to memory registered with cuMemHostRegister), and may
wait for the other one, which it can also write itself if the daemon dies.
"""

from __future__ import annotations

from dataclasses import dataclass

from ._pb import chunkkv_pb2 as pb
from .checks import MOST_64, of_type, whole
from .region import Slice


@dataclass(frozen=True)
class TimelineWord:
    """A word and what it is to come to.

    Attributes:
        word: 8 bytes, aligned to 8, of a memfd's region: `region.slice(offset, 8)`.
        value: 0 .. 2^64 - 1.
    """

    word: Slice
    value: int

    def to_message(self) -> pb.TimelineWord:
        """The wire's message."""
        of_type("timeline word", self.word, Slice)
        return pb.TimelineWord(word=self.word.to_message(), value=whole("timeline value", self.value, 0, MOST_64))
