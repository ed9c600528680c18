import json
from typing import Any

import pytest
import reasoning_gym

from rlcore.rewards.reasoning_gym import EXECUTES_THE_ANSWER, grade


def entry(task: str, **parameters: object) -> dict[str, Any]:
    return reasoning_gym.create_dataset(task, seed=1, size=1, **parameters)[0]


def test_the_right_answer_scores_one_bare_or_in_answer_tags() -> None:
    task = entry("chain_sum")
    for response in (task["answer"], f" {task['answer']}\n", f"Well, 5?\n<answer> {task['answer']} </answer> Done."):
        score = grade(response, json.dumps(task))
        assert score.reward == 1.0
        assert score.components == {"chain_sum": 1.0}


def test_a_wrong_or_empty_answer_scores_zero() -> None:
    task = entry("chain_sum")
    for response in ("no idea", "", f"<answer>no</answer> {task['answer']}"):
        assert grade(response, json.dumps(task)).reward == 0.0


def test_partial_credit_is_kept() -> None:
    task = entry("gcd")
    score = grade(f"The answer is {task['answer']}.", json.dumps(task))
    assert 0 < score.reward < 1
    assert score.components == {"gcd": score.reward}


@pytest.mark.parametrize("truth", ['"text"', "{}", '{"question": "?", "answer": "1", "metadata": {}}'])
def test_a_ground_truth_that_is_no_entry_is_refused(truth: str) -> None:
    with pytest.raises(ValueError, match="not a reasoning-gym entry"):
        grade("1", truth)


def test_an_unknown_task_is_refused() -> None:
    with pytest.raises(ValueError, match="no_such_task"):
        grade("1", '{"question": "?", "answer": "1", "metadata": {"source_dataset": "no_such_task"}}')


@pytest.mark.parametrize("task", sorted(EXECUTES_THE_ANSWER))
def test_a_task_whose_verifier_would_execute_the_answer_is_refused(
    task: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ValueError, match="executes the answer"):
        grade("print('executed')", json.dumps({"question": "?", "answer": "1", "metadata": {"source_dataset": task}}))
    assert "executed" not in capfd.readouterr().out
