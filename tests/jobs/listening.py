"""A progress object that remembers what it was told."""

from thresher.training.progress import Silent


class Listener(Silent):
    """Counts the steps of every stage, of the brief ones too, and keeps the notes."""

    def __init__(self) -> None:
        self.stages: dict[str, int] = {}
        self.notes: list[str] = []
        self._stage = ""

    def begin(self, name: str, *, total: int, done: int = 0) -> None:
        self._stage = name
        self.stages.setdefault(name, 0)

    def step(self, **numbers: float | None) -> None:
        self.stages[self._stage] += 1

    def note(self, text: str) -> None:
        self.notes.append(text)

    def brief(self) -> "Listener":
        return self
