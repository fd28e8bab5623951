"""Memory in a database: entries, fragments, the log of operations, ownership and replication."""
