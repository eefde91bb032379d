"""Texts to hide things in: plain or gzipped files of a directory, cut at sentences."""

from __future__ import annotations

import gzip
import random
import re
from collections.abc import Callable
from pathlib import Path

TEXTS = Path(__file__).parent / "texts"
CHARACTERS_PER_TOKEN = 6  # more than English prose has
MARGIN = 2000  # characters, so that a cut at sentences leaves enough
SENTENCE = re.compile(r"[^.!?]+[.!?]+[\"']?\s*")


def read_texts(directory: Path = TEXTS) -> list[str]:
    """The texts of a directory, *.txt and *.txt.gz, by name, blanks and line ends made one blank each.

    Raises:
        ValueError: there is none.
    """
    found = []
    for path in sorted(directory.iterdir()) if directory.is_dir() else []:
        if path.name.endswith(".txt"):
            found.append(path.read_text(encoding="utf-8"))
        elif path.name.endswith(".txt.gz"):
            found.append(gzip.decompress(path.read_bytes()).decode("utf-8"))
    if not found:
        raise ValueError(f"{directory}: no *.txt and no *.txt.gz in it")
    return [" ".join(text.split()) for text in found]


def passage(texts: list[str], rng: random.Random, characters: int) -> str:
    """So many characters from a place of one of the texts, both drawn by chance.

    Raises:
        ValueError: no text is long enough.
    """
    long_enough = [text for text in texts if len(text) > characters]
    if not long_enough:
        raise ValueError(f"no text has {characters} characters; the longest has {max(map(len, texts))}")
    text = rng.choice(long_enough)
    start = rng.randrange(len(text) - characters + 1)
    return text[start : start + characters]


def sentences(texts: list[str], rng: random.Random, tokens: int, count: Callable[[str], int]) -> list[str]:
    """Whole sentences in a row with at most so many tokens, each with one blank behind it."""
    text = passage(texts, rng, tokens * CHARACTERS_PER_TOKEN + MARGIN)
    begin = text.find(". ") + 2
    out, total = [], 0
    for found in SENTENCE.findall(text[begin:]):
        sentence = found.strip() + " "
        total += count(sentence)
        if total > tokens:
            break
        out.append(sentence)
    return out
