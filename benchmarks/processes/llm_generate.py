"""vLLM's own LLM.generate on the requests of a file. benchmarks/rollout.py starts it.

    python benchmarks/processes/llm_generate.py RUN/config.yaml REQUESTS.json

One process with one engine, which is given all requests at once; its arguments are those of rlvr's engines. Prints the
seconds and the tokens of every round but the first, in which it warms up, as one line of JSON.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from pathlib import Path

from vllm import LLM, EngineArgs
from vllm.inputs.engine import tokens_input

from rlcore.compose import load
from rlcore.generation.vllm_arguments import engine_arguments, whole_distribution


def main() -> None:
    config = load(Path(sys.argv[1]))
    rounds = json.loads(Path(sys.argv[2]).read_text())
    wanted = engine_arguments(config, cuda=False)
    arguments = {field.name: getattr(wanted, field.name) for field in dataclasses.fields(EngineArgs)}
    # What only rlvr has need of.
    del arguments["worker_extension_cls"], arguments["weight_transfer_config"]
    llm = LLM(**arguments)
    measured = []
    for requests in rounds:
        prompts = [tokens_input(request["prompt_ids"]) for request in requests]
        sampling = [
            whole_distribution(max_tokens=r["max_tokens"], temperature=r["temperature"], seed=r["seed"], logprobs=0)
            for r in requests
        ]
        started = time.perf_counter()
        outputs = llm.generate(prompts, sampling, use_tqdm=False)
        seconds = time.perf_counter() - started
        measured.append({"seconds": seconds, "tokens": sum(len(output.outputs[0].token_ids) for output in outputs)})
    print(json.dumps(measured[1:]))


if __name__ == "__main__":
    main()
