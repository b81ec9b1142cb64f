"""The work of stages that sample a policy; a function a stage, mirroring its trainer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import ceil

from models import limits
from models.config.data import ComparisonsConfig
from models.config.policy import PPOConfig, RehearsalConfig
from models.config.reporting import EvaluateConfig
from models.estimates.judging import answering
from models.estimates.memory import FLOAT_BYTES, PRODUCT_BYTES, Memory
from models.estimates.shapes import ModelShape
from models.estimates.work import (
    Setting,
    Work,
    sampling_phase,
    scoring_phase,
    trained_parameters,
    training_phase,
)


def comparisons(config: ComparisonsConfig, setting: Setting) -> Work:
    """Sampling the answers that simulated annotators compare."""
    prompts = setting.amounts.pair_prompts
    answers = prompts * config.num_responses
    prompt, row = setting.capped(setting.amounts.prompt_tokens, config.max_new_tokens)
    return Work(
        examples=prompts,
        sampled_tokens=answers * config.max_new_tokens,
        forward_tokens=answers * prompt,
        phases={"sampling": sampling_phase(setting, setting.policy, answers, prompt, row)},
    )


def rehearsal(config: RehearsalConfig, setting: Setting) -> Work:
    """Answers of the SFT policy, scored; the sentence encoder is not counted."""
    prompts = setting.amounts.policy_prompts
    if config.max_prompts is not None:
        prompts = min(prompts, config.max_prompts)
    prompt, row = setting.capped(setting.amounts.prompt_tokens, config.max_new_tokens)
    return Work(
        examples=prompts,
        sampled_tokens=prompts * config.max_new_tokens,
        forward_tokens=prompts * (prompt + row),
        phases={
            "sampling": sampling_phase(setting, setting.policy, prompts, prompt, row),
            "scoring": scoring_phase(setting, sum(setting.scorers), prompts, row),
        },
    )


def ppo_max(config: PPOConfig, setting: Setting) -> Work:
    """PPO-max: policy and critic train, reference and scorers run; see `_ppo_phases`.

    Without a scorer the first rank has the judge beside all else.
    """
    prompt, row = setting.capped(setting.amounts.prompt_tokens, config.max_new_tokens)
    rollout = min(config.rollout_batch, setting.amounts.policy_prompts)
    updates = config.num_epochs * ceil(rollout / config.train_batch)
    rounds = config.critic_pretrain_steps + config.num_steps
    answers = rounds * rollout
    of_critic = rounds * config.num_epochs * rollout * row
    replayed = sum(config.rehearsal_batch * tokens for tokens in _replay(config, setting, row))
    of_policy = config.num_steps * (config.num_epochs * rollout * row + updates * replayed)
    judging = _rating(config, setting, answers, row)
    phases = _ppo_phases(config, setting, rollout, prompt, row)
    # Reference, critic and scorers; of narrow products, and of what vLLM samples, the policy too.
    is_narrow, has_vllm = config.precision != "float32", config.vllm is not None
    passes = 2 + len(setting.scorers) + (is_narrow or has_vllm)
    return Work(
        examples=answers,
        num_ranks=config.ranks,
        optimiser_steps=rounds * updates,
        sampled_tokens=answers * config.max_new_tokens + judging.sampled_tokens,
        forward_tokens=answers * (prompt + passes * row) + judging.forward_tokens,
        trained_tokens=of_critic + of_policy,
        parameters=trained_parameters(setting.shape, config, setting.shape.policy_parameters)
        + trained_parameters(setting.shape, config, _critic_parameters(config, setting)),
        phases=_beside(phases, judging.phases),
    )


def _rating(config: PPOConfig, setting: Setting, answers: int, row: int) -> Work:
    """A judge's ratings, each answer taken to be another than those before."""
    judge = config.scoring.judge
    if setting.scorers or judge is None:
        return Work(examples=answers)
    return answering(judge, setting, answers, answers, row, "ppo.scoring.judge.local_model")


def _beside(phases: dict[str, Memory], judging: Mapping[str, Memory]) -> dict[str, Memory]:
    """Phases with a judge's weights in each, and those in which it works."""
    weights = max((phase.frozen for phase in judging.values()), default=0)
    others = {
        name: replace(phases["sampling"], activations=phase.activations, cache=phase.cache)
        for name, phase in judging.items()
    }
    return {
        name: replace(phase, frozen=phase.frozen + weights)
        for name, phase in (phases | others).items()
    }


def _critic_parameters(config: PPOConfig, setting: Setting) -> int:
    """A critic that starts as the first scorer keeps its heads."""
    heads = setting.scorer_heads[0] if config.critic_init == "scorer" else 1
    return setting.shape.scorer_parameters(heads)


def _replay(config: PPOConfig, setting: Setting, row: int) -> list[int]:
    """Tokens a row of each source that a policy update draws dialogues from."""
    rehearsed = [row] if setting.has_rehearsal and config.rehearsal_coef > 0 else []
    return rehearsed + ([setting.amounts.dialogue_tokens] if config.ptx_coef > 0 else [])


def _ppo_phases(
    config: PPOConfig, setting: Setting, rollout: int, prompt: int, row: int
) -> dict[str, Memory]:
    """Both optimisers stay in memory throughout; gradients are of one model at a time, but under
    stage 3 of ZeRO room for those of both is kept.

    What policy and critic do not train, reference and first scorer share where they are their
    starts. Of a rank: with ZeRO it holds its part, and the whole of a model that samples or scores.
    """
    num_policy, num_critic = setting.shape.policy_parameters, _critic_parameters(config, setting)
    response = config.max_new_tokens + 1
    rows, batch = (
        ceil(count / config.ranks) for count in (rollout, min(config.train_batch, rollout))
    )
    policy = [training_phase(setting, num_policy, config, batch, row, response)]
    for tokens in _replay(config, setting, row):
        count = ceil(config.rehearsal_batch / config.ranks)
        policy.append(training_phase(setting, num_policy, config, count, tokens, response))
    critic = training_phase(setting, num_critic, config, batch, row)
    resident = Memory(
        weights=policy[0].weights + critic.weights,
        optimiser=policy[0].optimiser + critic.optimiser,
        frozen=setting.policy + sum(setting.scorers) + policy[0].frozen + critic.frozen,
    )
    others = setting.policy + sum(setting.scorers)
    stages = _loading_and_saving(config, policy[0], critic, others)
    if config.zero is None or config.zero.stage < 3:
        resident = replace(
            resident,
            frozen=resident.frozen
            - (policy[0].frozen if setting.starts_as_reference else 0)
            - (critic.frozen if config.critic_init == "scorer" else 0),
        )
    phases = {
        "sampling": Memory() if config.vllm else sampling_phase(setting, 0, rows, prompt, row),
        "scoring": scoring_phase(setting, 0, rows, row, response),
        "critic update": critic,
        "policy update": max(policy, key=lambda phase: phase.total),
    }
    held = {
        name: replace(
            resident,
            gradients=phase.gradients,
            activations=phase.activations,
            cache=phase.cache,
        )
        for name, phase in phases.items()
    }
    beside = _held_by_vllm(config, setting.shape)
    later = {**_in_parts(config, setting, held), "saving": stages["saving"]}
    working = {name: replace(phase, frozen=phase.frozen + beside) for name, phase in later.items()}
    return {"loading": stages["loading"], **working}


def _loading_and_saving(
    config: PPOConfig, policy: Memory, critic: Memory, others: int
) -> dict[str, Memory]:
    """Reference and scorers (`others`, bytes) come first, then the policy, then the critic.

    In the end the first rank has policy and critic whole.
    """
    stage = 0 if config.zero is None else config.zero.stage
    if stage == 0:
        weights, frozen = policy.weights + critic.weights, policy.frozen + critic.frozen + others
        whole = Memory(weights=weights, frozen=frozen)
        return {"loading": whole, "saving": whole}
    held = Memory(frozen=others).part(stage, config.ranks).frozen
    prepared = policy.part(stage, config.ranks)
    apart = ceil(policy.weights / config.ranks)  # the optimiser's copy; no moments yet
    loading = critic.loading(stage, config.ranks)
    return {
        "loading": Memory(
            weights=loading.weights + (apart if stage == 3 else policy.weights),
            gradients=loading.gradients + (prepared.gradients if stage == 3 else 0),
            optimiser=loading.optimiser + apart,
            frozen=loading.frozen + prepared.frozen + held,
        ),
        "saving": Memory(
            weights=policy.weights + critic.weights, frozen=policy.frozen + critic.frozen + held
        ),
    }


def _held_by_vllm(config: PPOConfig, shape: ModelShape) -> int:
    """Bytes on the first rank's device: the policy with a head of its own, and the cache."""
    if config.vllm is None:
        return 0
    parameters = shape.trunk_parameters + shape.vocab_size * shape.hidden_size
    return PRODUCT_BYTES[config.precision] * parameters + int(config.vllm.cache_gib * 2**30)


def _in_parts(config: PPOConfig, setting: Setting, held: dict[str, Memory]) -> dict[str, Memory]:
    """With ZeRO: a rank's parts, and the whole of one model where it samples or scores."""
    if config.zero is None:
        return held
    parts = {name: phase.part(config.zero.stage, config.ranks) for name, phase in held.items()}
    if config.zero.stage == 3:
        both = Memory(gradients=held["policy update"].weights).part(3, config.ranks).gradients
        buckets = both + FLOAT_BYTES * limits.ZERO_BUCKET
        parts = {name: replace(phase, gradients=buckets) for name, phase in parts.items()}
        critic = FLOAT_BYTES * _critic_parameters(config, setting)
        gathered = {
            "sampling": setting.policy,
            "scoring": max(setting.policy, *setting.scorers, critic),
        }
        for name, size in gathered.items():
            parts[name] = replace(parts[name], frozen=parts[name].frozen + size)
    return parts


def evaluate(config: EvaluateConfig, setting: Setting) -> Work:
    """Answers to the evaluation prompts, scores by scorer and judges, likelihoods of the best.

    One after another, scorer, judges and reference are loaded beside the policy.
    """
    prompts, count = setting.amounts.eval_prompts, config.num_candidates
    prompt, row = setting.capped(setting.amounts.prompt_tokens, config.max_new_tokens)
    response = config.max_new_tokens + 1
    packed = prompt + count * (row - prompt)
    asked = _harmlessness(config, setting, row)
    scored = (1 + setting.num_judges) * packed
    return Work(
        examples=prompts,
        sampled_tokens=prompts * count * config.max_new_tokens + asked.sampled_tokens,
        forward_tokens=prompts * (count * prompt + scored + 2 * row) + asked.forward_tokens,
        phases={
            "sampling": sampling_phase(setting, setting.policy, prompts * count, prompt, row),
            "scoring": scoring_phase(setting, 2 * setting.policy, prompts, packed),
            "likelihoods": scoring_phase(setting, 2 * setting.policy, prompts, row, response),
            **{
                name: replace(phase, frozen=phase.frozen + setting.policy)
                for name, phase in asked.phases.items()
            },
        },
    )


def _harmlessness(config: EvaluateConfig, setting: Setting, row: int) -> Work:
    """A judge's view of the answers; all prompts are taken to ask for harm."""
    prompts = setting.amounts.eval_prompts
    if config.harmless is None:
        return Work(examples=prompts)
    field = "evaluate.harmless.judge.local_model"
    return answering(config.harmless.judge, setting, prompts, prompts, row, field)
