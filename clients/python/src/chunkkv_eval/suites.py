"""Lists of jobs by name: what `make eval-quick` and `make eval` measure."""

from __future__ import annotations

from .methods import METHODS
from .runner import Job

# h2o scores every row's queries, which takes as long as all others together
CHEAP = tuple(name for name in METHODS if name != "h2o")
RIVALS = ("full", "default", "vote", "chunkkv", "snapkv", "snapkv-max")
VOTES = ("full", "snapkv", "snapkv-max", "default", "vote", "vote-each", "vote-leak")

SUITES: dict[str, list[Job]] = {
    "quick": [
        Job("number", 1024, 40, CHEAP, keep=(0.1, 0.2)),
        Job("fact", 512, 40, CHEAP, rows=(64, 128)),
        Job("numrev", 512, 40, METHODS, rows=(64,)),
        Job("icl", 512, 40, CHEAP, rows=(64, 128)),
        Job("number", 512, 20, RIVALS, keep=(0.1,)),
        Job("number", 2048, 20, RIVALS, keep=(0.1,)),
        Job("perplexity", 1024, 8, METHODS, keep=(0.1, 0.2)),
    ],
    "paper": [
        Job("number", 1024, 100, (*CHEAP, "snapkv-max7", "snapkv-w8", "chunkkv-w8"), keep=(0.05, 0.1, 0.2, 0.3)),
    ],
    "vote": [
        Job("fact", 512, 100, (*CHEAP, "vote-each", "vote-leak"), rows=(64, 128)),
        Job("numrev", 512, 100, (*CHEAP, "vote-each", "vote-leak"), rows=(64, 128)),
        Job("icl", 512, 100, (*CHEAP, "vote-each", "vote-leak"), rows=(64, 128)),
    ],
    "h2o": [
        Job("number", 512, 40, ("full", "h2o", "chunkkv", "vote"), rows=(64, 128)),
    ],
    "plain": [
        Job("perplexity", 1024, 24, (*METHODS, "vote-each", "vote-leak"), keep=(0.1, 0.2)),
    ],
    "long": [
        Job("number", 2048, 40, CHEAP, rows=(128, 256)),
        Job("number", 4096, 20, VOTES, rows=(128, 256)),
    ],
    "hidden": [
        Job("number", 512, 40, CHEAP, rows=(64, 128), question="hidden"),
    ],
    "other-model": [
        Job("number", 1024, 100, VOTES, keep=(0.1, 0.2)),
        Job("fact", 512, 100, VOTES, rows=(64, 128)),
        Job("numrev", 512, 100, VOTES, rows=(64, 128)),
        Job("icl", 512, 100, VOTES, rows=(64, 128)),
    ],
}
