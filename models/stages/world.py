"""Stage `world`: draw the synthetic world's prompts and demonstrations and build its tokenizer."""

from __future__ import annotations

import random

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from trimtab.models.config.data import WorldConfig
from trimtab.models.synthetic.demonstrations import (
    SPECIAL_TOKENS,
    demonstrate,
    draw_prompts,
    vocabulary,
)
from trimtab.models.synthetic.gold import quality
from trimtab.models.synthetic.prompt_sets import family_sizes, prompt_sets
from trimtab.models.synthetic.tasks import ASSISTANT, EXPERT, HELD_OUT, MAIN, USER, family_of
from trimtab.models.training.stage import Stage


def run(config: WorldConfig, stage: Stage) -> None:
    """Write tokenizer, demonstrations, pair and policy prompts, and the evaluation sets.

    `eval/main` and `eval/validation` hold the families preferences are about, `eval/forget` the
    expert families, `eval/held_out` the family no reward model ever sees.
    """
    word_tokenizer().save_pretrained(stage.output / "tokenizer")
    rng = random.Random(f"world/{config.seed}")
    demonstrated, sets = _draw_sets(config, rng)
    responses = demonstrate(demonstrated, config.corrupted_share, rng)
    stage.write_rows(
        "demonstrations.jsonl",
        (
            {"prompt": prompt, "response": response, "category": family_of(prompt).name}
            for prompt, response in zip(demonstrated, responses, strict=True)
        ),
    )
    for name, prompts in sets.items():
        stage.write_rows(
            f"{name}.jsonl",
            ({"prompt": prompt, "category": family_of(prompt).name} for prompt in prompts),
        )
    qualities = [quality(p, r) for p, r in zip(demonstrated, responses, strict=True)]
    stage.write_summary(
        {
            "num_demonstrations": len(demonstrated),
            "demonstration_gold": sum(qualities) / len(qualities),
            **{f"num_{name.replace('/', '_')}": len(prompts) for name, prompts in sets.items()},
        }
    )


def _draw_sets(config: WorldConfig, rng: random.Random) -> tuple[list[str], dict[str, list[str]]]:
    """The prompts that are demonstrated, and the other sets by file name."""
    sizes = family_sizes(config)
    main = draw_prompts(MAIN, sum(sizes.main), rng)
    rng.shuffle(main)
    expert = draw_prompts(EXPERT, sum(sizes.expert), rng)
    held_out = draw_prompts(HELD_OUT, sum(sizes.held_out), rng)
    rng.shuffle(held_out)
    sets = prompt_sets(sizes, main, expert, held_out)
    demonstrated = sets.pop("demonstrations")
    rng.shuffle(demonstrated)
    return demonstrated, sets


def word_tokenizer() -> PreTrainedTokenizerFast:
    """One token a word; the world has no unknown words, but other text must not crash it.

    Marks of turns are tokens wherever they stand, so that an answer can follow without a blank.
    """
    words = [*SPECIAL_TOKENS, *vocabulary()]
    pad, end, unknown = SPECIAL_TOKENS
    tokenizer = Tokenizer(
        models.WordLevel({word: index for index, word in enumerate(words)}, unk_token=unknown)
    )
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_tokens([USER, ASSISTANT])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=pad, eos_token=end, unk_token=unknown
    )
