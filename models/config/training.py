"""How a stage trains: the base model, batches, ranks, precision and optimiser; SFT."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import (
    BaseModel,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
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

Precision = Literal["float32", "bfloat16"]
Optimiser = Literal["adamw", "adamw_8bit"]


def _ranks_or_auto(value: Any, check: ValidatorFunctionWrapHandler) -> Any:
    """One mistake where pydantic would name one for each part of the union."""
    try:
        return check(value)
    except ValidationError:
        raise ValueError("allowed: auto, or a whole number from 1 to 1,024") from None


NumRanks = Annotated[
    Annotated[int, Field(gt=0, le=1024)] | Literal["auto"], WrapValidator(_ranks_or_auto)
]


class ModelConfig(StageConfig):
    """The base model: a packaged one, a folder, a hub id, or a small Llama from scratch."""

    base: str | None = Field(
        None,
        min_length=1,
        description="Folder or hub id of a causal language model; none trains from scratch",
    )
    hidden_size: int = Field(
        128, gt=0, le=65_536, description="Hidden width of the from-scratch Llama"
    )
    num_layers: int = Field(4, gt=0, le=1024, description="Layers of the from-scratch Llama")
    num_heads: int = Field(
        4, gt=0, le=1024, description="Attention heads of the from-scratch Llama"
    )
    max_length: int = Field(
        256, gt=1, le=1_048_576, description="Longest prompt plus response in tokens"
    )

    @property
    def head_size(self) -> int:
        """Numbers in one attention head of the from-scratch Llama."""
        return self.hidden_size // self.num_heads

    @model_validator(mode="after")
    def _heads_share_out_the_width(self) -> Self:
        # Rotary position embeddings turn the numbers of a head in twos.
        if self.base is None and self.hidden_size % (2 * self.num_heads):
            raise ValueError(
                "hidden_size must be a multiple of twice num_heads, found hidden_size "
                f"{self.hidden_size} and num_heads {self.num_heads}"
            )
        return self


class ZeroConfig(StageConfig):
    """DeepSpeed's ZeRO: ranks hold a part each of what they would all hold the whole of."""

    stage: Literal[1, 2, 3] = Field(
        2,
        description="What is partitioned over ranks: optimizer state (1), also gradients (2), also "
        "parameters (3)",
    )
    offload: bool = Field(
        False, description="Keep optimizer state, and in stage 3 parameters, in the host's memory"
    )


class LoraConfig(StageConfig):
    """Low-rank adapters that learn in place of weights, and are merged into them in the end."""

    rank: int = Field(16, gt=0, le=65_536, description="Rank of the low-rank update of a weight")
    alpha: Positive = Field(32.0, description="The update is scaled by alpha / rank")


class TrainerConfig(StageConfig):
    """What every trainer can do, with one rank and with many."""

    micro_batch_tokens: int = Field(
        16384,
        gt=0,
        le=100_000_000,
        description="Most tokens in one forward pass; larger batches accumulate",
    )
    trainable_layers: int | None = Field(
        None,
        gt=0,
        le=1024,
        description="Train this many upper layers, the rest frozen; none trains all",
    )
    lora: LoraConfig | None = Field(
        None, description="Train low-rank adapters of these layers; none trains their weights"
    )
    gradient_checkpointing: bool = Field(
        False,
        description="Recompute each layer's activations in the backward pass; less memory, more "
        "time",
    )
    precision: Precision = Field(
        "float32",
        description="What layers multiply in; weights and optimiser state stay float32. bfloat16 "
        "is for GPUs, and for CPUs with AMX or AVX512-BF16",
    )
    optimiser: Optimiser = Field(
        "adamw",
        description="adamw_8bit keeps its moments in two bytes a parameter for eight "
        "(bitsandbytes); not with ZeRO, which parts them",
    )
    max_grad_norm: Positive = Field(1.0, description="Global gradient clip [PPO: 1.0]")
    num_ranks: NumRanks = Field(
        "auto",
        description="Processes that share out each batch, with a GPU each where there are any. A "
        "number is kept to on every host, and decides the result to the last bit. auto: one on a "
        "GPU; without GPUs one, or for a model from scratch one a core of the stage's share, so "
        "that results of hosts with other cores differ by rounding (with dropout also by what is "
        "dropped) and count as the same stage",
    )
    zero: ZeroConfig | None = Field(
        None, description="What the ranks hold a part of; none: each holds the whole of all"
    )

    @property
    def ranks(self) -> int:
        """`num_ranks` as a number: of `auto` the one that it is on a GPU."""
        return 1 if self.num_ranks == "auto" else self.num_ranks

    @model_validator(mode="after")
    def _optimiser_is_whole(self) -> Self:
        if self.zero is not None and self.optimiser != "adamw":
            raise ValueError(
                f"found optimiser {self.optimiser} with zero; allowed: one of the two, as DeepSpeed"
                " parts moments of 32 bits"
            )
        return self


TrainerT = TypeVar("TrainerT", bound=TrainerConfig)


class TrainConfig(TrainerConfig):
    """What every supervised stage shares. Schedule: warm-up, then cosine to 10 % [AM 4.2].

    PPO has no dropout: what it samples and what it learns must be of one policy.
    """

    learning_rate: LearningRate = Field(5e-6, description="Peak learning rate [AM, RM: 5e-6]")
    warmup_fraction: float = Field(0.1, ge=0, lt=1, description="Share of steps in linear warm-up")
    final_fraction: float = Field(0.1, ge=0, le=1, description="Final learning rate over peak")
    num_epochs: Passes = Field(1, description="Passes over the data [RM, AM: 1]")
    batch_size: Rows = Field(
        32, description="Examples (pairs, rankings, dialogues) per optimiser step"
    )
    dropout: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="Share dropped of what attention and feed-forward of the trained layers add "
        "[RM: 0.05]",
    )
    weight_decay: float = Field(0.0, ge=0, le=100, description="AdamW weight decay")
    checkpoint_every: Steps = Field(100, description="Optimiser steps between checkpoints")

    @model_validator(mode="after")
    def _every_rank_has_a_row(self) -> Self:
        return ranks_within(self, "batch_size", self.batch_size)


def ranks_within(config: TrainerT, name: str, batch: int) -> TrainerT:
    """The configuration; ValueError where it has more ranks than its batch, `name`, has rows."""
    if isinstance(config.num_ranks, int) and config.num_ranks > batch:
        raise ValueError(
            f"num_ranks must be at most {name}, found {config.num_ranks} and {batch}: ranks share "
            "out each batch"
        )
    return config


def trainer_of(config: BaseModel) -> TrainerConfig | None:
    """What a stage is told as a trainer, itself or in its part `train`; none if it is not one."""
    found = config if isinstance(config, TrainerConfig) else getattr(config, "train", None)
    return found if isinstance(found, TrainerConfig) else None


class SFTConfig(StageConfig):
    """Supervised fine-tuning on demonstrations."""

    seed: Seed = Field(0, description="Seed of initialisation and order")
    model: ModelConfig = ModelConfig()
    fine_tune: bool = Field(
        True, description="Whether to train; if not, the base model is used as it is"
    )
    train: TrainConfig = TrainConfig(learning_rate=2e-3, num_epochs=6, batch_size=64)
