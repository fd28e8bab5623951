"""Memory of agents and people: ordered entries and fragments, stored locally first and replicated to the database."""
