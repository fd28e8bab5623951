"""The dashboard: a web page that is built from `ui/`, shipped in the package and served from memory."""
