"""What the warm fork server loads before its first fork: the slow imports every stage shares.

Imports only. No tensor operation may run here: it would start thread pools (and, on a GPU machine,
a CUDA context), which do not survive a fork. The project's own modules are left out, so that each
fork reads them as they are on disk.
"""

import torch  # noqa: F401
from safetensors import torch as _safetensors  # noqa: F401
from transformers import AutoTokenizer, LlamaConfig, PreTrainedTokenizerFast  # noqa: F401
from transformers.conversion_mapping import get_checkpoint_conversion_mapping
from transformers.models.auto import modeling_auto as _auto  # noqa: F401
from transformers.models.llama import modeling_llama as _llama  # noqa: F401

# Every first model that a process loads compiles 900 regular expressions of names (half a second).
get_checkpoint_conversion_mapping("llama")
