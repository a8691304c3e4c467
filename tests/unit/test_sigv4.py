"""SigV4: what AWS publishes, and what botocore, AWS' own client, signs."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials as BotoCredentials
from hypothesis import given
from hypothesis import strategies as st

from pillarbox.deliver.transports.sigv4 import AwsCredentials, SigV4Signer

# The account and the time of AWS' published test suite (aws-sig-v4-test-suite).
ACCOUNT = AwsCredentials("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY")
AT = datetime(2015, 8, 30, 12, 36, tzinfo=UTC)
HOST = {"Host": "example.amazonaws.com"}
SCOPE = "AKIDEXAMPLE/20150830/us-east-1/service/aws4_request"


@pytest.mark.parametrize(
    ("method", "query", "headers", "body", "names", "signature"),
    [
        pytest.param(
            "GET", "", {}, b"", "host;x-amz-date",
            "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31", id="get-vanilla",
        ),
        pytest.param(
            "POST", "", {}, b"", "host;x-amz-date",
            "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b", id="post-vanilla",
        ),
        pytest.param(
            "GET", "Param1=value1&Param2=value2", {}, b"", "host;x-amz-date",
            "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500", id="get-vanilla-query-order-key-case",
        ),
        pytest.param(
            "POST", "", {"Content-Type": "application/x-www-form-urlencoded"}, b"Param1=value1",
            "content-type;host;x-amz-date",
            "ff11897932ad3f4e8b18135d722051e5ac45fc38421b1da7b9d196a0fe09473a", id="post-x-www-form-urlencoded",
        ),
        pytest.param(
            "GET", "", {"My-Header1": " value1", "My-Header2": ' "a   b   c"'}, b"",
            "host;my-header1;my-header2;x-amz-date",
            "acc3ed3afb60bb290fc8d2dd0098b9911fcaa05412b367055dee359757a9c736", id="get-header-value-trim",
        ),
    ],
)  # fmt: skip
def test_the_published_vectors(
    method: str, query: str, headers: dict[str, str], body: bytes, names: str, signature: str
) -> None:
    added = SigV4Signer(ACCOUNT, "us-east-1", "service").sign(
        method, "/", HOST | headers, body, AT, query
    )
    assert added == {
        "X-Amz-Date": "20150830T123600Z",
        "Authorization": f"AWS4-HMAC-SHA256 Credential={SCOPE}, SignedHeaders={names}, Signature={signature}",
    }


@given(
    body=st.binary(max_size=200),
    region=st.sampled_from(["us-east-1", "eu-central-1", "cn-north-1"]),
    key=st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=40),
)
def test_it_signs_as_botocore_does(body: bytes, region: str, key: str) -> None:
    url = f"https://email.{region}.amazonaws.com/v2/email/outbound-emails"
    request = AWSRequest("POST", url, headers={"Content-Type": "application/json"}, data=body)
    theirs = SigV4Auth(BotoCredentials("AKIAEXAMPLE", key), "ses", region)
    theirs.add_auth(request)
    at = datetime.strptime(request.headers["X-Amz-Date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    headers = {"Content-Type": "application/json", "Host": f"email.{region}.amazonaws.com"}
    ours = SigV4Signer(AwsCredentials("AKIAEXAMPLE", key), region, "ses")
    assert (
        ours.sign("POST", "/v2/email/outbound-emails", headers, body, at)["Authorization"]
        == (request.headers["Authorization"])
    )


def test_a_new_day_has_a_new_key() -> None:
    signer = SigV4Signer(ACCOUNT, "us-east-1", "ses")
    first = signer.sign("GET", "/", HOST, b"", AT)
    later = signer.sign("GET", "/", HOST, b"", AT.replace(day=31))
    assert first["Authorization"] != later["Authorization"]
    assert later == SigV4Signer(ACCOUNT, "us-east-1", "ses").sign(
        "GET", "/", HOST, b"", AT.replace(day=31)
    )
    assert first == signer.sign("GET", "/", HOST, b"", AT)


def test_credentials_do_not_show_themselves() -> None:
    assert ACCOUNT.secret_key not in repr(ACCOUNT)
    assert ACCOUNT.access_key_id not in repr(ACCOUNT)
