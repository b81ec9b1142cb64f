"""What the warm fork server loads before its first fork: the slow imports every stage shares.

Imports only. No tensor operation may run here: it would start thread pools (and, on a GPU machine,
a CUDA context), which do not survive a fork. Stages that load scikit-learn, or matplotlib and
pyarrow, are left out: scikit-learn reads how many threads it may take as it loads.
"""

import importlib
from contextlib import suppress

import httpx  # noqa: F401
import pydantic.networks
import pydantic.type_adapter  # noqa: F401
import torch  # noqa: F401
from safetensors import torch as _safetensors  # noqa: F401
from transformers import AutoTokenizer, LlamaConfig, PreTrainedTokenizerFast  # noqa: F401
from transformers.conversion_mapping import get_checkpoint_conversion_mapping
from transformers.models.auto import modeling_auto as _auto  # noqa: F401
from transformers.models.llama import modeling_llama as _llama  # noqa: F401
from transformers.models.mistral import modeling_mistral as _mistral  # noqa: F401
from transformers.models.qwen2 import modeling_qwen2 as _qwen2  # noqa: F401

from trimtab.models.specs import SPECS

with suppress(ImportError):  # an older torch
    from torch.nn.attention import varlen as _varlen  # noqa: F401

# The first model loaded in a process compiles 900 regular expressions (0.5 s): do it here.
get_checkpoint_conversion_mapping("llama")

importlib.import_module("trimtab.models.training.entry")
_LEFT_OUT = {"features", "rehearsal", "audit", "report", "compare", "study"}
for _stage in SPECS.keys() - _LEFT_OUT:
    importlib.import_module(f"trimtab.models.stages.{_stage}")
