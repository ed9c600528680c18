from __future__ import annotations

from xml.etree import ElementTree

import pytest

from rlcore.tracking.svg import Series, line_chart, stacked_bars, ticks

SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.0, 1.0, [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (0.0, 12.0, [0.0, 2.5, 5.0, 7.5, 10.0]),
        (0.0008, 0.0013, [0.0008, 0.0009, 0.001, 0.0011, 0.0012, 0.0013]),
        (-3.0, 3.0, [-2.0, 0.0, 2.0]),
    ],
)
def test_ticks_are_round_and_within_the_range(low: float, high: float, expected: list[float]) -> None:
    assert ticks(low, high, 5) == pytest.approx(expected)


def test_a_constant_line_and_a_single_point_are_drawn_inside_the_picture() -> None:
    for points in ([(1.0, 0.5)], [(1.0, 0.0), (2.0, 0.0)]):
        root = ElementTree.fromstring(line_chart([Series("constant", points)], width=300, height=200, name="constant"))
        circles = root.findall(f"{SVG}circle")
        assert len(circles) == len(points)
        assert all(0 < float(c.attrib["cx"]) < 300 and 0 < float(c.attrib["cy"]) < 200 for c in circles)


def test_stacked_parts_stand_on_each_other() -> None:
    root = ElementTree.fromstring(stacked_bars([(1, [1.0, 3.0])], ["a", "b"], name="stack"))
    lower, upper = [rect for rect in root.findall(f"{SVG}rect") if rect.find(f"{SVG}title") is not None]
    assert float(upper.attrib["y"]) + float(upper.attrib["height"]) == pytest.approx(float(lower.attrib["y"]), abs=0.2)
    assert float(upper.attrib["height"]) == pytest.approx(3 * float(lower.attrib["height"]), abs=0.5)


def test_labels_are_escaped() -> None:
    svg = line_chart([Series("<b>", [(1, 2.0)]), Series("&", [(1, 3.0)])], name='"<')
    labels = [text.text for text in ElementTree.fromstring(svg).iter(f"{SVG}text")]
    assert "<b>" in labels and "&" in labels
