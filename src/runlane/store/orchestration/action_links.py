"""Action links: created for an open question, and found by the hash of their token while they may be used.

One statement decides whether a link may be used, by its time, its question and the key that created it. So a revoked
key ends its links in every process from the moment the revocation commits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import BigInteger, Boolean, and_, bindparam, cast, delete, exists, insert, or_, select

from runlane.domain.access import Permission
from runlane.domain.action_link import ActionLink
from runlane.domain.browser_session import new_token, token_hash
from runlane.domain.ids import new_id
from runlane.domain.text import dump_json, load_json
from runlane.errors import NotFound
from runlane.store.access.audit import append_audit
from runlane.store.access.keys import USABLE_KEYS, find_principals
from runlane.store.sql.database import Database, Session
from runlane.store.sql.expressions import lit, now_us, optional
from runlane.store.sql.schema import action_links, run_waits
from runlane.store.sql.statement import Row, Statement

# The key of callers on a server without keys.
LOCAL_KEY: Final = "local"
_DELETED_AT_ONCE: Final = 500
_MOST_LISTED: Final = 1000

_l = action_links.c
_CREATE = Statement(
    "create_action_link",
    insert(action_links)
    .values(
        id=bindparam("link_id"),
        hash=bindparam("hash"),
        tenant=bindparam("tenant"),
        run_id=bindparam("run_id"),
        path=bindparam("path"),
        opened_at=bindparam("opened_at", type_=BigInteger()),
        response=bindparam("response"),
        person=bindparam("person"),
        key_id=bindparam("key_id"),
        created_by=bindparam("created_by"),
        created_at=now_us(),
        expires_at=now_us() + bindparam("life_us", type_=BigInteger()),
    )
    .returning(_l.expires_at),
    purpose="Add an action link.",
)
_usable = USABLE_KEYS.subquery("usable_keys")
_question = (
    # Another execution of the step asks another question at the same path, at another time.
    run_waits.c.run_id == _l.run_id,
    run_waits.c.path == _l.path,
    run_waits.c.opened_at == _l.opened_at,
)
_may_be_used = (
    _l.expires_at > now_us(),
    or_(
        # Once a server has keys, links that were created without a key are not valid.
        and_(_l.key_id == lit(LOCAL_KEY), cast(bindparam("without_keys", type_=Boolean()), Boolean)),
        exists().where(_usable.c.id == _l.key_id),
    ),
)
_FIND = Statement(
    "find_action_link",
    select(action_links).where(_l.hash == bindparam("hash"), exists().where(*_question), *_may_be_used),
    purpose="Find an action link that may be used by the hash of its token.",
)
_LIST = Statement(
    "list_action_links",
    select(action_links)
    .where(
        optional("tenant", _l.tenant),
        optional("run_id", _l.run_id),
        exists().where(*_question, run_waits.c.answered_at.is_(None)),
        *_may_be_used,
    )
    .order_by(_l.expires_at, _l.id)
    .limit(lit(_MOST_LISTED)),
    purpose="List the action links that may be used.",
)
_REVOKE = Statement(
    "revoke_action_link",
    delete(action_links).where(_l.id == bindparam("link_id"), optional("tenant", _l.tenant)).returning(action_links),
    purpose="Delete an action link, which ends it.",
)
_DELETE_OLD = Statement(
    "delete_old_action_links",
    delete(action_links)
    .where(
        _l.id.in_(select(_l.id).where(_l.expires_at < now_us()).order_by(_l.expires_at).limit(lit(_DELETED_AT_ONCE)))
    )
    .returning(_l.id),
    purpose="Delete action links whose time has ended.",
)


@dataclass(frozen=True, slots=True)
class NewLink:
    """A link to create. `opened_at_us` is when its question was asked."""

    tenant: str
    run_id: str
    path: str
    opened_at_us: int
    response: Mapping[str, Any] | str
    person: str
    key_id: str
    created_by: str
    life_us: int


async def create_action_link(database: Database, new: NewLink) -> tuple[ActionLink, str]:
    """Store a link; return it with its token, which is stored nowhere."""
    token, link_id = new_token(), new_id("lnk")

    async def work(session: Session) -> int:
        rows = await session.fetch(
            _CREATE, link_id=link_id, hash=token_hash(token), tenant=new.tenant, run_id=new.run_id, path=new.path,
            opened_at=new.opened_at_us, response=dump_json(new.response), person=new.person, key_id=new.key_id,
            created_by=new.created_by, life_us=new.life_us,
        )  # fmt: skip
        shown = {"path": new.path, "person": new.person, "response": new.response}
        await append_audit(
            session, actor=new.key_id, tenant=new.tenant, action="link.create", subject=new.run_id, new=shown
        )
        return rows[0]["expires_at"]

    expires_at = await database.transact(work)
    return ActionLink(link_id, new.run_id, new.path, new.person, new.response, new.created_by, expires_at), token


@dataclass(frozen=True, slots=True)
class UsableLink:
    """A link that may be used, and when its question was asked."""

    link: ActionLink
    opened_at_us: int


async def find_action_link(database: Database, token: str, *, without_keys: bool) -> UsableLink | None:
    """Return the link of a token, if it may be used. Whether its question is still open is read with the question.

    `without_keys` means that the server has no keys, so that links of its local user are valid.
    """
    hashed = token_hash(token)
    for row in () if hashed is None else await database.query(_FIND, hash=hashed, without_keys=without_keys):
        if row["key_id"] != LOCAL_KEY:
            # The role of the key may have changed since.
            maker = (await find_principals(database, [row["key_id"]])).get(row["key_id"])
            if maker is None or Permission.RUNS_WRITE not in maker.permissions:
                return None
        return UsableLink(_link_of(row), row["opened_at"])
    return None


async def list_action_links(
    database: Database, *, tenant: str | None, run_id: str | None, without_keys: bool
) -> list[ActionLink]:
    """Return the links that may be used, by the time of their end; at most 1,000."""
    rows = await database.query(_LIST, tenant=tenant, run_id=run_id, without_keys=without_keys)
    return [_link_of(row) for row in rows]


async def revoke_action_link(database: Database, link_id: str, *, actor: str, tenant: str | None) -> ActionLink:
    """End a link. NotFound if it does not exist, or belongs to another tenant than the given one."""

    async def work(session: Session) -> ActionLink:
        for row in await session.fetch(_REVOKE, link_id=link_id, tenant=tenant):
            link = _link_of(row)
            shown = {"path": link.path, "person": link.person, "link": link.id}
            await append_audit(
                session, actor=actor, tenant=row["tenant"], action="link.revoke", subject=link.run_id, old=shown
            )
            return link
        raise NotFound(f'No link "{link_id[:100]}" exists. See: runlane links list')

    return await database.transact(work)


def _link_of(row: Row) -> ActionLink:
    return ActionLink(
        row["id"], row["run_id"], row["path"], row["person"], load_json(row["response"]), row["created_by"],
        row["expires_at"],
    )  # fmt: skip


async def note_link_use(database: Database, link: ActionLink, tenant: str, used_by: str | None) -> None:
    """Note in the audit log that a question was answered by a link; `used_by` is the verified person, if any."""

    async def work(session: Session) -> None:
        shown = {"path": link.path, "person": link.person, "link": link.id, "created_by": link.created_by}
        if used_by is not None:
            shown["used_by"] = used_by
        await append_audit(
            session, actor=f"link:{link.id}", tenant=tenant, action="link.use", subject=link.run_id, new=shown
        )

    await database.transact(work)


async def delete_old_links(session: Session) -> int:
    """Delete some of the links whose time has ended; return how many."""
    return len(await session.fetch(_DELETE_OLD))
