#!/usr/bin/env python3
"""The main job on real tensors, visibly: a language model's cache of a real text, compressed in place.

Starts chunkkvd in a private directory, and in another process a client that loads the cache of SmolLM2 on a chapter
with one planted sentence (tests/data/needle-1k), has it compressed to 10, 20 and 30 %, compares every byte that is left
with the rows that the daemon says it kept, shows the kept text, and sets profile vote beside default.  At the end
`chunkkvctl explain` has the same daemon score the text once more and writes a page about it, whose path is the last
line.  Ends by itself, leaves nothing running, and exits with 1 if a byte is wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "clients" / "python" / "src"))

import chunkkv  # noqa: E402
import numpy as np  # noqa: E402
from chunkkv import safetensors  # noqa: E402
from chunkkv_eval.daemon import private  # noqa: E402

DATA = ROOT / "tests" / "data" / "needle-1k"
NEEDLE = range(401, 415)  # the rows of "The magic number of Lisbon is 48213."
RATIOS = (0.1, 0.2, 0.3)
PROFILE_RATIOS = (0.06, *RATIOS)  # at 6 % the vote has the whole sentence already
PAGE_RATIO = 0.2
WINDOW = 64  # query rows in the file; profile default lets the newest 32 vote
CLIENT_SECONDS = 120.0
BOLD, DIM, PLAIN = "\033[1m", "\033[2m", "\033[0m"


# ---- the daemon, and the process that is its client

def write_page(build: Path, prefix: str) -> int:
    """The page of chunkkvctl explain, and its path as the last line; the exit code of chunkkvctl."""
    page = build / "demo.html"
    explain = subprocess.run(
        [str(build / "chunkkvctl"), "explain", os.path.relpath(DATA.with_suffix(".safetensors")), "--tokens",
         os.path.relpath(DATA.with_suffix(".json")), "--out", os.path.relpath(page), "--keep-ratio", str(PAGE_RATIO),
         "--endpoint", prefix, "--force"], stdout=subprocess.DEVNULL, timeout=CLIENT_SECONDS, check=False)
    if explain.returncode == 0:
        print(f"\nThe same at {PAGE_RATIO:.0%} with the scores of all chunks, as a page to open in a browser:\n{page}")
    return explain.returncode


def run_demo(build: Path) -> int:
    """Start the daemon, run the client in a process of its own, stop the daemon; the client's exit code."""
    with private(build / "chunkkvd", "chunkkv-demo-") as daemon:
        print(f"chunkkvd runs as process {daemon.pid}, sockets in {daemon.directory}")
        sys.stdout.flush()
        client = subprocess.run([sys.executable, __file__, "--client", daemon.endpoint],
                                timeout=CLIENT_SECONDS, check=False)
        return client.returncode or write_page(build, daemon.endpoint)


# ---- the client

@dataclass
class Text:
    """The tokens of the prompt, and what the cache of each layer held at first."""

    pieces: list[str]
    tensors: dict[str, np.ndarray]
    layers: list[int]


def load() -> Text:
    """Tokens and tensors of the demo's text."""
    about = json.loads(DATA.with_suffix(".json").read_text())
    return Text(about["pieces"], safetensors.load(DATA.with_suffix(".safetensors")), about["layers"])


def fill(cache: chunkkv.SharedCache, text: Text) -> None:
    """The cache as the model left it after the prompt."""
    for layer in text.layers:
        cache.key(layer)[...] = text.tensors[f"layer{layer}.key"]
        cache.value(layer)[...] = text.tensors[f"layer{layer}.value"]
        cache.query(layer)[...] = text.tensors[f"layer{layer}.query"]


def wrong_rows(cache: chunkkv.SharedCache, text: Text, answer: chunkkv.Answer) -> int:
    """Rows that are not, bit for bit, those that the answer names; rows behind them must not have moved at all."""
    wrong = 0
    for layer in text.layers:
        rows = answer.layers[layer].rows
        for now, name in ((cache.key(layer), "key"), (cache.value(layer), "value")):
            before = text.tensors[f"layer{layer}.{name}"]
            expected = before.copy()
            expected[: len(rows)] = before[rows]
            wrong += int((now != expected).any(axis=(1, 2)).sum())
    return wrong


def needle_rows(kept: np.ndarray) -> int:
    """How many rows of the planted sentence are among the kept ones."""
    return int(np.isin(np.arange(NEEDLE.start, NEEDLE.stop), kept).sum())


def marked_text(pieces: list[str], kept: list[tuple[int, int]], colour: bool) -> str:
    """The prompt with its kept parts marked: bold and dim on a terminal, [brackets] and counts elsewhere."""
    out, place = [], 0
    for first, end in [*kept, (len(pieces), len(pieces))]:
        if first > place:
            dropped = "".join(pieces[place:first])
            out.append(f"{DIM}{dropped}{PLAIN}" if colour else f" …{first - place}… ")
        if end > first:
            part = "".join(pieces[first:end])
            out.append(f"{BOLD}{part}{PLAIN}" if colour else "[" + " ".join(part.split()) + "]")
        place = end
    text = "".join(out)
    return text if colour else "\n".join(textwrap.wrap(text, 118, initial_indent="  ", subsequent_indent="  "))


def show(text: Text, answer: chunkkv.Answer, layer: int, colour: bool) -> None:
    """The kept text of one layer."""
    found = needle_rows(answer.layers[layer].rows)
    print(f"\nkept {answer.physical_len} of {len(text.pieces)} rows in {answer.timing.total_us / 1000:.1f} ms "
          f"({answer.groups[0].bytes_moved / 1e6:.1f} MB moved).  Layer {layer} has {found} of {len(NEEDLE)} rows of "
          "the planted sentence left:")
    print(marked_text(text.pieces, list(answer.layers[layer].kept), colour))


def show_table(text: Text, answers: dict[float, chunkkv.Answer]) -> None:
    """For each layer and ratio: rows kept, rows of the planted sentence among them."""
    print(f"\nrows kept / rows of the planted sentence ({NEEDLE.start} to {NEEDLE.stop - 1}) among them")
    print("  layer" + "".join(f"{ratio:>12.0%}" for ratio in answers))
    for layer in text.layers:
        cells = [f"{len(a.layers[layer].rows)} / {needle_rows(a.layers[layer].rows):2d}" for a in answers.values()]
        print(f"  {layer:5d}" + "".join(f"{cell:>12}" for cell in cells))
    with_it = [sum(needle_rows(a.layers[n].rows) > 0 for n in text.layers) for a in answers.values()]
    print("  some of it survives on" + ",".join(
        f" {count} of {len(text.layers)} layers at {ratio:.0%}" for count, ratio in zip(with_it, answers, strict=True)))


def index_list(ranges: list[tuple[int, int]], most: int = 12) -> str:
    """Kept ranges as people write them, the first ones."""
    shown = [str(first) if end == first + 1 else f"{first}-{end - 1}" for first, end in ranges]
    return " ".join(shown[:most]) + (f" ... ({len(shown)} ranges)" if len(shown) > most else "")


def show_profiles(client: chunkkv.Client, cache: chunkkv.SharedCache, text: Text) -> None:
    """The planted sentence under profile default, on each layer, and under vote, which has one set for all."""
    print(f"\nprofile vote beside default: rows of the planted sentence left, of {len(NEEDLE)}, at the same share kept")
    layers = " ".join(f"{layer:3d}" for layer in text.layers)
    print(f"  {'kept':>6}{'':4}default, layers {layers}{'':6}vote, all layers")
    fill(cache, text)
    for ratio in PROFILE_RATIOS:
        default, vote = (client.plan(cache, rows=len(text.pieces), keep_ratio=ratio, policy=policy)
                         for policy in (chunkkv.methods.chunkkv(), chunkkv.methods.vote()))
        found = " ".join(f"{needle_rows(default.layers[layer].rows):3d}" for layer in text.layers)
        print(f"  {ratio:6.0%}{'':19} {found}{'':6}{needle_rows(vote.layers[text.layers[0]].rows):3d}")
        if ratio == RATIOS[0]:
            kept = index_list(list(vote.layers[text.layers[0]].kept))
    print(f"  all rows that vote keeps at {RATIOS[0]:.0%}, on every layer: {kept}")


def run_client(prefix: str) -> int:
    """Compress to each ratio, check, show; 1 if anything is wrong."""
    text = load()
    colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    answers: dict[float, chunkkv.Answer] = {}
    wrong = 0
    with chunkkv.Client(prefix) as client, chunkkv.SharedCache.allocate(
            client, layers=text.layers, tokens=len(text.pieces), kv_heads=3, q_heads=9, head_dim=64, dtype="bf16",
            window=WINDOW) as cache:
        print(f"the client is process {os.getpid()}; its cache: {len(text.layers)} layers, {len(text.pieces)} rows, "
              f"{cache.memory.size / 1e6:.1f} MB of shared memory; profile default")
        for ratio in RATIOS:
            fill(cache, text)
            answer = client.compress(cache, rows=len(text.pieces), keep_ratio=ratio)
            wrong += wrong_rows(cache, text, answer)
            answers[ratio] = answer
            best = max(text.layers, key=lambda layer: needle_rows(answer.layers[layer].rows))
            show(text, answer, best, colour)
        show_table(text, answers)
        show_profiles(client, cache, text)
    rows = sum(a.physical_len for a in answers.values()) * len(text.layers) * 2
    print(f"\n{'WRONG: ' + str(wrong) if wrong else 'all'} of {rows} rows left in the cache "
          f"{'differ from' if wrong else 'are bit for bit'} the rows that the answers name")
    return 1 if wrong else 0


def main() -> int:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    build = Path(os.environ.get("CHUNKKV_BUILD") or ROOT / "build" / "release")
    parser.add_argument("--build", type=Path, default=build, help="where chunkkvd was built")
    parser.add_argument("--client", metavar="PREFIX", help="only the client's part, against the daemon at PREFIX")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that `finally` stops the daemon
    try:
        return run_client(arguments.client) if arguments.client else run_demo(arguments.build)
    except RuntimeError as error:
        raise SystemExit(str(error)) from error


if __name__ == "__main__":
    sys.exit(main())
