"""Access: authentication by API key, authorization by roles, encrypted secrets, and revocation of open streams."""
