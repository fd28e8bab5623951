"""Submit the answer of an action link, from its page or from a button in Slack."""

from __future__ import annotations

from runlane import queries
from runlane.api.services import Services
from runlane.domain.action_link import ActionLink
from runlane.domain.hints import Topic
from runlane.domain.wait import QuestionDetail, QuestionState
from runlane.errors import RunlaneError
from runlane.store.orchestration.action_links import find_action_link, note_link_use
from runlane.submit.orchestrations import answer_run


async def find_link(parts: Services, token: str) -> tuple[ActionLink, QuestionDetail] | None:
    """Return the link of a token with its question; None if links are not allowed or this link is not valid."""
    if not parts.app.settings.action_links:
        return None
    found = await find_action_link(parts.database, token, without_keys=parts.without_keys)
    if found is None:
        return None
    detail = await queries.get_question(parts.database, found.link.run_id, found.link.path)
    # The step may have been performed again between the two reads.
    return (found.link, detail) if detail.question.opened_at_us == found.opened_at_us else None


async def give_answer(
    parts: Services, link: ActionLink, detail: QuestionDetail, person: str, *, used_by: str | None = None
) -> QuestionDetail:
    """Submit the answer of a link if its question is open. Return the question with the stored answer."""
    if detail.state is not QuestionState.OPEN:
        return detail
    try:
        change = await answer_run(
            parts.database,
            link.run_id,
            link.response,
            step=link.path,
            answered_by=f"{person} (link of {link.created_by})",
            platform=False,
            opened_at_us=detail.question.opened_at_us,
        )
    except RunlaneError as error:
        # Another answer was stored first. It is returned below.
        if error.http_status >= 500:
            raise
    else:
        parts.connection.publish_change(change)
        parts.connection.bus.hint(Topic.INBOX, None, link.run_id)
        await note_link_use(parts.database, link, detail.question.tenant, used_by)
    return await queries.get_question(parts.database, link.run_id, link.path)
