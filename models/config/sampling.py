"""How a stage samples a policy: by the built-in loop, or by vLLM."""

from __future__ import annotations

from pydantic import Field

from trimtab.models.config.base import Positive, StageConfig


class VllmConfig(StageConfig):
    """Sampling with vLLM, in a process of its own for each rank."""

    cache_gib: Positive = Field(1.0, description="Size of vLLM's key-value cache in GiB")


class SamplerConfig(StageConfig):
    """What all stages that sample a policy have."""

    vllm: VllmConfig | None = Field(
        None,
        description="Sample with vLLM, from the Python that TRIMTAB_VLLM_PYTHON names; none: the "
        "built-in sampler",
    )
