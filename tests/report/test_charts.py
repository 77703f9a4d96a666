"""Charts: heights say what the numbers say."""

import re
from xml.etree import ElementTree

import pytest

from thresher.report.charts import front, layer_bars


def test_bars_are_as_high_as_the_tokens_are_many() -> None:
    chart = layer_bars([20.0, 10.0, 1.0], 40.0)
    ElementTree.fromstring(chart)
    heights = [float(value) for value in re.findall(r'height="([\d.]+)"', chart)]
    assert heights[1] == pytest.approx(heights[0] / 2, abs=0.1) and heights[2] == pytest.approx(heights[0] / 4, abs=0.1)
    assert re.findall(r">(\d+\.\d)</text>", chart) == ["40.0", "20.0", "10.0", "1.0"]


def test_points_lie_where_their_numbers_are() -> None:
    points = [
        {"relative_flops": 0.8, "score": 0.9, "dial": 1.0, "chosen": False},
        {"relative_flops": 0.4, "score": 0.88, "dial": 1.2, "chosen": True},
        {"relative_flops": 0.6, "score": 0.89, "dial": 0.9, "chosen": False},
    ]
    chart = front(points, dense=0.9, limit=0.01)
    ElementTree.fromstring(chart)
    found = re.findall(r'<circle class="(\w+)" cx="([\d.]+)" cy="([\d.]+)"', chart)
    assert [kind for kind, _, _ in found] == ["trained", "chosen", "dialled"]
    across, up = [float(x) for _, x, _ in found], [float(y) for _, _, y in found]
    assert across[1] < across[2] < across[0] and up[0] < up[2] < up[1]
    lines = [float(y) for y in re.findall(r'<line [^>]*y1="([\d.]+)"', chart)]
    assert lines[0] == pytest.approx(up[0], abs=0.1) and lines[1] == pytest.approx(up[2], abs=0.1)


def test_one_model_alone_can_be_drawn() -> None:
    ElementTree.fromstring(
        front([{"relative_flops": 1.0, "score": 1.0, "dial": 1.0, "chosen": True}], dense=1, limit=0)
    )
    ElementTree.fromstring(layer_bars([1.0], 1.0))
