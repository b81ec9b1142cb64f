"""A model of known shape and small amounts of data, for sums by hand."""

from collections.abc import Callable

import torch
from torch import Tensor
from transformers import PreTrainedModel

from trimtab.models.config.training import TrainConfig
from trimtab.models.estimates.amounts import Amounts
from trimtab.models.estimates.shapes import KNOWN_SHAPES
from trimtab.models.judge.rubrics import load_questions, load_rubric

SHAPE = KNOWN_SHAPES["smollm2-135m-instruct"]
HIDDEN = SHAPE.hidden_size
AMOUNTS = Amounts(
    demonstrations=100,
    pair_prompts=50,
    pairs=50,
    train_pairs=37,
    train_rankings=20,
    max_responses=4,
    policy_prompts=40,
    eval_prompts=12,
    eval_sets=4,
    prompt_tokens=10,
    dialogue_tokens=25,
    pair_tokens=42,
)
TRAIN = TrainConfig(batch_size=16, num_epochs=2, micro_batch_tokens=100)


def told_characters(rubric: str, kind: str) -> int:
    """Characters of what a judge is told: the criteria, and all questions of the kind."""
    questions = [text for name, text in load_questions().items() if name.partition(" ")[0] == kind]
    return len(load_rubric(rubric).criteria + "".join(questions))


def kept_bytes(model: PreTrainedModel, function: Callable[[], Tensor]) -> int:
    """Bytes of every distinct storage that autograd keeps, parameters apart."""
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        pointer = tensor.untyped_storage().data_ptr()
        if pointer not in own:
            kept[pointer] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        function()
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())
