"""SMTP submission: a state machine without I/O, its asyncio shell, and what hands the mails on.

machine.py, commands.py      the session: bytes in, actions out
connection.py, server.py     the shell: sockets, TLS, timeouts, connection limits
submission.py                logins and mails, to the authenticator and the intake
"""
