"""How long a question will take, before it is asked, in passes of the model over 512 tokens.

The factors were fitted to CPU times of SmolLM2-135M on one core with the daemon on the same machine; on another model
the parts that the model does not run weigh less.  Good enough to say "half an hour", no better.
"""

from __future__ import annotations

from collections.abc import Sequence

from .results import Cell

PASS = 512  # tokens
BESIDE = 80  # tokens of a prompt beside its haystack
ANSWER = {"number": 6, "numrev": 6, "fact": 14, "icl": 4, "perplexity": 96}  # tokens
HIDDEN = 25  # tokens of a question that the compressor does not see, which run with the answer


def passes(cells: Sequence[Cell]) -> float:
    """Of one question, answered by the cells of one task and length."""
    task, tokens = cells[0].task, (cells[0].context + BESIDE) / PASS
    run = ANSWER[task] + HIDDEN * (cells[0].question == "hidden")
    each = 0.0075 + 0.0022 * run + 0.011 * tokens + 0.07 * tokens * (task == "perplexity")
    compressed = [cell.method for cell in cells if cell.method != "full"]
    every_query = 0.23 * tokens**1.7 * compressed.count("h2o")
    return float(tokens**1.25 + each * len(compressed) + every_query)
