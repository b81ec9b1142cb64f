"""YAML as its version 1.2 reads numbers and switches.

PyYAML follows version 1.1, in which `on`, the name of one of our settings, is a switch, and 5e-6 a
text.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar

from yaml import SafeLoader, YAMLError, load

__all__ = ["YAMLError", "load_yaml"]

REPLACED = ("tag:yaml.org,2002:bool", "tag:yaml.org,2002:float", "tag:yaml.org,2002:timestamp")


class _Loader(SafeLoader):
    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {
        first: [(tag, pattern) for tag, pattern in known if tag not in REPLACED]
        for first, known in SafeLoader.yaml_implicit_resolvers.items()
    }


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile("^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF")
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(?:\.[0-9]+|[0-9]+\.[0-9]*|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?$"),
    list("-+0123456789."),
)


def load_yaml(text: str) -> Any:
    """The value of a document; YAMLError, with the place, for what is none."""
    return load(text, _Loader)  # a SafeLoader: plain values only
