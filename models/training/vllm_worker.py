"""vLLM in a process of its own: requests come in, and answers go out, as lines of JSON.

    python vllm_worker.py FOLDER

It is run as a file, by the Python that has vLLM, which need not have this project. Requests:

- {"load": ARGUMENTS}: start the engine, vllm.LLM(**ARGUMENTS)
- {"weights": FOLDER}: take the weights of a `save_pretrained` folder; an engine that sleeps wakes
- {"prompts": [[ID, ...], ...], "seeds": [SEED, ...], "sampling": ARGUMENTS}: a response to each
  prompt, by vllm.SamplingParams(seed=SEED, **ARGUMENTS); the answer is
  {"responses": [[ID, ...], ...], "logprobs": [[NATS, ...], ...]}, of tokens under softmax(logits).
  An engine with `enable_sleep_mode` sleeps before the answer: without weights, which must be given

What fails is answered by {"error": TEXT}. The process ends when its input does, also at work, and
removes the folder of its command, in which whoever asked may have left weights.
"""

from __future__ import annotations

import json
import os
import queue
import shutil
import sys
import threading
from typing import Any


def main() -> None:
    """Answer requests until there are no more."""
    # vLLM prints to stdout: move that to stderr, so that only answers go to the parent.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    requests: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(requests,), daemon=True).start()
    worker = Worker()
    while True:
        request = requests.get()
        try:
            answer = worker.handle(request)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)


def _read(requests: queue.SimpleQueue[dict[str, Any]]) -> None:
    for line in sys.stdin:
        requests.put(json.loads(line))
    shutil.rmtree(sys.argv[1], ignore_errors=True)
    os._exit(0)  # whoever asked is gone


class Worker:
    """The engine, once it is loaded."""

    engine: Any = None
    can_sleep = is_asleep = False

    def handle(self, request: dict[str, Any]) -> dict[str, Any]:
        """Do what a request asks for and return the answer; raises what vLLM raises."""
        if "load" in request:
            from vllm import LLM

            self.engine = LLM(**request["load"])
            self.can_sleep = request["load"]["enable_sleep_mode"]
        elif "weights" in request:
            self._take_weights(request["weights"])
        else:
            answer = self._sample(request)
            if self.can_sleep:
                self.engine.sleep(level=2)  # 2: weights are not kept, as others come
                self.is_asleep = True
            return answer
        return {}

    def _take_weights(self, folder: str) -> None:
        if self.is_asleep:
            self.engine.wake_up(tags=["weights"])  # the cache after them: both come from one memory
        self.engine.collective_rpc("reload_weights", kwargs={"weights_path": folder})
        if self.is_asleep:
            self.engine.wake_up(tags=["kv_cache"])
        self.is_asleep = False
        self.engine.reset_prefix_cache()  # keys and values are of the weights before

    def _sample(self, request: dict[str, Any]) -> dict[str, Any]:
        from vllm import SamplingParams

        outputs = self.engine.generate(
            [{"prompt_token_ids": ids} for ids in request["prompts"]],
            [SamplingParams(seed=seed, **request["sampling"]) for seed in request["seeds"]],
            use_tqdm=False,
        )
        first = [row.outputs[0] for row in outputs]
        return {
            "responses": [list(one.token_ids) for one in first],
            "logprobs": [_own_logprobs(one) for one in first],
        }


def _own_logprobs(response: Any) -> list[float]:
    """Log-probabilities of the response's own tokens; vLLM returns others with them."""
    pairs = zip(response.token_ids, response.logprobs, strict=True)
    return [noted[token].logprob for token, noted in pairs]


if __name__ == "__main__":
    main()
