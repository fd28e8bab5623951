"""Schema migrations, forward only. Expand before the code that needs it is deployed, contract after."""

# The revision that this code needs, kept here so that a worker need not load the migration tool to compare.
HEAD = "0014"
REVISIONS = (
    "0001", "0002", "0003", "0004", "0005", "0006", "0007", "0008", "0009", "0010", "0011", "0012", "0013", "0014",
)  # fmt: skip
