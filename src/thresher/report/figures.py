"""The style of all figures, and how they are saved: the same numbers give the same file."""

from pathlib import Path
from typing import Any

from thresher.errors import RunError

INK, ORANGE, BLUE = "#222222", "#e08214", "#1f5fa8"
STYLE: Any = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "svg.fonttype": "none",
    "svg.hashsalt": "thresher",  # the same records give the same file
}


def pyplot_in_style() -> Any:
    """pyplot without a screen, in the style of our figures."""
    try:
        import matplotlib
    except ImportError as error:
        raise RunError(
            'the records are kept, but figures need matplotlib; run: pip install "thresher[figures]"'
        ) from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    pyplot.rcParams.update(STYLE)
    return pyplot


def save_figure(figure: Any, folder: Path, name: str) -> list[Path]:
    """As .svg and .png, without the date, so that drawing anew changes nothing."""
    files = [folder / f"{name}.svg", folder / f"{name}.png"]
    figure.savefig(files[0], metadata={"Date": None})
    figure.savefig(files[1], dpi=160)
    return files
