"""Parameters are values: they name nothing that Prefect would look up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from prefect.blocks.core import Block
from prefect.exceptions import ParameterTypeError
from prefect.filesystems import RemoteFileSystem
from prefect.flows import load_flow_from_entrypoint

FILE = yaml.safe_load((Path(__file__).parents[2] / "prefect.yaml").read_text())
FLOWS = {each["name"]: each["entrypoint"] for each in FILE["deployments"]}
SECRET = "Zx81hu2bqSecretOfABlock"


@pytest.mark.parametrize("name", FLOWS)
def test_a_parameter_reads_no_block(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prefect loads it before the flow begins, and the message about it holds what is in it."""
    asked: list[Any] = []

    def load(ref: Any, **_: Any) -> Block:
        asked.append(ref)
        return RemoteFileSystem(basepath="s3://lake/people", settings={"secret": SECRET})

    monkeypatch.setattr(Block, "load_from_ref", load)
    flow = load_flow_from_entrypoint(FLOWS[name], use_placeholder_flow=False)
    first = next(iter(flow.parameters.properties))
    block: dict[str, Any] = {"$ref": {"block_document_slug": "remote-file-system/lake"}}
    for value in (block, [block], {"sft": {"model": {"base": block}}}):
        with pytest.raises(ParameterTypeError) as error:
            flow.validate_parameters({first: value})
        assert SECRET not in str(error.value)
        assert "$ref" in str(error.value)
    assert asked == []
