"""What pages say is so: defaults, commands, files, tests."""

from __future__ import annotations

import json
import re
import shlex
import textwrap
from functools import reduce
from pathlib import Path
from typing import Any

import pytest

from trimtab.flows.cli.cli import main
from trimtab.flows.cli.fields import settings_of
from trimtab.flows.config.config import RunConfig
from trimtab.models.config.judge import AILabelsConfig, JudgeConfig, JudgePreferencesConfig
from trimtab.models.config.policy import PPOConfig, ScorersConfig
from trimtab.models.rewards.function import RewardFunction

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
# The changelog speaks of what was; papers/ is generated.
# What the reader of docs/adding.md writes.
NEW_IN_PAGE = "models/stages/length_bias.py"
PAGES = sorted({*ROOT.glob("*.md"), *DOCS.rglob("*.md")} - {ROOT / "CHANGELOG.md"})
PATH = re.compile(
    r"(?<![\w/.-])(?:flows|tasks|models|infra|tests|docs)/[\w./-]*\w(?=[`\s),:;]|\.\s)"
)
TEXT = (DOCS / "reference" / "methods.md").read_text(encoding="utf-8")
JUDGES = (DOCS / "how-to" / "ai-feedback.md").read_text(encoding="utf-8")
FIELD = re.compile(r"^\| `([a-z_.]+)` \| (.+?) \|", re.MULTILINE)
FIELDS = FIELD.findall(TEXT)
COMMAND = re.compile(r"^trimtab (run [^#\n]*?) *(?:#.*)?$", re.MULTILINE)
# A command goes on behind a backslash. Those that name files, models or endpoints need them.
COMMANDS = sorted(
    command
    for command in {
        each
        for page in PAGES
        for each in COMMAND.findall(page.read_text("utf-8").replace("\\\n", ""))
    }
    if not re.search(
        r"jsonl|FOLDER|FILE|endpoint|local_model|RECIPE|\$seed|kl_coeff|print-config", command
    )
    and command.count("'") % 2 == 0  # else it goes on in the next line
)
# The function of docs/how-to/bring-your-own-reward.md, which its commands name.
_BLOCK = re.compile(r"^    ```python\n(.*?)^    ```", re.MULTILINE | re.DOTALL)
REWARDS = (DOCS / "how-to" / "bring-your-own-reward.md").read_text(encoding="utf-8")
REWARD = textwrap.dedent(_BLOCK.findall(REWARDS)[0])
# By default nobody is asked; with a judge, all else about it is as by default.
JUDGE = JudgeConfig(gold_accuracy=0.8)
JUDGED = RunConfig(
    judge_preferences=JudgePreferencesConfig(judge=JUDGE),
    ai_labels=AILabelsConfig(),
    ppo=PPOConfig(scoring=ScorersConfig(judge=JUDGE)),
)


@pytest.mark.parametrize(
    ("config", "path", "default"),
    [
        *((RunConfig(), path, default) for path, default in FIELDS),
        *((JUDGED, path, default) for path, default in FIELD.findall(JUDGES)),
    ],
)
def test_defaults_are_the_configuration_s(config: RunConfig, path: str, default: str) -> None:
    values: Any = config.model_dump(mode="json")
    assert reduce(lambda section, name: section[name], path.split("."), values) == json.loads(
        default
    )


def test_every_method_has_its_fields() -> None:
    sections = {path.partition(".")[0] for path, _ in FIELDS}
    of_groups = {"rloo", "grpo", "reinforce_pp"}
    others = {"best_of_n", "rejection_sampling", "rest", "dpo", "cpl", "hir"}
    assert sections == {"ppo"} | of_groups | others


# The fields of TRL 1.9's PPOConfig, apart from those of TrainingArguments.
OF_TRL = frozenset(
    """dataset_num_proc num_mini_batches total_episodes local_rollout_forward_batch_size
    num_sample_generations response_length stop_token stop_token_id temperature missing_eos_penalty
    sft_model_path world_size num_total_batches micro_batch_size local_batch_size batch_size
    local_mini_batch_size mini_batch_size push_to_hub reward_model_path model_adapter_name
    ref_adapter_name num_ppo_epochs whiten_rewards kl_coef kl_estimator cliprange vf_coef
    cliprange_value gamma lam ds3_gather_for_generation learning_rate logging_steps
    gradient_checkpointing bf16 lr_scheduler_kwargs use_liger_kernel
    torch_empty_cache_steps""".split()
)


def test_every_field_of_trls_ppo_leads_to_one_of_ours_that_exists() -> None:
    text = (DOCS / "how-to" / "from-trl-ppo.md").read_text(encoding="utf-8")
    fields = text.partition("## Each field")[2].partition("## Each metric")[0]
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \|", fields, re.MULTILINE)
    names = [name for name, _ in rows if name != "PPOConfig"]
    assert len(names) == len(set(names)) and set(names) > OF_TRL
    known = {setting.path for setting in settings_of(RunConfig)}
    known |= {path.rpartition(".")[0] for path in known} | {"ppo.objective", "ppo.zero"}
    ours = {cell.strip("`") for _, cell in rows} - {"–", "Trimtab"}
    assert len(ours) > 20 and ours <= known
    # In whatever else the page says of settings, too.
    said = re.findall(r"((?:ppo|sft|rounds|preferences)\.[a-z_]+(?:\.[a-z_]+)*)", text)
    assert {path for path in said if not path.endswith(".md")} <= known


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_can_be_planned(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRIMTAB_HOME", str(tmp_path))
    (tmp_path / "my_rewards.py").write_text(REWARD)
    monkeypatch.chdir(tmp_path)
    given = shlex.split(command)
    assert main(given if "--dry-run" in given else [*given, "--dry-run"]) == 0


def test_the_reward_of_the_page_scores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_rewards.py").write_text(REWARD)
    monkeypatch.syspath_prepend(tmp_path)
    rows = [{"prompt": "p", "category": "c"}] * 2
    scores = RewardFunction("my_rewards:length", "it").scores(rows, ["a b", "word " * 60])
    assert scores == [0.04, 1.0]


def test_the_threat_model_names_tests_that_exist() -> None:
    text = (DOCS / "reference" / "threat-model.md").read_text("utf-8")
    named = re.findall(r"(tests/[\w/]+\.py)::(\w+)", text)
    assert len(named) > 15
    missing = {
        each for each in named if f"def {each[1]}(" not in (ROOT / each[0]).read_text("utf-8")
    }
    assert missing == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_that_a_page_names_exist(page: Path) -> None:
    named = PATH.findall(page.read_text(encoding="utf-8"))
    new = [NEW_IN_PAGE] if page.name == "adding.md" else []
    assert [path for path in named if not (ROOT / path).exists() and path not in new] == []


def test_the_readme_stays_short_and_its_links_lead_somewhere() -> None:
    """The site's build checks those of all other pages."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text) <= 7000
    links = re.findall(r"\]\((?!https:)([^)#]+)", text)
    assert len(links) > 15
    assert [link for link in links if not (ROOT / link).exists()] == []
