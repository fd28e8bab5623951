"""Webhooks in the database: endpoints, the outbox of messages, deliveries and their attempts."""
