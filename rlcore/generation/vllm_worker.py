"""What runs inside vLLM's worker process."""

from __future__ import annotations

import ctypes
import os
import threading
import time
from typing import Any

import torch
from safetensors import safe_open
from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

PARENT_POLL_SECONDS = 1.0


class WorkerExtension:
    """Methods that vLLM mixes into its worker class (`worker_extension_cls`), called by `collective_rpc`."""

    model_runner: Any

    def load_weights_file(self, path: str) -> None:
        """Load a safetensors file of Hugging Face-named weights into the running model.

        vLLM's reload packs the weights of each layer again for the CPU kernels, but only of layers that
        got weights of their own. An output head that is tied to the embedding gets none and would go on
        computing with the packed copy of the old embedding, so every head is packed once more here.
        """
        with safe_open(path, framework="pt") as file:
            self.model_runner.reload_weights(
                weights_iterator=((name, file.get_tensor(name)) for name in file.keys())  # noqa: SIM118
            )
        for module in self.model_runner.get_model().modules():
            if is_packed_head(module):
                dispatch_cpu_unquantized_gemm(module, remove_weight=False)
        if not torch.cuda.is_available():
            # What packing and the batches since the last update freed is in holes of the heap, which glibc keeps.
            ctypes.CDLL(None).malloc_trim(0)

    def exit_with_parent(self) -> None:
        """Let this process end when the one that started it has ended, killed or not."""
        parent = os.getppid()

        def watch() -> None:
            while os.getppid() == parent:
                time.sleep(PARENT_POLL_SECONDS)
            os._exit(1)

        threading.Thread(target=watch, name="exit-with-parent", daemon=True).start()


def is_packed_head(module: torch.nn.Module) -> bool:
    """Whether this is an output head that computes with a packed copy of its weight (CPU only)."""
    return isinstance(module, ParallelLMHead) and hasattr(module, "cpu_linear")
