"""Reference pages that are generated from the code. Tests compare them."""
