"""The truth: schema, the database seam, the committer, and one module per aggregate."""
