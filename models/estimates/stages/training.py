"""The work of stages that train: reward models, the Advantage Model and MetaRM; policies by the
supervised loop; PPO-max, whose policy and critic train while others run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import ceil

from trimtab.models.config import policy, reward
from trimtab.models.config.training import SFTConfig, TrainConfig
from trimtab.models.estimates.memory import (
    FLOAT_BYTES,
    PRODUCT_BYTES,
    Memory,
    largest,
    partition_of,
)
from trimtab.models.estimates.shapes import ModelShape
from trimtab.models.estimates.stages.sampling import (
    judge_work,
    num_answered,
    num_revised,
    revision_tokens,
)
from trimtab.models.estimates.work import (
    Rows,
    StageInputs,
    Work,
    narrow_layers,
    passing_work,
    policy_sampling,
    supervised_work,
    trained_parameters,
    trainer_phases,
    training_memory,
    untrained_parameters,
    vllm_memory,
)
from trimtab.models.nets import counts

TOKENS_A_WORD = 2  # of an instruction, at most


def reward_model(config: reward.RewardModelConfig, inputs: StageInputs) -> Work:
    """One reward model; cross-fitted, its own fold is left out of training.

    Of some categories of pairs it is taken to train on all: how many they are is not known before.
    On raw pairs it is a member, which scores those it was trained on as well, unless it is of a
    fold: it scores of training pairs that one. The pairs of validation, which `score_every` scores
    again and again, are taken to be all that is held out.
    """
    held_out = inputs.amounts.held_out_pairs
    voted_on = 0 if inputs.is_relabelled else inputs.amounts.train_pairs
    if config.fold is not None:
        voted_on = -(-voted_on // config.num_folds)
    num_scored = held_out + voted_on
    work = _pair_training(config, inputs, num_heads=1, num_scored=num_scored)
    if config.score_every is not None:
        again = work.optimiser_steps // config.score_every * held_out
        work += Work(forward_tokens=again * inputs.pair_tokens)
    return work


def _pair_training(
    config: reward.PairLossConfig,
    inputs: StageInputs,
    *,
    num_heads: int,
    num_scored: int,
    further: Sequence[Rows] = (),
) -> Work:
    """Training a scorer on pairs with the terms of its loss, then scoring `num_scored` pairs;
    `further` rows as in `supervised_work`.
    """
    train, shape, term = config.train, inputs.shape, config.contrastive
    # The policy's head for the imitation term: none where it is the embedding; adapters leave it.
    head = shape.policy_parameters - shape.trunk_parameters if config.imitation_coef > 0 else 0
    terms = head if train.lora is None else 0
    if term is not None and term.kind == "swav":
        terms += term.num_prototypes * shape.hidden_size
    parameters = shape.scorer_parameters(num_heads) + terms
    work = supervised_work(inputs, train, parameters, _examples(config, inputs), further=further)
    if train.lora is not None:
        work = work.beside(Memory(frozen=FLOAT_BYTES * head))
    return work + _scoring(inputs, train, num_heads, num_scored)


def _examples(config: reward.PairLossConfig, inputs: StageInputs) -> Rows:
    """What a scorer is trained on: pairs, or rankings with each response once."""
    num_pairs, rankings = inputs.amounts.train_pairs, inputs.amounts.train_rankings
    if isinstance(config, reward.RewardModelConfig) and config.fold is not None:
        # Folds are equal up to one: the smallest leaves most to train on.
        num_pairs, rankings = (count - count // config.num_folds for count in (num_pairs, rankings))
    rows, ranked = inputs.pairs(num_pairs), 2
    if config.ranking == "k_wise":
        ranked = inputs.amounts.max_responses
        length = -(-ranked * rows.length // 2)
        rows = Rows(
            rankings,
            length,
            repeated_keys=(ranked - 1) * rows.length,
            all_tokens=min(rankings * length, rows.tokens),
        )
    # All but one of a row's responses may be preferred to another; none is longer than its share.
    preferred = rows.length * (ranked - 1) // ranked if config.imitation_coef > 0 else 0
    passes = 1 if config.contrastive is None else 2
    return replace(rows, logit_tokens=preferred, passes=passes)


def advantage_model(config: reward.AdvantageModelConfig, inputs: StageInputs) -> Work:
    """The Advantage Model: two heads in one pass; first, one by one, the policies it weighs by."""
    pairs, samples = inputs.pairs(inputs.amounts.train_pairs), config.expected_reward
    further = [] if samples is None else [_answered(samples, inputs, samples.batch_size)]
    num_scored = inputs.amounts.held_out_pairs
    work = _pair_training(config, inputs, num_heads=2, num_scored=num_scored, further=further)
    if samples is not None:
        work = _add_sampling(samples, config.train, inputs, work)
    if not inputs.num_behaviours:
        return work
    likelihoods = passing_work(
        inputs,
        inputs.policy_bytes + FLOAT_BYTES * inputs.shape.scorer_parameters(2),
        replace(pairs, logit_tokens=pairs.length),
        phase="likelihoods",
        times=1 + inputs.num_behaviours,
        at_once=counts.rows_of_rank(pairs.count, config.train.ranks),
    )
    return likelihoods + work


def _add_sampling(
    config: reward.ExpectedRewardConfig, train: TrainConfig, inputs: StageInputs, work: Work
) -> Work:
    """Answers before and after the training, whose steps have some prompts with theirs besides."""
    available = inputs.amounts.policy_prompts
    first = _answered(config, inputs, counts.num_taken(available, config.num_prompts))
    later = config.model_copy(update={"num_responses": config.held_out_responses})
    held_out = counts.num_taken(available - first.count, config.num_held_out)
    second = _answered(later, inputs, held_out)
    # Samples pass once all is trained; before that to the layers that are, whose input is kept.
    passes, states = 1, 0
    if train.trainable_layers is not None:
        passes, states = 2, FLOAT_BYTES * first.tokens * inputs.shape.hidden_size
    weights = FLOAT_BYTES * inputs.shape.scorer_parameters(2)
    work = work.beside(Memory(activations=states), "training")
    work += Work(forward_tokens=passes * first.tokens) + passing_work(inputs, weights, second)
    for sampler, rows in ((config, first), (later, second)):
        count = rows.count * sampler.num_responses
        work += policy_sampling(sampler, inputs, count, inputs.policy_bytes + weights)
    return work


def _answered(
    config: reward.ExpectedRewardConfig | reward.MetaRMConfig, inputs: StageInputs, count: int
) -> Rows:
    """Rows of a prompt with its answers."""
    prompt, _ = inputs.prompt_and_row(config.max_new_tokens)
    response = config.max_new_tokens + 1
    repeated = (config.num_responses - 1) * (prompt + response)
    return Rows(count, prompt + config.num_responses * response, repeated_keys=repeated)


def meta_rm(config: reward.MetaRMConfig, inputs: StageInputs) -> Work:
    """MetaRM: samples of the current policy, then an ascent before each descent, or J in the loss.

    The ascent has whole gradients, in whose place the weights are kept during the descent; under
    stages 2 and 3 of ZeRO each rank's part of them.
    """
    amounts, train = inputs.amounts, config.train
    available = amounts.prompts_of(config.prompts)
    prompts = counts.num_taken(available, config.num_prompts)
    others = counts.num_taken(available - prompts, config.num_held_out)
    all_prompts = prompts + others
    meta = _answered(config, inputs, counts.num_taken(prompts, config.meta_batch))
    num_heads, scorers = inputs.scorer_heads[0], inputs.scorer_inputs
    parameters = scorers.shape.scorer_parameters(num_heads)
    pairs = scorers.pairs(amounts.train_pairs)
    further = [meta] if config.update == "term" else []
    learning = supervised_work(scorers, train, parameters, pairs, further=further)
    ascents = Work(forward_tokens=2 * all_prompts * meta.length)
    if config.update != "term":
        tokens, phases = (
            learning.optimiser_steps * meta.tokens,
            _ascent(scorers, train, learning, meta),
        )
        ascents = replace(ascents, trained_tokens=tokens, phases=phases)
    scoring = _scoring(scorers, train, num_heads, amounts.held_out_pairs)
    num_answers = all_prompts * config.num_responses
    sampling = policy_sampling(config, inputs, num_answers, inputs.policy_bytes)
    return inputs.scorer_work(learning + scoring) + sampling + inputs.scorer_work(ascents)


def _ascent(inputs: StageInputs, train: TrainConfig, base: Work, meta: Rows) -> dict[str, Memory]:
    """What a rank holds in the ascent on a meta batch, and in the descent behind it."""
    descent, learning = base.phases["training"], FLOAT_BYTES * base.parameters
    parameters = inputs.shape.scorer_parameters(inputs.scorer_heads[0])
    activations = training_memory(inputs, parameters, train, meta).activations
    partition = partition_of(train)
    if partition.stage > 1:
        # The gradient is taken, and under stage 3 copied, part by part. Masters stay as they are,
        # but for float32 parameters under stage 3, which are their own masters.
        part = learning // train.ranks
        held = part * (partition.stage == 3 and not partition.is_narrow)
        ascent = replace(descent, activations=max(activations, part + held))
        return {"ascent": ascent, "training": descent + Memory(weights=held)}
    # One parameter's, or a bucket's, once there are no activations.
    bucket = counts.BUCKET * (train.ranks > 1)
    beside = FLOAT_BYTES * max(inputs.shape.largest_parameter, bucket)
    activations = max(activations, min(beside, learning))
    return {
        "ascent": replace(descent, gradients=learning, activations=activations),
        "training": descent + Memory(weights=learning),
    }


def _scoring(inputs: StageInputs, train: TrainConfig, num_heads: int, num_pairs: int) -> Work:
    """What a scorer that was trained scores."""
    parameters = inputs.shape.scorer_parameters(num_heads)
    weights = inputs.frozen_bytes(parameters, narrow_layers(inputs, train))
    return passing_work(inputs, weights, inputs.pairs(num_pairs))


def sft(config: SFTConfig, inputs: StageInputs) -> Work:
    """Supervised fine-tuning; the loss is on response tokens, of which a row may consist."""
    weights = FLOAT_BYTES * inputs.shape.policy_parameters
    if not config.fine_tune:
        return Work(examples=0, phases={"loading": Memory(frozen=weights)})
    count, row = inputs.amounts.demonstrations, inputs.amounts.dialogue_tokens
    rows = Rows(count, row, logit_tokens=row)
    return supervised_work(inputs, config.train, inputs.shape.policy_parameters, rows)


def constitutional_sft(config: policy.ConstitutionalSFTConfig, inputs: StageInputs) -> Work:
    """Supervised fine-tuning on revisions and on the demonstrations beside them."""
    assert config.train is not None and inputs.revised is not None
    revisions = num_revised(inputs.revised, inputs)
    helpful = counts.num_helpful(config, revisions, inputs.amounts.demonstrations)
    _, revised = inputs.prompt_and_row(revision_tokens(inputs.revised, inputs))
    row = max(revised, inputs.amounts.dialogue_tokens)
    rows = Rows(revisions + helpful, row, logit_tokens=row)
    return supervised_work(inputs, config.train, inputs.shape.policy_parameters, rows)


def dpo(config: policy.DPOConfig, inputs: StageInputs) -> Work:
    """Pairs pass under the reference, if there is one, once; then the policy alone learns from
    them. For KTO's baseline the answers of every batch pass under both again, with prompts of
    others: rows that are taken to be as long.
    """
    learning = cpl(config, inputs)
    if not config.needs_reference:
        return learning
    pairs = _train_pairs(inputs)
    mismatched = config.train.num_epochs * (config.loss == "kto")
    weights = FLOAT_BYTES * inputs.shape.policy_parameters + inputs.policy_bytes
    reference = passing_work(inputs, weights, pairs, phase="reference", times=1 + mismatched)
    policy_pass = replace(passing_work(inputs, 0, pairs, times=mismatched), phases={})
    return learning + reference + policy_pass


def cpl(config: policy.CPLConfig | policy.DPOConfig, inputs: StageInputs) -> Work:
    """The policy alone learns from pairs."""
    return _policy(config, inputs, _train_pairs(inputs))


def rejection_sampling(config: policy.RejectionSamplingConfig, inputs: StageInputs) -> Work:
    """One answer to every prompt that was sampled so far."""
    prompts = sum(num_answered(answers, inputs) for answers in inputs.sampled)
    return _answer_training(config, inputs, [min(prompts, inputs.amounts.policy_prompts)])


def rest(config: policy.RestConfig, inputs: StageInputs) -> Work:
    """All answers above each threshold, no two of which are taken to score the same; those above a
    value are taken to be all.
    """
    count = _num_answers(inputs)
    if config.threshold_kind == "value":
        return _answer_training(config, inputs, [count for _ in config.thresholds])
    return _answer_training(config, inputs, [ceil((1 - q) * count) for q in config.thresholds])


def hir(config: policy.HIRConfig, inputs: StageInputs) -> Work:
    """Every answer behind every instruction, in one row with its prompt."""
    prompt, row = _answer_row(inputs)
    words = max(len(instruction.split()) for instruction in config.instructions)
    response, num_instructions = row - prompt + TOKENS_A_WORD * words, len(config.instructions)
    responses = num_instructions * response
    rows = Rows(
        _num_answers(inputs),
        prompt + responses,
        responses,
        repeated_keys=(num_instructions - 1) * (prompt + response),
    )
    return _policy(config, inputs, rows)


def _num_answers(inputs: StageInputs) -> int:
    return sum(num_answered(part, inputs) * part.num_responses for part in inputs.sampled)


def _answer_row(inputs: StageInputs) -> tuple[int, int]:
    """Tokens of a prompt, and of the row it makes with its longest answer."""
    return inputs.prompt_and_row(max(part.max_new_tokens for part in inputs.sampled))


def _train_pairs(inputs: StageInputs) -> Rows:
    """Pairs, of which at most all tokens are of the two responses."""
    pairs = inputs.pairs(inputs.amounts.train_pairs)
    return replace(pairs, logit_tokens=pairs.length)


def _answer_training(
    config: policy.PolicyConfig, inputs: StageInputs, parts: Sequence[int]
) -> Work:
    prompt, row = _answer_row(inputs)
    rows = Rows(max(parts), row, logit_tokens=row - prompt, all_tokens=sum(parts) * row)
    return _policy(config, inputs, rows, parts)


def _policy(
    config: policy.PolicyConfig, inputs: StageInputs, rows: Rows, parts: Sequence[int] | None = None
) -> Work:
    """Training a policy on rows; the last two as in `supervised_work`.

    Each update passes what it rehearses as well, as long as any dialogue can be.
    """
    longest, size = inputs.amounts.dialogue_tokens, inputs.shape.policy_parameters
    rehearsed = counts.nll_batch_sizes(config, inputs.num_rehearsed > 0).values()
    further = [Rows(count, longest, logit_tokens=longest) for count in rehearsed]
    return supervised_work(inputs, config.train, size, rows, parts=parts, further=further)


def ppo_max(config: policy.PPOConfig, inputs: StageInputs) -> Work:
    """All steps: answers sampled and scored, then updates of critic, if there is one, and policy.

    Without a scorer the first rank has the judge beside all else, which rates each answer, as if
    it were another than those before.
    """
    planned = counts.ppo_counts(config, inputs.amounts.prompts_of(config.prompts))
    _, row = inputs.prompt_and_row(config.max_new_tokens)
    response, num_scorers = config.max_new_tokens + 1, len(inputs.scorer_heads)
    num_scoring = num_scorers + inputs.num_heldout_models
    shared = _rollout_rows(config, inputs, planned.prompts)
    answers = Rows(planned.steps * planned.rollout, row, all_tokens=planned.steps * shared.tokens)
    judging = Work()
    if config.scoring.judge is not None and not num_scorers:
        field = "ppo.scoring.judge.local_model"
        judging = judge_work(config.scoring.judge, inputs, "score", answers, field)
    if config.zero is not None and config.zero.stage == 3:
        # Models that only run are narrow there as a whole, which their partition counts.
        inputs = replace(inputs, is_narrow=False)
    # Float32 weights on a GPU have narrow copies while they sample.
    copies = 0
    if inputs.is_narrow and config.zero is None and config.lora is None:
        copies = PRODUCT_BYTES["bfloat16"] * inputs.shape.num_layers * inputs.shape.map_numbers
    sampling = policy_sampling(config, inputs, planned.rollout, copies).times(planned.steps)
    # What is sampled in narrow products, or by vLLM, the policy passes once more.
    num_policies = 1 + (PRODUCT_BYTES[config.precision] < FLOAT_BYTES or config.vllm is not None)
    learned, learned_tokens = (config.num_epochs * n for n in (planned.rollout, shared.tokens))
    updates, nll = planned.policy_updates(planned.steps), _nll_rows(config, inputs)
    passes = counts.risk_passes(config, planned, inputs.num_rehearsed > 0)
    measured = Rows(inputs.num_rehearsed, row, response)
    measuring = passing_work(inputs, 0, measured, times=passes)
    work = Work(
        examples=answers.count,
        num_ranks=config.ranks,
        optimiser_steps=planned.steps * planned.updates,
        passed_logits=num_policies * answers.count * response,
        forward_tokens=(num_policies + 1) * answers.tokens,
        trained_tokens=learned_tokens * planned.policy_steps
        + updates * sum(rows.tokens for rows in nll),
        trained_logits=learned * planned.policy_steps * response
        + updates * sum(rows.count * rows.logit_tokens for rows in nll),
        parameters=sum(
            trained_parameters(shape, config, parameters)
            for shape, parameters in _trained_models(config, inputs)
        ),
    )
    work += inputs.scorer_work(Work(forward_tokens=num_scoring * answers.tokens))
    if config.objective.has_critic:
        critic = Work(trained_tokens=learned_tokens * planned.steps)
        work += inputs.scorer_work(critic) if config.critic_init == "scorer" else critic
    phases = _phases(config, inputs, planned, sampling.phases["sampling"])
    judge = Memory(frozen=max((phase.frozen for phase in judging.phases.values()), default=0))
    held = replace(phases["sampling"], activations=0, cache=0)
    rating = {name: replace(phase, frozen=0) + held for name, phase in judging.phases.items()}
    total = work + sampling + judging + measuring
    return replace(total, phases=phases | rating).beside(judge)


def _rollout_rows(config: policy.PPOConfig, inputs: StageInputs, prompts: int) -> Rows:
    """So many prompts, each with all its answers behind it in one row."""
    prompt, row = inputs.prompt_and_row(config.max_new_tokens)
    count, response = config.objective.num_responses, config.max_new_tokens + 1
    length = prompt + count * (row - prompt)
    return Rows(prompts, length, count * response, repeated_keys=(count - 1) * row)


def _trained_models(config: policy.PPOConfig, inputs: StageInputs) -> list[tuple[ModelShape, int]]:
    """Shape and parameters of the policy, and of the critic if there is one."""
    models = [(inputs.shape, inputs.shape.policy_parameters)]
    if config.objective.has_critic:
        models.append((_critic(config, inputs).shape, _critic_parameters(config, inputs)))
    return models


def _critic(config: policy.PPOConfig, inputs: StageInputs) -> StageInputs:
    """The inputs with the critic's model in the policy's place."""
    return inputs.scorer_inputs if config.critic_init == "scorer" else inputs


def _critic_parameters(config: policy.PPOConfig, inputs: StageInputs) -> int:
    """A critic that starts as the first scorer keeps its heads."""
    heads = inputs.scorer_heads[0] if config.critic_init == "scorer" else 1
    return _critic(config, inputs).shape.scorer_parameters(heads)


def _nll_rows(config: policy.PPOConfig, inputs: StageInputs) -> list[Rows]:
    """The dialogues that a policy update draws of each source; rehearsed ones are answers that are
    taken to be as long as its own.
    """
    _, row = inputs.prompt_and_row(config.max_new_tokens)
    longest = {"rehearsal": row, "demonstrations": inputs.amounts.dialogue_tokens}
    drawn = counts.nll_batch_sizes(config, inputs.num_rehearsed > 0)
    response = config.max_new_tokens + 1
    return [Rows(count, longest[source], response) for source, count in drawn.items()]


def _phases(
    config: policy.PPOConfig, inputs: StageInputs, planned: counts.PPOCounts, sampling: Memory
) -> dict[str, Memory]:
    """Optimisers stay in memory throughout; gradients are of one model at a time, but under stage 3
    of ZeRO room for those of all is kept.

    Reference and scorers come first, then the policy, then the critic, if there is one. In the end
    the first rank has them whole.
    """
    batch = config.train_batch // config.objective.num_responses
    batch = counts.num_taken(planned.prompts, batch)
    learners = _learners(config, inputs, batch)
    at_once = planned.prompts
    if counts.risk_passes(config, planned, inputs.num_rehearsed > 0):
        at_once = max(at_once, inputs.num_rehearsed)
    answers = _rollout_rows(config, inputs, counts.rows_of_rank(at_once, config.ranks))
    partition = partition_of(config)
    others = inputs.policy_bytes + sum(inputs.scorer_bytes) + inputs.heldout_bytes
    passes = [passing_work(part, 0, answers) for part in (inputs, inputs.scorer_inputs)]
    phases = trainer_phases(
        inputs,
        config,
        list(learners.values()),
        {
            "sampling": sampling if config.vllm is None else Memory(),
            "scoring": largest(*(part.phases["scoring"] for part in passes)),
            **{f"{name} update": learner.transient for name, learner in learners.items()},
        },
        others,
        _shared(config, inputs),
    )
    held = sum((learner.resident for learner in learners.values()), Memory())
    kept = held if partition.stage == 0 else replace(held, optimiser=0)  # its state to the end
    phases["saving"] = kept + partition.running_part(others)
    if partition.stage == 3:  # a model that samples or scores is whole
        held_out = inputs.heldout_bytes // max(1, inputs.num_heldout_models)
        critic = _critic_parameters(config, inputs) if "critic" in learners else 0
        scored = max(inputs.policy_bytes, *inputs.scorer_bytes, held_out, FLOAT_BYTES * critic)
        for name, weights in (("sampling", inputs.policy_bytes), ("scoring", scored)):
            phases[name] += Memory(frozen=weights // partition.width)
    if config.vllm is not None:  # on a GPU only while it samples: then this is a bound
        beside = vllm_memory(config.vllm, inputs.shape, PRODUCT_BYTES[config.precision])
        later = phases.keys() - {"loading"}
        phases = dict(Work(phases=phases).beside(Memory(frozen=beside), *later).phases)
    return phases


def _learners(config: policy.PPOConfig, inputs: StageInputs, batch: int) -> dict[str, Memory]:
    """What policy and critic take in an update on so many prompts, in the order of loading."""
    trained = _rollout_rows(config, inputs, batch)
    rows, size = [trained, *_nll_rows(config, inputs)], inputs.shape.policy_parameters
    learners = {"policy": largest(*(training_memory(inputs, size, config, part) for part in rows))}
    if config.objective.has_critic:
        size, values = _critic_parameters(config, inputs), replace(trained, logit_tokens=0)
        learners["critic"] = training_memory(_critic(config, inputs), size, config, values)
    return learners


def _shared(config: policy.PPOConfig, inputs: StageInputs) -> int:
    """Bytes of what policy and critic do not train that reference and first scorer share with
    them, where they are their starts; under stage 3 of ZeRO none."""
    if partition_of(config).stage == 3:
        return 0
    shared = 0
    if inputs.starts_as_reference:
        shared += _shared_bytes(config, inputs, inputs.shape.policy_parameters)
    if config.objective.has_critic and config.critic_init == "scorer":
        shared += _shared_bytes(config, _critic(config, inputs), _critic_parameters(config, inputs))
    return shared


def _shared_bytes(config: policy.PPOConfig, inputs: StageInputs, num_parameters: int) -> int:
    """Bytes that a frozen model does not hold, as the one that started as it has these weights."""
    shape = inputs.shape
    upper, layers = shape.upper(config.trainable_layers).num_layers, shape.num_layers
    shared = untrained_parameters(shape, config, num_parameters)
    if config.lora is None:
        layers -= upper
    elif inputs.is_narrow and config.zero is not None:  # adapters are added to float32 weights
        shared, layers = shared - upper * shape.map_numbers, layers - upper
    return inputs.frozen_bytes(shared, layers)
