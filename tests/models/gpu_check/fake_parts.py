"""Parts that end in every way a part can."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time

from trimtab.models.gpu_check.driver import Bench, LeftOutError, forked


def measures(bench: Bench) -> None:
    bench.note("card", "pretended card")
    bench.note("rate", 1234.5, "tokens/s", least=1200, most=1300)
    bench.note("share", 24.0, "%", target="at least 45 %", met=False)


def reads_what_was_found(bench: Bench) -> None:
    bench.note("found before", bench.earlier_value("measures", "rate"))
    whole = json.loads((bench.out / "results.json").read_text())
    bench.note("parts in the file", len(whole["parts"]))


def raises(bench: Bench) -> None:
    bench.note("before it failed", 1.0)
    raise ValueError("weights differ by 0.2")


def hangs_with_a_child(bench: Bench) -> None:
    bench.note("child", subprocess.Popen(["sleep", "600"]).pid)
    time.sleep(600)


def kills_itself(_: Bench) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def leaves_a_child(bench: Bench) -> None:
    bench.note("child", subprocess.Popen(["sleep", "600"]).pid)


def leaves_a_thread(bench: Bench) -> None:
    bench.note("rate", 1.0)
    threading.Thread(target=time.sleep, args=(600,)).start()


def fails_beside_a_fork(_: Bench) -> None:
    forked(lambda: time.sleep(600))
    raise ValueError("the real reason")


def cannot_run_here(_: Bench) -> None:
    raise LeftOutError("it needs a library")


def stops_the_command(_: Bench) -> None:
    os.kill(os.getppid(), signal.SIGTERM)
    time.sleep(600)
