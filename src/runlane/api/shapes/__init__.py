"""What requests and answers look like, a module for each module of routes.

Requests are strict: a wrong type or an unknown field is refused by name. Answers are written straight from our own
values; the models here document them, and the fuzz test holds both together.
"""
