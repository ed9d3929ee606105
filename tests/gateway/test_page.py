"""The page's files, as a browser gets them."""

from __future__ import annotations

import re

import pytest

from client.fake_triton import run
from gateway.harness import gateway, silence


@pytest.mark.parametrize(
    ("path", "media_type"),
    [("/", "text/html"), ("/page/page.js", "text/javascript"), ("/page/page.css", "text/css")],
)
def test_files_have_their_types_and_may_not_be_framed(path, media_type):
    async def check():
        async with gateway(silence) as (_, client):
            response = await client.get(path)
            assert response.status_code == 200
            assert response.headers["content-type"] == f"{media_type}; charset=utf-8"
            assert "frame-ancestors 'none'" in response.headers["content-security-policy"]
            assert response.headers["x-content-type-options"] == "nosniff"

    run(check())


def test_what_the_page_names_is_there():
    async def check():
        async with gateway(silence) as (_, client):
            for name in re.findall(r'(?:src|href)="(/[^"]+)"', (await client.get("/")).text):
                assert (await client.get(name)).status_code == 200

    run(check())


@pytest.mark.parametrize("path", ["/page/", "/page/index.html", "/page/routes.py", "/page/../app.py", "/index.html"])
def test_nothing_else_is(path):
    async def check():
        async with gateway(silence) as (_, client):
            assert (await client.get(path)).status_code == 404

    run(check())
