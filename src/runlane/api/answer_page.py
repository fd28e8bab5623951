"""The pages of action links: a question with one button, and the answer that was given. They have no scripts."""

from __future__ import annotations

from html import escape
from typing import Any, Final

from runlane.api.dashboard.pages import security_headers
from runlane.domain.action_link import ActionLink
from runlane.domain.text import dump_json
from runlane.domain.wait import Question, QuestionDetail, QuestionState

_MOST_CHARACTERS: Final = 20_000
_STYLE: Final = """
:root { color-scheme: light dark; --line: #8885; --accent: #17616b; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 40rem; margin: 3rem auto; padding: 0 1rem; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; border: 1px solid var(--line); padding: .7rem; }
button { font: inherit; padding: .5rem 1.2rem; border: 0; border-radius: 6px; background: var(--accent); color: #fff; }
.note { opacity: .75; font-size: 13px; }
"""
_PAGE: Final = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="robots" content="noindex">
<title>{title}</title>
<style nonce="{nonce}">{style}</style>
</head>
<body>
<h1>{title}</h1>
{body}
</body>
</html>
"""


def page_headers(nonce: str) -> dict[str, str]:
    """Return the headers of the dashboard with `no-store`, because a cache must not keep the page."""
    return {**security_headers(nonce), "Cache-Control": "no-store", "X-Robots-Tag": "noindex"}


def answer_page(nonce: str, link: ActionLink, question: Question) -> str:
    """Return the page for an open question."""
    context = "" if question.context is None else f"<h2>Context</h2>{_block(question.context)}"
    body = (
        f"<p>{_text(question.prompt or question.name)}</p>{context}"
        f"<h2>The answer of this link</h2>{_block(link.response)}"
        f'<form method="post"><button type="submit">Give this answer</button></form>'
        f'<p class="note">The link was made for {_text(link.person)} by {_text(link.created_by)}. The run and the '
        f"audit log name both. Opening this page changes nothing. Run {_text(question.run_id)}, step "
        f"{_text(question.path)}.</p>"
    )
    return _page(nonce, "A question waits for you", body)


def gone_page(nonce: str, detail: QuestionDetail | None) -> str:
    """Return the page of a link without an open question: the stored answer, or why the link is not valid."""
    if detail is None:
        return _page(
            nonce,
            "This link is not valid",
            "<p>It has expired, its key was revoked, or it is incomplete. Ask for a new link.</p>",
        )
    if detail.state is not QuestionState.ANSWERED:
        return _page(nonce, "The question is closed", f"<p>It is {_text(detail.state.value)}. No answer is needed.</p>")
    by = _text(detail.question.answered_by or "another person")
    return _page(nonce, "The question is answered", f"<p>Answered by {by}:</p>{_block(detail.answer)}")


def _page(nonce: str, title: str, body: str) -> str:
    return _PAGE.format(title=title, nonce=nonce, style=_STYLE, body=body)


def _text(value: str) -> str:
    return escape(value[:_MOST_CHARACTERS], quote=True)


def _block(value: Any) -> str:
    return f"<pre>{_text(value if isinstance(value, str) else dump_json(value))}</pre>"
