"""TRL's GRPOTrainer on the prompts of a file. benchmarks/against_trl.py starts it, in TRL's own environment.

    python benchmarks/processes/trl_grpo.py SETTINGS.json PROGRESS.jsonl

TRL in its own mixed precision: float32 weights, bfloat16 autocast. It generates with transformers' generate: its
other engine is a vLLM server on GPUs. Gradient checkpointing, which it has switched on for memory's sake, is off.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from rlcore.rewards.math import grade

EVALUATED_AT_ONCE = 64
"""Held-out prompts."""


class Progress(TrainerCallback):
    """Writes a line after each step: its seconds, and where it is due the held-out accuracy, which they exclude."""

    def __init__(self, settings: dict[str, Any], target: Path, tokenizer: Any) -> None:
        self.settings, self.target, self.tokenizer = settings, target, tokenizer
        self.started = 0.0

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any, **others: Any) -> None:
        if self.settings["eval_steps"]:
            self._write(step=0, accuracy=self._accuracy(model))
        self.started = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any, **others: Any) -> None:
        line = {"step": state.global_step, "seconds": time.perf_counter() - self.started}
        every = self.settings["eval_steps"]
        if every and (state.global_step % every == 0 or state.global_step == self.settings["iterations"]):
            line["accuracy"] = self._accuracy(model)
            control.should_training_stop |= line["accuracy"] >= self.settings["target_accuracy"]
        self._write(**line)
        self.started = time.perf_counter()

    @torch.no_grad()
    def _accuracy(self, model: Any) -> float:
        """Of greedy answers to the held-out prompts."""
        rows = self.settings["held_out"]
        model.eval()
        rewards: list[float] = []
        for first in range(0, len(rows), EVALUATED_AT_ONCE):
            part = rows[first : first + EVALUATED_AT_ONCE]
            inputs = self.tokenizer.apply_chat_template(
                [row["messages"] for row in part],
                add_generation_prompt=True,
                return_dict=True,
                return_tensors="pt",
                padding=True,
                padding_side="left",
            )
            length = self.settings["response_length"]
            answers = model.generate(**inputs, do_sample=False, max_new_tokens=length)[
                :, inputs["input_ids"].shape[1] :
            ]
            texts = self.tokenizer.batch_decode(answers, skip_special_tokens=True)
            rewards += [grade(text, row["ground_truth"]).reward for text, row in zip(texts, part, strict=True)]
        model.train()
        return sum(rewards) / len(rewards)

    def _write(self, **line: float) -> None:
        with self.target.open("a") as file:
            file.write(json.dumps(line) + "\n")


def reward(completions: list[list[dict[str, str]]], ground_truth: list[str], **others: Any) -> list[float]:
    """rlcore's grader of mathematical answers."""
    texts = [messages[0]["content"] for messages in completions]
    return [grade(text, truth).reward for text, truth in zip(texts, ground_truth, strict=True)]


def main(settings_file: str, progress: str) -> None:
    settings = json.loads(Path(settings_file).read_text())
    torch.set_num_threads(settings["threads"])
    rows = settings["rollout_batch_size"] * settings["group"]
    prompts = [{"prompt": row["messages"], "ground_truth": row["ground_truth"]} for row in settings["train"]]
    arguments = GRPOConfig(
        output_dir=settings["output"],
        max_steps=settings["iterations"],
        # The whole batch is generated at once, and is one optimizer step.
        per_device_train_batch_size=min(settings["rows_at_once"], rows),
        gradient_accumulation_steps=max(1, rows // settings["rows_at_once"]),
        num_generations=settings["group"],
        max_completion_length=settings["response_length"],
        temperature=settings["temperature"],
        beta=0.0,
        epsilon=0.2,
        loss_type="dapo",
        scale_rewards="group",
        learning_rate=settings["learning_rate"],
        lr_scheduler_type="constant",
        weight_decay=0.0,
        max_grad_norm=1.0,
        bf16=True,
        use_cpu=True,
        dataloader_pin_memory=False,
        gradient_checkpointing=False,
        shuffle_dataset=False,
        report_to="none",
        logging_strategy="no",
        save_strategy="no",
        disable_tqdm=True,
        seed=settings["seed"],
    )
    trainer = GRPOTrainer(
        model=settings["model"], reward_funcs=reward, args=arguments, train_dataset=Dataset.from_list(prompts)
    )
    trainer.add_callback(Progress(settings, Path(progress), trainer.processing_class))
    trainer.train()


if __name__ == "__main__":
    main(*sys.argv[1:])
