"""Small charts as inline SVG, in the colours of the page around them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 220, 44, 62, 22, 34


def layer_bars(kept: Sequence[float], mean_length: float) -> Markup:
    """Mean tokens at the input and after every layer, a bar each. kept: (layers,)."""
    counts = [mean_length, *kept]
    step = (WIDTH - 20) / len(counts)
    room = HEIGHT - TOP - BOTTOM
    bars = []
    for place, count in enumerate(counts):
        height = max(1.0, room * count / max(counts))
        middle, top = 10 + step * (place + 0.5), TOP + room - height
        kind = "input" if place == 0 else "bar"
        name = "input" if place == 0 else str(place)
        bars.append(
            Markup(
                '<rect class="{}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" rx="2"/>'
                '<text x="{:.1f}" y="{:.1f}">{:.1f}</text><text class="axis" x="{:.1f}" y="{}">{}</text>'
            ).format(kind, middle - 0.36 * step, top, 0.72 * step, height, middle, top - 5, count, middle, 204, name)
        )
    title = Markup("<title>mean tokens after each layer: {}</title>").format(", ".join(f"{n:.1f}" for n in counts))
    return _svg(title + Markup("").join(bars), HEIGHT)


@dataclass(frozen=True)
class _Scale:
    """A range of values on a stretch of the picture."""

    low: float
    high: float
    begin: float
    end: float

    def __call__(self, value: float) -> float:
        return self.begin + (self.end - self.begin) * (value - self.low) / max(self.high - self.low, 1e-9)


def front(points: Sequence[Mapping[str, Any]], *, dense: float, limit: float) -> Markup:
    """A search: score against relative FLOPs, with the dense model's line and the lowest score that was allowed.

    points have relative_flops, score, dial and chosen; scores are shares of 1."""
    scores = [float(point["score"]) for point in points] + [dense, dense - limit]
    margin = 0.08 * max(max(scores) - min(scores), 0.005)
    across = _Scale(0.0, 1.0, LEFT, WIDTH - RIGHT)
    up = _Scale(min(scores) - margin, max(scores) + margin, HEIGHT + 40 - BOTTOM, TOP)
    parts = [
        Markup("<title>score against relative FLOPs of every model of the search</title>"),
        *(_across(up(value), name, kind) for value, name, kind in _lines(dense, limit)),
        *(
            Markup('<text class="axis" x="{:.1f}" y="{}">{:.0f}%</text>').format(across(x), HEIGHT + 30, 100 * x)
            for x in (0.0, 0.25, 0.5, 0.75, 1.0)
        ),
        *(
            Markup('<text class="scale" x="{}" y="{:.1f}">{:.1f}</text>').format(LEFT - 6, up(y) + 4, 100 * y)
            for y in (min(scores), max(scores))
        ),
        *(_point(point, across, up) for point in points),
    ]
    return _svg(Markup("").join(parts), HEIGHT + 40)


def _lines(dense: float, limit: float) -> tuple[tuple[float, str, str], ...]:
    return (dense, "dense", "line"), (dense - limit, "limit", "line dashed")


def _across(height: float, name: str, kind: str) -> Markup:
    line = Markup('<line class="{0}" x1="{1}" x2="{2}" y1="{3:.1f}" y2="{3:.1f}"/>')
    text = Markup('<text class="end" x="{}" y="{:.1f}">{}</text>')
    end = WIDTH - RIGHT
    return line.format(kind, LEFT, end, height) + text.format(end + 5, height + 4, name)


def _point(point: Mapping[str, Any], across: _Scale, up: _Scale) -> Markup:
    kind = "chosen" if point["chosen"] else "trained" if point["dial"] == 1.0 else "dialled"
    flops, score = float(point["relative_flops"]), float(point["score"])
    circle = Markup('<circle class="{}" cx="{:.1f}" cy="{:.1f}" r="{}"><title>{}</title></circle>')
    said = f"{kind}: {100 * score:.2f} at {100 * flops:.1f}% of the FLOPs"
    return circle.format(kind, across(flops), up(score), 7 if point["chosen"] else 4, said)


def _svg(inside: Markup, height: int) -> Markup:
    return Markup('<svg class="chart" viewBox="0 0 {} {}" role="img">{}</svg>').format(WIDTH, height, inside)
