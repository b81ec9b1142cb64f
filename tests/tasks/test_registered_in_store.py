"""Policies that MLflow's registry names where they lie in an S3 store."""

from __future__ import annotations

import dataclasses
import uuid
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from tests.infra.conftest import S3Server, s3_server  # noqa: F401  (a fixture)
from trimtab.infra.settings import Settings, SettingsError
from trimtab.infra.store.cleaner import remove, unneeded
from trimtab.infra.store.manifest import Provenance
from trimtab.tasks import registry as registry_module
from trimtab.tasks.execution import StageContext, StageResult, result_of
from trimtab.tasks.registry import RegisteredRun, register_models, reports_of_registered

WORDS = ["<end>", "<pad>", "good", "bad"]
NAME = "trimtab-policy-toy"


def _saved(folder: Path) -> None:
    """A policy's artifact: a `save_pretrained` folder, and a critic beside it."""
    words = Tokenizer(WordLevel({word: number for number, word in enumerate(WORDS)}, "<pad>"))
    words.pre_tokenizer = Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, eos_token="<end>", pad_token="<pad>"
    )
    config = LlamaConfig(
        vocab_size=len(WORDS),
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        eos_token_id=0,
        pad_token_id=1,
    )
    LlamaForCausalLM(config).save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    (folder / "critic").mkdir()
    (folder / "critic" / "model.safetensors").write_text("critic")


@pytest.fixture
def context(
    s3_server: S3Server,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> StageContext:
    settings = Settings.from_env(
        {
            "TRIMTAB_HOME": str(tmp_path / "home"),
            "TRIMTAB_STORE": f"s3://{s3_server.bucket}/{uuid.uuid4().hex}",
            "TRIMTAB_REGISTER": "in-store",
        }
    )
    settings.home.mkdir()
    context = StageContext.open(settings, "toy")
    monkeypatch.setattr(registry_module, "base_context", lambda: context)
    monkeypatch.setattr(registry_module, "emit", lambda *_, **__: None)
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI"):
        monkeypatch.setenv(name, settings.mlflow_uri)
    return context


def _run(context: StageContext, folder: Path) -> tuple[RegisteredRun, StageResult]:
    _saved(folder / "policy")
    policy = result_of(context.store.publish("ppo_max", "p" * 64, folder / "policy"))
    made = {"policy_full": dataclasses.asdict(policy.ref)}
    (folder / "report").mkdir()
    (folder / "report" / "report.html").write_text("report")
    report = context.store.publish("report", "r" * 64, folder / "report", Provenance(parents=made))
    run = RegisteredRun("toy", {1: policy}, 1, result_of(report), "settings", name="toy")
    return run, policy


@pytest.mark.slow
def test_a_version_is_the_store_s_own_folder(context: StageContext, tmp_path: Path) -> None:
    import mlflow

    run, policy = _run(context, tmp_path)
    for _ in range(2):  # again changes nothing
        register_models.fn(context.tracking.start_run("toy").run_id, run)
    client, store = context.tracking.connect(), context.store
    (version,) = client.search_model_versions(f"name = '{NAME}'")
    manifest = store.find(policy.ref.stage, policy.ref.key)
    assert manifest is not None
    assert version.source == f"{store.address(manifest)}/model"
    assert not list((context.settings.home / "mlartifacts").rglob("*.safetensors"))
    pipeline = mlflow.transformers.load_model(f"models:/{NAME}@champion")
    weights = pipeline.model.model.embed_tokens.weight
    ours = LlamaForCausalLM.from_pretrained(tmp_path / "policy" / "model")
    assert (weights == ours.model.embed_tokens.weight).all()
    assert len(mlflow.pyfunc.load_model(f"models:/{NAME}@champion").predict(["good", "bad"])) == 2

    store.materialise(manifest, tmp_path / "again")  # the artifact is what it was
    assert not (tmp_path / "again" / "model" / "MLmodel").exists()
    late = store.objects.now() + 1e9
    found = unneeded(store, reports_since=late, written_before=late, pinned=reports_of_registered())
    assert found == []
    found = unneeded(store, reports_since=late, written_before=late)
    for each in found:  # what lies beside the weights goes with them
        remove(store, each)
    assert store.objects.list("artifacts") == {}


@pytest.mark.slow
def test_a_try_that_was_stopped_before_there_was_a_version_is_taken_up(
    context: StageContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, _ = _run(context, tmp_path)
    client, tracked = context.tracking.connect(), context.tracking.start_run("toy")

    def stopped(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(type(client), "create_model_version", stopped)
        with pytest.raises(KeyboardInterrupt):
            register_models.fn(tracked.run_id, run)
    assert client.search_model_versions(f"name = '{NAME}'") == []
    register_models.fn(tracked.run_id, run)
    (version,) = client.search_model_versions(f"name = '{NAME}'")
    assert version.source.startswith("s3://")


@pytest.mark.parametrize(
    "env",
    [
        {"TRIMTAB_REGISTER": "store", "TRIMTAB_STORE": "s3://b/p"},
        {"TRIMTAB_REGISTER": "in-store"},
        {"TRIMTAB_REGISTER": "in-store", "TRIMTAB_STORE": "/srv/store"},
    ],
)
def test_what_cannot_be_is_refused(env: dict[str, str]) -> None:
    with pytest.raises(SettingsError, match="TRIMTAB_REGISTER is .*; allowed: copy, or in-store"):
        Settings.from_env(env)
    assert not Settings.from_env({}).registers_in_store
