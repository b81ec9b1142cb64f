"""What a worker's run may read: below the folders that are named, however a path is written."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from trimtab.infra.access import Access, AccessError
from trimtab.infra.processes.environment import drop_secrets, trainer_env
from trimtab.infra.store.fetch import FetchError, fetch

SUFFIXES = (".jsonl",)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "data" / "deep").mkdir(parents=True)
    (tmp_path / "data" / "a.jsonl").write_text("mine")
    (tmp_path / "data" / "deep" / "b.jsonl").write_text("deep")
    (tmp_path / "database").mkdir()
    (tmp_path / "database" / "a.jsonl").write_text("another's")
    (tmp_path / "secret.jsonl").write_text("secret")
    return tmp_path / "data"


def _access(*roots: object, **more: str) -> Access:
    return Access.from_env({"TRIMTAB_DATA_ROOTS": ",".join(map(str, roots)), **more})


def test_nothing_is_allowed_unless_it_is_named(root: Path) -> None:
    for env in ({}, {"TRIMTAB_DATA_ROOTS": " "}, {"TRIMTAB_DATA_ROOTS": ","}):
        access = Access.from_env(env)
        for source in (str(root / "a.jsonl"), "s3://b/x", "owner/name", "x.jsonl", "."):
            with pytest.raises(AccessError, match="may not be read.*: none"):
                access.demand_source(source, SUFFIXES)
        with pytest.raises(AccessError, match="may not be asked.*: none"):
            access.demand_judge("https://api.openai.com/v1", None)


@pytest.mark.parametrize(
    "path",
    [
        *("{root}/../secret.jsonl", "{root}", "/etc/passwd", "/", "", ".", "~/x.jsonl"),
        *("{root}base/a.jsonl", "{root}/deep/../../secret.jsonl", "{root}/a.jsonl\0"),
        *("{root}/link.jsonl", "{root}/folder/secret.jsonl", "{root}/environ.jsonl"),
        *("/proc/self/environ", "/proc/self/root{root}/a.jsonl", "/dev/stdin", "/sys/kernel"),
        *("file:///etc/passwd", "file://{root}/a.jsonl", "hf://datasets/o/n", "http://x/a.jsonl"),
    ],
)
def test_a_path_that_leads_elsewhere_is_refused(root: Path, path: str, tmp_path: Path) -> None:
    (root / "link.jsonl").symlink_to(tmp_path / "secret.jsonl")
    (root / "folder").symlink_to(tmp_path)
    (root / "environ.jsonl").symlink_to("/proc/self/environ")
    given = path.format(root=root)
    # The root itself is one that may be read: only what lies beside it is asked for here.
    access = _access(root / "deep" if given == str(root) else root)
    with pytest.raises(AccessError):
        access.demand_source(given, SUFFIXES)
    with pytest.raises((AccessError, FetchError)):
        fetch(given, tmp_path / "copy", access)
    assert not [each for each in (tmp_path / "copy").rglob("*") if each.is_file()]


def test_the_kernel_s_files_are_no_data_even_below_a_root(tmp_path: Path) -> None:
    for path in ("/proc/self/environ", "/proc/self/cwd", "/sys", "/dev/zero", "/dev/shm/x"):
        with pytest.raises(AccessError):
            fetch(path, tmp_path / "copy", _access("/"))


def test_what_is_no_file_is_not_waited_for(root: Path, tmp_path: Path) -> None:
    os.mkfifo(root / "pipe.jsonl")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(root / "socket.jsonl"))
        for name in ("pipe.jsonl", "socket.jsonl"):
            with pytest.raises((AccessError, OSError)):
                fetch(str(root / name), tmp_path / "copy", _access(root))


def test_files_and_folders_below_a_root_are_copied(root: Path, tmp_path: Path) -> None:
    (root / "also.jsonl").symlink_to(root / "deep" / "b.jsonl")
    (root / "notes.env").write_text("no data")
    link = tmp_path / "link"
    link.symlink_to(root)  # a root may be a link: the operator has named it
    copy = fetch(str(root), tmp_path / "copy", _access(link), lambda name: "jsonl" in name)
    files = {str(p.relative_to(copy)): p.read_text() for p in copy.rglob("*") if p.is_file()}
    found = {"a.jsonl": "mine", "deep/b.jsonl": "deep", "also.jsonl": "deep", "notes.env": ""}
    assert files == found
    one = fetch(str(root / "deep" / ".." / "a.jsonl"), tmp_path / "one", _access(root))
    assert one.read_text() == "mine"
    with pytest.raises(FetchError, match="found no file or folder"):
        fetch(str(root / "none.jsonl"), tmp_path / "none", _access(root))


def test_a_link_below_a_folder_leads_out_of_it_no_further(root: Path, tmp_path: Path) -> None:
    (root / "deep" / "out.jsonl").symlink_to(tmp_path / "secret.jsonl")
    with pytest.raises(AccessError, match="out.jsonl"):
        fetch(str(root), tmp_path / "copy", _access(root))
    (root / "deep" / "out.jsonl").unlink()
    (root / "deep" / "out").symlink_to(tmp_path)
    copy = fetch(str(root), tmp_path / "two", _access(root), lambda name: "jsonl" in name)
    assert not (copy / "deep" / "out" / "secret.jsonl").exists()


def test_a_link_that_is_put_there_after_the_check_is_not_followed(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look at a path and its opening, by whoever may write below the root."""
    demand = Access.demand_folder

    def looked_at(self: Access, path: str) -> tuple[Path, Path]:
        found = demand(self, path)
        for name, target in (("a.jsonl", tmp_path / "secret.jsonl"), ("deep", tmp_path)):
            if not (root / name).is_symlink():
                (root / name).rename(tmp_path / f"old {name}")
                (root / name).symlink_to(target)
        return found

    (tmp_path / "b.jsonl").write_text("secret")
    for name in ("a.jsonl", "deep/b.jsonl"):
        with monkeypatch.context() as patch:
            patch.setattr(Access, "demand_folder", looked_at)
            with pytest.raises(OSError, match="Too many levels|Not a directory"):
                fetch(str(root / name), tmp_path / "copy", _access(root))
        for changed in ("a.jsonl", "deep"):
            (root / changed).unlink()
            (tmp_path / f"old {changed}").rename(root / changed)


def test_a_model_s_folder_may_hold_no_way_out(root: Path, tmp_path: Path) -> None:
    access = _access(root)
    access.demand_model(str(root))
    (root / "config.json").symlink_to(tmp_path / "secret.jsonl")
    with pytest.raises(AccessError, match="config.json"):
        access.demand_model(str(root))
    (root / "config.json").unlink()
    (root / "deep" / "1_Pooling").symlink_to(root)
    with pytest.raises(AccessError, match="link to a folder"):
        access.demand_model(str(root))
    (root / "linked").symlink_to(tmp_path / "database")
    with pytest.raises(AccessError):  # which is tmp_path, not the root
        access.demand_model(f"{root}/linked/../model")
    for name in ("owner/name", "gpt2", "../x", "/etc", str(tmp_path), "./x", "~", "http://h/x"):
        with pytest.raises(AccessError):
            access.demand_model(name)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("model.safetensors.index.json", {"weight_map": {"w": "../secret.safetensors"}}),
        ("model.safetensors.index.json", {"weight_map": {"w": "/secret.safetensors"}}),
        ("pytorch_model.bin.index.json", {"weight_map": {"w": "deep/../../secret.bin"}}),
        ("model.safetensors.index.json", {"weight_map": 1}),
        ("model.safetensors.index.json", {}),
        ("modules.json", [{"path": "../other"}]),
        ("adapter_config.json", {"base_model_name_or_path": "/secret"}),
    ],
)
def test_a_model_s_files_may_name_no_files_outside(root: Path, name: str, content: Any) -> None:
    """transformers and sentence-transformers open whatever these files name."""
    access = _access(root)
    (root / name).write_text(json.dumps(content))
    with pytest.raises(AccessError, match=name):
        access.demand_model(str(root))


def test_a_model_in_parts_may_be_read(root: Path) -> None:
    names = {"w": "model-00001-of-00001.safetensors"}
    (root / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    modules = [{"path": ""}, {"path": "1_Pooling"}]
    (root / "modules.json").write_text(json.dumps(modules))
    _access(root).demand_model(str(root))


def test_buckets_and_hub_are_allowed_by_prefix() -> None:
    access = _access("s3://lake/people/", "hf://Anthropic", "hf://owner/name", "hf://gpt2")
    for source in (
        "s3://lake/people/a.jsonl",
        "s3://lake/people",
        "Anthropic/hh-rlhf/harmless-base",
    ):
        access.demand_source(source, SUFFIXES)
    access.demand_source("owner/name:config", SUFFIXES)
    for model in ("owner/name", "gpt2", "Anthropic/any"):
        access.demand_model(model)
    for source in (
        *(
            "s3://lake/peoples/a.jsonl",
            "s3://lake",
            "s3://lake/",
            "s3://trimtab/artifacts",
            "s3://",
            "s3://lake/people/../secret/a.jsonl",
            "s3://lake/people/./a.jsonl",
            "s3://lake/people/..",
        ),
        *("owner/other", "anthropic2/x", "json", "text", "owner", "owner/../x", "Anthropic/../x"),
    ):
        with pytest.raises(AccessError):
            access.demand_source(source, SUFFIXES)
    for model in ("owner/name2", "owner", "gpt", "Anthropic/..", "Anthropic/x@main"):
        with pytest.raises(AccessError):
            access.demand_model(model)


def test_what_looks_like_a_hub_s_name_and_is_a_folder_here_is_a_path(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(root.parent)
    access = _access("hf://data")
    for name in ("data/deep", "data"):
        for demand in (access.demand_model, lambda name: access.demand_source(name, SUFFIXES)):
            with pytest.raises(AccessError, match="the path"):
                demand(name)


def test_a_judge_is_asked_at_its_address_with_its_key() -> None:
    judges = (
        "https://api.openai.com/v1=OPENAI_API_KEY, http://10.0.0.7:8000/v1,https://j/v1=a-block"
    )
    access = _access(TRIMTAB_JUDGES=judges, TRIMTAB_JUDGE_NETWORKS="10.1.0.0/16")
    access.demand_judge("https://API.openai.com/v1/", "OPENAI_API_KEY")
    access.demand_judge("http://10.0.0.7:8000/v1", None)
    access.demand_judge("https://j/v1", "a-block")
    assert access.keys == ("OPENAI_API_KEY", "a-block")
    assert access.allowed_networks == ("10.1.0.0/16", "10.0.0.7/32")
    for address, key in (
        ("https://api.openai.com/v1", "PGPASSWORD"),
        ("https://j/v1", "OPENAI_API_KEY"),  # a key goes to its own judge
        ("http://10.0.0.7:8000/v1", "OPENAI_API_KEY"),
        ("http://api.openai.com/v1", "OPENAI_API_KEY"),
        ("https://api.openai.com:444/v1", None),
        ("https://api.openai.com/v1/x", None),
        ("https://api.openai.com.evil/v1", None),
        ("https://api.openai.com@evil/v1", None),
        ("http://10.0.0.7:8001/v1", None),
        ("http://127.0.0.1/v1", None),
    ):
        with pytest.raises(AccessError, match="may not be asked"):
            access.demand_judge(address, key)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("TRIMTAB_DATA_ROOTS", "data", "absolute folder"),
        ("TRIMTAB_DATA_ROOTS", "s3://", "absolute folder"),
        ("TRIMTAB_DATA_ROOTS", "hf://", "absolute folder"),
        ("TRIMTAB_JUDGES", "api.openai.com", "https://host/v1=KEY"),
        ("TRIMTAB_JUDGES", "https://u:p@h/v1", "https://host/v1=KEY"),
        ("TRIMTAB_JUDGES", "https://h/v1=sk-Proj/secret", "is not the name of a key"),
        ("TRIMTAB_JUDGE_NETWORKS", "10.0.0.1/8", "a network such as"),
    ],
)
def test_a_rule_that_cannot_be_understood_is_an_error(name: str, value: str, said: str) -> None:
    with pytest.raises(AccessError, match=said) as error:
        Access.from_env({name: value})
    assert "secret" not in str(error.value)


def test_secrets_are_told_by_their_names() -> None:
    secret = dict.fromkeys(
        (
            *("PGPASSWORD", "AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID", "OPENAI_API_KEY"),
            *("PREFECT_API_AUTH_STRING", "MLFLOW_FLASK_SERVER_SECRET_KEY", "GITHUB_TOKEN"),
        ),
        "x",
    )
    secret["DATABASE"] = "postgresql://me:pw@host/x"
    plain = {
        **dict.fromkeys(("PATH", "HOME", "TOKENIZERS_PARALLELISM", "CUDA_VISIBLE_DEVICES"), "x"),
        "https_proxy": "http://me:pw@proxy",
        "TRIMTAB_HOME": "/x",
    }
    served = {"PREFECT_API_URL": "http://x", "MLFLOW_TRACKING_URI": "http://x"}
    environment = {**secret, **plain, **served, "HF_TOKEN": "x"}
    assert drop_secrets(environment) == {**plain, **served}
    assert drop_secrets(environment, ["PGPASSWORD"]) == {**plain, **served, "PGPASSWORD": "x"}
    assert trainer_env(environment) == {**plain, "HF_TOKEN": "x"}
