"""How fast a card is: its rates, reward models, PPO, sampling, log-probabilities; and peers."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import time
import zipfile
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, GenerationConfig

from trimtab.models.config.base import StageConfig
from trimtab.models.config.policy import DPOConfig, PPOConfig
from trimtab.models.config.reward import MetaRMConfig, RewardModelConfig
from trimtab.models.config.training import ModelConfig, SFTConfig, TrainConfig
from trimtab.models.estimates.shapes import shape_of
from trimtab.models.gpu_check import trl_trainers
from trimtab.models.gpu_check.driver import Bench, LeftOutError, WrongError
from trimtab.models.gpu_check.material import (
    CARD,
    REHEARSAL,
    VOCABULARY,
    Scale,
    config_of,
    make_material,
)
from trimtab.models.gpu_check.measure import (
    GIB,
    inputs_of,
    note_kernels,
    note_memory,
    note_runs,
    peak_gib,
    product_rate,
    row_work,
    synchronise,
    timed,
)
from trimtab.models.gpu_check.stage_runs import (
    Wrapped,
    make_job,
    run_stage,
    step_times,
    tensor_gib,
    visible_gpu,
)
from trimtab.models.nets.device import current_device
from trimtab.models.nets.freezing import layers_of
from trimtab.models.nets.fused import fuse_layers
from trimtab.models.nets.generation import Sampling
from trimtab.models.nets.loading import load_policy, load_tokenizer
from trimtab.models.nets.logits import NarrowProduct, token_logprobs
from trimtab.models.nets.precision import set_product_precision
from trimtab.models.nets.pretrained import build_from_config, load_pretrained
from trimtab.models.nets.training import prepare_training
from trimtab.models.specs import SPECS
from trimtab.models.stages.ppo_max import rollout, scorers, trainer, update
from trimtab.models.training import distributed, entry
from trimtab.models.training.batching import epoch_batches
from trimtab.models.training.data import read_pairs
from trimtab.models.training.learner import TrainingRows, accumulate, built_ahead, new_learner
from trimtab.models.training.pair_batches import pair_batches_of, reward_loss
from trimtab.models.training.sampling import sample

MICRO_BATCH_TOKENS, MAX_TOKENS, RATE = 16_384, 1024, 1e-5
STEPS = 3
TRACED_TOKENS = 32  # fewer are not replayed as CUDA graphs
OWN_LOOP = "own loop"
PPO_BEFORE = 12.4  # seconds a step of 64 prompts, on an H100 of 26 November 2026
# The functions whose time is a phase of PPO, by owner and name.
PHASES: dict[str, tuple[tuple[Any, str], ...]] = {
    "sample": ((rollout, "_sample_rows"),),
    "log-probs, values": ((rollout, "map_rows"),),
    "score": ((scorers.Scorers, "score"),),
    "update": ((update.ActorCritic, "update"),),
    "save": ((trainer, "checkpoint_or_stop"), (trainer, "append_rows")),
}


def begin(bench: Bench, precision: str = "bfloat16") -> Scale:
    """Compute on the bench's device as a stage does, and multiply so; returns how large all is."""
    if bench.device == "cuda":
        distributed.limit_visible_gpus([os.environ.get(distributed.VISIBLE, "0").partition(",")[0]])
        distributed.use_gpu()
    entry._make_deterministic(1, bench.device == "cuda")
    set_product_precision("bfloat16" if precision == "bfloat16" else "float32")
    return scale_of(bench)


def scale_of(bench: Bench) -> Scale:
    """The card's, or a rehearsal's."""
    return CARD if bench.device == "cuda" else REHEARSAL


def card(bench: Bench) -> None:
    """The card: its memory, and its rates of products and copies."""
    scale = begin(bench, "float32")
    if bench.device == "cuda":
        properties = torch.cuda.get_device_properties(0)
        bench.note("card", properties.name)
        bench.note("memory", properties.total_memory / GIB, "GiB")
        bench.note("CUDA", torch.version.cuda or "unknown")
        query = ["nvidia-smi", "--query-gpu=driver_version,clocks.max.sm,clocks.sm,power.limit"]
        query += ["--format=csv,noheader", f"--id={visible_gpu()}"]
        with suppress(OSError):  # not on every machine
            answer = subprocess.run(query, capture_output=True, text=True, check=False).stdout
            bench.note("driver, clocks, power", answer.strip() or "unknown")
    else:
        bench.note("card", f"none: {os.cpu_count()} CPU cores")
    for name, dtype, matmul in (
        ("bfloat16", torch.bfloat16, "highest"),
        ("TF32", torch.float32, "high"),
        ("float32", torch.float32, "highest"),
    ):
        torch.set_float32_matmul_precision(matmul)
        bench.note(f"products of {name}", product_rate(scale.product, dtype) / 1e12, "TFLOP/s")
    numbers = torch.zeros(scale.product, scale.product, device=current_device())
    host = torch.zeros(numbers.shape, pin_memory=bench.device == "cuda")
    for name, copy, times in (
        ("copy on the device", numbers.clone, 2),
        ("copy to the device", lambda: numbers.copy_(host, non_blocking=True), 1),
        ("copy to the host", lambda: host.copy_(numbers, non_blocking=True), 1),
    ):
        seconds = min(timed(copy, 1, 3))
        bench.note(name, times * numbers.nbytes / seconds / 1e9, "GB/s")


def compile_layers(model: torch.nn.Module, backend: str) -> None:
    """Have torch compile the layers, all but attention, at their first pass."""
    for layer in layers_of(model):
        layer.compile(backend=backend, dynamic=True)


def material(bench: Bench) -> None:
    """Write the models, pairs and prompts that the parts below use."""
    scale = begin(bench, "float32")
    for name, length in make_material(scale, bench.request["pairs"], bench.work / "all").items():
        bench.note(f"mean length: {name}", length, "tokens")
    bench.note("pairs", bench.request["pairs"] or "made up, as long as HH's")


def reward_model(bench: Bench, large: bool = False, compiled: bool = False) -> None:
    """Updates of a reward model on one micro batch of packed pairs, as the stage makes them.

    large: of a billion parameters. compiled: torch compiles the layers, in the warm-up, in place of
    fused ones, and nothing but updates is timed.
    """
    scale = begin(bench)
    fields = scale.large if large else scale.shape
    train = TrainConfig(
        batch_size=scale.timed, micro_batch_tokens=2 * MICRO_BATCH_TOKENS, precision="bfloat16"
    )
    folder = bench.work / "all"
    path = folder / "preferences" / "train.jsonl"
    pairs = read_pairs(path, load_tokenizer(folder / "policy" / "model"), MAX_TOKENS)
    pairs = pairs.subset(range(scale.timed))
    torch.manual_seed(0)
    config = config_of({**fields, "num_labels": 1})
    model = build_from_config(AutoModelForSequenceClassification, config, dtype=torch.float32)
    model = model.to(current_device())
    if compiled:
        compile_layers(model, "inductor" if bench.device == "cuda" else "aot_eager")
    else:
        fuse_layers(model)
    model.train()
    rankings = pair_batches_of(pairs)
    data = TrainingRows(rankings.rows, rankings.weight, arguments=rankings.compared)
    batch = list(range(scale.timed))
    prepare_training(model, train, 0)
    learner = new_learner(model, reward_loss(model), train, state=None)

    def step() -> None:
        accumulate(learner, built_ahead(learner, data, batch, train.micro_batch_tokens))
        learner.step(RATE)

    config_of_shape = bench.work / ("large" if large else "small")
    model.config.save_pretrained(config_of_shape)
    shape = shape_of(ModelConfig(base=str(config_of_shape)))
    seconds = note_runs(bench, f"update of {scale.timed} pairs", timed(step, 3, 5), "ms", 1e3)
    seconds /= 1e3
    if compiled:
        return
    tokens = sum(row.num_tokens for row in pairs.rows)
    bench.note("packed tokens", tokens / seconds, "/s", beside=f"{tokens:,} an update")
    rate = bench.earlier_value("card", "products of bfloat16")
    share = 100 * sum(row_work(shape, row) for row in pairs.rows) / seconds / (1e12 * rate)
    bench.note("of the card's rate of products", share, "%", at_least=None if large else 45)
    inputs = inputs_of(bench, shape, pairs.rows, scale.prompt)
    note_memory(bench, "reward_model", RewardModelConfig(train=train), inputs, peak_gib())
    trace = None if large else bench.out / "reward_model_trace.json.gz"
    note_kernels(bench, "update", step, seconds, trace)
    if not large:
        prepare_training(model, train, 0, 0.05)
        note_runs(bench, "update with dropout 0.05", timed(step, 1, 2), "ms", 1e3)


def reward_model_against_trl(bench: Bench) -> None:
    """Pairs a second after the first step: the stage, and TRL's RewardTrainer, a process each."""
    scale = scale_of(bench)
    source = bench.work / "all"
    place = bench.work / f"against-trl-{time.monotonic_ns()}"
    compared = place / "material"
    compared.mkdir(parents=True)
    (compared / "policy").symlink_to(source / "policy")
    (compared / "preferences").symlink_to(source / "compared")
    train = _train_config(scale).model_copy(update={"checkpoint_every": 10**6})
    inputs = {name: compared / name for name in ("policy", "preferences")}
    config = RewardModelConfig(train=train)
    job = make_job(bench, place / "ours", "reward_model", config, inputs)
    run_stage(job)
    times = step_times(place / "ours")
    ours = _counted_pairs(compared, scale.batch) / (times[-1] - times[0])
    bench.note("the stage reward_model", ours, "pairs/s", beside=_gib(tensor_gib(place / "ours")))
    settings = trl_trainers.SCHEDULE | trl_trainers.BEST
    settings |= {"learning_rate": RATE, "max_length": MAX_TOKENS, "seed": 0}
    # Sixty-four pairs at once do not fit beside float32 weights and their optimiser.
    settings |= {"per_device_train_batch_size": max(1, scale.batch // 4)}
    settings |= {"gradient_accumulation_steps": 4}
    peers = _peers(bench, "1.16")
    arms = {"TRL, its best settings": settings}
    if bench.device == "cuda":
        arms["TRL, these with liger"] = settings | {"use_liger_kernel": True}
    rates = []
    for number, (name, arm) in enumerate(arms.items()):
        try:
            run = _trl_run(place / f"trl-{number}.json", "reward_model", peers, compared, arm)
        except WrongError as error:
            if number == 0:
                raise
            bench.note(name, "does not run", beside=str(error)[-120:])
            continue
        seconds = run["times"][-1] - run["times"][1]
        steps = len(run["times"]) - 1
        rates.append(scale.compared * (steps - 1) / steps / seconds)
        bench.note(name, rates[-1], "pairs/s", beside=_gib(run["gib"]))
    ratio = ours / max(rates)
    bench.note("faster by", ratio, "times", at_least=2)


def _counted_pairs(material: Path, batch: int) -> float:
    """Pairs of all steps but the first, by their tokens: nothing tells when that one began."""
    tokenizer = load_tokenizer(material / "policy" / "model")
    rows = read_pairs(material / "preferences" / "train.jsonl", tokenizer, MAX_TOKENS).rows
    lengths = [row.num_tokens for row in rows]
    first, *_ = epoch_batches(lengths, batch, 0, epoch=0)
    return len(rows) * (1 - sum(lengths[index] for index in first) / sum(lengths))


def ppo(bench: Bench) -> None:
    """Steps of the stage ppo_max, by phase."""
    scale = scale_of(bench)
    config = PPOConfig(
        num_steps=STEPS,
        rollout_batch=scale.batch,
        train_batch=scale.batch,
        critic_pretrain_steps=0,
        rehearsal_coef=0,
        temperature=1.0,
        top_p=1.0,
        max_new_tokens=scale.response,
        precision="bfloat16",
        micro_batch_tokens=MICRO_BATCH_TOKENS,
        checkpoint_every=STEPS,
    )
    path = bench.work / "phases.json"
    steps = _run_steps(bench, "ppo_max", config, _timed_phases(path))
    phases: list[dict[str, float]] = json.loads(path.read_text())
    for phase in PHASES:
        seconds = [step.get(phase, 0.0) for step in phases]
        if phase == "save":
            bench.note("save, once", max(seconds), "s")
        else:
            note_runs(bench, f"{phase}, a step", seconds, "s")
    step = note_runs(bench, "a step, without its save", steps, "s")
    factor = PPO_BEFORE / step
    bench.note("shorter than 12.4 s", factor, "times", at_least=4)
    _note_stage_memory(bench, "ppo_max", config)


def _timed_phases(path: Path) -> tuple[Wrapped, ...]:
    """PHASES with synchronised timers, which write the seconds of every step by phase to `path`.

    A step begins where it samples. A phase inside another counts as the outer one.
    """
    steps: list[dict[str, float]] = []
    inside: list[str] = []

    def around(phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*positional: Any, **named: Any) -> Any:
            if inside:
                return function(*positional, **named)
            if phase == "sample":
                steps.append(defaultdict(float))
            inside.append(phase)
            synchronise()
            start = time.perf_counter()
            try:
                return function(*positional, **named)
            finally:
                synchronise()
                inside.pop()
                steps[-1][phase] += time.perf_counter() - start
                path.write_text(json.dumps(steps))

        return watched

    return tuple(
        (owner, name, around(phase, getattr(owner, name)))
        for phase, places in PHASES.items()
        for owner, name in places
    )


def ppo_of_trl(bench: Bench) -> None:
    """TRL's PPOTrainer on the same models and prompts."""
    peers = _peers(bench, "1.10")
    if peers is None:
        raise LeftOutError("it needs TRL 1.10: --peers (make gpu-bundle has it)")
    scale = scale_of(bench)
    settings: dict[str, Any] = {"num_steps": STEPS, "batch": scale.batch}
    settings |= {"response": scale.response, "precision": "bfloat16"}
    run = _trl_run(bench.work / "trl-ppo.json", "ppo", peers, bench.work / "all", settings)
    theirs = note_runs(bench, "TRL 1.10, a step", _durations(run["times"]), "s")
    ours = bench.earlier_value("ppo", "a step, without its save")
    ratio = theirs / ours
    bench.note("faster by", ratio, "times", at_least=3)


def other_stages(bench: Bench) -> None:
    """Steps of SFT, DPO and MetaRM."""
    scale = scale_of(bench)
    train = _train_config(scale)
    stages = {
        "sft": SFTConfig(model=_policy_model(bench), train=train),
        "dpo": DPOConfig(train=train),
        "meta_rm": MetaRMConfig(
            train=train,
            num_prompts=16,
            num_responses=4,
            meta_batch=16,
            max_new_tokens=scale.response,
        ),
    }
    for stage, config in stages.items():
        steps = _run_steps(bench, stage, config)
        note_runs(bench, f"{stage}, a step of {scale.batch}", steps, "s")
        _note_stage_memory(bench, stage, config)


def _train_config(scale: Scale) -> TrainConfig:
    return TrainConfig(
        batch_size=scale.batch,
        precision="bfloat16",
        micro_batch_tokens=MICRO_BATCH_TOKENS,
        learning_rate=RATE,
    )


def _policy_model(bench: Bench) -> ModelConfig:
    return ModelConfig(base=str(bench.work / "all" / "policy" / "model"), max_length=MAX_TOKENS)


def _run_steps(
    bench: Bench, stage: str, config: StageConfig, wrapped: tuple[Wrapped, ...] = ()
) -> list[float]:
    """Run a stage on the material's few rows; returns the seconds of its steps but the first."""
    folder = bench.work / "all"
    folders = {name: folder / name for name in ("policy", "scorer", "data")}
    folders |= {"reference": folder / "policy", "preferences": folder / "few"}
    inputs = {name: path for name, path in folders.items() if name in SPECS[stage].inputs}
    work = bench.work / f"steps {stage}"
    run_stage(make_job(bench, work, stage, config, inputs), wrapped=wrapped)
    return _durations(step_times(work))


def _durations(ends: list[float]) -> list[float]:
    return [later - sooner for sooner, later in pairwise(ends)]


def _note_stage_memory(bench: Bench, stage: str, config: StageConfig) -> None:
    """Note what a stage of `_run_steps` had in tensors, beside its plan."""
    folder = bench.work / "all"
    tokenizer = load_tokenizer(folder / "policy" / "model")
    rows = read_pairs(folder / "few" / "train.jsonl", tokenizer).rows
    inputs = inputs_of(bench, shape_of(_policy_model(bench)), rows, scale_of(bench).prompt)
    note_memory(bench, stage, config, inputs, tensor_gib(bench.work / f"steps {stage}"))


@torch.no_grad()
def sampling(bench: Bench) -> None:
    """Tokens a second of responses that do not end, by the project and by transformers."""
    scale = begin(bench)
    folder = bench.work / "all" / "policy" / "model"
    device, length = current_device(), scale.response
    tokenizer: Any = SimpleNamespace(pad_token_id=0, eos_token_id=-1)
    policy = load_policy(folder, is_frozen=True).eval()
    peer = load_pretrained(AutoModelForCausalLM, folder, dtype=torch.bfloat16).eval().to(device)
    generator = torch.Generator("cpu").manual_seed(0)
    settings = GenerationConfig(
        do_sample=True,
        top_k=0,
        max_new_tokens=length,
        min_new_tokens=length,
        pad_token_id=0,
        eos_token_id=-1,
    )

    def sample_rows(prompts: torch.Tensor, tokens: int = length) -> object:
        rows = prompts.tolist()
        return sample(policy, tokenizer, rows, Sampling(1.0, tokens), torch.Generator("cpu"))

    def generate(prompts: torch.Tensor) -> object:
        ids = prompts.to(device)
        mask = torch.ones_like(ids)
        return peer.generate(ids, attention_mask=mask, generation_config=settings)

    def generate_batch(prompts: torch.Tensor) -> object:
        if bench.device == "cpu":
            raise LeftOutError("its cache would take all memory of this computer")
        return peer.generate_batch(prompts.tolist(), generation_config=settings)

    batches = {
        rows: torch.randint(10, VOCABULARY, (rows, scale.prompt), generator=generator, device="cpu")
        for rows in scale.rows
    }
    rows, prompts = next(iter(batches.items()))
    watched = partial(sample_rows, prompts, TRACED_TOKENS)
    middle = median(timed(watched, 1, 3))
    trace = bench.out / "sampling_trace.json.gz"
    note_kernels(bench, f"{rows} rows, {TRACED_TOKENS} tokens", watched, middle, trace)
    rates = _rates(bench, OWN_LOOP, sample_rows, batches, length)
    torch.use_deterministic_algorithms(False)  # which stages may ask for
    theirs = _rates(bench, "generate", generate, batches, length)
    if 256 in rates and 256 in theirs:
        ratio = rates[256] / theirs[256]
        bench.note("256 rows: faster by", ratio, "times", at_least=5)
    _rates(bench, "generate_batch", generate_batch, batches, length)


def _rates(
    bench: Bench,
    name: str,
    sampler: Callable[[torch.Tensor], object],
    batches: dict[int, torch.Tensor],
    length: int,
) -> dict[int, float]:
    """Tokens a second by the number of rows; none of a peer that does not run here."""
    rates = {}
    for rows, prompts in batches.items():
        try:
            seconds = timed(partial(sampler, prompts), 1, 2)
        except Exception as error:  # of a peer: what this card or release does not have
            if name == OWN_LOOP:
                raise
            bench.note(f"{rows} rows: {name}", "does not run", beside=f"{error}"[:120])
            continue
        tokens = [rows * length / run for run in seconds]
        rates[rows] = note_runs(bench, f"{rows} rows: {name}", tokens, "tokens/s")
    return rates


def log_probs(bench: Bench) -> None:
    """Log-probabilities of tokens and their gradient: own, trl.kernels, liger; error to float64."""
    scale = begin(bench)
    if (peers := _peers(bench, "1.16")) is not None:
        sys.path.insert(0, peers)
    count, vocabulary = scale.logits
    torch.manual_seed(0)
    size: dict[str, Any] = {"dtype": torch.bfloat16, "device": current_device()}
    hidden = torch.randn(count, scale.shape["hidden_size"], **size).requires_grad_()
    head = (torch.randn(vocabulary, scale.shape["hidden_size"], **size) / 8).requires_grad_()
    tokens = torch.randint(0, vocabulary, (count,), device=current_device())

    def run_project() -> torch.Tensor:
        return token_logprobs(NarrowProduct.apply(hidden, head), tokens, 1.0)[0]

    def run_trl() -> torch.Tensor:
        from trl.kernels import ChunkedLogProbFunction

        result: torch.Tensor = ChunkedLogProbFunction.apply(
            hidden, head, None, tokens, 1.0, 8192, None, 1.0, ()
        )[0]
        return result

    def run_liger() -> torch.Tensor:
        liger = importlib.import_module("liger_kernel.transformers.functional")
        loss = liger.liger_fused_linear_cross_entropy(hidden, head, tokens, reduction="none")
        return -(loss[0] if isinstance(loss, tuple) else loss)

    places = torch.cat(
        [
            (part.double() @ head.detach().double().T).log_softmax(1).gather(1, own_tokens[:, None])
            for part, own_tokens in zip(hidden.detach().split(256), tokens.split(256), strict=True)
        ]
    )[:, 0]
    functions = {"own": run_project, "trl.kernels": run_trl, "liger": run_liger}
    for name, function in functions.items():
        try:
            gap = float((function().detach().double() - places).norm() / places.norm())
            if bench.device == "cuda":
                torch.cuda.reset_peak_memory_stats()
            seconds = timed(lambda f=function: f().sum().backward(), 1, 3)  # type: ignore[misc]
        except Exception as error:
            if name == "own":
                raise
            bench.note(name, "does not run", beside=f"{error!r}"[:120])
            continue
        beside = f"error {gap:.1e} {_gib(peak_gib())}".strip()
        note_runs(bench, name, seconds, "ms", 1e3, beside=beside)


def _peers(bench: Bench, trl: str) -> str | None:
    """A folder with a release of TRL and what it needs, unpacked from --peers, if there is one."""
    if bench.request["peers"] is None:
        return None
    folder = bench.work / f"peers-{trl}"
    for wheel in sorted(Path(bench.request["peers"]).glob("*.whl")):
        if not wheel.name.startswith("trl-") or wheel.name.startswith(f"trl-{trl}."):
            zipfile.ZipFile(wheel).extractall(folder)
    return str(folder) if (folder / "trl").exists() else None


def _trl_run(
    output: Path, trainer: str, peers: str | None, material: Path, settings: dict[str, Any]
) -> dict[str, Any]:
    """What `trl_trainers` writes, from another process that has `peers` first on its path.

    LeftOutError for a library that is not here, WrongError for what else it fails with.
    """
    path = os.pathsep.join(filter(None, [peers, *sys.path]))
    python = [sys.executable, "-P", "-m", trl_trainers.__name__]
    done = subprocess.run(
        [*python, trainer, str(material), str(output), json.dumps(settings)],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    print(done.stdout[-4000:])
    if done.returncode != 0:
        last = "".join([line for line in done.stdout.splitlines() if line.strip()][-1:])
        error = LeftOutError if last.startswith("ModuleNotFoundError") else WrongError
        raise error(f"exit status {done.returncode}: {last}")
    result: dict[str, Any] = json.loads(output.read_text())
    return result


def _gib(used: float | None) -> str:
    return "" if used is None else f"{used:.1f} GiB"
