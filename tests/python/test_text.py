"""Chunks out of text: what a person would cut, the vectors that C has too, tokenizers of three kinds, random bytes."""

from __future__ import annotations

import ctypes
import json
import random
import re
from itertools import accumulate, pairwise
from typing import Any

import pytest

import chunkkv
from chunkkv import text
from daemon import ROOT, Daemon, build_directory, is_sanitizer_build

VECTORS = json.loads((ROOT / "tests" / "vectors" / "text.json").read_text())
PIECES = json.loads((ROOT / "tests" / "data" / "needle-1k.json").read_text())["pieces"]
NEEDLE = "The magic number of Lisbon is 48213."
PROMPT = 'Mr. Lee paid 3.50. He left—"at last!" 🤗 Né.\n\n今天。明天\n'


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["name"])
def test_vectors(vector: dict[str, Any]) -> None:
    """By hand, and random ones that hold this and the C library together."""
    data = vector["text"].encode()
    pieces = [data[first:end] for first, end in pairwise(vector["offsets"])]
    bounds = {name: vector[name] for name in ("min_rows", "max_rows", "wrapped")}
    assert text.chunk_lengths(pieces, **bounds) == vector["lengths"]


def test_sentences_of_the_real_text() -> None:
    """The planted sentence is a chunk of its own, and the abbreviation before it ends none."""
    lengths = text.chunk_lengths(PIECES, wrapped=True)
    assert sum(lengths) == len(PIECES) == 1024
    ends = list(accumulate(lengths, initial=0))
    chunks = ["".join(PIECES[first:end]).strip() for first, end in pairwise(ends)]
    assert NEEDLE in chunks
    assert "Mr. Knightley shook his head at her." in chunks


def random_pieces(rng: random.Random) -> list[bytes]:
    """Words and marks that mean something, cut anywhere, and bytes that are no text."""
    words = ["a", " b", " The", "Mr", ".", ".", " ", "\n", "\r\n", ",", "!", '"', "\u201d", "(", "\u3002", "\uff0c",
             "\u300d", "\u00e9", " 3", "", "\U0001f917", "I", "1", " etc"]
    data = b"".join(rng.choice((rng.choice(words).encode(), rng.choice(words).encode(), rng.randbytes(1)))
                    for _ in range(rng.choice((0, 1, 5, 40, 200))))
    cuts = sorted(rng.randrange(len(data) + 1) for _ in range(rng.choice((0, 3, len(data) // 2, 2 * len(data)))))
    return [data[first:end] for first, end in pairwise([0, *cuts, len(data)])]


def c_lengths(library: ctypes.CDLL, pieces: list[bytes], least: int, most: int, wrapped: bool) -> list[int]:
    """What chunkkv_text_chunks() says."""
    offsets = (ctypes.c_uint64 * (len(pieces) + 1))(*accumulate(map(len, pieces), initial=0))
    lengths, count = (ctypes.c_uint32 * (len(pieces) // least + 1))(), ctypes.c_size_t()
    assert library.chunkkv_text_chunks(b"".join(pieces), offsets, len(pieces), least, most, wrapped, lengths,
                                       ctypes.byref(count), None) == 0
    return list(lengths[: count.value])


def test_properties_and_the_c_library() -> None:
    """Lengths within their bounds, together all rows, no character cut that need not be; the same in C."""
    try:
        # one with a sanitizer ends a process that did not begin with it
        library = None if is_sanitizer_build() else ctypes.CDLL(str(build_directory() / "libchunkkv.so"))
    except OSError:
        library = None  # none was built
    rng = random.Random(11)
    for _ in range(2000):
        pieces = random_pieces(rng)
        least = rng.randrange(1, 6)
        most = 2 * least + rng.randrange(10)
        wrapped = rng.random() < 0.5
        lengths = text.chunk_lengths(pieces, min_rows=least, max_rows=most, wrapped=wrapped)
        assert sum(lengths) == len(pieces)
        assert all(length <= most for length in lengths)
        assert len(pieces) < least or all(length >= least for length in lengths)
        if library is not None:
            assert c_lengths(library, pieces, least, most, wrapped) == lengths
    if library is None:
        pytest.skip("no libchunkkv.so that Python can load: only the Python side was tried")


def test_long_texts_take_linear_time() -> None:
    """Runs of blanks, quotes and markers of any length are read once."""
    for piece in ("\n", " ", '"', ".", "(", "", "\n ", ")."):
        assert sum(text.chunk_lengths([piece] * 100_000)) == 100_000


# ---- tokenizers

class Letters:
    """A byte-level vocabulary as transformers shows it: one token for each byte, and a marker."""

    unk_token_id = None

    def convert_tokens_to_ids(self, token: str) -> int | None:
        return text._byte_letters().get(token)

    def convert_ids_to_tokens(self, ids: list[int]) -> list[str]:
        alphabet = {byte: letter for letter, byte in text._byte_letters().items()}
        return [alphabet.get(number, "<|end\u2581of|>") for number in ids]


class Sentence:
    """A vocabulary of SentencePiece's kind, as the package tokenizers shows it."""

    pieces = ("<unk>", "\u2581Mr", ".", "\u2581Lee", "\u2581left", "<0x0A>", "<0xF0>", "<0x9F>", "<0xA4>", "<0x97>",
              "\u0120", "\u2581")

    def token_to_id(self, token: str) -> int | None:
        return self.pieces.index(token) if token in self.pieces else None

    def id_to_token(self, number: int) -> str:
        return self.pieces[number]


def test_byte_level_vocabulary() -> None:
    ids = [*PROMPT.encode(), 256]
    assert b"".join(text.token_bytes(Letters(), ids)) == PROMPT.encode() + "<|end\u2581of|>".encode()
    expected = text.chunk_lengths([*(bytes([byte]) for byte in PROMPT.encode()), "<|end\u2581of|>"])
    assert text.chunk_lengths(Letters(), ids) == expected


def test_sentencepiece_vocabulary() -> None:
    """Bytes that have no piece are parts of one character; a letter of GPT-2's alphabet is a letter."""
    assert text.token_bytes(Sentence(), [1, 2, 3, 6, 7, 8, 9, 10, 5]) == [
        b" Mr", b".", b" Lee", b"\xf0", b"\x9f", b"\xa4", b"\x97", "\u0120".encode(), b"\n"]
    assert text.chunk_lengths(Sentence(), [1, 2, 3, 4, 2, 5, 3, 4, 2], min_rows=1) == [6, 3]


def test_exact_bytes_and_decoders() -> None:
    class Exact:
        def decode_single_token_bytes(self, number: int) -> bytes:
            return bytes([number])

    class Plain:
        def decode(self, ids: list[int]) -> str:
            return chr(ids[0])

    ids = list(b"One. Two.")
    assert text.chunk_lengths(Exact(), ids, min_rows=1) == [4, 5]
    assert text.chunk_lengths(Plain(), ids, min_rows=1) == [4, 5]


def test_offset_mapping() -> None:
    """Spans in characters; markers have none, blanks between belong to the next, parts of a character share one."""
    prompt = "Ein Fuß. \U0001f917 Ja.\n"
    spans = [(0, 0), (0, 3), (4, 7), (7, 8), (9, 10), (9, 10), (9, 10), (11, 13), (13, 14), (0, 0)]
    assert text.chunk_lengths(spans, text=prompt, min_rows=1) == [4, 6]

    class Fast:
        is_fast = True

        def __call__(self, given: str, return_offsets_mapping: bool) -> dict[str, Any]:
            assert given == prompt
            assert return_offsets_mapping
            return {"offset_mapping": spans}

    class Slow(Letters):
        def __call__(self, given: str) -> dict[str, Any]:
            return {"input_ids": list(given.encode())}

    assert text.chunk_lengths(Fast(), text=prompt, min_rows=1) == [4, 6]
    assert text.chunk_lengths(Slow(), text="One. Two.", min_rows=1) == [4, 5]


def tokenizers_of(texts: list[str]) -> dict[str, Any]:
    """Real tokenizers, trained here: GPT-2's kind, and SentencePiece's with bytes to fall back on."""
    package = pytest.importorskip("tokenizers", reason="not needed by the client, so it may be missing")
    made = {}
    made["bytes"] = package.Tokenizer(package.models.BPE())
    made["bytes"].pre_tokenizer = package.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made["bytes"].decoder = package.decoders.ByteLevel()
    made["bytes"].train_from_iterator(texts, package.trainers.BpeTrainer(
        vocab_size=600, initial_alphabet=package.pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    fallback = [f"<0x{byte:02X}>" for byte in range(256)]
    made["pieces"] = package.Tokenizer(package.models.BPE(byte_fallback=True, unk_token="<unk>"))
    made["pieces"].pre_tokenizer = package.pre_tokenizers.Metaspace()
    made["pieces"].train_from_iterator(texts, package.trainers.BpeTrainer(
        vocab_size=900, special_tokens=["<unk>", *fallback], show_progress=False))
    return made


@pytest.mark.parametrize("kind", ["bytes", "pieces"])
def test_real_tokenizers(kind: str) -> None:
    """The bytes of the tokens are those of the text, and by ids or by spans the chunks are the same."""
    tokenizer = tokenizers_of([*re.findall(r"[^\n]+\n", "".join(PIECES)), "\u2581"])[kind]
    for prompt in ("".join(PIECES), PROMPT):
        encoding = tokenizer.encode(prompt)
        joined = b"".join(text.token_bytes(tokenizer, encoding.ids))
        assert joined in (prompt.encode(), b" " + prompt.encode())  # SentencePiece puts a blank in front
        if kind == "bytes":
            assert text.chunk_lengths(tokenizer, encoding.ids) == text.chunk_lengths(encoding.offsets, text=prompt)


# ---- what is wrong, and what comes of it

@pytest.mark.parametrize(("arguments", "error", "word"), [
    ({"tokens": ["a"], "min_rows": 0}, chunkkv.InvalidArgument, "min_rows"),
    ({"tokens": ["a"], "min_rows": 4, "max_rows": 7}, chunkkv.InvalidArgument, "max_rows"),
    ({"tokens": "One text."}, TypeError, "list of pieces"),
    ({"tokens": Letters()}, TypeError, "ids or text"),
    ({"tokens": Letters(), "ids": [-1]}, chunkkv.InvalidArgument, "ids"),
    ({"tokens": Letters(), "ids": ["a"]}, TypeError, "ids"),
    ({"tokens": [(0, 5)], "text": "One."}, chunkkv.InvalidArgument, "token 0 ends at character 5"),
])
def test_refusals(arguments: dict[str, Any], error: type[Exception], word: str) -> None:
    with pytest.raises(error, match=re.escape(word)):
        text.chunk_lengths(**arguments)


@pytest.mark.parametrize("policy", [chunkkv.methods.chunk_at(), chunkkv.methods.vote(pool="leak", pool_size=None)])
def test_lengths_feed_the_daemon(daemon: Daemon, policy: chunkkv.Policy) -> None:
    """chunk_at keeps whole sentences, but for the one that is cut; the leak takes the same lengths."""
    lengths = text.chunk_lengths(PIECES, wrapped=True)
    with chunkkv.Client(daemon.prefix()) as client, chunkkv.SharedCache.allocate(
            client, layers=2, tokens=1024, kv_heads=1, q_heads=2, head_dim=8, window=8, dtype="f32") as cache:
        rng = random.Random(3)
        for layer in range(2):
            for array in (cache.key(layer), cache.value(layer), cache.query(layer)):
                array[...] = [[[rng.gauss(0, 1) for _ in range(8)]] * array.shape[1] for _ in range(array.shape[0])]
        answer = client.plan(cache, rows=1024, keep_ratio=0.3, chunk_lengths=lengths,
                             policy=policy if policy.profile == "vote" else chunkkv.methods.chunk_at(window=8))
    ends = list(accumulate(lengths, initial=0))
    kept = set(answer.layers[0].rows.tolist())
    assert len(kept) == answer.physical_len == 307
    if policy.selector == "chunk_at":
        inside = [sum(row in kept for row in range(max(first, 4), min(end, 1016))) for first, end in pairwise(ends)]
        parts = [0 < n < min(end, 1016) - max(first, 4) for n, (first, end) in zip(inside, pairwise(ends), strict=True)]
        assert sum(parts) <= 1
