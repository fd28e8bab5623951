"""What an error shows of the last output of an MCP server's program."""

from __future__ import annotations

import asyncio

import pytest

from runlane.definitions.schema.definition import McpServer
from runlane.tools.mcp.endpoint import target_of
from runlane.tools.mcp.process import McpProcess

SECRET = "s3cret-" * 30
SERVER = McpServer.model_validate(
    {"name": "it", "server_type": "stdio", "command": "run", "env": {"KEY": "{secret.KEY}"}}
)


@pytest.mark.parametrize("before", [0, 10, 16_384 - 100 - 5, 16_384 - 100 - 60, 16_384, 50_000])
async def test_no_part_of_a_secret_is_shown_wherever_the_output_is_cut(before: int) -> None:
    stream, program = asyncio.StreamReader(), McpProcess()
    output = f"{'x' * 50_000}{SECRET}{'y' * before}{'z' * 100}"
    for start in range(0, len(output), 7_000):
        stream.feed_data(output[start : start + 7_000].encode())
    stream.feed_eof()
    await program.listen(stream)
    shown = program.stderr_tail(target_of("default", SERVER, {"KEY": SECRET}), 20_000)
    assert shown.endswith("z" * 100)
    assert "s3c" not in shown
    assert "ret-" not in shown


async def test_short_output_is_shown_as_a_whole() -> None:
    stream, program = asyncio.StreamReader(), McpProcess()
    stream.feed_data(b"no such file\n")
    stream.feed_eof()
    await program.listen(stream)
    assert program.stderr_tail(target_of("default", SERVER, {"KEY": SECRET}), 2000) == "no such file"
