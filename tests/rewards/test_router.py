"""The router with its real graders and processes: timeouts, deaths, exceptions, and what stays behind."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import polars as pl
import psutil
import pytest

from rlcore.batches import RewardBatch, validate
from rlcore.rewards.router import RewardRouter
from rlcore.rewards.workers import WorkerError
from rlcore.shaping.settings import RewardConfig

ENDLESS = "9**9**9**9"
"""Compared with 1/2, keeps sympy busy for longer than anyone waits."""

LIMIT = 3.0
REWARDS = {
    "arithmetic": RewardConfig(grader="math", timeout_seconds=LIMIT),
    "reasoning_gym": RewardConfig(grader="reasoning_gym"),
    "format": RewardConfig(grader="format"),
}


@pytest.fixture(scope="module")
def router() -> Iterator[RewardRouter]:
    with closing(RewardRouter(REWARDS, processes=2)) as router:
        yield router


def responses(*rows: tuple[str, str, str]) -> pl.DataFrame:
    """A frame from (domain, response_text, ground_truth)."""
    schema = ["domain", "response_text", "ground_truth"]
    frame = pl.DataFrame(rows, schema=schema, orient="row").with_row_index("sample_id")
    return frame.with_columns(prompt_text=pl.lit("?")).cast(pl.String)


def grader_processes() -> set[psutil.Process]:
    """Those of all routers of this process."""
    return {child for child in psutil.Process().children() if "rlcore.rewards.worker" in child.cmdline()}


def kill_graders_of(router: RewardRouter, index: int, times: int) -> threading.Thread:
    """Kills so many processes, each while it grades the response of that index."""

    def watch() -> None:
        seen: set[int] = set()
        while len(seen) < times:
            for worker in router._pool._workers:
                pid = worker.process.pid
                if pid not in seen and list(worker.tasks)[:1] == [index]:
                    seen.add(pid)
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    return thread


def test_rewards_come_in_the_order_of_the_responses(router: RewardRouter) -> None:
    rows = [("arithmetic", f"It is {i}", str(i if i % 3 else i + 1)) for i in range(200)]
    rewards = router.grade(responses(*rows))
    assert rewards["sample_id"].to_list() == [str(i) for i in range(200)]
    assert rewards["reward"].to_list() == [float(i % 3 != 0) for i in range(200)]


def test_several_graders_are_weighted_and_one_that_fails_leaves_no_reward() -> None:
    """Every answer of the domain is to end with a dot, whatever the prompt."""
    form = '{"rules": [{"kind": "ends_with", "phrase": "."}]}'
    graders = [{"grader": "math"}, {"grader": "format", "weight": 0.25, "ground_truth": form}]
    rewards = {"arithmetic": RewardConfig.model_validate({"graders": graders})}
    rows = [("arithmetic", text, truth) for text, truth in [("5.", "5"), ("6.", "5"), ("5", "5"), ("5", "?!")]]
    with closing(RewardRouter(rewards, processes=1)) as router:
        batch = router.grade(responses(*rows))
    assert batch["reward"].to_list() == [1.25, 0.25, 1.0, None]
    assert batch["reward_status"].to_list() == ["scored", "scored", "scored", "grader_error"]
    assert batch["detail"][3].startswith("math: ValueError: ground truth")
    assert {part["name"]: part["value"] for part in batch["components"][1]} == {
        "math": 0.0,
        "math.correct": 0.0,
        "math.answered": 1.0,
        "format": 1.0,
        "format.ends_with": 1.0,
    }


def test_the_first_grader_alone_judges_and_its_weight_does_not_count() -> None:
    form = '{"rules": [{"kind": "ends_with", "phrase": "."}]}'
    graders = [{"grader": "math", "weight": 0.5}, {"grader": "format", "ground_truth": form}]
    rewards = {"arithmetic": RewardConfig.model_validate({"graders": graders})}
    rows = [("arithmetic", text, truth) for text, truth in [("5", "5"), ("6.", "5"), ("5.", "?!")]]
    with closing(RewardRouter(rewards, processes=1)) as router:
        batch = router.judge(responses(*rows))
    assert batch["reward"].to_list() == [1.0, 0.0, None]
    assert batch["reward_status"].to_list() == ["scored", "scored", "grader_error"]


def test_each_domain_goes_to_its_grader(router: RewardRouter) -> None:
    entry = '{"question": "?", "answer": "5", "metadata": {"source_dataset": "chain_sum"}}'
    rewards = router.grade(
        responses(
            ("format", "all small", '{"rules": [{"kind": "lowercase"}]}'),
            ("reasoning_gym", "5", entry),
            ("arithmetic", "5", "5"),
        )
    )
    names = rewards["components"].list.eval(pl.element().struct.field("name")).to_list()
    assert names == [["lowercase"], ["chain_sum"], ["correct", "answered"]]
    assert rewards["reward"].to_list() == [1.0, 1.0, 1.0]


def test_no_responses_give_an_empty_batch(router: RewardRouter) -> None:
    assert len(validate(router.grade(responses(("format", "", "")).clear()), RewardBatch)) == 0


def test_a_grader_at_its_limit_is_killed_while_others_are_scored(router: RewardRouter) -> None:
    rows = [("arithmetic", str(i), str(i)) for i in range(100)]
    rows[3] = rows[60] = ("arithmetic", ENDLESS, "1/2")
    start = time.monotonic()
    rewards = router.grade(responses(*rows))
    assert time.monotonic() - start < 3 * LIMIT + 20
    late = rewards.filter(pl.col("reward_status") == "timeout")
    assert late["sample_id"].to_list() == ["3", "60"]
    assert late["reward"].null_count() == 2
    assert late["seconds"].to_list() == [LIMIT, LIMIT]
    assert late["detail"].str.contains("killed after 3 s").all()
    scored = rewards.filter(pl.col("reward_status") == "scored")
    assert len(scored) == 98
    assert (scored["reward"] == 1).all()


def test_an_exception_in_the_grader_is_a_grader_error(router: RewardRouter) -> None:
    rewards = router.grade(responses(("reasoning_gym", "5", "not json"), ("arithmetic", "5", "5")))
    assert rewards["reward_status"].to_list() == ["grader_error", "scored"]
    assert rewards["reward"].to_list() == [None, 1.0]
    assert rewards["components"].list.len().to_list() == [0, 2]
    assert rewards["detail"][0].startswith("JSONDecodeError: ")


def test_a_response_that_eats_memory_ends_without_taking_the_machines(router: RewardRouter) -> None:
    rewards = router.grade(responses(("arithmetic", r"$2^{50000000000}$", "1/2"), ("arithmetic", "5", "5")))
    assert rewards["reward_status"][0] in ("grader_error", "timeout")
    assert rewards["reward"].to_list() == [None, 1.0]


def test_processes_are_reused_between_calls(router: RewardRouter) -> None:
    router.grade(responses(*[("arithmetic", "5", "5")] * 40))
    processes = grader_processes()
    router.grade(responses(*[("arithmetic", "5", "5")] * 40))
    assert grader_processes() == processes


def test_a_process_killed_between_calls_is_replaced(router: RewardRouter) -> None:
    before = grader_processes()
    killed = min(before, key=lambda process: process.pid)
    killed.kill()
    killed.wait(timeout=10)
    rewards = router.grade(responses(*[("arithmetic", "5", "5")] * 40))
    assert (rewards["reward"] == 1).all()
    after = grader_processes()
    assert killed not in after
    assert len(after) == len(before)


def test_a_response_whose_process_dies_is_tried_once_more_and_then_an_infra_error() -> None:
    with closing(RewardRouter(REWARDS, processes=1)) as router:
        router.grade(responses(("arithmetic", "5", "5")))
        killer = kill_graders_of(router, index=1, times=2)
        rows = [("arithmetic", "5", "5"), ("arithmetic", ENDLESS, "1/2"), ("arithmetic", "6", "6")]
        rewards = router.grade(responses(*rows))
        killer.join(10)
    assert not killer.is_alive()
    assert rewards["reward_status"].to_list() == ["scored", "infra_error", "scored"]
    assert rewards["reward"].to_list() == [1.0, None, 1.0]
    assert "died twice, with exit code -9" in rewards["detail"][1]


def test_a_response_whose_process_dies_once_is_graded_by_another() -> None:
    with closing(RewardRouter(REWARDS, processes=1)) as router:
        router.grade(responses(("arithmetic", "5", "5")))
        killer = kill_graders_of(router, index=1, times=1)
        rewards = router.grade(
            responses(("arithmetic", "5", "5"), ("arithmetic", ENDLESS, "1/2"), ("arithmetic", "6", "6"))
        )
        killer.join(10)
    assert not killer.is_alive()
    assert rewards["reward_status"].to_list() == ["scored", "timeout", "scored"]


def test_a_domain_without_grader_is_refused(router: RewardRouter) -> None:
    with pytest.raises(ValueError, match="no grader for domain 'code'; rewards has arithmetic, format"):
        router.grade(responses(("code", "5", "5")))


def test_closing_ends_every_process() -> None:
    others = grader_processes()
    router = RewardRouter(REWARDS, processes=2)
    processes = grader_processes() - others
    assert len(processes) == 2
    router.close()
    assert not any(process.is_running() for process in processes)


@pytest.fixture
def broken_package(tmp_path: Path) -> str:
    """A directory that keeps grader processes from starting where sys.path begins with it."""
    (tmp_path / "rlcore").mkdir()
    (tmp_path / "rlcore" / "__init__.py").write_text("raise ImportError('broken on purpose')")
    return str(tmp_path)


def test_workers_that_cannot_start_are_an_error_and_not_a_reward(
    broken_package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(broken_package)
    others = grader_processes()
    router = RewardRouter(REWARDS, processes=1)
    for _ in range(2):
        with pytest.raises(WorkerError, match="3 grader processes in a row ended before they were ready"):
            router.grade(responses(("arithmetic", "5", "5")))
        assert grader_processes() == others


def test_workers_that_could_not_start_are_started_by_the_next_call(
    broken_package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        broken.syspath_prepend(broken_package)
        router = RewardRouter(REWARDS, processes=2)
        with pytest.raises(WorkerError):
            router.grade(responses(("arithmetic", "5", "5")))
    with closing(router):
        assert router.grade(responses(("arithmetic", "5", "5"), ("arithmetic", "6", "5")))["reward"].to_list() == [1, 0]


def test_a_call_broken_off_in_the_middle_leaves_no_outcome_to_the_next() -> None:
    unhurried = {"arithmetic": RewardConfig(grader="math", timeout_seconds=60)}
    with closing(RewardRouter(unhurried, processes=1)) as router:
        router.grade(responses(("arithmetic", "5", "5")))
        interrupt = threading.Timer(1, signal.pthread_kill, [threading.get_ident(), signal.SIGINT])
        interrupt.start()
        with pytest.raises(KeyboardInterrupt):
            router.grade(responses(("arithmetic", ENDLESS, "1/2"), ("arithmetic", "5", "5")))
        rewards = router.grade(responses(("arithmetic", "5", "5")))
    assert rewards["reward_status"].to_list() == ["scored"]


def test_no_process_outlives_a_killed_parent() -> None:
    program = """
import polars as pl
import psutil
from rlcore.shaping.settings import RewardConfig
from rlcore.rewards.router import RewardRouter
router = RewardRouter({"a": RewardConfig(grader="math", timeout_seconds=3)}, processes=2)
row = {"sample_id": ["0"], "domain": ["a"], "prompt_text": ["?"], "response_text": ["5"], "ground_truth": ["5"]}
router.grade(pl.DataFrame(row))
print(*[child.pid for child in psutil.Process().children()], flush=True)
router.grade(pl.DataFrame({**row, "response_text": ["9**9**9**9"], "ground_truth": ["1/2"]}))
"""
    root = Path(__file__).parents[2]
    parent = subprocess.Popen([sys.executable, "-c", program], cwd=root, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    workers = [psutil.Process(int(pid)) for pid in parent.stdout.readline().split()]
    assert len(workers) == 2
    time.sleep(1)
    parent.kill()
    parent.wait()
    _, alive = psutil.wait_procs(workers, timeout=20)
    assert not alive


@pytest.mark.parametrize(("at_once", "are_alone"), [(1, True), (2, False)])
def test_a_domain_has_so_many_processes_at_once_and_no_more(tmp_path: Path, at_once: int, are_alone: bool) -> None:
    own = {"grader": "function", "options": {"path": "tests.rewards.own_rewards:alone"}, "at_once": at_once}
    rewards = {"own": RewardConfig.model_validate(own), "format": RewardConfig(grader="format")}
    form = '{"rules": [{"kind": "lowercase"}]}'
    rows = [("own", "", str(tmp_path / "taken"))] * 64 + [("format", "small", form)] * 64
    with closing(RewardRouter(rewards, processes=2)) as router:
        graded = router.grade(responses(*rows))
    assert graded["reward"].to_list()[64:] == [1.0] * 64
    assert (graded["reward"].to_list()[:64] == [1.0] * 64) is are_alone
