"""benchmarks/search_studies.py: every rule has a record, and the page on search shows the records."""

import search_studies
from measuring import read_rows


def test_every_rule_is_studied_and_shown() -> None:
    rows = search_studies.study(studies=1)
    assert len({(row["rows_like"], row["rule"]) for row in rows}) == len(rows) == 20
    assert all(row["studies"] == 1 and 1 <= row["trials"] <= 9 and row["command"] for row in rows)
    assert len(search_studies.table(rows).splitlines()) == 22


def test_the_page_on_search_shows_the_records() -> None:
    shown = search_studies.PAGE.read_text(encoding="utf-8")
    rows = read_rows(search_studies.FILE)
    assert rows and search_studies.table(rows) in shown
