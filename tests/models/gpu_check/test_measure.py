"""What the GPU check measures with: by hand, and with a defect that it must find."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from statistics import mean, pstdev
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from trimtab.flows.config.recipes import recipe_named
from trimtab.models.config.training import ModelConfig, precision_of, with_precision
from trimtab.models.estimates.shapes import shape_of
from trimtab.models.gpu_check import correctness, speed
from trimtab.models.gpu_check.driver import Bench, WrongError
from trimtab.models.gpu_check.material import PROMPT_WORDS, RESPONSE_WORDS, made_up_pairs
from trimtab.models.gpu_check.measure import group_of, note_kernels, row_work, timed
from trimtab.models.gpu_check.stage_runs import smoke_config
from trimtab.models.nets.packing import Candidates


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    request = {"smoke": {}, "peers": None, "pairs": None}
    return Bench(tmp_path, tmp_path, "cpu", request, [], time.monotonic() + 60, tmp_path / "v.json")


def test_the_work_of_a_packed_pair_by_hand() -> None:
    """One layer: 4 h^2 + 3 h f weights, 2 a token forward, 4 backward; and pairs of tokens."""
    shape = shape_of(ModelConfig(hidden_size=8, num_layers=1, num_heads=2))
    linear = 6 * 9 * (4 * 8 * 8 + 3 * 8 * shape.layers[0].maps[-1][0])
    looks = 4 * 4 / 2 + (4 * 2 + 2 * 2 / 2) + (4 * 3 + 3 * 3 / 2)
    row = Candidates([1] * 4, ([2] * 2, [3] * 3))
    assert row_work(shape, row) == linear + 3 * 4 * 8 * looks


def test_kernels_are_grouped() -> None:
    names = {
        "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64": "matrix products",
        "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NNT": "matrix products",
        "void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel": "attention",
        "void at::native::multi_tensor_apply_kernel<FusedAdamMathFunctor>": "optimiser",
        "Memcpy DtoD (Device -> Device)": "copies, indexing",
        "void at::native::vectorized_elementwise_kernel<4, MulFunctor>": "elementwise, reductions",
    }
    assert {name: group_of(name) for name in names} == names


def test_a_profile_names_what_ran(bench: Bench) -> None:
    left = torch.randn(300, 300)
    seconds = timed(lambda: left @ left, 1, 3)[0]
    note_kernels(bench, "product", lambda: left @ left, seconds, bench.out / "trace.json.gz")
    busy, kernels = bench.values
    assert busy["groups"][0][0] == "matrix products" and busy["groups"][0][2] > 0.5
    assert kernels["groups"][0][0] == "aten::mm"
    assert (bench.out / "trace.json.gz").read_bytes()[:2] == b"\x1f\x8b"


def test_made_up_pairs_are_as_long_as_people_s() -> None:
    """Means and deviations of the logarithm, within four standard errors (and what is cut off)."""
    rows = made_up_pairs(2000)
    assert rows == made_up_pairs(2000)
    for name, (middle, deviation) in (("prompt", PROMPT_WORDS), ("chosen", RESPONSE_WORDS)):
        extra = 2 if name == "prompt" else 0  # Human:, Assistant:
        found = [math.log(len(row[name].split()) - extra) for row in rows]
        assert abs(mean(found) - middle) < 4 * deviation / 2000**0.5 + 0.05
        assert abs(pstdev(found) - deviation) < 0.12


def test_precision_is_set_where_a_stage_has_it(bench: Bench) -> None:
    smoke = recipe_named("smoke")
    for stage, config in (("ppo_max", smoke.ppo), ("reward_model", smoke.reward_model)):
        bench.request["smoke"][stage] = config.model_dump(mode="json")
        changed = smoke_config(bench, stage, "bfloat16")
        assert (precision_of(changed), precision_of(config)) == ("bfloat16", "auto")
        assert with_precision(changed, "auto") == config
    bench.request["smoke"]["world"] = smoke.world.model_dump(mode="json")
    assert smoke_config(bench, "world", "bfloat16") == smoke.world


def test_what_phases_watch_is_there(tmp_path: Path) -> None:
    wrapped = speed._timed_phases(tmp_path / "phases.json")
    assert len(wrapped) == sum(map(len, speed.PHASES.values()))


def test_phases_count_what_is_inside_another_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Work:
        def sample(self) -> None:
            time.sleep(0.01)
            self.score()

        def score(self) -> None:
            time.sleep(0.02)

    monkeypatch.setattr(speed, "PHASES", {n: ((Work, n),) for n in ("sample", "score")})
    path = tmp_path / "phases.json"
    for owner, name, around in speed._timed_phases(path):
        monkeypatch.setattr(owner, name, around)
    Work().sample()
    Work().score()
    Work().sample()
    first, second = json.loads(path.read_text())
    assert first.keys() == {"sample", "score"} and second.keys() == {"sample"}


def test_a_gap_is_relative_and_a_missing_weight_is_all_of_it() -> None:
    other = {"a": torch.tensor([3.0, 4.0]), "b": torch.zeros(2)}
    mine = {"a": torch.tensor([3.0, 4.0]), "b": torch.tensor([0.05, 0.0])}
    assert correctness.gap(mine, other) == pytest.approx(0.01)
    assert correctness.gap(other, other) == 0
    assert correctness.gap({"a": other["a"]}, other) == 1
    assert correctness.gap({"a": other["a"], "b": torch.zeros(3)}, other) == 1


@pytest.mark.parametrize(
    ("arm", "stage", "difference", "is_wrong"),
    [
        ("card float32", "sft", 5e-4, False),
        ("card float32", "sft", 2e-3, True),
        ("card float32", "ppo_max", 2e-3, True),
        ("card bfloat16", "dpo", 0.019, False),  # twice the CPU's 0.01
        ("card bfloat16", "dpo", 0.03, True),
        ("card bfloat16", "ppo_max", 0.03, False),
    ],
)
def test_weights_that_a_card_learns_otherwise_fail(
    arm: str,
    stage: str,
    difference: float,
    is_wrong: bool,
    bench: Bench,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def learn(bench: Bench, name: str, *_: Any) -> None:
        for each in correctness.STAGES:
            folder = bench.work / name / each / "output" / "model"
            folder.mkdir(parents=True)
            error = difference if (name, each) == (arm, stage) else 0.0
            error = 0.01 if name == "cpu bfloat16" else error
            save_file({"w": torch.tensor([1.0, error])}, folder / "model.safetensors")

    monkeypatch.setattr(correctness, "_run_all", learn)
    if not is_wrong:
        correctness.stages_on_all_devices(bench)
        return
    with pytest.raises(WrongError, match=f"{stage} in {arm.split()[1]}: weights"):
        correctness.stages_on_all_devices(bench)
