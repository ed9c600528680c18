"""The whole pipeline on a tiny random model: real Prefect, Ray, vLLM and Megatron-Core.

The model learns to answer in lower case, which a random one does often enough for rewards to vary.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
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

REPOSITORY = Path(__file__).parents[2]
RLVR = [sys.executable, "-c", "from flows.cli import main; main()"]
PPO = ["algorithm=ppo", "algorithm.mini_batches=2", "critic.warmup_iterations=1"]
PREFECT = [sys.executable, "-m", "prefect", "--no-prompt"]


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory, tiny_llama: Path) -> list[str]:
    """Overrides of configs/arithmetic.yaml: the tiny model, a small data set, one thread, float32."""
    directory = tmp_path_factory.mktemp("pipeline")
    for name, count in {"train": 24, "held_out": 6}.items():
        rows = [
            {
                "domain": "arithmetic",
                "tag": "lowercase",
                "prompt": f"Say {name} {number}.",
                "ground_truth": {"rules": [{"kind": "lowercase"}]},
            }
            for number in range(count)
        ]
        (directory / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    return [
        f"runs_dir={directory}/runs",
        f"model.path={tiny_llama}",
        "model.dtype=float32",
        f"data.train=['{directory}/train.jsonl']",
        f"data.held_out=['{directory}/held_out.jsonl']",
        "rewards.arithmetic.grader=format",
        "rollout.rollout_batch_size=4",
        "rollout.num_return_sequences_in_group=4",
        "rollout.response_length=6",
        "trainer.learning_rate=1e-3",
        "hardware.trainer_threads=1",
        "hardware.engine_threads=1",
        "hardware.kv_cache_gib=0.1",
        "sync.probe_tolerance=1e-3",
        "eval_steps=2",
        "save_steps=2",
        "iterations=4",
    ]


def store_of(overrides: list[str], run: str) -> RunStore:
    return RunStore(f"{overrides[0].removeprefix('runs_dir=')}/{run}")


def weights(store: RunStore, iteration: int) -> dict[str, torch.Tensor]:
    path = f"{store.url}/checkpoints/{iteration:06d}/huggingface/model.safetensors"
    return safetensors.torch.load_file(path)


def stages_done(store: RunStore, iteration: int) -> list[str]:
    return [entry.stage for entry in store.ledger() if entry.iteration == iteration]


def wait_until(condition: Callable[[], bool], what: str, seconds: float = 240.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not in {seconds:.0f} s: {what}"
        time.sleep(0.1)


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """`rlvr up` on free ports; the environment of a shell that uses it."""
    cache = tmp_path_factory.mktemp("cache")
    environment = {**os.environ, "RLVR_CACHE": str(cache)}
    ports = [f"--port={services.free_port()}", f"--ray-port={services.free_port()}"]
    started = subprocess.run([*RLVR, "up", *ports], cwd=REPOSITORY, env=environment, capture_output=True, text=True)
    assert started.returncode == 0, started.stdout + started.stderr
    record = cache / "services" / "up.json"
    running = services.Services.model_validate_json(record.read_text())
    yield {**environment, **running.environment()}
    down = subprocess.run([*RLVR, "down"], cwd=REPOSITORY, env=environment, capture_output=True, text=True)
    assert "prefect-server" in down.stdout, down.stdout + down.stderr
    assert not record.exists()


def running(up: dict[str, str]) -> services.Services:
    return services.Services.model_validate_json((Path(up["RLVR_CACHE"]) / "services" / "up.json").read_text())


def run_deployment(up: dict[str, str], overrides: list[str], *options: str) -> str:
    """`prefect deployment run rlvr/iterate`; the flow run's id."""
    parameters = json.dumps({"config": "arithmetic", "overrides": overrides})
    command = [*PREFECT, "deployment", "run", "rlvr/iterate", "--params", parameters, *options]
    done = subprocess.run(command, cwd=REPOSITORY, env=up, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return next(line.split()[-1] for line in done.stdout.splitlines() if "UUID" in line)


def api(up: dict[str, str], code: str) -> str:
    """Run a line of a coroutine against the server's API, in a process with its settings; what it printed."""
    program = "\n".join(
        [
            "import asyncio",
            "from prefect import get_client",
            "from prefect.states import AwaitingRetry, Crashed",
            "async def main():",
            "    async with get_client() as client:",
            f"        {code}",
            "asyncio.run(main())",
        ]
    )
    done = subprocess.run([sys.executable, "-c", program], env=up, cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def state_of(up: dict[str, str], flow_run: str) -> str:
    return api(up, f"print((await client.read_flow_run('{flow_run}')).state.type.value)")


def press_retry(up: dict[str, str], flow_run: str) -> None:
    """What the dashboard's Retry does, once the run is known to have crashed."""
    for state in ("Crashed()", "AwaitingRetry()"):
        api(up, f"await client.set_flow_run_state('{flow_run}', {state}, force=True)")


def test_two_deployment_runs_continue_one_run_and_a_killed_worker_loses_nothing(
    up: dict[str, str], workplace: list[str]
) -> None:
    overrides = [*workplace, "run=deployed"]
    store = store_of(overrides, "deployed")

    run_deployment(up, overrides, "--watch")
    assert stages_done(store, 1) == ["sample", "generate", "reward", "advantage", "update", "sync"]
    assert stages_done(store, 0) == ["evaluate"]

    killed = run_deployment(up, overrides)
    wait_until(lambda: "generate" in stages_done(store, 2), "iteration 2 has generated")
    worker = running(up).named(services.WORKER)
    assert worker is not None
    family = psutil.Process(worker.pid)
    for process in [family, *family.children(recursive=True)]:
        process.kill()
    before = store.find(2, "generate")
    assert before is not None

    again = subprocess.run([*RLVR, "up"], cwd=REPOSITORY, env=up, capture_output=True, text=True)
    assert again.returncode == 0, again.stdout + again.stderr
    press_retry(up, killed)
    wait_until(lambda: state_of(up, killed) == "COMPLETED", "the retried run is completed")

    assert store.find(2, "generate") == before, "the rollouts were generated again"
    assert sorted(stages_done(store, 2)) == sorted(
        ["sample", "generate", "reward", "advantage", "update", "sync", "evaluate", "checkpoint"]
    )
    artifacts = api(up, "print(sorted({a.key for a in await client.read_artifacts()}))")
    assert artifacts == "['deployed-learning-curve', 'deployed-metrics', 'deployed-responses']"


def test_no_server_can_be_reached_from_another_machine(up: dict[str, str]) -> None:
    family = [psutil.Process(service.pid) for service in running(up).processes]
    listening = set()
    for process in [*family, *(child for parent in family for child in parent.children(recursive=True))]:
        # A worker may end meanwhile.
        with suppress(psutil.NoSuchProcess):
            sockets = [c for c in process.net_connections("inet") if c.status == psutil.CONN_LISTEN]
            listening |= {(c.laddr.ip.removeprefix("::ffff:"), process.name()) for c in sockets}
    assert {address for address, _ in listening} == {services.HOST}, listening


def train(overrides: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*RLVR, "train", "arithmetic", *overrides],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


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


def test_every_optional_stage_runs_and_hands_the_runs_state_on(up: dict[str, str], workplace: list[str]) -> None:
    optional = ["algorithm=reinforce", "algorithm.kl_loss_coef=0.01", "algorithm.old_logprobs=recompute"]
    optional += ["algorithm.target_kl=1e-6", "algorithm.kl_penalty=k3"]
    state = ["algorithm.shaping.norm_mean_type=running", "algorithm.masks.history={}"]
    overrides = [*workplace, "run=optional", *optional, *state]
    run_deployment(up, overrides, "--watch")
    store = store_of(overrides, "optional")
    assert set(stages_done(store, 1)) >= {"ref_logprob", "old_logprob", "statistics"}
    train = store.read_batch(next(e.output for e in store.ledger() if e.stage == "advantage"))
    reference, old = (np.concatenate(train[name].to_list()) for name in ("ref_logprobs", "old_logprobs"))
    # Before the first update, trainer, reference and engine are one model.
    assert np.abs(reference - old).max() < 1e-5
    assert np.abs(np.concatenate(train["rollout_logprobs"].to_list()) - old).max() < 1e-3

    run_deployment(up, overrides, "--watch")
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
    shown = subprocess.run([*RLVR, "show", store.url, "3", "advantage"], cwd=REPOSITORY, capture_output=True, text=True)
    assert "16 rows" in shown.stdout and shown.returncode == 0, shown.stdout + shown.stderr


def test_an_exported_checkpoint_loads_in_plain_transformers(finished: RunStore, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    path = tmp_path / "model"
    exported = subprocess.run(
        [*RLVR, "export", finished.url, "4", path], cwd=REPOSITORY, capture_output=True, text=True
    )
    assert exported.returncode == 0, exported.stdout + exported.stderr
    assert "| prompts | before training | after iteration 4 |" in (path / "README.md").read_text()
    model, tokenizer = AutoModelForCausalLM.from_pretrained(path), AutoTokenizer.from_pretrained(path)
    chat = tokenizer.apply_chat_template([{"role": "user", "content": "Say 1."}], return_tensors="pt", return_dict=True)
    assert model.generate(**chat, max_new_tokens=4, do_sample=False).shape[1] > chat["input_ids"].shape[1]


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
