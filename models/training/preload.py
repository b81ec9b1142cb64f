"""What the warm fork server loads before its first fork: the slow imports every stage shares.

Imports only. No tensor operation may run here: it would start thread pools (and, on a GPU machine,
a CUDA context), which do not survive a fork. The project's own modules are left out, so that each
fork reads them as they are on disk.
"""

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

with suppress(ImportError):  # an older torch
    from torch.nn.attention import varlen as _varlen  # noqa: F401

# Every first model that a process loads compiles 900 regular expressions of names (half a second).
get_checkpoint_conversion_mapping("llama")
