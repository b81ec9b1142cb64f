"""Ranks that share out batches learn what one learns, stop together and go on in any number."""

from __future__ import annotations

import filecmp
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.models.jobs import job, kill_a_rank, stopped_at
from trimtab.flows.config.config import ppo_of
from trimtab.infra.processes.launch import TrainerError, TrainerKilledError, launch
from trimtab.models.data.records import read_rows
from trimtab.models.nets import counts
from trimtab.models.training import distributed
from trimtab.models.training.progress import read_metrics


@pytest.mark.slow
def test_two_ranks_equal_one_and_go_on_where_they_stopped(
    tmp_path: Path, smoke_config: Any, world: Path, policy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = read_metrics(policy.parent / "metrics.jsonl")
    launch(job(tmp_path / "two", smoke_config.sft, world))
    both = read_metrics(tmp_path / "two" / "metrics.jsonl")
    assert [row["step"] for row in both] == [row["step"] for row in alone]
    for ours, theirs in zip(both[:5], alone, strict=False):
        assert ours == pytest.approx(theirs, rel=1e-4)
    assert both[-1] == pytest.approx(alone[-1], rel=0.05)

    stopped, config = tmp_path / "stopped", smoke_config.sft
    with stopped_at(7, monkeypatch):
        launch(job(stopped, config, world))
    launch(job(stopped, config, world))
    ours = load_file(stopped / "output/model/model.safetensors")
    theirs = load_file(tmp_path / "two/output/model/model.safetensors")
    assert all(bool((ours[name] == theirs[name]).all()) for name in theirs)

    fewer = tmp_path / "fewer"
    with stopped_at(7, monkeypatch):
        launch(job(fewer, config, world))
    launch(job(fewer, config, world, num_ranks=1))
    rows = read_metrics(fewer / "metrics.jsonl")
    assert [row["step"] for row in rows] == [row["step"] for row in alone]
    assert rows[-1] == pytest.approx(alone[-1], rel=0.05)


@pytest.mark.slow
def test_meta_rm_on_two_ranks_equals_that_on_one(
    tmp_path: Path,
    smoke_config: Any,
    world: Path,
    policy: Path,
    comparisons: Path,
    advantage_model: Path,
) -> None:
    """Descent and ascent are shared out both, and what is scored before and after."""
    config = smoke_config.rounds.meta_rm.model_copy(update={"meta_batch": 5})
    inputs = {"scorer": advantage_model, "policy": policy, "preferences": comparisons}
    for number in (1, 2):
        folder = tmp_path / str(number)
        launch(job(folder, config, world, number, stage="meta_rm", inputs=inputs))
    alone, both = (read_metrics(tmp_path / name / "metrics.jsonl") for name in ("1", "2"))
    assert len(alone) == len(both) > 4
    for ours, theirs in zip(both[:5], alone, strict=False):
        assert ours == pytest.approx(theirs, rel=1e-3, abs=1e-6)
    for name, measure in (("scores.jsonl", "chosen_score"), ("spreads.jsonl", "after")):
        one, two = (read_rows(tmp_path / number / "output" / name) for number in ("1", "2"))
        assert [row[measure] for row in two] == pytest.approx(
            [row[measure] for row in one], rel=0.05, abs=0.02
        )


@pytest.mark.slow
@pytest.mark.parametrize("has_several", [False, True], ids=["one scorer", "several"])
def test_ppo_on_two_ranks_equals_that_on_one_and_goes_on_where_it_stopped(
    tmp_path: Path,
    smoke_config: Any,
    world: Path,
    policy: Path,
    advantage_model: Path,
    several_scorers: dict[str, Path],
    monkeypatch: pytest.MonkeyPatch,
    has_several: bool,
) -> None:
    # Of 9 responses a rollout, 4 a step: the last step has one, fewer than ranks.
    changes = {"rollout_batch": 9, "train_batch": 4, "num_steps": 5, "ptx_coef": 0.1}
    tricks = {"advantage_clip": 0.5, "entropy_coef": 0.1, "entropy_clip": 2.0}
    config = smoke_config.ppo.model_copy(update=changes | (tricks if has_several else {}))
    scorers = several_scorers if has_several else {"scorer": advantage_model}
    inputs = {"policy": policy, "reference": policy, **scorers}

    def start(folder: Path, num_ranks: int) -> Path:
        launch(job(folder, config, world, num_ranks, "ppo_max", inputs))
        return folder / "output"

    alone, both = start(tmp_path / "alone", 1), start(tmp_path / "both", 2)
    rows, others = (read_metrics(output / "metrics.jsonl") for output in (both, alone))
    assert [row["step"] for row in rows] == [row["step"] for row in others]
    names = ("score", "kl", "policy_loss", "value_loss", "ptx_loss", "value_grad_norm")
    of_tricks = ("ensemble_std", "safety_fraction", "policy_entropy_loss")
    for ours, theirs in zip(rows[:2], others, strict=False):
        assert ("ensemble_std" in ours) == has_several
        for name in (*names, *of_tricks):
            if name in theirs:
                assert ours[name] == pytest.approx(theirs[name], rel=1e-3, abs=1e-5), name
    with stopped_at(2, monkeypatch):
        start(tmp_path / "stopped", 2)
    stopped = start(tmp_path / "stopped", 2)
    for name in ("model/model.safetensors", "critic/model.safetensors", "rollouts.jsonl"):
        assert (stopped / name).read_bytes() == (both / name).read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("arm", ["rloo", "grpo"])
def test_groups_on_two_ranks_are_learned_as_on_one(
    tmp_path: Path,
    smoke_config: Any,
    world: Path,
    policy: Path,
    advantage_model: Path,
    arm: str,
) -> None:
    # Of 5 prompts a rollout, 2 an update: the last has one, fewer than ranks.
    changes = {"rollout_batch": 20, "train_batch": 8, "num_steps": 3, "entropy_coef": 0.1}
    config = ppo_of(smoke_config, arm).model_copy(update=changes)
    inputs = {"policy": policy, "reference": policy, "scorer": advantage_model}
    rows = {}
    for number in (1, 2):
        folder = tmp_path / str(number)
        launch(job(folder, config, world, number, "ppo_max", inputs))
        rows[number] = read_metrics(folder / "output" / "metrics.jsonl")
    assert len(rows[1]) == len(rows[2]) == 3
    for ours, theirs in zip(rows[2][:2], rows[1], strict=False):
        assert ours.keys() == theirs.keys()
        for name, value in theirs.items():
            assert ours[name] == pytest.approx(value, rel=2e-3, abs=1e-5), name


@pytest.mark.slow
def test_two_ranks_sample_and_score_what_one_does(
    tmp_path: Path,
    smoke_config: Any,
    world: Path,
    policy: Path,
    advantage_model: Path,
) -> None:
    def both(stage: str, config: Any, **inputs: Path) -> list[Path]:
        folders = [tmp_path / f"{stage}_{number}" for number in (1, 2)]
        for number, folder in enumerate(folders, start=1):
            launch(job(folder, config, world, number, stage, inputs))
        return [folder / "output" for folder in folders]

    # 160 prompts with 9 answers each: more than one batch.
    config = smoke_config.comparisons.model_copy(update={"num_responses": 9})
    alone, shared = both("comparisons", config, policy=policy)
    names = sorted(path.name for path in alone.iterdir())
    assert filecmp.cmpfiles(alone, shared, names, shallow=False) == (names, [], [])

    kept = both("rehearsal", smoke_config.rehearsal, policy=policy, scorer=advantage_model)
    one, two = (read_rows(folder / "rehearsal.jsonl") for folder in kept)
    assert [row["response"] for row in one] == [row["response"] for row in two]

    scorers = {"scorer": advantage_model, "judge_0": advantage_model, "judge_1": advantage_model}
    folders = both("evaluate", smoke_config.evaluate, policy=policy, reference=policy, **scorers)
    alone_rows, shared_rows = (read_rows(folder / "responses.jsonl") for folder in folders)
    assert [row["response"] for row in alone_rows] == [row["response"] for row in shared_rows]
    for ours, theirs in zip(shared_rows, alone_rows, strict=True):
        for measure in ("logprob", "kl", "score", "judge_score"):
            assert ours[measure] == pytest.approx(theirs[measure], rel=1e-4, abs=1e-4)


@pytest.mark.slow
def test_a_rank_that_is_killed_ends_the_others(
    tmp_path: Path, smoke_config: Any, world: Path
) -> None:
    thread = kill_a_rank(tmp_path)
    with pytest.raises(TrainerKilledError, match="out-of-memory killer"):
        launch(job(tmp_path, smoke_config.sft, world, num_epochs=100))
    thread.join()


@pytest.mark.slow
def test_a_loss_that_is_not_finite_is_named(tmp_path: Path, smoke_config: Any, world: Path) -> None:
    path = job(tmp_path, smoke_config.sft, world, learning_rate=100.0, weight_decay=100.0)
    with pytest.raises(TrainerError, match="NotFiniteError: .* became nan at step"):
        launch(path)


def test_shares_are_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    shares = {}
    for number in range(3):
        monkeypatch.setattr(distributed, "_ranks", distributed._Ranks(3, number))
        shares[number] = distributed.rank_batch([5, 3, 8, 1, 9])
        assert distributed.rank_batch([4, 2]) == [4, 2]  # too few for all: everybody's
    assert shares == {0: [5, 1], 1: [3, 9], 2: [8]}


@pytest.mark.slow
def test_three_ranks_add_up_more_than_a_window_holds() -> None:
    code = (
        "import torch\n"
        "from trimtab.models.training import distributed as ranks\n"
        "ranks._WINDOW = 5\n"
        "ranks.start(3)\n"
        "number = ranks._ranks.number\n"
        "a, b = torch.full((3, 4), 1.0 + number), torch.tensor(10.0 ** number)\n"
        "for _ in range(3):\n"
        "    ranks.all_reduce_sum([a, b])\n"
        "assert ranks.any_rank(number == 2) and not ranks.any_rank(False)\n"
        "ranks.leave()\n"
        "assert (a == 54).all() and b == 999, (a, b)\n"
        "print(ranks.world_size())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "1\n"


@pytest.mark.slow
def test_a_rank_that_is_killed_ends_those_that_would_wait_for_it_for_hours() -> None:
    """NCCL waits for it until its time is over; here the others do as it does."""
    code = (
        "import os, signal, time\n"
        "from trimtab.models.training import distributed as ranks\n"
        "ranks.start_group(3)\n"
        "ranks.join_group()\n"
        "ranks.any_rank(False)\n"
        "if ranks.rank() == 1:\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "time.sleep(ranks.TIMEOUT.total_seconds())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], timeout=120)
    assert done.returncode == -signal.SIGKILL


@pytest.mark.slow
def test_every_group_waits_as_long_as_the_first_rank_may_work_alone() -> None:
    """DeepSpeed's own groups too, by which it gathers what the first rank is late for."""
    code = (
        "import deepspeed, torch\n"  # once for both ranks
        "from trimtab.models.training import distributed as ranks\n"
        "ranks.start_group(2)\n"
        "ranks.join_group()\n"
        "from trimtab.models.training.zero import _start_deepspeed\n"
        "_start_deepspeed()\n"
        "from deepspeed.utils.groups import _clone_world_group\n"
        "groups = (torch.distributed.group.WORLD, _clone_world_group())\n"
        "assert groups[0] is not groups[1]\n"
        "for group in groups:\n"
        "    options = group._get_backend(torch.device('cpu')).options\n"
        "    assert options._timeout == ranks.TIMEOUT, options._timeout\n"
        "assert ranks.TIMEOUT.total_seconds() >= 6 * 3600\n"
    )
    env = {**os.environ, "DS_ACCELERATOR": "cpu"}
    subprocess.run([sys.executable, "-c", code], timeout=300, check=True, env=env)


def test_ranks_of_a_group_add_up_in_messages_of_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """No rank has all gradients twice, as one message of them would need."""
    messages = []

    def all_reduce(message: torch.Tensor) -> None:
        messages.append(message.numel())
        message *= 2

    monkeypatch.setattr(distributed, "_ranks", distributed._Ranks(2, 0, is_group=True))
    monkeypatch.setattr(torch.distributed, "all_reduce", all_reduce)
    monkeypatch.setattr(counts, "BUCKET", 5)
    tensors = [torch.arange(12.0).view(3, 4), torch.tensor(7.0), torch.arange(3.0)]
    distributed.all_reduce_sum(tensors)
    assert messages == [5, 5, 5, 1]
    assert [tensor.sum().item() for tensor in tensors] == [132, 14, 6]
    assert tensors[0].tolist() == (2 * torch.arange(12.0)).view(3, 4).tolist()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ending", "code"), [("pass", 0), ("raise SystemExit(75)", 75), ("raise ValueError('x')", 1)]
)
def test_a_trainer_s_process_ends_as_its_job_did_whatever_the_teardown_would_do(
    ending: str, code: int
) -> None:
    program = (
        "import atexit, os\n"
        "from trimtab.models.training import entry\n"
        "def main(job_path):\n"
        f"    {'' if code == 1 else 'atexit.register(os.abort)'}\n"
        f"    {ending}\n"
        "entry.main = main\n"
        "entry._run_and_exit('job.json')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    assert ("ValueError: x" in done.stderr) == (code == 1)
