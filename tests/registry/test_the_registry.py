"""The registry that the other tests here use is one, and its tokens are needed and good."""

from __future__ import annotations

import ssl
from pathlib import Path

import httpx

from support.registry import needs_registry, plain_registry, tls_registry

pytestmark = needs_registry


def test_a_plain_registry_answers(tmp_path: Path):
    with plain_registry(tmp_path) as registry:
        assert httpx.get(f"{registry.url}/v2/").status_code == 200


def test_a_registry_behind_tls_wants_a_token_of_its_realm(tmp_path: Path):
    with tls_registry(tmp_path) as registry:
        context = ssl.create_default_context(cafile=str(registry.ca))
        with httpx.Client(verify=context, base_url=registry.url) as client:
            refused = client.get("/v2/library/any/tags/list")
            assert refused.status_code == 401
            assert f'realm="{registry.realm}"' in refused.headers["WWW-Authenticate"]
            question = {"service": "tests", "scope": "repository:library/any:pull"}
            nobody = client.get(registry.realm, params=question).json()["token"]
            ann = client.get(registry.realm, params=question, auth=("ann", "secret")).json()

            def status(token: str) -> int:
                headers = {"Authorization": f"Bearer {token}"}
                return client.get("/v2/library/any/tags/list", headers=headers).status_code

            assert status(nobody) == 401
            assert status(ann["token"]) == 404  # allowed, and empty
        assert [request.user for request in registry.asked] == [None, "ann"]
