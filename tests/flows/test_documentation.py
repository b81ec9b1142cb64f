"""docs/optimisers.md: the defaults it names are those of the configuration, its commands exist."""

from __future__ import annotations

import json
import re
import shlex
from functools import reduce
from pathlib import Path
from typing import Any

import pytest

from flows.cli import main
from flows.config import RunConfig

TEXT = (Path(__file__).parents[2] / "docs" / "optimisers.md").read_text(encoding="utf-8")
FIELDS = re.findall(r"^\| `([a-z_.]+)` \| (.+?) \|", TEXT, re.MULTILINE)
COMMANDS = re.findall(r"^trimtab (run [^#\n]*?) *(?:#.*)?$", TEXT, re.MULTILINE)


@pytest.mark.parametrize(("path", "default"), FIELDS)
def test_defaults_are_the_configuration_s(path: str, default: str) -> None:
    values: Any = RunConfig().model_dump(mode="json")
    assert reduce(lambda section, name: section[name], path.split("."), values) == json.loads(
        default
    )


def test_every_method_has_its_fields() -> None:
    sections = {path.partition(".")[0] for path, _ in FIELDS}
    assert sections == {"ppo", "best_of_n", "rejection_sampling", "rest", "dpo", "cpl", "hir"}


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_can_be_planned(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRIMTAB_HOME", str(tmp_path))
    given = shlex.split(command)
    assert main(given if "--dry-run" in given else [*given, "--dry-run"]) == 0
