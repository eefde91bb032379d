"""The files that chunkkvctl writes and reads, judged by other code: NumPy, json, html.parser, safetensors if any."""

from __future__ import annotations

import json
import os
import re
import struct
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chunkkv import safetensors
from daemon import Daemon, build_directory

DATA = Path(__file__).resolve().parents[1] / "data"
NEEDLE = DATA / "needle-1k.safetensors"
TOKENS = DATA / "needle-1k.json"


class Ctl:
    """chunkkvctl, with a daemon to talk to."""

    def __init__(self, daemon: Daemon) -> None:
        self.program = build_directory() / "chunkkvctl"
        self.environment = {**os.environ, "CHUNKKV_ENDPOINT": daemon.prefix()}

    def __call__(self, *words: object, status: int = 0) -> str:
        """What it prints; or its complaint, if that is what is expected."""
        done = subprocess.run([self.program, *map(str, words)], env=self.environment, capture_output=True, text=True,
                              timeout=60, check=False)
        assert done.returncode == status, done.stderr
        assert status == 0 or (done.stderr.count("\n") == 1 and not done.stdout)
        return done.stderr if status else done.stdout


@pytest.fixture
def ctl(daemon: Daemon) -> Ctl:
    """chunkkvctl with the module's daemon."""
    return Ctl(daemon)


def rows_of(layer: dict[str, Any]) -> np.ndarray:
    """Kept rows out of a plan in JSON."""
    return np.concatenate([np.arange(first, end) for first, end in layer["kept"]])


def metadata_of(path: Path) -> dict[str, str]:
    """The metadata of a safetensors file."""
    with path.open("rb") as stream:
        (length,) = struct.unpack("<Q", stream.read(8))
        return json.loads(stream.read(length)).get("__metadata__", {})


def save(path: Path, tensors: dict[str, np.ndarray], metadata: dict[str, str] | None = None) -> None:
    """A safetensors file."""
    names = {np.dtype(np.float32): "F32", np.dtype(np.float16): "F16", np.dtype(np.uint8): "U8"}
    header: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    place = 0
    for name, tensor in tensors.items():
        end = place + tensor.nbytes
        header[name] = {"dtype": names[tensor.dtype], "shape": tensor.shape, "data_offsets": [place, end]}
        place = end
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(t.tobytes() for t in tensors.values()))


def random_layer(rng: np.random.Generator, rows: int, kind: type = np.float32) -> dict[str, np.ndarray]:
    """Key, value and query of one layer, by role."""
    shapes = {"key": (rows, 2, 16), "value": (rows, 2, 8), "query": (32, 4, 16)}
    return {role: rng.normal(size=shape).astype(kind) for role, shape in shapes.items()}


# ---- compress

def check_file(before: dict[str, np.ndarray], after: dict[str, np.ndarray], plan: dict[str, Any]) -> None:
    """Kept rows bit for bit, everything else as it was, nothing besides."""
    planned = {layer["layer"]: rows_of(layer) for layer in plan["layers"]}
    assert set(after) == set(before) | {f"layer{number}.kept_rows" for number in planned}
    for number, rows in planned.items():
        kept = after[f"layer{number}.kept_rows"]
        assert kept.dtype == np.int64
        np.testing.assert_array_equal(kept, rows)
    for name, tensor in before.items():
        number, role = int(re.findall(r"\d+", name)[0]), name.split(".")[1]
        expected = tensor[planned[number]] if role in ("key", "value") and number in planned else tensor
        assert after[name].dtype == expected.dtype
        np.testing.assert_array_equal(after[name], expected)


@pytest.mark.parametrize("options", [
    ["--keep-ratio", 0.2],
    ["--keep-ratio", 0.2, "--profile", "retrieval"],
    ["--keep-ratio", 0.1, "--profile", "kvpress"],
    ["--keep-ratio", 0.3, "--layer-sets", "one"],
    ["--keep-ratio", 1],
    ["--max-tokens", 20],
    ["--max-tokens", 100, "--layer", 11, "--layer", 26],
])
def test_compress_keeps_the_rows_of_the_plan(ctl: Ctl, tmp_path: Path, options: list[object]) -> None:
    """What is written are the rows that `plan` names, moved by the daemon."""
    out = tmp_path / "out.safetensors"
    answer = json.loads(ctl("compress", NEEDLE, out, *options, "--json"))
    plan = json.loads(ctl("plan", NEEDLE, *options, "--json"))
    assert answer["layers"] == plan["layers"]
    assert answer["policy"] == plan["policy"]
    assert answer["out"] == str(out)
    assert answer["bytes"] == out.stat().st_size
    check_file(safetensors.load(NEEDLE), safetensors.load(out), plan)
    assert [path.name for path in tmp_path.iterdir()] == ["out.safetensors"]


def test_compress_reads_with_the_real_library(ctl: Ctl, tmp_path: Path) -> None:
    """The reference reader takes the file, and sees the metadata."""
    library = pytest.importorskip("safetensors", reason="the package safetensors is not installed")
    out = tmp_path / "out.safetensors"
    ctl("compress", NEEDLE, out, "--keep-ratio", 0.2)
    with library.safe_open(out, framework="np") as opened:
        assert opened.metadata() == {"logical_len": "1024", "profile": "default", "keep_ratio": "0.2"}
        assert opened.get_slice("layer10.key").get_shape() == [204, 3, 64]
        assert opened.get_tensor("layer10.kept_rows").shape == (204,)


def test_compress_metadata_and_alignment(ctl: Ctl, tmp_path: Path) -> None:
    """Metadata is kept and added to; every tensor is aligned for its type; names with odd characters survive."""
    rng = np.random.default_rng(1)
    layers = {f"layer{n}.{role}": t for n in (0, 1) for role, t in random_layer(rng, 77, np.float16).items()}
    tensors = {**layers, 'layer0.a "name" \\ \u00e9': np.arange(3, dtype=np.uint8)}
    save(tmp_path / "in", tensors, {"model": 'a "model"', "logical_len": "9", "keep_ratio": "x"})
    options = ["--max-tokens", 60, "--logical-len", 500, "--profile", "retrieval"]
    ctl("compress", tmp_path / "in", tmp_path / "out", *options)
    assert metadata_of(tmp_path / "out") == {"model": 'a "model"', "logical_len": "500", "keep_ratio": "x",
                                             "profile": "retrieval", "max_tokens": "60"}
    data = (tmp_path / "out").read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    assert length % 8 == 0
    for name, entry in json.loads(data[8 : 8 + length]).items():
        if name != "__metadata__":
            assert entry["data_offsets"][0] % {"I64": 8, "F16": 2, "U8": 1}[entry["dtype"]] == 0
    check = safetensors.load(tmp_path / "out")
    np.testing.assert_array_equal(check['layer0.a "name" \\ \u00e9'], [0, 1, 2])
    assert check["layer1.key"].shape == (60, 2, 16)


def test_compress_layers_of_different_shape(ctl: Ctl, tmp_path: Path) -> None:
    """Layers that go into different requests and groups land in the right tensors."""
    rng = np.random.default_rng(2)
    tensors = {}
    for number, rows in ((0, 100), (3, 80), (7, 100)):
        for role, tensor in random_layer(rng, rows, np.float16 if number == 7 else np.float32).items():
            tensors[f"layer{number}.{role}"] = tensor
    save(tmp_path / "in", tensors)
    answer = json.loads(ctl("compress", tmp_path / "in", tmp_path / "out", "--keep-ratio", 0.6, "--json"))
    check_file(tensors, safetensors.load(tmp_path / "out"), answer)
    assert metadata_of(tmp_path / "out")["logical_len"] == "100"


def test_compress_refuses(ctl: Ctl, tmp_path: Path) -> None:
    """No file is replaced unasked, none is compressed twice, and a refusal leaves nothing."""
    out = tmp_path / "out.safetensors"
    ctl("compress", NEEDLE, out, "--keep-ratio", 0.2)
    first = out.read_bytes()
    assert "--force" in ctl("compress", NEEDLE, out, "--keep-ratio", 0.1, status=2)
    assert out.read_bytes() == first
    assert "compressed before" in ctl("compress", out, tmp_path / "again", "--keep-ratio", 0.5, status=2)
    ctl("compress", NEEDLE, out, "--keep-ratio", 0.1, "--force")
    assert len(out.read_bytes()) < len(first)
    assert "No such file" in ctl("compress", NEEDLE, tmp_path / "no" / "out", "--keep-ratio", 0.2, status=2)
    assert "--chunk" in ctl("compress", NEEDLE, tmp_path / "other", "--keep-ratio", 0.2, "--chunk", 5000, status=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.safetensors"]
    linked = tmp_path / "linked"
    linked.symlink_to(NEEDLE)
    assert "never overwritten" in ctl("compress", NEEDLE, linked, "--keep-ratio", 0.2, "--force", status=2)


# ---- .npy

@pytest.mark.parametrize(("kind", "version"), [(np.float32, (1, 0)), (np.float16, (2, 0)), (np.float32, (3, 0))])
def test_npy_files_are_layer_0(ctl: Ctl, tmp_path: Path, kind: type, version: tuple[int, int]) -> None:
    """The same tensors give the same answer, from .npy files of any version and from safetensors."""
    tensors = random_layer(np.random.default_rng(3), 120, kind)
    save(tmp_path / "in", {f"layer0.{role}": tensor for role, tensor in tensors.items()})
    for role, tensor in tensors.items():
        with (tmp_path / f"{role}.npy").open("wb") as stream:
            np.lib.format.write_array(stream, tensor, version=version)
    files = [word for role in tensors for word in (f"--{role}", tmp_path / f"{role}.npy")]
    options = ["--keep-ratio", 0.5, "--value-weight", "l2", "--json"]
    plan = json.loads(ctl("plan", *files, *options))
    assert plan["layers"] == json.loads(ctl("plan", tmp_path / "in", *options))["layers"]
    assert [layer["layer"] for layer in plan["layers"]] == [0]
    ctl("compress", tmp_path / "out", *files, *options)
    check_file({f"layer0.{role}": tensor for role, tensor in tensors.items()}, safetensors.load(tmp_path / "out"), plan)


def test_npy_bfloat16(ctl: Ctl, tmp_path: Path) -> None:
    """bfloat16 as untyped pairs of bytes, and as integers that are said to be it."""
    real = safetensors.load(NEEDLE)
    expected = json.loads(ctl("plan", NEEDLE, "--layer", 10, "--keep-ratio", 0.2, "--json"))["layers"][0]
    for descr, options in (("V2", []), ("<u2", ["--dtype", "bf16"]), ("<i2", ["--dtype", "bf16"])):
        for role in ("key", "query"):
            np.save(tmp_path / f"{role}.npy", np.array(real[f"layer10.{role}"]).view(descr))
        files = ["--key", tmp_path / "key.npy", "--query", tmp_path / "query.npy", *options]
        answer = json.loads(ctl("plan", *files, "--keep-ratio", 0.2, "--json"))["layers"][0]
        assert answer["kept"] == expected["kept"]


def test_npy_refusals(ctl: Ctl, tmp_path: Path) -> None:
    """Each names the file or the option at fault, in one sentence."""
    tensors = random_layer(np.random.default_rng(4), 64)
    key, query = tmp_path / "key.npy", tmp_path / "query.npy"
    np.save(key, tensors["key"])
    np.save(query, tensors["query"])
    bad = tmp_path / "bad.npy"
    cases = [(np.asfortranarray(tensors["key"]), "Fortran"), (tensors["key"].astype(">f4"), ">f4"),
             (tensors["key"].astype(np.float64), "<f8"), (tensors["key"][0], "2 dimensions"),
             (np.zeros((4, 2, 16), np.uint16), "--dtype bf16"), (np.zeros((4, 2, 0), np.float32), "0 elements")]
    for array, word in cases:
        np.save(bad, array)
        complaint = ctl("plan", "--key", bad, "--query", query, "--keep-ratio", 0.5, status=2)
        assert word in complaint
        assert "bad.npy" in complaint
    np.save(bad, np.zeros(3, dtype=[("a", "<f4")]))
    assert "one type" in ctl("plan", "--key", bad, "--query", query, "--keep-ratio", 0.5, status=2)
    np.savez(tmp_path / "z.npz", key=tensors["key"])
    assert "no .npy file" in ctl("plan", "--key", tmp_path / "z.npz", "--query", query, "--keep-ratio", 0.5, status=2)
    assert "--query must be given" in ctl("plan", "--key", key, "--keep-ratio", 0.5, status=2)
    bad.write_bytes(query.read_bytes()[:-1])
    assert "bad.npy: it holds" in ctl("plan", "--key", key, "--query", bad, "--keep-ratio", 0.5, status=2)
    assert "layer3.key" in ctl("plan", "--key", key, "--query", query, "--layer", 3, "--keep-ratio", 0.5, status=2)


# ---- explain

class Page(HTMLParser):
    """The pieces of text, the block of data, and everything that would make the page ask for another file."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.pieces: list[str] = []
        self.data: dict[str, Any] = {}
        self.fetched: list[str] = []
        self._where: list[tuple[str, dict[str, str | None]]] = []
        self.text = path.read_text()
        self.feed(self.text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Opens an element."""
        given = dict(attrs)
        self.fetched += [f"{tag} {name}" for name in given if name in ("src", "href", "srcset", "action")]
        if tag in ("div", "span", "script"):
            self._where.append((tag, given))
        if tag == "span" and len(self._where) > 1 and self._where[-2][1].get("id") == "text":
            self.pieces.append("")

    def handle_endtag(self, tag: str) -> None:
        """Closes an element."""
        if self._where and self._where[-1][0] == tag:
            self._where.pop()

    def handle_data(self, data: str) -> None:
        """Text between tags."""
        if self._where and self._where[-1][1].get("id") == "data":
            self.data = json.loads(data)
        elif len(self._where) > 1 and self._where[-2][1].get("id") == "text":
            self.pieces[-1] += data


def explain(ctl: Ctl, page: Path, *words: object, tokens: Path = TOKENS) -> Page:
    """Write a page and read it again."""
    assert f"wrote {page}, " in ctl("explain", *words, "--tokens", tokens, "--out", page, "--force")
    return Page(page)


def mass_of(data: dict[str, Any], layer: dict[str, Any], total: bool) -> float:
    """Kept mass from the numbers on the page, row by row."""
    rows, guarded = np.zeros(data["rows"]), np.zeros(data["rows"], bool)
    for _, first, end in data["guards"]:
        guarded[first:end] = not data["guardsScored"]
    for (_, first, end, size), score in zip(data["units"], layer["scores"], strict=True):
        inside = np.arange(first, end)[~guarded[first:end]]
        assert len(inside) == size
        rows[inside] = score / size if total else score
    kept = np.zeros(data["rows"], bool)
    for first, end in np.reshape(layer["kept"], (-1, 2)):
        kept[first:end] = True
    return rows[kept].sum() / rows.sum()


@pytest.mark.parametrize("options", [
    ["--keep-ratio", 0.2],
    ["--keep-ratio", 0.1, "--profile", "retrieval"],
    ["--keep-ratio", 0.2, "--profile", "kvpress"],
    ["--keep-ratio", 0.2, "--profile", "paper", "--scorer", "window"],
    ["--keep-ratio", 0.2, "--protect", "100:140", "--protect", "505:506"],
    ["--keep-ratio", 0.2, "--protect-prefix", 17],
    ["--keep-ratio", 0.3, "--layer-sets", "one"],
    ["--keep-ratio", 0.3, "--unit-reduce", "sum", "--sinks", 0],
    ["--keep-ratio", 0.2, "--reuse", 2],
    ["--max-tokens", 120, "--selector", "token"],
    ["--keep-ratio", 0.5, "--selector", "chunk_at", "--chunk-lengths", "100,24,400,1,499"],
])
def test_explain_numbers(ctl: Ctl, tmp_path: Path, options: list[object]) -> None:
    """Kept rows are the plan's; scores stand at the chunks they belong to; kept mass is what the page says it is."""
    page = explain(ctl, tmp_path / "p.html", NEEDLE, *options)
    plan = json.loads(ctl("plan", NEEDLE, *options, "--json"))
    data = page.data
    assert not page.fetched
    assert data["rows"] == 1024
    assert len(data["layers"]) == len(plan["layers"]) == 8
    total = plan["policy"]["unit_reduce"] == "sum"
    for shown, planned in zip(data["layers"], plan["layers"], strict=True):
        assert shown["n"] == planned["layer"]
        assert [list(pair) for pair in np.reshape(shown["kept"], (-1, 2))] == planned["kept"]
        assert shown["mass"] == pytest.approx(mass_of(data, shown, total), abs=2e-3)
        assert 0 < shown["mass"] < 1
        if plan["policy"]["profile"] not in ("default", "retrieval"):
            continue
        # wherever a whole chunk was taken, no chunk that was left has a better score: so they are at their places
        kept = np.zeros(1024, bool)
        kept[rows_of(planned)] = True
        guarded = np.zeros(1024, bool)
        for _, first, end in data["guards"]:
            guarded[first:end] = True
        taken = np.array([kept[f:e][~guarded[f:e]].mean() for _, f, e, _ in data["units"]])
        scores = np.array(shown["scores"])
        assert ((taken > 0) & (taken < 1)).sum() <= 1
        assert scores[taken == 1].min() >= scores[taken == 0].max() * (1 - 1e-3)


def test_explain_text(ctl: Ctl, tmp_path: Path) -> None:
    """A piece for each row, as text, whatever is in it; both forms of the file of tokens."""
    pieces = json.loads(TOKENS.read_text())["pieces"]
    plain = explain(ctl, tmp_path / "p.html", NEEDLE, "--layer", 10, "--keep-ratio", 0.2)
    assert [piece.replace("\u21b5\n", "\n") for piece in plain.pieces] == pieces
    hostile = ["</script><script>alert(1)</script>", "<!--", "&lt;", "\x1b\u202e", "\"'", "</div>", "@@data@@", "\x00"]
    pieces[: len(hostile)] = hostile
    other = tmp_path / "tokens.json"
    other.write_text(json.dumps(pieces))
    page = explain(ctl, tmp_path / "p.html", NEEDLE, "--layer", 10, "--keep-ratio", 0.2, tokens=other)
    assert len(page.pieces) == 1024
    assert page.pieces[:3] == hostile[:3]
    assert page.pieces[4:7] == hostile[4:7]
    assert page.data["layers"][0]["n"] == 10
    assert page.text.count("<script") == 2


def test_explain_without_scores(ctl: Ctl, tmp_path: Path) -> None:
    """Nothing was scored: the page says why."""
    for options, word in ((["--keep-ratio", 1], "all rows fit"), (["--max-tokens", 20], "protected rows alone"),
                          (["--max-tokens", 20, "--min-tokens", 5000], "too short")):
        page = explain(ctl, tmp_path / "p.html", NEEDLE, *options)
        assert all(layer["scores"] is None and layer["mass"] is None for layer in page.data["layers"])
        assert word in page.text


def test_explain_scores_below_zero(ctl: Ctl, tmp_path: Path) -> None:
    """A part of a sum that goes up and down means nothing, and is not shown."""
    page = explain(ctl, tmp_path / "p.html", NEEDLE, "--keep-ratio", 0.2, "--profile", "paper")
    assert any(min(layer["scores"]) < 0 for layer in page.data["layers"])
    assert all(layer["mass"] is None for layer in page.data["layers"] if min(layer["scores"]) < 0)


def test_explain_large(ctl: Ctl, tmp_path: Path) -> None:
    """4096 rows of 30 layers, even row by row, are a page below 2 MB."""
    rng = np.random.default_rng(5)
    tensors = {}
    for number in range(30):
        for role, shape in (("key", (4096, 1, 8)), ("query", (32, 1, 8))):
            tensors[f"layer{number}.{role}"] = rng.normal(size=shape).astype(np.float16)
    save(tmp_path / "in", tensors)
    for selector in ("chunk", "token"):
        page = explain(ctl, tmp_path / "p.html", tmp_path / "in", "--keep-ratio", 0.2, "--selector", selector,
                       tokens=DATA / "novel-4k.json")
        assert len(page.data["layers"]) == 30
        assert len(page.text.encode()) < 2_000_000


def test_explain_refuses(ctl: Ctl, tmp_path: Path) -> None:
    """Each complaint names the file at fault, and no page is left behind."""
    tokens = tmp_path / "tokens.json"
    page = tmp_path / "p.html"
    for text, word in (("[", "no JSON"), ("[7]", "entry 0"), ("{}", "no list"), ('["a"]', "1 pieces"), ("", "empty")):
        tokens.write_text(text)
        complaint = ctl("explain", NEEDLE, "--keep-ratio", 0.2, "--tokens", tokens, "--out", page, status=2)
        assert word in complaint
        assert "tokens.json" in complaint
    assert not page.exists()
    tokens.write_text(TOKENS.read_text())
    words = ["explain", NEEDLE, "--keep-ratio", 0.2, "--tokens", tokens, "--out"]
    assert "never overwritten" in ctl(*words, tokens, "--force", status=2)
    page.write_text("mine")
    assert "--force" in ctl(*words, page, status=2)
    assert page.read_text() == "mine"


# ---- the demo

def test_demo_ends_with_a_page() -> None:
    """It checks every byte, ends by itself, and the last line is the path of the page."""
    if not (build_directory() / "chunkkvd").exists():
        pytest.skip("no daemon was built")
    program = Path(__file__).resolve().parents[2] / "tools" / "demo.py"
    page = build_directory() / "demo.html"
    page.unlink(missing_ok=True)
    done = subprocess.run([sys.executable, program, "--build", build_directory()], capture_output=True, text=True,
                          timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "are bit for bit the rows" in done.stdout
    beside = done.stdout[done.stdout.index("profile vote beside default") :].splitlines()
    assert [line.split()[-1] for line in beside[2:6]] == ["14"] * 4
    assert done.stdout.splitlines()[-1] == str(page)
    shown = Page(page)
    assert [layer["n"] for layer in shown.data["layers"]] == [2, 3, 10, 11, 18, 19, 26, 27]
    assert len(shown.pieces) == 1024
