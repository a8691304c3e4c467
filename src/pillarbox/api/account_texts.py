"""The texts of the account pages in each language, as plain text: the pages escape them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class ActionTexts(NamedTuple):
    """The texts of an action, before and after it; `{portal}` is the name of the portal."""

    title: str
    text: str
    button: str
    done: str
    after: str


class EndingTexts(NamedTuple):
    """Why a link is not valid, and what to do."""

    title: str
    text: str


class PageTexts(NamedTuple):
    """All texts in one language."""

    asking: Mapping[str, ActionTexts]  # by action; `""` for actions of users' own
    set_password: ActionTexts  # of password_recovery, where the page sets the new one
    endings: Mapping[str, EndingTexts]  # by reason
    hello: str
    code: str
    code_hint: str
    wrong_code: str
    ignore: str
    close: str
    new_label: str
    again_label: str
    differ: str
    refused: str


ENGLISH = PageTexts(
    asking={
        "activation": ActionTexts(
            "Activate your account",
            "One click and your account at {portal} is ready to use.",
            "Activate account",
            "Your account is active",
            "Welcome to {portal}. You can sign in now.",
        ),
        "password_recovery": ActionTexts(
            "Reset your password",
            "Enter the code from our mail to confirm that it is you."
            " You then choose a new password at {portal}, not here.",
            "Confirm",
            "Thank you, it is you",
            "Nothing has changed yet. Go back to {portal}: there you choose a new password.",
        ),
        "email_verification": ActionTexts(
            "Confirm your e-mail address",
            "Please confirm that this address is yours.",
            "Confirm address",
            "Your address is confirmed",
            "Thank you. Nothing more is needed.",
        ),
        "invite": ActionTexts(
            "You are invited",
            "You were invited to {portal}. Accept, and your account is ready to use.",
            "Accept invitation",
            "Welcome aboard",
            "Your account at {portal} is active. You can sign in now.",
        ),
        "": ActionTexts(
            "Please confirm",
            "Please confirm what you asked {portal} for.",
            "Confirm",
            "Confirmed",
            "Thank you. Nothing more is needed.",
        ),
    },
    set_password=ActionTexts(
        "Choose a new password",
        "Enter the code from our mail, and the password that you want to have from now on.",
        "Set password",
        "Your password is changed",
        "You can sign in to {portal} with your new password now.",
    ),
    endings={
        "forged": EndingTexts(
            "This link is not valid",
            "It may be cut off. Open it from the mail once more, or copy the whole address from"
            " there.",
        ),
        "expired": EndingTexts(
            "This link has expired", "Links work for a limited time only. Please ask for a new one."
        ),
        "used": EndingTexts(
            "This link was used before",
            "Each link works once. If that was you, all is done. If not, please ask for a new one.",
        ),
        "superseded": EndingTexts(
            "There is a newer link",
            "We have sent you another mail since. Please use the link in the latest one.",
        ),
        "wrong_code": EndingTexts(
            "The code is wrong", "Please open the link from the mail once more."
        ),
        "void": EndingTexts(
            "Too many wrong codes",
            "To protect your account this link no longer works. Please ask for a new one.",
        ),
        "suspended": EndingTexts(
            "Your account is suspended", "This is not possible now. Support can help."
        ),
        "throttled": EndingTexts(
            "Too many tries", "Please wait a minute, and open the link again."
        ),
        "malformed": EndingTexts(
            "That did not arrive whole", "Please open the link from the mail once more."
        ),
        "away": EndingTexts(
            "We cannot check this now",
            "Nothing is lost. Please open the link again in a minute; it still works.",
        ),
    },
    hello="Hello {name},",
    code="Code",
    code_hint="Five digits, in the mail that brought you here",
    wrong_code="That is not the code in our latest mail. Please look again.",
    ignore="Not you? Then close this page: nothing happens.",
    close="You can close this page.",
    new_label="New password",
    again_label="The same once more",
    differ="The two passwords are not the same. Please type them again.",
    refused="This password was not accepted. Please choose another.",
)

# Without any form of address: some portals say du, others Sie.
GERMAN = PageTexts(
    asking={
        "activation": ActionTexts(
            "Konto aktivieren",
            "Ein Klick, und das Konto bei {portal} ist bereit.",
            "Konto aktivieren",
            "Das Konto ist aktiv",
            "Willkommen bei {portal}. Die Anmeldung ist ab sofort möglich.",
        ),
        "password_recovery": ActionTexts(
            "Passwort zurücksetzen",
            "Bitte den Code aus unserer E-Mail eingeben. So ist sicher, dass niemand anderes hier"
            " ist. Das neue Passwort wird danach bei {portal} gewählt, nicht hier.",
            "Bestätigen",
            "Danke, der Code stimmt",
            "Noch hat sich nichts geändert. Weiter geht es bei {portal}: dort ein neues Passwort"
            " wählen.",
        ),
        "email_verification": ActionTexts(
            "E-Mail-Adresse bestätigen",
            "Ein Klick bestätigt, dass diese Adresse stimmt.",
            "Adresse bestätigen",
            "Die Adresse ist bestätigt",
            "Vielen Dank. Mehr ist nicht zu tun.",
        ),
        "invite": ActionTexts(
            "Eine Einladung",
            "Hier wartet eine Einladung zu {portal}. Nach dem Annehmen ist das Konto bereit.",
            "Einladung annehmen",
            "Herzlich willkommen",
            "Das Konto bei {portal} ist aktiv. Die Anmeldung ist ab sofort möglich.",
        ),
        "": ActionTexts(
            "Bitte bestätigen",
            "Bitte bestätigen, was bei {portal} angefragt wurde.",
            "Bestätigen",
            "Bestätigt",
            "Vielen Dank. Mehr ist nicht zu tun.",
        ),
    },
    set_password=ActionTexts(
        "Neues Passwort wählen",
        "Bitte den Code aus unserer E-Mail eingeben und das Passwort, das von nun an gelten soll.",
        "Passwort setzen",
        "Das Passwort ist geändert",
        "Die Anmeldung bei {portal} ist ab sofort mit dem neuen Passwort möglich.",
    ),
    endings={
        "forged": EndingTexts(
            "Dieser Link ist nicht gültig",
            "Vielleicht ist er abgeschnitten. Bitte noch einmal aus der E-Mail öffnen"
            " oder dort die ganze Adresse kopieren.",
        ),
        "expired": EndingTexts(
            "Dieser Link ist abgelaufen",
            "Links gelten nur für begrenzte Zeit. Bitte einen neuen anfordern.",
        ),
        "used": EndingTexts(
            "Dieser Link wurde schon benutzt",
            "Jeder Link gilt einmal. Geschah es hier, ist alles erledigt. Wenn nicht, bitte einen"
            " neuen anfordern.",
        ),
        "superseded": EndingTexts(
            "Es gibt einen neueren Link",
            "Seitdem haben wir eine weitere E-Mail geschickt. Bitte den Link aus der neuesten"
            " nehmen.",
        ),
        "wrong_code": EndingTexts(
            "Der Code stimmt nicht", "Bitte den Link noch einmal aus der E-Mail öffnen."
        ),
        "void": EndingTexts(
            "Zu viele falsche Codes",
            "Zum Schutz des Kontos gilt dieser Link nicht mehr. Bitte einen neuen anfordern.",
        ),
        "suspended": EndingTexts(
            "Das Konto ist gesperrt", "Das geht gerade nicht. Der Support kann helfen."
        ),
        "throttled": EndingTexts(
            "Zu viele Versuche", "Bitte eine Minute warten und den Link noch einmal öffnen."
        ),
        "malformed": EndingTexts(
            "Das kam nicht vollständig an", "Bitte den Link noch einmal aus der E-Mail öffnen."
        ),
        "away": EndingTexts(
            "Das lässt sich gerade nicht prüfen",
            "Nichts ist verloren. Bitte den Link in einer Minute noch einmal öffnen; er gilt"
            " weiterhin.",
        ),
    },
    hello="Hallo {name},",
    code="Code",
    code_hint="Fünf Ziffern, zu finden in der E-Mail mit dem Link",
    wrong_code="Das ist nicht der Code aus unserer neuesten E-Mail. Bitte noch einmal nachsehen.",
    ignore="Nicht selbst angefordert? Dann diese Seite einfach schließen: Es geschieht nichts.",
    close="Diese Seite kann geschlossen werden.",
    new_label="Neues Passwort",
    again_label="Noch einmal dasselbe",
    differ="Die beiden Passwörter sind nicht gleich. Bitte noch einmal eingeben.",
    refused="Dieses Passwort wurde nicht angenommen. Bitte ein anderes wählen.",
)

LANGUAGES: Mapping[str, PageTexts] = {"en": ENGLISH, "de": GERMAN}
DEFAULT = "en"
# Ranges of a header that are considered: people understand fewer languages.
MAX_RANGES = 20


def language_for(*locales: str | None) -> str:
    """The first available language of these locales or Accept-Language headers."""
    for one in locales:
        for locale in _ranges(one or ""):
            language = locale.replace("_", "-").partition("-")[0].lower()
            if language in LANGUAGES:
                return language
    return DEFAULT


def _ranges(header: str) -> list[str]:
    """The languages of an Accept-Language header by weight, without those of weight 0."""
    parts = [part.partition(";") for part in header.split(",")[:MAX_RANGES]]
    weighed = [(_weight(more), name.strip()) for name, _, more in parts]
    return [name for weight, name in sorted(weighed, key=lambda one: -one[0]) if weight > 0]


def _weight(parameter: str) -> float:
    name, _, value = parameter.strip().partition("=")
    try:
        return float(value) if name.strip() == "q" else 1.0
    except ValueError:
        return 0.0
