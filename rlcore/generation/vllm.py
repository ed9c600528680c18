"""Generation by vLLM."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Collection, Coroutine, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from rlcore.config import Config, model_directory
from rlcore.generation.interface import EngineDied, EngineUnfit, FinishReason, Generation, GenerationRequest
from rlcore.generation.vllm_arguments import engine_arguments, whole_distribution
from rlcore.generation.vllm_process import (
    engine_environment,
    environment_variables,
    last_error,
    log_size,
    log_to,
    output_to,
)
from rlcore.log_end import last_lines
from rlcore.progress import WRITE_SECONDS, beat, counting
from rlcore.weights.bucket import Bucket

if TYPE_CHECKING:
    from vllm import RequestOutput, SamplingParams
    from vllm.v1.engine.async_llm import AsyncLLM

T = TypeVar("T")

LIVENESS_SECONDS = 0.5
"""How often a call that waits for the engine's process looks whether that is still there."""
SHUTDOWN_SECONDS = 1.0
"""What the engine's process gets to end by itself: it has nothing to save."""


class VLLMGenerator:
    """A Generator whose engine is vLLM's AsyncLLM, in a process of its own.

    One vLLM request per response, with the request's seed. No top-p, top-k or penalty, whatever the
    model's generation_config says; of it only the end-of-sequence tokens are used.

    All methods are to be called on one event loop. vLLM's messages go to `log_path`, or where this
    process writes if that is None.
    """

    def __init__(self, config: Config, log_path: str | None = None) -> None:
        self._config = config
        self._model = model_directory(config.model)
        self._log = None if log_path is None else Path(log_path)
        self._log_start = 0
        self._scratch: TemporaryDirectory[str] | None = None
        self._engine: AsyncLLM | None = None
        self._starting = asyncio.Lock()
        self._updating = False
        self._asleep = False

    async def start(self) -> None:
        """Load the model at policy version 0, unless it is loaded and no update of it was left half done.

        Takes seconds, during which the event loop stands.

        Raises:
            EngineUnfit: it cannot serve the configuration.
            EngineDied: its process ended before it came up.
        """
        async with self._starting:
            if self._engine is not None and not self._engine.errored and not self._updating:
                await self._wake(self._engine)
                return
            await self.close()
            cuda = torch.cuda.is_available()
            self._log_start = log_size(self._log)
            self._scratch = TemporaryDirectory(prefix="vllm-")
            environment = engine_environment(
                self._config.hardware.engine_threads,
                cuda=cuda,
                logged=self._log is not None,
                scratch=self._scratch.name,
            )
            with output_to(self._log), environment_variables(environment):
                from vllm.v1.engine.async_llm import AsyncLLM

                try:
                    self._engine = AsyncLLM.from_engine_args(engine_arguments(self._config, cuda=cuda))
                except RuntimeError as error:
                    raise self._failed_to_start() from error
            if self._log is not None:
                log_to(self._log)
            await self._answer(self._engine, self._engine.collective_rpc("exit_with_parent"))
            await self._answer(self._engine, self._engine.update_weight_version("0"))

    async def close(self) -> None:
        """End the engine's process. Running requests fail with EngineDied."""
        engine, self._engine = self._engine, None
        self._updating = self._asleep = False
        if engine is not None:
            from vllm.v1.engine.exceptions import EngineDeadError

            engine.output_processor.propagate_error(EngineDeadError())
            engine.shutdown(timeout=SHUTDOWN_SECONDS)
        if self._scratch is not None:
            self._scratch.cleanup()
            self._scratch = None

    async def sleep(self) -> None:
        """Give back the GPU's memory until `start`: weights wait in the host's, and no request is under way."""
        engine = self._running()
        await self._answer(engine, engine.sleep(level=1))
        self._asleep = True

    async def _wake(self, engine: AsyncLLM) -> None:
        if self._asleep:
            await self._answer(engine, engine.wake_up())
            self._asleep = False

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        """One generation per request, in the order of the requests. If one fails, the others are given up.

        Requests of the same ids that still run, for a caller that is gone, are aborted first.

        Raises:
            ValueError: a request that cannot be served. Names it.
            EngineDied: the engine's process ended.
        """
        identifiers = [request.request_id for request in requests]
        if len(set(identifiers)) < len(identifiers):
            raise ValueError("two requests have the same request_id")
        for request in requests:
            self._check_length(request.request_id, len(request.prompt_ids), request.max_tokens)
        await self.abort(identifiers)
        finished: list[Generation] = []
        counter = asyncio.create_task(self._count(set(identifiers), finished, len(identifiers)))

        async def generate(request: GenerationRequest) -> Generation:
            generation = await self.generate_one(request)
            finished.append(generation)
            return generation

        try:
            return await _all([generate(request) for request in requests])
        finally:
            counter.cancel()

    async def generate_one(self, request: GenerationRequest) -> Generation:
        """
        Raises:
            ValueError: it cannot be served.
            EngineDied: the engine's process ended.
        """
        self._check_length(request.request_id, len(request.prompt_ids), request.max_tokens)
        submitted = time.monotonic()
        sampling = whole_distribution(
            max_tokens=request.max_tokens, temperature=request.temperature, seed=request.seed, logprobs=0
        )
        output = await self._run(request.request_id, request.prompt_ids, sampling)
        completion = output.outputs[0]
        response_ids = list(completion.token_ids)
        reason: FinishReason = completion.finish_reason
        return Generation(
            request_id=request.request_id,
            response_ids=response_ids,
            logprobs=list(completion.logprobs.logprobs),
            policy_versions=[
                int(span.version) for span in completion.weight_versions for _ in range(span.start, span.end)
            ],
            finish_reason=reason,
            text=self._running().get_tokenizer().decode(response_ids, skip_special_tokens=True),
            seconds=time.monotonic() - submitted,
        )

    async def abort(self, request_ids: Sequence[str]) -> None:
        """End running requests: they return what they have, with finish_reason `abort`. Others are ignored."""
        await self._running().abort(list(request_ids))

    async def score(self, prompt_ids: Sequence[int], response_ids: Sequence[int], temperature: float) -> list[float]:
        """Log-probabilities of given response tokens under the current weights, temperature applied as in `Generation`.

        At temperature 1 this is one forward pass over prompt and response. vLLM knows no temperature for the
        tokens of a prompt, so at another one every response token is a request of its own (its prefix, and
        the log-probability of this one token next): exact, at the price of as many prompts.

        Raises:
            ValueError: the prompt is empty, or prompt and response are too long.
            EngineDied: the engine's process ended.
        """
        self._check_length("score", len(prompt_ids), len(response_ids))
        if not response_ids:
            return []
        tokens = [*prompt_ids, *response_ids]
        if temperature in (0.0, 1.0):
            output = await self._run(
                "score", tokens, whole_distribution(max_tokens=1, temperature=0.0, prompt_logprobs=0)
            )
            return list(output.prompt_logprobs.logprobs[-len(response_ids) :])
        return await _all(
            [self._score_one(tokens[:end], tokens[end], temperature) for end in range(len(prompt_ids), len(tokens))]
        )

    async def start_update(self) -> None:
        """Stop between two tokens, to be given all weights anew by `load_bucket`.

        Running requests go on under the new weights after `finish_update`: their past is computed again, so no token
        depends on keys and values of the old weights. An engine whose update is never finished is made anew by `start`.

        Raises:
            EngineDied: the engine's process ended, or failed and was ended, as half of its weights may be new. This and
                the next two.
        """
        engine = self._running()
        self._updating = True
        async with self._or_ended():
            await self._answer(engine, engine.pause_generation(mode="keep", clear_cache=True))
            await self._answer(engine, engine.start_weight_update())

    async def load_bucket(self, bucket: Bucket) -> None:
        """Load some of the weights. Their memory is read when this returns."""
        from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest

        engine = self._in_update()
        async with self._or_ended():
            await self._answer(engine, engine.update_weights(WeightTransferUpdateRequest(bucket.to_dict())))

    async def finish_update(self, policy_version: int) -> None:
        """All weights are there: serve them, as those of that version."""
        engine = self._in_update()
        async with self._or_ended():
            await self._answer(engine, engine.finish_weight_update(str(policy_version)))
            await self._answer(engine, engine.resume_generation())
        self._updating = False

    async def policy_version(self) -> int:
        """Number of optimizer updates behind the weights that are served, as the engine's process has it."""
        engine = self._running()
        return int(await self._answer(engine, engine.get_weight_version()))

    @property
    def _longest(self) -> int:
        return self._config.data.prompt_length + self._config.rollout.response_length

    def _check_length(self, name: str, prompt: int, response: int) -> None:
        if not prompt:
            raise ValueError(f"{name}: the prompt is empty")
        if prompt + response > self._longest:
            raise ValueError(
                f"{name}: {prompt} prompt tokens and {response} response tokens are more than the engine holds, "
                f"{self._longest} (data.prompt_length + rollout.response_length)"
            )

    def _running(self) -> AsyncLLM:
        if self._engine is None:
            raise EngineDied(f"the vLLM engine of {self._model} is not running: call start()")
        if self._engine.errored:
            raise self._died()
        return self._engine

    def _in_update(self) -> AsyncLLM:
        engine = self._running()
        if not self._updating:
            raise EngineDied(f"the vLLM engine of {self._model} is no longer the one whose update was started")
        return engine

    @asynccontextmanager
    async def _or_ended(self) -> AsyncIterator[None]:
        """End an engine that fails in here: nothing may be sampled from weights of which half may be new."""
        try:
            yield
        except BaseException as error:
            await self.close()
            if isinstance(error, Exception):
                raise self._died("while it was given new weights") from error
            raise

    def _died(self, when: str = "") -> EngineDied:
        about = f"the vLLM engine of {self._model} died {when}".rstrip()
        if self._log is None:
            return EngineDied(f"{about}; see its messages above")
        reason = last_error(self._log, self._log_start)
        cause = f" of {reason}" if reason else ""
        return EngineDied(f"{about}{cause}; its log is {self._log}, which ends:\n{last_lines(self._log)}")

    def _failed_to_start(self) -> EngineDied | EngineUnfit:
        reason = "" if self._log is None else last_error(self._log, self._log_start)
        if reason.startswith("ValueError"):
            return EngineUnfit(f"the vLLM engine of {self._model} refuses to start: {reason}; its log is {self._log}")
        return self._died()

    async def _answer(self, engine: AsyncLLM, call: Coroutine[Any, Any, T]) -> T:
        """The answer of the engine's process. vLLM waits for ever if the process ends before it answers."""
        task = asyncio.create_task(call)
        try:
            while not (await asyncio.wait({task}, timeout=LIVENESS_SECONDS))[0]:
                if engine.errored:
                    raise self._died()
            return task.result()
        finally:
            task.cancel()

    async def _run(self, request_id: str, tokens: Sequence[int], sampling: SamplingParams) -> RequestOutput:
        from vllm.inputs.engine import tokens_input
        from vllm.v1.engine.exceptions import EngineDeadError

        try:
            outputs = self._running().generate(tokens_input(list(tokens)), sampling, request_id)
            last = [output async for output in outputs][-1]
        except EngineDeadError as error:
            if self._engine is None:
                raise EngineDied(f"the vLLM engine of {self._model} was closed") from error
            raise self._died() from error
        beat()
        return last

    async def _count(
        self, request_ids: Collection[str], finished: Sequence[Generation], total: int | None = None
    ) -> None:
        """Report the responses that are finished, and the tokens of all of these requests, until cancelled."""
        with counting("responses", total) as responses, counting("tokens") as tokens:
            while self._engine is not None:
                under_way = self._engine.output_processor.request_states.values()
                counts = [
                    each.detokenizer.num_output_tokens() for each in under_way if each.external_req_id in request_ids
                ]
                responses(len(finished))
                tokens(sum(len(generation.response_ids) for generation in finished) + sum(counts))
                await asyncio.sleep(WRITE_SECONDS)

    async def _score_one(self, prefix: Sequence[int], token: int, temperature: float) -> float:
        sampling = whole_distribution(max_tokens=1, temperature=temperature, seed=0, logprob_token_ids=[token])
        output = await self._run("score", prefix, sampling)
        sampled_and_given = output.outputs[0].logprobs.logprobs
        return float(sampled_and_given[1])


async def _all(calls: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """The results of concurrent calls, in order. The first failure cancels the others and is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(call) for call in calls]
    except ExceptionGroup as failures:
        first = failures.exceptions[0]
        raise first from first.__cause__
    return [task.result() for task in tasks]
