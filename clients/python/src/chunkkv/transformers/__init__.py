"""ChunkKV for models of Hugging Face Transformers: their caches in shared memory, compressed by the daemon in place.

    with chunkkv.compress(model, keep_ratio=0.2) as kv:
        output = model.generate(**inputs)
    print(kv.last)

Inside the block every cache of the model lives in shared memory.  When a prompt is prefilled and the first token is to
be processed alone, the daemon compresses: the kept rows move to the front, positions go on from the length of the
prompt.  Sliding-window layers stay as they are.

Needs torch and transformers: `pip install 'chunkkv[transformers]'`.
"""

try:
    import torch
    import transformers
except ImportError as error:
    raise ImportError("this needs torch and transformers: pip install 'chunkkv[transformers]'") from error

from .cache import ChunkKVCache
from .compressor import Compressor, compress
from .report import BudgetRaised, Report

__all__ = ["BudgetRaised", "ChunkKVCache", "Compressor", "Report", "compress"]

del torch, transformers
