"""chunkkv-eval without torch: tasks, methods, records, counts, plots; and kept sets by the daemon."""

from __future__ import annotations

import fcntl
import json
import math
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from chunkkv_eval import cli, expense, haystack, methods, plots, report, results, selector, suites, tasks
from chunkkv_eval.daemon import private
from chunkkv_eval.progress import Progress
from chunkkv_eval.results import Cell, Record

import chunkkv
from daemon import Daemon

TEXTS = haystack.read_texts()


def encode(text: str) -> list[int]:
    """A tokenizer of characters' codes in pieces of four: deterministic, and joins are as in the text."""
    return [hash_of(text[i : i + 4]) for i in range(0, len(text), 4)]


def hash_of(piece: str) -> int:
    return int.from_bytes(piece.encode().ljust(16, b"\0")[:16], "little")


def decode(tokens: list[int]) -> str:
    return b"".join(token.to_bytes(16, "little").rstrip(b"\0") for token in tokens).decode()


# ---- haystacks and tasks

def test_texts_are_there() -> None:
    assert len(TEXTS) == 3
    assert all(len(text) > 300_000 and "\n" not in text for text in TEXTS)


def test_texts_of_a_directory(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("One  two\nthree. " * 10)
    assert haystack.read_texts(tmp_path) == [("One two three. " * 10).strip()]
    (tmp_path / "a.txt").unlink()
    with pytest.raises(ValueError, match=r"no \*\.txt"):
        haystack.read_texts(tmp_path)


@pytest.mark.parametrize("task", tasks.TASKS)
def test_a_sample_depends_on_its_own_number_alone(task: str) -> None:
    first = [tasks.make(task, TEXTS, 512, 5, i, encode) for i in range(4)]
    assert tasks.make(task, TEXTS, 512, 5, 3, encode) == first[3]
    assert tasks.make(task, TEXTS, 512, 6, 3, encode) != first[3]
    assert len({tuple(s.context) for s in first}) == 4


@pytest.mark.parametrize("task", tasks.NEEDLES)
def test_the_answer_stands_once_in_the_context(task: str) -> None:
    for index in range(20):
        sample = tasks.make(task, TEXTS, 2048, 1, index, encode)
        context, answer = decode(sample.context), decode(sample.answer)
        assert context.count(answer.strip()) == 1
        assert abs(context.index(answer.strip()) / len(context) - sample.depth) < 0.3
        assert len(sample.context) <= 2048 + 40


def test_numrev_has_its_answer_before_the_key() -> None:
    context = decode(tasks.make("numrev", TEXTS, 512, 1, 0, encode).context)
    answer = decode(tasks.make("numrev", TEXTS, 512, 1, 0, encode).answer).strip()
    assert f"{answer} is the magic number of" in context


def test_depths_go_through_all_bands() -> None:
    depths = [tasks.make("number", TEXTS, 1024, 1, i, encode).depth for i in range(10)]
    assert [min(9, int(10 * d)) for d in depths] == pytest.approx(range(10), abs=1)


def test_plain_text_has_the_length_asked_for() -> None:
    sample = tasks.make("perplexity", TEXTS, 512, 1, 0, encode, prefix=[7])
    assert (len(sample.context), len(sample.question), len(sample.answer)) == (513, 1, tasks.CONTINUATION)
    assert sample.context[0] == 7


# ---- methods, against the daemon

@pytest.fixture(scope="module")
def loaded() -> selector.Selector:
    daemon = Daemon()
    rng = np.random.default_rng(0)
    rows, shape = 300, selector.Shape((0, 1, 4, 5), 2, 4, 32, "f32")
    with chunkkv.Client(daemon.prefix(), timeout=60) as client:
        found = selector.Selector(client, shape, 320, 320)
        keys, values, queries = ([rng.standard_normal((rows, heads, 32), np.float32) for _ in shape.layers]
                                 for heads in (2, 2, 4))
        found.load(keys, values, queries, lengths=[10] * 30)
        yield found
        found.close()
    daemon.stop()


@pytest.mark.parametrize("name", [name for name in methods.known() if name != "full"])
@pytest.mark.parametrize("budget", [60, 75])
def test_every_method_keeps_its_budget(loaded: selector.Selector, name: str, budget: int) -> None:
    before = [plane.copy() for plane in loaded._planes]
    kept = loaded.keep(name, budget)
    assert [len(heads) for heads in kept] == [2] * 4
    assert np.mean([len(rows) for heads in kept for rows in heads]) == budget
    assert all(np.array_equal(rows, np.unique(rows)) and rows[-1] < 300 for heads in kept for rows in heads)
    half = before[0].shape[1] // 2
    for plane, was in zip(loaded._planes, before, strict=True):
        assert np.array_equal(plane[:, :half], was[:, :half])


def test_methods_differ_as_they_should(loaded: selector.Selector) -> None:
    def sets(name: str) -> list[list[bytes]]:
        return [[rows.tobytes() for rows in heads] for heads in loaded.keep(name, 60)]

    assert len({rows for heads in sets("vote") for rows in heads}) == 1
    assert all(heads[0] == heads[1] for heads in sets("chunkkv"))
    assert all(heads[0] != heads[1] for heads in sets("snapkv"))
    reused = sets("chunkkv-reuse2")
    assert reused[0] == reused[1] == sets("chunkkv")[0]
    mixed = sets("hybrid")
    assert mixed[:2] == sets("chunkkv")[:2]
    assert mixed[2:] == sets("snapkv")[2:]
    assert len(loaded.keep("streamingllm", 60)[0][0]) == 60
    assert list(loaded.keep("streamingllm", 60)[0][0][:5]) == [0, 1, 2, 3, 244]


def test_a_method_that_is_none() -> None:
    with pytest.raises(ValueError, match="is none of full"):
        methods.request("nothing", (0, 1), 100, 10)


def test_jaccard_of_neighbours() -> None:
    a, b = np.arange(4), np.arange(2, 6)
    assert selector.jaccard_of_neighbours([[a], [a]], 8) == 1.0
    assert selector.jaccard_of_neighbours([[a], [b]], 8) == pytest.approx(2 / 6)
    assert selector.jaccard_of_neighbours([[a]], 8) == 1.0


# ---- records

def record(method: str, index: int, exact: bool, *, keep: float | None = 0.1, context: int = 1024, depth: float = 0.5,
           task: str = "number") -> Record:
    return Record(Cell(task, context, "visible", method, keep, None), "run", index, 1000, 100.0, depth, exact,
                  1.0 if exact else 0.5, 0.25, 0.6, 0.2)


def test_mean_and_error() -> None:
    assert results.mean_and_error([1, 0, 1, 0]) == (0.5, pytest.approx(math.sqrt(1 / 3 / 4)))
    assert results.mean_and_error([0.25]) == (0.25, 0.0)


def test_differences_are_paired() -> None:
    one = [record("vote", i, True) for i in range(4)]
    other = [record("snapkv", i, i < 2) for i in (3, 2, 1, 0, 9)]
    mean, error, n = results.paired(one, other, "exact")
    assert (mean, n) == (0.5, 4)
    assert error == pytest.approx(math.sqrt(1 / 3 / 4))
    with pytest.raises(ValueError, match="no question"):
        results.paired(one[:1], other[-1:], "exact")


def test_what_json_has() -> None:
    found = results.cells([record("vote", 0, True), record("vote", 1, False), record("full", 0, True, keep=1.0)])
    assert list(found) == ["cells"]
    assert found["cells"][0] == {
        "task": "number", "context": 1024, "question": "visible", "method": "vote", "keep": 0.1, "rows": None, "n": 2,
        "exact": 0.5, "exact_se": 0.5, "token_accuracy": 0.75, "nll": 0.25}
    assert [cell["method"] for cell in found["cells"]] == ["vote", "full"]


def test_a_run_that_was_cut_off_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    store = results.Store(path)
    every = [record("vote", i, True) for i in range(3)]
    store.add(every[:2])
    with path.open("a") as file:
        file.write('{"cell": {"task": "num')  # killed in the middle of a line
    again = results.Store(path)
    assert again.records == every[:2]
    assert again.has(every[1].cell, "run", 1)
    assert not again.has(every[2].cell, "run", 2)
    assert not again.has(every[1].cell, "another run", 1)
    again.add(every[2:])
    assert results.Store(path).records == every
    assert all(json.loads(line) for line in path.read_text().splitlines())


def test_a_run_is_counted_apart_from_others_in_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str],
                                                        monkeypatch: pytest.MonkeyPatch) -> None:
    store = results.Store(tmp_path / "out.answers.jsonl")
    store.add([replace(record("vote", i, run == "b"), run=run) for run in ("a", "b") for i in range(12)])
    store.add([replace(record("snapkv", 0, True), run="b")])

    def n_and_exact(run: str, *arguments: str) -> list[tuple[str, int, float]]:
        monkeypatch.setattr(cli, "_measure", lambda *_: run)
        assert cli.main(["--json", str(tmp_path / "out.json"), "--keep", "0.1", *arguments]) == 0
        assert f"; {run}\n" in capsys.readouterr().out
        return [(cell["method"], cell["n"], cell["exact"])
                for cell in json.loads((tmp_path / "out.json").read_text())["cells"]]

    assert n_and_exact("b", "--n", "12", "--method", "vote") == [("vote", 12, 1.0)]
    assert n_and_exact("a", "--n", "2", "--method", "vote") == [("vote", 2, 0.0)]
    assert n_and_exact("b", "--n", "2", "--method", "snapkv,vote") == [("snapkv", 1, 1.0), ("vote", 2, 1.0)]
    assert store.others("b") == ["a"]


def test_models_of_one_name_are_told_apart(tmp_path: Path) -> None:
    def digest(place: str, **files: bytes) -> str:
        for name, content in files.items():
            (tmp_path / place / "it").mkdir(parents=True, exist_ok=True)
            (tmp_path / place / "it" / name.replace("_", ".")).write_bytes(content)
        return results.digest_of(tmp_path / place / "it")

    weights = bytes(results.WHOLE + 1)
    one = digest("a", config_json=b"{}", model_safetensors=weights)
    assert digest("b", config_json=b"{}", model_safetensors=weights) == one
    assert digest("b", out_json=b"results that were put beside it") == one
    assert digest("c", config_json=b"{} ", model_safetensors=weights) != one
    assert digest("d", config_json=b"{}", model_safetensors=weights[:-1] + b"x") != one
    assert digest("e", config_json=b"{}", model_safetensors=weights + b"\0") != one
    for name, content in (("x", weights), ("y", b"x" + weights[1:])):
        (tmp_path / name).write_bytes(content)
    assert results.digest_of(tmp_path / "x") != results.digest_of(tmp_path / "y")


def test_tables_and_plots() -> None:
    names = ("full", "vote", "snapkv-max", "chunkkv", "snapkv")
    records = [record(name, i, name != "snapkv" or i % 2 == 0, keep=1.0 if name == "full" else keep, context=context,
                      depth=i / 10, task=task)
               for task in ("number", "perplexity") for context in (512, 1024) for name in names
               for keep in ((1.0,) if name == "full" else (0.1, 0.2)) for i in range(10)]
    text = report.tables(records)
    assert "| `snapkv` | 50 ±17 / 75.0 | 50 ±17 / 75.0 | 0.60, 0.60 |" in text
    assert "| `chunkkv` - `snapkv` | +50.0 ±16.7, +25.0 ±8.3 |" in text
    assert "+0.000 ±0.000 / 0.200" in text
    assert "| `chunkkv` - `snapkv` | +0.000 ±0.000 | +0.000 ±0.000 |" in text  # of nats
    found = plots.pictures(records)
    assert {"curves-number-512", "heat-number-10pc", "jaccard-perplexity-512", "attention-error-perplexity-1024",
            "loss-perplexity-512"} <= set(found)
    for picture in found.values():
        ElementTree.fromstring(picture)
    # two lengths by ten depths for each of the four methods
    assert found["heat-number-10pc"].count("<rect") == 4 * 2 * 10


# ---- the command

@pytest.mark.parametrize(("arguments", "allowed"), [
    (["--task", "nothing"], "none of number, fact"), (["--method", "vote,nothing"], "none of full, default"),
    (["--keep", "1.5"], "'1.5' is no fraction above 0 and at most 1"),
    (["--keep", "0.1,much"], "'much' is no fraction"), (["--keep", "nan"], "'nan' is no fraction"),
    (["--rows", "0"], "'0' is no whole number from 1 on"),
    (["--rows", "64,many"], "'many' is no whole number from 1 on"),
    (["--question", "half"], "none of visible, hidden"),
    (["--n", "0"], "'0' is no whole number from 1 on"),
    (["--n", "99999999"], "'99999999' is above 100000"),
    (["--context", "1k"], "'1k' is no whole number from 1 on"),
    (["--seed", "x"], "'x' is no whole number"), (["--threads", "-1"], "'-1' is no whole number from 1 on"),
    (["--suite", "quick,slow"], "'slow' is none of quick, paper"), (["--keep", ","], "the list is empty")])
def test_wrong_arguments_are_refused(arguments: list[str], allowed: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as error:
        cli.main(arguments)
    assert error.value.code == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert f"argument {arguments[0]}: " in line
    assert allowed in line


def fails(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The one line that a failing run ends with."""
    assert cli.main(arguments) == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("chunkkv-eval: ")
    return lines[0]


def test_a_daemon_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = fails(["--json", str(tmp_path / "out.json"), "--endpoint", str(tmp_path / "nobody")], capsys)
    assert f"no chunkkvd at {tmp_path}/nobody" in line
    assert "--endpoint" in line
    assert list(tmp_path.iterdir()) == []


def test_a_daemon_that_does_not_start(tmp_path: Path, capsys: pytest.CaptureFixture[str],
                                      monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # without setpriv
    assert str(tmp_path / "program") in fails(
        ["--json", str(tmp_path / "out.json"), "--daemon", str(tmp_path / "program")], capsys)


@pytest.mark.parametrize(("script", "says"), [
    ("exit 0", " ended with status 0 before it answered, and said nothing"),
    ("echo no such thing; exit 3", " ended with status 3 before it answered: no such thing"),
    ("kill -9 $$", " was ended by signal 9 before it answered, and said nothing")])
def test_a_daemon_that_ends_at_once(script: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    line = fails(["--json", str(tmp_path / "out.json"), "--daemon", str(program)], capsys)
    assert line == f"chunkkv-eval: {program}{says}"


@pytest.fixture
def short_path(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory for temporary files that leaves room for the names of sockets."""
    with tempfile.TemporaryDirectory(prefix="ckv-") as directory:
        monkeypatch.setattr("tempfile.tempdir", directory)
        yield Path(directory)


def test_directories_of_killed_runs_are_removed(short_path: Path) -> None:
    ages = {"x-owned-dead": 3600, "x-owned-alive": 3600, "x-owned-new": 0, "x-other": 3600, "y-owned-dead": 3600}
    for name, age in ages.items():
        (short_path / name).mkdir()
        (short_path / name / "log").write_text("")
        os.utime(short_path / name, (time.time() - age,) * 2)
    held = os.open(short_path / "x-owned-alive", os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    with private(None, "x-") as daemon:
        assert {path.name for path in short_path.iterdir()} == {*ages, daemon.directory.name} - {"x-owned-dead"}
        os.utime(daemon.directory, (0, 0))
        with private(None, "x-"):
            assert daemon.directory.is_dir()
    os.close(held)


@pytest.mark.parametrize("option", ["--json", "--report", "--plots"])
def test_what_cannot_be_written_is_found_before_anything_runs(option: str, tmp_path: Path,
                                                              capsys: pytest.CaptureFixture[str],
                                                              monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delattr(cli, "_measure")
    (tmp_path / "file").write_text("")
    line = fails([option, str(tmp_path / "file" / "out")], capsys)
    assert str(tmp_path / "file") in line
    wrong, what = (tmp_path / "file", "a file, and") if option == "--plots" else (tmp_path, "a directory, and")
    assert f"{wrong}: {what}" in fails([option, str(wrong)], capsys)


def test_answers_that_are_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "out.answers.jsonl").write_text('{"cell": 3}\n')
    assert "out.answers.jsonl, line 1: not an answer" in fails(["--json", str(tmp_path / "out.json")], capsys)


def test_a_context_beyond_the_texts(tmp_path: Path, capsys: pytest.CaptureFixture[str],
                                    monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(cli.daemon, "client")
    line = fails(["--json", str(tmp_path / "out.json"), "--context", "512,99999999"], capsys)
    assert "--context 99999999: the longest text has " in line
    texts = ["x. " * 2000]
    for task, most in (("number", 666), ("perplexity", 903)):  # (6000 - 2000) / 6, (6000 - 96 * 6) / 6, and less
        tasks.check_context(task, texts, most)
        tasks.make(task, texts, most, 1, 0, encode=list)  # what is accepted can be made
        with pytest.raises(ValueError, match=f"do for {most} tokens of {task}"):
            tasks.check_context(task, texts, most + 1)
    tasks.check_context("icl", texts, 5000)


@pytest.fixture(scope="module")
def endpoint() -> str:
    daemon = Daemon()
    yield daemon.prefix()
    daemon.stop()


def test_packages_that_are_missing(endpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str],
                                   monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    line = fails(["--json", str(tmp_path / "out.json"), "--endpoint", endpoint], capsys)
    assert "torch" in line
    assert "pip install 'clients/python[eval]'" in line


def test_a_run_that_is_stopped_says_how_it_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str],
                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(args: object, store: results.Store) -> None:
        store.add([record("vote", 0, True)])
        os.kill(os.getpid(), number)

    monkeypatch.setattr(cli, "_measure", stopped)
    for number in (signal.SIGINT, signal.SIGTERM):
        line = fails(["--json", str(tmp_path / f"{number}.json")], capsys)
        assert f"1 answers are in {tmp_path}/{number}.answers.jsonl" in line
        assert len(results.Store(tmp_path / f"{number}.answers.jsonl").records) == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_fails_on_the_way_out_does_not_hide_the_stop(number: int, tmp_path: Path,
                                                          capsys: pytest.CaptureFixture[str],
                                                          monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(args: object, store: results.Store) -> str:
        try:
            os.kill(os.getpid(), number)
        finally:
            raise chunkkv.ChunkkvError("1 caches or requests still use it")

    monkeypatch.setattr(cli, "_measure", stopped)
    assert "chunkkv-eval: stopped; 0 answers are in " in fails(["--json", str(tmp_path / "out.json")], capsys)


@pytest.mark.parametrize("error", [ValueError("one\n  two"), RuntimeError("one\ntwo")])
def test_an_error_is_one_line(error: Exception, tmp_path: Path, capsys: pytest.CaptureFixture[str],
                              monkeypatch: pytest.MonkeyPatch) -> None:
    def failed(args: object, store: results.Store) -> str:
        raise error

    monkeypatch.setattr(cli, "_measure", failed)
    assert fails(["--json", str(tmp_path / "out.json")], capsys) == "chunkkv-eval: one two"


@pytest.mark.parametrize("given", [["--task", "number"], ["--context", "1024"], ["--n", "100"], ["--method", "vote"],
                                   ["--keep", "0.1"], ["--rows", "64"], ["--question", "visible"]])
def test_a_suite_takes_no_options_of_its_own_beside_it(given: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--suite", "quick", *given], [*given, "--suite", "quick"]):
        with pytest.raises(SystemExit) as error:
            cli.main(arguments)
        assert error.value.code == 2
        assert f"argument --suite: a suite has its own {given[0]}; " in capsys.readouterr().err.splitlines()[-1]


def test_the_commands_of_the_document_are_understood() -> None:
    text = (Path(__file__).parents[2] / "docs" / "quality.md").read_text().replace("\\\n", " ")
    variables = dict(re.findall(r"^    ([A-Z]+)=(\S+)$", text, re.MULTILINE))
    commands = re.findall(r"(?:^    |`)chunkkv-eval (-.*?)(?:`|$)", text, re.MULTILINE)
    assert len(commands) > 8
    for command in commands:
        words = [variables[word[1:]] if word.startswith("$") else word for word in command.split()]
        args = cli.parser().parse_args(words)
        assert args.suite or args.method != methods.METHODS


def test_it_is_a_module_that_runs() -> None:
    found = subprocess.run([sys.executable, "-m", "chunkkv_eval", "--help"], capture_output=True, text=True, check=True,
                           env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    assert "usage: chunkkv-eval" in found.stdout


def test_what_a_question_costs() -> None:
    def cost(task: str, context: int, *names: str, question: str = "visible") -> float:
        return expense.passes(suites.Job(task, context, 1, names, keep=(0.1, 0.2), question=question).cells())

    assert cost("number", 432, "full") == 1
    assert cost("number", 1024, "full") > 2 * cost("number", 432, "full")
    assert cost("number", 512, "full", "vote") < cost("number", 512, "full", "vote", question="hidden")
    assert cost("number", 512, "h2o") > cost("number", 512, *["vote"] * 5)
    for jobs in suites.SUITES.values():
        assert all(expense.passes(job.cells()) > 0 for job in jobs)


def test_what_is_left_goes_by_what_steps_cost(monkeypatch: pytest.MonkeyPatch,
                                              capsys: pytest.CaptureFixture[str]) -> None:
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    progress = Progress([1.0, 1.0, 8.0])
    for now, left in ((60.0, "9.0 min left"), (120.0, "8.0 min left"), (600.0, "0.0 min left")):  # noqa: B007
        progress.step("it")
        assert left in capsys.readouterr().err


def test_lists_are_read() -> None:
    args = cli.parser().parse_args(["--method", "chunkkv,snapkv", "--keep", "0.1,0.2", "--rows", "64,128", "--n", "7"])
    assert (args.method, args.keep, args.rows, args.n) == (("chunkkv", "snapkv"), (0.1, 0.2), (64, 128), 7)
    assert args.task == ("number",)


def test_three_quarters_are_voted_for_and_the_rest_is_each_layers_own(loaded: selector.Selector) -> None:
    voted, own, both = (loaded.keep(*ask) for ask in (("vote", 45), ("vote-each", 60), ("vote-own", 60)))
    rows = [set(heads[0].tolist()) for heads in both]
    assert all(len(one) == 60 and set(voted[0][0].tolist()) <= one for one in rows)
    assert len({frozenset(one) for one in rows}) > 1
    assert rows != [set(heads[0].tolist()) for heads in own]


def test_a_mix_lies_between_the_votes_and_each_layers_own(loaded: selector.Selector) -> None:
    voted, own = loaded.keep("vote", 60), loaded.keep("vote-each", 60)

    def like(kept: selector.Kept, other: selector.Kept) -> float:
        return float(np.mean([len(np.intersect1d(a[0], b[0])) for a, b in zip(kept, other, strict=True)]))

    near, far = loaded.keep("vote-mix75", 60), loaded.keep("vote-mix25", 60)
    assert like(near, voted) > like(far, voted)
    assert like(far, own) > like(near, own)
