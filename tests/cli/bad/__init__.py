"""Commands that must fail, as a table."""

from tests.cli.bad.hostile import HOSTILE
from tests.cli.bad.rows import FILES, MODELS
from tests.cli.bad.runs import OUTPUT, QUANTIZED, REPORTED, RUNS
from tests.cli.bad.settings import SETTINGS, TASKS, TOML

TABLE = [*SETTINGS, *TOML, *TASKS, *FILES, *MODELS, *OUTPUT, *RUNS, *QUANTIZED, *REPORTED, *HOSTILE]
