#!/usr/bin/env python3
"""The CUDA kernels with mistakes in them, all at once, each asleep until the environment wakes it.

    tests/emu/plant.py write FOLDER     sources with mistakes, and planted.cpp, which is compiled with -I FOLDER first
    tests/emu/plant.py check FOLDER     run FOLDER/KIND-test_emu_kernels, plain, asan and tsan, with each mistake

tests/emu/planted.txt has the mistakes and what must find each of them.  CKV_PLANT=n wakes the n-th.  A text that is
replaced must be there once, so a change of the kernels that a mistake no longer fits ends the build.
"""

import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
# how each build says that it has found something
WORDS = {"plain": r":F:|emulator: ", "asan": r"AddressSanitizer|runtime error", "tsan": r"ThreadSanitizer"}
# jobs of each run; ThreadSanitizer's take long, and a race shows in the first
SEEDS = {(kind, case): 30 for kind in WORDS for case in ("scores", "mma", "sums", "moves")} | {
    ("tsan", "scores"): 40,
    ("tsan", "mma"): 12,
    ("tsan", "sums"): 4,
    ("tsan", "moves"): 4,
}
MAIN = """/* written by tests/emu/plant.py */
#include <cstdlib>
namespace emu {
static const int planted = getenv("CKV_PLANT") ? atoi(getenv("CKV_PLANT")) : 0;
}
#include "tests/emu/kernels.cpp"
"""


class Plant(NamedTuple):
    """A mistake: where, which builds must find it in which test case, and what is replaced by what."""

    file: str
    kinds: list[str]
    case: str
    what: str
    changes: list[tuple[str, str]]


def change(awake: str, body: list[str]) -> tuple[str, str]:
    """What is looked for, and the same with both versions in it: statements as in a diff, or part of a line."""
    old, new = ("\n".join(line[1:] for line in body if line[:1] == sign) for sign in "-+")
    if body[0][0] == "~":
        return body[0][1:].strip(), f"({awake} ? ({new.strip()}) : ({body[0][1:].strip()}))"
    find = "\n".join(line[1:] for line in body if line[:1] in " -")
    return find, find.replace(old, f"if ({awake}) {{ {new} }} else {{ {old} \n}}")


def plants() -> list[Plant]:
    """Entries of planted.txt, which says how they are written."""
    found: list[Plant] = []
    for entry in (ROOT / "tests/emu/planted.txt").read_text().split("\n= ")[1:]:
        head, _, body = entry.rstrip("\n").partition("\n")
        file, kinds, case = head.split(": ", 1)[0].split()
        awake = f"emu::planted == {len(found) + 1}"
        changes = [change(awake, part.split("\n")) for part in body.split("\n&\n")]
        found.append(Plant(file, kinds.split(","), case, head.split(": ", 1)[1], changes))
    return found


def write(folder: Path) -> None:
    """The sources with every mistake beside what is right."""
    texts: dict[str, str] = {}
    for plant in plants():
        text = texts.setdefault(plant.file, (ROOT / "kernels/cuda" / plant.file).read_text())
        for find, replace in plant.changes:
            if text.count(find) != 1:
                sys.exit(
                    f"planted.txt: {plant.what}: {text.count(find)} times in kernels/cuda/{plant.file}:\n{find}"
                )
            text = text.replace(find, replace)
        texts[plant.file] = text
    (folder / "kernels/cuda").mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (folder / "kernels/cuda" / name).write_text(text)
    (folder / "planted.cpp").write_text(MAIN)


def run(folder: Path, kind: str, number: int, case: str) -> tuple[bool, float, str]:
    """Whether the test went well, how long it took, and the end of what it said."""
    environment = {
        **os.environ,
        "CKV_PLANT": str(number),
        "CKV_EMU_SEEDS": str(SEEDS[kind, case]),
        "CK_RUN_CASE": case,
        "CK_VERBOSITY": "normal",
        "ASAN_OPTIONS": "detect_leaks=0",
        "TSAN_OPTIONS": "halt_on_error=1",
    }
    start = time.monotonic()
    try:
        done = subprocess.run(
            [folder / f"{kind}-test_emu_kernels"],
            env=environment,
            stdin=subprocess.DEVNULL,
            timeout=300,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
    except subprocess.TimeoutExpired:
        return False, time.monotonic() - start, "took more than 300 s"
    return done.returncode == 0, time.monotonic() - start, done.stdout


def check(folder: Path) -> int:
    """Every mistake must be found by each kind that planted.txt names, and none where there is none."""
    wrong = 0
    cases = sorted({plant.case for plant in plants()})
    for kind in ("plain", "asan", "tsan"):
        for case in cases:
            good, took, text = run(folder, kind, 0, case)
            wrong += not good
            print(f"{'ok  ' if good else 'FAIL'} {kind:5} {case}: no mistake ({took:.1f} s)")
            if not good:
                print(text[-3000:])
    for number, plant in enumerate(plants(), 1):
        for kind in plant.kinds:
            good, took, text = run(folder, kind, number, plant.case)
            found = not good and re.search(WORDS[kind], text) is not None
            wrong += not found
            print(f"{'ok  ' if found else 'FAIL'} {kind:5} {plant.case}: {number}, {plant.what} ({took:.1f} s)")
    print(f"{len(plants())} mistakes, {wrong} wrong verdicts")
    return 1 if wrong else 0


if __name__ == "__main__":
    if sys.argv[1] == "write":
        write(Path(sys.argv[2]))
    else:
        sys.exit(check(Path(sys.argv[2])))
