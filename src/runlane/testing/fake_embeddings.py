"""The embeddings of a fake provider: OpenAI's wire format, with vectors that depend only on words."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from typing import Any, Final

from runlane.testing.fake_script import FakeAnswer, FakeFault
from runlane.testing.fake_wire import Body, FakeRequest, openai_error

SYNONYMS: Final = (("car", "automobile", "vehicle"), ("doctor", "physician"), ("film", "movie"))
_DIMENSIONS: Final = 64


class EmbeddingsWire:
    """POST /v1/embeddings. A vector has one direction for each word, so that inputs with common words are near.

    Words in one group of `SYNONYMS` have the same direction.
    """

    def parse_request(self, body: Body) -> FakeRequest:
        given: Any = body.get("input")
        texts: list[str] = [given] if isinstance(given, str) else list(given or [])
        return FakeRequest(str(body.get("model")), 0, "\x00".join(texts), stream=False, size=sum(map(len, texts)))

    def stream(self, answer: FakeAnswer, request: FakeRequest) -> Iterator[bytes]:
        raise NotImplementedError("Embeddings are not streamed.")

    def whole(self, answer: FakeAnswer, request: FakeRequest) -> Body:
        data = [
            {"object": "embedding", "index": index, "embedding": embedding_of(text)}
            for index, text in enumerate(request.last.split("\x00"))
        ]
        tokens = request.size // 4
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return {"object": "list", "data": data, "model": request.model, "usage": usage}

    def error(self, fault: FakeFault) -> Body:
        return openai_error(fault)

    def late_error(self, fault: FakeFault) -> bytes:
        raise NotImplementedError("Embeddings are not streamed.")


def embedding_of(text: str) -> list[float]:
    """Return the vector that the fake provider computes for an input."""
    vector = [0.0] * _DIMENSIONS
    for word in re.findall(r"\w+", text.lower()):
        group = next((words[0] for words in SYNONYMS if word in words), word)
        vector[int.from_bytes(hashlib.sha256(group.encode()).digest()[:4], "big") % _DIMENSIONS] += 1.0
    return vector if any(vector) else [1.0] * _DIMENSIONS
