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
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

REQUIREMENTS = ("mlflow", "torch", "transformers")
# What a tokenizer's files begin with.
TOKENIZER = ("tokenizer", "special_tokens", "chat_template", "vocab", "merges", "added_tokens")


@dataclass(frozen=True)
class ModelKind:
    """What a model does: transformers' task, its pipeline's class, what a row of its output has.

    options: of the pipeline's call, for `mlflow.pyfunc`. use: a sentence about its input.
    """

    task: str
    pipeline: str
    outputs: tuple[tuple[str, str | None], ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    use: str = ""


_ENDED = "A text is a prompt and a response, with the tokenizer's end token behind. "
KINDS = {
    "policy": ModelKind(
        "text-generation",
        "TextGenerationPipeline",
        (("string", None),),
        {"return_full_text": False},
    ),
    "reward-model": ModelKind(
        "text-classification",
        "TextClassificationPipeline",
        (("string", "label"), ("double", "score")),
        {"function_to_apply": "none"},
        f"{_ENDED}`pyfunc` gives the reward as it is; a pipeline, unless it is called with "
        'function_to_apply="none", the sigmoid of it.',
    ),
    "advantage-model": ModelKind(
        "text-classification",
        "TextClassificationPipeline",
        (),
        {"function_to_apply": "none", "top_k": None},
        f"{_ENDED}`pyfunc` gives two scores, reward and expected_reward; the advantage is their "
        "difference. For a model of one score: `trimtab export RUN advantage_model`.",
    ),
}


def make_model_folder(saved: Path, folder: Path, kind: ModelKind) -> None:
    """Make `folder` of a `save_pretrained` folder, which is moved into it.

    OSError and ValueError for a folder that transformers did not save.
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
    os.replace(saved, folder / "model")
    outputs = Schema([ColSpec(*each) for each in kind.outputs]) if kind.outputs else None
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
        model_binary="model",
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
