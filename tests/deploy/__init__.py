"""The files of deploy/, and what they rely on in a running installation."""
