"""Stream tokens over HTTP. With a token, a browser can read the streams of one run, conversation or thread."""

from __future__ import annotations

from typing import Any

from runlane.client.http import PREFIX, Http
from runlane.client.wire import parse
from runlane.domain.stream_token import StreamToken


class StreamTokenCalls:
    """Calls for stream tokens. A part of Client."""

    _http: Http

    async def stream_token(
        self,
        run_id: str | None = None,
        *,
        session_id: str | None = None,
        thread_id: str | None = None,
        ttl_seconds: int = 300,
    ) -> StreamToken:
        """Issue a token for the streams of a run, a conversation or a thread. A browser sends it in the URL.

        The token is valid until it expires, after at most an hour, or until this client's key is revoked.
        """
        named = {"run_id": run_id, "session_id": session_id, "thread_id": thread_id}
        body: dict[str, Any] = {name: value for name, value in named.items() if value is not None}
        answer = await self._http.change("POST", f"{PREFIX}/stream-tokens", {**body, "ttl_seconds": ttl_seconds})
        return parse(StreamToken, answer)
