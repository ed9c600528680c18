"""The whole pipeline on a tiny random model: real Prefect, Ray, vLLM and Megatron-Core."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import psutil
import pytest
import safetensors.torch
import torch

from flows import services
from rlcore.compose import load
from rlcore.plan import plan_iteration
from rlcore.reports import RunState, UpdateReport
from rlcore.store import RunStore
from tests.stack.pipeline import (
    Up,
    rlvr,
    stages_done,
    store_of,
    tiny_training,
    train,
    up,
    wait_until,
    weights,
)

PPO = ["algorithm=ppo", "algorithm.mini_batches=2", "critic.warmup_iterations=1"]


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory, tiny_llama: Path) -> list[str]:
    return tiny_training(tmp_path_factory.mktemp("pipeline"), tiny_llama)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with up(tmp_path_factory.mktemp("cache")) as services:
        yield services


def test_two_deployment_runs_continue_one_run(running: Up, workplace: list[str]) -> None:
    overrides = [*workplace, "run=deployed"]
    store = store_of(overrides, "deployed")
    running.run_deployment(overrides, "--watch")
    assert stages_done(store, 0) == ["evaluate"]
    assert stages_done(store, 1) == ["sample", "generate", "reward", "advantage", "update", "sync"]

    running.run_deployment(overrides, "--watch")
    assert stages_done(store, 1) == ["sample", "generate", "reward", "advantage", "update", "sync"]
    assert {*stages_done(store, 2)} == {*stages_done(store, 1), "evaluate", "checkpoint"}
    artifacts = {artifact["key"] for artifact in running.ask("POST", "artifacts/filter", {})}
    assert artifacts == {"deployed-learning-curve", "deployed-metrics", "deployed-responses"}


def test_no_server_can_be_reached_from_another_machine(running: Up) -> None:
    family = [psutil.Process(service.pid) for service in running.services.processes]
    listening = set()
    for process in [*family, *(child for parent in family for child in parent.children(recursive=True))]:
        # A worker may end meanwhile.
        with suppress(psutil.NoSuchProcess):
            sockets = [c for c in process.net_connections("inet") if c.status == psutil.CONN_LISTEN]
            listening |= {(c.laddr.ip.removeprefix("::ffff:"), process.name()) for c in sockets}
    assert {address for address, _ in listening} == {services.HOST}, listening


@pytest.fixture(scope="module")
def finished(workplace: list[str]) -> RunStore:
    """A run that nothing happened to, of four iterations: PPO with a critic, which has the most state."""
    training = train([*workplace, *PPO, "run=finished"])
    output, _ = training.communicate(timeout=400)
    assert training.returncode == 0, output
    assert re.search(
        r"^held-out accuracy \d\.\d\d → \d\.\d\d · 4 iterations · \d+ s · report .*report\.html$",
        output.splitlines()[-1],
    )
    return store_of(workplace, "finished")


def test_an_interrupted_training_leaves_no_process_and_goes_on_to_the_very_same_weights(
    workplace: list[str], finished: RunStore
) -> None:
    overrides = [*workplace, *PPO, "run=broken"]
    store = store_of(workplace, "broken")
    training = train(overrides)
    wait_until(lambda: "update" in stages_done(store, 3), "iteration 3 is updated, past the checkpoint of 2")
    started = psutil.Process(training.pid).children(recursive=True)
    os.kill(training.pid, signal.SIGINT)
    output, _ = training.communicate(timeout=60)
    assert training.returncode == 130, output
    assert "the same command goes on from here" in output
    _, alive = psutil.wait_procs(started, timeout=20)
    assert not alive, f"still running: {alive}"

    rollouts = store.find(3, "generate")
    training = train(overrides)
    output, _ = training.communicate(timeout=400)
    assert training.returncode == 0, output
    assert store.find(3, "generate") == rollouts, "finished rollouts were generated again"
    assert [entry.iteration for entry in store.ledger() if entry.stage == "update"] == [1, 2, 3, 4]

    expected, found = weights(finished, 4), weights(store, 4)
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    # The values of iteration 4 are of the critic after three updates, the third of which was given to it anew.
    values = [run.find(4, "values") for run in (finished, store)]
    assert values[0] and values[1] and values[0].output.sha256 == values[1].output.sha256


def test_the_critic_trains_from_the_first_iteration_and_the_policy_after_its_warm_up(finished: RunStore) -> None:
    outputs = {(entry.iteration, entry.stage): entry.output for entry in finished.ledger()}
    reports = [finished.read_report(outputs[number, "update"], UpdateReport) for number in (1, 2)]
    assert [(report.skipped, report.optimizer_steps) for report in reports] == [(True, 0), (False, 2)]
    assert [report.critic and report.critic.optimizer_steps for report in reports] == [2, 2]
    first, last = (finished.read_batch(outputs[number, "values"])["values"].explode() for number in (1, 4))
    assert first.eq(0.0).all() and not last.eq(0.0).any()


def test_the_same_seed_draws_the_same_prompts(finished: RunStore, workplace: list[str]) -> None:
    """In the run above, which other processes made from the same configuration."""
    prompts = [
        [store.read_batch(entry.output)["prompt_id"].to_list() for entry in store.ledger() if entry.stage == "sample"]
        for store in (finished, store_of(workplace, "broken"))
    ]
    assert prompts[0] == prompts[1] and len(prompts[0]) == 4


def test_training_changes_the_weights(finished: RunStore, tiny_llama: Path) -> None:
    before, after = safetensors.torch.load_file(tiny_llama / "model.safetensors"), weights(finished, 4)
    assert any(not torch.equal(before[name], after[name]) for name in before)


def test_the_stages_of_an_iteration_read_what_its_plan_says(finished: RunStore) -> None:
    config = load(finished.directory / "config.yaml")
    made_by = {entry.output.path: entry.stage for entry in finished.ledger()}
    for iteration in (1, 4):
        read = {
            entry.stage: tuple(sorted(made_by[ref.path] for ref in entry.inputs.values()))
            for entry in finished.ledger()
            if entry.iteration == iteration
        }
        planned = {stage: tuple(sorted(inputs)) for stage, inputs in plan_iteration(config, iteration).inputs.items()}
        assert read == planned


def test_every_optional_stage_runs_and_hands_the_runs_state_on(running: Up, workplace: list[str]) -> None:
    optional = ["algorithm=reinforce", "algorithm.kl_loss_coef=0.01", "algorithm.old_logprobs=recompute"]
    optional += ["algorithm.target_kl=1e-6", "algorithm.kl_penalty=k3"]
    state = ["algorithm.shaping.norm_mean_type=running", "algorithm.masks.history={}"]
    overrides = [*workplace, "run=optional", *optional, *state]
    running.run_deployment(overrides, "--watch")
    store = store_of(overrides, "optional")
    assert set(stages_done(store, 1)) >= {"ref_logprob", "old_logprob", "statistics"}
    train = store.read_batch(next(e.output for e in store.ledger() if e.stage == "advantage"))
    reference, old = (np.concatenate(train[name].to_list()) for name in ("ref_logprobs", "old_logprobs"))
    # Before the first update, trainer, reference and engine are one model.
    assert np.abs(reference - old).max() < 1e-5
    assert np.abs(np.concatenate(train["rollout_logprobs"].to_list()) - old).max() < 1e-3

    running.run_deployment(overrides, "--watch")
    first, second = (store.read_report(e.output, RunState) for e in store.ledger() if e.stage == "statistics")
    assert (first.shaping.running["arithmetic"].count, second.shaping.running["arithmetic"].count) == (16, 32)
    assert len(second.shaping.histories.prompt_id) == 8
    # Below the target at first, because policy and reference are one, and far above it after an update.
    assert first.kl_controller["coef"] < 0.01
    assert second.kl_controller["coef"] > first.kl_controller["coef"]
    saved = store.directory / "checkpoints" / "000002" / "state.json"
    assert RunState.model_validate_json(saved.read_text()) == second


def test_a_run_leaves_its_batches_metrics_and_report(finished: RunStore) -> None:
    store = finished
    assert store.local_path is not None
    for entry in store.ledger():
        assert store.is_intact(entry.output), entry
    lines = [json.loads(line) for line in (store.local_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["iteration"] for line in lines] == [0, 1, 2, 3, 4]
    assert all(line["sync/probe_gap_mean"] < 1e-3 for line in lines[1:])
    assert (store.local_path / "report.html").stat().st_size > 10_000
    assert list((store.local_path / "tensorboard").glob("events.*"))
    assert list((store.local_path / "wandb").glob("offline-run-*"))
    assert "16 rows" in rlvr("show", store.url, "3", "advantage")


def test_an_exported_checkpoint_loads_in_plain_transformers(finished: RunStore, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    path = tmp_path / "model"
    rlvr("export", finished.url, "4", str(path))
    assert "| prompts | before training | after iteration 4 |" in (path / "README.md").read_text()
    model, tokenizer = AutoModelForCausalLM.from_pretrained(path), AutoTokenizer.from_pretrained(path)
    chat = tokenizer.apply_chat_template([{"role": "user", "content": "Say 1."}], return_tensors="pt", return_dict=True)
    assert model.generate(**chat, max_new_tokens=4, do_sample=False).shape[1] > chat["input_ids"].shape[1]


def test_replayed_updates_of_policy_and_critic_are_the_recorded_ones(finished: RunStore) -> None:
    introduction, update, summary = rlvr("replay", finished.url, "--from", "4", "--to", "4").splitlines()
    assert introduction.startswith("from checkpoints/000002 and 1 update after it; compared bit for bit: the weights")
    assert update.startswith("update 4: same: weights ")
    assert summary == "replayed: 1 update with float32 and 1 thread a rank, nothing different"


def test_a_fork_trains_on_from_the_checkpoint_under_its_own_settings(finished: RunStore) -> None:
    said = rlvr("fork", finished.url, "--from", "2", "--run", "slower", "trainer.learning_rate=1e-4")
    assert "trainer.learning_rate: 0.001 → 0.0001" in said
    fork = RunStore(str(finished.directory.with_name("slower")))
    assert said.splitlines()[-1] == f"next: rlvr train {fork.url}/config.yaml"
    assert "4 iterations" in rlvr("train", f"{fork.url}/config.yaml").splitlines()[-1]

    past = [entry for entry in finished.ledger() if entry.iteration <= 2]
    assert fork.ledger()[: len(past)] == past
    assert [entry.iteration for entry in fork.ledger() if entry.stage == "update"] == [1, 2, 3, 4]
    # The responses show that the weights of the fork are those of the origin after two updates.
    assert sampled(fork, 3) == sampled(finished, 3)
    assert sampled(fork, 4)[:1] == sampled(finished, 4)[:1] and sampled(fork, 4) != sampled(finished, 4)
    before, after = weights(finished, 4), weights(fork, 4)
    assert any(not torch.equal(before[name], after[name]) for name in before)
    for store in (finished, fork):
        assert rlvr("verify", store.url).endswith("nothing wrong\n")


def sampled(store: RunStore, iteration: int) -> list[list[object]]:
    entry = store.find(iteration, "generate")
    assert entry is not None
    rollouts = store.read_batch(entry.output)
    return [rollouts[column].to_list() for column in ("prompt_ids", "response_ids", "rollout_logprobs")]


def test_the_same_directory_under_other_settings_is_refused(workplace: list[str], finished: RunStore) -> None:
    refused = train([*workplace, *PPO, "run=finished", "algorithm.pg_clip_low=0.1"])
    output, _ = refused.communicate(timeout=120)
    assert refused.returncode == 1
    assert "algorithm.pg_clip_low: None → 0.1" in output and "run=NAME" in output


def test_a_broken_data_line_is_named_before_anything_starts(workplace: list[str], tmp_path: Path) -> None:
    broken = tmp_path / "broken.jsonl"
    broken.write_text('{"domain": "arithmetic", "tag": "t", "prompt": "p", "ground_truth": "g"}\n{"domain": \n')
    refused = train([*workplace, "run=no-data", f"data.train=[{broken}]"])
    output, _ = refused.communicate(timeout=60)
    assert refused.returncode == 1
    assert f"{broken}:2" in output.replace("\n", "") and "not JSON" in output
    assert not store_of(workplace, "no-data").exists("ledger.jsonl")


def test_a_missing_model_directory_is_named_before_anything_starts(workplace: list[str]) -> None:
    refused = train([*workplace, "run=no-model", "model.path=/nowhere"])
    output, _ = refused.communicate(timeout=60)
    assert refused.returncode == 1
    assert "/nowhere is not a Hugging Face model directory" in output
    assert not store_of(workplace, "no-model").exists("ledger.jsonl")
