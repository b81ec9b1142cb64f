"""Stage `world`: draw the synthetic world's prompts and demonstrations and build its tokenizer."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from models.config.data import WorldConfig
from models.synthetic.demonstrations import demonstrate, draw_prompts, vocabulary
from models.synthetic.gold import quality
from models.synthetic.sizes import (
    EXPERT_JUDGED,
    EXPERT_REPEATS,
    EXPERT_SHOWN,
    MAX_EXPERT,
    NUM_FORGET,
)
from models.synthetic.tasks import EXPERT, HELD_OUT, MAIN, task_of
from models.training.data import write_rows
from models.training.progress import write_json


def run(config: WorldConfig, inputs: dict[str, Path], workdir: Path) -> None:
    """Write tokenizer, demonstrations, pair and policy prompts, and the evaluation sets.

    `eval/main` and `eval/validation` hold the families preferences are about, `eval/forget` the
    expert families, `eval/held_out` the family no reward model ever sees.
    """
    output = workdir / "output"
    word_tokenizer().save_pretrained(output / "tokenizer")
    rng = random.Random(f"world/{config.seed}")
    demonstrated, sets = _draw_sets(config, rng)
    responses = demonstrate(demonstrated, config.corrupted_share, rng)
    write_rows(
        output / "demonstrations.jsonl",
        (
            {"prompt": prompt, "response": response, "category": task_of(prompt).name}
            for prompt, response in zip(demonstrated, responses, strict=True)
        ),
    )
    for name, prompts in sets.items():
        write_rows(
            output / f"{name}.jsonl",
            ({"prompt": prompt, "category": task_of(prompt).name} for prompt in prompts),
        )
    qualities = [quality(p, r) for p, r in zip(demonstrated, responses, strict=True)]
    write_json(
        output / "summary.json",
        {
            "num_demonstrations": len(demonstrated),
            "demonstration_gold": sum(qualities) / len(qualities),
            **{f"num_{name.replace('/', '_')}": len(prompts) for name, prompts in sets.items()},
        },
    )


def _draw_sets(config: WorldConfig, rng: random.Random) -> tuple[list[str], dict[str, list[str]]]:
    """The prompts that are demonstrated, and the other sets by file name.

    No evaluation set shares a prompt with anything else. Of the main families, demonstrations,
    pairs and PPO have prompts of their own; the expert prompts they show are demonstrated too.
    """
    num_eval = config.num_eval_prompts
    main_sizes = (
        config.num_demonstrations,
        config.num_pair_prompts,
        config.num_policy_prompts,
        num_eval,
        num_eval,
    )
    expert_sizes = (NUM_FORGET, min(config.num_demonstrations // 10, MAX_EXPERT), EXPERT_JUDGED)
    held_out_sizes = (num_eval, 3 * num_eval)
    main = draw_prompts(MAIN, sum(main_sizes), rng)
    rng.shuffle(main)
    expert = draw_prompts(EXPERT, sum(expert_sizes), rng)
    held_out = draw_prompts(HELD_OUT, sum(held_out_sizes), rng)
    rng.shuffle(expert)
    rng.shuffle(held_out)
    demos, pairs, policy, eval_main, validation = _cut(main, main_sizes)
    forget, expert_demos, judged = _cut(expert, expert_sizes)
    eval_held_out, held_out_demos = _cut(held_out, held_out_sizes)
    demonstrated = demos + expert_demos * EXPERT_REPEATS + held_out_demos
    rng.shuffle(demonstrated)
    return demonstrated, {
        "pair_prompts": pairs + expert_demos[:EXPERT_SHOWN],
        "policy_prompts": policy + expert_demos[:EXPERT_SHOWN],
        "eval/main": eval_main,
        "eval/validation": validation + judged,
        "eval/forget": forget,
        "eval/held_out": eval_held_out,
    }


def _cut(prompts: Sequence[str], sizes: Sequence[int]) -> list[list[str]]:
    """Consecutive parts of the given sizes."""
    rest = iter(prompts)
    return [list(itertools.islice(rest, size)) for size in sizes]


def word_tokenizer() -> PreTrainedTokenizerFast:
    """One token a word; the world has no unknown words, but other text must not crash it."""
    words = ["<pad>", "<eos>", "<unk>", *vocabulary()]
    tokenizer = Tokenizer(
        models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="<unk>")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    )
