"""Chunks that end where sentences and lines do: `chunk_lengths` of a request, from the tokens of its prompt.

    lengths = chunkkv.text.chunk_lengths(tokenizer, ids)            # transformers, tokenizers, tiktoken
    lengths = chunkkv.text.chunk_lengths(tokenizer, text=prompt)    # of the tokens that tokenizer(prompt) gives
    lengths = chunkkv.text.chunk_lengths(["The", " end", ".", ...]) # text or bytes of each token
    client.compress(cache, rows=sum(lengths), keep_ratio=0.2, chunk_lengths=lengths, policy=chunkkv.methods.chunk_at())

They serve selector "chunk_at" and pool "leak".  A row is a token here: a prompt that was compressed before has fewer
rows than tokens.  No tokenizer package is imported; what is called is the caller's own object.

Whether a chunk may end between two tokens is read off the bytes around that place alone.  A place is of one of five
levels: inside a character, between characters, between words, after a clause, and after a sentence or line.  A chunk
ends at the first place of the last kind that its bounds allow, else as late as they allow at the best there is.  A
full stop ends nothing inside a number, after an initial or a known abbreviation, after the number of a list's item, or
when the text goes on in lower case.  clients/c/src/text.c has the same rules; tests hold the two together.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any

from .checks import MOST_32, whole
from .errors import invalid

MIN_ROWS, MAX_ROWS = 4, 32
_INSIDE, _CHARACTER, _WORD, _CLAUSE, _END = range(5)
_MARKS = 8  # quotes and brackets that are looked past
_WORD_BYTES = 12  # no abbreviation is longer
_BLANKS, _SPACES = b" \t\r", b" \t\r\n"
_LETTERS = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
_DIGITS = frozenset(b"0123456789")


def _words(text: str) -> tuple[bytes, ...]:
    return tuple(word.encode() for word in text.split())


_NARROW_STOPS = _words(". ! ? \u2026 \u0964 \u061f \u06d4")
_WIDE_STOPS = _words("\u3002 \uff01 \uff1f \uff0e")
_NARROW_COMMAS = _words(", ; :")
_WIDE_COMMAS = _words("\uff0c \u3001 \uff1b \uff1a \u2014")
_CLOSERS = _words("\" ' ) ] } * _ ` \u201d \u2019 \u00bb \u203a \u300d \u300f \uff09 \u3011")
_OPENERS = _words("\" ' ( [ { * _ ` \u201c \u2018 \u00ab \u2039")
_ABBREVIATIONS = frozenset(_words(
    "Mr Mrs Ms Messrs Dr Prof St Jr Sr Rev Hon Gen Col Capt Lt Sgt Gov Sen Rep No Nos Vol vol Fig fig Figs Eq "
    "eq Eqs Sec sec Ch ch Tab Ref pp vs cf viz approx ca al Inc Ltd Co Corp Jan Feb Mar Apr Jun Jul Aug Sep Sept Oct "
    "Nov Dec"))


# ---- from whatever the caller has to bytes and offsets

def _byte_letters() -> dict[str, int]:
    """GPT-2's alphabet of bytes: printable ones stand for themselves, the others for letters from 256 on."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return {**{chr(byte): byte for byte in plain}, **{chr(256 + i): byte for i, byte in enumerate(others)}}


def _is_known(tokenizer: Any, token: str) -> bool:
    for name in ("convert_tokens_to_ids", "token_to_id"):
        if hasattr(tokenizer, name):
            number = getattr(tokenizer, name)(token)
            return number is not None and number != getattr(tokenizer, "unk_token_id", None)
    return False


def token_bytes(tokenizer: Any, ids: Iterable[int]) -> list[bytes]:
    """The bytes of each token, also of those that are parts of a character.

    Args:
        tokenizer: of transformers, tokenizers or tiktoken, or anything that has one of their ways from an id to its
            token: decode_single_token_bytes(id), convert_ids_to_tokens(ids), id_to_token(id), or else decode([id]).
        ids: of the tokens.
    """
    numbers = [whole("ids", number) for number in ids]
    if hasattr(tokenizer, "decode_single_token_bytes"):
        return [tokenizer.decode_single_token_bytes(number) for number in numbers]
    if hasattr(tokenizer, "convert_ids_to_tokens"):
        tokens = tokenizer.convert_ids_to_tokens(numbers)
    elif hasattr(tokenizer, "id_to_token"):
        tokens = [tokenizer.id_to_token(number) for number in numbers]
    else:
        return [_encoded(tokenizer.decode([number])) for number in numbers]
    # A vocabulary of GPT-2's kind has its letter for the blank, one of SentencePiece's kind has U+2581; which of the
    # two an accented letter belongs to cannot be told from the token.
    letters = _byte_letters() if _is_known(tokenizer, "\u0120") and not _is_known(tokenizer, "\u2581") else None
    return [_token_bytes(token or "", letters) for token in tokens]


def _token_bytes(token: str | bytes, letters: dict[str, int] | None) -> bytes:
    if isinstance(token, bytes):
        return token
    if letters is not None:
        known = [letters.get(letter) for letter in token]
        return _encoded(token) if None in known else bytes(known)  # type: ignore[arg-type]
    byte = re.fullmatch(r"<0x([0-9A-Fa-f]{2})>", token)
    return bytes([int(byte[1], 16)]) if byte else _encoded(token.replace("\u2581", " "))


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _ends_of_spans(spans: Iterable[Any], text: str) -> list[int]:
    """Byte offsets where the tokens end, from their spans in characters; markers have (0, 0)."""
    ends, at, place = [], 0, 0
    for i, (_, end) in enumerate(spans):
        if not 0 <= end <= len(text):
            raise invalid("tokens", f"token {i} ends at character {end}, the text has {len(text)}")
        if end > at:
            place += len(_encoded(text[at:end]))
            at = end
        ends.append(place)
    if ends:
        ends[-1] += len(_encoded(text[at:]))
    return ends


def _bytes_and_offsets(tokens: Any, ids: Iterable[int] | None, text: str | None) -> tuple[bytes, list[int]]:
    if ids is not None:
        pieces = token_bytes(tokens, ids)
    elif text is None:
        if isinstance(tokens, (str, bytes)) or not isinstance(tokens, Sequence):
            raise TypeError("tokens must be a list of pieces; with a tokenizer say ids or text, too")
        pieces = [piece if isinstance(piece, bytes) else _encoded(piece) for piece in tokens]
    else:
        spans = tokens
        if callable(tokens):
            if not getattr(tokens, "is_fast", False):
                return _bytes_and_offsets(tokens, tokens(text)["input_ids"], None)
            spans = tokens(text, return_offsets_mapping=True)["offset_mapping"]
        return _encoded(text), [0, *_ends_of_spans(spans, text)]
    return b"".join(pieces), list(accumulate((len(piece) for piece in pieces), initial=0))


# ---- from bytes and offsets to chunks: keep in step with clients/c/src/text.c

def _matching(data: bytes, at: int, words: tuple[bytes, ...], *, before: bool) -> int:
    """Bytes of the word that ends or begins there; 0 = none does."""
    for word in words:
        if data.endswith(word, 0, at) if before else data.startswith(word, at):
            return len(word)
    return 0


def _goes_on(data: bytes, at: int) -> bool:
    """Does the text go on with a small letter, perhaps after quotes?"""
    while at < len(data) and data[at] in _SPACES:
        at += 1
    for _ in range(_MARKS):
        at += _matching(data, at, _OPENERS, before=False)
    return data[at : at + 1].isalpha() and data[at : at + 1].islower()


def _is_abbreviation(data: bytes, at: int) -> bool:
    """Is the full stop before that place the end of an initial, an abbreviation or a list item's number?"""
    stop = first = at - 1
    while first > 0 and (data[first - 1] in _LETTERS or data[first - 1] in _DIGITS or data[first - 1] == ord(".")
                         or data[first - 1] >= 0x80):
        first -= 1
        if stop - first > _WORD_BYTES:
            return False
    word = data[first:stop]
    if not word:
        return False
    if word[-1] in _LETTERS and (len(word) == 1 or word[-2] == ord(".")):
        return len(word) > 1 or word != b"I"
    if word.isdigit():
        before = data[max(0, data.rfind(b"\n", 0, first)) : first].strip(_BLANKS)
        return before in (b"", b"\n")
    return word in _ABBREVIATIONS


def _level_of_stop(data: bytes, last: int, at: int) -> int:
    """Level of a place whose last character but blanks ends at `last`: what kind of stop is it?"""
    spaced = at > last or data[at] in _SPACES
    if not spaced and (_matching(data, at, _CLOSERS, before=False) or _matching(data, at, _WIDE_STOPS, before=False)):
        return _CHARACTER
    stop = last
    for _ in range(_MARKS):
        stop -= _matching(data, stop, _CLOSERS, before=True)
    if _matching(data, stop, _WIDE_STOPS, before=True):
        return _END
    commas = (*_WIDE_COMMAS, *_NARROW_COMMAS) if spaced else _WIDE_COMMAS
    if _matching(data, stop, commas, before=True):
        return _CLAUSE
    if not spaced or not _matching(data, stop, _NARROW_STOPS, before=True) or _goes_on(data, at):
        return _CHARACTER
    return _CHARACTER if data[stop - 1] == ord(".") and _is_abbreviation(data, stop) else _END


def _level(data: bytes, offsets: list[int], row: int, wrapped: bool) -> int:
    """Level of the place between the tokens row - 1 and row."""
    at = offsets[row]
    if offsets[row + 1] == at or data[at] & 0xC0 == 0x80:
        return _INSIDE  # an empty token stays with the one before it, a character in one chunk
    while row > 0 and offsets[row] == at:
        row -= 1
    start = offsets[row]
    last, following = at, at
    while last > start and data[last - 1] in _BLANKS:
        last -= 1
    level = _WORD if at > 0 and (data[at] in _SPACES or data[at - 1] in _SPACES) else _CHARACTER
    if last == start:
        return level  # what may end here ended in an earlier token
    while following < len(data) and data[following] in _BLANKS:
        following += 1
    if data[following : following + 1] == b"\n":
        return _CHARACTER
    if data[last - 1] == ord("\n"):
        lines = 0
        while last > 0 and data[last - 1] in _SPACES:
            last -= 1
            lines += data[last] == ord("\n")
        if lines > 1 or not wrapped:
            return _END
    return max(level, _level_of_stop(data, last, at))


def _chunk_end(data: bytes, offsets: list[int], first: int, least: int, most: int, wrapped: bool) -> int:
    rows = len(offsets) - 1
    if rows - first < 2 * least:
        return rows
    last_chunk = rows - first <= most
    best, highest = rows, _INSIDE
    for row in range(first + least, min(first + most, rows - least) + 1):
        level = _level(data, offsets, row, wrapped)
        if level == _END:
            return row
        if not last_chunk and level >= highest:
            best, highest = row, level
    return best


def chunk_lengths(tokens: Any, ids: Iterable[int] | None = None, *, text: str | None = None, min_rows: int = MIN_ROWS,
                  max_rows: int | None = None, wrapped: bool = False) -> list[int]:
    """Rows of each chunk, together as many as there are tokens.

    Args:
        tokens: a tokenizer, with `ids` or `text`; the text (or, for parts of characters, bytes) of each token; or, with
            `text`, the tokens' spans in it, as "offset_mapping" of a fast tokenizer of transformers.
        ids: of the prompt's tokens, markers included.
        text: the prompt.  With a tokenizer the tokens are those of tokenizer(text).
        min_rows: no chunk is shorter, unless the prompt is.
        max_rows: none is longer; at least 2 * min_rows; None = 32, or 2 * min_rows if that is more.
        wrapped: the lines of the text are wrapped, so that none but an empty one ends a chunk.

    >>> chunk_lengths(["It", " cost", " 3", ".", "50", ".", " Mr", ".", " Lee", " paid", "."], min_rows=2)
    [6, 5]
    """
    least = whole("min_rows", min_rows, 1)
    most = max(MAX_ROWS, 2 * least) if max_rows is None else whole("max_rows", max_rows, 1, MOST_32)
    if most < 2 * least:
        raise invalid("max_rows", f"must be at least twice min_rows {least}, is {most}")
    data, offsets = _bytes_and_offsets(tokens, ids, text)
    lengths, first = [], 0
    while first < len(offsets) - 1:
        end = _chunk_end(data, offsets, first, least, most, wrapped)
        lengths.append(end - first)
        first = end
    return lengths
