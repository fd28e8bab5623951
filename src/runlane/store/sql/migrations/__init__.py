"""Schema migrations, forward only.

Expand before the code that needs it is deployed, contract after: a migration runs while processes of the previous
release run. A migration that may stop half-way (it builds an index concurrently) can be repeated.

Each migration declares `compatible_from`, the oldest revision whose code runs on the schema that it leaves. The upgrade
records it in the database, so that code which does not have the migration can decide whether it may start: after a
rollback of the code, the schema stays.
"""

# The revision that this code needs, kept here so that a worker can compare it without loading the migration tool.
HEAD = "v0034"
REVISIONS = (
    "v0001", "v0002", "v0003", "v0004", "v0005", "v0007", "v0008", "v0009", "v0010", "v0011", "v0012", "v0013",
    "v0014", "v0015", "v0017", "v0019", "v0021", "v0023", "v0029", "v0031", "v0032", "v0033", "v0034",
)  # fmt: skip

# The revisions of development versions, which the baseline replaced. Their databases cannot be upgraded.
UNRELEASED = tuple(f"{number:04}" for number in range(1, 15))
