"""Names of tools that not every provider accepts: dots, slashes, a digit first, too long. The fake one refuses some."""

from __future__ import annotations

import re

import pytest

from runlane.llm.models import Message, ModelDelta, ModelRequest, ToolOffer
from runlane.testing import FakeAnswer, FakeCall
from tests.integration.test_providers import MODELS, provider

LONG = "a_very_long_name_" * 6
NAMES = ["shop.order", "shop/order", "shop_order", LONG, f"{LONG}2", "weather", "2fa", "-v"]
OFFERS = tuple(ToolOffer(name, f"What {name} does.") for name in NAMES)


def offered_names(body: dict[str, object]) -> list[str]:
    tools: list[dict[str, dict[str, str]]] = body["tools"]  # pyright: ignore[reportAssignmentType]
    return [str((tool.get("function") or tool)["name"]) for tool in tools]


@pytest.mark.parametrize("prefix", MODELS)
async def test_every_tool_can_be_called_whatever_it_is_called(prefix: str) -> None:
    model = MODELS[prefix]
    async with provider("Hello.") as place:
        await place.ask(model, "What is there?", offers=OFFERS)
        names = offered_names(place.bodies[0])
    assert len(set(names)) == len(NAMES)
    # Google does not accept a leading digit; others do, but a conversation may continue with another model.
    assert all(re.fullmatch(r"[A-Za-z_][A-Za-z0-9_-]{0,63}", name) for name in names)
    assert names[2] == "shop_order"
    assert names[5] == "weather"
    async with provider(FakeAnswer(calls=[FakeCall(name=name) for name in names]), "Done.") as place:
        pieces: list[ModelDelta] = []
        first = await place.ask(model, "Call all of them.", offers=OFFERS, pieces=pieces)
        assert [call.name for call in first.calls] == NAMES
        assert {piece.tool for piece in pieces} <= set(NAMES)
        for raw in (first.raw, None):
            lines = (
                Message("user", "Call all of them."),
                Message("assistant", "", calls=first.calls, raw=raw),
                *(Message("tool", "ok", tool=call.name, call_id=call.id) for call in first.calls),
            )
            request = ModelRequest(model, lines, offers=OFFERS, number=1)
            assert (await place.ask(model, request)).text == "Done."
            assert offered_names(place.bodies[-1]) == names
            assert '"shop.order"' not in str(place.bodies[-1]["tools"])


@pytest.mark.parametrize("prefix", MODELS)
async def test_a_tool_that_was_not_offered_keeps_the_name_that_the_model_gave_it(prefix: str) -> None:
    async with provider(FakeAnswer(calls=[FakeCall(name="shop_orders")])) as place:
        reply = await place.ask(MODELS[prefix], "Order!", offers=OFFERS)
        assert [call.name for call in reply.calls] == ["shop_orders"]
