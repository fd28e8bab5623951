"""The codes of failed steps: the values of `error.code`, which `retry.on` may name.

One list for all of them, so that a definition can be checked against it. Codes do not change: definitions and the
programs that read events depend on them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

# Every code with which a step, or a container of steps, can fail. A `retry` without `on` retries those marked
# "Retryable".
FAILURE_CODES: Final[Mapping[str, str]] = {
    "timeout": "The step or its task took too long. Retryable.",
    "cancelled": "The step was cancelled from inside.",
    "step_error": "The step failed for a reason without its own code.",
    "expired": "A wait was not answered in time and has no `on_expiry`.",
    "bad_time": "`until` of a wait is not a date and time.",
    # Models
    "model_error": "The provider failed. Retryable.",
    "model_timeout": "The model did not respond in time. Retryable.",
    "model_unreachable": "The provider cannot be reached, or its answer was cut off. Retryable.",
    "overloaded": "The provider is overloaded. Retryable.",
    "rate_limited": "A limit of the provider, or of the tenant for a called orchestration, is reached. Retryable.",
    "bad_answer": "The answer cannot be parsed, or does not match the schema. Retryable if it cannot be parsed.",
    "content_refused": "The model refused to answer.",
    "context_too_long": "The conversation is too long for the model.",
    "invalid_request": "The provider rejected the request.",
    "not_authorized": "The provider has no key configured, or rejects it.",
    "quota_exceeded": "The account's quota or credit is used up.",
    "unknown_model": "The model is not available to this worker.",
    "no_answer": "The script of a scripted model has no answer for this prompt.",
    "bad_script": "The script of a scripted model cannot be read.",
    "no_route": "The model of an evaluator did not name any of the routes.",
    "unknown_route": "An evaluator chose a label that is not in its `route_map`.",
    # Agents and tools
    "no_memory": "The memory of an agent cannot be opened. Retryable if it may be available later.",
    "empty_summary": "A model wrote no summary when a conversation was compacted. Retryable.",
    "turn_limit": "An agent has used its `max_turns`, or an orchestration its `max_total_turns`.",
    "tool_call_limit": "An agent has used its `max_tool_calls`.",
    "cost_limit": "An agent, a step or an orchestration has reached its cost limit.",
    "unknown_agent": "The agent does not exist.",
    "orchestrator_agent": "A model called an agent that is an orchestration.",
    "circle": "Agents wait for each other.",
    "too_deep": "Agents delegate too many levels deep.",
    "bad_arguments": "The arguments do not match the tool's schema.",
    "invalid_arguments": "The arguments do not fill the tool's URL or headers.",
    "tool_error": "A web service returned an error. Retryable for statuses that indicate it.",
    "tool_failed": "A tool reported that it failed.",
    "tool_timeout": "A tool took too long. Retryable.",
    "tool_output": "The result of a tool is too large, or does not match its schema.",
    "tool_unknown": "A person abandoned a call whose outcome was unknown.",
    "unknown_tool": "The tool does not exist.",
    "unsupported_tool": "The tool cannot be called by this worker.",
    "unknown_secret": "A tool or server needs a secret that is not set.",
    "invalid_url": "The URL or a header of a tool is invalid.",
    "outbound_error": "A web service could not be called.",
    "outbound_refused": "The address of a web service is not allowed.",
    "outbound_too_large": "The response of a web service is too large.",
    "outbound_unreachable": "A web service cannot be reached. Retryable.",
    "mcp_unreachable": "An MCP server cannot be reached. Retryable in most cases.",
    "mcp_timeout": "An MCP server took too long. Retryable.",
    "mcp_refused": "An MCP server must not be called, or refused the call.",
    "mcp_protocol": "An MCP server violated the protocol.",
    "mcp_too_large": "An MCP server sent too much.",
    # Tasks
    "task_error": "A task raised an exception. Retryable.",
    "task_failed": "A task raised `Fail`.",
    "unknown_task": "This worker does not have the task.",
    "invalid_input": "The arguments do not match the task.",
    "not_json": "The result of a task or tool is not JSON.",
    # Code, templates and values
    "expression_error": "An expression or script failed.",
    "sandbox_limit": "An expression or script took too much time or memory.",
    "sandbox_refused": "An expression or script uses what the sandbox does not have.",
    "sandbox_unavailable": "The sandbox cannot be started. Retryable.",
    "template_error": "A template cannot be rendered.",
    "unknown_placeholder": "The state has no value for a placeholder.",
    "invalid_placeholder": "A placeholder is not valid.",
    "template_too_large": "A rendered template is too long, or a value too deeply nested.",
    "missing_input": "A merge has nothing to merge.",
    "no_json": "An `extract_json` with `required` found no JSON.",
    "too_many_items": "A `for_each` returned too many items.",
    "wrong_type": "A value does not match the type of its key, or `for_each` did not return a list.",
    "state_too_large": "The state would have more than `max_state_bytes`.",
    # Control flow
    "loop_limit": "A route led back to a step that had been executed `max_iterations` times.",
    "round_limit": "A while loop has used its `max_rounds`.",
    "nesting_limit": "Steps or orchestrations are nested too deeply.",
    "unknown_step": "A route leads to a step that does not exist.",
    "bad_route": "A route leads back into a step that has not ended.",
    "no_progress": "A loop repeats without executing a step.",
    "unknown_orchestration": "The orchestration is not among those that the run has pinned.",
    # Orchestrations that are called as tools
    "orchestration_failed": "A called orchestration failed.",
    "unknown_definition": "A called orchestration does not exist.",
    "input_too_large": "The input of a called orchestration is too large.",
    "queue_limited": "The tenant has reached its limit of open runs.",
    "quota_reached": "The tenant has reached a quota.",
    "concurrency_limited": "A concurrency limit of a called orchestration is reached, and rejects new runs.",
    "start_limited": "A rate limit of a called orchestration is reached, or its flow control has left out the start.",
    "backlog_full": "As many runs of a called orchestration wait as its flow control allows.",
    "unique_conflict": "A run of a called orchestration with the same unique key is open.",
    "invalid_flow_control": "The key of a called orchestration's flow control cannot be made of its input.",
    "idempotency_conflict": "A called orchestration was started before with another input.",
    # What a step needs from the platform
    "output_too_large": "The output of a step has more than RUNLANE_MAX_STEP_BYTES.",
    "prompt_too_large": "The conversation of a step is too large.",
    "run_too_large": "A run holds or writes more than its worker allows.",
    "too_many_secrets": "A run has used more secrets than can be redacted.",
    "unavailable": "The database cannot be reached. Retryable.",
    "refused": "The database rejected a value.",
    "not_found": "Something that the step needs does not exist.",
    "secret_unreadable": "A stored secret cannot be decrypted.",
    "no_secret_key": "No encryption key for secrets is configured.",
    "retry": "A tool's task raised `Retry`. Retryable.",
}

# Codes that end a run as a whole. No step fails with them, so no `retry` can name them.
RUN_FAILURE_CODES: Final[Mapping[str, str]] = {
    "run_timeout": "The run took longer than `timeout_minutes`.",
    "result_too_large": "The response is larger than `RUNLANE_MAX_RESULT_BYTES`.",
    "stuck": "No step is left to perform, and the run has not ended.",
    "failed": "The run failed for a reason without its own code.",
}
