"""The e-mail backend for Django: `EMAIL_BACKEND = "pillarbox.django.EmailBackend"`."""

from __future__ import annotations

try:
    import django as _django  # noqa: F401 -- only to see whether it is there
except ImportError as error:
    raise ImportError(
        "pillarbox.django needs Django, which is not installed: pip install django"
    ) from error

from pillarbox.django.backend import EmailBackend

__all__ = ["EmailBackend"]
