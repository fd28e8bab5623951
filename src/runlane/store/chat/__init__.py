"""Chat in the database: posting a turn, reading conversations, deleting them."""
