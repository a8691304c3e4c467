"""Clients of the HTTP API: `pillarbox.Client` and `pillarbox.AsyncClient`."""
