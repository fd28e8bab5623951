"""Answers to the questions of agents, each applied once per Idempotency-Key.

Without a key, an answer that a client repeats after a broken connection could reach the next question of the run.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from runlane.api.agent_server.native_questions import resume_native
from runlane.api.idempotency import KeyReused, RequestInProgress
from runlane.api.services import Services
from runlane.domain.access import Principal
from runlane.domain.text import dump_json, load_json
from runlane.domain.thread import Thread
from runlane.store.access.idempotency import claim_answer, drop_claim, keep_answer


async def resume_once(
    parts: Services, principal: Principal, thread: Thread, command: Mapping[str, Any], key: str | None
) -> tuple[str, int]:
    """Answer the questions of a thread. Return the id of the run and the event at which it was paused.

    A repeated request with the same key returns the same and answers nothing.
    """
    if key is None:
        return await resume_native(parts, principal, thread, command)
    database = parts.database
    scope = "\x1f".join((principal.tenant, principal.key_id, "resume", thread.id, key)).encode()
    name = sha256(scope).hexdigest()
    known = await claim_answer(database, name, hmac.digest(scope, dump_json(command).encode(), "sha256").hex())
    if known is not None:
        if not known.same_request:
            raise KeyReused(f'The Idempotency-Key "{key}" was used before with another answer. Use a new one.')
        if known.body is None:
            raise RequestInProgress(
                "The first request with this Idempotency-Key is still in progress. Retry in a moment."
            )
        run_id, paused_at = load_json(known.body)
        return run_id, paused_at
    kept = False
    try:
        found = await resume_native(parts, principal, thread, command)
        await keep_answer(database, name, 200, dump_json(found))
        kept = True
        return found
    finally:
        if not kept:
            await drop_claim(database, name)
