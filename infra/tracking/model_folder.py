"""A folder that MLflow loads, made of one that transformers saved.

    mlflow.transformers.load_model("models:/trimtab-policy-default@champion")  # a pipeline
    mlflow.pyfunc.load_model("models:/trimtab-reward-model-default@candidate").predict(texts)

MLflow's own `save_model` copies the weights and loads the model, which takes as long as saving it
anew. Here they are moved, and nothing is loaded.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

REQUIREMENTS = ("mlflow", "torch", "transformers")
# What a tokenizer's files begin with.
TOKENIZER = ("tokenizer", "special_tokens", "chat_template", "vocab", "merges", "added_tokens")


@dataclass(frozen=True)
class ModelKind:
    """What a model does: transformers' task, its pipeline's class, what a row of its output has.

    options: of the pipeline's call, for `mlflow.pyfunc`.
    """

    task: str
    pipeline: str
    outputs: tuple[tuple[str, str | None], ...]
    options: dict[str, Any]


# A policy's texts are tokenised as in training: no token is added in front.
POLICY = ModelKind(
    "text-generation",
    "TextGenerationPipeline",
    (("string", None),),
    {"return_full_text": False, "add_special_tokens": False},
)
# An exported scorer's own tokenizer and settings give its score.
SCORER = ModelKind(
    "text-classification",
    "TextClassificationPipeline",
    (("string", "label"), ("double", "score")),
    {},
)
# With a column for each label a row has them all, the largest first.
SCORER_OF_SEVERAL = ModelKind(SCORER.task, SCORER.pipeline, (), {"top_k": None})


def make_model_folder(saved: Path, folder: Path, kind: ModelKind) -> None:
    """Make `folder` of a `save_pretrained` folder, which is moved into it.

    Raises as `describe_model`.
    """
    describe_model(saved, folder, kind, "model")
    os.replace(saved, folder / "model")


def describe_model(saved: Path, folder: Path, kind: ModelKind, weights: str) -> None:
    """Write into `folder` what MLflow loads a `save_pretrained` folder by.

    weights: where that folder lies, from the description. Of `saved` the settings and the tokenizer
    are read. OSError and ValueError for a folder that transformers did not save.
    """
    from mlflow import pyfunc
    from mlflow.models import Model, ModelSignature
    from mlflow.types import ColSpec, Schema

    architecture = json.loads((saved / "config.json").read_text())["architectures"][0]
    components = folder / "components" / "tokenizer"
    components.mkdir(parents=True)
    for path in saved.iterdir():
        if path.name.startswith(TOKENIZER):
            shutil.copyfile(path, components / path.name)
    outputs = Schema([ColSpec(*column) for column in kind.outputs]) if kind.outputs else None
    model = Model(signature=ModelSignature(Schema([ColSpec("string")]), outputs))
    model.add_flavor(
        "transformers",
        transformers_version=_version("transformers"),
        code=None,
        task=kind.task,
        instance_type=kind.pipeline,
        framework="pt",
        pipeline_model_type=architecture,
        source_model_name=architecture,
        model_binary=weights,
        components=["tokenizer"],
        tokenizer_type="AutoTokenizer",
    )
    environment = "python_env.yaml"
    pyfunc.add_to_model(
        model,
        loader_module="mlflow.transformers",
        python_env=environment,
        model_config=kind.options,
    )
    lines = [f"{name}=={_version(name)}\n" for name in REQUIREMENTS if _version(name)]
    (folder / "requirements.txt").write_text("".join(lines))
    (folder / environment).write_text(
        f"python: {platform.python_version()}\ndependencies:\n- -r requirements.txt\n"
    )
    model.save(str(folder / "MLmodel"))


def _version(package: str) -> str | None:
    try:
        return version(package).partition("+")[0]  # a local version is in no index
    except PackageNotFoundError:
        return None
