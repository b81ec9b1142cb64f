"""Stage `world`: draw the synthetic world's prompts and demonstrations and build its tokenizer."""

from __future__ import annotations

import random
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from models.config import WorldConfig
from models.engine.data import write_rows
from models.engine.progress import write_json
from models.world.demonstrations import demonstrate, draw_prompts, vocabulary
from models.world.gold import quality
from models.world.tasks import EXPERT, HELD_OUT, MAIN, task_of

CONFIG = WorldConfig
NUM_FORGET = 150
# The expert families hold some 1,100 distinct prompts.
MAX_EXPERT = 850
# Expert prompts among those that are compared and that PPO trains on: few, as in real use, but
# enough for rehearsal to find them.
EXPERT_SHOWN = 100
# Expert prompts on which promotion is judged, so that forgetting counts against a policy.
EXPERT_JUDGED = 60


def run(config: WorldConfig, inputs: dict[str, Path], workdir: Path) -> None:
    """Write disjoint prompt sets: demonstrations, pairs, PPO, and the evaluation sets.

    `eval/main` and `eval/validation` hold the families preferences are about, `eval/forget` the
    expert families, `eval/held_out` the family no reward model ever sees.
    """
    output = workdir / "output"
    rng = random.Random(f"world/{config.seed}")
    _tokenizer().save_pretrained(output / "tokenizer")
    sizes = (
        config.num_demonstrations,
        config.num_pair_prompts,
        config.num_policy_prompts,
        config.num_eval_prompts,
        config.num_eval_prompts,
    )
    everything = draw_prompts(MAIN, sum(sizes), rng)
    rng.shuffle(everything)
    cuts = [sum(sizes[:index]) for index in range(len(sizes) + 1)]
    demos, pairs, policy, main, validation = (
        everything[low:high] for low, high in zip(cuts, cuts[1:], strict=False)
    )
    expert = draw_prompts(
        EXPERT, NUM_FORGET + EXPERT_JUDGED + min(config.num_demonstrations // 10, MAX_EXPERT), rng
    )
    held_out = draw_prompts(HELD_OUT, config.num_eval_prompts * 4, rng)
    rng.shuffle(expert)
    rng.shuffle(held_out)
    forget, expert = expert[:NUM_FORGET], expert[NUM_FORGET:]
    eval_held_out, held_out = held_out[: len(held_out) // 4], held_out[len(held_out) // 4 :]

    expert, judged = expert[:-EXPERT_JUDGED], expert[-EXPERT_JUDGED:]
    shown = demos + expert + held_out
    rng.shuffle(shown)
    responses = demonstrate(shown, config.corrupted_share, rng)
    write_rows(
        output / "demonstrations.jsonl",
        (
            {"prompt": prompt, "response": response, "category": task_of(prompt).name}
            for prompt, response in zip(shown, responses, strict=True)
        ),
    )
    sets = {
        "pair_prompts": pairs + expert[:EXPERT_SHOWN],
        "policy_prompts": policy + expert[:EXPERT_SHOWN],
        "eval/main": main,
        "eval/validation": validation + judged,
        "eval/forget": forget,
        "eval/held_out": eval_held_out,
    }
    for name, prompts in sets.items():
        write_rows(
            output / f"{name}.jsonl",
            ({"prompt": prompt, "category": task_of(prompt).name} for prompt in prompts),
        )
    qualities = [quality(p, r) for p, r in zip(shown, responses, strict=True)]
    write_json(
        output / "summary.json",
        {
            "num_demonstrations": len(shown),
            "demonstration_gold": sum(qualities) / len(qualities),
            **{f"num_{name.replace('/', '_')}": len(rows) for name, rows in sets.items()},
        },
    )


def _tokenizer() -> PreTrainedTokenizerFast:
    """One token a word; the world has no unknown words, but other text must not crash it."""
    words = ["<pad>", "<eos>", "<unk>", *vocabulary()]
    tokenizer = Tokenizer(
        models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="<unk>")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    )
