"""The schema of definitions: the classes that definition files are parsed into."""
