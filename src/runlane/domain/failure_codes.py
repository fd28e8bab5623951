"""The codes of failed steps: what `retry.on` may name, and what `error.code` may be.

One list for all of them, so that a definition can be checked against it. Codes do not change: definitions and the
programs that read events depend on them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

# Every code that a step, or what contains it, can fail with. "May pass": tried again by a `retry` without `on`.
FAILURE_CODES: Final[Mapping[str, str]] = {
    "timeout": "The step or its task took too long. May pass.",
    "cancelled": "The step was cancelled from inside.",
    "step_error": "The step failed in a way that has no code of its own.",
    "expired": "A person or an event did not come in time, and there is no `on_expiry`.",
    "bad_time": "`until` of a wait is not a date and time.",
    # Models
    "model_error": "The provider failed. May pass.",
    "model_timeout": "The model did not answer in time. May pass.",
    "model_unreachable": "The provider cannot be reached, or its answer broke off. May pass.",
    "overloaded": "The provider is overloaded. May pass.",
    "rate_limited": "A limit of the provider, or of the tenant for a called orchestration, is reached. May pass.",
    "bad_answer": "The answer cannot be read, or does not fit the schema. May pass if it cannot be read.",
    "content_refused": "The model refused to answer.",
    "context_too_long": "The conversation is too long for the model.",
    "invalid_request": "The provider does not take the request.",
    "not_authorized": "The provider has no key configured, or refuses it.",
    "quota_exceeded": "The account's quota or credit is used up.",
    "unknown_model": "There is no such model here.",
    "no_answer": "The script of a scripted model has no answer for this prompt.",
    "bad_script": "The script of a scripted model cannot be read.",
    "no_route": "An evaluator's model named none of the routes.",
    "unknown_route": "An evaluator chose a label that is not in its `route_map`.",
    # Agents and tools
    "turn_limit": "An agent has used its `max_turns`, or an orchestration its `max_total_turns`.",
    "tool_call_limit": "An agent has used its `max_tool_calls`.",
    "cost_limit": "An agent, a step or an orchestration has cost as much as it may.",
    "unknown_agent": "There is no such agent.",
    "orchestrator_agent": "An agent that is an orchestration was asked by a model.",
    "circle": "Agents wait for each other.",
    "too_deep": "Agents hand tasks on too many levels deep.",
    "bad_arguments": "The arguments do not fit the tool's schema.",
    "invalid_arguments": "The arguments do not fill the tool's URL or headers.",
    "tool_error": "A web service answered with an error. May pass for statuses that say so.",
    "tool_failed": "A tool reported that it failed.",
    "tool_timeout": "A tool took too long. May pass.",
    "tool_output": "The result of a tool is too large, or does not fit its schema.",
    "tool_unknown": "A person gave up a call whose outcome was unknown.",
    "unknown_tool": "There is no such tool.",
    "unsupported_tool": "The tool cannot be called by this worker.",
    "unknown_secret": "A tool or server needs a secret that is not set.",
    "invalid_url": "The URL or a header of a tool is wrong.",
    "outbound_error": "A web service could not be called.",
    "outbound_refused": "The address of a web service is not allowed.",
    "outbound_too_large": "The answer of a web service is too large.",
    "outbound_unreachable": "A web service cannot be reached. May pass.",
    "mcp_unreachable": "An MCP server cannot be reached. May pass in most cases.",
    "mcp_timeout": "An MCP server took too long. May pass.",
    "mcp_refused": "An MCP server must not be called, or refused the call.",
    "mcp_protocol": "An MCP server does not keep to the protocol.",
    "mcp_too_large": "An MCP server sent too much.",
    # Tasks
    "task_error": "A task raised an exception. May pass.",
    "task_failed": "A task raised `Fail`.",
    "unknown_task": "No worker here has the task.",
    "invalid_input": "The arguments do not fit the task.",
    "not_json": "The result of a task or tool is not JSON.",
    # Code, texts and values
    "expression_error": "An expression or script failed.",
    "sandbox_limit": "An expression or script took too much time or memory.",
    "sandbox_refused": "An expression or script uses what the sandbox does not have.",
    "sandbox_unavailable": "The sandbox cannot be started. May pass.",
    "template_error": "A text with placeholders cannot be filled.",
    "unknown_placeholder": "The state has nothing for a placeholder.",
    "invalid_placeholder": "Something looks like a placeholder and is not one.",
    "template_too_large": "A filled text is too long, or a value too deep.",
    "missing_input": "A merge has nothing to merge.",
    "no_json": "An `extract_json` with `required` found no JSON.",
    "too_many_items": "A `for_each` gave too many items.",
    "wrong_type": "A value does not fit the type of its key, or `for_each` did not give a list.",
    "state_too_large": "The state would have more than `max_state_bytes`.",
    # The way through the steps
    "loop_limit": "A way back led to a step that had been executed `max_iterations` times.",
    "round_limit": "A while loop has had its `max_rounds`.",
    "nesting_limit": "Steps or orchestrations are too deep inside each other.",
    "unknown_step": "A way leads to a step that does not exist.",
    "bad_route": "A way leads back into a step that has not ended.",
    "no_progress": "A loop repeats without executing a step.",
    "unknown_orchestration": "There is no such orchestration among those of the run.",
    # Orchestrations that are called as tools
    "orchestration_failed": "A called orchestration failed.",
    "unknown_definition": "A called orchestration does not exist.",
    "input_too_large": "The input of a called orchestration is too large.",
    "queue_limited": "The tenant has as many open runs as it may have.",
    "idempotency_conflict": "A called orchestration was started before with another input.",
    # What a step needs from the platform
    "output_too_large": "The output of a step has more than RUNLANE_MAX_STEP_BYTES.",
    "prompt_too_large": "The conversation of a step is too large.",
    "run_too_large": "A run holds or writes more than its worker allows.",
    "too_many_secrets": "A run has used more secrets than can be kept out of its text.",
    "unavailable": "The database cannot be reached. May pass.",
    "refused": "The database refuses to store a value.",
    "not_found": "Something that the step needs does not exist.",
    "secret_unreadable": "A stored secret cannot be decrypted.",
    "no_secret_key": "No encryption key for secrets is configured.",
    "retry": "A tool's task raised `Retry`. May pass.",
}

# Codes that end a run as a whole. No step fails with them, so no `retry` can name them.
RUN_FAILURE_CODES: Final[Mapping[str, str]] = {
    "run_timeout": "The run took longer than `timeout_minutes`.",
    "result_too_large": "The response is larger than `RUNLANE_MAX_RESULT_BYTES`.",
    "stuck": "Nothing is left to do, and the run has not ended.",
    "failed": "The run failed in a way that has no code of its own.",
}
