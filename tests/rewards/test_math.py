import pytest

from rlcore.rewards.math import grade


@pytest.mark.parametrize(
    ("response", "truth"),
    [
        ("3 + 4 = 7.", "7"),
        ("The answer is 12 apples.", "12"),
        ("First there were 5, then 12", "12"),
        ("**12**", "12"),
        ("It costs $12", "12"),
        ("12.0", "12"),
        ("In total 1,200 people", "1200"),
        ("the result is -3", "-3"),
        ("the result is −3", "-3"),
        ("5-3=2, that is 5-2", "2"),
        (r"So \boxed{12}, not 99", "12"),
        (r"So \boxed{12.0}, not 99", "12"),
        (r"\boxed{3} or rather \boxed{4}", "4"),
        (r"\boxed{x = 12}", "12"),
        (r"\boxed{\frac{24}{2}}", "12"),
        (r"\boxed{12 \text{ apples}}", "12"),
        (r"Cut off: 12 = \boxed{12", "12"),
        ("0.5", "1/2"),
        (r"The answer is $\frac{1}{2}$.", r"\frac{1}{2}"),
        ("$x^2 + 1$", "1+x^2"),
        (r"\boxed{\sqrt2}", r"\sqrt{2}"),
    ],
)
def test_a_right_answer_is_rewarded(response: str, truth: str) -> None:
    score = grade(response, truth)
    assert score.reward == 1.0
    assert score.components == {"correct": 1.0, "answered": 1.0}


@pytest.mark.parametrize(
    ("response", "truth"),
    [
        ("3 + 4 = 8.", "7"),
        ("7, or maybe 8", "7"),
        ("12.5", "12"),
        ("-12", "12"),
        (r"12, so \boxed{13}", "12"),
        ("$x^2 + 2$", "1+x^2"),
        ("0.51", "1/2"),
        ("9" * 10_000, "7"),
    ],
)
def test_a_wrong_answer_is_not_rewarded(response: str, truth: str) -> None:
    score = grade(response, truth)
    assert score.reward == 0.0
    assert score.components == {"correct": 0.0, "answered": 1.0}


@pytest.mark.parametrize("truth", ["7", "1/2"])
@pytest.mark.parametrize("response", ["", " \n", "I do not know", "\x00\ud83d"])
def test_a_response_without_an_answer_is_not_rewarded(response: str, truth: str) -> None:
    score = grade(response, truth)
    assert score.reward == 0.0
    assert score.components == {"correct": 0.0, "answered": 0.0}


@pytest.mark.parametrize("response", ["3 + 4", r"\boxed{3+4}", r"\boxed{\sqrt{49}+0 \cdot x}"])
def test_repeating_the_question_is_no_answer_to_it(response: str) -> None:
    assert grade(response, "7").reward == 0.0


@pytest.mark.parametrize("response", ["9**9**9**9", r"\boxed{9^{9^{9^{9}}}}"])
def test_an_integer_answer_is_never_evaluated(response: str) -> None:
    assert grade(response, "7").reward == 0.0


@pytest.mark.parametrize("truth", ["", "??"])
def test_a_ground_truth_that_is_no_mathematics_is_refused(truth: str) -> None:
    with pytest.raises(ValueError, match="ground truth"):
        grade("7", truth)
