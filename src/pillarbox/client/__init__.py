"""Clients of the HTTP API, `pillarbox.Client` and `pillarbox.AsyncClient`: thin shells around a core without I/O."""
