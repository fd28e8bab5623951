"""Messages of providers are shown shortened and without keys; a missing package is named."""

from __future__ import annotations

import base64
import sys
from collections.abc import Collection, Mapping

import pytest

from runlane.llm.failures import shortened
from runlane.llm.models import Message, ModelContext, ModelFailed, ModelRegistry, ModelRequest
from runlane.llm.providers import register_providers
from runlane.redaction import Redactor
from runlane.settings import load_settings


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("It is\n  too   long", "It is too long"),
        ("Wrong key hunter2-hunter2!", "Wrong key [redacted]!"),
        ("Incorrect API key provided: sk-proj-ab12******wxyz. See", "Incorrect API key provided: [redacted] See"),
        ("key AIzaSyA1234567890abc is bad", "key [redacted] is bad"),
        ("header Bearer abc.def was sent", "header [redacted] was sent"),
        ("task-oriented and risk-free words stay", "task-oriented and risk-free words stay"),
    ],
)
def test_keys_do_not_get_into_messages(message: str, shown: str) -> None:
    assert shortened(message, Redactor(["hunter2-hunter2"])) == shown


def test_long_messages_are_cut_after_keys_were_taken_out() -> None:
    text = shortened("x" * 295 + "hunter2-hunter2" + "y" * 1000, Redactor(["hunter2-hunter2"]))
    assert len(text) == 301
    assert "hunt" not in text


def test_no_half_of_a_known_value_is_left_where_a_message_is_cut() -> None:
    redactor = Redactor(["another-secret/0123456789"])
    known = base64.b64encode(b"another-secret/0123456789").decode()
    for length in range(260, 300):
        assert known[:6] not in shortened("x" * length + known, redactor)


async def test_a_missing_provider_package_is_reported_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    async def values(tenant: str, names: Collection[str]) -> Mapping[str, str]:
        return {}

    for name in [name for name in sys.modules if name.startswith(("pydantic_ai.providers.google", "google.genai"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "google.genai", None)
    monkeypatch.setitem(sys.modules, "google.genai.client", None)
    models = ModelRegistry()
    providers = register_providers(models, load_settings(google_api_key="g"), values)
    _, model = models.find("google:gemini-2.5-flash", ModelContext())
    with pytest.raises(ModelFailed, match=r"pip install 'runlane\[google\]'") as caught:
        await model.answer(ModelRequest("google:gemini-2.5-flash", (Message("user", "Hello?"),)))
    assert (caught.value.code, caught.value.retryable) == ("unknown_model", False)
    await providers.close()
