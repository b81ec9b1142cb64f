"""On a GPU, at the shape of Qwen2.5-0.5B with random weights: attention, training, sampling.

    python -m tests.bench.gpu --pairs hh-harmless.jsonl.gz
    python -m tests.bench.gpu --pairs hh-harmless.jsonl.gz --part attention update

Attention over packed rows, in each precision, against float64. An update of a reward model.
Responses to prompts of one length, by this project's decoding loop and by transformers' `generate`.
An epoch of reward-model training on real pairs, by the stage `reward_model` and by TRL's
RewardTrainer with the same tokens, batches, optimiser and schedule; of both the first step is left
out. Samplers and trainers are a process each, in turns. Prints the card, its rate of bfloat16
matrix products, and tables: pairs or tokens a second (median, least, most), the share of that rate
that useful work makes, memory.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import mean, median
from types import SimpleNamespace

import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from tests.bench.material import make_material, training_work
from tests.bench.reward_model import BEST, SAME
from trimtab.models.nets import attention
from trimtab.models.nets.fused import with_fused_layers
from trimtab.models.nets.generation import Sampling, decode
from trimtab.models.nets.loading import load_tokenizer, save_model
from trimtab.models.nets.packing import Candidates, pack
from trimtab.models.nets.precision import set_product_precision
from trimtab.models.nets.trunk import hidden_states
from trimtab.models.training import distributed
from trimtab.models.training.batching import epoch_batches
from trimtab.models.training.data import read_pairs
from trimtab.models.training.entry import _make_deterministic

ROOT = Path(__file__).resolve().parents[2]
BATCH, RATE, MAX_TOKENS, MICRO_BATCH_TOKENS = 64, 1e-5, 1024, 16_384
LAYERS, HIDDEN, INNER, HEADS, KEY_HEADS, VOCABULARY = 24, 896, 4864, 14, 2, 151_936
PROMPT, RESPONSE, ROWS = 128, 128, 64
PARTS = ("attention", "update", "sampling", "reward-model")
SAMPLERS = ("trimtab", "generate")
# Of rows, the tokens of the prompt and of each response.
LENGTHS_CHECKED = ((100, 50, 60), (7, 1, 300, 2), (512, 200), (1, 1, 1))
LENGTHS_TIMED = tuple(
    (150 + 13 * row % 97, 120 + 7 * row % 61, 90 + 11 * row % 53) for row in range(40)
)
TRL = SAME | {
    # Sixty-four pairs at once do not fit beside float32 weights and their optimiser.
    "per_device_train_batch_size": BATCH // 4,
    "gradient_accumulation_steps": 4,
    "learning_rate": RATE,
    "max_length": MAX_TOKENS,
    "seed": 0,
}
ARMS: dict[str, dict[str, object]] = {"TRL, its best settings": BEST, "TRL, its defaults": {}}


def main() -> None:
    """Run each part in turn, print."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.gpu")
    parser.add_argument("--pairs", required=True, help="preference pairs: a file or a hub id")
    parser.add_argument("--limit", type=int, default=1024, help="train on the first so many")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--part", choices=PARTS, nargs="+", default=PARTS, help="default: all")
    parser.add_argument("--sample", choices=SAMPLERS, help=argparse.SUPPRESS)
    parser.add_argument("--material", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.sample:
        print(sampled(options.sample, options.material))
        return
    distributed.use_gpu()
    rate = matrix_rate()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}; ", end="")
    print(f"products of bfloat16: {rate / 1e12:.0f} TFLOP/s", flush=True)
    if "attention" in options.part:
        print(attention_text(), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        material = Path(folder) / "material"
        make_material(options.pairs, material, options.limit)
        make_model(material / "policy" / "model")
        if "update" in options.part:
            print(update_text(material, rate), flush=True)
        torch.cuda.empty_cache()  # what follows has processes of its own
        if "sampling" in options.part:
            print(sampling_text(material, options.runs), flush=True)
        if "reward-model" in options.part:
            print(reward_model_text(material, Path(folder), options.runs, rate))


def attention_text() -> str:
    """Errors of attention over packed rows against float64, and its time, as two tables."""
    lines = ["\n| attention | output | queries | keys | values |", "|---|---|---|---|---|"]
    for name, (own, _, errors) in attention_runs(LENGTHS_CHECKED).items():
        assert own.isfinite().all()
        lines.append(f"| {name} | " + " | ".join(f"{error:.1e}" for error in errors) + " |")
    tokens = sum(map(sum, LENGTHS_TIMED))
    lines += [f"\n| a layer, {tokens:,} tokens | forward and backward, ms |", "|---|---|"]
    for name, (_, seconds, _) in attention_runs(LENGTHS_TIMED).items():
        lines.append(f"| {name} | {seconds * 1e3:.1f} |")
    return "\n".join(lines)


def attention_runs(
    lengths: tuple[tuple[int, ...], ...],
) -> dict[str, tuple[Tensor, float, list[float]]]:
    """Output, seconds of the last of four turns, relative errors of output and gradients."""
    torch.manual_seed(0)
    tokens, size = sum(map(sum, lengths)), HIDDEN // HEADS
    weights = torch.randn(tokens, HEADS, size, device="cuda")
    whole = [
        torch.randn(1, heads, tokens, size, device="cuda").bfloat16().double()
        for heads in (HEADS, KEY_HEADS, KEY_HEADS)
    ]

    def rows(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        mask = attention.further_mask(lengths, query.dtype, query.device)
        found = attention._attend_rows(query, key, value, mask, 0.0, None, lengths)
        return found.transpose(1, 2)[0]

    def flash(*parts: Tensor) -> Tensor:
        sequences = attention.sequences_of(lengths, parts[0].device)
        query, key, value = (each[0].transpose(0, 1) for each in parts)
        kernel = attention.varlen.varlen_attn
        return attention.attend_sequences(query, key, value, sequences, None, kernel)

    arms: dict[str, tuple[Callable[..., Tensor], torch.dtype]] = {
        "a call a row, float64": (rows, torch.float64),
        "a call a row, float32": (rows, torch.float32),
        "a call a row, bfloat16": (rows, torch.bfloat16),
        "flash attention, bfloat16": (flash, torch.bfloat16),
    }
    found: dict[str, tuple[Tensor, float, list[float]]] = {}
    exact: list[Tensor] = []
    for name, (attend, dtype) in arms.items():
        for _ in range(4):
            parts = [each.to(dtype, copy=True).requires_grad_() for each in whole]
            torch.cuda.synchronize()
            start = time.perf_counter()
            output = attend(*parts)
            output.backward(weights.to(dtype))
            torch.cuda.synchronize()
            seconds = time.perf_counter() - start
        values = [output.detach(), *(each.grad for each in parts if each.grad is not None)]
        exact = exact or values
        errors = [
            float((mine.double() - other).norm() / other.norm())
            for mine, other in zip(values, exact, strict=True)
        ]
        found[name] = output.detach(), seconds, errors
    return found


def update_text(material: Path, rate: float) -> str:
    """Time of one micro batch's update of a reward model in bfloat16, as a line."""
    rows = [
        Candidates([7] * prompt, tuple([8] * each for each in responses))
        for prompt, *responses in LENGTHS_TIMED
    ]
    set_product_precision("bfloat16")
    model = AutoModelForSequenceClassification.from_pretrained(
        material / "policy" / "model", num_labels=1, dtype=torch.float32
    )
    model = with_fused_layers(model).cuda()
    optimiser = torch.optim.AdamW(model.parameters(), lr=RATE, fused=True)
    times = []
    for _ in range(8):
        torch.cuda.synchronize()
        start = time.perf_counter()
        batch = pack(rows)
        model.score(hidden_states(model, batch)[batch.response_end]).square().mean().backward()
        optimiser.step()
        optimiser.zero_grad()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    seconds, work = median(times[3:]), sum(map(qwen_work, rows))
    tokens = sum(row.num_tokens for row in rows)
    return (
        f"\nreward model, an update of {tokens:,} tokens: {seconds * 1e3:.0f} ms, "
        f"{tokens / seconds:,.0f} tokens/s, {work / seconds / rate:.0%} of the rate of products"
    )


def sampling_text(material: Path, runs: int) -> str:
    """Both samplers in turns, as a table."""
    samples: dict[str, list[float]] = {name: [] for name in SAMPLERS}
    for _ in range(runs):
        for name, rates in samples.items():
            command = [sys.executable, "-m", "tests.bench.gpu", "--pairs", "none"]
            command += ["--sample", name, "--material", str(material)]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            rates.append(float(done.stdout.splitlines()[-1]))
    lines = [f"\n| sampling, {ROWS} prompts | tokens/s | least to most |", "|---|---|---|"]
    for name, rates in samples.items():
        lines.append(f"| {name} | {median(rates):,.0f} | {min(rates):,.0f} to {max(rates):,.0f} |")
    return "\n".join(lines)


def reward_model_text(material: Path, folder: Path, runs: int, rate: float) -> str:
    """Reward models in turns, as a table; rate: of matrix products, a second."""
    tokenizer = load_tokenizer(material / "policy" / "model")
    rows = read_pairs(material / "preferences" / "train.jsonl", tokenizer, MAX_TOKENS).rows
    found: dict[str, list[tuple[float, str]]] = {"Trimtab": [], **{name: [] for name in ARMS}}
    for turn in range(runs):
        found["Trimtab"].append(ours(material, folder / f"{turn}-ours", rows))
        for number, (name, settings) in enumerate(ARMS.items()):
            place = folder / f"{turn}-{number}"
            found[name].append(theirs(material, place, settings, len(rows)))
    lines = [f"\n| reward model, {len(rows)} pairs | pairs/s | least to most |"]
    lines[0] += " Trimtab is faster by | of the rate of products | in tensors |"
    lines.append("|---|---|---|---|---|---|")
    work = mean(map(qwen_work, rows))
    for name, each in found.items():
        rates = [one for one, _ in each]
        pairs = zip(found["Trimtab"], rates, strict=True)
        ratio = median(mine / one for (mine, _), one in pairs)
        lines.append(
            f"| {name} | {median(rates):.1f} | {min(rates):.1f} to {max(rates):.1f} | {ratio:.2f} "
            f"| {median(rates) * work / rate:.0%} | {each[-1][1]} |"
        )
    return "\n".join(lines)


def make_model(folder: Path) -> None:
    """In place of the small Llama: Qwen2.5-0.5B's shape, 494 million parameters, random weights."""
    tokenizer = load_tokenizer(folder)
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=INNER,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KEY_HEADS,
        max_position_embeddings=32_768,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.device("cuda"):
        model = Qwen2ForCausalLM(config)
    save_model(model, tokenizer, folder)


def qwen_work(row: Candidates) -> float:
    """Floating-point operations of a step on a packed pair."""
    keys = KEY_HEADS * HIDDEN // HEADS
    weights = 2 * HIDDEN**2 + 2 * HIDDEN * keys + 3 * HIDDEN * INNER
    return training_work(row, LAYERS, HIDDEN, weights)


def matrix_rate(size: int = 8192, count: int = 20) -> float:
    """Floating-point operations a second of bfloat16 products of square matrices."""
    left, right = (torch.randn(size, size, device="cuda", dtype=torch.bfloat16) for _ in "ab")
    for _ in range(3):
        left @ right
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(count):
        left @ right
    torch.cuda.synchronize()
    return count * 2 * size**3 / (time.perf_counter() - start)


def ours(material: Path, work: Path, rows: list[Candidates]) -> tuple[float, str]:
    """Pairs per second of the stage `reward_model`, as a run starts it, and its memory."""
    (work / "output").mkdir(parents=True)
    train = {"batch_size": BATCH, "learning_rate": RATE, "precision": "bfloat16"}
    train |= {"micro_batch_tokens": MICRO_BATCH_TOKENS, "checkpoint_every": 10**6}
    job = {
        "stage": "reward_model",
        "config": {"seed": 0, "train": train},
        "inputs": {name: str(material / name) for name in ("policy", "preferences")},
        "workdir": str(work),
        "gpus": ["0"],
    }
    (work / "job.json").write_text(json.dumps(job))
    command = [sys.executable, "-m", "trimtab.models.training.entry", str(work / "job.json")]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    lines = map(json.loads, (work / "metrics.jsonl").read_text().splitlines())
    times = [line["time"] for line in lines if "metrics" in line]
    # Nothing tells when its first step began: what is counted is the tokens of the others.
    first, *_ = epoch_batches([row.num_tokens for row in rows], BATCH, 0, epoch=0)
    uncounted = sum(rows[index].num_tokens for index in first)
    share = 1 - uncounted / sum(row.num_tokens for row in rows)
    memory = re.search(r"([\d.]+ GiB) in tensors", done.stdout)
    return share * len(rows) / (times[-1] - times[0]), memory[1] if memory else ""


def theirs(
    material: Path, work: Path, settings: dict[str, object], count: int
) -> tuple[float, str]:
    """Pairs per second of RewardTrainer after its first step, and its memory."""
    work.mkdir(parents=True)
    output = work / "steps.json"
    script = Path(__file__).with_name("trl_reward_model.py")
    command = [sys.executable, str(script), str(material), str(output), json.dumps(TRL | settings)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    times = json.loads(output.read_text())["times"]  # of the first step's begin, and all ends
    memory = re.search(r"([\d.]+ GiB) in tensors", done.stdout)
    steps = len(times) - 1
    return count * (steps - 1) / steps / (times[-1] - times[1]), memory[1] if memory else ""


@torch.no_grad()
def sampled(arm: str, material: Path) -> float:
    """Tokens per second of ROWS responses of RESPONSE tokens, float32 weights, TF32 products."""
    distributed.use_gpu()
    _make_deterministic(1)
    torch.set_float32_matmul_precision("high")
    folder = material / "policy" / "model"
    tokenizer = SimpleNamespace(pad_token_id=0, eos_token_id=-1)  # no response ends
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).to("cuda").eval()
    generator = torch.Generator("cpu").manual_seed(0)
    prompts = torch.randint(10, 8000, (ROWS, PROMPT), generator=generator, device="cpu").tolist()
    draws = torch.rand(ROWS, RESPONSE, generator=generator, device="cpu").cuda()
    times = []
    for _ in range(3):
        torch.cuda.synchronize()
        start = time.perf_counter()
        if arm == "trimtab":
            decode(model, tokenizer, prompts, Sampling(1.0, RESPONSE), draws)
        else:
            model.generate(
                torch.tensor(prompts, device="cuda"),
                attention_mask=torch.ones(ROWS, PROMPT, dtype=torch.long, device="cuda"),
                do_sample=True,
                top_k=0,
                min_new_tokens=RESPONSE,
                max_new_tokens=RESPONSE,
            )
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return ROWS * RESPONSE / min(times[1:])


if __name__ == "__main__":
    main()
