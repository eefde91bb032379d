"""make bench: that all of it runs, in a size whose figures mean nothing; gates, tables and plot on figures made up."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from daemon import ROOT, Daemon, build_directory, is_alive, is_sanitizer_build

sys.path += [str(ROOT / "bench"), str(ROOT / "bench" / "peers")]

import gates
import kvpress_speed
import report
import run

ROW_NUMBERS = ("score_ms", "request_ms", "floor_ratio", "peak_ratio", "spread")
PATHS = {"scalar", "avx2", "avx512", "avx512bf16", "amx"}


def row(path: str, tokens: int, **other: Any) -> dict[str, Any]:
    return {
        "model": "Llama-3-8B", "what": "profile default", "main": True, "tokens": tokens, "threads": 2, "window": 32,
        "group": 4, "queries": 128, "chunk": 10, "profile": "default", "path": path, "picked": path == "amx",
        "select_ms": 0.01, "score_ms": tokens / 1e3, "compact_ms": 1.0, "request_ms": 5.0, "floor_ratio": 0.7,
        "peak_ratio": 0.65, "spread": 0.02, "times_faster_than_avx512": 4.0 if path == "amx" else 1.0,
        "dropped": 0} | other


def length(tokens: int, over: float | None, low: float | None = None, high: float | None = None) -> dict[str, Any]:
    return {"tokens": tokens, "layers": 1, "score_ms": 1.0, "over_shortest": over, "over_low": low or over,
            "over_high": high or over, "spread": 0.0, "kept": 5, "dropped": 1}


def held(extra: int, scratch: int, model: str = "Llama-3-8B") -> dict[str, Any]:
    return {"model": model, "what": "profile default", "tokens": 2048, "extra_bytes": extra, "k_bytes": 100000,
            "scratch_bytes": scratch}


def result(**other: Any) -> dict[str, Any]:
    rows = [row(path, tokens) for path in ("avx2", "avx512", "amx") for tokens in (2048, 8192)]
    machine = {"cpu": "CPU", "cpus": 2, "caches": {"L2": "1M"}, "memory_gib": 1, "kernel": "6", "date": "2026-01-01"}
    growth = [length(1024, None), length(2048, 1.0)]
    memory = [held(1000, 500), held(1000, 4000)]
    return {"machine": machine, "size": "full", "cpu_time": False, "peaks": [], "rows": rows,
            "growth": growth, "memory": memory, "compact": {"ratio_20k": 0.7, "ratio_2k5": 0.6},
            "rpc": {"p50_us": 1, "floor_p50_us": 1, "ratio": 1.2},
            "picked_within": 0.03} | other


def outcomes(found: dict[str, Any]) -> dict[str, str]:
    return {gate["name"]: gate["outcome"] for gate in gates.judge(found)}


def test_all_gates_hit() -> None:
    assert set(outcomes(result()).values()) == {"hit"}


@pytest.mark.parametrize(("change", "missed"), [
    ({"picked_within": 0.051}, "picked path over the best one"),
    ({"compact": {"ratio_20k": 0.59, "ratio_2k5": 0.6}}, "compaction of 20 KB runs over memcpy"),
    ({"compact": {"ratio_20k": 0.7, "ratio_2k5": 0.49}}, "compaction of 2.5 KB runs over memcpy"),
    ({"rpc": {"ratio": 1.51}}, "request overhead over bare round trips, p50"),
    ({"growth": [length(1024, None), length(2048, 1.16)]}, "time of a row, up to 2048 rows over 1024"),
    ({"growth": [length(512, None), length(1024, 1.16), length(2048, 1.0)]}, "time of a row, up to 2048 rows over 512"),
    ({"memory": [held(2001, 1000)]}, "extra memory over the larger of 2 % of K and --scratch, Llama-3-8B"),
    ({"memory": [held(4001, 4000)]}, "extra memory over the larger of 2 % of K and --scratch, Llama-3-8B"),
    ({"memory": [held(2000, 1000), held(2001, 1000, "Qwen2-7B"), held(4000, 4000, "Qwen2-7B")]},
     "extra memory over the larger of 2 % of K and --scratch, Qwen2-7B"),
    ({"rows": [row("avx2", 8192, peak_ratio=0.59)]}, "avx2, of its own peak, 2 threads"),
    ({"rows": [row("avx512", 8192, peak_ratio=0.59)]}, "avx512, of its own peak, 2 threads"),
    ({"rows": [row("amx", 8192), row("avx512", 8192, peak_ratio=0.49)]}, "avx512, of its own peak, 2 threads"),
    ({"rows": [row("amx", 8192, times_faster_than_avx512=2.9)]}, "amx over avx512, 2 threads"),
    ({"rows": [row("amx", 8192, threads=1, times_faster_than_avx512=3.4)]}, "amx over avx512, 1 thread"),
    ({"rows": [row("amx", 8192, floor_ratio=0.54)]}, "amx, floor over score, 2 threads"),
])
def test_a_gate_misses(change: dict[str, Any], missed: str) -> None:
    assert [name for name, outcome in outcomes(result(**change)).items() if outcome == "miss"] == [missed]


def test_gates_look_at_the_shapes_they_name() -> None:
    rows = [row("avx2", 8192), row("avx2", 2048, peak_ratio=0.1), row("avx2", 8192, main=False, peak_ratio=0.1),
            row("amx", 8192), row("amx", 8192, window=31, floor_ratio=0.1), row("scalar", 8192, peak_ratio=0.1),
            row("avx512", 8192, peak_ratio=0.51), row("avx2", 8192, peak_ratio=None)]
    assert "miss" not in outcomes(result(rows=rows)).values()


def test_nothing_measured_is_no_miss() -> None:
    found = outcomes(result(rows=[row("avx2", 8192, peak_ratio=None)], compact=None, rpc=None, picked_within=None))
    assert found["avx2, of its own peak, 2 threads"] == "no result"
    assert found["amx"] == "not on this machine"
    assert "miss" not in found.values()


@pytest.mark.parametrize(("lengths", "outcome"), [
    ([length(2048, 1.1, 1.05, 1.15)], "hit"),
    ([length(2048, 1.1, 1.05, 1.16)], "no result"),  # its quartiles lie on both sides of 1.15
    ([length(2048, 1.2, 1.14, 1.3)], "no result"),
    ([length(2048, 1.2, 1.16, 1.3)], "miss"),
    ([length(2048, 1.1, 1.05, 1.16), length(4096, 1.2, 1.16, 1.3)], "miss"),
    ([length(2048, 1.0), length(4096, None)], "no result"),  # too much was dropped
])
def test_growth_counts_with_its_quartiles(lengths: list[dict[str, Any]], outcome: str) -> None:
    name = f"time of a row, up to {lengths[-1]['tokens']} rows over 1024"
    found = result(growth=[length(1024, None), *lengths])
    assert outcomes(found)[name] == outcome
    assert gates.text(next(gate for gate in gates.judge(found) if gate["name"] == name)).startswith(outcome)
    assert list(report.growth_table(found))


def peaks(read: float | None, dropped: int) -> dict[str, Any]:
    path = {"gflops": 100.0, "products_kept": 9, "products_dropped": 1, "gexps": None, "exponentials_kept": 2,
            "exponentials_dropped": 52}
    return {"threads": 2, "read_gb_per_s": read, "read_kept": 54 - dropped, "read_dropped": dropped,
            "memcpy_gb_per_s": 30.0, "memcpy_kept": 9, "memcpy_dropped": 0, "memcpy_bytes": 1 << 20,
            "paths": {"avx2": path}}


def test_report_says_which_peaks_are_no_result(capsys: pytest.CaptureFixture[str]) -> None:
    lines = list(report.about(result(peaks=[peaks(40.0, 3), peaks(None, 54)])))
    assert lines[-2].startswith("| 2 | 40.0 GB/s | 30.0 GB/s | avx2 100 GFLOP/s, no result (52 of 54 dropped) |")
    assert lines[-2].endswith("| 56 of 127 |")
    assert "| 2 | no result (54 of 54 dropped) |" in lines[-1]
    report.print_peaks([peaks(None, 54)])
    said = capsys.readouterr().out
    assert "read no result (54 of 54 dropped), memcpy of 1 MiB each 30.0 GB/s" in said
    assert "avx2          products 100.0 GFLOP/s, exponentials no result (52 of 54 dropped)\n" in said


def test_report_says_at_once_that_a_machine_is_too_busy() -> None:
    assert report.too_busy(peaks(40.0, 3)) is None
    said = report.too_busy(peaks(None, 54))
    assert said is not None
    assert said.startswith("2 of 4 peaks have no result, 107 of 127 repetitions were dropped")
    assert "BENCH_CPU=1" in said


def test_busy_machine_is_told_once_and_on_stderr(monkeypatch: pytest.MonkeyPatch,
                                                 capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(run, "lines_of", lambda *_: iter([peaks(None, 54)]))
    assert len(run.peaks(run.PLANS["tiny"], [1, 2])) == 2
    assert capsys.readouterr().err.count("too busy") == 1


def test_what_is_left_out_is_said() -> None:
    assert run.left_out(run.PLANS["full"]) == ""
    quick = run.left_out(run.PLANS["quick"])
    assert quick == "sequences of 32768, 131072 tokens; one thread; growth past 131072 rows; 4 of 9 repetitions"
    head = next(report.about(result(size="quick", left_out=quick)))
    assert head.endswith(f"`make bench` (quick), wall time. Left out: {quick}.")
    shown = subprocess.run(["make", "-s", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "without sequences of 32768 and 131072 tokens, one thread, growth past 131072 rows" in shown


def test_table_comes_once_and_whole(capsys: pytest.CaptureFixture[str]) -> None:
    report.print_progress(row("amx", 2048, dropped=3, kept=5))
    report.print_progress(row("amx", 8192, score_ms=None, dropped=54, kept=0))
    assert capsys.readouterr().out == (
        "    Llama-3-8B, profile default, 2048 tokens, 2 threads, amx*: 2.05 ms, 3 of 8 repetitions dropped\n"
        "    Llama-3-8B, profile default, 8192 tokens, 2 threads, amx*: no result, 54 of 54 repetitions dropped\n")


def test_no_result_has_no_spread(capsys: pytest.CaptureFixture[str]) -> None:
    report.print_score(row("amx", 8192, score_ms=None, spread=None))
    assert capsys.readouterr().out.rstrip().endswith("-")


def test_stopped_run_is_no_source_of_a_document(tmp_path: Path) -> None:
    file = tmp_path / "bench.json"
    run.save(file, result())
    assert report.whole(file)["size"] == "full"
    run.save(file, result(partial=True))
    with pytest.raises(SystemExit, match=r"bench\.json is of a run that was stopped"):
        report.whole(file)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_run_leaves_what_it_has(number: signal.Signals, tmp_path: Path) -> None:
    out = tmp_path / "bench.json"
    process = subprocess.Popen([sys.executable, ROOT / "bench" / "run.py", "--quick", "--out", out],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               env=os.environ | {"CHUNKKV_BUILD": str(build_directory())})
    until = time.monotonic() + 60
    while not out.exists() and time.monotonic() < until:
        time.sleep(0.02)
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert said.splitlines()[-1] == f"stopped; {out} has 0 rows, marked as partial"
    found = json.loads(out.read_text())
    assert found["partial"] is True
    assert found["machine"]["cpus"] >= 1
    assert not list(tmp_path.glob("*.tmp"))
    assert not [pid for pid in processes_with("chunkkv-bench") if process.pid == parent_of(pid)]


def test_figures_are_kept_as_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "lines_of", lambda *_: iter([row("amx", 2048), row("avx2", 2048)]))
    rows: list[dict[str, Any]] = []
    seen: list[int] = []
    run.scores(run.PLANS["tiny"], [2], rows, lambda: seen.append(len(rows)))
    assert seen == [1, 2, 3, 4]


def test_stopped_comparison_leaves_what_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def rows_of(path: str, _: object) -> Iterator[dict[str, Any]]:
        if path == "avx512":
            raise KeyboardInterrupt
        yield {"path": path}

    out = tmp_path / "bench-peers.json"
    monkeypatch.setattr(sys, "argv", ["kvpress_speed.py", "--out", str(out)])
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(kvpress_speed, "usable_paths", lambda: ["avx2", "avx512"])
    monkeypatch.setattr(kvpress_speed, "rows_of", rows_of)
    monkeypatch.setattr(kvpress_speed, "print_row", lambda _: None)
    monkeypatch.setattr("importlib.metadata.version", lambda _: "1")
    with pytest.raises(KeyboardInterrupt):
        kvpress_speed.main()
    found = json.loads(out.read_text())
    assert found["partial"] is True
    assert found["rows"] == [{"path": "avx2"}]


def test_report_shows_what_few_queries_reach() -> None:
    rows = [row("avx512", 8192), row("avx512", 2048, peak_ratio=0.1), row("scalar", 8192),
            row("avx512", 8192, main=False, what="window 8", queries=32, peak_ratio=0.56),
            row("avx2", 8192, main=False, what="window 8", queries=32, peak_ratio=None)]
    assert list(report.narrow_table(result(rows=rows)))[2:] == [
        "| window 8 | 32 | 0.56 | - |", "| profile default | 128 | 0.65 | - |"]


def test_report_shows_a_miss_and_draws() -> None:
    found = result(rpc={"p50_us": 9, "floor_p50_us": 5, "ratio": 1.8})
    found["gates"] = gates.judge(found)
    text = report.markdown(found)
    assert "| request overhead over bare round trips, p50 | 1.8 | at most 1.5 | 1.3 | **miss** |" in text
    assert "amx*" in text
    picture = ET.fromstring(report.picture(found))
    assert len(picture.findall(".//{http://www.w3.org/2000/svg}polyline")) == 4  # three paths and the floor


def test_document_has_a_place_for_each_section() -> None:
    found = result()
    found["gates"] = gates.judge(found)
    document = (ROOT / "docs" / "performance.md").read_text()
    for name in (*report.sections(found), "peers"):
        document = report.fill_in(document, name, ["a line"])
    assert document.count("a line\n<!-- /measured") == len(report.sections(found)) + 1


RPC = {"p50_us": 80.0, "floor_p50_us": 40.0, "ratio": 2.0, "kernels_p50_us": 7.0, "zmq_p50_us": 32.0,
       "seqpacket_p50_us": 8.0, "wakeups": 10.4, "floor_wakeups": 6.5, "switches": 15.0, "floor_switches": 10.0,
       "run_us": 87.0, "floor_run_us": 40.0}


def test_report_says_where_the_overhead_goes() -> None:
    lines = list(report.round_trips(RPC | {"ratio": 1.6, "one_cpu": RPC}))
    assert "| overhead over floor | 1.600 | 2.000 |" in lines
    assert "| CPU time of all threads, plan beside its kernels | 80.0 us | 80.0 us |" in lines
    assert any(line.startswith("Whoever wakes a thread on another CPU pays for it") for line in lines)
    # 5 switches at 4 us
    assert "at that price 20 us of the 40 us" in lines[-1]
    assert "the other 20 us" in lines[-1]


def test_report_without_counts_or_a_second_variant() -> None:
    lines = list(report.round_trips({"p50_us": 1.0, "floor_p50_us": 1.0, "ratio": 1.2, "switches": None}))
    assert "| overhead over floor | 1.200 | - |" in lines
    assert "| switches of threads, plan | - | - |" in lines
    assert lines[-1].startswith("|")
    assert list(report.round_trips({}))


def test_the_gate_looks_at_the_free_variant() -> None:
    found = outcomes(result(rpc={"ratio": 1.4, "one_cpu": {"ratio": 1.9}}))
    assert found["request overhead over bare round trips, p50"] == "hit"


def test_round_trips_are_measured_free_and_on_one_cpu() -> None:
    before = os.sched_getaffinity(0)
    with run.one_cpu():
        assert os.sched_getaffinity(0) == {max(before)}
        figures, summary = run.round_trips(20)
    assert os.sched_getaffinity(0) == before
    assert figures["trips"] == 20
    assert summary["ratio"] == pytest.approx(summary["p50_us"] / summary["floor_p50_us"], rel=0.05)
    # a trip takes a switch to the other side and one back
    assert figures["seqpacket_switches"] >= 1
    assert summary["switches"] > summary["floor_switches"] >= 2
    assert summary["run_us"] > 0


def processes_with(word: str) -> list[int]:
    """Processes that have a word on their command line."""
    found = []
    for line in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if word in line.read_text(errors="replace") and is_alive(int(line.parent.name)):
                found.append(int(line.parent.name))
        except OSError:
            continue  # ended meanwhile
    return found


def parent_of(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def test_round_trips_that_fail_leave_nothing_behind(tmp_path: Path) -> None:
    nobody = str(tmp_path / "nobody")
    done = subprocess.run([build_directory() / "chunkkv-bench-rpc", nobody], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr.startswith("connect: ")
    assert not processes_with(nobody)


def test_echoes_end_with_a_measurement_that_is_killed() -> None:
    daemon = Daemon()
    try:
        process = subprocess.Popen([build_directory() / "chunkkv-bench-rpc", daemon.prefix(), "1000000"],
                                   stdout=subprocess.DEVNULL)
        until = time.monotonic() + 30
        while len(processes_with(daemon.prefix())) < 3 and time.monotonic() < until:
            time.sleep(0.02)
        assert len(processes_with(daemon.prefix())) == 3
        process.send_signal(signal.SIGKILL)
        process.wait(30)
        while processes_with(daemon.prefix()) and time.monotonic() < until:
            time.sleep(0.02)
        assert not processes_with(daemon.prefix())
    finally:
        daemon.stop()


@pytest.mark.skipif(is_sanitizer_build(), reason="speed of a sanitizer's build is nobody's business")
@pytest.mark.skipif("CI" in os.environ, reason="a minute that CI does not have; make check has it")
def test_all_of_it_runs(tmp_path: Path) -> None:
    out = tmp_path / "bench.json"
    done = subprocess.run([sys.executable, ROOT / "bench" / "run.py", "--tiny", "--out", out], capture_output=True,
                          text=True, timeout=600, env=os.environ | {"CHUNKKV_BUILD": str(build_directory())})
    assert done.returncode in (0, 1), done.stderr  # 1: a miss, which means nothing here
    found = json.loads(out.read_text())
    assert found["rows"]
    for one in found["rows"]:
        assert one["path"] in PATHS
        assert isinstance(one["model"], str)
        assert isinstance(one["profile"], str)
        for name in ("tokens", "threads", "window", "chunk"):
            assert isinstance(one[name], int)
        for name in ROW_NUMBERS:
            assert one[name] is None or isinstance(one[name], (int, float))
    picked = [one for one in found["rows"] if one["main"] and one["picked"]]
    assert {one["model"] for one in picked} == {"Llama-3-8B", "Qwen2-7B", "Mistral-7B"}
    assert all(one["request_ms"] > 0 for one in picked)
    assert {"compact", "rpc", "picked_within", "growth", "memory", "peaks"} <= found.keys()
    assert [one["layers"] for one in found["growth"]] == [8, 4, 2, 1]
    assert all(one["kept"] + one["dropped"] > 0 for one in found["growth"])
    assert len({(one["model"], one["scratch_bytes"]) for one in found["memory"]}) == 4
    assert all(one["extra_bytes"] > 0 for one in found["memory"])
    # without queries K is read as fast as memory gives it: all of the pool in one job
    assert {one["layers"] for one in found["rows"] if one["what"] in ("knorm", "keydiff", "raw_qk")} == {16}
    assert ET.parse(out.with_suffix(".svg")).getroot().tag.endswith("svg")
    assert "| Llama-3-8B, knorm |" in out.with_suffix(".md").read_text()
