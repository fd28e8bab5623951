"""Events and commands of a thread over a WebSocket: each message of the client is a command.

The events of all subscriptions are sent once, in the order of the thread. Clients end all subscriptions when a run
ends, so events of that run must not follow its end. A new subscription may begin before events that were already sent;
clients recognize repeated events by their ids. If a socket is refused, it is closed with the code 4000 plus the HTTP
status of the refusal.

A socket stays open after the check of its key. So it counts as a stream of the key while it is open, even without
subscriptions; it is closed when the key is revoked; and the key is checked again for each command.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, Final, cast

import orjson
from fastapi import WebSocket, WebSocketDisconnect
from pydantic import ValidationError

from runlane.access.policy import require
from runlane.api.agent_server.command_schemas import CommandMessage, EventsBody
from runlane.api.agent_server.commands import perform_command, refuse
from runlane.api.agent_server.event_channels import UnionSelection
from runlane.api.agent_server.event_stream import EventFollower, open_events, start_number
from runlane.api.agent_server.routing import check_uuid
from runlane.api.auth import authenticate_socket
from runlane.api.router import RawRouter
from runlane.api.services import parts_of
from runlane.api.sse import SEND_SECONDS, UNAVAILABLE_SECONDS
from runlane.domain.access import Permission, Principal
from runlane.domain.thread import Thread
from runlane.domain.validation import first_problem
from runlane.errors import Forbidden, RunlaneError, Unavailable, UnknownThread
from runlane.event_loop.offload import LARGE_BYTES, offload_if
from runlane.store.threads.threads import find_thread

router = RawRouter(tags=["thread streams"])

MAX_SUBSCRIPTIONS: Final = 20
_POLL_SECONDS: Final = 15.0
# The close code for a restart of the server: clients reconnect, here or at another server.
_RESTART: Final = 1012
_REFUSED: Final = 4000
_MAX_REASON: Final = 100


@router.websocket("/threads/{thread_id}/stream/events")
async def events_socket(socket: WebSocket, thread_id: str) -> None:
    """Serve the events and commands of a thread until the client or this process closes the socket."""
    try:
        if parts_of(socket).auth_module is not None:
            raise Forbidden("Sockets are not served with an auth module. Use POST /threads/{id}/stream/events.")
        principal = await authenticate_socket(socket)
        require(principal, Permission.RUNS_READ)
        check_uuid(thread_id, "thread id")
    except RunlaneError as error:
        await socket.accept()
        await _refuse(socket, error)
        return
    await socket.accept()
    await _Session(socket, principal, thread_id).serve()


class _Session:
    """One open socket."""

    def __init__(self, socket: WebSocket, principal: Principal, thread_id: str) -> None:
        self._socket = socket
        self._principal = principal
        self._thread_id = thread_id
        self._parts = parts_of(socket)
        self._subscriptions: dict[str, EventsBody] = {}
        # The reason why the caller may no longer use the socket, and the task that then closes it.
        self._refusal: RunlaneError | None = None
        self._closing: asyncio.Task[None] | None = None
        # The task that sends the events, its reader, and the number of the last event that was sent.
        self._pump_task: asyncio.Task[None] | None = None
        self._follower: EventFollower | None = None
        self._position = 0
        self._created = 0
        self._sending = asyncio.Lock()

    async def serve(self) -> None:
        """Perform commands until the socket is closed."""
        try:
            release = self._parts.streams.take(self._principal)
        except RunlaneError as error:
            await _refuse(self._socket, error)
            return
        unguard = self._parts.revocation.guard(self._principal, Permission.RUNS_READ, self._revoke)
        try:
            while True:
                await self._answer(await self._socket.receive_text())
        except (WebSocketDisconnect, TimeoutError):
            pass
        except RunlaneError as error:
            await _refuse(self._socket, error)
        finally:
            unguard()
            await self._stop_pump()
            release()

    def _revoke(self, why: RunlaneError) -> None:
        """Close the socket because its key is no longer valid."""
        self._refusal = why
        self._closing = asyncio.create_task(_refuse(self._socket, why))

    async def _answer(self, text: str) -> None:
        if self._refusal is not None:
            raise self._refusal
        try:
            command = await offload_if(len(text) > LARGE_BYTES, CommandMessage.model_validate_json, text)
        except ValidationError:
            problem = 'A message must be an object with "id", "method" and "params".'
            await self._send(refuse(_id_of(text), "invalid_argument", problem))
            return
        match command.method:
            case "subscription.subscribe":
                await self._subscribe(command)
            case "subscription.unsubscribe":
                await self._unsubscribe(command)
            case _:
                principal = await authenticate_socket(self._socket)
                require(principal, Permission.RUNS_WRITE)
                await self._send(await perform_command(self._socket, principal, self._thread_id, command))
                if self._pump_task is None and self._subscriptions:
                    # The command may have created the thread.
                    await self._restart_pump(0)

    async def _subscribe(self, command: CommandMessage) -> None:
        try:
            body = EventsBody.model_validate(command.params)
        except ValidationError as error:
            await self._send(refuse(command.id, "invalid_argument", first_problem(error, "params")))
            return
        if len(self._subscriptions) >= MAX_SUBSCRIPTIONS:
            problem = f"A socket has at most {MAX_SUBSCRIPTIONS} subscriptions. Unsubscribe from one first."
            await self._send(refuse(command.id, "invalid_argument", problem))
            return
        thread = await self._find_thread()
        start = 0
        if thread is not None:
            start = await start_number(self._parts.database, thread, body.subscription, body.since)
            start = min(start, self._position) if self._subscriptions else start
        self._created += 1
        name = f"sub-{self._created}"
        self._subscriptions[name] = body
        await self._send({"type": "success", "id": command.id, "result": {"subscription_id": name}})
        await self._restart_pump(start)

    async def _unsubscribe(self, command: CommandMessage) -> None:
        if self._subscriptions.pop(str(command.params.get("subscription_id")), None) is None:
            problem = "The socket has no such subscription. Pass the subscription_id of subscription.subscribe."
            await self._send(refuse(command.id, "no_such_subscription", problem))
            return
        await self._send({"type": "success", "id": command.id, "result": {}})
        await self._restart_pump(self._position)

    async def _find_thread(self) -> Thread | None:
        """Return the thread. The JavaScript SDK subscribes before it starts the run that creates the thread."""
        try:
            return await find_thread(self._parts.database, self._principal.tenant, self._thread_id)
        except UnknownThread:
            if Permission.RUNS_WRITE not in self._principal.permissions:
                raise
            return None

    async def _restart_pump(self, start: int) -> None:
        """Send the events of all subscriptions after a number."""
        await self._stop_pump()
        self._position = start
        thread = await self._find_thread()
        if thread is None or not self._subscriptions:
            return
        union = UnionSelection(tuple(body.subscription for body in self._subscriptions.values()))
        self._follower = await open_events(self._parts, thread, union, start, _message)
        self._pump_task = asyncio.create_task(self._pump(self._follower))

    async def _stop_pump(self) -> None:
        if self._pump_task is not None:
            self._pump_task.cancel()
            await asyncio.gather(self._pump_task, return_exceptions=True)
            self._pump_task = None
        if self._follower is not None:
            # The follower is closed here as well, because a task that is cancelled before its first step closes
            # nothing.
            self._follower.close()
            self._follower = None

    async def _pump(self, follower: EventFollower) -> None:
        """Send events until the thread, the client or this process ends."""
        try:
            while not follower.ended:
                try:
                    found = await follower.next(_POLL_SECONDS)
                except Unavailable:
                    await asyncio.sleep(UNAVAILABLE_SECONDS)
                    continue
                for message in found.splitlines():
                    number, _, text = message.partition(b" ")
                    await self._send_text(text.decode())
                    self._position = int(number)
            if not follower.complete:
                await _close(self._socket, _RESTART, "The server stops. Connect again.")
            else:
                await _close(self._socket, 1000, "The thread was deleted.")
        except (TimeoutError, RuntimeError, WebSocketDisconnect):
            # The client has disconnected or does not read, so the socket is closed.
            await _close(self._socket, 1011, "The client reads too slowly.")
        finally:
            follower.close()

    async def _send(self, message: dict[str, Any]) -> None:
        await self._send_text(orjson.dumps(message).decode())

    async def _send_text(self, text: str) -> None:
        async with self._sending, asyncio.timeout(SEND_SECONDS):
            await self._socket.send_text(text)


def _message(event: dict[str, Any]) -> bytes:
    """Return the number and the JSON of an event as one line. JSON has no line breaks, so the lines can be split."""
    return b"%d %s\n" % (event["seq"], orjson.dumps(event, option=orjson.OPT_NON_STR_KEYS))


def _id_of(text: str) -> int | None:
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    given: Any = cast("dict[str, Any]", found).get("id") if isinstance(found, dict) else None
    return given if isinstance(given, int) and not isinstance(given, bool) else None


async def _refuse(socket: WebSocket, error: RunlaneError) -> None:
    await _close(socket, _REFUSED + error.http_status, str(error))


async def _close(socket: WebSocket, code: int, reason: str) -> None:
    with contextlib.suppress(RuntimeError, WebSocketDisconnect, TimeoutError):  # the socket is closed already
        async with asyncio.timeout(SEND_SECONDS):
            await socket.close(code, reason[:_MAX_REASON])
