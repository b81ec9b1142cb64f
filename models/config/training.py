"""Training: the base model, batches, ranks, precision, optimiser; and SFT."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    BaseModel,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)

from trimtab.models.config.base import (
    LearningRate,
    Passes,
    Positive,
    Rows,
    Seed,
    StageConfig,
    Steps,
)

Precision = Literal["auto", "float32", "bfloat16"]
Optimiser = Literal["adamw", "adamw_8bit"]
ConfigT = TypeVar("ConfigT", bound=BaseModel)


def _ranks_or_auto(value: Any, check: ValidatorFunctionWrapHandler) -> Any:
    """One error; pydantic would report one for each part of the union."""
    try:
        return check(value)
    except ValidationError:
        raise ValueError("allowed: auto, or a whole number from 1 to 1,024") from None


NumRanks = Annotated[
    Annotated[int, Field(gt=0, le=1024)] | Literal["auto"], WrapValidator(_ranks_or_auto)
]


class ModelConfig(StageConfig):
    """The base model: a packaged one, a folder, a hub id, or a small Llama from scratch."""

    base: str | None = Field(None, min_length=1)
    """Folder or hub id of a causal language model; none trains from scratch"""
    hidden_size: int = Field(128, gt=0, le=65_536)
    """Hidden width of the from-scratch Llama"""
    num_layers: int = Field(4, gt=0, le=1024)
    """Layers of the from-scratch Llama"""
    num_heads: int = Field(4, gt=0, le=1024)
    """Attention heads of the from-scratch Llama"""
    max_length: int = Field(256, gt=1, le=1_048_576)
    """Longest prompt plus response in tokens"""
    initialisation: Literal["transformers", "fan_in"] = "transformers"
    """First weights of the from-scratch Llama. transformers: normal(0, .02), made for wide models.
    fan_in: normal(0, 1/sqrt(inputs)) [LeCun et al. 1998], embeddings normal(0, .3), from which a
    narrow model learns faster"""

    @property
    def head_size(self) -> int:
        """Features of one attention head of the from-scratch Llama."""
        return self.hidden_size // self.num_heads

    def _problems(self) -> Iterator[str]:
        # Rotary position embeddings rotate a head's features in pairs.
        if self.base is None and self.hidden_size % (2 * self.num_heads):
            yield (
                "hidden_size must be a multiple of twice num_heads, found hidden_size "
                f"{self.hidden_size} and num_heads {self.num_heads}"
            )


class ZeroConfig(StageConfig):
    """DeepSpeed's ZeRO: what every rank would hold is partitioned over the ranks."""

    stage: Literal[1, 2, 3] = 2
    """What is partitioned over ranks: optimizer state (1), also gradients (2), also parameters
    (3)"""
    offload: bool = False
    """Keep optimizer state, and in stage 3 parameters, in the host's memory"""


class LoraConfig(StageConfig):
    """Low-rank adapters, trained in place of the weights and merged into them at the end."""

    rank: int = Field(16, gt=0, le=65_536)
    """Rank of the low-rank update of a weight"""
    alpha: Positive = 32.0
    """The update is scaled by alpha / rank"""


class TrainerConfig(StageConfig):
    """Settings of every trainer."""

    micro_batch_tokens: int = Field(16384, gt=0, le=100_000_000)
    """Most tokens in one forward pass; larger batches are split and gradients added up"""
    trainable_layers: int | None = Field(None, gt=0, le=1024)
    """Number of upper layers that are trained, the rest is frozen; none: all"""
    lora: LoraConfig | None = None
    """Train low-rank adapters of the trained layers; none: their weights"""
    gradient_checkpointing: bool = False
    """Recompute each layer's activations in the backward pass: less memory, more time"""
    precision: Precision = "auto"
    """Data type of the layers' products; weights that are trained and optimiser state stay float32.
    auto: bfloat16 on CUDA GPUs from Ampere on (compute capability 8.0), float32 on others and on
    CPUs. bfloat16 pays on those GPUs, and on CPUs with AMX or AVX512-BF16; on a GPU products that
    stay in float32 are TF32 then. float32: all products, without TF32"""
    optimiser: Optimiser = "adamw"
    """adamw_8bit (bitsandbytes) keeps its moments in 2 bytes a parameter instead of 8; not possible
    with ZeRO"""
    max_grad_norm: Positive = 1.0
    """Global gradient clip [PPO: 1.0]"""
    num_ranks: NumRanks = "auto"
    """Processes that share each batch, each with its own GPU if there are GPUs. A number is the
    same on every host, and so are the results, to the last bit. auto: on a GPU 1; without GPUs 1,
    or for a model from scratch one for each core of the stage, so that results of hosts with other
    cores differ by rounding (with dropout also by what is dropped) but count as the same stage"""
    zero: ZeroConfig | None = None
    """Partitioning over ranks by DeepSpeed's ZeRO; none: each rank holds everything"""

    @property
    def ranks(self) -> int:
        """`num_ranks` as a number; `auto` is 1, as on a GPU."""
        return 1 if self.num_ranks == "auto" else self.num_ranks

    def _problems(self) -> Iterator[str]:
        if self.zero is not None and self.optimiser != "adamw":
            yield (
                f"found optimiser {self.optimiser} with zero; allowed: only one of the two, as "
                "DeepSpeed partitions moments of 32 bits"
            )

    def _rank_problems(self, name: str, batch: int) -> Iterator[str]:
        """More ranks than rows in the batch `name`."""
        if isinstance(self.num_ranks, int) and self.num_ranks > batch:
            yield (
                f"num_ranks must be at most {name}, found {self.num_ranks} and {batch}: every rank "
                "needs a row of each batch"
            )


class TrainConfig(TrainerConfig):
    """Settings of every supervised stage. Schedule: warm-up, then cosine to 10 % [AM 4.2].

    PPO has no dropout: the policy that samples must be the one that is updated.
    """

    learning_rate: LearningRate = 5e-6
    """Peak learning rate [AM, RM: 5e-6]"""
    warmup_fraction: float = Field(0.1, ge=0, lt=1)
    """Share of steps in linear warm-up"""
    final_fraction: float = Field(0.1, ge=0, le=1)
    """Final learning rate as a share of the peak"""
    num_epochs: Passes = 1
    """Passes over the data [RM, AM: 1]"""
    batch_size: Rows = 32
    """Examples (pairs, rankings, dialogues) per optimiser step; with batch_tokens at most"""
    batch_tokens: int | None = Field(None, gt=0, le=100_000_000)
    """Tokens that the examples of an optimiser step have at most, as nearly as they can, so that
    steps learn from about as much; none: batch_size examples each [PPO: 4 to 128 examples]"""
    least_batch_size: Rows = 4
    """Examples of an optimiser step at least, however long, where batch_tokens is given"""
    dropout: float = Field(0.0, ge=0, lt=1)
    """Dropout probability on the outputs of attention and feed-forward blocks of the trained layers
    [RM: 0.05]"""
    weight_decay: float = Field(0.0, ge=0, le=100)
    """AdamW weight decay"""
    checkpoint_every: Steps = 100
    """Optimiser steps between checkpoints"""

    def _problems(self) -> Iterator[str]:
        yield from super()._problems()
        if self.batch_tokens is None:
            yield from self._rank_problems("batch_size", self.batch_size)
            return
        yield from self._rank_problems("least_batch_size", self.least_batch_size)
        if self.least_batch_size > self.batch_size:
            yield (
                "least_batch_size must be at most batch_size where batch_tokens is given, found "
                f"{self.least_batch_size} and {self.batch_size}"
            )


def trainer_of(config: BaseModel) -> TrainerConfig | None:
    """A stage's trainer settings: the configuration itself or its field `train`; else None."""
    trainer = config if isinstance(config, TrainerConfig) else getattr(config, "train", None)
    return trainer if isinstance(trainer, TrainerConfig) else None


def with_precision(config: ConfigT, precision: Precision) -> ConfigT:
    """The settings of a stage or trainer with that `precision`, where they have one."""
    trainer = trainer_of(config)
    if trainer is not None and trainer is not config:
        return config.model_copy(update={"train": with_precision(trainer, precision)})
    return config.model_copy(
        update={"precision": precision} if hasattr(config, "precision") else {}
    )


def precision_of(config: BaseModel) -> Precision:
    """A stage's `precision`: its trainer's or its own; `auto` where it has no such setting."""
    precision: Precision = getattr(trainer_of(config) or config, "precision", "auto")
    return precision


class SFTConfig(StageConfig):
    """Supervised fine-tuning on demonstrations."""

    seed: Seed = 0
    """Seed of initialisation and order"""
    model: ModelConfig = ModelConfig()
    fine_tune: bool = True
    """Train; if off, the base model is used as it is"""
    train: TrainConfig = TrainConfig(learning_rate=2e-3, num_epochs=6, batch_size=64)
