"""The records of the HTTP API, declared once: the server answers with them, the clients read them.

Plain dataclasses without dependencies. Their metadata is what pydantic reads for the OpenAPI
description: `alias` (the name in JSON) and `description`.
"""
