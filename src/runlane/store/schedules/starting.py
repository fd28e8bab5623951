"""Start the runs of slots: accept them, or record why one was not accepted.

A prepared run is stored with a buffered slot, so that the transaction that ends the run before it can accept it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, cast

from runlane.domain.concurrency import ConcurrencyLimit
from runlane.domain.flow_keys import RunFlow
from runlane.domain.run import Accepted
from runlane.domain.text import clean_text, dump_json, load_json
from runlane.errors import RunlaneError, Unavailable
from runlane.store.chat.posting import post_in
from runlane.store.queue.accept import NewRun, accept
from runlane.store.sql.database import Session
from runlane.store.webhooks.run_webhooks import RunWebhook

_MAX_DETAIL: Final = 2000


@dataclass(frozen=True, slots=True)
class PreparedRun:
    """A run to accept for a slot. For a chat turn, `session_id`, `agent` and `message` are set."""

    run: NewRun
    session_id: str | None = None
    agent: str = ""
    message: str = ""

    def to_text(self) -> str:
        """Return it as it is stored with a buffered slot."""
        return dump_json([list(self.run), self.session_id, self.agent, self.message])

    @classmethod
    def of_text(cls, text: str) -> PreparedRun:
        """Return a stored one."""
        fields, session_id, agent, message = load_json(text)
        run = NewRun(*fields)
        return cls(
            run._replace(
                webhook=None if run.webhook is None else RunWebhook(cast("dict[str, str]", run.webhook)["url"]),
                flow=RunFlow.of_list(run.flow),
                limits=tuple(ConcurrencyLimit(*limit) for limit in run.limits),
            ),
            session_id,
            agent,
            message,
        )


@dataclass(frozen=True, slots=True)
class StartFailure:
    """Why a slot started no run: a code for programs, and the error for people."""

    code: str
    detail: str


def start_failure(error: RunlaneError) -> StartFailure:
    """Return what is recorded of an error."""
    return StartFailure(error.code, clean_text(str(error), _MAX_DETAIL))


async def start_runs(session: Session, prepared: Sequence[PreparedRun]) -> list[Accepted | StartFailure]:
    """Accept runs, each by itself: one that is refused does not affect the others. The caller holds their locks."""
    plain = [item.run for item in prepared if item.session_id is None]
    verdicts = iter(await accept(session, plain, [1] * len(plain)) if plain else [])
    started: list[Accepted | StartFailure] = []
    for item in prepared:
        verdict = next(verdicts) if item.session_id is None else await _post(session, item, item.session_id)
        if isinstance(verdict, RunlaneError):
            started.append(start_failure(verdict))
        elif verdict.run_id:
            started.append(verdict)
        else:
            started.append(StartFailure(verdict.outcome.value, f"Flow control has {verdict.outcome} the start."))
    return started


async def _post(session: Session, item: PreparedRun, session_id: str) -> Accepted | RunlaneError:
    try:
        posted = await post_in(
            session, item.run, session_id=session_id, agent=item.agent, message=item.message, is_new=False
        )
    except Unavailable:
        raise
    except RunlaneError as error:
        return error
    return posted.accepted
