#!/usr/bin/env python3
"""kvpress beside the daemon on the same tensors: how long, how much memory, and do they keep the same rows?

    make bench-peers

One layer of Llama-3-8B, profile kvpress (window 64, chunk 20, average pool 5), a fifth kept.  kvpress runs its own
SnapKVPress inside its own ChunkKVPress, score, selection and gather; the daemon's time is that of the whole request,
from the C client's call to its return.  The two take turns.  A process for each code path of the daemon holds torch to
the same instruction set by ONEDNN_MAX_CPU_ISA.  Times are of bfloat16; rows are compared in bfloat16, where kvpress
rounds every attention weight and so makes ties of its own, and once more widened to float32, where they must be equal.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "clients" / "python" / "src"), str(ROOT / "tests" / "python"), str(ROOT / "bench")]

from daemon import Daemon, build_directory  # noqa: E402
from requester import Requester, by_cpu_time, cpu_seconds, delay_seconds, own_bytes, own_peak, rows_said  # noqa: E402

KV_HEADS, Q_HEADS, DIM = 8, 32, 128
WINDOW, CHUNK, POOL, KEEP = 64, 20, 5, 0.2
TOKENS = (8192, 32768)
PLACES_BYTES = 512 << 20  # of K and V that requests go through in turn
PAUSE = 0.05  # s: torch's threads spin for a while before they sleep
STOLEN = 0.03  # a pair is dropped if a side was off its CPUs for more of its time
ATTEMPTS, ENOUGH = 3, 5  # for each repetition asked for; fewer that count are no result
# what oneDNN may use, by the daemon's path
ISA = {"avx2": "AVX2", "avx512": "AVX512_CORE", "avx512bf16": "AVX512_CORE_BF16", "amx": "AVX512_CORE_AMX"}
# how many times faster the daemon has to be, and is to become, on all threads
GATES = {"amx": (30.0, 45.0), "avx512": (8.0, 10.0), "avx2": (5.0, 7.0)}


Row = dict[str, Any]


# ---- one code path, in a process of its own

class Peer:
    """kvpress on one layer's tensors; nothing of it is replaced.

    The hidden states are the queries, their projection is the identity, and the rotation has angle 0.
    """

    def __init__(self, key: Any, value: Any, query: Any) -> None:
        import torch
        from kvpress import ChunkKVPress, SnapKVPress

        self.torch = torch
        self.press = ChunkKVPress(SnapKVPress(1 - KEEP, WINDOW, POOL), CHUNK)
        self.module = torch.nn.Module()
        self.module.head_dim, self.module.layer_idx = DIM, 0
        self.module.config = types.SimpleNamespace(num_attention_heads=Q_HEADS, num_key_value_heads=KV_HEADS,
                                                   num_hidden_layers=1)
        self.module.q_proj = torch.nn.Identity()
        # kvpress wants more hidden states than it has window
        rows = torch.zeros(1, WINDOW + 1, Q_HEADS * DIM, dtype=query.dtype)
        rows[0, 1:] = query.transpose(0, 1).reshape(WINDOW, Q_HEADS * DIM)
        ones = torch.ones(1, WINDOW + 1, DIM, dtype=query.dtype)
        self.keys, self.values = (x.transpose(0, 1)[None].contiguous() for x in (key, value))
        self.rest = {"position_embeddings": (ones, torch.zeros_like(ones))}
        self.hidden = rows

    def compress(self) -> tuple[Any, Any]:
        with self.torch.inference_mode():
            return self.press.compress(self.module, self.hidden, self.keys, self.values, None, self.rest)

    def kept(self) -> list[int]:
        """The rows of what compress() returns, found by their bytes; all heads keep the same."""
        bits = self.torch.int32 if self.keys.dtype == self.torch.float32 else self.torch.int16
        whole, left = (x[0, 0].contiguous().view(bits).numpy() for x in (self.keys, self.compress()[0]))
        place = {row.tobytes(): i for i, row in enumerate(whole)}
        assert len(place) == len(whole), "two rows are the same"
        return sorted(place[row.tobytes()] for row in left)


def timed(work: Callable[[], float | None], pids: list[int], threads: int) -> tuple[float, bool]:
    """Milliseconds that work says or takes, or of CPU time for each thread; and was it disturbed?"""
    cpu, delay, start = cpu_seconds(pids), delay_seconds(pids), time.perf_counter()
    said = work()
    wall = 1e3 * (time.perf_counter() - start)
    if by_cpu_time():
        return 1e3 * (cpu_seconds(pids) - cpu) / threads, False
    stolen = 1e3 * (delay_seconds(pids) - delay) / threads
    return (wall if said is None else said), stolen > STOLEN * wall


def save(file: Path, key: Any, value: Any, query: Any) -> None:
    """As chunkkv-bench-request reads it."""
    from torch import uint8 as bytes_of_it

    with file.open("wb") as out:
        for tensor in (key, value, query):
            out.write(tensor.contiguous().view(-1).view(bytes_of_it).numpy().tobytes())


def equal_in_f32(daemon: Daemon, file: Path, tokens: int, tensors: tuple[Any, ...]) -> bool:
    """Do both keep the same rows of the same tensors, widened?"""
    wide = tuple(x.float() for x in tensors)
    save(file, *wide)
    with Requester(daemon, tokens, KV_HEADS, Q_HEADS, DIM, "f32", WINDOW, CHUNK, "kvpress", 1, file) as requester:
        return requester.rows() == Peer(*wide).kept()


def discard(_: Any) -> None:
    """What was kept is looked at elsewhere."""


def times_of(pairs: list[tuple[float, float]], repeats: int) -> Row:
    """Medians, and the distance between the quartiles of the ratio as a part of its median; None for too few pairs."""
    if len(pairs) < min(repeats, ENOUGH):
        return dict.fromkeys(("ours_ms", "kvpress_ms", "speedup", "spread"))
    ratios = sorted(theirs / ours for ours, theirs in pairs)
    quarter = len(ratios) // 4
    middle = statistics.median(ratios)
    return {"ours_ms": round(statistics.median(ours for ours, _ in pairs), 3),
            "kvpress_ms": round(statistics.median(theirs for _, theirs in pairs), 3), "speedup": round(middle, 3),
            "spread": round((ratios[-1 - quarter] - ratios[quarter]) / middle, 3)}


def measure(path: str, tokens: int, threads: int, repeats: int, tensors: tuple[Any, ...]) -> Row:
    """One row of the table."""
    import torch

    torch.set_num_threads(threads)
    places = max(2, PLACES_BYTES // (tokens * KV_HEADS * DIM * 2 * 2))
    peer = Peer(*tensors)
    own = os.getpid()
    daemon = Daemon(options=("--threads", str(threads), "--cpu-path", path))
    try:
        held, held_peer = own_bytes(daemon.pid), own_bytes(own)
        with tempfile.TemporaryDirectory() as directory:
            file = Path(directory) / "tensors"
            save(file, *tensors)
            with Requester(daemon, tokens, KV_HEADS, Q_HEADS, DIM, "bf16", WINDOW, CHUNK, "kvpress", places,
                           file) as ours:
                rows, theirs = set(ours.rows()), set(peer.kept())
                pids = [daemon.pid, *daemon.gates(), ours.pid]
                for place in range(places):
                    ours.request(place)  # the daemon touches its mapping for the first time
                pairs: list[tuple[float, float]] = []
                for turn in range(ATTEMPTS * repeats):
                    theirs_ms, bad = timed(lambda: discard(peer.compress()), [own], threads)
                    time.sleep(PAUSE)
                    ours_ms, bad_too = timed(lambda turn=turn: ours.request(turn)["request_ms"], pids, threads)
                    if not bad and not bad_too:
                        pairs.append((ours_ms, theirs_ms))
                    if len(pairs) == repeats:
                        break
                memory = own_peak(daemon.pid, lambda: ours.request(1)) - held
                memory_peer = own_peak(own, peer.compress) - held_peer
            equal = equal_in_f32(daemon, file, tokens, tensors)
    finally:
        daemon.stop()
    return {
        "tokens": tokens, "threads": threads, "path": path, **times_of(pairs, repeats), "indices_equal": equal,
        "jaccard_bf16": round(len(rows & theirs) / len(rows | theirs), 5), "kept": len(pairs),
        "dropped": turn + 1 - len(pairs), "ours_peak_bytes": memory, "kvpress_peak_bytes": memory_peer,
    }


def tensors_of(tokens: int) -> tuple[Any, ...]:
    """K, V [T][H][D] and queries [Hq][w][D], bfloat16.

    The queries of a head have much in common, as those of neighbouring tokens do, so chunks differ by more than noise.
    """
    import torch

    random = torch.Generator().manual_seed(tokens)
    key, value = (torch.randn(tokens, KV_HEADS, DIM, generator=random).bfloat16() for _ in range(2))
    common, own = (torch.randn(Q_HEADS, rows, DIM, generator=random) for rows in (1, WINDOW))
    return key, value, (3 * (0.8 * common + 0.6 * own)).bfloat16()


def child(args: argparse.Namespace) -> int:
    for tokens in args.tokens:
        tensors = tensors_of(tokens)
        for threads in args.threads:
            print(json.dumps(measure(args.path, tokens, threads, args.repeats, tensors)), flush=True)
    return 0


# ---- all of them

def usable_paths() -> list[str]:
    out = subprocess.run([build_directory() / "chunkkv-bench", "paths"], check=True, capture_output=True, text=True)
    return [path for path in out.stdout.split() if path in ISA]


def rows_of(path: str, args: argparse.Namespace) -> Iterator[Row]:
    environment = os.environ | {"ONEDNN_MAX_CPU_ISA": ISA[path], "TQDM_DISABLE": "1"}
    for name in [name for name in environment if name.startswith(("OMP_", "MKL_", "OPENBLAS_", "KMP_"))]:
        del environment[name]
    command = [sys.executable, __file__, "--path", path, "--repeats", str(args.repeats),
               "--tokens", *map(str, args.tokens), "--threads", *map(str, args.threads)]
    yield from rows_said(command, f"path {path}", environment)


HEAD = (f"{'path':11}{'tokens':>7}{'threads':>8}{'ours ms':>10}{'kvpress ms':>12}{'speedup':>9}{'spread':>8}"
        f"{'equal':>7}{'Jaccard':>9}{'ours MiB':>10}{'kvpress MiB':>12}")


def print_row(row: Row) -> None:
    def number(name: str, digits: int) -> str:
        return "-" if row[name] is None else f"{row[name]:.{digits}f}"

    dropped = f"  {row['dropped']} dropped" if row["dropped"] else ""
    print(f"{row['path']:11}{row['tokens']:7}{row['threads']:8}{number('ours_ms', 2):>10}{number('kvpress_ms', 1):>12}"
          f"{number('speedup', 1):>9}{number('spread', 2):>8}{'yes' if row['indices_equal'] else 'NO':>7}"
          f"{row['jaccard_bf16']:9.4f}{row['ours_peak_bytes'] / 2**20:10.1f}{row['kvpress_peak_bytes'] / 2**20:12.1f}"
          f"{dropped}", flush=True)


def judge(rows: list[Row]) -> bool:
    """Print hit or miss for each gate. Return: no miss?"""
    good = True
    most = max(row["threads"] for row in rows)
    for row in rows:
        gate, aim = GATES.get(row["path"], (0.0, 0.0))
        said = []
        if gate and row["threads"] == most and row["speedup"] is None:
            print(f"no result: {row['path']}, {row['tokens']} tokens, {most} threads: {row['dropped']} pairs dropped")
        elif gate and row["threads"] == most:
            said.append((row["speedup"] >= gate,
                         f"{row['speedup']:.1f} times faster, gate {gate:.0f}, aim {aim:.0f}"))
        said += [(row["indices_equal"], "float32: the same rows"),
                 (row["jaccard_bf16"] >= 0.95, f"bfloat16: Jaccard {row['jaccard_bf16']:.4f}, gate 0.95")]
        where = f"{row['path']}, {row['tokens']} tokens, {row['threads']} threads"
        for hit, text in said:
            print(f"{'hit ' if hit else 'MISS'}  {where}: {text}")
            good &= hit
    return good


def keep(args: argparse.Namespace, rows: list[Row], **more: bool) -> None:
    """Put the figures in their place; those of a run that is not at its end, or was stopped, are partial."""
    from importlib.metadata import version

    written = args.out.with_suffix(".tmp")
    written.write_text(json.dumps({"torch": version("torch"), "kvpress": version("kvpress"), "repeats": args.repeats,
                                   "cpu_time": by_cpu_time(), "rows": rows} | more, indent=1) + "\n")
    written.replace(args.out)


def main() -> int:
    cpus = len(os.sched_getaffinity(0))
    parser = argparse.ArgumentParser(description="kvpress and the daemon, time for time")
    parser.add_argument("--path", help="of the one to measure; without it all, each in a process of its own")
    parser.add_argument("--tokens", type=int, nargs="+", default=TOKENS)
    parser.add_argument("--threads", type=int, nargs="+", default=sorted({1, cpus}))
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "bench-peers.json")
    args = parser.parse_args()

    # daemons are taken down on the way out
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    if args.path:
        return child(args)
    print(HEAD, flush=True)
    rows: list[Row] = []
    for path in usable_paths():
        for row in rows_of(path, args):
            print_row(row)
            rows.append(row)
            keep(args, rows, partial=True)
    good = judge(rows)
    keep(args, rows, hit=good)
    print(f"all in {args.out}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
