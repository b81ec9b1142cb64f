"""Episodes per second: this project's stage `ppo_max`, and TRL's PPO, GRPO or RLOO trainer.

    pip install --no-deps --target .bench/trl-1.10 trl==1.10.0   (the last release that has PPO)
    python -m tests.bench.ppo --pairs Anthropic/hh-rlhf/harmless-base
    python -m tests.bench.ppo --pairs Anthropic/hh-rlhf/harmless-base --objective grpo   (or rloo)

The same small Llama as policy, reference, critic and scorer, prompts of at most `--max-prompt`
tokens (48 cuts most, so that there is little to pad), responses of 48 (random weights do not
end theirs), a batch of 64, one update a batch; of GRPO and RLOO 8 responses to each of 8 prompts.
Each is a process of its own, in turns. Prints a table: episodes per second (median, least, most)
over all steps but the first.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from tests.bench.material import small_llama
from trimtab.models.config.policy import GRPO, RLOO
from trimtab.models.gpu_check.material import byte_pair_tokenizer, pairs_of
from trimtab.models.nets.loading import load_tokenizer, new_scorer, save_model

ROOT = Path(__file__).resolve().parents[2]
BATCH, RESPONSE, STEPS = 64, 48, 6
NUM_RESPONSES, KL_COEF = 8, 0.05  # of GRPO and RLOO
OBJECTIVES = {"grpo": GRPO, "rloo": RLOO}
WIDTH, LAYERS = 128, 4  # 1.9 million parameters


def main() -> None:
    """Run each in turn, print."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.ppo")
    parser.add_argument("--pairs", required=True, help="HH's harmless pairs: a file or a hub id")
    parser.add_argument("--max-prompt", type=int, default=48, help="tokens of the longest prompt")
    parser.add_argument("--objective", choices=["ppo", *OBJECTIVES], default="ppo")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--peer", type=Path, default=ROOT / ".bench/trl-1.10", help="where TRL is")
    options = parser.parse_args()
    # TRL's default is bfloat16.
    arms: dict[str, Callable[[Path, Path], list[float]]] = {
        f"{name}, {precision}": partial(arm, objective=options.objective, precision=precision)
        for precision in ("bfloat16", "float32")
        for name, arm in (("Trimtab", ours), ("TRL", partial(theirs, peer=options.peer)))
    }
    rates: dict[str, list[float]] = {name: [] for name in arms}
    with tempfile.TemporaryDirectory() as folder:
        material = Path(folder) / "material"
        make_material(options.pairs, material, options.max_prompt)
        for turn in range(options.runs):
            for number, (name, arm) in enumerate(arms.items()):
                work = Path(folder) / f"{turn}-{number}"
                work.mkdir()
                times = arm(material, work)
                rates[name].append(BATCH * (len(times) - 1) / (times[-1] - times[0]))
                print(f"{turn} {name}: {rates[name][-1]:.1f}", file=sys.stderr, flush=True)
    print("| | episodes/s | least to most | Trimtab is faster by |")
    print("|---|---|---|---|")
    for name, values in rates.items():
        first = rates[name.replace("TRL", "Trimtab")]
        ratio = median(mine / other for mine, other in zip(first, values, strict=True))
        spread = f"{min(values):.1f} to {max(values):.1f}"
        print(f"| {name} | {median(values):.1f} | {spread} | {ratio:.2f} |")


def make_material(source: str, folder: Path, max_prompt: int) -> None:
    """`folder`/policy, scorer and data/policy_prompts.jsonl: beginnings of real prompts.

    A beginning is of at most `max_prompt` tokens.
    """
    texts = [pair["prompt"] for pair in pairs_of(source)]
    tokenizer = byte_pair_tokenizer(texts)
    model = small_llama(tokenizer, WIDTH, LAYERS, max_tokens=max_prompt + 4 * RESPONSE)
    for name in ("policy", "scorer"):
        (folder / name).mkdir(parents=True)
    save_model(model, tokenizer, folder / "policy" / "model")
    save_model(new_scorer(folder / "policy" / "model", 0), tokenizer, folder / "scorer/model")
    tokenizer = load_tokenizer(folder / "policy" / "model")
    (folder / "data").mkdir()
    with (folder / "data" / "policy_prompts.jsonl").open("w") as stream:
        for text in texts[: BATCH * STEPS]:
            short = tokenizer.decode(tokenizer(text)["input_ids"][:max_prompt])
            stream.write(json.dumps({"prompt": short}) + "\n")


def ours(material: Path, work: Path, objective: str, precision: str) -> list[float]:
    """The stage `ppo_max`, as a run starts it; returns when each step ended."""
    (work / "output").mkdir()
    inputs = {name: str(material / name) for name in ("policy", "scorer", "data")}
    config = {
        "num_steps": STEPS,
        "rollout_batch": BATCH,
        "train_batch": BATCH,
        "critic_pretrain_steps": 0,
        "rehearsal_coef": 0,
        "temperature": 0.8,
        "top_p": 1.0,
        "max_new_tokens": RESPONSE,
        "precision": precision,
    }
    if objective in OBJECTIVES:
        groups = OBJECTIVES[objective].model_copy(update={"num_responses": NUM_RESPONSES})
        config |= {"objective": groups.model_dump(), "critic_init": "policy", "kl_coef": KL_COEF}
    job = {
        "stage": "ppo_max",
        "config": config,
        "inputs": {**inputs, "reference": inputs["policy"]},
        "workdir": str(work),
        "num_threads": 1,
        "num_ranks": 2,
    }
    (work / "job.json").write_text(json.dumps(job))
    command = [sys.executable, "-m", "trimtab.models.training.entry", str(work / "job.json")]
    subprocess.run(command, check=True, cwd=ROOT, stderr=subprocess.DEVNULL)
    rows = [json.loads(line) for line in (work / "metrics.jsonl").read_text().splitlines()]
    return [row["time"] for row in rows if "metrics" in row]


def theirs(material: Path, work: Path, objective: str, precision: str, peer: Path) -> list[float]:
    """TRL's trainer, in a process of its own; returns when each step ended."""
    output = work / "steps.json"
    settings: dict[str, Any]
    settings = {"num_steps": STEPS, "batch": BATCH, "response": RESPONSE, "precision": precision}
    if objective in OBJECTIVES:
        settings = {
            "per_device_train_batch_size": BATCH,
            "num_generations": NUM_RESPONSES,
            "max_completion_length": RESPONSE,
            "max_steps": STEPS,
            "temperature": 0.8,
            "beta": KL_COEF,
            "learning_rate": 5e-7,
            "gradient_checkpointing": False,  # which makes it faster
            "bf16": precision == "bfloat16",
        }
    command = [sys.executable, "-m", "trimtab.models.gpu_check.trl_trainers", objective]
    command += [str(material), str(output), json.dumps(settings)]
    first = str(peer) if objective == "ppo" else None
    path = os.pathsep.join(filter(None, [first, os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path}
    subprocess.run(command, check=True, env=environment, cwd=ROOT, stdout=subprocess.DEVNULL)
    times: list[float] = json.loads(output.read_text())["times"]
    return times[-STEPS:]


if __name__ == "__main__":
    main()
