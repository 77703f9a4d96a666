"""Answers to questions and entities of texts, over the same queue: windows of long texts are batched like texts."""

from collections.abc import Iterator

import pytest

from tests.engine.test_answers import character_tokenizer, model_for
from tests.serving.conftest import Client, served, setting
from thresher.serving.house import House

CONTEXT = "the letter was written by ada " * 12
QUESTION = "who wrote it"


@pytest.fixture(scope="module")
def readers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    place = tmp_path_factory.mktemp("readers")
    for means in ("span", "tags"):
        model_for(means).save_pretrained(place / means)
        character_tokenizer().save_pretrained(place / means)
    with served(House([setting(place, means) for means in ("span", "tags")])) as client:
        yield client


def test_an_answer_is_the_engines_whatever_the_length(readers: Client) -> None:
    engine = readers.house.runs["span"].engine
    reply = readers.post("/answer", {"question": QUESTION, "context": CONTEXT})
    expected = engine.answer(QUESTION, CONTEXT)
    assert expected.windows > 3 and reply.status == 200, reply.body
    assert reply.json["answer"] == expected.text and reply.json["score"] == pytest.approx(
        expected.probability, abs=1e-4
    )
    assert CONTEXT[reply.json["start"] : reply.json["end"]] == reply.json["answer"]
    many = readers.post("/answer", {"inputs": [{"question": QUESTION, "context": CONTEXT}] * 3, "top_k": 2}).json
    assert len(many) == 3 and all(len(one) == 2 for one in many) and many[0][0] == pytest.approx(reply.json, abs=1e-4)
    assert int(reply.headers["x-compute-tokens"]) == expected.tokens


def test_entities_are_the_engines(readers: Client) -> None:
    texts = ["ada was born in london", CONTEXT]
    found = readers.post("/tag", {"inputs": texts}).json
    for one, expected in zip(found, readers.house.runs["tags"].engine.tag(texts), strict=True):
        assert [(row["word"], row["entity_group"], row["start"]) for row in one] == [
            (entity.text, entity.label, entity.start) for entity in expected.entities
        ]
    assert any(found)


def test_a_models_own_address_reads_too(readers: Client) -> None:
    body = {"inputs": {"question": QUESTION, "context": CONTEXT}}
    assert "answer" in readers.post("/run/span/", body).json
    assert isinstance(readers.post("/run/tags/", {"inputs": "ada"}).json, list)


@pytest.mark.parametrize("end", ["", "/"])
def test_huggingface_hub_asks_and_tags(readers: Client, monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    from huggingface_hub import InferenceClient

    monkeypatch.setattr("huggingface_hub.constants.is_offline_mode", lambda: False)  # as tests are; this is here
    client = InferenceClient(f"{readers.url}/run/span{end}")
    one, expected = (
        client.question_answering(question=QUESTION, context=CONTEXT),
        readers.house.runs["span"].engine.answer(QUESTION, CONTEXT),
    )
    assert one.answer == expected.text == CONTEXT[one.start : one.end]
    several = client.question_answering(question=QUESTION, context=CONTEXT, top_k=3)
    assert len(several) == 3 and several[0] == one
    (tagged,) = readers.house.runs["tags"].engine.tag([CONTEXT])
    found = InferenceClient(f"{readers.url}/run/tags{end}").token_classification(CONTEXT)
    assert [(row.entity_group, row.word, row.start) for row in found] == [
        (entity.label, entity.text, entity.start) for entity in tagged.entities
    ]


@pytest.mark.parametrize(("run", "text", "pair"), [("span", QUESTION, CONTEXT), ("tags", "ada was born", None)])
def test_explain_shows_the_context(readers: Client, run: str, text: str, pair: str | None) -> None:
    body = {"text": text, "dials": [1, 0], **({} if pair is None else {"pair": pair})}
    reply = readers.post(f"/run/{run}/explain", body)
    assert reply.status == 200, reply.body
    one = reply.json["explanations"][0]
    shown = [token for token in one["tokens"] if token["part"] is not None]
    assert shown and all((pair or text)[token["start"] : token["end"]] == token["text"] for token in shown)
    assert ("answers" in one) == (run == "span") and ("entities" in one) == (run == "tags")


@pytest.mark.parametrize(
    ("route", "body", "says"),
    [
        ("/answer", {"question": QUESTION}, "a question and a context are needed"),
        ("/answer", {"question": " ", "context": CONTEXT}, "the question is empty"),
        ("/answer", {"question": QUESTION, "context": CONTEXT, "top_k": 0}, "top_k = 0"),
        ("/answer", {"inputs": {"question": QUESTION}}, "missing required field `context`"),
        ("/tag", {"inputs": ["ada", ""]}, "text 1: the text is empty"),
        ("/run/tags/answer", {"question": "a", "context": "b"}, "gives tags, which /answer does not serve; use /tag"),
        ("/run/span/predict", {"inputs": "ada"}, "gives span, which /predict does not serve; use /answer"),
    ],
)
def test_bad_requests(readers: Client, route: str, body: object, says: str) -> None:
    reply = readers.post(route, body)
    assert reply.status == 422 and says in reply.json["error"], reply.body
