"""Access: authentication by API key, policy of roles, encrypted secrets, revocation of open streams."""
