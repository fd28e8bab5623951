"""Access: authentication, policy, secrets and their keys, revocation of open streams."""
