"""TRL's RewardTrainer with what the papers change: labels, margins, and the Advantage Model's loss.

[RM] Secrets of RLHF Part II, arXiv 2401.06080. [AM] Stabilizing RLHF through Advantage Model and
Selective Rehearsal, arXiv 2309.10202.

With nothing set it is TRL's own. Of the training pairs it reads further columns: `strength`, the
log-odds that the label is as given (an audit's `mean preference difference`), which flips, smooths
and gives margins as `relabel`; or what was made of it already, `probability`, `margin` and
`weight`, as `trimtab export NAME pairs` writes them. The formulas are those of
`trimtab.models.functional`.

Deviation: e(x) of the Advantage Model is a second linear head, `expected_reward`, at the prompt's
last token, and is saved beside the model, of which others read r(x, y) alone: e(x) is the same for
all responses to a prompt.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import torch
from datasets import Dataset
from torch import Tensor, nn
from trl import RewardConfig as TRLRewardConfig
from trl import RewardTrainer as TRLRewardTrainer
from trl.data_utils import is_conversational
from trl.trainer.reward_trainer import DataCollatorForPreference

from trimtab.models.functional.advantage import advantage_loss
from trimtab.models.functional.relabel import Smooth, relabel
from trimtab.models.functional.reward import ranking_loss

# Columns of tokenised pairs beside TRL's, and what a pair without one has.
LABELS = {"probability": 1.0, "weight": 1.0}
PROMPT_LENGTH = "prompt_length"
LOSSES = ("ranking", "advantage")
TREATMENTS = ("flip_fraction", "flip_below", "smoothing", "margin_scale")


def _setting(default: Any, about: str) -> Any:
    return field(default=default, metadata={"help": about})


@dataclass
class RewardConfig(TRLRewardConfig):
    """TRL's RewardConfig, and what the papers change; its fields are those of `relabel.*`."""

    flip_fraction: float | None = _setting(
        None, "Flip the weakest pairs by `strength`, this share of all [RM: 0.1 and 0.2]."
    )
    flip_below: float | None = _setting(
        None, "Flip pairs of less `strength`; with flip_fraction what meets both."
    )
    smoothing: float = _setting(0.0, "alpha in [0, 0.5]: smoothed labels are 1 - alpha [RM eq. 5].")
    smooth: Literal["none", "negative", "not_flipped", "all"] = _setting(
        "all", "Which labels are smoothed; all but `all` and `none` go by `strength`."
    )
    margin_scale: float = _setting(
        0.0, "The margin of a pair is so many times its `strength` [RM eq. 6]; 0: none."
    )
    margin_clip: float = _setting(0.25, "Largest margin, logits.")
    loss_type: Literal["ranking", "advantage"] = _setting(
        "ranking", "ranking, as TRL's; advantage: ranked and bounded r(x, y) - e(x) [AM eq. 6]."
    )
    advantage_margin: float = _setting(
        2.5, "m, bound of advantage scores, logits, where loss_type is advantage [AM: 2.5]."
    )

    def __post_init__(self) -> None:
        """Raises ValueError for a choice that there is not."""
        super().__post_init__()
        for name, choices in (("smooth", get_args(Smooth)), ("loss_type", LOSSES)):
            if (value := getattr(self, name)) not in choices:
                raise ValueError(f"{name}: found {value!r}; allowed: {', '.join(choices)}")


class RewardTrainer(TRLRewardTrainer):
    """TRL's RewardTrainer for a RewardConfig of ours: change the import, keep the script.

    After pairs of text the tokenizer is saved without its chat template, by which the model read
    nothing: `trimtab.RewardModel` and `--reward-model` would ask it in words that it never saw.

    Raises ValueError for settings that need a column `strength` which the training pairs lack, for
    an Advantage Model with adapters, and for one of a model without a head `score`.
    """

    def __init__(
        self, model: Any, args: RewardConfig | None = None, *positional: Any, **settings: Any
    ) -> None:
        if args is None:
            name = model if isinstance(model, str) else model.config._name_or_path
            args = RewardConfig(f"{name.rstrip('/').rpartition('/')[2] or 'model'}-Reward")
        is_advantage = args.loss_type == "advantage"
        if is_advantage and settings.get("peft_config") is not None:
            raise ValueError(
                "loss_type is advantage: found peft_config; allowed: none, as e(x) is no adapter"
            )
        if is_advantage and (args.fsdp or args.deepspeed):
            raise ValueError(
                "loss_type is advantage: found fsdp or deepspeed; allowed: weights that are whole "
                "on each rank, as e(x) is computed behind the model's forward pass"
            )
        if is_advantage:  # e(x) is not among what the forward pass leads to, and has a gradient
            args.ddp_find_unused_parameters = False
        self._reads_text = False
        has_collator = bool(positional and positional[0]) or settings.get("data_collator")
        super().__init__(model, args, *positional, **settings)
        if self._reads_text:
            tokenizer: Any = deepcopy(self.processing_class)  # type: ignore[has-type]
            tokenizer.chat_template = None
            self.processing_class = tokenizer
        if not has_collator:
            theirs: Any = self.data_collator  # type: ignore[has-type]
            self.data_collator = PairCollator(theirs.pad_token_id, theirs.pad_to_multiple_of)
        if is_advantage:
            self._add_expected_reward()

    def _add_expected_reward(self) -> None:
        """The head e(x) of an Advantage Model, as a module of the model."""
        head = getattr(self.model, "score", None)
        if not isinstance(head, nn.Linear):
            raise ValueError(
                f"loss_type is advantage: found {type(self.model).__name__}; allowed: a causal "
                "model, whose head `score` is linear"
            )
        expected = nn.Linear(head.in_features, 1, bias=False)
        nn.init.normal_(expected.weight, std=self.model.config.initializer_range)
        self.model.expected_reward = expected.to(head.weight.device, head.weight.dtype)
        head.register_forward_hook(self._keep_states)
        self._states: Tensor | None = None

    def _keep_states(self, _head: nn.Module, inputs: tuple[Tensor, ...], _output: Tensor) -> None:
        self._states = inputs[0]

    def _set_signature_columns_if_needed(self) -> None:
        super()._set_signature_columns_if_needed()
        missing = [name for name in (*LABELS, PROMPT_LENGTH) if name not in self._signature_columns]
        self._signature_columns += missing

    def _prepare_dataset(
        self, dataset: Any, processing_class: Any, args: RewardConfig, dataset_name: str
    ) -> Any:
        """TRL's method, before which labels are treated, and behind which prompts are counted."""
        if dataset_name == "train":
            first = next(iter(dataset))
            self._reads_text = "chosen" in first and not is_conversational(first)
            dataset = treat_labels(dataset, args)
        dataset = super()._prepare_dataset(dataset, processing_class, args, dataset_name)
        if args.loss_type == "advantage":
            return dataset.map(_count_prompt, fn_kwargs={"tokenizer": processing_class})
        return dataset

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        """TRL's method; the loss is another where settings or columns say so."""
        labels = {name: inputs.pop(name) for name in LABELS if name in inputs}
        lengths = inputs.pop(PROMPT_LENGTH, None)
        loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        if labels or lengths is not None:
            chosen, rejected = outputs.logits.squeeze(-1).chunk(2)
            settings: dict[str, Any] = {
                "label_chosen": labels.get("probability"),
                "weight": labels.get("weight"),
            }
            margin = inputs.get("margin")
            if lengths is None:
                loss, _ = ranking_loss(chosen, rejected, margin=margin, **settings)
            else:
                loss, _ = advantage_loss(
                    *self._advantages(chosen, rejected, lengths),
                    margin=self.args.advantage_margin,
                    ranking_margin=margin,
                    **settings,
                )
            if self.args.center_rewards_coefficient is not None:
                centred = (chosen + rejected).square().mean()
                loss = loss + self.args.center_rewards_coefficient * centred
        return (loss, outputs) if return_outputs else loss

    def _advantages(
        self, chosen: Tensor, rejected: Tensor, lengths: Tensor
    ) -> tuple[Tensor, Tensor]:
        """r(x, y) - e(x) of both responses, (B,) each; e is read at the prompt's last token."""
        assert self._states is not None
        states, self._states = self._states[: len(lengths)], None
        at_prompt = states[torch.arange(len(lengths), device=states.device), lengths - 1]
        expected = self.accelerator.unwrap_model(self.model).expected_reward(at_prompt).squeeze(-1)
        return chosen - expected, rejected - expected


@dataclass
class PairCollator(DataCollatorForPreference):
    """TRL's, which keeps labels, weights and prompts' lengths too."""

    def torch_call(self, examples: list[dict[str, Any]]) -> dict[str, Any]:
        """As TRL's; (B,) of each further column that the examples have."""
        batch: dict[str, Any] = super().torch_call(examples)
        for name in LABELS:
            if name in examples[0]:
                values = [example[name] for example in examples]
                batch[name] = torch.tensor(values, dtype=torch.float)
        if PROMPT_LENGTH in examples[0]:
            batch[PROMPT_LENGTH] = torch.tensor([example[PROMPT_LENGTH] for example in examples])
        return batch


def treat_labels(dataset: Any, args: RewardConfig) -> Any:
    """The pairs with flips, labels and margins by their `strength`, as `relabel` makes them.

    Raises ValueError for settings that need a column `strength` and pairs without, and beside
    columns in which labels were treated already.
    """
    used = [name for name in TREATMENTS if getattr(args, name)]
    used += ["flip_below"] if args.flip_below == 0 else []
    if not used:
        return dataset
    if not isinstance(dataset, Dataset):
        raise ValueError(f"{', '.join(used)}: found {type(dataset).__name__}; allowed: a Dataset")
    columns = dataset.column_names
    if treated := [name for name in ("probability", "margin", "is_flipped") if name in columns]:
        raise ValueError(
            f"{', '.join(used)}: found the columns {', '.join(treated)}; allowed: pairs whose "
            "labels are as given"
        )
    smooth: Smooth = args.smooth
    needs_strength = set(used) - {"smoothing"} or smooth in ("negative", "not_flipped")
    if "strength" in columns:
        strength = torch.tensor(dataset["strength"], dtype=torch.float64)
    elif needs_strength:
        raise ValueError(
            f"{', '.join(used)}: found no column `strength` in the training pairs; allowed: the "
            "log-odds that each label is as given, such as an audit's `mean preference difference`"
        )
    else:
        strength = torch.zeros(len(dataset), dtype=torch.float64)
    treatment = relabel(
        strength,
        flip_fraction=args.flip_fraction,
        flip_below=args.flip_below,
        smoothing=args.smoothing,
        smooth=smooth,
        margin_scale=args.margin_scale,
        margin_clip=args.margin_clip,
    )
    is_flipped = treatment.is_flipped.tolist()
    sides = {"chosen": dataset["chosen"], "rejected": dataset["rejected"]}
    for name, other in (("chosen", "rejected"), ("rejected", "chosen")):
        values = [sides[other if flip else name][place] for place, flip in enumerate(is_flipped)]
        dataset = dataset.remove_columns(name).add_column(name, values)
    dataset = dataset.add_column("probability", treatment.label.tolist())
    if args.margin_scale > 0:
        dataset = dataset.add_column("margin", treatment.margin.tolist())
    return dataset


def _count_prompt(example: dict[str, Any], tokenizer: Any) -> dict[str, int]:
    """How many tokens both responses' texts begin with that are the prompt's: at least one.

    Without a prompt of its own, what both begin with.
    """
    chosen, rejected = example["chosen_ids"], example["rejected_ids"]
    prompt = example.get("prompt")
    if isinstance(prompt, list):
        prompt = tokenizer.apply_chat_template(
            prompt, add_generation_prompt=True, return_dict=False
        )
    elif prompt is not None:
        prompt = tokenizer(prompt)["input_ids"]
    start = chosen if prompt is None else prompt
    count = 0
    for first, second, third in zip(start, chosen, rejected, strict=False):
        if not first == second == third:
            break
        count += 1
    return {PROMPT_LENGTH: max(1, count)}
