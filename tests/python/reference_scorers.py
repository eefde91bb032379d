"""S1 and S2 of the NumPy model: what each scorer says of each row, in binary64.

Written from sections 2.2 and 3 of the specification alone.  Formulas stand here in their direct form, where the C
reference has passes and lanes: `leak` looks at all pairs of rows, `drop` holds all weights at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from reference_numpy import Params

F64 = NDArray[np.float64]
F32 = NDArray[np.float32]
Rows = NDArray[np.int64]

QUERY_FREE = ("knorm", "keydiff", "lagkv", "vk_ratio")
PER_KV_HEAD = (*QUERY_FREE, "drop")  # these yield S[g][j], the others A[h][j]
LAG_ROWS, LAG_SINKS = 128, 4


class BadLse(Exception):
    """R40: `head` is the first query head whose log-sum-exp is not that of these rows."""

    def __init__(self, head: int) -> None:
        super().__init__(head)
        self.head = head


def visible(back: Rows, pos: Rows, p: Params) -> NDArray[np.bool_]:
    """Which rows each query may see; `back` counts query rows from the newest, 0."""
    last = len(pos) - 1 if p.last_row is None else p.last_row
    qpos = pos[last - back]
    allowed = pos[None, :] <= qpos[:, None]
    if p.sliding:
        allowed &= qpos[:, None] - pos[None, :] < p.sliding
    return allowed


def weights(q: F32, k: F32, p: Params, pos: Rows, back: Rows) -> F64:
    """p[h][t][j] of the query rows `back`; 0 where t may not see j."""
    hq, d = q.shape[1], q.shape[2]
    per_group = hq // k.shape[1]
    allowed = visible(back, pos, p)
    # R34: what the mask forbids is left out, whatever it holds
    keys = np.where(allowed.any(0)[:, None, None], k.astype(np.float64), 0.0)
    out = np.zeros((hq, len(back), len(pos)))
    for h in range(hq):
        s = q[len(q) - 1 - back, h, :].astype(np.float64) @ keys[:, h // per_group, :].T
        s = s * (p.scale or 1.0 / np.sqrt(float(d)))
        if p.softcap > 0:
            s = p.softcap * np.tanh(s / p.softcap)
        sink = -np.inf if p.sink_logits is None else float(p.sink_logits[h])
        if p.lse is None:
            m = np.maximum(np.where(allowed, s, -np.inf).max(axis=1), sink)[:, None]
            e = np.where(allowed, np.exp(np.where(allowed, s, 0.0) - m), 0.0)
            out[h] = e / (e.sum(axis=1, keepdims=True) + np.exp(sink - m))
        else:
            lse = p.lse[h, len(q) - 1 - back].astype(np.float64)[:, None]
            above = np.where(allowed, s, -np.inf).max(axis=1, keepdims=True) - lse
            out[h] = np.where(allowed, np.exp(np.minimum(np.where(allowed, s, 0.0) - lse, 0.0)), 0.0)
            total = out[h].sum(axis=1, keepdims=True) + np.exp(np.minimum(sink - lse, 0.0))
            if not (np.isfinite(lse) & (above <= 0.1) & (sink - lse <= 0.1) & (total >= 0.9) & (total <= 1.1)).all():
                raise BadLse(h)
    return out


def attention(q: F32, k: F32, p: Params, pos: Rows) -> F64:
    """S1 of scorers `window` and `raw_qk`: A [Hq][L] of all query rows given, the newest last."""
    w = p.w
    if p.scores_by == "raw_qk":
        groups = np.repeat(k.astype(np.float64), q.shape[1] // k.shape[1], axis=1)
        return np.einsum("thd,jhd->hj", q[len(q) - w :].astype(np.float64), groups)
    most = p.how("window_reduce") == "max"
    back = np.arange(p.votes if most else w)[::-1]
    given = min(len(q), (len(pos) - 1 if p.last_row is None else p.last_row) + 1)
    first, end = p.contrast
    older = np.arange(first, min(end, given))[::-1]
    every = weights(q, k, p, pos, np.concatenate([back, older]))
    votes = every[:, : len(back)]
    if most:
        a = votes.max(axis=1)
    else:
        seen = np.maximum(visible(back, pos, p).sum(axis=0), 1)
        a = votes.sum(axis=1) / {"sum": 1, "mean": w, "seen": seen}[p.how("norm")]
    if len(older):
        a = np.maximum(a - every[:, len(back) :].mean(axis=1), 0.0)
    a[:, : p.muted] = 0
    return a


def drop(q: F32, k: F32, v: F32, p: Params, pos: Rows) -> F64:
    """S [Hkv][L]: the squared change of the outputs if row j alone went."""
    hkv = k.shape[1]
    every = weights(q, k, p, pos, np.arange(p.w)[::-1])
    allowed = visible(np.arange(p.w)[::-1], pos, p)
    out = np.zeros((hkv, len(pos)))
    for h in range(q.shape[1]):
        g = h // (q.shape[1] // hkv)
        value = np.where(allowed.any(0)[:, None], v[:, g, :].astype(np.float64), 0.0)
        for t in range(p.w):
            weight = every[h, t]
            gap = ((value - weight @ value) ** 2).sum(axis=1)
            out[g] += np.where(allowed[t], (weight / np.maximum(1 - weight, 2.0**-20)) ** 2 * gap, 0.0)
    return out


def lag_spread(x: F64, start: int) -> F64:
    """Softmax, over the partition that begins at `start`, of how unevenly its rows spread over the channels."""
    here, behind = x[start : start + LAG_ROWS], x[start + LAG_ROWS : start + 2 * LAG_ROWS]
    low, high = behind.min(axis=0), behind.max(axis=0)
    y = np.where(high == low, 0.0, (here - low) / np.where(high == low, 1.0, high - low))
    sigma = y.std(axis=1, ddof=1) if y.shape[1] > 1 else np.zeros(len(y))
    e = np.exp(sigma - sigma.max())
    return np.asarray(e / e.sum(), np.float64)


def lagkv(k: F64, v: F64) -> F64:
    """S [L] of one KV head."""
    length = len(k)
    s = np.ones(length)
    if length < LAG_SINKS + 2 * LAG_ROWS:
        s[LAG_SINKS:] = np.arange(length - LAG_SINKS) / max(length - LAG_SINKS, 1)
        return s
    for start in range(LAG_SINKS, length - 2 * LAG_ROWS + 1, LAG_ROWS):
        order = np.argsort((lag_spread(k, start) + lag_spread(v, start)) / 2, kind="stable")
        s[start + order] = np.arange(LAG_ROWS) / LAG_ROWS
    return s


def keydiff(k: F64) -> F64:
    """S [L] of one KV head: minus the cosine between a key and the mean direction."""
    n = np.sqrt((k * k).sum(axis=1))
    mean = (k / np.maximum(n, 1e-12)[:, None]).sum(axis=0) / len(k)
    return np.asarray(-(k @ mean / (np.maximum(n, 1e-8) * max(float(np.sqrt((mean * mean).sum())), 1e-8))), np.float64)


def per_kv_head(q: F32, k: F32, v: F32 | None, p: Params, pos: Rows) -> F64:
    """S1 of the scorers that yield S [Hkv][L]."""
    name = p.scores_by
    if name == "drop":
        assert v is not None
        return drop(q, k, v, p, pos)
    keys = np.moveaxis(k.astype(np.float64), 1, 0)
    values = None if v is None else np.moveaxis(v.astype(np.float64), 1, 0)
    n = np.sqrt((keys * keys).sum(axis=2))
    if name == "knorm":
        return -n
    if name == "keydiff":
        return np.stack([keydiff(x) for x in keys])
    assert values is not None
    if name == "vk_ratio":
        return np.asarray(np.sqrt((values * values).sum(axis=2)) / np.maximum(n, 1e-12), np.float64)
    return np.stack([lagkv(x, y) for x, y in zip(keys, values, strict=True)])


def leaked(a: F64, lengths: tuple[int, ...]) -> F64:
    """Largest of a[i] * 0.92^|i-j| * 0.3^(ends between i and j), for each j."""
    chunk = np.repeat(np.arange(len(lengths)), lengths)[: a.shape[1]] if lengths else np.zeros(a.shape[1], int)
    rows = np.arange(a.shape[1])
    fade = 0.92 ** np.abs(rows[:, None] - rows[None, :]) * 0.3 ** np.abs(chunk[:, None] - chunk[None, :])
    return np.stack([(one[None, :] * fade).max(axis=1) for one in a])


def pool_domain(length: int, p: Params) -> int:
    """S2: how many rows are pooled."""
    if p.profile == "vote":
        return length - min(p.r, length)
    return length if p.scores_by in QUERY_FREE else length - p.w


def pooled(a: F64, p: Params) -> F64:
    """S2 of each head; the rows behind the domain stay as they are."""
    how = p.how("pool")
    end = pool_domain(a.shape[1], p)
    out = a.copy()
    if how == "leak":
        out[:, :end] = leaked(a[:, :end], p.chunk_lengths)
    elif how != "none":
        size = int(p.how("pool_size"))
        half = (size - 1) // 2
        # missing neighbours: zero in an average, nothing in a maximum
        padded = np.pad(a[:, :end], ((0, 0), (half, half)), constant_values=0.0 if how == "avg" else -np.inf)
        near = np.stack([padded[:, i : i + end] for i in range(size)])
        out[:, :end] = near.sum(axis=0) / size if how == "avg" else near.max(axis=0)
    return out


def scores(q: F32, k: F32, v: F32 | None, p: Params, pos: Rows) -> Any:
    """S1 and S2: A [Hq][L], or S [Hkv][L]."""
    return pooled(per_kv_head(q, k, v, p, pos) if p.scores_by in PER_KV_HEAD else attention(q, k, p, pos), p)
