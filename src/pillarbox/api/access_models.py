"""Tenants, keys and logins: requests and responses."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated, Any

from pydantic import BaseModel, Field

from pillarbox.api.fields import Name, StrictInt, StrictModel, Timestamp
from pillarbox.model.access import Order, Scope, Tenant
from pillarbox.store.access import ApiKeyRecord, SmtpLoginRecord

RETENTIONS = ("content_retention", "finished_retention")
_DOMAINS = "`example.com` is this domain, `*.example.com` its subdomains; empty: any domain."
Domains = Annotated[tuple[str, ...], Field(description=_DOMAINS)]
_MAKERS = (
    "What created it: `key`, `session` (of an administrator), `development` or `command`;"
    " null: it was created before 0.2."
)
MadeBy = Annotated[str | None, Field(description=_MAKERS)]
Seconds = Annotated[
    float, Field(gt=0, le=36500 * 86400, description="Null: the setting of the installation.")
]
Limit = Annotated[StrictInt, Field(ge=1, le=2**31 - 1, description="Null: no limit.")]


class TenantSettings(StrictModel):
    """The settings of a tenant. An omitted setting is not changed; null removes a limit."""

    default_sender: Annotated[str | None, Field(description="Used for mails that have none.")] = (
        None
    )
    default_class: Annotated[str, Field(description="Used for mails that have none.")] = (
        "transactional"
    )
    order: Order = Order.FIFO
    max_message_bytes: Limit | None = None
    max_recipients: Limit | None = None
    sender_domains: Domains = ()
    rate_per_second: Limit | None = None
    rate_per_hour: Limit | None = None
    rate_per_day: Limit | None = None
    content_retention_seconds: Seconds | None = None
    finished_retention_seconds: Seconds | None = None

    def given(self) -> dict[str, Any]:
        """The settings in the request, by the names of the store."""
        given = self.model_dump(exclude_unset=True, exclude={"name"})
        for name in RETENTIONS:
            if f"{name}_seconds" in given:
                seconds = given.pop(f"{name}_seconds")
                given[name] = None if seconds is None else timedelta(seconds=seconds)
        return given


class NewTenant(TenantSettings):
    """A tenant to add."""

    name: Name


class TenantDetails(BaseModel):
    """A tenant and its settings."""

    name: str
    created_at: datetime
    default_sender: str | None
    default_class: str
    order: Order
    max_message_bytes: int | None
    max_recipients: int | None
    sender_domains: tuple[str, ...]
    rate_per_second: int | None
    rate_per_hour: int | None
    rate_per_day: int | None
    content_retention_seconds: float | None
    finished_retention_seconds: float | None


class TenantList(BaseModel):
    tenants: list[TenantDetails]


class NewLogin(StrictModel):
    """An SMTP login to create. Its user name is `name@tenant`."""

    name: Name
    sender_domains: Domains = ()
    recipient_domains: Domains = ()
    expires_at: Timestamp | None = None


class NewKey(NewLogin):
    """A key to create."""

    scopes: Annotated[list[Scope], Field(min_length=1)]


class KeyDetails(BaseModel):
    """A key, without its secret."""

    name: str
    tenant: Annotated[
        str | None,
        Field(description="Null: a key of the installation, for administrators or for metrics."),
    ]
    prefix: Annotated[
        str, Field(description="Identifies the key; the secret begins with `pbx_` and the prefix.")
    ]
    scopes: tuple[Scope, ...]
    sender_domains: tuple[str, ...]
    recipient_domains: tuple[str, ...]
    created_at: datetime
    expires_at: datetime | None
    last_used_at: Annotated[datetime | None, Field(description="Precise to a minute.")]
    made_by: MadeBy


class KeyWithSecret(KeyDetails):
    """A new key with its secret, which is shown only once and not stored."""

    secret: str


class KeyList(BaseModel):
    keys: list[KeyDetails]


class LoginDetails(BaseModel):
    """An SMTP login, without its password."""

    name: str
    tenant: str
    username: str
    sender_domains: tuple[str, ...]
    recipient_domains: tuple[str, ...]
    created_at: datetime
    expires_at: datetime | None
    last_used_at: Annotated[datetime | None, Field(description="Precise to a minute.")]
    made_by: MadeBy


class LoginWithPassword(LoginDetails):
    """A new login with its password, which is shown only once and not stored."""

    password: str


class LoginList(BaseModel):
    logins: list[LoginDetails]


def tenant_details(tenant: Tenant) -> TenantDetails:
    kept: dict[str, Any] = {
        f"{name}_seconds": _seconds(getattr(tenant, name)) for name in RETENTIONS
    }
    names = TenantDetails.model_fields.keys() - kept.keys()
    return TenantDetails(**{name: getattr(tenant, name) for name in names}, **kept)


def _seconds(age: timedelta | None) -> float | None:
    return None if age is None else age.total_seconds()


def key_details(key: ApiKeyRecord) -> KeyDetails:
    return KeyDetails(**{name: getattr(key, name) for name in KeyDetails.model_fields})


def login_details(login: SmtpLoginRecord) -> LoginDetails:
    return LoginDetails(**{name: getattr(login, name) for name in LoginDetails.model_fields})
