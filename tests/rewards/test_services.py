"""Graders behind a URL: what they are asked, what counts as their fault, and what as an answer."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import polars as pl
import pytest

from rlcore.rewards import services
from rlcore.rewards.interface import Outcome, Task
from rlcore.rewards.judge import RUBRICS, Scale, verdict_of
from rlcore.rewards.router import RewardRouter
from rlcore.rewards.services import ATTEMPTS, ask_services
from rlcore.shaping.settings import RewardConfig
from tests.rewards.http_service import Answer, Question, answer, service

Options = dict[str, Any]


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "PAUSE_SECONDS", 0.01)


def task(grader: str, response: str = "It is 4.", seconds: float = 5.0, **options: Any) -> Task:
    return Task(grader, "qa", "What is 2 + 2?", response, "4", seconds, options)


def outcome(respond: Callable[[Question], Answer], seconds: float = 5.0) -> Outcome:
    with service(respond) as seen:
        return ask_services([task("remote", seconds=seconds, url=seen.url)], {"qa": 1})[0]


def test_a_remote_grader_is_sent_the_whole_question_and_its_answer_is_the_score() -> None:
    with service(lambda question: answer({"reward": 0.5, "components": {"style": 1}, "why": "…"})) as seen:
        [got] = ask_services([task("remote", url=f"{seen.url}/grade")], {"qa": 1})
    assert (got.status, got.reward, got.components, got.detail) == ("scored", 0.5, {"style": 1.0}, "")
    assert got.seconds > 0
    assert seen.paths == ["/grade"]
    assert seen.questions == [{"prompt": "What is 2 + 2?", "response": "It is 4.", "ground_truth": "4", "domain": "qa"}]


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_fault_of_the_service_is_met_with_another_attempt(status: int) -> None:
    answers = iter([(status, b"busy"), answer({"reward": 1})])
    assert outcome(lambda question: next(answers)).reward == 1.0


def test_a_service_that_goes_on_failing_is_an_infra_error_and_no_score() -> None:
    with service(lambda question: (503, b"overloaded")) as seen:
        [got] = ask_services([task("remote", url=seen.url)], {"qa": 1})
    assert (got.status, got.reward, len(seen.questions)) == ("infra_error", None, ATTEMPTS)
    assert got.detail.startswith("3 attempts failed, the last: http://127.0.0.1:")
    assert got.detail.endswith("answered 503: overloaded")


def test_a_service_that_is_not_there_is_an_infra_error() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        [got] = ask_services([task("remote", url=f"http://127.0.0.1:{closed.getsockname()[1]}")], {"qa": 1})
    assert (got.status, got.reward) == ("infra_error", None)
    assert "ConnectError" in got.detail


@pytest.mark.parametrize(
    ("reply", "detail"),
    [
        ((404, b"no such grader"), "refused the question with 404: no such grader"),
        ((200, b"0.5"), "answered 0.5; expected"),
        ((200, b"good"), "answered no JSON: 'good'"),
        (answer({"rewards": 1}), 'expected {"reward": number'),
        ((200, b'{"reward": NaN}'), "must be finite"),
    ],
)
def test_an_answer_of_another_form_is_the_graders_error(reply: Answer, detail: str) -> None:
    got = outcome(lambda question: reply)
    assert (got.status, got.reward) == ("grader_error", None)
    assert detail in got.detail


def test_an_answer_that_does_not_come_in_time_is_a_timeout() -> None:
    started = time.monotonic()

    def slow(question: Question) -> Answer:
        time.sleep(1.0)
        return answer({"reward": 1})

    got = outcome(slow, seconds=0.3)
    assert (got.status, got.reward, got.detail) == ("timeout", None, "no answer in 0.3 s")
    assert time.monotonic() - started < 3.0


def test_a_domain_is_asked_about_so_many_at_once_and_no_more() -> None:
    lock, under_way, most = threading.Lock(), 0, 0

    def respond(question: Question) -> Answer:
        nonlocal under_way, most
        with lock:
            under_way += 1
            most = max(most, under_way)
        time.sleep(0.05)
        with lock:
            under_way -= 1
        return answer({"reward": float(question["response"])})

    with service(respond) as seen:
        tasks = [task("remote", response=str(number), url=seen.url) for number in range(24)]
        outcomes = ask_services(tasks, {"qa": 6})
    assert [each.reward for each in outcomes] == [float(number) for number in range(24)]
    assert most == 6


def chat(reply: str) -> Answer:
    return answer({"choices": [{"message": {"role": "assistant", "content": reply}}]})


def test_a_judge_is_given_the_rubric_and_its_verdict_is_the_reward(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_KEY", "secret")
    options: Options = {"model": "a-judge", "api_key_variable": "JUDGE_KEY"}
    with service(lambda question: chat("It says 4, as it should. YES")) as seen:
        [got] = ask_services([task("judge", "It is {4}.", url=f"{seen.url}/v1/", **options)], {"qa": 1})
    assert (got.status, got.reward, got.components) == ("scored", 1.0, {"verdict": 1.0})
    assert seen.paths == ["/v1/chat/completions"]
    assert seen.headers[0]["authorization"] == "Bearer secret"
    [question] = seen.questions
    rubric = RUBRICS["yes_no"].format(prompt="What is 2 + 2?", response="It is {4}.", ground_truth="4")
    assert question["messages"] == [{"role": "user", "content": rubric}]
    assert (question["model"], question["temperature"]) == ("a-judge", 0.0)


def test_a_rubric_of_ones_own_takes_the_place_of_ours() -> None:
    with service(lambda question: chat("8/10")) as seen:
        options: Options = {"model": "a-judge", "scale": "0_to_10", "rubric": "Rate {response}!"}
        [got] = ask_services([task("judge", url=seen.url, **options)], {"qa": 1})
    assert got.reward == 0.8
    assert seen.questions[0]["messages"][0]["content"] == "Rate It is 4.!"


@pytest.mark.parametrize(
    ("reply", "scale", "reward"),
    [
        ("YES", "yes_no", 1.0),
        ("Is it right? Yes? In the end: **No**.", "yes_no", 0.0),
        ("7", "0_to_10", 0.7),
        ("Two points off for style, so 8 / 10.", "0_to_10", 0.8),
        ("Score: 9.5", "0_to_10", 0.95),
        ("10", "0_to_10", 1.0),
    ],
)
def test_the_last_verdict_of_a_reply_counts(reply: str, scale: Scale, reward: float) -> None:
    assert verdict_of(reply, scale) == pytest.approx(reward)


@pytest.mark.parametrize(
    ("reply", "scale"),
    [("", "yes_no"), ("I know not.", "yes_no"), ("Yesterday", "yes_no"), ("good", "0_to_10"), ("42", "0_to_10")],
)
def test_a_reply_without_a_verdict_is_no_score(reply: str, scale: Scale) -> None:
    with pytest.raises(ValueError, match="the judge"):
        verdict_of(reply, scale)


def test_a_key_that_is_not_set_is_named() -> None:
    with service(lambda question: chat("YES")) as seen:
        options: Options = {"model": "a-judge", "api_key_variable": "NO_SUCH_KEY"}
        [got] = ask_services([task("judge", url=seen.url, **options)], {"qa": 1})
    assert got.status == "grader_error"
    assert "environment variable NO_SUCH_KEY, which is not set" in got.detail


def test_the_router_asks_services_and_processes_and_keeps_the_order() -> None:
    with service(lambda question: answer({"reward": len(question["response"]) / 100})) as seen:
        rewards = {
            "own": RewardConfig.model_validate({"grader": "remote", "options": {"url": seen.url}}),
            "arithmetic": RewardConfig.model_validate(
                {
                    "graders": [
                        {"grader": "math"},
                        {"grader": "remote", "weight": 0.5, "options": {"url": seen.url}},
                    ]
                }
            ),
        }
        responses = pl.DataFrame(
            {
                "sample_id": ["a", "b", "c"],
                "domain": ["own", "arithmetic", "own"],
                "prompt_text": ["?"] * 3,
                "response_text": ["12", "It is 4.", "1234"],
                "ground_truth": ["", "4", ""],
            }
        )
        router = RewardRouter(rewards, processes=1)
        try:
            graded = router.grade(responses)
        finally:
            router.close()
    assert graded["sample_id"].to_list() == ["a", "b", "c"]
    assert graded["reward"].to_list() == pytest.approx([0.02, 1.04, 0.04])
