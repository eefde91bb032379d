#!/usr/bin/env python3
"""The same model, prompts and method by kvpress and by the daemon: rows, text, time and memory in one table.

    make bench-kvpress              # five prompts of each kind, three ratios: seven minutes of CPU time
    make bench-kvpress QUICK=1      # one of each kind, one ratio: a minute

SnapKV inside ChunkKV, as kvpress has it (chunks of 20, 64 queries, pool of 5), in float32.  kvpress compresses each
layer in its forward hook.  The daemon's side runs the same model, hands keys, values and the last 64 queries over in
shared memory, lets the daemon compress in place (profile "kvpress"), and takes the first rows back.  Both compress
all of the prompt but its last token, run that token on the compressed cache, and generate greedily from there, by the
same loop.

Each side runs in a process of its own, one after the other, so that peaks of memory are its own: what the process holds
at most beyond what it held when the model was loaded.  Of the daemon's side that of the daemon is added.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "clients" / "python" / "src"), str(ROOT / "tests" / "python")]
os.environ.setdefault("TQDM_DISABLE", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # of both sides: threads that spin slow each other down

import numpy as np  # noqa: E402
import torch  # noqa: E402
from chunkkv_eval import haystack, model, tasks  # noqa: E402
from transformers import DynamicCache  # noqa: E402

import chunkkv  # noqa: E402

ANSWER = 24  # tokens generated
WINDOW = 64
PROMPTS = [("number", 1024), ("fact", 512)]


def prompts(language: model.Model, n: int) -> list[list[int]]:
    texts = haystack.read_texts()
    samples = [tasks.make(task, texts, context, 7, i, language.encode, language.prefix)
               for task, context in PROMPTS for i in range(n)]
    return [sample.context + sample.question for sample in samples]


@torch.no_grad()
def generate(network: Any, cache: DynamicCache, token: int, position: int) -> list[int]:
    """Greedily from the last token of the prompt on, which is run at its own position."""
    found: list[int] = []
    for step in range(ANSWER):
        where = torch.tensor([[position + step]])
        # one token sees every row there is: no mask is needed, whatever the rows' positions
        out = network(torch.tensor([[token]]), past_key_values=cache, position_ids=where,
                      cache_position=torch.tensor([cache.get_seq_length()]), use_cache=True)
        token = int(out.logits[0, -1].argmax())
        found.append(token)
    return found


def rows_of(full: torch.Tensor, some: torch.Tensor) -> list[list[int]]:
    """Which rows of [heads][rows][dim] others are, for each head, found by their bytes."""
    found = []
    for whole, part in zip(full.numpy(), some.numpy(), strict=True):
        place = {row.tobytes(): i for i, row in enumerate(whole)}
        found.append(sorted(place[row.tobytes()] for row in part))
    return found


def settle() -> int:
    """What the process holds now; the peak starts again from there."""
    Path("/proc/self/clear_refs").write_text("5")
    return status("self", "VmHWM")


def status(pid: int | str, name: str) -> int:
    """KiB of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1])


def by_kvpress(path: Path, keep: float, n: int) -> dict[str, Any]:
    from kvpress import ChunkKVPress, SnapKVPress

    language = model.Model(path, "float32")
    network = language.model
    out: dict[str, Any] = {"rows": [], "text": [], "both": [], "generate": []}
    every = prompts(language, n)
    network.set_attn_implementation("sdpa")
    base, caches = settle(), []
    for ids in every:
        press = ChunkKVPress(SnapKVPress(1 - keep, WINDOW), 20)
        cache = DynamicCache()
        began = time.perf_counter()
        with torch.no_grad(), press(network):
            network(torch.tensor([ids[:-1]]), past_key_values=cache, use_cache=True, logits_to_keep=1)
        out["both"].append(time.perf_counter() - began)
        caches.append([layer.keys[0].clone() for layer in cache.layers])
        begin = time.perf_counter()
        out["text"].append(generate(network, cache, ids[-1], len(ids) - 1))
        out["generate"].append(time.perf_counter() - begin)
    out["peak"] = status("self", "VmHWM") - base
    for ids, kept in zip(every, caches, strict=True):  # without a press: the rows to know those by
        cache = DynamicCache()
        with torch.no_grad():
            network(torch.tensor([ids[:-1]]), past_key_values=cache, use_cache=True, logits_to_keep=1)
        out["rows"].append([rows_of(layer.keys[0], some) for layer, some in zip(cache.layers, kept, strict=True)])
    return out


def by_daemon(path: Path, keep: float, n: int) -> dict[str, Any]:
    from daemon import Daemon

    language = model.Model(path, "float32")
    out: dict[str, Any] = {"rows": [], "text": [], "both": [], "generate": []}
    every = prompts(language, n)
    daemon = Daemon()
    try:
        with chunkkv.Client(daemon.prefix(), timeout=120) as client:
            shape = language.shape
            before, base = daemon.usage().rss_kib, settle()
            with chunkkv.SharedCache.allocate(
                    client, layers=len(shape.layers), tokens=max(map(len, every)), kv_heads=shape.kv_heads,
                    q_heads=shape.q_heads, head_dim=shape.head_dim, dtype="f32", window=WINDOW) as shared:
                for ids in every:
                    one_prompt(language, client, shared, ids, keep, out)
            out["peak"] = status("self", "VmHWM") - base + status(daemon.pid, "VmHWM") - before
    finally:
        daemon.stop()
    return out


def one_prompt(language: model.Model, client: chunkkv.Client, shared: chunkkv.SharedCache, ids: list[int], keep: float,
               out: dict[str, Any]) -> None:
    rows = len(ids) - 1
    language.model.set_attn_implementation(model.NAME)
    began = time.perf_counter()
    prefill = language.prefill(ids[:-1], rows - WINDOW, 1)
    for layer, (key, value, query) in enumerate(zip(*language.rows_of(prefill, rows, WINDOW), strict=True)):
        shared.write(layer, key=key, value=value, query=query)
    answer = client.compress(shared, rows=rows, keep_ratio=keep, policy=chunkkv.methods.chunkkv_kvpress())
    cache = DynamicCache()
    kept = answer.physical_len
    for layer in range(language.layers):
        key, value = (torch.from_numpy(view[:kept].copy()).transpose(0, 1)[None]
                      for view in (shared.key(layer), shared.value(layer)))
        cache.update(key, value, layer)
    done = time.perf_counter()
    language.model.set_attn_implementation("sdpa")
    begin = time.perf_counter()
    out["text"].append(generate(language.model, cache, ids[-1], rows))
    out["generate"].append(time.perf_counter() - begin)
    out["rows"].append([[answer.layers[layer].rows_of(head).tolist() for head in range(shared.key(0).shape[1])]
                        for layer in range(language.layers)])
    out["both"].append(done - began)


def table(found: dict[float, dict[str, dict[str, Any]]]) -> str:
    lines = ["| kept | sets equal | texts equal | | prefill and compress, ms | generate, ms | peak, MiB |",
             "|---" * 7 + "|"]
    for keep, sides in found.items():
        ours, theirs = sides["daemon"], sides["kvpress"]
        sets = [a == b for p, q in zip(ours["rows"], theirs["rows"], strict=True)
                for r, s in zip(p, q, strict=True) for a, b in zip(r, s, strict=True)]
        texts = [a == b for a, b in zip(ours["text"], theirs["text"], strict=True)]
        for name, side in sides.items():
            times = " | ".join(f"{1000 * float(np.median(side[key])):.0f}" for key in ("both", "generate"))
            lines.append(f"| {100 * keep:g} % | {sum(sets)} of {len(sets)} | {sum(texts)} of {len(texts)} | {name} | "
                         f"{times} | {side['peak'] / 1024:.0f} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description="the same prompts by kvpress and by the daemon")
    parser.add_argument("--model", type=Path, default=None)
    parser.add_argument("--keep", type=float, nargs="*", default=[0.1, 0.2, 0.5])
    parser.add_argument("--n", type=int, default=5, help="prompts of each kind")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--side", choices=("kvpress", "daemon"), help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "kvpress-generate.json")
    parser.add_argument("--quick", action="store_true", help="one prompt of each kind, a fifth kept")
    args = parser.parse_args()
    if args.quick:
        args.n, args.keep = 1, [0.2]
    torch.set_num_threads(args.threads)
    path = args.model or model.default_path()
    if args.side:
        run = by_kvpress if args.side == "kvpress" else by_daemon
        args.out.write_text(json.dumps({str(keep): run(path, keep, args.n) for keep in args.keep}))
        return 0
    found: dict[float, dict[str, dict[str, Any]]] = {keep: {} for keep in args.keep}
    for side in ("kvpress", "daemon"):
        part = args.out.with_suffix(f".{side}.json")
        command = [sys.executable, __file__, "--side", side, "--model", str(path), "--n", str(args.n),
                   "--out", str(part), "--threads", str(args.threads), "--keep", *map(str, args.keep)]
        subprocess.run(command, check=True)
        for keep, one in json.loads(part.read_text()).items():
            found[float(keep)][side] = one
    text = table(found)
    args.out.with_suffix(".md").write_text(text + "\n")
    print(f"{text}\n\n{len(PROMPTS)} kinds of {args.n} prompts, medians, {args.threads} threads; peaks are beyond the "
          f"loaded model; the table is in {os.path.relpath(args.out.with_suffix('.md'))}")
    same = all(sides["daemon"][what] == sides["kvpress"][what] for sides in found.values() for what in ("rows", "text"))
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
