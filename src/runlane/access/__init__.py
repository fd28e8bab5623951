"""Access: who asks, and whether they may."""
