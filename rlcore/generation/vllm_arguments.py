"""What vLLM is asked for: one engine, one response."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlcore.config import Config, model_directory

if TYPE_CHECKING:
    from vllm import AsyncEngineArgs, SamplingParams

GIB = 2**30
PREFILL_TOKENS = 2048
"""Prompt tokens in one forward pass, at least."""
SHARED_MEMORY = "shared_memory"
"""vLLM's name for the weight transfer of rlcore.generation.weight_receiver."""


def engine_arguments(config: Config, *, cuda: bool) -> AsyncEngineArgs:
    """vLLM's arguments for one engine on this kind of machine."""
    from vllm import AsyncEngineArgs
    from vllm.v1.executor.uniproc_executor import UniProcExecutor

    # One more than the longest sequence: scoring it asks vLLM for a further token.
    max_model_len = config.data.prompt_length + config.rollout.response_length + 1
    arguments: dict[str, Any]
    if cuda:
        arguments = {"enable_sleep_mode": config.hardware.engines_share_gpu}
    else:
        arguments = {
            "enforce_eager": True,
            # The least that its attention takes: responses to one prompt share whole blocks alone.
            "block_size": 32,
            # By name ("uni") vLLM would replace it by an executor with one more process.
            "distributed_executor_backend": UniProcExecutor,
            # With a seed, a prompt that is computed in two parts ends vLLM 0.32's CPU engine
            # ("CPU Generator does not use offset"): every prompt in one part.
            "enable_chunked_prefill": False,
            "max_num_batched_tokens": max(max_model_len, PREFILL_TOKENS, config.hardware.max_num_seqs),
        }
    return AsyncEngineArgs(
        model=str(model_directory(config.model)),
        dtype=config.model.dtype,
        max_model_len=max_model_len,
        max_num_seqs=config.hardware.max_num_seqs,
        kv_cache_memory_bytes=int(config.hardware.kv_cache_gib * GIB),
        logprobs_mode="processed_logprobs",
        generation_config="vllm",
        worker_extension_cls="rlcore.generation.vllm_worker.WorkerExtension",
        weight_transfer_config={"backend": SHARED_MEMORY},
        disable_log_stats=True,
        **arguments,
    )


def whole_distribution(**values: Any) -> SamplingParams:
    """Sampling from the whole distribution; the response comes when it is complete."""
    from vllm.sampling_params import RequestOutputKind, SamplingParams

    return SamplingParams(
        **values,
        top_p=1.0,
        top_k=0,
        min_p=0.0,
        flat_logprobs=True,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )
