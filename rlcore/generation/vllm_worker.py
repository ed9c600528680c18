"""What runs inside vLLM's worker process."""

from __future__ import annotations

import os
import threading
import time

from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

from rlcore.generation.vllm_arguments import SHARED_MEMORY

PARENT_POLL_SECONDS = 1.0

# vLLM imports this module in its worker's process, before the model is loaded.
WeightTransferEngineFactory.register_engine(SHARED_MEMORY, "rlcore.generation.weight_receiver", "SharedMemoryReceiver")


class WorkerExtension:
    """Methods that vLLM mixes into its worker class (`worker_extension_cls`), called by `collective_rpc`."""

    def exit_with_parent(self) -> None:
        """Let this process end when the one that started it has ended, killed or not."""
        parent = os.getppid()

        def watch() -> None:
            while os.getppid() == parent:
                time.sleep(PARENT_POLL_SECONDS)
            os._exit(1)

        threading.Thread(target=watch, name="exit-with-parent", daemon=True).start()
