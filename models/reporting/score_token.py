"""The token that a scorer is read at, put behind every text by an exported scorer's own tokenizer.

Trimtab scores prompt + answer + end token. Others read the score at the last token that is no
padding, and what they give is a text with or without the end token, a prompt and an answer as a
pair, or messages. So the end token stands in three places of an exported folder:

1. The tokenizer's normalizer ends every text with it, once, whether or not special tokens are asked
   for: TRL's reward call asks for none. A prompt stays open, so that of a pair the answer alone is
   ended. Tokens are found after it (`normalized`), or it would end every piece between two of them.
2. Nothing else is added: no begin-of-text token, as nowhere in training.
3. The chat template writes a closing answer as it was learned: behind the prompt that generation
   starts from, up to the end token.

Where a tokenizer's own normalizer is at odds with (1), or none is read (`REBUILT`), its
post-processor adds the token, to what is tokenised with special tokens, as is the default.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from itertools import takewhile
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from trimtab.models.data.messages import ASSISTANT_MARK, HH_NAMES
from trimtab.models.synthetic.tasks import ASSISTANT, USER

# In a model's config.json: the token that the score is read at, whether the tokenizer puts it
# behind every text or only where special tokens are asked for, whether it learned from prompts of
# text, of messages or of both, and of a reward model what it scored on known answers.
MARK = "trimtab"
# Models whose tokenizer transformers 5 builds anew, without the normalizer of tokenizer.json.
REBUILT = ("qwen2",)
# Of models that have no template of their own, messages as Trimtab writes them.
HH_TEMPLATE = (
    f"{{%- set names = {json.dumps(HH_NAMES)} -%}}"
    '{%- for message in messages -%}{{ "\\n\\n" + names[message.role] + ": " + message.content }}'
    f"{{%- endfor -%}}{{%- if add_generation_prompt -%}}{{{{ {json.dumps(ASSISTANT_MARK)} }}}}"
    "{%- endif -%}"
)
WORLD_TEMPLATE = (
    '{%- for message in messages -%}{%- if message.role == "assistant" -%}'
    '{{ " " + message.content + " " }}{%- else -%}'
    f'{{{{ "{USER} " + message.content + " {ASSISTANT}" }}}}'
    "{%- endif -%}{%- endfor -%}"
)
# An answer that closes the dialogue stands behind the prompt for it.
SPLIT_OFF = (
    "{%- set closing = none -%}"
    '{%- if messages[-1].role == "assistant" and not add_generation_prompt -%}'
    "{%- set closing = messages[-1].content -%}{%- set messages = messages[:-1] -%}"
    "{%- set add_generation_prompt = true -%}"
    "{%- if closing is not string -%}"
    '{%- set closing = closing | map(attribute="text") | join("\\n") -%}{%- endif -%}'
    "{%- endif -%}"
)
DIGIT = re.compile(r"[0-9]")
GENERATION = re.compile(r"\{%-?\s*(?:end)?generation\s*-?%\}")  # transformers' own tag


def end_texts(folder: Path) -> dict[str, Any]:
    """Change tokenizer and chat template of a `save_pretrained` folder so; what MARK says of it.

    ValueError for a tokenizer that has no end token.
    """
    settings = json.loads((folder / "tokenizer_config.json").read_text("utf-8"))
    end = end_token(settings)
    if end is None:
        raise ValueError(f"{folder}: the tokenizer has no end token, at which the score is read")
    backend = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    template, before = _template(folder, settings, backend)
    closing = f"{{{{ {json.dumps(before)} + closing + {json.dumps(end, ensure_ascii=False)} }}}}"
    chat_template = f"{SPLIT_OFF}{template}{{%- if closing is not none -%}}{closing}{{%- endif -%}}"
    open_ends = {ASSISTANT_MARK, _prompt_end(template)} - {""}
    tokens = [token["content"] for token in backend.get("added_tokens", [])]
    changed = _ended_by_normalizer(
        backend, end, [*sorted(open_ends), *(token for token in tokens if token == ASSISTANT)]
    )
    is_always = _model_type(folder) not in REBUILT and _ends_texts(changed, backend, end)
    if not is_always:
        changed = _ended_by_post_processor(backend, end)
    for name in ("add_bos_token", "add_eos_token", "add_prefix_space", "chat_template"):
        settings.pop(name, None)  # by which transformers would change what tokenizer.json says
    settings |= {"tokenizer_class": "PreTrainedTokenizerFast", "truncation_side": "left"}
    write(folder / "tokenizer.json", json.dumps(changed, ensure_ascii=False))
    write(folder / "tokenizer_config.json", json.dumps(settings, indent=2, ensure_ascii=False))
    write(folder / "chat_template.jinja", chat_template)
    return {"score_token": end, "is_always_appended": is_always}


def write(path: Path, text: str) -> None:
    """Put another file in the place of one that may be a link of the store's."""
    scratch = path.with_name(f".{path.name}")
    scratch.write_text(text, "utf-8")
    os.replace(scratch, path)


def end_token(settings: Mapping[str, Any]) -> str | None:
    """The text of the end token that a tokenizer_config.json names."""
    token = settings.get("eos_token")
    text = token.get("content") if isinstance(token, dict) else token
    return str(text) if text else None


def _model_type(folder: Path) -> str | None:
    path = folder / "config.json"
    return json.loads(path.read_text("utf-8")).get("model_type") if path.is_file() else None


def _template(folder: Path, settings: dict[str, Any], backend: dict[str, Any]) -> tuple[str, str]:
    """The chat template, and what stands between the prompt it writes and an answer."""
    path = folder / "chat_template.jinja"
    template = path.read_text("utf-8") if path.is_file() else settings.get("chat_template")
    if isinstance(template, str):
        return template, ""
    tokens = [token["content"] for token in backend.get("added_tokens", [])]
    return (WORLD_TEMPLATE, "") if ASSISTANT in tokens else (HH_TEMPLATE, " ")


def _prompt_end(template: str) -> str:
    """What every prompt ends with that the chat template writes; empty where it writes none."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    try:
        compiled = environment.from_string(GENERATION.sub("", template))
        first, second = (
            compiled.render(
                messages=[{"role": "user", "content": text}], add_generation_prompt=True
            )
            for text in ("a", "bc")
        )
    except (TemplateError, TypeError):
        return ""
    same = takewhile(lambda pair: pair[0] == pair[1], zip(first[::-1], second[::-1], strict=False))
    common = "".join(letter for letter, _ in same)[::-1]
    return common if len(common.strip()) > 1 else ""  # a line break ends answers, too


def _ended_by_normalizer(backend: dict[str, Any], end: str, open_ends: list[str]) -> dict[str, Any]:
    """A tokenizer.json that ends every text but those that end in `open_ends`."""
    added = [{**token, "normalized": True} for token in backend.get("added_tokens", [])]
    # A token by itself is the token: the normalizer is asked for its text, too. With any digits,
    # as it is slow to ask of each of thousands of numbered tokens whether it is any of them.
    others = [re.escape(token["content"]) for token in added if token["content"] != end]
    alone = dict.fromkeys(rf"\A{DIGIT.sub(r'[0-9]', text)}" for text in others)
    excepted = "|".join([*map(re.escape, open_ends), *alone])
    pattern = rf"{re.escape(end)}\s*\z|\z(?<!{excepted})"
    ending = {"type": "Replace", "pattern": {"Regex": pattern}, "content": end}
    before = backend.get("normalizer")
    normalizer = {"type": "Sequence", "normalizers": [ending, before]} if before else ending
    return {**backend, "added_tokens": added, "normalizer": normalizer, "post_processor": None}


def _ended_by_post_processor(backend: dict[str, Any], end: str) -> dict[str, Any]:
    """A tokenizer.json that ends a text or a pair where special tokens are asked for."""
    number = next(token["id"] for token in backend["added_tokens"] if token["content"] == end)
    first, second, last = (
        {"Sequence": {"id": "A", "type_id": 0}},
        {"Sequence": {"id": "B", "type_id": 0}},
        {"SpecialToken": {"id": end, "type_id": 0}},
    )
    processor = {
        "type": "TemplateProcessing",
        "single": [first, last],
        "pair": [first, second, last],
        "special_tokens": {end: {"id": end, "ids": [number], "tokens": [end]}},
    }
    return {**backend, "post_processor": processor}


def _ends_texts(changed: dict[str, Any], backend: dict[str, Any], end: str) -> bool:
    """Whether a changed tokenizer makes of texts the tokens it made before, and the end token."""
    try:
        new, old = (Tokenizer.from_str(json.dumps(tokenizer)) for tokenizer in (changed, backend))
    except Exception:  # of the library, of a pattern that it does not take
        return False
    number = new.token_to_id(end)

    def has_the_tokens(text: str) -> bool:
        expected = old.encode(text, add_special_tokens=False).ids
        encoded = (new.encode(f"{text}{more}").ids for more in ("", end))
        return all(ids == [*expected, number] for ids in encoded)

    tokens = [token["content"] for token in backend.get("added_tokens", [])]
    inside = [f"One {token}two\n{token}\n\nThree" for token in tokens[:64]]
    return all(map(has_the_tokens, ["One two", " One\n\nAssistant: two\n", *inside]))
