"""How a stage samples a policy: by the built-in loop, or by vLLM."""

from __future__ import annotations

from trimtab.models.config.base import Positive, StageConfig
from trimtab.models.config.training import NumRanks


class VllmConfig(StageConfig):
    """Sampling with vLLM, in a process of its own for each rank."""

    cache_gib: Positive = 1.0
    """Size of vLLM's key-value cache in GiB"""


class SamplerConfig(StageConfig):
    """What all stages that sample a policy have."""

    vllm: VllmConfig | None = None
    """Sample with vLLM, from the Python that TRIMTAB_VLLM_PYTHON names; none: the built-in
    sampler"""


class SamplingStageConfig(SamplerConfig):
    """Of a stage that samples and scores, and trains nothing."""

    num_ranks: NumRanks = "auto"
    """Processes that share the prompts, each with its own GPU if there are GPUs. auto: on a GPU 1;
    without GPUs 1, or for a model from scratch one for each core of the stage"""

    @property
    def ranks(self) -> int:
        """`num_ranks` as a number; `auto` is 1, as on a GPU."""
        return 1 if self.num_ranks == "auto" else self.num_ranks
