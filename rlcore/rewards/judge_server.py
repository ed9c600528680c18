"""A judge of our own: vLLM's OpenAI server for one model, on the CPU and on loopback, for as long as who asks it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx

from rlcore.generation.vllm_process import engine_environment
from rlcore.log_end import last_lines
from rlcore.machine import HOST, end_with_parent, free_port
from rlcore.progress import beat
from rlcore.rewards.interface import ServicesFailed
from rlcore.rewards.options import ServeOptions

START_SECONDS = 300.0
LOOK_SECONDS = 0.5
STOP_SECONDS = 20.0
GIB = 2**30


class JudgeServer:
    """It starts at once; `url` waits for it. It knows its model by the name that it was given, a directory's path."""

    def __init__(self, model: str, options: ServeOptions) -> None:
        """
        Raises:
            FileNotFoundError: that is no directory of a model.
        """
        if not Path(model, "config.json").is_file():
            raise FileNotFoundError(f"the judge's model {model} is no directory with a config.json in it")
        self._model = model
        self._options = options
        self._scratch = TemporaryDirectory(prefix="judge-")
        self._log = Path(self._scratch.name, "log")
        self._is_ready = False
        self._start()

    def url(self) -> str:
        """Of its API, once it answers. A server that has died is started again.

        Raises:
            ServicesFailed: it does not come up; with the end of its log.
        """
        if self._process.poll() is not None and self._is_ready:
            self._start()
        deadline = time.monotonic() + START_SECONDS
        while not self._is_ready:
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise ServicesFailed(f"the judge's server does not come up; its log ends:\n{last_lines(self._log)}")
            beat()
            time.sleep(LOOK_SECONDS)
            try:
                self._is_ready = httpx.get(f"http://{HOST}:{self._port}/health").is_success
            except httpx.TransportError:
                continue
        return f"http://{HOST}:{self._port}/v1"

    def close(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._scratch.cleanup()

    def _start(self) -> None:
        self._is_ready = False
        self._port = free_port()
        options = {
            "--model": self._model,
            "--host": HOST,
            "--port": self._port,
            "--max-model-len": self._options.context_length,
            "--max-num-seqs": self._options.max_num_seqs,
            "--kv-cache-memory-bytes": int(self._options.kv_cache_gib * GIB),
            "--block-size": 32,
            "--generation-config": "vllm",
        }
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--enforce-eager"]
        environment = engine_environment(self._options.threads, cuda=False, logged=False, scratch=self._scratch.name)
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*command, *(str(part) for option in options.items() for part in option)],
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=end_with_parent,
            )
