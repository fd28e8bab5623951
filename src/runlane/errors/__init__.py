"""Every error Runlane raises, as one tree.

RunlaneError
├── InvalidRequest            the caller's input cannot be accepted; nothing was stored
│   ├── UnknownTask           the task is not registered in this app
│   ├── UnknownLane           the lane does not exist
│   ├── InvalidInput          arguments do not fit the task's signature, or are not JSON
│   ├── InputTooLarge         over the size limit
│   ├── InvalidFlowControl    a rule of flow control is not valid, or its key has no value
│   ├── InvalidDefinitions    definitions have errors; each is listed with its location and fix
│   ├── UnknownDefinition     the orchestration, agent, tool or MCP server does not exist
│   ├── UrlTemplateError      a URL or header of a tool is not valid, or an argument is missing
│   └── TemplateError         a template cannot be rendered
│       ├── UnknownPlaceholder    the state has no value for it
│       ├── InvalidPlaceholder    its syntax is not valid
│       └── TemplateTooLarge      the rendered string is too long
├── IdempotencyConflict       the key was used before with another body
├── RunNotFound
├── NotFound                  the tenant, key, role or secret does not exist
├── UnknownSession            the chat session does not exist
├── UnknownThread             the thread does not exist
├── UnknownAssistant          neither an assistant nor a graph has this id
├── UnknownGraph              no worker has loaded the graph
├── WrongState                the run is not in a state that allows this
├── Conflict                  existing data does not allow this
│   ├── VersionMismatch       the object has changed since the caller read it
│   ├── UniqueConflict        a run with the same unique key is open
│   └── MemoryOwnedElsewhere  another node owns the memory
├── Unauthorized              no key, or one that is unknown, expired or revoked
├── Forbidden                 the key's role does not allow this
├── RateLimited               the tenant exceeded its rate; nothing was stored
│   ├── QueueLimited          the tenant has reached its limit of open runs
│   ├── ScheduleLimited       the tenant has reached its limit of schedules
│   ├── ConcurrencyLimited    a concurrency limit is reached that rejects new runs
│   ├── QuotaReached          the tenant has reached another quota
│   ├── StartLimited          a rate limit of the target's flow control is reached
│   ├── BacklogFull           as many runs wait as the target's flow control allows
│   └── MemoryBusy            the shard of the memory is full
├── Unavailable               the database cannot be reached; try again
│   └── MemoryOwnerUnreachable    the node that owns the memory did not answer
├── StorageFull               the disk of a memory node is full
├── Paused                    the process only reads
├── OutboundError             another server could not be called
│   ├── OutboundRefused       its address, scheme or redirects are not allowed
│   ├── OutboundTimeout       it did not answer in time
│   ├── OutboundTooLarge      its response is too large
│   └── OutboundUnreachable   it cannot be reached, or its response is not valid HTTP
├── UnexpectedAnswer          a client received a response that is not from a Runlane server
├── SecretUnreadable          a stored secret cannot be decrypted
├── SecretQuotaExceeded       the tenant has reached its limit of secrets, or of their bytes
├── TooManySecrets            a run has used more secrets than can be redacted in its output
├── StorageRefused            the database rejects this value; a retry will not help
├── ConfigurationError        the process cannot start with this configuration
│   ├── DuplicateTask
│   ├── DuplicateGraph
│   ├── GraphNotLoaded        a graph does not import, or is not a graph
│   ├── AppNotFound           the app path does not import
│   ├── InvalidSettings
│   ├── MemoryFileBroken      the memory file is damaged and no database has a copy
│   ├── MissingExtra          an optional package is not installed
│   ├── NoSecretKey           no encryption key for secrets is configured
│   ├── SchemaOutdated        the database is older than the code
│   └── SchemaTooNew          the database is newer than the code
├── Fail                      raised by a task: end the run, no more attempts
└── Retry                     raised by a task: requeue the run without counting a failure
Interrupted(BaseException)    raised inside a task by the worker; not for user code to catch
├── RunCancelled
└── LeaseLost                 another worker owns the run now

Each class has a stable code and the HTTP status of its response.
"""

from __future__ import annotations

from runlane.errors import base, denied, infrastructure, invalid, task
from runlane.errors.base import *
from runlane.errors.base import nearest as nearest
from runlane.errors.denied import *
from runlane.errors.denied import RateQuota as RateQuota
from runlane.errors.infrastructure import *
from runlane.errors.invalid import *
from runlane.errors.task import *

__all__: list[str] = []
__all__ += base.__all__
__all__ += denied.__all__
__all__ += infrastructure.__all__
__all__ += invalid.__all__
__all__ += task.__all__
