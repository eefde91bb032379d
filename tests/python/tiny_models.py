"""Tiny random models of Transformers, and a full cache whose mask hides rows: what compression is held to."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import transformers

torch.set_num_threads(1)  # matrices here are small: threads would only wait for one another

SHAPE = {"vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4,
         "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512, "head_dim": 16,
         "bos_token_id": 1, "eos_token_id": None, "pad_token_id": 0}
GEMMA = {"sliding_window": 24, "query_pre_attn_scalar": 20,
         "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]}
KINDS: dict[str, dict[str, Any]] = {
    "Llama": {}, "Qwen2": {"head_dim": 8}, "Qwen3": {}, "Mistral": {"sliding_window": None},
    "Gemma2": {**GEMMA, "attn_logit_softcapping": 5.0}, "Gemma3": GEMMA,
    "Phi": {"partial_rotary_factor": 0.5, "head_dim": 8}, "Phi3": {"head_dim": 8, "sliding_window": None},
}
HYBRIDS: dict[str, dict[str, Any]] = {
    "Qwen3Next": {"head_dim": 8, "layer_types": ["linear_attention", "full_attention"] * 2, "num_experts": 2,
                  "num_experts_per_tok": 1, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32,
                  "linear_num_key_heads": 2, "linear_num_value_heads": 2, "linear_key_head_dim": 8,
                  "linear_value_head_dim": 8},
    "Lfm2": {"head_dim": 8, "layer_types": ["conv", "full_attention"] * 2, "full_attn_idxs": [1, 3]},
}
NAMES = {"Gemma3": "Gemma3Text"}


def tiny(kind: str, attention: str = "eager", **others: Any) -> Any:
    """A model of one of KINDS or HYBRIDS, in float32; the same weights whenever it is asked for."""
    config_name = f"{NAMES.get(kind, kind)}Config"
    config = getattr(transformers, config_name)(**{**SHAPE, **{**KINDS, **HYBRIDS}[kind], **others})
    config._attn_implementation = attention
    torch.manual_seed(5)
    model = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim > 1:  # larger than they begin: attention must not be nearly uniform
                weight.mul_(6.0 if "q_proj" in name or "k_proj" in name or "qkv" in name else 2.5)
    return model


def prompt(tokens: int, seed: int = 1, batch: int = 1) -> torch.Tensor:
    """Random token ids."""
    return torch.randint(3, SHAPE["vocab_size"], (batch, tokens), generator=torch.Generator().manual_seed(seed))


@contextmanager
def hidden_rows(model: Any, hidden: Callable[[int, int], torch.Tensor | None]) -> Iterator[None]:
    """Eager attention that does not see some rows: hidden(layer, rows) is True [batch, kv_heads, rows] for them."""
    file = sys.modules[type(next(m for m in model.modules() if hasattr(m, "layer_idx"))).__module__]
    original = file.eager_attention_forward

    def attention(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, *args: Any,
                  **options: Any) -> Any:
        rows = hidden(module.layer_idx, key.shape[2])
        if rows is not None:
            bias = torch.zeros(rows.shape).masked_fill(rows, -1e30).to(query.device)
            bias = bias.repeat_interleave(query.shape[1] // key.shape[1], 1)[:, :, None]
            attention_mask = bias if attention_mask is None else attention_mask[..., : key.shape[2]] + bias
        return original(module, query, key, value, attention_mask, *args, **options)

    file.eager_attention_forward = attention
    try:
        yield
    finally:
        file.eager_attention_forward = original


def hidden_by(report: Any, rows: int, layer: int, kv_heads: int) -> torch.Tensor | None:
    """The rows of a full cache that a compressed one does not hold."""
    if report is None or layer not in report.rows_after:
        return None
    out = torch.zeros(report.sequences, kv_heads, rows, dtype=torch.bool)
    out[:, :, : report.tokens] = True
    for sequence in range(report.sequences):
        for head in range(kv_heads):
            out[sequence, head, torch.from_numpy(report.kept(layer, sequence, head).astype("int64"))] = False
    return out


def masked_run(model: Any, ids: torch.Tensor, tokens: int, reports: Sequence[Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Greedy tokens, and logits [batch, tokens, vocabulary], of a full cache on which the rows are hidden that were
    dropped, each from the step on before which they were."""
    now: list[Any] = []

    def hidden(layer: int, rows: int) -> torch.Tensor | None:
        return hidden_by(now[-1] if now else None, rows, layer, model.config.num_key_value_heads)

    cache, seen, step, logits, chosen = transformers.DynamicCache(config=model.config), 0, ids, [], []
    with torch.no_grad(), hidden_rows(model, hidden):
        for _ in range(tokens):
            now = [report for report in reports if report.tokens <= seen]
            mask = torch.ones(ids.shape[0], seen + step.shape[1], device=ids.device)
            out = model(step, past_key_values=cache, attention_mask=mask)
            seen += step.shape[1]
            logits.append(out.logits[:, -1])
            step = logits[-1].argmax(-1, keepdim=True)
            chosen.append(step)
    return torch.cat(chosen, 1), torch.stack(logits, 1)


def masked_turn(model: Any, ids: torch.Tensor, later: torch.Tensor, report: Any) -> torch.Tensor:
    """Logits of given tokens behind a prompt, one by one, on a full cache whose dropped rows are hidden."""
    def hidden(layer: int, rows: int) -> torch.Tensor | None:
        return hidden_by(report if rows > report.tokens else None, rows, layer, model.config.num_key_value_heads)

    cache, logits = transformers.DynamicCache(config=model.config), []
    with torch.no_grad(), hidden_rows(model, hidden):
        model(ids, past_key_values=cache)
        for i in range(later.shape[1]):
            logits.append(model(later[:, i : i + 1], past_key_values=cache).logits[:, -1])
    return torch.stack(logits, 1)


def generated(model: Any, ids: torch.Tensor, tokens: int, **others: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Greedy tokens and logits of generate()."""
    out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, do_sample=False,
                         return_dict_in_generate=True, output_logits=True, **others)
    return out.sequences[:, ids.shape[1] :], torch.stack(out.logits, 1)
