"""Two hundred and more bodies that are no request for rewards."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

# No JSON, or no object.
RAW = (
    *(b"", b" ", b"{", b"}", b"[", b'{"inputs": ', b'{"inputs": ["a"]', b'{"inputs": ["a"]}}'),
    *(b"null", b"true", b"3", b'"text"', b"[]", b'["a"]', b"{'inputs': ['a']}", b"inputs=a"),
    *(b"\xff\xfe{}", b"\x00", b'{"inputs": ["\xff"]}', b'{"inputs": ["a\x00"]}', b"\xef\xbb\xbf{}"),
    *(
        b'{"inputs": [' + word + b"]}"
        for word in (b"NaN", b"Infinity", b"-Infinity", b"0x1", b"01")
    ),
    *(b'{"inputs": ["a"], "seed": ' + n + b"}" for n in (b"NaN", b"1" * 5000, b"Infinity")),
    b'{"inputs": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    b'{"inputs": [' + b'{"prompt": ' * 50_000 + b"1" + b"}" * 50_000 + b"]}",
    b'{"a": ' * 900 + b"1" + b"}" * 900,
    *(b'{"inputs": [' + b"[" * depth + b"]" * depth + b"]}" for depth in (500, 800, 900, 950)),
    b"[" * 1_000_000,
    b"a" * 1_000_000,
    b'{"inputs": ["a"]}' * 2,
)
# What no text is, and no list of texts.
NO_TEXT: tuple[Any, ...] = (None, True, 0, 1.5, -1e300, {}, {"text": "a"}, "\ud800", "a\udfff")
NO_LIST: tuple[Any, ...] = (None, True, 3, 0.5, {}, {"a": "b"}, [])
NO_MESSAGES: tuple[Any, ...] = (
    [],
    ["user"],
    [None],
    [[]],
    [{}],
    [{"role": "user"}],
    [{"content": "a"}],
    [{"role": "user", "content": "a"}],
    [{"role": "assistant", "content": "a"}, {"role": "user", "content": "b"}],
    [{"role": "wizard", "content": "a"}, {"role": "assistant", "content": "b"}],
    [{"role": 3, "content": "a"}, {"role": "assistant", "content": "b"}],
    [{"role": "user", "content": 3}, {"role": "assistant", "content": "b"}],
    [{"role": "user", "content": "\ud800"}, {"role": "assistant", "content": "b"}],
    [{"role": "user", "content": [{"type": "image_url"}]}, {"role": "assistant", "content": "b"}],
    [{"role": "user", "content": ""}, {"role": "assistant", "content": "b"}],
    [{"role": "user", "content": "a"}, {"role": "assistant", "content": None}],
    [{"role": "user", "content": "a"}, {"role": "assistant", "content": "\udc00"}],
)
PAIRS = (("queries", "documents"), ("queries", "items"), ("text_1", "text_2"), ("data_1", "data_2"))


def malformed_bodies() -> Iterator[bytes]:
    """Each wrong in one place."""
    yield from RAW
    yield from (json.dumps(value).encode() for value in _objects())


def _objects() -> Iterator[dict[str, Any]]:
    yield {}
    yield from ({key: "a"} for key in ("input_", "prompt", "response", "queries", "documents", ""))
    yield {"inputs": ["a"], "query": ["a"]}
    yield {"prompt": "a", "response": "b", "input": "c"}
    yield {"queries": "a", "documents": "b", "items": "c"}
    yield from ({"inputs": value} for value in (*NO_LIST, "a"))
    no_input = (*NO_TEXT, "", " \n", [[]], {"prompt": "a"}, {"prompt": 1, "response": "a"})
    yield from ({"inputs": ["right", value]} for value in no_input)
    yield from ({"inputs": [value]} for value in NO_MESSAGES)
    yield from ({"inputs": [{"prompt": "a", "response": value}]} for value in (*NO_TEXT, []))
    yield from ({"inputs": [{"prompt": value, "response": "a"}]} for value in (*NO_TEXT, []))
    yield {"inputs": [{"prompt": " ", "response": ""}]}
    yield from ({"query": value} for value in (*NO_LIST[:-1], "a"))
    yield from ({"query": ["right", value]} for value in (*NO_TEXT, "", []))
    yield from ({"query": ["a"], "prompts": value} for value in (None, "a", {}, [], ["a", "b"]))
    yield from ({"prompt": "a", "response": value} for value in (*NO_TEXT, []))
    yield from ({"prompt": value, "response": "a"} for value in (*NO_TEXT, [], ["a"], [{}]))
    yield {"prompt": "", "response": "\t"}
    yield from ({"input": value} for value in (*NO_LIST, "", [1, 2], [[1, 2]], ["a", None], [""]))
    yield from ({"input": "a", key: True} for key in ("use_activation", "activation"))
    yield {"input": "a", "use_activation": "no"}
    yield from ({"messages": value} for value in (*NO_LIST, *NO_MESSAGES[1:]))
    for first, second in PAIRS:
        yield from ({first: value, second: "a"} for value in (*NO_LIST, ["a", "b"]))
        yield from ({first: "a", second: value} for value in (*NO_LIST, ["a", 1]))
        yield {first: ["a", "b"], second: ["a", "b", "c"]}
