"""A command's work for a caller in Python, done in a process of its own.

A notebook has an event loop, handlers of signals, and perhaps a Prefect of its own that looks
elsewhere; work in a process beside it meets none of them, and the caller loads neither Prefect nor
torch. The process calls the functions that the command calls, ends when its caller does, and stops
at a checkpoint when it is interrupted.
"""

from __future__ import annotations

import codecs
import json
import os
import re
import selectors
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from trimtab.flows.config.errors import CommandError, ConfigError
from trimtab.infra.processes.environment import child_env
from trimtab.infra.settings import SettingsError

MAX_TAIL = 4000  # characters of the log that are part of an error
OPTION = re.compile(r"(^|found |or )--([a-z-]+)")  # as commands' errors name them
ARGUMENTS = {"apply": "review", "judge": "judges", "reward-model": "reward_models"}
MISTAKES = {kind.__name__: kind for kind in (ConfigError, SettingsError, CommandError)}


def call(work: str, arguments: Mapping[str, Any], *, progress: bool) -> dict[str, Any]:
    """What the function of this name in WORK returns, from a process of its own.

    arguments: plain values. progress: show how far it is on standard error: live in a terminal,
    else as lines. Raises ConfigError, SettingsError and CommandError as the function does,
    CommandError for a process that ends without an answer, and KeyboardInterrupt once it has
    stopped at a checkpoint; a second interrupt ends it at once.
    """
    terminal = sys.__stderr__
    is_live = progress and terminal is not None and sys.stderr is terminal and terminal.isatty()
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb", buffering=0) as answers:
        try:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", __name__, str(writing)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=None if is_live else subprocess.PIPE,
                env=child_env({}),
                pass_fds=[writing],
                start_new_session=True,  # an interrupt reaches it by us alone
            )
        finally:
            os.close(writing)
        assert process.stdin is not None
        with process:
            request = json.dumps({"work": work, "arguments": arguments})
            with _interrupts_passed_on(process) as is_interrupted:
                with suppress(BrokenPipeError):  # it has ended, and its log says why
                    process.stdin.write(request.encode() + b"\n")
                    process.stdin.flush()
                answer, tail = _follow(process, answers, is_shown=progress)
    if is_interrupted():
        raise KeyboardInterrupt
    if not answer:
        raise CommandError(f"the work's process ended with status {process.returncode}{tail}")
    values: dict[str, Any] = json.loads(answer)
    if "error" in values:
        raise MISTAKES[values["error"]](name_arguments(values["text"]))
    result: dict[str, Any] = values["result"]
    return result


def name_arguments(text: str) -> str:
    """A command's error with the arguments of the calls in place of its options."""
    return OPTION.sub(
        lambda option: option[1] + ARGUMENTS.get(option[2], option[2].replace("-", "_")), text
    )


@contextmanager
def _interrupts_passed_on(process: subprocess.Popen[bytes]) -> Iterator[Callable[[], bool]]:
    """Inside, Ctrl-C is passed on to the process; gives whether there was one.

    Only the main thread gets signals. Two of them end the process.
    """
    count = 0

    def pass_on(_number: int, _frame: object) -> None:
        nonlocal count
        count += 1
        process.send_signal(signal.SIGINT if count == 1 else signal.SIGKILL)

    is_main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGINT, pass_on) if is_main else None
    try:
        yield lambda: count > 0
    finally:
        if is_main:
            signal.signal(signal.SIGINT, before)


def _follow(process: subprocess.Popen[bytes], answers: Any, *, is_shown: bool) -> tuple[bytes, str]:
    """The process's answer, once it has ended, and the end of its log.

    Its log is shown on our standard error, which in a notebook is the cell's. It is not read to its
    end: Prefect's server, which writes to it too, outlives the process by seconds.
    """
    decode, tail, answer = codecs.getincrementaldecoder("utf-8")("replace").decode, "", b""
    with selectors.DefaultSelector() as selector:
        selector.register(answers, selectors.EVENT_READ)
        if process.stderr is not None:
            selector.register(process.stderr, selectors.EVENT_READ)
        has_ended = False
        while events := selector.select(0 if has_ended else None):
            for key, _ in events:
                data = os.read(key.fd, 1 << 16)
                if not data:
                    selector.unregister(key.fileobj)
                if key.fileobj is not answers:
                    text = decode(data)
                    tail = (tail + text)[-MAX_TAIL:]
                    if is_shown:
                        sys.stderr.write(text)
                        sys.stderr.flush()
                elif data:
                    answer += data
                else:
                    process.wait()
                    has_ended = True
            if not selector.get_map():
                break
    return answer, f"; the end of its log:\n{tail}" if tail.strip() else ""


def audit(
    sources: Sequence[str], overrides: Sequence[str], options: Mapping[str, Any]
) -> dict[str, Any]:
    """As `trimtab audit`."""
    from trimtab.flows.cli.environment import load_settings
    from trimtab.flows.cli.pair_files import AuditOptions, audit_files

    settings = load_settings()
    return audit_files(sources, overrides, AuditOptions(**options), settings, is_quiet=True)


def reward(
    sources: Sequence[str], overrides: Sequence[str], options: Mapping[str, Any]
) -> dict[str, Any]:
    """As `trimtab reward`."""
    from trimtab.flows.cli.environment import load_settings
    from trimtab.flows.cli.pair_files import RewardOptions, train_reward

    settings = load_settings()
    return train_reward(sources, overrides, RewardOptions(**options), settings, is_quiet=True)


def run(
    recipe: str | None, overrides: Sequence[str], config: str | None, flow: str, name: str | None
) -> dict[str, Any]:
    """As `trimtab run`; the run's name."""
    from trimtab.flows.cli.commands import parse_request, recipe_and_changes, run_recipe
    from trimtab.flows.cli.environment import load_settings

    settings = load_settings()
    recipe, changes = recipe_and_changes(recipe, Path(config) if config else None, overrides)
    request = parse_request(recipe, changes, flow, None, None, name, settings)
    run_recipe(request, settings)
    return {"name": request.name}


WORK = {function.__name__: function for function in (audit, reward, run)}


def main(descriptor: int) -> None:
    """The process: reads a request from stdin, and writes the answer to the descriptor."""
    from trimtab.flows.runs.exit_handling import exit_on_signals

    os.set_inheritable(descriptor, False)
    request = json.loads(sys.stdin.buffer.readline())
    threading.Thread(target=_end_with_the_caller, daemon=True).start()
    with exit_on_signals():
        answer: dict[str, Any]
        try:
            answer = {"result": WORK[request["work"]](**request["arguments"])}
        except tuple(MISTAKES.values()) as error:
            answer = {"error": type(error).__name__, "text": str(error)}
    with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
        json.dump(answer, stream)


def _end_with_the_caller() -> None:
    """Ask for the end once stdin is closed: our caller is gone."""
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main(int(sys.argv[1]))
