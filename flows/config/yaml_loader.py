"""JSON, and YAML as its version 1.2 reads numbers and switches.

PyYAML follows version 1.1, in which `on`, the name of one of our settings, is a switch, 5e-6 a text
and 1:30 the number 90.
"""

from __future__ import annotations

import json
import re
from typing import Any, ClassVar

from yaml import MappingNode, SafeLoader, YAMLError, load

TAG = "tag:yaml.org,2002:"
REPLACED = {
    "bool": (r"true|True|TRUE|false|False|FALSE", "tTfF"),
    "int": (r"[-+]?[0-9]+", "-+0123456789"),
    "float": (
        r"[-+]?(?:\.[0-9]+|[0-9]+\.[0-9]*|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?",
        "-+0123456789.",
    ),
}
REMOVED = [TAG + name for name in (*REPLACED, "timestamp")]


class _Loader(SafeLoader):
    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {
        first: [(tag, pattern) for tag, pattern in known if tag not in REMOVED]
        for first, known in SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: MappingNode, deep: bool = False) -> dict[Any, Any]:
        """As PyYAML's own, but a name that comes twice is refused."""
        names = [self.construct_object(key, deep=True) for key, _ in node.value]
        _refuse_repeated(names, str(node.start_mark))
        values: dict[Any, Any] = super().construct_mapping(node, deep)
        return values


for _name, (_pattern, _firsts) in REPLACED.items():
    _Loader.add_implicit_resolver(TAG + _name, re.compile(f"^(?:{_pattern})$"), list(_firsts))
# Version 1.1's reads 010 as 8.
_Loader.add_constructor(f"{TAG}int", lambda loader, node: int(loader.construct_scalar(node)))


def load_yaml(text: str) -> Any:
    """The value of a document; ValueError, with the place, for what is none."""
    try:
        return json.loads(text, object_pairs_hook=_once)
    except json.JSONDecodeError:
        pass
    try:
        return load(text, _Loader)  # a SafeLoader: plain values only
    except YAMLError as error:
        raise ValueError(str(error)) from error


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    _refuse_repeated([name for name, _ in pairs])
    return dict(pairs)


def _refuse_repeated(names: list[Any], place: str = "") -> None:
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise ValueError(f"{twice[0]!r} comes twice{place}")
