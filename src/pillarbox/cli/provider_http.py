"""`provider add sendgrid|ses|mailgun`, and what their feedback is checked with. Secrets never come as arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from pillarbox.cli import output
from pillarbox.cli.command import CommandContext, command
from pillarbox.cli.provider_options import (
    Name,
    ReleaseOnly,
    Retry,
    add,
    limit,
    positive,
    without_none,
)
from pillarbox.cli.secret_input import is_given, read_secret
from pillarbox.errors import SettingsError
from pillarbox.model.provider import HTTP_KINDS, MAILGUN_HOSTS, feedback_path, http_settings
from pillarbox.model.secret import Secret
from pillarbox.store import catalog, providers

SecretStdin = Annotated[bool, typer.Option("--secret-stdin", help="Read it from stdin, a line.")]
SecretEnv = Annotated[
    str | None, typer.Option("--secret-env", metavar="VAR", help="Read it from this variable.")
]
WebhookStdin = Annotated[
    bool,
    typer.Option(
        "--webhook-secret-stdin", help="Read the webhook signing key from stdin, a line of its own."
    ),
]
WebhookEnv = Annotated[
    str | None,
    typer.Option(
        "--webhook-secret-env",
        metavar="VAR",
        help="Read the webhook signing key from this variable.",
    ),
]
Url = Annotated[
    str | None,
    typer.Option(
        "--url", metavar="URL", help="Another address of its API; https, but on this machine."
    ),
]
Connections = Annotated[
    int | None,
    limit(
        "--connections", "Most calls at a time; worker_concurrency when not given.", min=1, max=1000
    ),
]
Timeout = Annotated[
    float | None, limit("--timeout", "For a whole call (30s).", parser=positive, metavar="TIME")
]
Topics = Annotated[
    list[str] | None,
    typer.Option(
        "--topic", metavar="ARN", help="An SNS topic whose messages are believed; may be repeated."
    ),
]
WebhookKey = Annotated[
    str | None,
    typer.Option(
        "--webhook-key",
        metavar="KEY",
        help="The public key of the event webhook, as SendGrid shows it.",
    ),
]


def register(adding: typer.Typer, group: typer.Typer) -> None:
    command(adding, "sendgrid")(add_sendgrid)
    command(adding, "ses")(add_ses)
    command(adding, "mailgun")(add_mailgun)
    command(group, "feedback")(feedback)


async def add_sendgrid(
    context: CommandContext,
    name: Name,
    secret_stdin: SecretStdin = False,
    secret_env: SecretEnv = None,
    webhook_key: WebhookKey = None,
    url: Url = None,
    retry: Retry = None,
    release_only: ReleaseOnly = False,
    connections: Connections = None,
    timeout: Timeout = None,
) -> None:
    """Add a SendGrid account. Its API key is asked for, or comes from stdin or a variable.

    \b
    Examples:
      pillarbox provider add sendgrid sg --secret-env SENDGRID_API_KEY
      pillarbox provider add sendgrid sg-eu --url https://api.eu.sendgrid.com
    """
    given_settings = {
        "url": url,
        "webhook_key": webhook_key,
        "connections": connections,
        "timeout": timeout,
    }
    settings = _checked("sendgrid", given_settings)
    secret = _secret("API key", secret_stdin, secret_env)
    await add(context, name, "sendgrid", settings, secret, retry, release_only=release_only)


async def add_ses(
    context: CommandContext,
    name: Name,
    region: Annotated[str, typer.Option("--region", metavar="REGION", help="Such as eu-west-1.")],
    access_key_id: Annotated[
        str,
        typer.Option("--access-key-id", metavar="ID", help="Of the key that may ses:SendRawEmail."),
    ],
    secret_stdin: SecretStdin = False,
    secret_env: SecretEnv = None,
    configuration_set: Annotated[
        str | None,
        typer.Option(
            "--configuration-set",
            metavar="NAME",
            help="What each mail is sent with; it makes the events.",
        ),
    ] = None,
    topic: Topics = None,
    url: Url = None,
    retry: Retry = None,
    release_only: ReleaseOnly = False,
    connections: Connections = None,
    timeout: Timeout = None,
) -> None:
    """Add Amazon SES in one region. The secret access key is asked for, or comes from stdin or a variable.

    \b
    Examples:
      pillarbox provider add ses ses --region eu-west-1 --access-key-id AKIA… --secret-env AWS_SECRET_ACCESS_KEY
      pillarbox provider add ses ses --region eu-west-1 --access-key-id AKIA… --configuration-set mail \\
        --topic arn:aws:sns:eu-west-1:123456789012:mail
    """
    settings = _checked("ses", {
        "region": region, "access_key_id": access_key_id, "configuration_set": configuration_set, "url": url,
        "topics": topic or None, "connections": connections, "timeout": timeout,
    })  # fmt: skip
    secret = _secret("secret access key", secret_stdin, secret_env)
    await add(context, name, "ses", settings, secret, retry, release_only=release_only)


async def add_mailgun(
    context: CommandContext,
    name: Name,
    domain: Annotated[str, typer.Option("--domain", metavar="DOMAIN", help="The sending domain.")],
    region: Annotated[
        str, typer.Option("--region", metavar="|".join(MAILGUN_HOSTS), help="Where it is.")
    ] = "us",
    secret_stdin: SecretStdin = False,
    secret_env: SecretEnv = None,
    webhook_secret_stdin: WebhookStdin = False,
    webhook_secret_env: WebhookEnv = None,
    url: Url = None,
    retry: Retry = None,
    release_only: ReleaseOnly = False,
    connections: Connections = None,
    timeout: Timeout = None,
) -> None:
    """Add a domain at Mailgun. Its API key is asked for, or comes from stdin or a variable.

    \b
    Examples:
      pillarbox provider add mailgun mg --domain mg.example.com --secret-env MAILGUN_API_KEY \\
        --webhook-secret-env MAILGUN_SIGNING_KEY
      pillarbox provider add mailgun mg --domain mg.example.com --region eu
    """
    given_settings = {
        "domain": domain,
        "region": region,
        "url": url,
        "connections": connections,
        "timeout": timeout,
    }
    settings = _checked("mailgun", given_settings)
    secret = _secret("API key", secret_stdin, secret_env)
    webhook_secret = _webhook_secret(webhook_secret_stdin, webhook_secret_env)
    await add(
        context, name, "mailgun", settings, secret, retry, webhook_secret, release_only=release_only
    )


async def feedback(
    context: CommandContext,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its name in `provider list`.")],
    webhook_key: WebhookKey = None,
    topic: Topics = None,
    webhook_secret_stdin: WebhookStdin = False,
    webhook_secret_env: WebhookEnv = None,
) -> None:
    """Say where a provider's feedback must go, and change what it is checked with. What is not given stays.

    \b
    Examples:
      pillarbox provider feedback sg --webhook-key MFkwEwYHKoZIzj0CAQYI…
      pillarbox provider feedback ses --topic arn:aws:sns:eu-west-1:123456789012:mail
      pillarbox provider feedback mg --webhook-secret-env MAILGUN_SIGNING_KEY
    """
    changed = without_none({"webhook_key": webhook_key, "topics": topic or None})
    async with context.app() as app:
        provider = await providers.get_provider(app.database, name)
        if provider.kind not in HTTP_KINDS:
            raise typer.BadParameter(
                f"{name} is of kind {provider.kind}, which gives no feedback by HTTP"
            )
        for setting, kind, flag in (
            ("webhook_key", "sendgrid", "--webhook-key"),
            ("topics", "ses", "--topic"),
        ):
            if setting in changed and provider.kind != kind:
                raise typer.BadParameter(
                    f"{flag} is for {kind}, and {name} is of kind {provider.kind}"
                )
        settings = _checked(provider.kind, dict(provider.settings) | changed)
        if provider.kind != "mailgun" and (webhook_secret_stdin or webhook_secret_env):
            raise typer.BadParameter(f"{provider.kind} has no webhook signing key")
        secret = _webhook_secret(webhook_secret_stdin, webhook_secret_env)
        if changed or secret:
            await providers.set_feedback(app.database, app.keys, provider, changed, secret)
        sealed = (provider.id, "webhook_secret") in await catalog.sealed_providers(app.database)
    path = feedback_path(provider.kind, provider.id)
    believed = bool(settings.get("webhook_key") or settings.get("topics") or sealed)
    if context.json:
        output.print_json({"name": name, "webhook": path, "changed": bool(changed or secret)})
    else:
        output.say(
            f"{'changed' if changed or secret else 'unchanged'}; its feedback goes to {path} of your public address"
        )
        if not believed:
            output.note(
                "none is believed yet: give what it is signed with, see `pillarbox provider feedback --help`"
            )


def _checked(kind: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that were given, which must be right: whoever is asked for a secret has not typed it in vain."""
    settings = without_none(given)
    try:
        http_settings(kind, settings, None, 1)
    except SettingsError as error:
        raise typer.BadParameter(str(error)) from None
    return settings


def _secret(what: str, stdin: bool, env: str | None) -> Secret:
    return read_secret(what, "secret", stdin, env, plain=True)


def _webhook_secret(stdin: bool, env: str | None) -> Secret | None:
    flag = "webhook-secret"
    return (
        read_secret("webhook signing key", flag, stdin, env, plain=True)
        if is_given(flag, stdin, env)
        else None
    )
