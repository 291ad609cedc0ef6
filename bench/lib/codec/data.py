"""Sample pieces: five kinds of data, from hopeless to very good for a codec."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from lib.machine import ROOT
from lib.units import MB

NBYTES = 8 * MB  # of each kind: more than the second-level cache, as a gradient is
_FLOATS = NBYTES // 4
_SEED = 4
_STEPS = 20  # gradients of the very first steps have regularities that later ones lack
_WIDTH, _LAYERS, _BATCH, _CONTEXT = 256, 3, 8, 64
_TOKENS = 50_257  # of GPT-2's vocabulary

Bytes = memoryview


def _bytes(array: np.ndarray[Any, Any]) -> Bytes:
    return np.ascontiguousarray(array).data.cast("B")


def noise() -> Bytes:
    return _bytes(np.random.default_rng(_SEED).standard_normal(_FLOATS, np.float32))


def zeros() -> Bytes:
    chance = np.random.default_rng(_SEED)
    values = chance.standard_normal(_FLOATS, np.float32)
    values[chance.random(_FLOATS) < 0.95] = 0
    return _bytes(values)


def tokens() -> Bytes:
    """Ids as text has them: few are frequent (Zipf), most are rare."""
    chance = np.random.default_rng(_SEED)
    return _bytes((chance.zipf(1.2, NBYTES // 8) % _TOKENS).astype(np.int64))


def rows() -> Bytes:
    """64 rows of 512 values, over and over in any order: an embedding looked up."""
    chance = np.random.default_rng(_SEED)
    table = chance.standard_normal((64, 512), np.float32)
    return _bytes(table[chance.integers(0, 64, _FLOATS // 512)])


def gradients() -> Bytes:
    """Those of a small transformer that has read this project's own pages for some steps."""
    torch.manual_seed(_SEED)
    pages = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
    text = b"".join(page.read_bytes() for page in pages)
    ids = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    layer = nn.TransformerEncoderLayer(_WIDTH, 4, 4 * _WIDTH, batch_first=True)
    layers = nn.TransformerEncoder(layer, _LAYERS, enable_nested_tensor=False)
    model = nn.Sequential(nn.Embedding(256, _WIDTH), layers, nn.Linear(_WIDTH, 256))
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(_STEPS):
        starts = torch.randint(len(ids) - _CONTEXT - 1, (_BATCH,)).tolist()
        batch = torch.stack([ids[start : start + _CONTEXT + 1] for start in starts])
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].ravel())
        torch.autograd.backward(loss)
        optimizer.step()
    flat = torch.cat([p.grad.ravel() for p in model.parameters() if p.grad is not None])
    return _bytes(flat.numpy())[:NBYTES]


KINDS: dict[str, Callable[[], Bytes]] = {
    "noise, float32": noise,
    "gradients of a transformer": gradients,
    "95 % zeros, float32": zeros,
    "token ids, int64": tokens,
    "repeated rows, float32": rows,
}
