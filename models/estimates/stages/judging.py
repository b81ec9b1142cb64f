"""The work of stages that ask a judge.

A judge behind an endpoint works elsewhere: what is counted here is that of a local model. Of pairs
it is taken to make as many tokens as the policy does. Answers that are not understood, and asked
for once more, are not counted.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil

from trimtab.models import chunk_sizes, counts
from trimtab.models.config.judge import JudgeAnswersConfig, JudgeConfig, JudgePreferencesConfig
from trimtab.models.config.training import ModelConfig
from trimtab.models.estimates.memory import Memory
from trimtab.models.estimates.shapes import shape_of
from trimtab.models.estimates.work import (
    Rows,
    StageInputs,
    Work,
    sampling_memory,
    sampling_steps,
    scoring_memory,
)
from trimtab.models.judge.constitutions import MAX_CHARACTERS
from trimtab.models.judge.prompts import OPTIONS, Kind
from trimtab.models.judge.rubrics import load_questions, load_rubric

# Fewer than English has in any common vocabulary, so that tokens are an upper bound.
CHARACTERS_PER_TOKEN = 3


def judge_preferences(config: JudgePreferencesConfig, inputs: StageInputs) -> Work:
    """Each pair in both orders: thoughts where they are wanted, then the verdict.

    Validation and test are not told apart here: each is taken to be all that is held out. Of some
    categories they are taken to be all: how many is not known before.
    """
    train, held_out = inputs.amounts.train_pairs, inputs.amounts.held_out_pairs
    available = [train if split == "train" else held_out for split in config.splits]
    pairs = sum(counts.num_taken(count, config.max_pairs) for count in available)
    shown = Rows(pairs, inputs.amounts.pair_tokens)
    field = "judge_preferences.judge.local_model"
    return judge_work(config.judge, inputs, "compare", shown, field)


def judge_answers(config: JudgeAnswersConfig, inputs: StageInputs) -> Work:
    """Every two policies' answers to each prompt, all taken to differ, in both orders."""
    prompts, policies = inputs.amounts.eval_prompts, inputs.num_policies
    if config.max_prompts is not None:
        # All but that of validation are judged where none are named.
        num_sets = inputs.amounts.eval_sets - 1 if config.sets is None else len(config.sets)
        prompts = counts.num_taken(prompts, num_sets * config.max_prompts)
    pairs = prompts * policies * (policies - 1) // 2
    shown = Rows(pairs, inputs.amounts.pair_tokens)
    return judge_work(config.judge, inputs, "compare", shown, "judges.judge.local_model")


def judge_work(
    judge: JudgeConfig, inputs: StageInputs, kind: Kind, shown: Rows, field: str
) -> Work:
    """A judge's verdicts on what it is shown: pairs, in both orders, or single answers.

    `field`: what names the local model in the run's configuration.
    """
    if judge.local_model is None:
        return Work(examples=shown.count)
    model = ModelConfig(base=judge.local_model)
    theirs = replace(inputs, shape=shape_of(model, field, is_trained=False))
    orders = counts.NUM_ORDERS if kind == "compare" else 1
    requests = shown.count * orders * judge.num_samples
    asked = shown.length + _instruction_tokens(judge, kind)
    work = Work(examples=shown.count)
    thoughts = 0
    if judge.chain_of_thought:
        thoughts = judge.max_thought_tokens
        work = replace(
            work,
            sampled_tokens=requests * thoughts,
            sampling_steps=judge_steps(requests, asked, thoughts),
            forward_tokens=requests * asked,
            phases={"thinking": judge_sampling_memory(theirs, requests, asked, thoughts)},
        )
    return _with_verdicts(judge, theirs, kind, requests, asked + thoughts, work)


def _with_verdicts(
    judge: JudgeConfig, theirs: StageInputs, kind: Kind, requests: int, asked: int, work: Work
) -> Work:
    """With the verdicts: of one token, whose probabilities are read, they take a single pass.

    Longer ones are sampled, and pass once more where probabilities are read.
    """
    verdict = counts.verdict_tokens(judge, max(map(len, OPTIONS[kind])))
    rows = Rows(requests, min(asked + verdict, theirs.shape.context), logit_tokens=verdict)
    at_once = replace(rows, count=counts.num_taken(requests, chunk_sizes.REQUESTS_AT_ONCE))
    passing = scoring_memory(theirs, theirs.policy_bytes, at_once)
    forward, sampled, steps = work.forward_tokens, work.sampled_tokens, work.sampling_steps
    if judge.top_logprobs:
        forward += rows.tokens
    if verdict > 1 or not judge.top_logprobs:
        forward, sampled = forward + requests * asked, sampled + requests * verdict
        steps += judge_steps(requests, asked, verdict)
        generating = judge_sampling_memory(theirs, requests, asked, verdict)
        passing = max(passing, generating, key=lambda phase: phase.total)
    return replace(
        work,
        forward_tokens=forward,
        sampled_tokens=sampled,
        sampling_steps=steps,
        phases={**work.phases, "judging": passing},
    )


def judge_sampling_memory(
    theirs: StageInputs, requests: int, asked: int, max_new_tokens: int
) -> Memory:
    """Answers of a local model, whose weights are those of a policy of its shape."""
    at_once = counts.num_taken(requests, chunk_sizes.REQUESTS_AT_ONCE)
    prompt = min(asked, counts.prompt_room(theirs.shape.context, max_new_tokens))
    return sampling_memory(theirs, theirs.policy_bytes, at_once, prompt, max_new_tokens, at_least=1)


def judge_steps(requests: int, asked: int, max_new_tokens: int) -> int:
    """Tokens that a local model's batches draw one after another."""
    whole, rest = divmod(requests, chunk_sizes.REQUESTS_AT_ONCE)
    sizes = [(whole, chunk_sizes.REQUESTS_AT_ONCE), (1, rest)]
    return sum(
        times * sampling_steps(count, asked, max_new_tokens, at_least=1) for times, count in sizes
    )


def asked_tokens(judge: JudgeConfig, pairs: int, tokens: int) -> int:
    """Most tokens of all requests and answers, where `pairs` of `tokens` in all are compared."""
    thoughts = judge.max_thought_tokens if judge.chain_of_thought else 0
    passes = 2 if judge.chain_of_thought else 1  # the second has the thoughts before it
    shown = passes * (tokens + pairs * _instruction_tokens(judge, "compare"))
    written = pairs * (2 * thoughts + counts.verdict_tokens(judge, 1))
    return counts.NUM_ORDERS * judge.num_samples * (shown + written)


def text_tokens(characters: int) -> int:
    """Most tokens of a text of so many characters."""
    return ceil(characters / CHARACTERS_PER_TOKEN)


def _instruction_tokens(judge: JudgeConfig, kind: Kind) -> int:
    """Tokens of rubric, principle, questions and worked examples at most."""
    rubric = load_rubric(judge.rubric)
    questions = load_questions()
    texts = [rubric.criteria, *(text for name, text in questions.items() if name.startswith(kind))]
    for example in rubric.examples[: judge.num_examples]:
        texts += [example.dialogue, example.first, example.second, example.thoughts]
    principle = 0 if judge.constitution is None else len(questions["principle"]) + MAX_CHARACTERS
    return text_tokens(sum(map(len, texts)) + principle)
