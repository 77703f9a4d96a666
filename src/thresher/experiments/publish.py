"""What experiments share in print: tables between marks in README.md, and figures in one style."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from thresher.errors import RunError
from thresher.records import write_text

INK, ORANGE, BLUE = "#222222", "#e08214", "#1f5fa8"
STYLE: Any = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "svg.fonttype": "none",
    "svg.hashsalt": "thresher",  # the same records give the same file
}


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def write_between_marks(file: Path, mark: str, text: str) -> None:
    """Replace what stands between `<!-- mark -->` and the next `<!-- end -->`."""
    page = file.read_text(encoding="utf-8") if file.is_file() else ""
    before, found, rest = page.partition(f"<!-- {mark} -->\n")
    _, ended, after = rest.partition("<!-- end -->")
    if not (found and ended):
        raise RunError(f"{file} has no <!-- {mark} --> with an <!-- end --> after it; put the two lines back")
    write_text(file, f"{before}{found}{text}\n{ended}{after}")


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
