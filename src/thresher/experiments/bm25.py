"""BM25: the documents that share the rarest words with a query, for candidates that a reranker orders."""

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

WORD = re.compile(r"\w+")


class BM25:
    """A corpus in an inverted matrix (documents, words), ready to be asked. `k1` and `b` as Anserini has them."""

    def __init__(self, texts: Sequence[str], *, k1: float = 0.9, b: float = 0.4) -> None:
        from scipy.sparse import csc_matrix

        self._words: dict[str, int] = {}
        documents: list[int] = []
        columns: list[int] = []
        for index, text in enumerate(texts):
            for word in words_of(text):
                documents.append(index)
                columns.append(self._words.setdefault(word, len(self._words)))
        shape = (len(texts), len(self._words))
        counts = csc_matrix((np.ones(len(columns)), (documents, columns)), shape=shape)  # sums what occurs twice
        lengths = np.asarray(counts.sum(axis=1)).ravel()
        rows, holders = counts.indices, np.diff(counts.indptr)
        rarity = np.log1p((len(texts) - holders + 0.5) / (holders + 0.5))
        room = k1 * (1 - b + b * lengths[rows] / lengths.mean())
        counts.data = np.repeat(rarity, holders) * counts.data * (k1 + 1) / (counts.data + room)
        self._weights = counts

    def scores(self, query: str) -> NDArray[np.float64]:
        """(documents,)"""
        known = [self._words[word] for word in words_of(query) if word in self._words]
        return np.asarray(self._weights[:, known].sum(axis=1), dtype=np.float64).ravel()

    def top(self, query: str, count: int) -> list[int]:
        """Numbers of the best documents, the best first; of equal ones the earlier."""
        return [int(index) for index in np.argsort(-self.scores(query), kind="stable")[:count]]


def words_of(text: str) -> list[str]:
    return WORD.findall(text.lower())
